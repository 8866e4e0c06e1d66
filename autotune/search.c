/* Reject by memory, rank by the longest path, decide by simulation. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "autotune/autotune.h"
#include "autotune/crew.h"
#include "autotune/exhaustive.h"
#include "base/random.h"

enum { DEFAULT_TRIALS = 12, REFINED_PER_TRIAL = 2, PLANNED_WHEN_NOTHING_FITS = 16 };

/* ---- one candidate ---- */

static tws_capacity capacity_of(const tws_tune_request *request, int ranks) {
  return tws_capacity_of(&request->job->machine, ranks, request->memory_bytes);
}

void tws_tune_judge(const tws_tune_request *request, const tws_job *job, tws_tune_candidate *c) {
  const tws_fit fit = tws_job_fit_within(job, &c->estimate.ledger, request->memory_bytes);
  c->needed_bytes = fit.rank_need;
  c->available_bytes = fit.rank_have;
  c->verdict = fit.fits                      ? TWS_TUNE_FITS
               : fit.tier == TWS_TIER_DEVICE ? TWS_TUNE_NO_DEVICE_MEMORY
                                             : TWS_TUNE_NO_HOST_MEMORY;
  if (fit.fits) return;
  const tws_ledger_tier *guilty = &c->estimate.ledger.tier[fit.tier];
  int largest = 0;
  for (int i = 1; i < TWS_CATEGORY_COUNT; i++)
    if (guilty->category[i] > guilty->category[largest]) largest = i;
  static const char *const places[TWS_TIER_COUNT] = {
      [TWS_TIER_DEVICE] = "device memory", [TWS_TIER_HOST] = "host memory", [TWS_TIER_DISK] = "disk"};
  snprintf(c->reason, sizeof c->reason, "%s: mostly %s", places[fit.tier], tws_category_name((tws_category)largest));
}

static tws_code estimate_candidate(const tws_tune_request *request, tws_tune_candidate *c, tws_error *err) {
  tws_job *job = NULL;
  tws_error refusal = {0};
  tws_error *place = err ? err : &refusal;
  tws_code code = tws_job_derive(request->job, &c->variant, &job, place);
  if (code == TWS_OK) code = tws_job_live(job, &c->estimate.ledger, place);
  if (code == TWS_OK) tws_tune_judge(request, job, c);
  if (code == TWS_OK && c->verdict == TWS_TUNE_FITS) { /* what is alive at once does: so may what it is laid out in */
    code = tws_job_estimate(job, &c->estimate, NULL, place);
    if (code == TWS_OK) tws_tune_judge(request, job, c);
  }
  tws_job_destroy(job);
  if (code == TWS_UNSUPPORTED || code == TWS_INVALID) {
    c->verdict = TWS_TUNE_NOT_SUPPORTED;
    snprintf(c->reason, sizeof c->reason, "refused: %.140s", place->message);
    return TWS_OK;
  }
  return code == TWS_OK ? TWS_OK : tws_fail_in(err, code, "%s", c->name);
}

/* Memory grows with the micro batch: a point with at least twice a micro batch that did not fit, and no less
 * accumulation, is not worth a plan. (Twice, because packing buffers is not quite monotonic.) */
static int differ_in_batch_only(const tws_variant *p, const tws_variant *q) {
  return q->stage == p->stage && q->recompute == p->recompute && q->ranks == p->ranks && q->threads == p->threads &&
         q->pipeline == p->pipeline && q->tensor == p->tensor && q->sequence == p->sequence &&
         q->schedule.kind == p->schedule.kind && q->schedule.virtual_stages == p->schedule.virtual_stages &&
         q->sequence_parallel == p->sequence_parallel && q->expert == p->expert && q->capacity == p->capacity &&
         memcmp(q->exchange, p->exchange, sizeof q->exchange) == 0;
}

static const tws_tune_candidate *already_too_large(const tws_tune_candidate *all, int index) {
  const tws_variant *p = &all[index].variant;
  for (int i = index - 1; i >= 0; i--) {
    const tws_variant *q = &all[i].variant;
    if (!differ_in_batch_only(p, q)) return 0; /* such points are neighbours */
    int failed = all[i].verdict == TWS_TUNE_NO_DEVICE_MEMORY || all[i].verdict == TWS_TUNE_NO_HOST_MEMORY;
    if (failed && p->micro >= 2 * q->micro && (p->accumulation > 1) >= (q->accumulation > 1)) return &all[i];
  }
  return 0;
}

