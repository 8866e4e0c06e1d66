#include "validation/evidence.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/units.h"
#include "models/hardware/runtime.h"

#define GPUS_AROUND 2.0
#define PARAMETERS_AROUND 4.0
#define TRUSTED_ERROR 0.15

static const struct {
#define WEIGHT(name_, value_, what_) double name_;
#define LINE(runtime_, line_)
#include "validation/evidence_weights.def"
#undef WEIGHT
#undef LINE
} weights = {
#define WEIGHT(name_, value_, what_) .name_ = value_,
#define LINE(runtime_, line_)
#include "validation/evidence_weights.def"
#undef WEIGHT
#undef LINE
};

static const char *const lines[][2] = {
#define WEIGHT(name_, value_, what_)
#define LINE(runtime_, line_) {runtime_, line_},
#include "validation/evidence_weights.def"
#undef WEIGHT
#undef LINE
};

static const tws_evidence_run runs[] = {
#define RUN(group_, id_, runtime_, gpu_, generation_, model_, parameters_, tokens_, gpus_, stage_, part_, measured_, \
            predicted_)                                                                                              \
  {.id = id_,                                                                                                        \
   .group = group_,                                                                                                  \
   .key = {.runtime = runtime_,                                                                                      \
           .gpu = gpu_,                                                                                              \
           .generation = TWS_GENERATION_##generation_,                                                               \
           .model = TWS_EVIDENCE_##model_,                                                                           \
           .parameters = parameters_,                                                                                \
           .tokens = tokens_,                                                                                        \
           .predicted_s = predicted_,                                                                                \
           .gpus = gpus_,                                                                                            \
           .stage = stage_},                                                                                         \
   .measured_s = measured_,                                                                                          \
   .part = TWS_EVIDENCE_##part_},
#include "validation/evidence.def"
#undef RUN
};
enum { RUN_COUNT = sizeof runs / sizeof *runs, LINE_COUNT = sizeof lines / sizeof *lines };

const tws_evidence_run *tws_evidence_runs(int *count) {
  *count = RUN_COUNT;
  return runs;
}

double tws_evidence_error(const tws_evidence_run *run) {
  return run->key.predicted_s / run->measured_s - 1;
}

const char *tws_evidence_model_name(tws_evidence_model model) {
  static const char *const names[TWS_EVIDENCE_MODELS] = {"dense", "experts", "encoder", "adapters"};
  return names[model];
}

const char *tws_evidence_part_name(tws_evidence_part part) {
  static const char *const names[] = {"fitting", "reported", "apart"};
  return names[part];
}

/* ---- a job ---- */

static tws_evidence_model model_of(const tws_network *network, const tws_config *config) {
  int bidirectional = 0;
  for (uint32_t i = 0; i < network->module_count; i++) {
    if (network->modules[i].routing) return TWS_EVIDENCE_EXPERTS;
    bidirectional |= (network->modules[i].flags & TWS_BIDIRECTIONAL) != 0;
  }
  return config->lora.r > 0 ? TWS_EVIDENCE_ADAPTERS : bidirectional ? TWS_EVIDENCE_ENCODER : TWS_EVIDENCE_DENSE;
}

static tws_evidence_key describe(const tws_job *job, int ranks, int replicas, int stage, double samples,
                                 double step_s) {
  tws_evidence_key key = {.runtime = tws_profile_runtime(job->profile)->name,
                          .generation = tws_profile_generation(job->profile),
                          .model = model_of(job->network, job->config),
                          .parameters = (double)tws_network_params(job->network, 0),
                          .tokens = samples * (double)tws_job_sequence(job),
                          .predicted_s = step_s,
                          .gpus = ranks,
                          .stage = replicas > 1 ? stage : 0};
  if (tws_profile_rates(job->profile) == TWS_RATES_OWN)
    snprintf(key.gpu, sizeof key.gpu, "%s", tws_profile_name(job->profile));
  return key;
}

tws_evidence_key tws_evidence_describe(const tws_job *job, double step_s) {
  const int replicas = tws_job_ranks_along(job, TWS_AXIS_DATA) * tws_job_ranks_along(job, TWS_AXIS_SEQUENCE);
  return describe(job, job->ranks, replicas, job->config->zero.stage, (double)job->config->train_batch_size, step_s);
}

