/* A step in parts: the operations of the plan of a training step, split before the first backward operation of a
 * micro-batch, the first operation of the next micro-batch and the first operation of the optimizer. The operations run
 * in the order of a whole step, so that all values are the same. */
#include <string.h>

#include "base/memory.h"
#include "real/engine_internal.h"

/* ---- the operations before which the plan is split ---- */

static int is_backward(const tws_op *o) {
  return o->phase == TWS_PHASE_BACKWARD || o->phase == TWS_PHASE_RECOMPUTE;
}

static uint32_t end_of_forward(const tws_plan *plan, uint32_t from, int64_t micro) {
  uint32_t i = from;
  while (i < plan->op_count && !(is_backward(&plan->ops[i]) && plan->ops[i].micro_batch == (uint32_t)micro)) i++;
  return i;
}

static int is_norm(const tws_plan *plan, uint32_t op) {
  const tws_op *o = &plan->ops[op];
  return o->kind == TWS_OP_COMPUTE && plan->works[o->work].code == TWS_KERNEL_SQUARED_NORM &&
         op >= plan->previous_step_ops;
}

/* Returns the index of the first operation that reads complete gradients, for their norm or for an update; without such
 * an operation, of the first one of the optimizer phase. */
static uint32_t start_of_optimizer(const tws_plan *plan) {
  uint32_t first = plan->op_count;
  for (uint32_t i = 0; i < plan->update_count; i++)
    if (plan->updates[i].op >= plan->previous_step_ops && plan->updates[i].op < first) first = plan->updates[i].op;
  for (uint32_t i = 0; i < first; i++)
    if (is_norm(plan, i)) first = i;
  for (uint32_t i = 0; first == plan->op_count && i < plan->op_count; i++)
    if (tws_op_in_optimizer_phase(plan, i)) first = i;
  return first;
}

static uint32_t end_of_backward(const tws_plan *plan, uint32_t from, int64_t micro) {
  uint32_t i = from;
  if (micro + 1 == plan->accumulation_steps) {
    const uint32_t optimizer = start_of_optimizer(plan);
    return optimizer > from ? optimizer : from;
  }
  while (i < plan->op_count &&
         !(plan->ops[i].phase == TWS_PHASE_FORWARD && plan->ops[i].micro_batch == (uint32_t)(micro + 1)))
    i++;
  return i;
}

/* Returns 1 if operations [from, end) write a part of a range of a buffer. */
static int is_written(const tws_plan *plan, uint32_t from, uint32_t end, const tws_operand *range) {
  for (uint32_t i = from; i < end; i++)
    for (uint32_t k = 0; k < plan->ops[i].operand_count; k++) {
      const tws_operand *o = &plan->operands[plan->ops[i].operand_first + k];
      if (o->buffer == range->buffer && (o->access & TWS_WRITE) && o->offset < range->offset + range->count &&
          range->offset < o->offset + o->count)
        return 1;
    }
  return 0;
}

tws_code tws_engine_has_gradients(const tws_engine *e, tws_error *err) {
  const tws_plan *plan = e->t.plan;
  const uint32_t cut = start_of_optimizer(plan);
  int there = plan->update_count > 0 && plan->previous_step_ops == 0 && !e->t.programs[TWS_PROGRAM_APPLY];
  for (uint32_t i = 0; i < plan->update_count && there; i++) {
    const tws_plan_update *u = &plan->updates[i];
    there = !is_written(plan, cut, u->op,
                        &plan->operands[plan->ops[u->op].operand_first + u->gradient]);
  }
  if (!there)
    return tws_fail(err, TWS_UNSUPPORTED, "turn off twinspeed.delayed_update and ZenFlow to read them",
                    "the optimizer of this job updates with gradients that are not complete before it begins");
  if (e->micro_state == TWS_MICRO_STEP && tws_engine_is_boundary(e)) return TWS_OK;
  return tws_fail(err, TWS_USAGE, "call forward() and backward() for each micro-batch, and read them before step()",
                  "gradients are complete between the backward() of the last micro-batch and step()");
}

/* ---- the parts ---- */

