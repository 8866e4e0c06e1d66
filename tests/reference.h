/* What trainings of one rank share that are references for others (stale.h, columns.h). */
#ifndef TWS_TESTS_REFERENCE_H
#define TWS_TESTS_REFERENCE_H

#include "real/train_internal.h"

/* Behind a step, where one is due; nobody else is waited for. */
static inline tws_code reference_evaluate(tws_training *t, int64_t step, tws_step_report *report, tws_error *err) {
  report->evaluated = tws_evaluation_is_due(t, step);
  if (!report->evaluated) return TWS_OK;
  tws_evaluation_sum sum = {{0}, {0}};
  for (int64_t batch = 0; batch < t->eval_batches; batch++) {
    TWS_TRY(tws_evaluation_put(t, batch, err));
    TWS_TRY(tws_executor_step(t->executor, TWS_PROGRAM_EVALUATE, step, NULL, NULL, NULL, err));
    TWS_TRY(tws_evaluation_add(t, &sum, err));
  }
  return tws_evaluation_mean(&sum, &report->eval_loss, err);
}

#endif