static double expert_params(const tws_job *job) {
  double sum = 0;
  for (uint32_t i = 0; i < job->network->param_count; i++)
    if (job->network->params[i].experts > 0) sum += (double)tws_param_numel(&job->network->params[i]);
  return sum;
}

/* Bytes of the model's states that the fullest rank of a point cannot do without. */
static double states_bytes(const tws_tune_request *request, const tws_variant *p, tws_category *most) {
  const tws_config *config = request->job->config;
  double dtype = (double)tws_dtype_bytes(config->dtype);
  double moments = tws_optimizer_of(config->optimizer)->states * (tws_config_bf16_moments(config) ? 2 : 4);
  double masters = config->dtype == TWS_F32 || tws_config_bf16_masters(config) ? 0 : 4;
  double params = (double)tws_network_params(request->job->network, 0), of_experts = expert_params(request->job);
  if (p->pipeline > 1) params /= p->pipeline, of_experts /= p->pipeline;
  if (p->tensor > 1) params /= p->tensor, of_experts /= p->tensor;
  const double held = params - of_experts * (p->expert > 1 ? 1 - 1.0 / p->expert : 0); /* by a rank */
  double divided = (double)tws_variant_replicas(p) * (p->sequence > 1 ? p->sequence : 1);
  const int groups =
      p->exchange[TWS_EXCHANGE_MICS] > 0 ? p->exchange[TWS_EXCHANGE_MICS] - 1 : (int)config->zero.shard_ranks;
  if (p->stage == 3 && groups > 1) divided = fmin(divided, (double)groups);
  double weights = dtype * (p->stage == 3 ? params / divided : held);
  double gradients = dtype * (p->stage >= 2 ? params : held);
  double optimizer = (moments + masters) * (p->stage >= 1 ? params / divided : held);
  if (config->zero.offload_optimizer && p->stage >= 1) { /* and with it gradients that are not whole */
    optimizer = 0;
    if (p->stage >= 2) gradients = 0;
  }
  if (config->zero.offload_param && p->stage == 3) weights = 0;
  if (p->stage >= 2) gradients /= divided;
  *most = optimizer > weights ? TWS_CATEGORY_MOMENT : TWS_CATEGORY_PARAMETER;
  return weights + gradients + optimizer;
}

double tws_tune_least_devices(const tws_tune_request *request) {
  tws_category most;
  const tws_capacity capacity = capacity_of(request, 1);
  return capacity.host ? 1 : states_bytes(request, &(tws_variant){.ranks = 1}, &most) / capacity.rank_device;
}

int tws_tune_needs_axes(const tws_tune_request *request) {
  return tws_tune_least_devices(request) > 1;
}

/* A point whose states alone do not fit is not worth a plan, in a space that has many such points. */
static int states_too_large(const tws_tune_request *request, tws_tune_candidate *c) {
  const tws_variant *p = &c->variant;
  tws_category most;
  const double bytes = states_bytes(request, p, &most);
  if (!request->space.axes && p->pipeline <= 1 && p->tensor <= 1 && p->sequence <= 1) return 0;
  const tws_capacity capacity = capacity_of(request, p->ranks);
  if (bytes <= capacity.rank_device) return 0;
  c->verdict = TWS_TUNE_NO_DEVICE_MEMORY;
  c->implied = 1;
  c->needed_bytes = bytes;
  c->available_bytes = capacity.rank_device;
  snprintf(c->reason, sizeof c->reason, "device memory: mostly %s", tws_category_name(most));
  return 1;
}

tws_code tws_tune_estimate(const tws_tune_request *request, tws_tune_candidate *candidate, tws_error *err) {
  return states_too_large(request, candidate) ? TWS_OK : estimate_candidate(request, candidate, err);
}