int tws_engine_is_boundary(const tws_engine *e) {
  return e->micro + 1 == e->t.plan->accumulation_steps;
}

void tws_engine_forget_step(tws_engine *e) {
  e->micro_state = TWS_MICRO_FORWARD;
  e->micro = 0;
  e->next = 0;
  e->t.batch = NULL;
}

static tws_code check_order(const tws_engine *e, tws_micro_state wanted, tws_error *err) {
  static const char *const names[] = {"forward()", "backward()", "step()"};
  if (e->failed) return tws_engine_ready(e, err);
  if (e->t.plan->stages > 1)
    return tws_fail(err, TWS_UNSUPPORTED, "call train_batch()",
                    "only train_batch() is accessible in pipeline mode: a stage runs forward and backward passes of "
                    "several micro-batches in turn");
  if (e->t.plan->optimizer_phases > 1)
    return tws_fail(err, TWS_UNSUPPORTED, "call train_batch()",
                    "only train_batch() trains networks alternately: a step has forward and backward passes between "
                    "its updates");
  if (e->micro_state == wanted) return TWS_OK;
  return tws_fail(err, TWS_USAGE, "for each micro-batch call forward(), backward() and step()",
                  "%s was called, and %s is next", names[wanted], names[e->micro_state]);
}

/* Copies the tokens of a micro-batch to their position in the batch of the step. */
static tws_code take_micro_batch(tws_engine *e, const tws_engine_batch *batch, tws_error *err) {
  const tws_config *c = e->t.config;
  const size_t samples = (size_t)c->train_batch_size, row = (size_t)c->sequence_length;
  const size_t part = samples / (size_t)c->accumulation_steps, at = (size_t)e->micro * part;
  if (!batch) return tws_engine_choose_batch(e, NULL, e->options.data, err);
  if (!e->tokens) e->tokens = tws_calloc(samples * (row + 1), sizeof *e->tokens);
  if (!e->targets) e->targets = tws_calloc(samples * row, sizeof *e->targets);
  if (!e->tokens || !e->targets) return tws_fail(err, TWS_MEMORY, NULL, "no memory for a batch");
  if (!batch->tokens) return tws_fail(err, TWS_USAGE, NULL, "the batch has no tokens");
  if (e->micro == 0) e->has_targets = batch->targets != NULL;
  if (e->has_targets != (batch->targets != NULL))
    return tws_fail(err, TWS_USAGE, "give targets for all micro-batches of a step, or for none",
                    "some micro-batches of the step have targets");
  if (e->micro == 0) memset(e->tokens, 0, samples * (row + 1) * sizeof *e->tokens);
  memcpy(e->tokens + at * (row + 1), batch->tokens, part * (row + 1) * sizeof *e->tokens);
  if (e->has_targets) memcpy(e->targets + at * row, batch->targets, part * row * sizeof *e->targets);
  const tws_engine_batch whole = {.tokens = e->tokens, .targets = e->has_targets ? e->targets : NULL};
  return tws_engine_choose_batch(e, &whole, NULL, err);
}

static tws_code run_part(tws_engine *e, uint32_t end, tws_error *err) {
  tws_training *t = &e->t;
  const int64_t step = t->counters->steps + 1;
  const tws_code code = tws_executor_part(t->executor, TWS_PROGRAM_TRAIN, e->next, end, step, err);
  e->next = end;
  e->failed = code != TWS_OK;
  return code == TWS_OK ? code : tws_fail_in(err, code, "rank %d, step %lld", t->rank, (long long)step);
}

