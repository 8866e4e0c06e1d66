/* Evaluation computes the loss of other data with the current weights. It is a program of its own over the state of the
 * training. */
#include <math.h>
#include "real/train_internal.h"

tws_code tws_evaluation_open(tws_training *t, tws_error *err) {
  const tws_config *c = t->config;
  if (!t->options->eval_data) return TWS_OK;
  TWS_TRY(tws_objective_open(t->options->plan.network, t->options->eval_data, c->sequence_length, c->train_batch_size,
                             (uint64_t)c->seed, &t->eval_data, err));
  const int64_t there = (int64_t)t->eval_data.samples / c->train_batch_size, asked = t->options->eval_steps;
  t->eval_batches = asked > 0 && asked < there ? asked : there;
  if (asked > there && t->rank == 0)
    tws_log_write(t->options->log, TWS_LOG_WARNING,
                  "%s has %ld batches of %ld samples: an evaluation takes these, not %ld", t->options->eval_data,
                  (long)there, (long)c->train_batch_size, (long)asked);
  return TWS_OK;
}

int tws_evaluation_is_due(const tws_training *t, int64_t step) {
  const int64_t every = t->options->eval_every;
  return t->evaluation && (step == t->options->steps || (every > 0 && step % every == 0));
}

tws_code tws_evaluation_put(tws_training *t, const tws_data *data, int64_t batch, tws_error *err) {
  const tws_plan *plan = t->evaluation;
  const float hyper[TWS_HYPER_COUNT] = {0};
  TWS_TRY(tws_training_put_inputs(t, TWS_PROGRAM_EVALUATE, data, batch, err));
  TWS_TRY(tws_executor_put(t->executor, TWS_PROGRAM_EVALUATE, plan->hyper, 0, hyper, TWS_HYPER_COUNT, err));
  return tws_executor_zero(t->executor, TWS_PROGRAM_EVALUATE, plan->metrics, err);
}

tws_code tws_evaluation_add(tws_training *t, tws_evaluation_sum *sum, tws_error *err) {
  double metrics[TWS_METRIC_COUNT];
  TWS_TRY(
      tws_executor_get(t->executor, TWS_PROGRAM_EVALUATE, t->evaluation->metrics, 0, metrics, TWS_METRIC_COUNT, err));
  const uint32_t losses = tws_network_losses(t->evaluation->network);
  for (uint32_t h = 0; h < losses; h++) {
    const double *head = metrics + (losses > 1 ? TWS_METRIC_HEADS + 2 * h : TWS_METRIC_LOSS);
    const double kept = 1 - head[1]; /* share of the tokens whose target counts */
    sum->loss[h] += head[0] * kept;
    sum->counted[h] += kept;
  }
  return TWS_OK;
}

tws_code tws_evaluation_mean(const tws_evaluation_sum *sum, double *loss, tws_error *err) {
  *loss = 0;
  for (int h = 0; h < TWS_LOSS_HEADS; h++) *loss += sum->counted[h] > 0 ? sum->loss[h] / sum->counted[h] : 0;
  if (isfinite(*loss)) return TWS_OK;
  return tws_fail(err, TWS_RANK, "lower the learning rate, or look for bad data in --eval-data",
                  "the evaluation's loss is %g", *loss);
}

/* Called while a batch runs: prefetches the inputs of the next batch, or of the step that follows the evaluation. */
static tws_code put_following(tws_training *t, int64_t step, int64_t batch, tws_error *err) {
  if (batch + 1 < t->eval_batches) return tws_training_prefetch_inputs(t, &t->eval_data, batch + 1, err);
  return step < t->options->steps ? tws_training_prefetch_inputs(t, &t->data, step, err) : TWS_OK;
}

tws_code tws_evaluation_run(tws_training *t, int64_t step, double *loss, double *seconds, tws_error *err) {
  tws_evaluation_sum sum = {0};
  const double start = tws_clock_s();
  for (int64_t batch = 0; batch < t->eval_batches; batch++) {
    tws_training_at(t, step, "reading a batch to evaluate", TWS_PHASE_ALONE);
    TWS_TRY(tws_evaluation_put(t, &t->eval_data, batch, err));
    tws_training_at(t, step, "meeting the others for an evaluation", TWS_PHASE_MEETS);
    TWS_TRY(tws_comm_barrier(t->comm, err));
    tws_watchdog_begin(t->watchdog, step);
    TWS_TRY(tws_executor_start(t->executor, TWS_PROGRAM_EVALUATE, step, NULL, NULL, NULL, err));
    TWS_TRY(put_following(t, step, batch, err));
    TWS_TRY(tws_executor_finish(t->executor, TWS_PROGRAM_EVALUATE, NULL, err));
    tws_training_at(t, step, "reading what the evaluation computed", TWS_PHASE_ALONE);
    TWS_TRY(tws_evaluation_add(t, &sum, err));
  }
  *seconds = tws_clock_s() - start;
  return tws_evaluation_mean(&sum, loss, err);
}