/* ---- distances ---- */

static const char *line_of(const char *runtime) {
  for (int i = 0; i < LINE_COUNT; i++)
    if (strcmp(lines[i][0], runtime) == 0) return lines[i][1];
  return runtime;
}

/* Returns 1 if a part of the profile's name begins with the GPU's name: "b200" is not in "gb200". */
static int is_gpu(const char *profile, const char *gpu) {
  const char *at = strcasestr(profile, gpu);
  return at && (at == profile || at[-1] == '-' || at[-1] == ' ');
}

static double octaves(double a, double b) {
  return a > 0 && b > 0 ? fabs(log2(a / b)) : 0;
}

static double distance(const tws_evidence_run *run, const tws_evidence_key *job) {
  const tws_evidence_key *key = &run->key;
  double far = weights.gpus * octaves(job->gpus, key->gpus) +
               weights.parameters * octaves(job->parameters, key->parameters) +
               weights.step * octaves(job->predicted_s, key->predicted_s);
  if (strcmp(job->runtime, key->runtime) != 0)
    far += strcmp(line_of(job->runtime), line_of(key->runtime)) == 0 ? weights.other_runtime : weights.other_line;
  if (!is_gpu(job->gpu, key->gpu))
    far += job->generation == key->generation ? weights.other_gpu : weights.other_generation;
  if ((job->stage == 3) != (key->stage == 3)) far += weights.other_stage;
  if (job->model != key->model) far += weights.other_model;
  return far;
}

/* ---- the interval ---- */

static double residual(const tws_evidence_run *run) {
  const double r = log(run->measured_s / run->key.predicted_s);
  return fmax(-weights.outlier, fmin(r, weights.outlier));
}

/* A run's residual and weight. */
typedef struct vote {
  double residual, weight;
} vote;

static int smaller_first(const void *a, const void *b) {
  const double x = ((const vote *)a)->residual, y = ((const vote *)b)->residual;
  return (x > y) - (x < y);
}

/* Sets the residuals and the weights of the runs for fitting; other runs have the weight 0. The weights of a group's
 * runs are scaled down if their sum exceeds weights.group. The runs of a group are adjacent in the table. */
static void weigh(const tws_evidence_key *job, vote votes[RUN_COUNT]) {
  for (int first = 0, end; first < RUN_COUNT; first = end) {
    double together = 0;
    for (end = first; end < RUN_COUNT && strcmp(runs[end].group, runs[first].group) == 0; end++) {
      const int counts = runs[end].part == TWS_EVIDENCE_FITTING;
      votes[end] = (vote){residual(&runs[end]), counts ? exp(-distance(&runs[end], job)) : 0};
      together += votes[end].weight;
    }
    for (int i = first; i < end && together > weights.group; i++) votes[i].weight *= weights.group / together;
  }
}

/* Returns the residual below which a share of the total weight `all` lies; the votes are sorted by their residuals. */
static double percentile(const vote votes[RUN_COUNT], double all, double share) {
  double sum = 0;
  int i = 0;
  while (i + 1 < RUN_COUNT && (sum += votes[i].weight) < share * all) i++;
  return votes[i].residual;
}

static void find_interval(const tws_evidence_key *job, tws_evidence *e) {
  vote votes[RUN_COUNT];
  double n = 0, sum = 0, squares = 0;
  weigh(job, votes);
  qsort(votes, RUN_COUNT, sizeof *votes, smaller_first);
  for (int i = 0; i < RUN_COUNT; i++) {
    n += votes[i].weight;
    sum += votes[i].weight * votes[i].residual;
  }
  const double center = sum / (n + weights.prior_center);
  for (int i = 0; i < RUN_COUNT; i++) squares += votes[i].weight * pow(votes[i].residual - center, 2);
  const double spread =
      sqrt((squares + weights.prior_runs * weights.prior_spread * weights.prior_spread) / (n + weights.prior_runs));
  const double half = weights.reach * spread * sqrt(1 + 1 / (n + weights.prior_center));
  const double many = n / (n + weights.many), outside = (1 - weights.share) / 2;
  e->low = exp(many * percentile(votes, n, outside) + (1 - many) * (center - half));
  e->high = exp(many * percentile(votes, n, 1 - outside) + (1 - many) * (center + half));
  e->runs = n;
}

