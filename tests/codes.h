/* A reference for quantized gathers: a training step of one rank whose products are with weights that have been codes,
 * as so many ranks would make them of their parts, and whose update is of the exact ones. */
#ifndef TWS_TESTS_CODES_H
#define TWS_TESTS_CODES_H

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include "tests/reference.h"

typedef struct codes {
  tws_training t;
  uint32_t update; /* the first operation behind clipping */
  int64_t ranks;
  float *exact, *coded; /* all parameters */
} codes;

/* Of a block what its 8-bit codes mean. */
static inline void codes_of_block(const float *x, int64_t count, float *y) {
  float largest = 0;
  for (int64_t i = 0; i < count; i++) largest = fmaxf(largest, fabsf(x[i]));
  for (int64_t i = 0; i < count; i++)
    y[i] = largest < 1e-30f ? 0 : nearbyintf(x[i] * (127 / largest)) * (largest / 127);
}

/* Blocks of 2048 elements begin anew with every rank's part of a parameter. What stays whole has no codes. */
static inline void codes_of_all(codes *s) {
  const tws_plan *p = s->t.plan;
  memcpy(s->coded, s->exact, p->buffers[p->parameters].bytes);
  for (uint32_t i = 0; i < p->state->shard_count; i++) {
    const tws_shard *shard = &p->state->shards[i];
    const int64_t count = (int64_t)shard->count, part = (count + s->ranks - 1) / s->ranks;
    if (count <= s->t.config->zero.param_persistence_threshold) continue;
    for (int64_t first = 0; first < count; first += part)
      for (int64_t at = first; at < first + part && at < count; at += 2048) {
        int64_t n = first + part - at < 2048 ? first + part - at : 2048;
        if (n > count - at) n = count - at;
        codes_of_block(s->exact + shard->storage_offset + at, n, s->coded + shard->storage_offset + at);
      }
  }
}

static inline tws_code codes_probe(void *user, uint32_t op, tws_error *err) {
  codes *s = user;
  const tws_plan *p = s->t.plan;
  if (op != s->update) return TWS_OK;
  return tws_executor_put(s->t.executor, 0, p->parameters, 0, s->exact, p->buffers[p->parameters].elements, err);
}

static inline tws_code codes_step(codes *s, int64_t step, tws_step_report *report, tws_error *err) {
  tws_training *t = &s->t;
  const tws_plan *p = t->plan;
  const uint64_t count = p->buffers[p->parameters].elements;
  double metrics[TWS_METRIC_COUNT];
  TWS_TRY(tws_training_begin_step(t, step, report, err));
  TWS_TRY(tws_executor_get(t->executor, 0, p->parameters, 0, s->exact, count, err));
  codes_of_all(s);
  TWS_TRY(tws_executor_put(t->executor, 0, p->parameters, 0, s->coded, count, err));
  TWS_TRY(tws_executor_step(t->executor, 0, step, NULL, codes_probe, s, err));
  TWS_TRY(tws_executor_get(t->executor, 0, p->metrics, 0, metrics, TWS_METRIC_COUNT, err));
  report->evaluated = 0;
  return tws_training_end_step(t, metrics, 1, report, err);
}

/* Trains as the options say, on one rank, in float32. */
static inline tws_code codes_train(const tws_train_options *options, int64_t ranks, tws_error *err) {
  codes s = {.t = {.options = options,
                   .config = options->plan.config,
                   .world = 1,
                   .threads = 1,
                   .ops = tws_real_backend("host")},
             .ranks = ranks};
  TWS_TRY(tws_training_plan(&s.t, err));
  TWS_TRY(tws_training_open_data(&s.t, err));
  TWS_TRY(s.t.ops->create(0, 1, &s.t.backend, err));
  const tws_executor_setup setup = {
      .programs = s.t.programs, .program_count = TWS_PROGRAM_COUNT, .ops = s.t.ops, .backend = s.t.backend};
  TWS_TRY(tws_executor_create(&setup, &s.t.executor, err));
  TWS_TRY(tws_inputs_open(&s.t, err));
  TWS_TRY(tws_training_weights(&s.t, err));
  const tws_plan *p = s.t.plan;
  for (uint32_t op = 0; op < p->op_count; op++)
    if (p->ops[op].kind == TWS_OP_COMPUTE && p->works[p->ops[op].work].code == TWS_KERNEL_CLIP) s.update = op + 1;
  s.exact = calloc(1, p->buffers[p->parameters].bytes);
  s.coded = calloc(1, p->buffers[p->parameters].bytes);
  for (int64_t step = 1; step <= options->steps; step++) {
    tws_step_report report;
    TWS_TRY(codes_step(&s, step, &report, err));
    options->on_step(options->user, &report);
  }
  free(s.exact);
  free(s.coded);
  tws_training_release(&s.t);
  return TWS_OK;
}

#endif
