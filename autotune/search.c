/* Reject by memory, rank by the longest path, decide by simulation. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "autotune/autotune.h"
#include "base/random.h"
#include "plan/pipeline_grid.h"

enum { DEFAULT_TRIALS = 12, SIMULATED_PLANS = 64 };

void tws_tune_memory(const tws_machine *machine, int ranks, double device_limit, double *device_bytes,
                     double *host_bytes) {
  const tws_cluster *cluster = machine->cluster;
  int on_node = (ranks + cluster->nodes - 1) / cluster->nodes;
  if (ranks <= cluster->devices_per_node) on_node = ranks;
  double profile = tws_profile_memory_bytes(machine->profile);
  double overhead = tws_profile_overhead_bytes(machine->profile);
  double node = cluster->host_memory_bytes > 0 ? cluster->host_memory_bytes : INFINITY;
  double device = device_limit > 0 ? device_limit : cluster->device_memory_bytes;
  if (tws_profile_backend(machine->profile) == TWS_BACKEND_HOST) {
    /* one memory: the ranks of a node share it */
    if (!isfinite(node) && profile > 0) node = profile;
    double share = node / on_node;
    *device_bytes = (device > 0 && device < share ? device : share) - overhead;
    *host_bytes = *device_bytes;
    return;
  }
  *device_bytes = (device > 0 ? device : profile) - overhead;
  *host_bytes = node / on_node;
}

static tws_code request_of(const tws_network *network, const tws_config *config, int ranks, int rank, int threads,
                           const tws_machine *machine, tws_plan_request *request, tws_error *err) {
  *request = (tws_plan_request){.network = network,
                                .config = config,
                                .rank = rank,
                                .backend = tws_profile_backend(machine->profile),
                                .threads = threads > 0 ? threads : 1};
  return tws_plan_topology(config, ranks, &request->topology, err);
}

/* ---- one candidate ---- */

static void judge_memory(const tws_machine *machine, double device_limit, tws_tune_candidate *c) {
  double device, host;
  tws_tune_memory(machine, c->point.ranks, device_limit, &device, &host);
  const tws_ledger_tier *tier = c->estimate.ledger.tier;
  double in_device = (double)tier[TWS_TIER_DEVICE].arena_bytes;
  double in_host = (double)tier[TWS_TIER_HOST].arena_bytes + (double)tier[TWS_TIER_PINNED].arena_bytes;
  if (tws_profile_backend(machine->profile) == TWS_BACKEND_HOST) in_device += in_host, in_host = 0;
  c->verdict = TWS_TUNE_FITS;
  c->needed_bytes = in_device;
  c->available_bytes = device;
  const tws_ledger_tier *guilty = &tier[TWS_TIER_DEVICE];
  if (in_device > device) {
    c->verdict = TWS_TUNE_NO_DEVICE_MEMORY;
  } else if (in_host > host) {
    c->verdict = TWS_TUNE_NO_HOST_MEMORY;
    c->needed_bytes = in_host;
    c->available_bytes = host;
    guilty = &tier[TWS_TIER_HOST];
  } else {
    return;
  }
  int largest = 0;
  for (int i = 1; i < TWS_CATEGORY_COUNT; i++)
    if (guilty->category[i] > guilty->category[largest]) largest = i;
  snprintf(c->reason, sizeof c->reason, "%s memory: mostly %s",
           c->verdict == TWS_TUNE_NO_DEVICE_MEMORY ? "device" : "host", tws_category_name((tws_category)largest));
}

static tws_code estimate(const tws_tune_request *request, tws_tune_candidate *c, tws_error *err) {
  tws_config *config;
  tws_error refusal = {0};
  tws_error *place = err ? err : &refusal;
  tws_code code = tws_tune_config(request->config, request->network, &c->point, &config, place);
  if (code == TWS_OK) {
    tws_plan_request plan;
    code = request_of(request->network, config, c->point.ranks, 0, c->point.threads, &request->machine, &plan, place);
    if (code == TWS_OK) code = tws_estimate_step(&plan, &request->machine, &c->estimate, place);
    tws_config_destroy(config);
  }
  if (code == TWS_UNSUPPORTED || code == TWS_INVALID) {
    c->verdict = TWS_TUNE_NOT_SUPPORTED;
    snprintf(c->reason, sizeof c->reason, "refused: %.140s", place->message);
    return TWS_OK;
  }
  if (code != TWS_OK) return tws_fail_in(err, code, "%s", c->name);
  judge_memory(&request->machine, request->memory_bytes, c);
  return TWS_OK;
}

/* Memory grows with the micro batch: a point with at least twice a micro batch that did not fit, and no less
 * accumulation, is not worth a plan. (Twice, because packing buffers is not quite monotonic.) */
static const tws_tune_candidate *already_too_large(const tws_tune_candidate *all, int index) {
  const tws_tune_point *p = &all[index].point;
  for (int i = index - 1; i >= 0; i--) {
    const tws_tune_point *q = &all[i].point;
    if (q->stage != p->stage || q->recompute != p->recompute || q->ranks != p->ranks || q->threads != p->threads)
      return 0; /* points that differ in batch only are neighbours */
    int failed = all[i].verdict == TWS_TUNE_NO_DEVICE_MEMORY || all[i].verdict == TWS_TUNE_NO_HOST_MEMORY;
    if (failed && p->micro >= 2 * q->micro && (p->accumulation > 1) >= (q->accumulation > 1)) return &all[i];
  }
  return 0;
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
    } else {
      TWS_TRY(estimate(request, c, err));
    }
    if (progress) tws_progress_update(progress, i + 1);
  }
  if (progress) tws_progress_end(progress);
  return TWS_OK;
}

