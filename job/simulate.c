#include "job/simulate.h"

#include <string.h>

#include "base/log.h"

static const char *const fidelity_names[] = {"analytic", "flow", "message"};

const char *tws_fidelity_name(tws_fidelity fidelity) {
  return (unsigned)fidelity < 3 ? fidelity_names[fidelity] : "?";
}

tws_code tws_fidelity_parse(const char *name, tws_fidelity *fidelity, tws_error *err) {
  *fidelity = TWS_FIDELITY_ANALYTIC;
  if (!name) return TWS_OK;
  for (int i = 0; i < 3; i++) {
    *fidelity = (tws_fidelity)i;
    if (strcmp(name, fidelity_names[i]) == 0) return TWS_OK;
  }
  return tws_fail(err, TWS_USAGE, "use analytic, flow or message", "--fidelity: unknown level \"%.40s\"", name);
}

int tws_job_simulates_every(const tws_job *job) {
  return job->backend == TWS_BACKEND_HOST ? TWS_SIMULATED_HOST_RANKS : 0;
}

static tws_code make_plans(const tws_job *job, const tws_simulation_request *request, tws_simulation *s,
                           tws_error *err) {
  tws_rank_set set = {0};
  tws_code code = tws_job_representatives(job, request->every_up_to, &set, err);
  if (code == TWS_OK && request->most_plans > 0 && set.count > request->most_plans)
    code = tws_fail(err, TWS_UNSUPPORTED,
                    "use fewer ranks, or without --all-ranks a division whose groups lie alike on all nodes",
                    "%d ranks are more than are simulated one by one (%d)", set.count, request->most_plans);
  if (code == TWS_OK) {
    s->plan_count = set.count;
    s->plans = tws_calloc((size_t)set.count, sizeof *s->plans);
    s->paths = tws_calloc((size_t)set.count, sizeof *s->paths);
    if (!s->plans || !s->paths) code = tws_fail(err, TWS_MEMORY, NULL, "out of memory for %d plans", set.count);
  }
  for (int i = 0; i < set.count && code == TWS_OK; i++) code = tws_job_plan(job, set.ranks[i], &s->plans[i], err);
  tws_rank_set_free(&set);
  return code;
}

tws_code tws_job_simulate(const tws_job *job, const tws_simulation_request *request, tws_simulation *out,
                          tws_error *err) {
  memset(out, 0, sizeof *out);
  TWS_TRY(make_plans(job, request, out, err));
  if (request->timeline) {
    tws_fingerprint fingerprint;
    TWS_TRY(tws_job_fingerprint(job, &fingerprint, err));
    tws_timeline_identify(request->timeline, fingerprint.model, fingerprint.plan);
  }
  const tws_sim_request of_plans = {.plans = (const tws_plan *const *)out->plans,
                                    .plan_count = out->plan_count,
                                    .fold = out->plan_count < job->ranks,
                                    .machine = job->machine,
                                    .fidelity = request->fidelity,
                                    .timeline = request->timeline,
                                    .paths = out->paths};
  const double start = tws_clock_s();
  TWS_TRY(request->sim->simulate(&of_plans, &out->result, err));
  out->wall_s = tws_clock_s() - start;
  return TWS_OK;
}

void tws_simulation_free(tws_simulation *simulation) {
  for (int i = 0; simulation->plans && i < simulation->plan_count; i++) tws_plan_destroy(simulation->plans[i]);
  tws_free(simulation->plans);
  tws_free(simulation->paths);
  memset(simulation, 0, sizeof *simulation);
}

tws_code tws_job_simulated_step(const tws_job *job, const tws_sim_api *sim, tws_fidelity fidelity, double *step_s,
                                tws_error *err) {
  const tws_simulation_request request = {
      .sim = sim, .fidelity = fidelity, .every_up_to = tws_job_simulates_every(job)};
  tws_simulation simulation;
  tws_code code = tws_job_simulate(job, &request, &simulation, err);
  *step_s = simulation.result.step_s;
  tws_simulation_free(&simulation);
  return code;
}

tws_code tws_simulation_stages(const tws_job *job, const tws_simulation *simulation, tws_stage_estimate *stages,
                               tws_stage_balance *balance, tws_error *err) {
  for (int i = 0; i < simulation->plan_count; i++) {
    tws_stage_estimate one, *stage = &stages[simulation->plans[i]->stage];
    TWS_TRY(tws_stage_read(simulation->plans[i], &one, err));
    if (stage->path.step_s > 0 && stage->arena_bytes[TWS_TIER_DEVICE] >= one.arena_bytes[TWS_TIER_DEVICE]) continue;
    *stage = one;
    stage->path = simulation->paths[i];
  }
  *balance = tws_stage_compare(stages, tws_job_stages(job));
  balance->bubble = simulation->result.bubble; /* of all simulated ranks */
  return TWS_OK;
}