/* ---- the nearest run ---- */

static int within_factor(double factor, double most) {
  const double slack = most * 1.001;
  return factor <= slack && factor >= 1 / slack;
}

/* Returns 1 if the job is the published run itself: the same software, machine, model and batch, and a predicted step
 * that differs by at most 2 % from what estimate predicts for the run, since simulate predicts slightly longer steps.
 * */
static int is_run(const tws_evidence_key *job, const tws_evidence_run *run, const tws_evidence *e) {
  return !e->other_runtime && !e->other_gpu && job->gpus == run->key.gpus && job->stage == run->key.stage &&
         within_factor(e->parameters_factor, 1) && within_factor(job->tokens / run->key.tokens, 1) &&
         within_factor(job->predicted_s / run->key.predicted_s, 1.02);
}

static tws_evidence_kind judge(const tws_evidence_key *job, const tws_evidence *e) {
  const int near = !e->other_runtime && !e->other_gpu && !e->other_stage &&
                   within_factor(e->gpus_factor, GPUS_AROUND) && within_factor(e->parameters_factor, PARAMETERS_AROUND);
  if (is_run(job, e->nearest, e)) return TWS_EVIDENCE_PUBLISHED;
  if (near) return fabs(tws_evidence_error(e->nearest)) > TRUSTED_ERROR ? TWS_EVIDENCE_WRONG : TWS_EVIDENCE_NEAR;
  /* The prediction for a job on more GPUs than a run that was mispredicted is no more reliable. */
  const int beyond = !e->other_runtime && !e->other_gpu && !e->other_stage && e->gpus_factor >= 1;
  return beyond && fabs(tws_evidence_error(e->nearest)) > TRUSTED_ERROR ? TWS_EVIDENCE_WRONG : TWS_EVIDENCE_FAR;
}

static tws_evidence compare(const tws_evidence_key *job, const tws_evidence_run *run) {
  return (tws_evidence){.nearest = run,
                        .other_runtime = strcmp(job->runtime, run->key.runtime) != 0,
                        .other_gpu = !is_gpu(job->gpu, run->key.gpu),
                        .other_stage = (job->stage == 3) != (run->key.stage == 3),
                        .gpus_factor = (double)job->gpus / run->key.gpus,
                        .parameters_factor = job->parameters / run->key.parameters};
}

tws_evidence tws_evidence_of(const tws_evidence_key *job) {
  tws_evidence nearest = {.kind = TWS_EVIDENCE_OWN};
  double least = INFINITY;
  for (int i = 0; i < RUN_COUNT; i++) {
    const tws_evidence_run *run = &runs[i];
    /* among equally near runs the one with the most similar number of tokens is chosen */
    const double far = distance(run, job) + 1e-3 * fmin(octaves(job->tokens, run->key.tokens), 10);
    if (far >= least) continue;
    least = far;
    nearest = compare(job, run);
  }
  nearest.kind = judge(job, &nearest);
  find_interval(job, &nearest);
  return nearest;
}

static tws_evidence of_gpus(const tws_job *job, const tws_evidence_key *key) {
  const int trains = job->program == TWS_PROGRAM_TRAIN; /* published runs are training steps */
  if (!trains || tws_profile_backend(job->profile) == TWS_BACKEND_HOST) return (tws_evidence){.kind = TWS_EVIDENCE_OWN};
  return tws_evidence_of(key);
}

tws_evidence tws_evidence_of_job(const tws_job *job, double step_s) {
  const tws_evidence_key key = tws_evidence_describe(job, step_s);
  return of_gpus(job, &key);
}

tws_evidence tws_evidence_of_variant(const tws_job *open, const tws_variant *v, double step_s) {
  const int replicas = tws_variant_replicas(v), along_data = replicas * (v->sequence > 1 ? v->sequence : 1);
  const double samples = (double)v->micro * (double)v->accumulation * replicas;
  const tws_evidence_key key = describe(open, v->ranks, along_data, v->stage, samples, step_s);
  return of_gpus(open, &key);
}

/* ---- in words ---- */

const char *tws_evidence_word(tws_evidence_kind kind) {
  static const char *const words[] = {"own", "published", "near", "wrong", "far"};
  return words[kind];
}

