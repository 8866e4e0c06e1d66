#include "autotune/results.h"

#include <stdio.h>
#include <string.h>

#include "base/output_file.h"
#include "base/units.h"
#include "job/features.h"
#include "validation/evidence.h"

/* ---- JSON ---- */

static void add_number(cJSON *object, const char *key, double value) {
  cJSON_AddNumberToObject(object, key, value);
}

static double tokens_of(const tws_tune_request *request) {
  return (double)tws_job_sequence(request->job);
}

static cJSON *candidate_json(const tws_tune_candidate *c, const tws_tune_request *request) {
  const double tokens_per_sample = tokens_of(request);
  const tws_evidence evidence = tws_evidence_of_variant(request->job, &c->variant, tws_tune_predicted(c));
  cJSON *json = tws_tune_variant_json(&c->variant);
  cJSON_AddStringToObject(json, "name", c->name);
  add_number(json, "predicted_step_s", c->estimate.step_s);
  if (c->rough) cJSON_AddTrueToObject(json, "rough");
  if (c->variant.pipeline > 1)
    add_number(json, "bubble", c->simulated_s > 0 ? c->simulation.bubble : c->estimate.balance.bubble);
  if (c->simulated_s > 0) add_number(json, "simulated_step_s", c->simulated_s);
  tws_evidence_interval_json(&evidence, tws_tune_predicted(c), json);
  if (c->measured_s > 0) {
    add_number(json, "measured_step_s", c->measured_s);
    add_number(json, "measured_spread_s", c->measured_spread_s);
  }
  add_number(json, "samples_per_s", tws_tune_throughput(c));
  add_number(json, "tokens_per_s", tws_tune_throughput(c) * tokens_per_sample);
  add_number(json, "rank_bytes", c->needed_bytes);
  add_number(json, "rank_limit_bytes", c->available_bytes);
  cJSON_AddBoolToObject(json, "tight", tws_tune_is_tight(request, c));
  cJSON_AddItemToObject(json, "evidence", tws_evidence_json(&evidence));
  return json;
}

static tws_code take_json(cJSON *json, tws_text *out, tws_error *err) {
  char *text = cJSON_Print(json);
  cJSON_Delete(json);
  if (!text) return tws_fail(err, TWS_MEMORY, 0, "no memory for the result");
  tws_text_add(out, "%s\n", text);
  cJSON_free(text);
  return out->failed ? tws_fail(err, TWS_MEMORY, 0, "no memory for the result") : TWS_OK;
}

/* ---- trials ---- */

static cJSON *trial_json(const tws_tune_trial *trial) {
  cJSON *json = cJSON_CreateObject();
  const tws_experiment *e = &trial->experiment;
  cJSON_AddStringToObject(json, "name", trial->name);
  cJSON_AddItemToObject(json, "tuned", tws_tune_variant_json(&trial->variant));
  cJSON_AddStringToObject(json, "outcome", tws_outcome_name(e->outcome));
  if (*e->reason) cJSON_AddStringToObject(json, "reason", e->reason);
  if (trial->predicted_s > 0) add_number(json, "predicted_step_s", trial->predicted_s);
  if (trial->corrected_s > 0) add_number(json, "corrected_step_s", trial->corrected_s);
  if (trial->step_s > 0) {
    add_number(json, "measured_step_s", trial->step_s);
    add_number(json, "measured_spread_s", trial->spread_s);
    add_number(json, "samples_per_s", tws_tune_trial_throughput(trial));
    add_number(json, "rank_bytes", e->rank_bytes);
    add_number(json, "peak_rss_bytes", e->peak_rss_bytes);
  }
  add_number(json, "runs", e->runs);
  cJSON_AddBoolToObject(json, "reused", trial->reused);
  return json;
}

