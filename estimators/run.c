#include "estimators/run.h"

#include <string.h>

#include "estimators/program.h"
#include "plan/phases.h"
#include "plan/volume.h"

/* Returns the bytes that rank 0 sends in a program. Reductions of gradients and of momenta run once a step, whatever
 * the number of micro-batches; collectives of layers run in each micro-batch, so the plan is lowered with all
 * micro-batches. */
static tws_code sent_bytes(const tws_plan_request *request, double *bytes, tws_error *err) {
  tws_plan *plan;
  tws_plan_request whole = *request;
  whole.rank = 0;
  whole.max_accumulation = 0;
  TWS_TRY(tws_plan_lower(&whole, &plan, err));
  *bytes = tws_plan_sent_bytes(plan);
  tws_plan_destroy(plan);
  return TWS_OK;
}

static tws_code estimate_phase(const tws_plan_request *request, const tws_machine *machine, tws_run_phase *phase,
                               tws_error *err) {
  const tws_estimated_job job = tws_estimated_job_of(request, machine);
  tws_estimate estimate;
  TWS_TRY(tws_estimate_program(&job, &estimate, NULL, err));
  phase->seconds = estimate.step_s;
  return sent_bytes(request, &phase->sent_bytes, err);
}

tws_code tws_estimate_run(const tws_plan_request *request, const tws_machine *machine, int64_t steps,
                          tws_run_estimate *out, tws_error *err) {
  int64_t count[TWS_PROGRAM_COUNT];
  memset(out, 0, sizeof *out);
  out->steps = steps;
  tws_run_programs(request->config, steps, count);
  for (int p = 0; p < TWS_PROGRAM_COUNT; p++) {
    tws_plan_request of = *request;
    if (count[p] == 0) continue;
    of.program = (tws_program)p;
    tws_run_phase *phase = &out->phase[out->phases++];
    *phase = (tws_run_phase){.program = of.program, .runs = count[p]};
    TWS_TRY(estimate_phase(&of, machine, phase, err));
    out->seconds += (double)count[p] * phase->seconds;
    out->sent_bytes += (double)count[p] * phase->sent_bytes;
  }
  out->mean_step_s = out->seconds / (double)steps;
  return TWS_OK;
}
