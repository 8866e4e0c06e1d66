#include "validation/published.h"

#include <math.h>
#include <string.h>

#include "base/memory.h"
#include "base/units.h"
#include "job/fit.h"
#include "traces/measurements.h"

/* ---- the file ---- */

static const cJSON *find_member(const cJSON *object, const char *key) {
  const cJSON *item = cJSON_GetObjectItemCaseSensitive(object, key);
  return item && !cJSON_IsNull(item) ? item : NULL;
}

static tws_code read_object(const tws_json *json, const cJSON *object, const char *key, int required,
                            const cJSON **item, tws_error *err) {
  *item = find_member(object, key);
  if (*item ? cJSON_IsObject(*item) : !required) return TWS_OK;
  return tws_json_fail(json, *item ? *item : object, err, NULL, *item ? "\"%s\" must be an object" : "no \"%s\"", key);
}

static tws_code read_text(const tws_json *json, const cJSON *object, const char *key, int required,
                          const char *fallback, const char **text, tws_error *err) {
  return tws_json_string(json, object, key, required, fallback, text, err);
}

/* The member of a section that a run names. */
static tws_code find_named(const tws_json *json, const cJSON *run, const char *key, const char *section, int required,
                           const char **name, const cJSON **item, tws_error *err) {
  const cJSON *all;
  *item = NULL;
  TWS_TRY(read_text(json, run, key, required, "", name, err));
  if (!**name) return TWS_OK;
  TWS_TRY(read_object(json, json->root, section, 1, &all, err));
  *item = find_member(all, *name);
  if (cJSON_IsObject(*item)) return TWS_OK;
  return tws_json_fail(json, find_member(run, key), err, NULL, "\"%s\" has no object \"%.80s\"", section, *name);
}

static tws_code read_figures(const tws_json *json, const cJSON *run, tws_published_run *out, tws_error *err) {
  static const char *const known[] = {"step_s", "teraflops", "mfu", "state_gib", "activation_gib", "fits", NULL};
  double *const values[] = {&out->step_s, &out->teraflops, &out->mfu, &out->state_gib, &out->activation_gib};
  const cJSON *figures;
  TWS_TRY(read_object(json, run, "published", 1, &figures, err));
  TWS_TRY(tws_json_only(json, figures, known, err));
  for (int i = 0; i < 5; i++)
    TWS_TRY(tws_json_number(json, figures, known[i], 0, 1e-9, i == 2 ? 1 : 1e9, 0, values[i], err));
  return tws_json_bool(json, figures, "fits", 0, -1, &out->fits, err);
}

static tws_code read_run(const tws_json *json, const cJSON *run, tws_published_run *out, tws_error *err) {
  static const char *const known[] = {"id",   "group",  "source",    "where", "system", "model",
                                      "gpus", "config", "published", "note",  "reason", NULL};
  const char *source;
  const cJSON *item;
  int64_t gpus;
  if (!cJSON_IsObject(run)) return tws_json_fail(json, run, err, NULL, "a run must be an object");
  TWS_TRY(tws_json_only(json, run, known, err));
  TWS_TRY(read_text(json, run, "id", 1, NULL, &out->id, err));
  TWS_TRY(read_text(json, run, "group", 1, NULL, &out->group, err));
  TWS_TRY(read_text(json, run, "where", 0, "", &out->where, err));
  TWS_TRY(read_text(json, run, "note", 0, NULL, &out->note, err));
  TWS_TRY(read_text(json, run, "reason", 0, NULL, &out->reason, err));
  TWS_TRY(find_named(json, run, "source", "sources", 1, &source, &item, err));
  TWS_TRY(read_text(json, item, "title", 1, NULL, &out->title, err));
  TWS_TRY(read_text(json, item, "url", 0, "", &out->url, err));
  int needed = out->reason == NULL;
  TWS_TRY(find_named(json, run, "system", "systems", needed, &out->system, &item, err));
  TWS_TRY(find_named(json, run, "model", "models", needed, &out->model, &item, err));
  TWS_TRY(read_object(json, run, "config", 0, &out->config, err));
  TWS_TRY(tws_json_int(json, run, "gpus", needed, 1, 1 << 24, 0, &gpus, err));
  out->gpus = (int)gpus;
  TWS_TRY(read_figures(json, run, out, err));
  if (needed && !(out->step_s > 0) && !(out->teraflops > 0) && !(out->mfu > 0) && !(out->state_gib > 0) &&
      !(out->activation_gib > 0) && out->fits < 0)
    return tws_json_fail(json, run, err, "give a figure, or the \"reason\" why there is none to compare with",
                         "run \"%.80s\" has published nothing", out->id);
  return TWS_OK;
}

