/* A reference for updates that are one step late: a training step of one rank that offloads nothing, whose update uses
 * the gradients, hyperparameters and clipping of the step before. */
#ifndef TWS_TESTS_STALE_H
#define TWS_TESTS_STALE_H

#include <stdlib.h>
#include <string.h>
#include "tests/reference.h"

typedef struct stale {
  tws_training t;
  uint32_t update; /* the first operation after clipping */
  int64_t warm_up;
  void *gradients[2]; /* of this step, and what waits */
  float hyper[2][TWS_HYPER_COUNT];
  double metrics[2][TWS_METRIC_COUNT];
} stale;

static inline tws_code stale_move(stale *s, int which, int put, tws_error *err) {
  tws_executor *x = s->t.executor;
  const tws_plan *p = s->t.plan;
  const uint64_t count = p->buffers[p->gradients].elements;
  if (put) {
    TWS_TRY(tws_executor_put(x, 0, p->gradients, 0, s->gradients[which], count, err));
    TWS_TRY(tws_executor_put(x, 0, p->hyper, 0, s->hyper[which], TWS_HYPER_COUNT, err));
    return tws_executor_put(x, 0, p->metrics, 0, s->metrics[which], TWS_METRIC_COUNT, err);
  }
  TWS_TRY(tws_executor_get(x, 0, p->gradients, 0, s->gradients[which], count, err));
  TWS_TRY(tws_executor_get(x, 0, p->hyper, 0, s->hyper[which], TWS_HYPER_COUNT, err));
  return tws_executor_get(x, 0, p->metrics, 0, s->metrics[which], TWS_METRIC_COUNT, err);
}

static inline tws_code stale_probe(void *user, uint32_t op, tws_error *err) {
  stale *s = user;
  if (op != s->update) return TWS_OK;
  TWS_TRY(stale_move(s, 0, 0, err));
  return s->t.counters->steps < s->warm_up ? TWS_OK : stale_move(s, 1, 1, err);
}

static inline tws_code stale_step(stale *s, int64_t step, tws_step_report *report, tws_error *err) {
  tws_training *t = &s->t;
  TWS_TRY(tws_training_begin_step(t, step, report, err));
  TWS_TRY(tws_executor_step(t->executor, 0, step, NULL, stale_probe, s, err));
  if (step > s->warm_up) {
    memcpy(s->gradients[1], s->gradients[0], t->plan->buffers[t->plan->gradients].bytes);
    memcpy(s->hyper[1], s->hyper[0], sizeof s->hyper[0]);
    memcpy(s->metrics[1], s->metrics[0], sizeof s->metrics[0]);
  }
  if (step == t->options->steps && step > s->warm_up) {
    TWS_TRY(stale_move(s, 1, 1, err));
    for (uint32_t op = s->update; op < t->plan->op_count; op++) TWS_TRY(tws_executor_run(t->executor, 0, op, err));
  }
  TWS_TRY(tws_training_end_step(t, s->metrics[0], 1, report, err));
  return reference_evaluate(t, step, report, err);
}

/* Trains one rank as the options say, with updates that are one step late after warm_up steps. */
static inline tws_code stale_train(const tws_train_options *options, int64_t warm_up, tws_error *err) {
  stale s = {.t = reference_of(options, options->plan.config), .warm_up = warm_up};
  TWS_TRY(reference_begin(&s.t, &s.update, err));
  const tws_plan *p = s.t.plan;
  for (int i = 0; i < 2; i++) s.gradients[i] = calloc(1, p->buffers[p->gradients].bytes);
  for (int64_t step = 1; step <= options->steps; step++) {
    tws_step_report report;
    TWS_TRY(stale_step(&s, step, &report, err));
    options->on_step(options->user, &report);
  }
  for (int i = 0; i < 2; i++) free(s.gradients[i]);
  tws_training_release(&s.t);
  return TWS_OK;
}

#endif
