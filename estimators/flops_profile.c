#include "estimators/flops_profile.h"

#include <math.h>
#include <string.h>

#include "plan/pipeline_grid.h"

/* ---- measured durations ---- */

/* Checks that the trace has the fingerprints of this job: operations are found by their names, so that durations of
 * another model or plan could not be recognized otherwise. */
static tws_code check_belongs(const tws_timeline *m, const char *path, const tws_plan_request *request,
                              tws_error *err) {
  tws_fingerprint own;
  const char *hint = "give the model, configuration and options that it was trained with";
  if (!*m->plan)
    return tws_fail(err, TWS_INVALID, "write it anew with `train --trace`",
                    "%s does not say of which model and plan it is", path);
  TWS_TRY(tws_fingerprint_read(request, &own, err));
  if (strcmp(m->model, own.model) != 0)
    return tws_fail(err, TWS_INVALID, hint, "%s is a trace of another model (%s, this one is %s)", path, m->model,
                    own.model);
  if (strcmp(m->plan, own.plan) != 0)
    return tws_fail(err, TWS_INVALID, hint, "%s is a trace of another plan of this model (%s, this one is %s)", path,
                    m->plan, own.plan);
  return TWS_OK;
}

tws_code tws_measured_step_read(const char *path, const tws_plan_request *request, tws_measured_step *out,
                                tws_error *err) {
  *out = (tws_measured_step){0};
  for (int i = 0; i < TWS_STREAM_COUNT; i++) out->streams[i] = tws_stream_name((tws_stream)i);
  for (int i = 0; i < TWS_PHASE_COUNT; i++) out->phases[i] = tws_phase_name((tws_phase)i);
  TWS_TRY(tws_timeline_read_chrome(path, "measured", out->streams, TWS_STREAM_COUNT, out->phases, TWS_PHASE_COUNT,
                                   &out->timeline, err));
  const int world = tws_topology_world(&request->topology);
  int ranks = 0;
  double first = INFINITY, last = 0;
  for (size_t i = 0; i < out->timeline->event_count; i++) {
    const tws_event *event = &out->timeline->events[i];
    if (event->rank >= ranks) ranks = event->rank + 1;
    first = fmin(first, event->start_s);
    last = fmax(last, event->end_s);
  }
  out->seconds = last - first;
  if (ranks == world) return check_belongs(out->timeline, path, request, err);
  return tws_fail(err, TWS_INVALID, "give the options that it was trained with",
                  "%s is a trace of %d rank%s, and the job has %d", path, ranks, ranks > 1 ? "s" : "", world);
}

void tws_measured_step_free(tws_measured_step *step) {
  tws_timeline_destroy(step->timeline);
  step->timeline = NULL;
}

/* Computes, for one rank, the mean seconds of the events with each name in the timeline, or -1 if it has no such
 * event. */
static tws_code rank_means(const tws_timeline *timeline, int rank, double **out, tws_error *err) {
  uint32_t count = timeline->name_count;
  double *means = tws_calloc(2 * (size_t)count + 1, sizeof *means), *events = means ? means + count : NULL;
  if (!means) return tws_fail(err, TWS_MEMORY, NULL, "out of memory");
  for (size_t i = 0; i < timeline->event_count; i++) {
    const tws_event *event = &timeline->events[i];
    if (event->rank != rank) continue;
    means[event->name] += event->end_s - event->start_s;
    events[event->name]++;
  }
  for (uint32_t i = 0; i < count; i++) means[i] = events[i] > 0 ? means[i] / events[i] : -1;
  *out = means;
  return TWS_OK;
}

/* ---- one stage ---- */

/* Returns 1 if the profile counts an operation: kernels, and exchanges of tensor and sequence parallelism, which belong
 * to modules, of the first micro-batch and of the optimizer phase. Collectives of ZeRO, which run ahead on other
 * streams, do not count. */
static int counts_flops(const tws_op *op) {
  if (op->stream != TWS_STREAM_COMPUTE && op->stream != TWS_STREAM_EXCHANGE) return 0;
  return op->phase == TWS_PHASE_STEP || op->micro_batch == 0;
}