static tws_code read_runs(tws_published *p, tws_error *err) {
  static const char *const known[] = {"schema", "about", "sources", "systems", "models", "config", "runs", NULL};
  const tws_json *json = p->json;
  const cJSON *shared, *item;
  const char *schema;
  if (!cJSON_IsObject(json->root)) return tws_json_fail(json, json->root, err, NULL, "the file must hold one object");
  TWS_TRY(read_text(json, json->root, "schema", 1, NULL, &schema, err));
  if (strcmp(schema, "twinspeed-published-1") != 0)
    return tws_json_fail(json, find_member(json->root, "schema"), err, "\"twinspeed-published-1\" is read",
                         "unknown schema \"%.80s\"", schema);
  TWS_TRY(tws_json_only(json, json->root, known, err));
  TWS_TRY(read_text(json, json->root, "about", 0, "", &p->about, err));
  TWS_TRY(read_object(json, json->root, "config", 0, &shared, err));
  const cJSON *runs = find_member(json->root, "runs");
  if (!cJSON_IsArray(runs)) return tws_json_fail(json, runs ? runs : json->root, err, NULL, "\"runs\" must be a list");
  p->runs = tws_calloc((size_t)cJSON_GetArraySize(runs) + 1, sizeof *p->runs);
  if (!p->runs) return tws_fail(err, TWS_MEMORY, NULL, "out of memory for published runs");
  cJSON_ArrayForEach(item, runs) {
    tws_published_run *run = &p->runs[p->count];
    TWS_TRY(read_run(json, item, run, err));
    for (int i = 0; i < p->count; i++)
      if (strcmp(p->runs[i].id, run->id) == 0)
        return tws_json_fail(json, item, err, NULL, "a second run \"%.80s\"", run->id);
    p->count++;
  }
  return TWS_OK;
}

tws_code tws_published_load(const char *path, tws_published **out, tws_error *err) {
  *out = NULL;
  tws_published *p = tws_calloc(1, sizeof *p);
  if (!p) return tws_fail(err, TWS_MEMORY, NULL, "out of memory for published runs");
  tws_code code = tws_json_read(path, &p->json, err);
  if (code == TWS_OK) code = read_runs(p, err);
  if (code == TWS_OK)
    *out = p;
  else
    tws_published_destroy(p);
  return code;
}

void tws_published_destroy(tws_published *published) {
  if (!published) return;
  tws_json_destroy(published->json);
  tws_free(published->runs);
  tws_free(published);
}

/* ---- one run as a job ---- */

/* A part of the file, read as a document of its own. */
static tws_json find_part(const tws_published *p, const char *section, const char *name) {
  tws_json view = *p->json;
  const cJSON *object = find_member(p->json->root, section);
  view.root = (cJSON *)(name ? find_member(object, name) : object);
  return view;
}

/* Keys of the run's own over the shared ones, section by section. */
static tws_code set_own(tws_config *config, const cJSON *own, tws_error *err) {
  const cJSON *item;
  cJSON_ArrayForEach(item, own) {
    char *text = cJSON_PrintUnformatted(item);
    if (!text) return tws_fail(err, TWS_MEMORY, NULL, "out of memory for a configuration");
    tws_code code = tws_config_set(config, item->string, text, err);
    cJSON_free(text);
    TWS_TRY(code);
  }
  return TWS_OK;
}

static tws_code load_config(const tws_published *p, const tws_published_run *run, tws_config **config, tws_error *err) {
  tws_json view = find_part(p, "config", NULL);
  TWS_TRY(view.root ? tws_config_from_json(&view, config, err) : tws_config_default(config, err));
  return set_own(*config, run->config, err);
}