/* ---- simulation ---- */

static void destroy_plans(tws_plan **plans, int count) {
  for (int i = 0; i < count; i++) tws_plan_destroy(plans[i]);
}

tws_code tws_tune_simulate(const tws_sim_api *sim, const tws_network *network, const tws_config *config, int ranks,
                           int threads, const tws_machine *machine, tws_fidelity fidelity, tws_timeline *timeline,
                           tws_sim_result *result, tws_error *err) {
  tws_plan *plans[SIMULATED_PLANS] = {0};
  /* ranks of a host share its cores, so all of them are simulated; devices do the same at the same time */
  int host = tws_profile_backend(machine->profile) == TWS_BACKEND_HOST;
  int stages = config->pipeline_stages > 1 ? (int)config->pipeline_stages : 1;
  int count = host && ranks <= SIMULATED_PLANS ? ranks : stages;
  tws_code code = count <= SIMULATED_PLANS ? TWS_OK
                                           : tws_fail(err, TWS_UNSUPPORTED, "use fewer stages",
                                                      "%d pipeline stages are more than are simulated", stages);
  for (int i = 0; i < count && code == TWS_OK; i++) {
    tws_plan_request request;
    code = request_of(network, config, ranks, i, threads, machine, &request, err);
    if (count < ranks) request.rank = tws_pipeline_grid_stage(&request.topology, 0, i);
    if (code == TWS_OK) code = tws_plan_build(&request, &plans[i], err);
  }
  if (code == TWS_OK) {
    const tws_plan *views[SIMULATED_PLANS];
    for (int i = 0; i < count; i++) views[i] = plans[i];
    tws_sim_request request = {.plans = views,
                               .plan_count = count,
                               .fold = count < ranks,
                               .machine = *machine,
                               .fidelity = fidelity,
                               .timeline = timeline};
    code = sim->simulate(&request, result, err);
  }
  destroy_plans(plans, count);
  return code;
}

static tws_code simulate(const tws_tune_request *request, tws_tune_candidate *c, tws_error *err) {
  tws_config *config;
  TWS_TRY(tws_tune_config(request->config, request->network, &c->point, &config, err));
  tws_code code = tws_tune_simulate(request->sim, request->network, config, c->point.ranks, c->point.threads,
                                    &request->machine, request->fidelity, 0, &c->simulation, err);
  tws_config_destroy(config);
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

/* Order of the trials among the `fits` candidates at the front, as the tuner wants it. */
static int trial_index(const tws_tune_request *request, int fits, int trial) {
  if (request->tuner == TWS_TUNER_RANDOM)
    return (int)tws_random_permute(request->seed, (uint64_t)fits, (uint64_t)trial);
  return trial;
}

static tws_code simulate_best(const tws_tune_request *request, tws_tune_result *result, tws_error *err) {
  int trials = request->trials > 0 ? request->trials : DEFAULT_TRIALS, best_trial = -1;
  if (trials > result->fits) trials = result->fits;
  double best = 0;
  tws_progress *progress = request->progress;
  if (progress) tws_progress_begin(progress, "simulating", trials);
  for (int trial = 0; trial < trials; trial++) {
    tws_tune_candidate *c = &result->candidates[trial_index(request, result->fits, trial)];
    TWS_TRY(simulate(request, c, err));
    result->simulated++;
    if (tws_tune_throughput(c) > best) {
      best = tws_tune_throughput(c);
      best_trial = trial;
    }
    if (progress) tws_progress_update(progress, trial + 1);
    if (request->early_stopping > 0 && trial + 1 >= best_trial + 1 + request->early_stopping) break;
  }
  if (progress) tws_progress_end(progress);
  return TWS_OK;
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

static tws_code search(const tws_tune_request *request, tws_tune_result *result, tws_error *err) {
  double started = tws_clock_s();
  TWS_TRY(estimate_all(request, result, err));
  for (int i = 0; i < result->count; i++) result->fits += result->candidates[i].verdict == TWS_TUNE_FITS;
  TWS_TRY(count_rejections(result, err));
  double estimated = tws_clock_s();
  result->estimate_s = estimated - started;
  tws_tune_candidate *all = result->candidates;
  if (request->tuner == TWS_TUNER_MODEL_BASED) {
    qsort(all, (size_t)result->count, sizeof *all, by_estimate);
  } else {
    /* keep the order of the space, fitting points in front */
    tws_tune_candidate *sorted = tws_calloc((size_t)result->count, sizeof *sorted);
    if (!sorted) return tws_fail(err, TWS_MEMORY, 0, "no memory for the candidates");
    int front = 0, back = result->fits;
    for (int i = 0; i < result->count; i++) sorted[all[i].verdict == TWS_TUNE_FITS ? front++ : back++] = all[i];
    tws_free(all);
    result->candidates = all = sorted;
  }
  if (request->sim) TWS_TRY(simulate_best(request, result, err));
  result->simulate_s = tws_clock_s() - estimated;
  qsort(all, (size_t)result->count, sizeof *all, by_result);
  find_smallest(result);
  return TWS_OK;
}

tws_code tws_tune(const tws_tune_request *request, tws_tune_result **out, tws_error *err) {
  tws_tune_point *points;
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
    c->point = points[i];
    c->samples = (double)(points[i].micro * points[i].accumulation * points[i].ranks);
    tws_tune_name(&c->point, c->name, sizeof c->name);
  }
  tws_free(points);
  tws_code code = search(request, result, err);
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