static void add_factor(tws_text *text, double factor, double around, const char *what) {
  if (within_factor(factor, around)) return;
  if (factor > 1)
    tws_text_add(text, ", %.3g times as many %s", factor, what);
  else
    tws_text_add(text, ", 1/%.3g of its %s", 1 / factor, what);
}

static void add_differences(const tws_evidence *e, tws_text *out) {
  tws_text differs = {0};
  if (e->other_runtime) tws_text_add(&differs, ", another runtime");
  if (e->other_gpu) tws_text_add(&differs, ", another GPU");
  if (e->other_stage) tws_text_add(&differs, e->nearest->key.stage == 3 ? ", no ZeRO-3" : ", ZeRO-3");
  add_factor(&differs, e->gpus_factor, GPUS_AROUND, "GPUs");
  add_factor(&differs, e->parameters_factor, PARAMETERS_AROUND, "parameters");
  if (differs.length) tws_text_add(out, "; here: %s", differs.data + 2);
  tws_text_free(&differs);
}

void tws_evidence_text(const tws_evidence *e, char *text, size_t size) {
  static const char *const begins[] = {"", "this job is a published run", "measured nearby", "not to be trusted",
                                       "not measured nearby"};
  const tws_evidence_run *run = e->nearest;
  tws_text out = {0};
  char count[32], measured[32];
  *text = '\0';
  if (!run) return;
  const double error = tws_evidence_error(run);
  tws_text_add(&out, "%s: %s (%s, %d %s, ZeRO-%d, %s) took %s and was predicted %.0f %% too %s", begins[e->kind],
               run->id, tws_format_count(run->key.parameters, count, sizeof count), run->key.gpus, run->key.gpu,
               run->key.stage, run->key.runtime, tws_format_seconds(run->measured_s, measured, sizeof measured),
               fabs(100 * error), error < 0 ? "short" : "long");
  if (e->kind == TWS_EVIDENCE_WRONG || e->kind == TWS_EVIDENCE_FAR) add_differences(e, &out);
  snprintf(text, size, "%s", out.data ? out.data : "");
  tws_text_free(&out);
}

void tws_evidence_interval_text(const tws_evidence *e, double step_s, char *text, size_t size) {
  char low[32], high[32];
  *text = '\0';
  if (!(e->high > 0)) return;
  snprintf(text, size, " (%s to %s in nine of ten such runs)", tws_format_seconds(e->low * step_s, low, sizeof low),
           tws_format_seconds(e->high * step_s, high, sizeof high));
}

void tws_evidence_interval_json(const tws_evidence *e, double step_s, cJSON *to) {
  if (!(e->high > 0)) return;
  cJSON_AddNumberToObject(to, "predicted_low_s", e->low * step_s);
  cJSON_AddNumberToObject(to, "predicted_high_s", e->high * step_s);
}

cJSON *tws_evidence_json(const tws_evidence *e) {
  cJSON *json = cJSON_CreateObject();
  char text[512];
  cJSON_AddStringToObject(json, "kind", tws_evidence_word(e->kind));
  if (!e->nearest) return json;
  tws_evidence_text(e, text, sizeof text);
  cJSON_AddStringToObject(json, "nearest", e->nearest->id);
  cJSON_AddStringToObject(json, "nearest_runtime", e->nearest->key.runtime);
  cJSON_AddNumberToObject(json, "nearest_measured_s", e->nearest->measured_s);
  cJSON_AddNumberToObject(json, "nearest_error", tws_evidence_error(e->nearest));
  cJSON_AddNumberToObject(json, "gpus_factor", e->gpus_factor);
  cJSON_AddNumberToObject(json, "parameters_factor", e->parameters_factor);
  cJSON_AddBoolToObject(json, "other_runtime", e->other_runtime);
  cJSON_AddBoolToObject(json, "other_gpu", e->other_gpu);
  cJSON_AddBoolToObject(json, "other_zero", e->other_stage);
  cJSON_AddNumberToObject(json, "low_factor", e->low);
  cJSON_AddNumberToObject(json, "high_factor", e->high);
  cJSON_AddNumberToObject(json, "weight_of_runs", e->runs);
  cJSON_AddStringToObject(json, "text", text);
  return json;
}
