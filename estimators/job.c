/* Estimates a job: its step, the programs that run between steps, the time to load samples, totals. */
#include <string.h>

#include "estimators/program.h"

static double samples_of_step(const tws_estimated_job *job) {
  const tws_config *c = job->request->config;
  return (double)c->micro_batch_size * (double)c->accumulation_steps * (double)job->replicas;
}

static double tokens_of_step(const tws_estimated_job *job) {
  return samples_of_step(job) * (double)job->request->config->sequence_length;
}

/* ---- programs that run between steps ---- */

static void keep_larger(tws_ledger *ledger, const tws_ledger *other) {
  for (int tier = 0; tier < TWS_TIER_COUNT; tier++)
    if (other->tier[tier].arena_bytes > ledger->tier[tier].arena_bytes) ledger->tier[tier] = other->tier[tier];
}

static tws_code estimate_between(const tws_plan_request *request, const tws_machine *machine, tws_replays replays,
                                 tws_estimate *out, tws_error *err) {
  memset(out, 0, sizeof *out);
  for (int p = 0; p < TWS_PROGRAM_COUNT && request->program == TWS_PROGRAM_TRAIN; p++) {
    if (!tws_program_runs_between(request->config, (tws_program)p)) continue;
    const double share = tws_program_share(request->config, (tws_program)p);
    tws_plan_request r = *request;
    r.program = (tws_program)p;
    tws_estimated_job job = tws_estimated_job_of(&r, machine);
    job.replays = replays;
    tws_estimate one;
    TWS_TRY(tws_estimate_program(&job, &one, NULL, err));
    out->step_s += share * one.step_s;
    tws_path_add(&out->path, &one.path, share);
    keep_larger(&out->ledger, &one.ledger);
  }
  return TWS_OK;
}

tws_code tws_estimate_between(const tws_plan_request *request, const tws_machine *machine, tws_estimate *out,
                              tws_error *err) {
  return estimate_between(request, machine, TWS_REPLAY_NEEDED, out, err);
}

/* Adds the estimate of the programs between steps, and of programs that replace training steps, to that of the training
 * step, whose time counts `steps` times (0 to 1: the fraction that is not replaced). Jobs whose programs take time
 * between steps have one stage; programs of other phases of the optimizer only need memory here. */
static void add_between(double steps, const tws_estimate *between, tws_estimate *out, tws_stage_estimate *stages) {
  keep_larger(&out->ledger, &between->ledger);
  if (!(between->step_s > 0)) return;
  const tws_path_result own = out->path;
  out->step_s = steps * out->step_s + between->step_s;
  if (steps < 1) tws_path_add(&out->path, &own, steps - 1);
  tws_path_add(&out->path, &between->path, 1);
  if (!stages) return;
  for (int tier = 0; tier < TWS_TIER_COUNT; tier++) stages->arena_bytes[tier] = out->ledger.tier[tier].arena_bytes;
  stages->live_bytes = out->ledger.tier[TWS_TIER_DEVICE].live_bytes;
  stages->allocator = out->ledger.tier[TWS_TIER_DEVICE].allocator;
  stages->path = out->path;
  stages->path.bottleneck = stages->path.text;
}

/* ---- samples: nodes read, decode and copy a step's samples during the previous step ---- */

/* Returns the number of nodes that load samples: those with ranks of the first pipeline stage. Ranks along axes other
 * than data use the same samples. */
static int loading_nodes(const tws_estimated_job *job) {
  int count = 0, last = -1;
  for (int rank = 0; rank < job->ranks; rank++) { /* the ranks of a node are consecutive */
    const int node = tws_mapping_node(&job->mapping, rank);
    if (node == last || tws_topology_index(&job->request->topology, rank, TWS_AXES_PIPE) != 0) continue;
    last = node;
    count++;
  }
  return count > 0 ? count : 1;
}