static tws_code load_parts(const tws_published *p, const tws_published_run *run, tws_job_parts_given *parts,
                           tws_error *err) {
  TWS_TRY(load_config(p, run, &parts->config, err));
  tws_json view = find_part(p, "models", run->model);
  TWS_TRY(tws_network_from_json(&view, tws_config_vocabulary_multiple(parts->config), &parts->network, err));
  view = find_part(p, "systems", run->system);
  TWS_TRY(tws_cluster_from_json(&view, &parts->cluster, err));
  const int devices = parts->cluster.devices_per_node;
  parts->cluster.nodes = (run->gpus + devices - 1) / devices;
  parts->ranks = run->gpus;
  return tws_profile_load(parts->cluster.profile, &parts->profile, err);
}

tws_code tws_published_job(const tws_published *published, int run, tws_job **out, tws_error *err) {
  const tws_published_run *r = &published->runs[run];
  tws_job_parts_given parts = {0};
  *out = NULL;
  if (r->reason) return tws_fail(err, TWS_UNSUPPORTED, NULL, "%s", r->reason);
  tws_code code = load_parts(published, r, &parts, err);
  if (code == TWS_OK) return tws_job_assemble(&parts, out, err);
  tws_network_destroy(parts.network);
  tws_config_destroy(parts.config);
  tws_profile_destroy(parts.profile);
  return code;
}

/* ---- figures ---- */

double tws_published_flops(const tws_network *network, double samples, double sequence, int recomputed) {
  double h = (double)network->hidden, l = (double)network->layers, v = (double)network->padded_vocabulary;
  double passes = recomputed ? 96 : 72, logits = recomputed ? 16 : 12;
  return passes * samples * sequence * l * h * h * (1 + sequence / (6 * h) + v / (logits * l * h));
}

static double step_flops(const tws_job *job, int recomputed) {
  return tws_published_flops(job->network, (double)job->config->train_batch_size, (double)job->config->sequence_length,
                             recomputed);
}

double tws_published_step(const tws_published_run *run, const tws_job *job, int *derived) {
  if (derived) *derived = !(run->step_s > 0);
  if (run->step_s > 0) return run->step_s;
  if (run->teraflops > 0) return step_flops(job, 1) / (run->teraflops * 1e12 * run->gpus);
  if (run->mfu > 0) return step_flops(job, 0) / (run->mfu * tws_profile_peak_flops(job->profile, TWS_BF16) * run->gpus);
  return 0;
}

double tws_published_teraflops(const tws_published_run *run, const tws_job *job, double step_s) {
  return step_s > 0 ? step_flops(job, 1) / step_s / run->gpus / 1e12 : 0;
}

/* ---- predictions ---- */

tws_code tws_published_predict(const tws_job *job, tws_prediction *prediction, tws_error *err) {
  memset(prediction, 0, sizeof *prediction);
  tws_plan_request request = tws_job_request(job, 0);
  request.max_accumulation = 1; /* pipelines: extrapolated */
  tws_estimate *estimate = &prediction->estimate;
  TWS_TRY(tws_estimate_step(&request, &job->machine, estimate, err));
  const tws_ledger_tier *device = &estimate->ledger.tier[TWS_TIER_DEVICE];
  double state = 0, activations = 0;
  for (int c = 0; c < TWS_CATEGORY_COUNT; c++) {
    double bytes = (double)device->category[c];
    if (c == TWS_CATEGORY_PARAMETER || c == TWS_CATEGORY_GRADIENT || c == TWS_CATEGORY_MASTER ||
        c == TWS_CATEGORY_MOMENT)
      state += bytes;
    if (c == TWS_CATEGORY_ACTIVATION || c == TWS_CATEGORY_CHECKPOINT) activations += bytes;
  }
  const tws_fit fit = tws_job_fit(job, &estimate->ledger);
  prediction->step_s = estimate->step_s;
  prediction->state_gib = state / TWS_GIB;
  prediction->activation_gib = activations / TWS_GIB;
  prediction->memory_gib = fit.device_need / TWS_GIB;
  prediction->fits = fit.fits;
  return TWS_OK;
}

/* ---- predictions beside what was published ---- */