static tws_code estimate_all(const tws_tune_request *request, tws_tune_result *result, tws_error *err) {
  tws_progress *progress = request->progress;
  if (progress) tws_progress_begin(progress, "estimating", result->count);
  for (int i = 0; i < result->count; i++) {
    tws_tune_candidate *c = &result->candidates[i];
    const tws_tune_candidate *smaller = already_too_large(result->candidates, i);
    if (smaller) {
      c->verdict = smaller->verdict;
      c->implied = 1;
      c->needed_bytes = smaller->needed_bytes;
      c->available_bytes = smaller->available_bytes;
      memcpy(c->reason, smaller->reason, sizeof c->reason);
    } else if (!states_too_large(request, c)) {
      TWS_TRY(estimate_candidate(request, c, err));
    }
    if (progress) tws_progress_update(progress, i + 1);
  }
  if (progress) tws_progress_end(progress);
  return TWS_OK;
}

/* ---- simulation ---- */

static tws_code simulate_candidate(const tws_tune_request *request, tws_tune_candidate *c, tws_error *err) {
  tws_job *job = NULL;
  tws_simulation simulation = {0};
  if (c->verdict != TWS_TUNE_FITS) return TWS_OK;
  tws_code code = tws_job_derive(request->job, &c->variant, &job, err);
  if (code == TWS_OK) {
    const tws_simulation_request of_job = {
        .sim = request->sim, .fidelity = request->fidelity, .every_up_to = tws_job_simulates_every(job)};
    code = tws_job_simulate(job, &of_job, &simulation, err);
  }
  c->simulation = simulation.result;
  tws_simulation_free(&simulation);
  tws_job_destroy(job);
  if (code != TWS_OK) return tws_fail_in(err, code, "%s", c->name);
  c->simulated_s = c->simulation.step_s;
  return TWS_OK;
}

double tws_tune_throughput(const tws_tune_candidate *c) {
  double seconds = c->simulated_s > 0 ? c->simulated_s : c->estimate.step_s;
  return seconds > 0 ? c->samples / seconds : 0;
}

static int by_memory_then_name(const tws_tune_candidate *a, const tws_tune_candidate *b) {
  if (a->needed_bytes != b->needed_bytes) return a->needed_bytes < b->needed_bytes ? -1 : 1;
  return strcmp(a->name, b->name);
}

static int by_estimate(const void *left, const void *right) {
  const tws_tune_candidate *a = left, *b = right;
  if (a->verdict != b->verdict) return a->verdict < b->verdict ? -1 : 1;
  if (a->verdict == TWS_TUNE_FITS) {
    double x = a->samples / a->estimate.step_s, y = b->samples / b->estimate.step_s;
    if (x != y) return x > y ? -1 : 1;
  }
  return by_memory_then_name(a, b);
}

static int by_result(const void *left, const void *right) {
  const tws_tune_candidate *a = left, *b = right;
  int simulated_a = a->simulated_s > 0, simulated_b = b->simulated_s > 0;
  if (simulated_a != simulated_b) return simulated_b - simulated_a;
  if (!simulated_a) return by_estimate(left, right);
  double x = tws_tune_throughput(a), y = tws_tune_throughput(b);
  if (x != y) return x > y ? -1 : 1;
  return by_memory_then_name(a, b);
}

static int count_fits(const tws_tune_result *result) {
  int fits = 0;
  for (int i = 0; i < result->count; i++) fits += result->candidates[i].verdict == TWS_TUNE_FITS;
  return fits;
}

/* The best by their rough estimates are estimated exactly, until as many exact ones lead as may be simulated. */
static tws_code refine_best(const tws_tune_request *request, tws_tune_result *result, tws_error *err) {
  int trials = request->trials > 0 ? request->trials : DEFAULT_TRIALS;
  for (int budget = REFINED_PER_TRIAL * trials; budget > 0;) {
    int lead = trials < result->fits ? trials : result->fits, at = 0;
    while (at < lead && !result->candidates[at].rough) at++;
    if (at == lead) break;
    for (; at < lead && budget > 0; at++) {
      if (!result->candidates[at].rough) continue;
      TWS_TRY(estimate_candidate(request, &result->candidates[at], err));
      budget--;
    }
    qsort(result->candidates, (size_t)result->count, sizeof *result->candidates, by_estimate);
    result->fits = count_fits(result);
  }
  return TWS_OK;
}

/* Order of the trials among the `fits` candidates at the front, as the tuner wants it. */
static int trial_index(const tws_tune_request *request, int fits, int trial) {
  if (request->tuner == TWS_TUNER_RANDOM)
    return (int)tws_random_permute(request->seed, (uint64_t)fits, (uint64_t)trial);
  return trial;
}

