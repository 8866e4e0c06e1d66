#include "job/fit.h"

#include <math.h>

#include "base/host_memory.h"
#include "base/units.h"
#include "job/modules.h"
#include "job/software_host.h"
#include "job/software_memory.h"

/* Sets the limits of hosts: the ranks of a node share its memory, and no rank may take more than the device that the
 * cluster file states. */
static void fill_host(tws_capacity *c, const tws_machine *machine, double device) {
  if (!(c->node > 0)) c->node = tws_profile_memory_bytes(machine->profile);
  double share = c->node / c->ranks_per_node;
  if (device > 0 && device < share) {
    share = device;
    c->node = device * c->ranks_per_node;
  }
  c->rank_device = c->rank_node = fmax(0, share - c->overhead);
}

tws_capacity tws_capacity_of(const tws_machine *machine, int ranks, double device_limit) {
  const tws_node_mapping mapping = tws_machine_mapping(machine, ranks);
  const tws_cluster *cluster = machine->cluster;
  const double device = device_limit > 0 ? device_limit : cluster->device_memory_bytes;
  tws_capacity c = {.host = tws_profile_backend(machine->profile) == TWS_BACKEND_HOST,
                    .ranks_per_node = tws_mapping_most_on_node(&mapping),
                    .overhead = tws_profile_overhead_bytes(machine->profile),
                    .node = cluster->host_memory_bytes,
                    .disk = cluster->disk_bytes};
  c.rank_disk = c.disk > 0 ? c.disk / c.ranks_per_node : INFINITY;
  if (c.host) {
    fill_host(&c, machine, device);
    return c;
  }
  c.device = device > 0 ? device : tws_profile_memory_bytes(machine->profile);
  c.rank_device = fmax(0, c.device - c.overhead);
  c.rank_node = c.node > 0 ? c.node / c.ranks_per_node : INFINITY;
  return c;
}

tws_fit tws_fit_of(const tws_capacity *capacity, const tws_ledger *ledger) {
  const double arena = (double)ledger->tier[TWS_TIER_DEVICE].arena_bytes;
  const double beside =
      (double)ledger->tier[TWS_TIER_PINNED].arena_bytes + (double)ledger->tier[TWS_TIER_HOST].arena_bytes;
  const double own = capacity->host ? arena + beside : arena, shared = capacity->host ? 0 : beside;
  tws_fit fit = {.capacity = *capacity, .tier = TWS_TIER_DEVICE, .rank_need = own, .rank_have = capacity->rank_device};
  if (own <= capacity->rank_device && shared > capacity->rank_node) {
    fit.tier = TWS_TIER_HOST;
    fit.rank_need = shared;
    fit.rank_have = capacity->rank_node;
  }
  const double on_disk = (double)ledger->tier[TWS_TIER_DISK].arena_bytes;
  if (fit.rank_need <= fit.rank_have && on_disk > capacity->rank_disk) {
    fit.tier = TWS_TIER_DISK;
    fit.rank_need = on_disk;
    fit.rank_have = capacity->rank_disk;
  }
  fit.disk_need = capacity->ranks_per_node * on_disk;
  fit.fits = fit.rank_need <= fit.rank_have;
  fit.device_need = capacity->host ? 0 : arena + capacity->overhead;
  fit.node_need = capacity->ranks_per_node * (capacity->host ? own + capacity->overhead : beside);
  return fit;
}

tws_fit tws_job_fit_within(const tws_job *job, const tws_ledger *ledger, double device_limit) {
  tws_capacity capacity = tws_capacity_of(&job->machine, job->ranks, device_limit);
  const double arena = (double)ledger->tier[TWS_TIER_DEVICE].arena_bytes;
  const double planned = tws_job_planned_bytes(job, ledger);
  const double software = tws_job_software_peak(job, planned, (double)ledger->loss_bytes) - arena +
                          tws_job_context_bytes(job) - tws_profile_overhead_bytes(job->profile);
  capacity.overhead += software;
  capacity.rank_device = fmax(0, capacity.rank_device - software);
  const double on_host = tws_software_host_bytes(job, ledger);
  tws_ledger held = *ledger;
  held.tier[TWS_TIER_HOST].arena_bytes += (uint64_t)on_host;
  tws_fit fit = tws_fit_of(&capacity, &held);
  fit.node_software = capacity.ranks_per_node * on_host;
  if (fit.tier == TWS_TIER_DEVICE) {
    fit.rank_need += software;
    fit.rank_have += software;
  }
  if (capacity.host) return fit;
  fit.seen = tws_runtime_memory_interval(tws_profile_runtime(job->profile));
  fit.tight = fit.fits && fit.device_need * fit.seen->high > capacity.device;
  return fit;
}

double tws_job_limit_with_margin(const tws_job *job) {
  const tws_capacity capacity = tws_capacity_of(&job->machine, job->ranks > 0 ? job->ranks : 1, 0);
  const double high = tws_runtime_memory_interval(tws_profile_runtime(job->profile))->high;
  return capacity.host || !(high > 1) ? 0 : capacity.device / high;
}

tws_fit tws_job_fit(const tws_job *job, const tws_ledger *ledger) {
  return tws_job_fit_within(job, ledger, 0);
}