static void add_trials(const tws_tune_trials *trials, cJSON *json) {
  cJSON *list = cJSON_AddArrayToObject(json, "trials");
  for (int i = 0; i < trials->count; i++) cJSON_AddItemToArray(list, trial_json(&trials->all[i]));
  add_number(json, "median_error", trials->error_before);
  if (trials->corrected == 0) return;
  add_number(json, "median_error_corrected", trials->error_after);
  cJSON *factors = cJSON_AddObjectToObject(json, "corrections");
  for (int i = 0; i < TWS_KERNEL_COUNT; i++)
    if (trials->correction.kernel[i] > 0)
      add_number(factors, tws_kernel_name((tws_kernel)i), trials->correction.kernel[i]);
  for (int i = 0; i < TWS_COLLECTIVE_COUNT; i++)
    if (trials->correction.collective[i] > 0)
      add_number(factors, tws_collective_name((tws_collective)i), trials->correction.collective[i]);
}

static cJSON *point_json(const tws_tune_point *point) {
  cJSON *json = tws_tune_variant_json(&point->variant);
  cJSON_AddBoolToObject(json, "fits", point->fits);
  if (*point->reason) cJSON_AddStringToObject(json, "reason", point->reason);
  if (!(point->step_s > 0)) return json;
  add_number(json, "predicted_step_s", point->step_s);
  add_number(json, "samples_per_s", point->throughput);
  add_number(json, "rank_bytes", point->bytes);
  if (point->cost > 0) add_number(json, "cost_per_million_tokens", point->cost);
  return json;
}

static void add_analysis(const tws_tune_report *report, cJSON *json) {
  const tws_tune_analysis *a = report->analysis;
  cJSON *pareto = cJSON_AddArrayToObject(json, "pareto"), *knobs = cJSON_AddArrayToObject(json, "sensitivity");
  for (int i = 0; i < a->pareto_count; i++)
    cJSON_AddItemToArray(pareto, cJSON_CreateString(report->result->candidates[a->pareto[i]].name));
  for (int i = 0; i < a->knob_count; i++) {
    cJSON *one = point_json(&a->knobs[i].point);
    cJSON_AddStringToObject(one, "knob", a->knobs[i].name);
    cJSON_AddStringToObject(one, "winner", a->knobs[i].winner);
    cJSON_AddStringToObject(one, "value", a->knobs[i].value);
    if (a->knobs[i].point.step_s > 0)
      add_number(one, "change", a->knobs[i].point.throughput / a->winner.throughput - 1);
    cJSON_AddItemToArray(knobs, one);
  }
  if (!a->has_own) return;
  cJSON *own = point_json(&a->own);
  if (a->own.step_s > 0) add_number(own, "gain", a->winner.throughput / a->own.throughput);
  cJSON_AddItemToObject(json, "own_configuration", own);
}

const tws_variant *tws_tune_best(const tws_tune_report *report, const char **name) {
  const tws_tune_trials *trials = report->trials;
  const char *unwanted;
  if (!name) name = &unwanted;
  *name = NULL;
  if (trials && trials->best >= 0) {
    *name = trials->all[trials->best].name;
    return &trials->all[trials->best].variant;
  }
  if (report->result->fits == 0) return NULL;
  *name = report->result->candidates[0].name;
  return &report->result->candidates[0].variant;
}

int tws_tune_assumed(const tws_tune_request *request, tws_assumption list[TWS_ASSUMPTIONS]) {
  const int count = tws_job_assumed(request->job, list);
  int kept = 0;
  for (int i = 0; i < count; i++) {
    const int given = (request->memory_bytes > 0 && strcmp(list[i].what, "memory margin") == 0) ||
                      (request->space.capacity_count > 0 && strcmp(list[i].what, "expert capacity factor") == 0);
    if (!given) list[kept++] = list[i];
  }
  return kept;
}