typedef struct trials {
  const tws_tune_request *request;
  tws_tune_result *result;
  int best;
  double best_throughput;
} trials;

static tws_code simulate_trial(void *user, int trial, void *answer, tws_error *err) {
  const trials *t = user;
  tws_tune_candidate *c = answer;
  *c = t->result->candidates[trial_index(t->request, t->result->fits, trial)];
  return simulate_candidate(t->request, c, err);
}

static tws_code read_trial(void *user, int trial, const void *answer, int *stop, tws_error *err) {
  trials *t = user;
  tws_tune_candidate *c = &t->result->candidates[trial_index(t->request, t->result->fits, trial)];
  (void)err;
  memcpy(c, answer, sizeof *c);
  t->result->simulated += c->simulated_s > 0;
  if (tws_tune_throughput(c) > t->best_throughput) {
    t->best_throughput = tws_tune_throughput(c);
    t->best = trial;
  }
  if (t->request->progress) tws_progress_update(t->request->progress, trial + 1);
  *stop = t->request->early_stopping > 0 && trial + 1 >= t->best + 1 + t->request->early_stopping;
  return TWS_OK;
}

/* By several processes where a simulation takes long: of an exhaustive search, or when they are asked for. */
static tws_code simulate_best(const tws_tune_request *request, tws_tune_result *result, tws_error *err) {
  const int wanted = request->trials > 0 ? request->trials : DEFAULT_TRIALS;
  const int count = wanted < result->fits ? wanted : result->fits;
  const int workers = request->exhaustive || request->workers > 1 ? tws_crew_size(request->workers) : 1;
  trials t = {.request = request, .result = result, .best = -1};
  if (request->progress) tws_progress_begin(request->progress, "simulating", count);
  const tws_crew_list list = {count, sizeof(tws_tune_candidate), simulate_trial, read_trial, &t};
  const tws_code code = tws_crew_do(&list, workers, &result->swept.simulate_cpu_s, err);
  if (request->progress) tws_progress_end(request->progress);
  return code;
}

/* ---- bookkeeping ---- */

static int by_count(const void *left, const void *right) {
  const tws_tune_rejection *a = left, *b = right;
  return a->count != b->count ? b->count - a->count : strcmp(a->reason, b->reason);
}

static tws_code count_rejections(tws_tune_result *result, tws_error *err) {
  size_t capacity = 0;
  for (int i = 0; i < result->count; i++) {
    const tws_tune_candidate *c = &result->candidates[i];
    if (c->verdict == TWS_TUNE_FITS) continue;
    int j = 0;
    while (j < result->rejection_count && strcmp(result->rejections[j].reason, c->reason) != 0) j++;
    if (j == result->rejection_count) {
      if (tws_reserve(&result->rejections, &capacity, (size_t)j + 1, sizeof *result->rejections))
        return tws_fail(err, TWS_MEMORY, 0, "no memory for the list of rejections");
      result->rejections[j] = (tws_tune_rejection){.count = 0};
      memcpy(result->rejections[j].reason, c->reason, sizeof c->reason);
      result->rejection_count++;
    }
    result->rejections[j].count++;
  }
  if (result->rejection_count > 1)
    qsort(result->rejections, (size_t)result->rejection_count, sizeof *result->rejections, by_count);
  return TWS_OK;
}

static void find_smallest(tws_tune_result *result) {
  result->smallest = -1;
  if (result->fits > 0) return;
  for (int i = 0; i < result->count; i++) {
    const tws_tune_candidate *c = &result->candidates[i];
    if (c->verdict == TWS_TUNE_NOT_SUPPORTED || c->implied) continue;
    if (result->smallest >= 0) {
      const tws_tune_candidate *s = &result->candidates[result->smallest];
      if (s->needed_bytes - s->available_bytes <= c->needed_bytes - c->available_bytes) continue;
    }
    result->smallest = i;
  }
}

/* Small states, small micro batches and recomputation make small plans. */
static double promise_of(const tws_tune_candidate *c) {
  return c->needed_bytes *
         (1 + 0.02 * (TWS_RECOMPUTE_FULL - (int)c->variant.recompute) + 0.001 * (double)c->variant.micro);
}

/* Nothing fits: some of the points that were rejected by their states alone are planned, so that it can be said what
 * is missing. */