tws_code tws_fit_refuse(const tws_fit *fit, const char *hint, tws_error *err) {
  char a[32], b[32];
  const int device = !fit->capacity.host && fit->tier == TWS_TIER_DEVICE;
  const int disk = fit->tier == TWS_TIER_DISK;
  const double need = device ? fit->device_need : disk ? fit->disk_need : fit->node_need;
  const double have = device ? fit->capacity.device : disk ? fit->capacity.disk : fit->capacity.node;
  const char *what = device ? "a device" : disk ? "a node's disk" : "a node";
  return tws_fail(err, TWS_NO, hint, "does not fit: %s needs %s and has %s", what, tws_format_bytes(need, a, sizeof a),
                  tws_format_bytes(have, b, sizeof b));
}

tws_code tws_fit_refuse_tight(const tws_fit *fit, const char *hint, tws_error *err) {
  char need[32], have[32], likely[32];
  return tws_fail(err, TWS_NO, hint, "tight: a device needs %s, up to %s by what was seen of %s, and has %s",
                  tws_format_bytes(fit->device_need, need, sizeof need),
                  tws_format_bytes(fit->device_need * fit->seen->high, likely, sizeof likely), fit->seen->of,
                  tws_format_bytes(fit->capacity.device, have, sizeof have));
}

/* ---- this machine ---- */

static void free_plans(tws_plan **plans, int count) {
  for (int i = 0; plans && i < count; i++) tws_plan_destroy(plans[i]);
  tws_free(plans);
}

/* Adds the bytes that rank r needs of this machine's memory, without a GPU's own. */
static tws_code add_rank(const tws_job *job, int r, int evaluates, tws_plan **train, tws_plan **evaluation,
                         double *bytes, tws_error *err) {
  tws_plan *between[TWS_PROGRAM_COUNT] = {NULL};
  const tws_plan *programs[TWS_PROGRAM_COUNT] = {NULL};
  const int host = job->backend == TWS_BACKEND_HOST;
  tws_ledger ledger;
  TWS_TRY(tws_job_program(job, r, TWS_PROGRAM_TRAIN, NULL, train, err));
  if (evaluates) TWS_TRY(tws_job_program(job, r, TWS_PROGRAM_EVALUATE, (*train)->state, evaluation, err));
  programs[TWS_PROGRAM_TRAIN] = *train;
  programs[TWS_PROGRAM_EVALUATE] = *evaluation;
  tws_code code = TWS_OK;
  for (int p = TWS_PROGRAM_APPLY; p < TWS_PROGRAM_COUNT && code == TWS_OK; p++) {
    if (!tws_plan_has_program(job->config, (tws_program)p)) continue;
    code = tws_job_program(job, r, (tws_program)p, (*train)->state, &between[p], err);
    programs[p] = between[p];
  }
  if (code == TWS_OK) code = tws_ledger_of_programs(programs, TWS_PROGRAM_COUNT, &ledger, err);
  for (int p = 0; p < TWS_PROGRAM_COUNT; p++) tws_plan_destroy(between[p]);
  TWS_TRY(code);
  if (host) *bytes += tws_profile_overhead_bytes(job->profile);
  for (int tier = host ? 0 : TWS_TIER_DEVICE + 1; tier < TWS_TIER_DISK; tier++)
    *bytes += (double)ledger.tier[tier].arena_bytes;
  return TWS_OK;
}

tws_code tws_job_check_engine(const tws_job *job, int by_cluster, int by_profile, tws_error *err) {
  const tws_real_api *api = NULL;
  if (job->backend == TWS_BACKEND_HOST) return TWS_OK;
  if (tws_profile_has_no_engine(job->profile))
    return tws_fail(err, TWS_UNSUPPORTED,
                    "estimate, simulate, check and tune plan for it; --cluster host trains on this machine's cores",
                    "no engine of this program runs on %s (backend \"other\")", tws_profile_name(job->profile));
  TWS_TRY(tws_real_load(&api, err));
  if (api->backend("cuda")) return TWS_OK;
  return tws_fail(err, TWS_UNSUPPORTED,
                  by_cluster && by_profile ? "leave out --cluster and --profile to train on this machine's cores"
                  : by_profile             ? "leave out --profile to train on this machine's cores"
                                           : "leave out --cluster to train on this machine's cores",
                  "%s has GPUs, and this build trains on the host",
                  by_cluster ? job->cluster.name : tws_profile_name(job->profile));
}

tws_code tws_job_fit_here(const tws_job *job, int here, int evaluates, tws_local_fit *fit, tws_error *err) {
  tws_plan **plans = tws_calloc((size_t)job->ranks, sizeof *plans);
  tws_plan **evaluations = tws_calloc((size_t)job->ranks, sizeof *evaluations);
  tws_code code = plans && evaluations ? TWS_OK : tws_fail(err, TWS_MEMORY, NULL, "out of memory");
  double elsewhere = 0;
  *fit = (tws_local_fit){.fits = 1};
  for (int r = 0; code == TWS_OK && r < job->ranks; r++)
    code = add_rank(job, r, evaluates, &plans[r], &evaluations[r], r < here ? &fit->need : &elsewhere, err);
  if (code == TWS_OK) code = tws_plans_verify((const tws_plan *const *)plans, job->ranks, err);
  if (code == TWS_OK && evaluates) code = tws_plans_verify((const tws_plan *const *)evaluations, job->ranks, err);
  free_plans(evaluations, job->ranks);
  free_plans(plans, job->ranks);
  TWS_TRY(code);
  const tws_host_memory memory = tws_host_memory_read();
  fit->have = (double)memory.available_bytes;
  fit->limited = memory.limited;
  fit->fits = !(fit->have > 0) || fit->need <= fit->have;
  return TWS_OK;
}