static tws_code predict_row(const tws_published *published, const tws_sim_api *sim, tws_fidelity fidelity,
                            tws_published_row *row, tws_error *err) {
  TWS_TRY(tws_published_job(published, (int)(row->run - published->runs), &row->job, err));
  TWS_TRY(tws_published_predict(row->job, &row->prediction, err));
  row->published_s = tws_published_step(row->run, row->job, &row->derived);
  if (!sim || !(row->published_s > 0)) return TWS_OK;
  return tws_job_simulated_step(row->job, sim, fidelity, &row->prediction.step_s, err);
}

static tws_code choose_rows(const tws_published *published, const char *only, tws_published_comparison *out,
                            tws_error *err) {
  int chosen = 0;
  out->rows = tws_calloc((size_t)published->count + 1, sizeof *out->rows);
  if (!out->rows) return tws_fail(err, TWS_MEMORY, NULL, "out of memory for %d runs", published->count);
  out->count = published->count;
  for (int i = 0; i < out->count; i++) {
    out->rows[i].run = &published->runs[i];
    out->rows[i].chosen = !only || strstr(published->runs[i].id, only) != NULL;
    chosen += out->rows[i].chosen;
  }
  if (chosen > 0) return TWS_OK;
  return tws_fail(err, TWS_USAGE, "the names are the \"id\" of the runs", "--only %.80s: no run has that in its name",
                  only ? only : "");
}

tws_code tws_published_compare(const tws_published *published, const char *only, const tws_sim_api *sim,
                               tws_fidelity fidelity, tws_progress *progress, tws_published_comparison *out,
                               tws_error *err) {
  tws_code code = TWS_OK;
  int done = 0;
  *out = (tws_published_comparison){0};
  TWS_TRY(choose_rows(published, only, out, err));
  tws_progress_begin(progress, "predicting published runs", out->count);
  for (int i = 0; i < out->count && code == TWS_OK; i++) {
    tws_published_row *row = &out->rows[i];
    if (!row->chosen) continue;
    code = predict_row(published, sim, fidelity, row, &row->why);
    row->predicted = code == TWS_OK;
    if (code == TWS_UNSUPPORTED || code == TWS_INVALID) code = TWS_OK;
    if (code != TWS_OK && err) *err = row->why;
    tws_progress_update(progress, ++done);
  }
  tws_progress_end(progress);
  return code;
}

void tws_published_comparison_free(tws_published_comparison *comparison) {
  for (int i = 0; comparison->rows && i < comparison->count; i++) tws_job_destroy(comparison->rows[i].job);
  tws_free(comparison->rows);
  *comparison = (tws_published_comparison){0};
}

static double ratio_error(double predicted, double published) {
  return published > 0 ? predicted / published - 1 : NAN;
}

double tws_published_error(const tws_published_row *row, tws_published_measure measure) {
  if (!row->predicted) return NAN;
  const tws_prediction *p = &row->prediction;
  if (measure == TWS_PUBLISHED_STEP) return ratio_error(p->step_s, row->published_s);
  if (measure == TWS_PUBLISHED_STATE) return ratio_error(p->state_gib, row->run->state_gib);
  return ratio_error(p->activation_gib, row->run->activation_gib);
}

double tws_published_median(const tws_published_comparison *comparison, const char *group,
                            tws_published_measure measure, int *count) {
  double *errors = tws_calloc((size_t)comparison->count + 1, sizeof *errors), median = NAN;
  *count = 0;
  for (int i = 0; errors && i < comparison->count; i++) {
    const tws_published_row *row = &comparison->rows[i];
    const double error = tws_published_error(row, measure);
    if (isfinite(error) && (!group || strcmp(row->run->group, group) == 0)) errors[(*count)++] = fabs(error);
  }
  if (*count > 0) median = tws_sample_median(errors, (size_t)*count);
  tws_free(errors);
  return median;
}

const char *tws_published_next_group(const tws_published_comparison *comparison, int *next) {
  const tws_published_row *rows = comparison->rows;
  for (; *next < comparison->count; ++*next) {
    const char *group = rows[*next].run->group;
    int seen = !rows[*next].chosen;
    for (int i = 0; i < *next && !seen; i++) seen = rows[i].chosen && strcmp(rows[i].run->group, group) == 0;
    if (!seen) return rows[(*next)++].run->group;
  }
  return NULL;
}
