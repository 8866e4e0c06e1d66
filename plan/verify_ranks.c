/* Verifies that the plans of all ranks of a job complete together, by running them in the run order with durations of
 * 0. The engines issue operations in serial order, so this order is checked first; plans that complete in it also
 * complete on streams. If an operation cannot start, there is a deadlock. */
#include "plan/run_order.h"

static tws_code verify_ranks(const tws_plan *const *plans, int count, tws_absent absent, tws_error *err) {
  if (count < 1) return TWS_OK;
  const tws_run_request request = {.plans = plans, .count = count, .mode = TWS_RUN_SERIAL, .absent = absent};
  const tws_run_durations at_once = {NULL, NULL, NULL};
  tws_run *run;
  TWS_TRY(tws_run_create(&request, &run, err));
  tws_run_all(run, &at_once);
  tws_code code = tws_run_check(run, err);
  if (code != TWS_OK) {
    tws_run_reset(run, TWS_RUN_STREAMS);
    tws_run_all(run, &at_once);
    if (tws_run_check(run, NULL) == TWS_OK)
      code = tws_fail_in(err, code, "in issue order, as the engines start operations (on streams alone it could run)");
  }
  tws_run_destroy(run);
  return code;
}

tws_code tws_plans_verify(const tws_plan *const *plans, int count, tws_error *err) {
  return verify_ranks(plans, count, TWS_ABSENT_NONE, err);
}

tws_code tws_plans_verify_part(const tws_plan *const *plans, int count, tws_error *err) {
  return verify_ranks(plans, count, TWS_ABSENT_COLLECTIVE, err);
}
