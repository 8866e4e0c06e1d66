#include "emulation/emulate.h"

#include <inttypes.h>
#include <math.h>

#include "base/host_memory.h"
#include "base/memory.h"
#include "base/units.h"
#include "job/fit.h"
#include "traces/measurements.h"

typedef struct emulator {
  const tws_job *job;
  const tws_emulation_request *request;
  const tws_virtual_api *api;
  tws_virtual *ranks;
  const tws_plan *const *plans;
  int count;
  double *step_s; /* virtual, of each step */
  tws_emulation *out;
} emulator;

/* ---- does it fit? ---- */

/* Plans as they run here: the kernels and their workspaces are the host's, whatever the cluster has. */
static tws_plan_request request_of_host(const tws_job *job, int rank) {
  tws_plan_request request = tws_job_request(job, rank);
  request.backend = TWS_BACKEND_HOST;
  return request;
}

static tws_code refuse_here(double need, double have, tws_error *err) {
  char needed[32], left[32];
  return tws_fail(err, TWS_NO, "use fewer ranks, a smaller model or micro batch; --ignore-memory tries all the same",
                  "the ranks' memory is %s together, and this machine has %s left",
                  tws_format_bytes(need, needed, sizeof needed), tws_format_bytes(have, left, sizeof left));
}

/* One rank in its virtual device; *bytes: what it takes here. */
static tws_code check_rank(const tws_job *job, int rank, double *bytes, tws_error *err) {
  tws_plan *plan = NULL;
  tws_ledger ledger;
  TWS_TRY(tws_job_plan(job, rank, &plan, err));
  tws_code code = tws_ledger_read(plan, &ledger, err);
  if (code == TWS_OK) {
    const tws_fit fit = tws_job_fit(job, &ledger);
    if (!fit.fits)
      code = tws_fit_refuse(&fit, "`twinspeed estimate` shows what fills it; --ignore-memory tries all the same", err);
  }
  if (code == TWS_OK && job->backend != TWS_BACKEND_HOST) {
    const tws_plan_request here = request_of_host(job, rank);
    tws_plan_destroy(plan);
    plan = NULL;
    code = tws_plan_build(&here, &plan, err);
  }
  for (int tier = 0; code == TWS_OK && tier < TWS_TIER_COUNT; tier++)
    *bytes += (double)tws_plan_bytes(plan, (tws_tier)tier);
  tws_plan_destroy(plan);
  return code;
}

/* Each rank in its virtual device, and all of them in this machine. */
static tws_code check_memory(const tws_job *job, tws_error *err) {
  tws_rank_set set = {0};
  double largest = 0;
  tws_code code = tws_job_representatives(job, 0, &set, err);
  for (int i = 0; i < set.count && code == TWS_OK; i++) {
    double bytes = 0;
    code = check_rank(job, set.ranks[i], &bytes, err);
    if (bytes > largest) largest = bytes;
  }
  tws_rank_set_free(&set);
  const double have = (double)tws_host_memory_read().available_bytes;
  if (code == TWS_OK && have > 0 && largest * job->ranks > have) return refuse_here(largest * job->ranks, have, err);
  return code;
}

/* ---- what operations do when they end ---- */

static tws_code operation_ran(void *user, uint32_t rank, uint32_t op, tws_error *err) {
  emulator *e = user;
  const double start = tws_clock_s();
  const tws_code code = e->api->run(e->ranks, rank, op, err);
  e->out->effects_s += tws_clock_s() - start;
  return code;
}

static tws_code operations_met(void *user, const tws_run_member *members, uint32_t count, tws_error *err) {
  emulator *e = user;
  const double start = tws_clock_s();
  const tws_code code = e->api->meet(e->ranks, members, count, err);
  e->out->effects_s += tws_clock_s() - start;
  return code;
}

/* ---- steps ---- */

static tws_code emulate_step(emulator *e, int64_t step, tws_error *err) {
  const tws_emulation_request *r = e->request;
  const tws_sim_effects effects = {.ran = operation_ran, .met = operations_met, .user = e};
  const tws_sim_request sim = {.plans = e->plans,
                               .plan_count = e->count,
                               .machine = e->job->machine,
                               .fidelity = r->fidelity,
                               .timeline = step == r->steps ? r->timeline : NULL,
                               .effects = &effects};
  tws_sim_result result;
  tws_step_report report;
  TWS_TRY(e->api->begin(e->ranks, step, err));
  TWS_TRY(r->sim->simulate(&sim, &result, err));
  TWS_TRY(e->api->end(e->ranks, result.step_s, &report, err));
  e->step_s[step - 1] = result.step_s;
  e->out->virtual_s += result.step_s;
  e->out->events += result.events;
  e->out->steps = step;
  e->out->skipped += report.skipped;
  if (!report.skipped && isnan(e->out->first_loss)) e->out->first_loss = report.loss;
  if (!report.skipped) e->out->last_loss = report.loss;
  if (r->on_step) r->on_step(r->user, &report);
  return TWS_OK;
}

static void count_bytes(emulator *e) {
  for (int r = 0; r < e->count; r++)
    for (int tier = 0; tier < TWS_TIER_COUNT; tier++) {
      e->out->predicted_bytes += tws_plan_bytes(e->plans[r], (tws_tier)tier);
      e->out->allocated_bytes += e->api->allocated(e->ranks, r, (tws_tier)tier);
    }
}

static tws_code emulate_steps(emulator *e, tws_error *err) {
  const int64_t steps = e->request->steps;
  e->plans = e->api->plans(e->ranks, &e->count);
  e->step_s = tws_calloc((size_t)steps, sizeof *e->step_s);
  if (!e->step_s) return tws_fail(err, TWS_MEMORY, NULL, "out of memory");
  count_bytes(e);
  for (int64_t step = 1; step <= steps; step++) {
    const tws_code code = emulate_step(e, step, err);
    if (code != TWS_OK)
      return tws_fail_in(err, code, "step %" PRId64 ", after %.6g virtual seconds", step, e->out->virtual_s);
  }
  e->out->median_step_s = tws_sample_median(e->step_s, (size_t)steps);
  return TWS_OK;
}

tws_code tws_emulate(const tws_job *job, const tws_emulation_request *request, tws_emulation *out, tws_error *err) {
  emulator e = {.job = job, .request = request, .api = request->real->virtual_ranks, .out = out};
  *out = (tws_emulation){.first_loss = NAN, .last_loss = NAN};
  if (!request->ignore_memory) TWS_TRY(check_memory(job, err));
  if (request->timeline) {
    tws_fingerprint fingerprint;
    TWS_TRY(tws_job_fingerprint(job, &fingerprint, err));
    tws_timeline_identify(request->timeline, fingerprint.model, fingerprint.plan);
  }
  const double start = tws_clock_s();
  const tws_train_options options = {
      .plan = request_of_host(job, 0), .data = request->data, .steps = request->steps, .log = request->log};
  tws_code code = e.api->open(&options, &e.ranks, err);
  if (code == TWS_OK) code = emulate_steps(&e, err);
  e.api->close(e.ranks);
  tws_free(e.step_s);
  out->wall_s = tws_clock_s() - start;
  return code;
}
