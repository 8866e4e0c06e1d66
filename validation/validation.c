#include "base/json.h"
#include "validation/validation.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

static tws_code predict_step(const tws_job *job, const tws_validation_request *request, tws_validation *v,
                             tws_error *err) {
  v->simulated = tws_timeline_create("simulated");
  if (!v->simulated) return tws_fail(err, TWS_MEMORY, NULL, "out of memory for a timeline");
  const tws_simulation_request of_job = {.sim = request->sim,
                                         .fidelity = request->fidelity,
                                         .every_up_to = tws_job_simulates_every(job),
                                         .timeline = v->simulated};
  tws_simulation simulation;
  tws_code code = tws_job_simulate(job, &of_job, &simulation, err);
  v->predicted_s = simulation.result.step_s;
  v->path = simulation.result.path;
  tws_simulation_free(&simulation);
  for (int rank = 0; rank < job->ranks && code == TWS_OK; rank++) {
    tws_plan *plan;
    TWS_TRY(tws_job_plan(job, rank, &plan, err));
    for (int tier = 0; tier < TWS_TIER_COUNT; tier++) v->ledger_bytes += (double)tws_plan_bytes(plan, (tws_tier)tier);
    tws_plan_destroy(plan);
  }
  return code;
}

static tws_code read_trace(const char *path, tws_validation *v, tws_error *err) {
  for (int i = 0; i < TWS_STREAM_COUNT; i++) v->streams[i] = tws_stream_name((tws_stream)i);
  for (int i = 0; i < TWS_PHASE_COUNT; i++) v->phases[i] = tws_phase_name((tws_phase)i);
  return tws_timeline_read_chrome(path, "measured", v->streams, TWS_STREAM_COUNT, v->phases, TWS_PHASE_COUNT,
                                  &v->measured, err);
}

static tws_code measure_step(const tws_job *job, const tws_validation_request *request, tws_validation *v,
                             tws_error *err) {
  char trace[4096];
  TWS_TRY(tws_temporary_file(trace, sizeof trace, "trace", err));
  tws_log_write(request->log, TWS_LOG_INFO, "training %lld steps on %d rank%s", (long long)request->steps, job->ranks,
                job->ranks > 1 ? "s" : "");
  const tws_trial_request trial = {.spec = request->spec,
                                   .ranks = job->ranks,
                                   .threads = job->threads,
                                   .data = request->data,
                                   .steps = request->steps,
                                   .progress = request->progress};
  tws_code code = tws_trial_run(&trial, trace, &v->trial, err);
  if (code == TWS_OK) code = read_trace(trace, v, err);
  tws_temporary_remove(trace);
  TWS_TRY(code);
  tws_trial_times(&v->trial, &v->measured_s, &v->low_s, &v->high_s);
  return tws_timeline_compare(v->simulated, v->measured, &v->comparison, err);
}

tws_code tws_validate_job(const tws_job *job, const tws_validation_request *request, tws_validation *out,
                          tws_error *err) {
  *out = (tws_validation){0};
  TWS_TRY(predict_step(job, request, out, err));
  return measure_step(job, request, out, err);
}

void tws_validation_free(tws_validation *validation) {
  tws_comparison_destroy(validation->comparison);
  tws_timeline_destroy(validation->simulated);
  tws_timeline_destroy(validation->measured);
  tws_trial_free(&validation->trial);
}

double tws_validation_error(const tws_validation *validation) {
  return (validation->predicted_s - validation->measured_s) / validation->measured_s;
}