static tws_code plan_closest(const tws_tune_request *request, tws_tune_result *result, tws_error *err) {
  for (int planned = 0; planned < PLANNED_WHEN_NOTHING_FITS; planned++) {
    tws_tune_candidate *closest = NULL;
    for (int i = 0; i < result->count; i++) {
      tws_tune_candidate *c = &result->candidates[i];
      if (c->implied && (!closest || promise_of(c) < promise_of(closest))) closest = c;
    }
    if (!closest) break;
    closest->implied = 0;
    TWS_TRY(estimate_candidate(request, closest, err));
  }
  return TWS_OK;
}

static tws_code search_space(const tws_tune_request *request, tws_tune_result *result, tws_error *err) {
  double started = tws_clock_s();
  TWS_TRY(estimate_all(request, result, err));
  result->fits = count_fits(result);
  if (result->fits == 0 && request->space.axes) TWS_TRY(plan_closest(request, result, err));
  tws_tune_candidate *all = result->candidates;
  if (request->tuner == TWS_TUNER_MODEL_BASED) {
    qsort(all, (size_t)result->count, sizeof *all, by_estimate);
    TWS_TRY(refine_best(request, result, err));
  } else {
    /* keep the order of the space, fitting points in front */
    tws_tune_candidate *sorted = tws_calloc((size_t)result->count, sizeof *sorted);
    if (!sorted) return tws_fail(err, TWS_MEMORY, 0, "no memory for the candidates");
    int front = 0, back = result->fits;
    for (int i = 0; i < result->count; i++) sorted[all[i].verdict == TWS_TUNE_FITS ? front++ : back++] = all[i];
    tws_free(all);
    result->candidates = all = sorted;
  }
  double estimated = tws_clock_s();
  result->estimate_s = estimated - started;
  if (request->sim) TWS_TRY(simulate_best(request, result, err));
  result->simulate_s = tws_clock_s() - estimated;
  qsort(all, (size_t)result->count, sizeof *all, by_result);
  result->fits = count_fits(result);
  find_smallest(result);
  return count_rejections(result, err);
}

static tws_code search_exhaustively(const tws_tune_request *request, tws_tune_result *result, tws_error *err) {
  const double started = tws_clock_s();
  result->smallest = -1;
  TWS_TRY(tws_tune_exhaustive(request, result, err));
  const double estimated = tws_clock_s();
  result->estimate_s = estimated - started;
  if (request->sim) TWS_TRY(simulate_best(request, result, err));
  result->simulate_s = tws_clock_s() - estimated;
  if (result->count > 1) qsort(result->candidates, (size_t)result->count, sizeof *result->candidates, by_result);
  result->fits = count_fits(result);
  return TWS_OK;
}

tws_code tws_tune(const tws_tune_request *request, tws_tune_result **out, tws_error *err) {
  if (request->exhaustive) {
    tws_tune_result *swept = tws_calloc(1, sizeof *swept);
    if (!swept) return tws_fail(err, TWS_MEMORY, 0, "no memory for the search");
    const tws_code end = search_exhaustively(request, swept, err);
    if (end == TWS_OK)
      *out = swept;
    else
      tws_tune_result_destroy(swept);
    return end;
  }
  tws_variant *points;
  int count;
  TWS_TRY(tws_tune_enumerate(request, &points, &count, err));
  tws_tune_result *result = tws_calloc(1, sizeof *result);
  if (result) result->candidates = tws_calloc((size_t)count, sizeof *result->candidates);
  if (!result || !result->candidates) {
    tws_free(result);
    tws_free(points);
    return tws_fail(err, TWS_MEMORY, 0, "no memory for %d candidates", count);
  }
  result->count = count;
  for (int i = 0; i < count; i++) {
    tws_tune_candidate *c = &result->candidates[i];
    c->variant = points[i];
    c->samples = (double)(points[i].micro * points[i].accumulation * tws_variant_replicas(&points[i]));
    tws_variant_name(&c->variant, c->name, sizeof c->name);
  }
  tws_free(points);
  tws_code code = search_space(request, result, err);
  if (code != TWS_OK) {
    tws_tune_result_destroy(result);
    return code;
  }
  *out = result;
  return TWS_OK;
}

void tws_tune_result_destroy(tws_tune_result *result) {
  if (!result) return;
  tws_free(result->candidates);
  tws_free(result->rejections);
  tws_free(result);
}