static void add_provenance(const tws_tune_request *request, cJSON *json) {
  const tws_job *job = request->job;
  cJSON_AddStringToObject(json, "model", job->network->name);
  tws_fingerprint fingerprint = {0}; /* only the model's fingerprint is set, since each candidate has another plan */
  snprintf(fingerprint.model, sizeof fingerprint.model, "%016llx",
           (unsigned long long)tws_network_fingerprint(job->network));
  tws_fingerprint_json(&fingerprint, json);
  cJSON_AddStringToObject(json, "dtype", tws_dtype_name(job->config->dtype));
  add_number(json, "sequence_length", tokens_of(request));
  cJSON_AddStringToObject(json, "cluster", job->cluster.name);
  cJSON_AddStringToObject(json, "profile", tws_profile_name(job->profile));
  cJSON_AddStringToObject(json, "profile_provenance", tws_profile_provenance(job->profile));
  cJSON_AddStringToObject(json, "runtime", tws_profile_runtime(job->profile)->name);
  tws_features_json(tws_job_unsupported_everywhere(job), json);
  tws_assumption assumed[TWS_ASSUMPTIONS];
  cJSON_AddItemToObject(json, "assumptions", tws_assumptions_json(assumed, tws_tune_assumed(request, assumed)));
}

/* Returns the candidate of the best variant (tws_tune_best()), which may differ from the one that is predicted to be
 * the fastest. */
static const tws_tune_candidate *best_candidate(const tws_tune_report *report) {
  const char *name;
  tws_tune_best(report, &name);
  for (int i = 0; i < report->result->fits; i++)
    if (strcmp(report->result->candidates[i].name, name) == 0) return &report->result->candidates[i];
  return &report->result->candidates[0];
}

/* Adds the counts of the points by outcome, and the CPU seconds of all processes. */
static void add_swept(const tws_tune_swept *s, cJSON *json) {
  const struct {
    const char *name;
    double value;
  } numbers[] = {
      {"considered", (double)s->considered}, {"illegal", (double)s->illegal},     {"equal", (double)s->equal},
      {"refused", (double)s->refused},       {"too_large", (double)s->too_large}, {"ruled_out", (double)s->ruled_out},
      {"planned", (double)s->planned},       {"left", (double)s->left},           {"bounds", (double)s->bounds},
      {"plans", (double)s->plans},           {"search_cpu_s", s->search_cpu_s},   {"plan_cpu_s", s->plan_cpu_s},
      {"simulate_cpu_s", s->simulate_cpu_s}};
  cJSON *swept = cJSON_AddObjectToObject(json, "search");
  for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) add_number(swept, numbers[i].name, numbers[i].value);
  if (s->left > 0 && s->left_better >= 0) add_number(swept, "left_better_at_most", s->left_better);
}

tws_code tws_tune_json(const tws_tune_report *report, tws_text *out, tws_error *err) {
  const tws_tune_result *result = report->result;
  const tws_tune_request *request = report->request;
  cJSON *json = cJSON_CreateObject();
  cJSON_AddStringToObject(json, "schema", "twinspeed-tune-1");
  add_provenance(request, json);
  cJSON_AddStringToObject(json, "objective", tws_goal_name(request->goal));
  add_number(json, "points", (double)tws_tune_points(result));
  add_number(json, "fits", result->fits);
  add_number(json, "simulated", result->simulated);
  add_number(json, "estimate_s", result->estimate_s);
  add_number(json, "simulate_s", result->simulate_s);
  add_swept(&result->swept, json);
  cJSON *rejections = cJSON_AddArrayToObject(json, "rejections");
  for (int i = 0; i < result->rejection_count; i++) {
    cJSON *item = cJSON_CreateObject();
    cJSON_AddStringToObject(item, "reason", result->rejections[i].reason);
    add_number(item, "count", (double)result->rejections[i].count);
    cJSON_AddItemToArray(rejections, item);
  }
  cJSON *candidates = cJSON_AddArrayToObject(json, "candidates");
  for (int i = 0; i < result->fits; i++)
    cJSON_AddItemToArray(candidates, candidate_json(&result->candidates[i], request));
  if (report->trials) add_trials(report->trials, json);
  if (report->analysis) add_analysis(report, json);
  tws_advice_json(report->advice, report->advice_count, json);
  if (result->fits > 0) {
    cJSON_AddItemToObject(json, "best", candidate_json(best_candidate(report), request));
  } else if (result->smallest >= 0) {
    const tws_tune_candidate *c = &result->candidates[result->smallest];
    cJSON *smallest = candidate_json(c, request);
    add_number(smallest, "missing_bytes", c->needed_bytes - c->available_bytes);
    cJSON_AddItemToObject(json, "smallest", smallest);
  }
  return take_json(json, out, err);
}