typedef struct profiler {
  const tws_plan_request *request;
  const tws_machine *machine;
  const tws_measured_step *measured;
  tws_flops_profile *out;
} profiler;

/* Returns the FLOPs of the bias in a kernel's `flops`: one addition for every output element. */
static double bias_flops(const tws_work *work, double flops) {
  if (!(work->flags & TWS_BIAS)) return 0;
  if (work->code == TWS_KERNEL_EXPERT_LINEAR) return flops / (2 * (double)work->d[4] + 1);
  if (work->code != TWS_KERNEL_CONVOLUTION) return 0;
  const double groups = work->d[7] > 0 ? (double)work->d[7] : 1;
  return flops / (2 * (double)(work->d[5] * work->d[5] * work->d[3]) / groups + 1);
}

/* Returns the multiply-adds of a kernel's matrix products; a bias has none. */
static double macs_of(const tws_work *work, double flops) {
  if (flops <= 0) return 0;
  if (work->code == TWS_KERNEL_LINEAR) return (double)work->d[0] * (double)work->d[1] * (double)work->d[2];
  const int product = work->code == TWS_KERNEL_ATTENTION || work->code == TWS_KERNEL_DISENTANGLED ||
                      work->code == TWS_KERNEL_CONVOLUTION || work->code == TWS_KERNEL_CONVOLUTION_GRAD_INPUT ||
                      work->code == TWS_KERNEL_EXPERT_LINEAR;
  return product ? (flops - bias_flops(work, flops)) / 2 : 0;
}

static void add_flops(const tws_op *op, const tws_work *work, double flops, double seconds, int stage,
                      tws_module_tree *tree, tws_stage_flops *cost) {
  const double macs = macs_of(work, flops);
  const int has_module = op->module != TWS_NONE;
  if (op->phase == TWS_PHASE_FORWARD && has_module) {
    cost->flops += flops;
    cost->macs += macs;
    tws_module_tree_add(tree, op->module, stage, flops, macs, seconds);
  }
  if (op->phase == TWS_PHASE_BACKWARD) cost->backward_flops += flops;
  if (op->phase == TWS_PHASE_RECOMPUTE) cost->recomputed_flops += flops;
  if ((op->phase == TWS_PHASE_BACKWARD || op->phase == TWS_PHASE_RECOMPUTE) && has_module)
    tws_module_tree_add_backward(tree, op->module, flops, seconds);
}

/* Adds the operations of the first micro-batch and of the optimizer phase to the profile. If times are measured, counts
 * operations without a measurement. */
static void add_operations(const profiler *p, const tws_plan *plan, const double *means, tws_stage_flops *cost) {
  tws_timeline *timeline = p->measured ? p->measured->timeline : NULL;
  const uint32_t known = timeline ? timeline->name_count : 0;
  for (uint32_t i = 0; i < plan->op_count; i++) {
    const tws_op *op = &plan->ops[i];
    if (!counts_flops(op)) continue;
    const tws_work *work = &plan->works[op->work];
    double seconds = means ? -1 : tws_plan_work_seconds(plan, op->work, p->machine, 1);
    if (means) {
      char label[160];
      uint32_t name = tws_timeline_name(timeline, tws_op_label(plan, i, label, sizeof label));
      if (name < known) seconds = means[name];
    }
    p->out->unknown += seconds < 0;
    seconds = fmax(seconds, 0);
    if (op->phase == TWS_PHASE_FORWARD) cost->forward_s += seconds;
    if (op->phase == TWS_PHASE_BACKWARD || op->phase == TWS_PHASE_RECOMPUTE) cost->backward_s += seconds;
    if (op->phase == TWS_PHASE_STEP) cost->step_s += seconds;
    add_flops(op, work, op->kind == TWS_OP_COMPUTE ? tws_work_flops(work) : 0, seconds, plan->stage, p->out->tree,
              cost);
  }
}

