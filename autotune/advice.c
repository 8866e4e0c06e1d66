#include "autotune/advice.h"

#include <stdio.h>
#include <string.h>

#include "job/features.h"

/* For jobs whose plan has more operations than this no change is tried, since ten such plans take seconds to build. */
#define MOST_OPERATIONS 120000
#define LEAST_GAIN 0.02
#define NO_OPTIMIZER_PLACE "zero_optimization.offload_optimizer.device=none"
#define NO_PARAMETER_PLACE "zero_optimization.offload_param.device=none"
#define ADAPTERS "twinspeed.lora.r=16", "twinspeed.lora.target_modules=all-linear"

/* One change of a job: settings of its configuration (set), or an option (recompute). */
typedef struct change {
  const char *words, *set[3], *recompute;
  int stage;         /* 1 + the ZeRO stage; 0: the stage is not changed */
  int grow, shrink;  /* the micro batch is multiplied or divided by this factor, and the accumulation steps inversely */
  int offloading;    /* 1: the change is tried only for jobs that do not fit */
  int offloads;      /* the change is tried only for jobs that offload: 1 the optimizer, 2 the parameters */
  int adapts, types; /* 1: changes of the trained model: adapters if it does not fit; bf16 for an assumed float32 */
} change;

static const change changes[] = {
    {.words = "optimizer off the host", .set = {NO_OPTIMIZER_PLACE, NO_PARAMETER_PLACE}, .offloads = 1},
    {.words = "parameters off the host", .set = {NO_PARAMETER_PLACE}, .offloads = 2},
    {.words = "no recomputation", .recompute = "none"},
    {.words = "selective recomputation", .recompute = "selective"},
    {.words = "recomputation of whole layers", .recompute = "full"},
    {.words = "twice the micro batch", .grow = 2},
    {.words = "four times the micro batch", .grow = 4},
    {.words = "eight times the micro batch", .grow = 8},
    {.words = "half the micro batch", .shrink = 2},
    {.words = "a quarter of the micro batch", .shrink = 4},
    {.words = "ZeRO stage 1", .stage = 2},
    {.words = "ZeRO stage 2", .stage = 3},
    {.words = "ZeRO stage 3", .stage = 4},
    {.words = "ZeRO stage 2 with the optimizer on the host",
     .set = {"zero_optimization.offload_optimizer.device=cpu"},
     .stage = 3,
     .offloading = 1},
    {.words = "reductions that overlap with the backward pass", .set = {"zero_optimization.overlap_comm=true"}},
    {.words = "bf16", .types = 1},
    {.words = "adapters of rank 16 (LoRA)", .set = {ADAPTERS}, .adapts = 1},
    {.words = "adapters of rank 16 over weights in NF4",
     .set = {ADAPTERS, "twinspeed.frozen_quantization.type=nf4"},
     .adapts = 1},
};

static void add_flag(tws_advice *a, const char *format, const char *value) {
  const size_t used = strlen(a->arguments);
  snprintf(a->arguments + used, sizeof a->arguments - used, "%s", used ? " " : "");
  const size_t now = strlen(a->arguments);
  /* NOLINT: all formats are literals of this file */
  snprintf(a->arguments + now, sizeof a->arguments - now, format, value);
}

static void add_number(tws_advice *a, const char *flag, int64_t value) {
  char text[64];
  snprintf(text, sizeof text, "%s %lld", flag, (long long)value);
  add_flag(a, "%s", text);
}

/* Sets another micro batch, with the same global batch. Returns 0 if the accumulation steps or the micro batch are not
 * divisible by the factor of the change. */
static int set_micro(const change *c, const tws_job *job, tws_job_spec *spec, tws_advice *a) {
  const int64_t micro = job->config->micro_batch_size, steps = job->config->accumulation_steps;
  if (c->grow && (steps % c->grow || tws_config_is_elastic(job->config))) return 0;
  if (c->shrink && (micro % c->shrink || tws_config_is_elastic(job->config))) return 0;
  spec->micro_batch = c->grow ? micro * c->grow : micro / c->shrink;
  spec->accumulation = c->grow ? steps / c->grow : steps * c->shrink;
  add_number(a, "--micro-batch", spec->micro_batch);
  add_number(a, "--accumulation", spec->accumulation);
  return 1;
}

/* Applies a change to the specification and describes it in *a. Returns 0 if it has no effect, or is not meant for this
 * job. */
static int apply(const change *c, const tws_job *job, int fits, tws_job_spec *spec, tws_advice *a) {
  const tws_config *config = job->config;
  const tws_features used = tws_job_features(job);
  const int places[] = {
      tws_features_have(used, TWS_FEATURE_OFFLOAD_OPTIMIZER) || tws_features_have(used, TWS_FEATURE_OFFLOAD_PARAMETERS),
      tws_features_have(used, TWS_FEATURE_OFFLOAD_PARAMETERS)};
  *a = (tws_advice){.changes_results = c->adapts};
  snprintf(a->words, sizeof a->words, "%s", c->words);
  if (c->offloads && (!places[c->offloads - 1] || tws_config_updates_late(config))) return 0;
  if (c->offloading && (fits || places[0])) return 0;
  if (c->adapts && (fits || tws_features_have(used, TWS_FEATURE_LORA))) return 0;
  if (c->types && (!job->assumed_dtype || config->dtype != TWS_F32)) return 0;
  if (c->types) spec->dtype = "bf16";
  if (c->types) add_flag(a, "--dtype %s", "bf16");
  if (c->stage && c->stage - 1 == tws_job_variant(job).stage) return 0;
  if (c->stage) spec->stage = c->stage - 1;
  if (c->stage) add_number(a, "--stage", spec->stage);
  if (c->recompute && strcmp(c->recompute, tws_recompute_name(config->recompute)) == 0) return 0;
  if (c->recompute) spec->recompute = c->recompute;
  if (c->recompute) add_flag(a, "--recompute %s", c->recompute);
  if ((c->grow || c->shrink) && !set_micro(c, job, spec, a)) return 0;
  for (int i = 0; i < 3 && c->set[i]; i++) {
    if (spec->set.count == TWS_MAX_STRINGS) return 0;
    spec->set.item[spec->set.count++] = c->set[i];
    add_flag(a, "--set %s", c->set[i]);
  }
  return 1;
}