/* Sums over all ranks the increases of the metrics since the last micro-batch. */
static tws_code sum_metrics(tws_engine *e, double sum[TWS_METRIC_COUNT], tws_error *err) {
  tws_training *t = &e->t;
  double now[TWS_METRIC_COUNT], added[TWS_METRIC_COUNT];
  unsigned char *all = NULL;
  uint64_t *offset = NULL, bytes = sizeof now;
  void *data = sum;
  TWS_TRY(tws_training_read_metrics(t, now, err));
  for (int i = 0; i < TWS_METRIC_COUNT; i++) added[i] = now[i] - e->loss_sum[i];
  memcpy(e->loss_sum, now, sizeof now);
  TWS_TRY(tws_comm_gather(t->comm, added, sizeof added, &all, &offset, err));
  memset(sum, 0, sizeof now);
  for (int r = 0; t->rank == 0 && r < t->world; r++) {
    memcpy(added, all + offset[r], sizeof added);
    for (int i = 0; i < TWS_METRIC_COUNT; i++) sum[i] += added[i];
  }
  tws_free(all);
  tws_free(offset);
  if (t->world == 1) return TWS_OK;
  TWS_TRY(tws_mpi_broadcast(t->mpi, &data, &bytes, err));
  if (data == sum) return TWS_OK;
  memcpy(sum, data, sizeof now);
  tws_free(data);
  return TWS_OK;
}

/* Computes the mean loss of the micro-batch whose forward pass has just run, by the formula that is used for a whole
 * step. */
static tws_code read_loss(tws_engine *e, double *loss, tws_error *err) {
  const uint32_t losses = tws_network_losses(e->t.plan->network);
  const double micro_batches = (double)e->t.plan->accumulation_steps;
  double sum[TWS_METRIC_COUNT];
  *loss = 0;
  TWS_TRY(sum_metrics(e, sum, err));
  for (uint32_t h = 0; h < losses; h++) {
    const double *head = sum + (losses > 1 ? TWS_METRIC_HEADS + 2 * h : TWS_METRIC_LOSS);
    const double kept = 1 - micro_batches * head[1];
    *loss += kept > 0 ? micro_batches * head[0] / kept : 0;
  }
  return TWS_OK;
}

static tws_code begin_micro_batch(tws_engine *e, tws_error *err) {
  tws_training *t = &e->t;
  const int64_t step = t->counters->steps + 1;
  if (e->micro > 0) return t->batch ? tws_training_put_inputs(t, TWS_PROGRAM_TRAIN, t->batch, step - 1, err) : TWS_OK;
  t->step_ended_s = tws_clock_s();
  memset(e->loss_sum, 0, sizeof e->loss_sum);
  TWS_TRY(tws_training_meet(t, step, err));
  return tws_training_begin_step(t, step, &e->report, err);
}

tws_code tws_engine_forward(tws_engine *e, const tws_engine_batch *batch, double *loss, tws_error *err) {
  const tws_plan *plan = e->t.plan;
  *loss = 0;
  TWS_TRY(check_order(e, TWS_MICRO_FORWARD, err));
  TWS_TRY(take_micro_batch(e, batch, err));
  TWS_TRY(begin_micro_batch(e, err));
  TWS_TRY(run_part(e, end_of_forward(plan, e->next, e->micro), err));
  e->micro_state = TWS_MICRO_BACKWARD;
  return read_loss(e, loss, err);
}

tws_code tws_engine_backward(tws_engine *e, tws_error *err) {
  TWS_TRY(check_order(e, TWS_MICRO_BACKWARD, err));
  TWS_TRY(run_part(e, end_of_backward(e->t.plan, e->next, e->micro), err));
  e->micro_state = TWS_MICRO_STEP;
  return TWS_OK;
}

tws_code tws_engine_step(tws_engine *e, tws_step_report *report, tws_error *err) {
  tws_training *t = &e->t;
  const int64_t step = t->counters->steps + 1;
  *report = (tws_step_report){0};
  TWS_TRY(check_order(e, TWS_MICRO_STEP, err));
  if (!tws_engine_is_boundary(e)) {
    e->micro++;
    e->micro_state = TWS_MICRO_FORWARD;
    return TWS_OK;
  }
  TWS_TRY(run_part(e, t->plan->op_count, err));
  *report = e->report;
  const tws_code code = tws_training_complete(t, step, report, err);
  tws_engine_forget_step(e);
  e->failed = code != TWS_OK;
  if (code != TWS_OK) return tws_fail_in(err, code, "rank %d, step %lld", t->rank, (long long)step);
  tws_step_report_finish(t, NULL, report);
  return TWS_OK;
}