/* ---- folders ---- */

/* One row of the summary of experiments: their number, failed ones included, and the best experiment. */
typedef struct summary_row {
  int count;
  double score, best; /* score and throughput of the best experiment */
  const char *name;
} summary_row;

static void count_row(summary_row *row, tws_goal goal, const tws_scored *scored, const char *name) {
  const double score = tws_goal_score(goal, scored);
  row->count++;
  if (row->name && score <= row->score) return;
  row->score = score;
  row->best = scored->step_s > 0 ? scored->samples / scored->step_s : 0;
  row->name = name;
}

static summary_row summarise(const tws_tune_report *report, int stage) {
  const tws_tune_trials *trials = report->trials;
  const tws_tune_result *result = report->result;
  const tws_goal goal = report->request->goal;
  summary_row row = {0};
  for (int i = 0; trials && i < trials->count; i++) {
    tws_scored scored = trials->all[i].scored;
    scored.step_s = trials->all[i].step_s; /* the score is that of the measured step, not the predicted one */
    if (stage < 0 || trials->all[i].variant.stage == stage) count_row(&row, goal, &scored, trials->all[i].name);
  }
  for (int i = 0; (!trials || trials->count == 0) && i < result->fits; i++) {
    const tws_tune_candidate *c = &result->candidates[i];
    if ((stage >= 0 && c->variant.stage != stage) || (result->simulated > 0 && c->simulated_s <= 0)) continue;
    const tws_scored scored = tws_candidate_scored(c);
    count_row(&row, goal, &scored, c->name);
  }
  return row;
}

/* Writes DeepSpeed's summary: one row per space, then the global one. In Twinspeed's summary a space is a ZeRO
 * stage. */
static void write_summary(const tws_tune_report *report, tws_text *out) {
  const tws_tune_result *result = report->result;
  tws_text_add(out, "| %-12s | %15s | %15s | %-40s |\n", "tuning_space", "num_experiments", "best_metric_val",
               "best_exp_name");
  for (int stage = 0; stage <= 4; stage++) {
    const summary_row row = summarise(report, stage < 4 ? stage : -1);
    char space[16] = "global";
    if (stage < 4) snprintf(space, sizeof space, "z%d", stage);
    if (row.count > 0) tws_text_add(out, "| %-12s | %15d | %15.6g | %-40s |\n", space, row.count, row.best, row.name);
  }
  const int measured = report->trials && report->trials->count > 0;
  if (report->request->goal != TWS_GOAL_THROUGHPUT)
    tws_text_add(out, "\nchosen by %s", tws_goal_name(report->request->goal));
  tws_text_add(out, "\nmetric: throughput (samples/s), %s. %lld points: %lld planned that fit, %lld rejected.\n",
               measured ? "measured" : "predicted", (long long)tws_tune_points(result),
               (long long)result->swept.planned, (long long)(result->swept.too_large + result->swept.refused));
  char tokens[40];
  const tws_job *job = report->request->job;
  tws_text_add(out, "runtime %s, %s, sequences of %s tokens\n", tws_profile_runtime(job->profile)->name,
               tws_dtype_name(job->config->dtype), tws_format_integer(tws_job_sequence(job), tokens, sizeof tokens));
  tws_assumption assumed[TWS_ASSUMPTIONS];
  const int assumptions = tws_tune_assumed(report->request, assumed);
  if (assumptions > 0) tws_text_add(out, "assumed: ");
  tws_assumptions_text(assumed, assumptions, out);
  if (assumptions > 0) tws_text_add(out, "\n");
  for (int i = 0; i < result->rejection_count; i++)
    tws_text_add(out, "rejected %lld: %s\n", (long long)result->rejections[i].count, result->rejections[i].reason);
  for (int i = 0; measured && i < report->trials->count; i++) {
    const tws_tune_trial *t = &report->trials->all[i];
    if (t->experiment.outcome != TWS_OUTCOME_MEASURED)
      tws_text_add(out, "%s %s: %s\n", tws_outcome_name(t->experiment.outcome), t->name, t->experiment.reason);
  }
}