static double loading_seconds(const tws_estimated_job *job) {
  const double rate = job->machine->cluster->samples_per_s;
  return rate > 0 ? samples_of_step(job) / (rate * loading_nodes(job)) : 0;
}

double tws_loading_s(const tws_plan_request *request, const tws_machine *machine) {
  const tws_estimated_job job = tws_estimated_job_of(request, machine);
  return loading_seconds(&job);
}

void tws_path_load(double waits_s, tws_path_result *path) {
  if (!(waits_s > 0)) return;
  path->step_s += waits_s;
  path->loading_s += waits_s;
  tws_path_judge(path);
}

static void wait_for_samples(const tws_estimated_job *job, tws_estimate *out, tws_stage_estimate *stages) {
  out->loading_s = loading_seconds(job);
  const double waits_s = out->loading_s - out->step_s;
  tws_path_load(waits_s, &out->path);
  for (int i = 0; stages && i < job->stages; i++) tws_path_load(waits_s, &stages[i].path);
  if (!(waits_s > 0)) return;
  out->balance.bubble *= out->step_s / out->loading_s;
  out->step_s = out->loading_s;
}

/* ---- totals ---- */

static double model_flops(const tws_estimated_job *job) {
  const tws_plan_request *request = job->request;
  const tws_config *c = request->config;
  /* programs between steps are not counted, since they have neither a forward nor a backward pass */
  double per_token = 0;
  if (tws_program_is_step(request->program))
    per_token = tws_network_training_flops_per_token(request->network, c->sequence_length, c->target_length, 0);
  if (request->program == TWS_PROGRAM_EVALUATE)
    per_token = tws_network_flops_per_token(request->network, c->sequence_length, c->target_length, 0);
  return per_token * tokens_of_step(job);
}

double tws_model_flops(const tws_plan_request *request) {
  const tws_estimated_job job = {.request = request, .replicas = tws_topology_size(&request->topology, TWS_AXES_DATA)};
  return model_flops(&job);
}

double tws_peak_flops(const tws_plan_request *request, const tws_machine *machine) {
  const int ranks = tws_topology_world(&request->topology);
  /* the profile of a host has the peak of one core */
  double units = ranks, cores = tws_profile_cores(machine->profile);
  if (cores > 0) {
    double wanted_cores = (double)ranks * (request->threads > 1 ? request->threads : 1);
    double there = cores * (machine->cluster->nodes > 0 ? machine->cluster->nodes : 1);
    units = wanted_cores < there ? wanted_cores : there;
  }
  return tws_profile_peak_flops(machine->profile, request->config->dtype) * units;
}

static void add_totals(const tws_estimated_job *job, tws_estimate *out) {
  const double peak = tws_peak_flops(job->request, job->machine);
  out->path.bottleneck = out->path.text;
  out->model_flops = model_flops(job);
  out->tokens_per_s = out->step_s > 0 ? tokens_of_step(job) / out->step_s : 0;
  out->mfu = out->step_s > 0 && peak > 0 ? out->model_flops / out->step_s / peak : 0;
}

/* ---- the job ---- */

tws_code tws_estimate_job(const tws_plan_request *request, const tws_machine *machine, tws_estimate *out,
                          tws_stage_estimate *stages, tws_error *err) {
  tws_estimated_job job = tws_estimated_job_of(request, machine);
  tws_estimate between;
  job.replays = stages ? TWS_REPLAY_ALL : TWS_REPLAY_NEEDED;
  TWS_TRY(tws_estimate_program(&job, out, stages, err));
  TWS_TRY(estimate_between(request, machine, job.replays, &between, err));
  add_between(tws_program_share(request->config, TWS_PROGRAM_TRAIN), &between, out, stages);
  wait_for_samples(&job, out, stages);
  add_totals(&job, out);
  return TWS_OK;
}

tws_code tws_estimate_step(const tws_plan_request *request, const tws_machine *machine, tws_estimate *out,
                           tws_error *err) {
  return tws_estimate_job(request, machine, out, NULL, err);
}
