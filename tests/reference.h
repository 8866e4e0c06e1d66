/* Shared code of trainings of one rank that are references for others (stale.h, columns.h, codes.h). */
#ifndef TWS_TESTS_REFERENCE_H
#define TWS_TESTS_REFERENCE_H

#include "real/train_internal.h"

/* Returns a training of one rank on the host, as options and configuration say. */
static inline tws_training reference_of(const tws_train_options *options, const tws_config *config) {
  return (tws_training){
      .options = options, .config = config, .world = 1, .threads = 1, .ops = tws_real_backend("host")};
}

/* Plans and loads a training, so that its steps can run; *update: the first operation after clipping. */
static inline tws_code reference_begin(tws_training *t, uint32_t *update, tws_error *err) {
  TWS_TRY(tws_training_plan(t, err));
  TWS_TRY(tws_training_open_data(t, err));
  TWS_TRY(t->ops->create(0, 1, &t->backend, err));
  const tws_executor_setup setup = {
      .programs = t->programs, .program_count = TWS_PROGRAM_COUNT, .ops = t->ops, .backend = t->backend};
  TWS_TRY(tws_executor_create(&setup, &t->executor, err));
  TWS_TRY(tws_inputs_open(t, err));
  TWS_TRY(tws_training_weights(t, err));
  const tws_plan *p = t->plan;
  for (uint32_t op = 0; op < p->op_count; op++)
    if (p->ops[op].kind == TWS_OP_COMPUTE && p->works[p->ops[op].work].code == TWS_KERNEL_CLIP) *update = op + 1;
  return TWS_OK;
}

/* Evaluates after a step, where an evaluation is due, without a wait for other ranks. */
static inline tws_code reference_evaluate(tws_training *t, int64_t step, tws_step_report *report, tws_error *err) {
  report->evaluated = tws_evaluation_is_due(t, step);
  if (!report->evaluated) return TWS_OK;
  tws_evaluation_sum sum = {{0}, {0}};
  for (int64_t batch = 0; batch < t->eval_batches; batch++) {
    TWS_TRY(tws_evaluation_put(t, &t->eval_data, batch, err));
    TWS_TRY(tws_executor_step(t->executor, TWS_PROGRAM_EVALUATE, step, NULL, NULL, NULL, err));
    TWS_TRY(tws_evaluation_add(t, &sum, err));
  }
  return tws_evaluation_mean(&sum, &report->eval_loss, err);
}

#endif