static tws_code write_text(const char *folder, const char *name, tws_text *text, tws_code code, tws_error *err) {
  char path[4096];
  snprintf(path, sizeof path, "%.2048s/%s", folder, name);
  if (code == TWS_OK && text->failed) code = tws_fail(err, TWS_MEMORY, NULL, "no memory for %s", path);
  if (code == TWS_OK) code = tws_write_file(path, text->data, text->length, err);
  tws_text_free(text);
  return code;
}

static int was_run(const tws_tune_report *report, const char *name) {
  for (int i = 0; report->trials && i < report->trials->count; i++)
    if (strcmp(report->trials->all[i].name, name) == 0) return 1;
  return 0;
}

/* Writes the profile as corrected by the runs to a file, so that later predictions can use it, and the file's path to
 * `path`, which has room for 4096 bytes. Without a correction, `path` becomes empty, and the file of an earlier search
 * is removed. */
static tws_code write_profile(const tws_tune_report *report, const tws_tune_folders *folders, char *path,
                              tws_error *err) {
  const tws_job *job = report->request->job;
  const char *given = folders->spec && folders->spec->profile ? folders->spec->profile : job->cluster.profile;
  cJSON *json;
  snprintf(path, 4096, "%.2048s/" TWS_TUNE_PROFILE, folders->results);
  if (!report->trials || report->trials->corrected == 0) {
    if (strcmp(given, path) != 0 && folders->earlier != TWS_EARLIER_KEEP) tws_remove_file(path);
    path[0] = '\0';
    return TWS_OK;
  }
  TWS_TRY(tws_profile_corrected_json(given, job->profile, report->trials->count, &json, err));
  return tws_tune_write_json(json, path, err);
}

tws_code tws_tune_write(const tws_tune_report *report, const tws_tune_folders *folders, tws_error *err) {
  const tws_tune_result *result = report->result;
  char config[4096], path[4096], profile[4096];
  TWS_TRY(write_profile(report, folders, profile, err));
  for (int i = 0; i < result->fits; i++) {
    const tws_tune_candidate *c = &result->candidates[i];
    if (i > 0 && c->simulated_s <= 0 && !was_run(report, c->name)) continue;
    TWS_TRY(tws_tune_write_experiment(c, report->request, folders, i, err));
  }
  tws_text summary = {0}, json = {0};
  write_summary(report, &summary);
  TWS_TRY(write_text(folders->results, "summary.txt", &summary, TWS_OK, err));
  const tws_code code = tws_tune_json(report, &json, err);
  TWS_TRY(write_text(folders->results, "results.json", &json, code, err));
  const tws_variant *best = tws_tune_best(report, NULL);
  if (!best) return TWS_OK;
  snprintf(config, sizeof config, "%.2048s/ds_config_optimal.json", folders->results);
  snprintf(path, sizeof path, "%.2048s/cmd_optimal.txt", folders->results);
  TWS_TRY(tws_tune_write_config(report->request, best, config, err));
  tws_job_spec spec = folders->spec ? *folders->spec : (tws_job_spec)TWS_JOB_SPEC_DEFAULTS;
  tws_tune_folders own = *folders;
  if (*profile) spec.profile = profile;
  if (folders->spec) own.spec = &spec;
  return tws_tune_write_command(report->request, best, &own, config, path, err);
}
