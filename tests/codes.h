/* References for ZeRO++'s quantized payloads: trainings of one rank.
 *
 * Quantized gathers: products use weights that were quantized as `ranks` ranks would quantize their shards, and the
 * optimizer updates the exact weights. Quantized reductions: the gradients of each micro-batch stand for those of one
 * rank that has the same samples; they are added up as the ranks would add them, within each node first. */
#ifndef TWS_TESTS_CODES_H
#define TWS_TESTS_CODES_H

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include "tests/reference.h"

typedef struct codes {
  tws_training t;
  uint32_t update; /* the first operation after clipping */
  int64_t ranks;
  int64_t near;         /* ranks of a node; 0: weights are quantized instead of gradients */
  float *exact, *coded; /* all parameters */
  float *gradients;     /* gradients of every micro-batch, one after the other, then their sum */
} codes;

/* Computes the values of a block's 8-bit codes. */
static inline void codes_of_block(const float *x, int64_t count, float *y) {
  float largest = 0;
  for (int64_t i = 0; i < count; i++) largest = fmaxf(largest, fabsf(x[i]));
  for (int64_t i = 0; i < count; i++)
    y[i] = largest < 1e-30f ? 0 : nearbyintf(x[i] * (127 / largest)) * (largest / 127);
}

/* Quantizes all weights: blocks of 2048 elements begin anew with every rank's shard of a parameter. Parameters that are
 * not sharded keep their exact values. */
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

/* Adds to y the values that 4-bit codes of x stand for, in blocks of 512 elements. */
static inline void add_few(const float *x, int64_t count, float *y) {
  for (int64_t at = 0; at < count; at += 512) {
    const int64_t end = count - at < 512 ? count : at + 512;
    float largest = 0;
    for (int64_t i = at; i < end; i++) largest = fmaxf(largest, fabsf(x[i]));
    for (int64_t i = at; i < end && largest >= 1e-30f; i++)
      y[i] = fmaf(nearbyintf(x[i] * (7 / largest)), largest / 7, y[i]);
  }
}

/* Reduces the shard of one rank, elements [first, first + count), of all micro-batches' gradients into sum. */
static inline void reduce_part(const codes *s, uint64_t all, uint64_t first, int64_t count, float *sum) {
  const int64_t near = s->near, nodes = s->ranks / near;
  float *of_node = calloc((size_t)count + 1, sizeof *of_node);
  memset(sum, 0, (size_t)count * sizeof *sum);
  for (int64_t node = 0; node < nodes; node++) {
    memset(of_node, 0, (size_t)count * sizeof *of_node);
    for (int64_t i = 0; i < near; i++)
      add_few(s->gradients + (uint64_t)(node * near + i) * all + first, count, of_node);
    if (nodes > 1)
      add_few(of_node, count, sum);
    else
      memcpy(sum, of_node, (size_t)count * sizeof *sum);
  }
  free(of_node);
}

static inline void reduce_all(codes *s) {
  const tws_plan *p = s->t.plan;
  const uint64_t all = p->buffers[p->gradients].elements;
  float *sum = s->gradients + (uint64_t)s->ranks * all;
  memcpy(sum, s->gradients, all * sizeof *sum);
  for (int64_t r = 1; r < s->ranks; r++)
    for (uint64_t i = 0; i < all; i++) sum[i] += s->gradients[(uint64_t)r * all + i];
  for (uint32_t i = 0; i < p->state->shard_count; i++) {
    const tws_shard *shard = &p->state->shards[i];
    const int64_t count = (int64_t)shard->count, part = (count + s->ranks - 1) / s->ranks;
    for (int64_t at = 0; at < count && p->network->params[shard->param].rows > 1; at += part)
      reduce_part(s, all, shard->storage_offset + (uint64_t)at, count - at < part ? count - at : part,
                  sum + shard->storage_offset + at);
  }
}

/* Runs before each operation: saves a micro-batch's gradients after its last operation, and before the optimizer phase
 * replaces the gradients by their reduced sum. */
static inline tws_code hops_probe(codes *s, uint32_t op, tws_error *err) {
  const tws_plan *p = s->t.plan;
  const uint64_t all = p->buffers[p->gradients].elements;
  const int steps = p->ops[op].phase == TWS_PHASE_STEP;
  if (op == 0 || p->ops[op - 1].phase == TWS_PHASE_STEP) return TWS_OK;
  const uint32_t before = p->ops[op - 1].micro_batch;
  if (!steps && p->ops[op].micro_batch == before) return TWS_OK;
  TWS_TRY(tws_executor_get(s->t.executor, 0, p->gradients, 0, s->gradients + before * all, all, err));
  memset(s->gradients + (uint64_t)s->ranks * all, 0, all * sizeof *s->gradients);
  if (steps) reduce_all(s);
  return tws_executor_put(s->t.executor, 0, p->gradients, 0, s->gradients + (uint64_t)s->ranks * all, all, err);
}

static inline tws_code codes_probe(void *user, uint32_t op, tws_error *err) {
  codes *s = user;
  const tws_plan *p = s->t.plan;
  if (s->near) return hops_probe(s, op, err);
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
  if (!s->near) codes_of_all(s);
  if (!s->near) TWS_TRY(tws_executor_put(t->executor, 0, p->parameters, 0, s->coded, count, err));
  TWS_TRY(tws_executor_step(t->executor, 0, step, NULL, codes_probe, s, err));
  TWS_TRY(tws_executor_get(t->executor, 0, p->metrics, 0, metrics, TWS_METRIC_COUNT, err));
  report->evaluated = 0;
  return tws_training_end_step(t, metrics, 1, report, err);
}

/* Trains as the options say, on one rank, in float32. */
static inline tws_code codes_train(const tws_train_options *options, int64_t ranks, int64_t near, tws_error *err) {
  codes s = {.t = reference_of(options, options->plan.config), .ranks = ranks, .near = near};
  TWS_TRY(reference_begin(&s.t, &s.update, err));
  const tws_plan *p = s.t.plan;
  s.exact = calloc(1, p->buffers[p->parameters].bytes);
  s.coded = calloc(1, p->buffers[p->parameters].bytes);
  s.gradients = calloc((size_t)ranks + 1, p->buffers[p->gradients].bytes);
  for (int64_t step = 1; step <= options->steps; step++) {
    tws_step_report report;
    TWS_TRY(codes_step(&s, step, &report, err));
    options->on_step(options->user, &report);
  }
  free(s.exact);
  free(s.coded);
  free(s.gradients);
  tws_training_release(&s.t);
  return TWS_OK;
}

#endif
