/* Estimates for sweeps. A step of many micro-batches repeats one micro-batch: from the second on each adds the same
 * time, and the peak is reached. (The first does not accumulate, and streams of neighbouring micro-batches overlap, so
 * one micro-batch and the difference a second makes would not do.) */
#include <string.h>

#include "estimators/estimators.h"
#include "plan/pipeline_grid.h"

static uint64_t rounded(uint64_t bytes) {
  return (bytes + TWS_ALIGNMENT - 1) / TWS_ALIGNMENT * TWS_ALIGNMENT;
}

/* The token buffers are the one thing that grows with the number of micro-batches. */
static void grow_inputs(tws_ledger_tier *tier, uint64_t tokens, int64_t built, int64_t wanted) {
  uint64_t before = tokens * (uint64_t)built * sizeof(int32_t), after = tokens * (uint64_t)wanted * sizeof(int32_t);
  tier->live_bytes += 2 * (after - before);
  tier->category[TWS_CATEGORY_INPUT] += 2 * (after - before);
  tier->arena_bytes += 2 * (rounded(after) - rounded(before));
  tier->gaps = tier->arena_bytes - tier->live_bytes;
}

static void extrapolate(tws_path_result *path, const tws_path_result *fewer, double more) {
  path->step_s += more * (path->step_s - fewer->step_s);
  path->exposed_s += more * (path->exposed_s - fewer->exposed_s);
  path->flops += more * (path->flops - fewer->flops);
  for (int i = 0; i < TWS_STREAM_COUNT; i++)
    path->stream_busy_s[i] += more * (path->stream_busy_s[i] - fewer->stream_busy_s[i]);
  for (int i = 0; i < TWS_PHASE_COUNT; i++) path->phase_s[i] += more * (path->phase_s[i] - fewer->phase_s[i]);
  for (int i = 0; i < TWS_KERNEL_COUNT; i++) path->kernel_s[i] += more * (path->kernel_s[i] - fewer->kernel_s[i]);
  for (int i = 0; i < TWS_COLLECTIVE_COUNT; i++) {
    path->collective_s[i] += more * (path->collective_s[i] - fewer->collective_s[i]);
  }
}

static tws_code build(const tws_plan_request *request, int64_t micro_batches, const tws_machine *machine,
                      tws_path_result *path, tws_ledger *ledger, tws_error *err) {
  tws_plan_request r = *request;
  tws_plan *plan;
  r.max_accumulation = micro_batches;
  TWS_TRY(tws_plan_build(&r, &plan, err));
  tws_code code = ledger ? tws_ledger_read(plan, ledger, err) : TWS_OK;
  if (code == TWS_OK) code = tws_longest_path(plan, machine, path, err);
  tws_plan_destroy(plan);
  return code;
}

/* One plan a stage, all of the first replica, with every micro-batch: the warm-up and drain of a pipeline do not
 * repeat. */
static tws_code estimate_stages(const tws_plan_request *request, int stages, const tws_machine *machine,
                                tws_estimate *out, tws_error *err) {
  tws_plan **plans = tws_calloc((size_t)stages, sizeof *plans);
  tws_path_result *paths = tws_calloc((size_t)stages, sizeof *paths);
  tws_code code = plans && paths ? TWS_OK : tws_fail(err, TWS_MEMORY, NULL, "no memory for the estimate");
  for (int s = 0; s < stages && code == TWS_OK; s++) {
    tws_plan_request r = *request;
    tws_ledger ledger;
    r.rank = tws_pipeline_grid_stage(&r.topology, 0, s);
    r.max_accumulation = 0;
    code = tws_plan_build(&r, &plans[s], err);
    if (code == TWS_OK) code = tws_ledger_read(plans[s], &ledger, err);
    if (code != TWS_OK ||
        (s > 0 && ledger.tier[TWS_TIER_DEVICE].arena_bytes <= out->ledger.tier[TWS_TIER_DEVICE].arena_bytes)) {
      continue;
    }
    out->ledger = ledger;
    out->stage = s;
  }
  if (code == TWS_OK) code = tws_job_path((const tws_plan *const *)plans, stages, machine, paths, &out->step_s, err);
  for (int s = 0; s < stages && code == TWS_OK; s++) {
    out->bubble += paths[s].exposed_s / out->step_s / stages;
    if (s == 0 || paths[s].exposed_s < out->path.exposed_s) out->path = paths[s]; /* the busiest stage */
  }
  for (int s = 0; plans && s < stages; s++) tws_plan_destroy(plans[s]);
  tws_free(plans);
  tws_free(paths);
  return code;
}

static tws_code estimate_alone(const tws_plan_request *request, const tws_machine *machine, tws_estimate *out,
                               tws_error *err) {
  const tws_config *c = request->config;
  int64_t wanted = c->accumulation_steps, built = wanted < 3 ? wanted : 3;
  TWS_TRY(build(request, built, machine, &out->path, &out->ledger, err));
  if (wanted > built) {
    tws_path_result fewer;
    TWS_TRY(build(request, built - 1, machine, &fewer, NULL, err));
    extrapolate(&out->path, &fewer, (double)(wanted - built));
    grow_inputs(&out->ledger.tier[TWS_TIER_DEVICE], (uint64_t)c->micro_batch_size * (uint64_t)c->sequence_length, built,
                wanted);
  }
  out->step_s = out->path.step_s;
  return TWS_OK;
}

tws_code tws_estimate_step(const tws_plan_request *request, const tws_machine *machine, tws_estimate *out,
                           tws_error *err) {
  const tws_config *c = request->config;
  int stages = tws_topology_dim(&request->topology, "pipe");
  memset(out, 0, sizeof *out);
  TWS_TRY(stages > 1 ? estimate_stages(request, stages, machine, out, err)
                     : estimate_alone(request, machine, out, err));
  out->path.bottleneck = out->path.text;
  int world = tws_topology_world(&request->topology);
  double tokens = (double)c->micro_batch_size * (double)c->sequence_length * (double)c->accumulation_steps *
                  (double)tws_topology_dim(&request->topology, "data");
  out->tokens_per_s = out->step_s > 0 ? tokens / out->step_s : 0;
  out->model_flops = 3 * tws_network_flops_per_token(request->network, c->sequence_length, 0) * tokens;
  double units = world, cores = tws_profile_cores(machine->profile); /* a host's peak is that of one core */
  if (cores > 0) {
    double wanted_cores = (double)world * (request->threads > 1 ? request->threads : 1);
    double there = cores * (machine->cluster->nodes > 0 ? machine->cluster->nodes : 1);
    units = wanted_cores < there ? wanted_cores : there;
  }
  double peak = tws_profile_peak_flops(machine->profile, c->dtype) * units;
  out->mfu = out->step_s > 0 && peak > 0 ? out->model_flops / out->step_s / peak : 0;
  return TWS_OK;
}