/* Plans the changed job and adds its figures to *a. Returns 0 if it does not fit, or its runtime cannot run it. */
static int try_job(const tws_job_spec *spec, const tws_job *given, tws_advice *a) {
  tws_job *job;
  tws_ledger live;
  tws_estimate estimate;
  tws_fit fit = {0};
  if (tws_job_load(spec, &job, NULL) != TWS_OK) return 0;
  job->program = given->program;
  const int runs = (tws_job_unsupported_features(job) & ~tws_job_unsupported_features(given)) == 0;
  if (runs && tws_job_live(job, &live, NULL) == TWS_OK) fit = tws_job_fit(job, &live);
  if (fit.fits && tws_job_estimate(job, &estimate, NULL, NULL) == TWS_OK)
    fit = tws_job_fit(job, &estimate.ledger);
  else
    fit.fits = 0;
  if (fit.fits) {
    a->tokens_per_s = estimate.tokens_per_s;
    a->device_bytes = fit.device_need;
  }
  tws_job_destroy(job);
  return fit.fits;
}

/* Returns 1 if `a` is better than `b`: changes that do not affect the trained model are better than those that do;
 * among equal ones the faster is better. */
static int is_better(const tws_advice *a, const tws_advice *b) {
  if (a->changes_results != b->changes_results) return b->changes_results;
  return a->tokens_per_s > b->tokens_per_s;
}

/* Inserts a change into the list of the best changes, which is sorted, the best first; if it is full, drops the
 * last. */
static void keep(const tws_advice *a, tws_advice list[TWS_ADVICES], int *count) {
  int at = *count;
  while (at > 0 && is_better(a, &list[at - 1])) at--;
  if (at == TWS_ADVICES) return;
  if (*count < TWS_ADVICES) (*count)++;
  for (int i = *count - 1; i > at; i--) list[i] = list[i - 1];
  list[at] = *a;
}

int tws_advice_find(const tws_job_spec *spec, const tws_job *job, const tws_estimate *estimate, int fits,
                    uint64_t operations, tws_advice list[TWS_ADVICES]) {
  int count = 0;
  const uint64_t all = operations * (uint64_t)tws_job_stages(job);
  if (job->backend == TWS_BACKEND_HOST || all > MOST_OPERATIONS || !(estimate->tokens_per_s > 0)) return 0;
  if (job->program != TWS_PROGRAM_TRAIN) return 0;
  for (size_t i = 0; i < sizeof changes / sizeof *changes; i++) {
    tws_job_spec with = *spec;
    tws_advice a;
    if (!apply(&changes[i], job, fits, &with, &a) || !try_job(&with, job, &a)) continue;
    a.gain = a.tokens_per_s / estimate->tokens_per_s - 1;
    if (!fits || a.gain >= LEAST_GAIN) keep(&a, list, &count);
  }
  return count;
}

int tws_advice_for_variant(const tws_job_spec *spec, tws_job *job, const tws_variant *variant,
                           tws_advice list[TWS_ADVICES]) {
  tws_variant_text text;
  const tws_job_spec with = tws_variant_spec(spec, variant, &text);
  tws_job *derived;
  tws_estimate estimate;
  tws_plan *plan = NULL;
  int count = 0;
  if (tws_job_derive(job, variant, &derived, NULL) != TWS_OK) return 0;
  if (tws_job_estimate(derived, &estimate, NULL, NULL) == TWS_OK &&
      tws_job_part_plan(derived, tws_job_stage_rank(derived, estimate.stage), estimate.built, &plan, NULL) == TWS_OK) {
    const int fits = tws_job_fit(derived, &estimate.ledger).fits;
    count = tws_advice_find(&with, derived, &estimate, fits, plan->op_count, list);
  }
  tws_plan_destroy(plan);
  tws_job_destroy(derived);
  return count;
}

void tws_advice_json(const tws_advice *list, int count, cJSON *root) {
  cJSON *advice = cJSON_AddArrayToObject(root, "advice");
  for (int i = 0; i < count; i++) {
    cJSON *one = cJSON_CreateObject();
    cJSON_AddStringToObject(one, "change", list[i].words);
    cJSON_AddStringToObject(one, "arguments", list[i].arguments);
    cJSON_AddBoolToObject(one, "changes_training", list[i].changes_results);
    cJSON_AddNumberToObject(one, "gain", list[i].gain);
    cJSON_AddNumberToObject(one, "tokens_per_s", list[i].tokens_per_s);
    cJSON_AddNumberToObject(one, "device_bytes", list[i].device_bytes);
    cJSON_AddItemToArray(advice, one);
  }
}
