/* Computes figures that follow from the estimate of a step. */
#include "estimators/estimators.h"

double tws_estimate_tokens_per_s(const tws_estimate *e, double step_s) {
  return step_s > 0 ? e->tokens_per_s * e->step_s / step_s : 0;
}

double tws_estimate_mfu(const tws_estimate *e, double step_s) {
  return step_s > 0 ? e->mfu * e->step_s / step_s : 0;
}

tws_code tws_estimate_ledger(const tws_estimate *e, const tws_plan *plan, int64_t wanted, tws_ledger *out,
                             tws_error *err) {
  TWS_TRY(tws_ledger_read(plan, out, err));
  for (int t = 0; plan->accumulation_steps < wanted && t < TWS_TIER_COUNT; t++) {
    const uint32_t peak_op = out->tier[t].peak_op;
    out->tier[t] = e->ledger.tier[t];
    out->tier[t].peak_op = peak_op;
  }
  out->tier[TWS_TIER_DEVICE].allocator = e->ledger.tier[TWS_TIER_DEVICE].allocator;
  return TWS_OK;
}