static tws_code read_stage(const profiler *p, int stage, tws_error *err) {
  tws_stage_flops *cost = &p->out->stages[stage];
  tws_plan_request request = *p->request;
  tws_plan *plan;
  tws_stage_estimate held;
  double *means = NULL;
  request.rank = cost->rank = tws_pipeline_grid_stage(&request.topology, 0, stage);
  TWS_TRY(tws_plan_build(&request, &plan, err));
  tws_code code = tws_stage_read(plan, &held, err);
  if (code == TWS_OK && !p->out->tree) code = tws_module_tree_create(request.network, plan->slices, &p->out->tree, err);
  if (code == TWS_OK && p->measured) code = rank_means(p->measured->timeline, cost->rank, &means, err);
  if (code == TWS_OK) {
    cost->stage = plan->stage;
    cost->params = held.parameters;
    add_operations(p, plan, means, cost);
  }
  tws_free(means);
  tws_plan_destroy(plan);
  return code;
}

/* ---- all stages ---- */

static void find_utilization(const profiler *p) {
  const tws_plan_request *request = p->request;
  tws_flops_profile *out = p->out;
  const int host = tws_profile_backend(p->machine->profile) == TWS_BACKEND_HOST;
  const double threads = host && request->threads > 0 ? request->threads : 1;
  const double peak = threads * tws_profile_peak_flops(p->machine->profile, request->config->dtype);
  double model = 0, again = 0;
  for (int s = 0; s < out->stage_count; s++) {
    model += out->stages[s].flops + out->stages[s].backward_flops;
    again += out->stages[s].recomputed_flops;
  }
  const double steps = (double)request->config->accumulation_steps / out->stage_count;
  const double possible = peak * out->iteration_s;
  out->mfu = possible > 0 ? model * steps / possible : 0;
  out->hfu = possible > 0 ? (model + again) * steps / possible : 0;
}

static tws_code find_iteration(const profiler *p, tws_error *err) {
  tws_estimate estimate;
  if (p->measured) {
    p->out->iteration_s = p->measured->seconds;
    return TWS_OK;
  }
  TWS_TRY(tws_estimate_step(p->request, p->machine, &estimate, err));
  p->out->iteration_s = estimate.step_s;
  return TWS_OK;
}

tws_code tws_flops_profile_read(const tws_plan_request *request, const tws_machine *machine,
                                const tws_measured_step *measured, tws_flops_profile *out, tws_error *err) {
  const profiler p = {request, machine, measured, out};
  *out = (tws_flops_profile){.stage_count = tws_topology_size(&request->topology, TWS_AXES_PIPE)};
  out->stages = tws_calloc((size_t)out->stage_count, sizeof *out->stages);
  if (!out->stages) return tws_fail(err, TWS_MEMORY, NULL, "out of memory");
  for (int s = 0; s < out->stage_count; s++) {
    const tws_stage_flops *cost = &out->stages[s], *slowest = &out->stages[out->slowest];
    TWS_TRY(read_stage(&p, s, err));
    if (cost->forward_s + cost->backward_s > slowest->forward_s + slowest->backward_s) out->slowest = s;
    out->replica_flops += cost->flops;
  }
  out->replica_flops *= tws_topology_size(&request->topology, TWS_AXES_MODEL);
  out->replica_flops *= tws_topology_size(&request->topology, TWS_AXES_SEQUENCE);
  tws_module_tree_sum(out->tree);
  TWS_TRY(find_iteration(&p, err));
  find_utilization(&p);
  return TWS_OK;
}

void tws_flops_profile_free(tws_flops_profile *profile) {
  tws_module_tree_destroy(profile->tree);
  tws_free(profile->stages);
  *profile = (tws_flops_profile){0};
}

tws_flops_rates tws_flops_rates_of(const tws_flops_profile *p, int64_t micro_batches) {
  const tws_stage_flops *t = &p->stages[p->slowest];
  const double backward = t->backward_flops + t->recomputed_flops, both = t->flops + backward;
  return (tws_flops_rates){.backward_flops = backward,
                           .forward_per_s = t->flops / t->forward_s,
                           .backward_per_s = backward / t->backward_s,
                           .both_per_s = both / (t->forward_s + t->backward_s),
                           .step_per_s = (double)micro_batches * both / p->iteration_s};
}
