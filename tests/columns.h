/* A reference for updates in two parts (plan/zenflow.c): the gradients come from a training of one rank that offloads
 * nothing, and its weights are replaced after each step by those of plain loops in float64 over each matrix. */
#ifndef TWS_TESTS_COLUMNS_H
#define TWS_TESTS_COLUMNS_H

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include "checkpoint/read.h"
#include "tests/reference.h"

/* The interval that ends with a step. */
typedef struct columns_interval {
  int64_t steps; /* 0: none ends */
  int64_t own;   /* number of the host's update */
  int applies;   /* 0: the only step of the interval was skipped */
  int selects;
} columns_interval;

typedef struct columns_reference {
  tws_training t;
  const tws_config *config; /* with the section zenflow */
  uint32_t update;          /* the first operation after clipping */
  uint64_t count;
  double *weight, *m, *v, *gradient, *sum, clip;
  uint8_t *fast; /* the device updates it */
  void *raw;
  columns_interval late; /* the interval whose host update runs only in the next step; late.steps 0: there is none */
  int64_t late_update;   /* the number of updates at its end */
  /* with intervals of measured length: for each matrix the sums of |gradient| over other columns since the host's last
   * update, and over selected ones since their selection; steps and updates since then, and measured steps */
  double (*sizes)[2];
  int64_t waiting, updates, selected_steps, selected_updates, measured;
} columns_reference;

/* Applies AdamW to the elements that the device updates (fast 1), or to all others (fast 0). */
static inline void columns_adamw(columns_reference *r, int fast, const double *gradient, double scale, int64_t update,
                                 int64_t own) {
  const tws_config *c = r->config;
  const double lr = tws_config_lr(c, update - 1), bias1 = 1 - pow(c->beta1, (double)own),
               bias2 = 1 - pow(c->beta2, (double)own);
  for (uint64_t i = 0; i < r->count; i++) {
    if (r->fast[i] != fast) continue;
    const double g = scale * gradient[i];
    r->m[i] = c->beta1 * r->m[i] + (1 - c->beta1) * g;
    r->v[i] = c->beta2 * r->v[i] + (1 - c->beta2) * g * g;
    r->weight[i] -= lr * (r->m[i] / bias1 / (sqrt(r->v[i] / bias2) + c->epsilon) + c->weight_decay * r->weight[i]);
  }
}

/* Chooses the elements that the device updates: all vectors, and of each matrix the columns with the largest sums. */
static inline void columns_choose(columns_reference *r) {
  const tws_state *state = r->t.plan->state;
  for (uint32_t s = 0; s < state->shard_count; s++) {
    const tws_param *p = &r->t.plan->network->params[state->shards[s].param];
    const uint64_t at = state->shards[s].storage_offset;
    const int64_t columns = p->columns, chosen = (int64_t)(r->config->zenflow.topk_ratio * (double)columns);
    double *size = calloc((size_t)columns, sizeof *size);
    for (int64_t i = 0; i < p->rows * columns; i++) size[i % columns] += fabs(r->sum[at + (uint64_t)i]);
    for (int64_t c = 0; c < columns; c++) {
      int64_t before = 0;
      for (int64_t k = 0; k < columns; k++) before += size[k] > size[c] || (size[k] == size[c] && k < c);
      for (int64_t row = 0; row < p->rows; row++)
        r->fast[at + (uint64_t)(row * columns + c)] = p->rows == 1 || before < chosen;
    }
    free(size);
  }
}

static inline tws_code columns_probe(void *user, uint32_t op, tws_error *err) {
  columns_reference *r = user;
  const tws_plan *p = r->t.plan;
  if (op != r->update) return TWS_OK;
  TWS_TRY(tws_executor_get(r->t.executor, 0, p->gradients, 0, r->raw, r->count, err));
  tws_convert_elements((tws_dtype)p->buffers[p->gradients].dtype, r->raw, TWS_F64, r->gradient, r->count);
  return tws_executor_get(r->t.executor, 0, p->metrics, TWS_METRIC_CLIP, &r->clip, 1, err);
}

/* ---- intervals of measured length ---- */

/* Returns 1 for a matrix with selected and other columns. */
static inline int columns_compares(const columns_reference *r, uint32_t shard) {
  const tws_param *p = &r->t.plan->network->params[r->t.plan->state->shards[shard].param];
  const int64_t chosen = (int64_t)(r->config->zenflow.topk_ratio * (double)p->columns);
  return p->rows > 1 && chosen > 0 && chosen < p->columns;
}

static inline void columns_measure(columns_reference *r) {
  const tws_state *state = r->t.plan->state;
  for (uint32_t s = 0; s < state->shard_count; s++)
    for (uint64_t i = 0; columns_compares(r, s) && i < state->shards[s].count; i++) {
      const uint64_t at = state->shards[s].storage_offset + i;
      r->sizes[s][r->fast[at]] += r->clip * fabs(r->gradient[at]);
    }
  r->measured++;
}

/* Returns 1 if in enough matrices an average other column waits with as much gradient as a selected one has in a
 * step. */
static inline int columns_wait_long(const columns_reference *r) {
  const double k = r->config->zenflow.topk_ratio;
  int large = 0, matrices = 0;
  for (uint32_t s = 0; s < r->t.plan->state->shard_count; s++) {
    if (!columns_compares(r, s)) continue;
    matrices++;
    large += r->sizes[s][0] / (1 - k) >= r->sizes[s][1] / k / (double)r->measured;
  }
  return large >= r->config->zenflow.auto_ratio * matrices;
}

/* Returns the interval that ends with this step of a training whose gradients decide. */
static inline columns_interval columns_measured(columns_reference *r, int64_t past_warm_up) {
  const int64_t steps = tws_zenflow_select_steps(r->config);
  columns_interval ended = {.steps = ++r->waiting, .applies = r->waiting > 1 || r->clip != 0};
  r->selected_steps++;
  if (past_warm_up > 0 && r->clip != 0) columns_measure(r);
  const int selects = steps > 0 && r->selected_steps >= steps;
  if (past_warm_up > 0 && !selects && r->waiting < 16 && !(r->clip != 0 && columns_wait_long(r)))
    return (columns_interval){0};
  r->waiting = 0;
  ended.own = ++r->updates;
  r->selected_updates++;
  ended.selects = past_warm_up <= 0 ? past_warm_up == 0 : steps > 0 ? selects : r->selected_updates == 4;
  for (uint32_t s = 0; s < r->t.plan->state->shard_count; s++) {
    r->sizes[s][0] = 0;
    if (ended.selects) r->sizes[s][1] = 0;
  }
  if (ended.selects) r->selected_steps = r->selected_updates = r->measured = 0;
  return ended;
}

/* ---- steps ---- */

static inline columns_interval columns_end(columns_reference *r, int64_t step) {
  const int64_t warm_up = tws_zenflow_warm_up(r->config), length = tws_zenflow_update_interval(r->config);
  const int64_t past_warm_up = step - warm_up;
  if (tws_zenflow_measures(r->config)) return columns_measured(r, past_warm_up);
  if (past_warm_up > 0 && past_warm_up % length != 0) return (columns_interval){0};
  const int64_t steps = past_warm_up <= 0 ? 1 : length;
  return (columns_interval){.steps = steps,
                            .own = past_warm_up <= 0 ? step : warm_up + past_warm_up / length,
                            .applies = steps > 1 || r->clip != 0,
                            .selects = past_warm_up >= 0 && past_warm_up % tws_zenflow_select_interval(r->config) == 0};
}

/* Applies the host's update after an interval. */
static inline void columns_apply(columns_reference *r, const columns_interval *ended, int64_t update) {
  if (ended->applies) columns_adamw(r, 0, r->sum, 1.0 / (double)ended->steps, update, ended->own);
  if (ended->selects) columns_choose(r);
  memset(r->sum, 0, r->count * sizeof *r->sum);
}

/* Updates in the order of the real step: the device's columns, after an interval also the host's columns, then the
 * choice of columns. With overlap_step the last two run after the device's update of the next step. */
static inline void columns_update(columns_reference *r, int64_t step) {
  const int64_t update = step - r->t.counters->skipped, past_warm_up = step - tws_zenflow_warm_up(r->config);
  const columns_interval ended = columns_end(r, step);
  if (r->clip != 0) columns_adamw(r, 1, r->gradient, r->clip, update, update);
  if (r->late.steps > 0) columns_apply(r, &r->late, r->late_update);
  r->late.steps = 0;
  for (uint64_t i = 0; r->clip != 0 && i < r->count; i++) r->sum[i] += r->clip * r->gradient[i];
  if (ended.steps == 0) return;
  if (r->config->zenflow.overlap_step && past_warm_up > 0 && step != r->t.options->steps) {
    r->late = ended;
    r->late_update = update;
  } else {
    columns_apply(r, &ended, update);
  }
}

static inline tws_code columns_step(columns_reference *r, int64_t step, tws_step_report *report, tws_error *err) {
  tws_training *t = &r->t;
  const tws_dtype type = (tws_dtype)t->plan->buffers[t->plan->parameters].dtype;
  double metrics[TWS_METRIC_COUNT];
  TWS_TRY(tws_training_begin_step(t, step, report, err));
  TWS_TRY(tws_executor_step(t->executor, 0, step, NULL, columns_probe, r, err));
  TWS_TRY(tws_training_read_metrics(t, metrics, err));
  TWS_TRY(tws_training_end_step(t, metrics, 1, report, err));
  columns_update(r, step);
  tws_convert_elements(TWS_F64, r->weight, type, r->raw, r->count);
  TWS_TRY(tws_executor_put(t->executor, 0, t->plan->parameters, 0, r->raw, r->count, err));
  return reference_evaluate(t, step, report, err);
}

static inline tws_code columns_begin(columns_reference *r, tws_error *err) {
  tws_training *t = &r->t;
  TWS_TRY(reference_begin(t, &r->update, err));
  const tws_plan *p = t->plan;
  const uint32_t masters = p->master != TWS_NONE ? p->master : p->parameters;
  r->count = p->buffers[masters].elements;
  double **const arrays[] = {&r->weight, &r->m, &r->v, &r->gradient, &r->sum};
  for (size_t i = 0; i < sizeof arrays / sizeof *arrays; i++) *arrays[i] = calloc(r->count, sizeof(double));
  r->fast = calloc(r->count, 1);
  r->raw = calloc(r->count, sizeof(double));
  r->sizes = calloc(p->state->shard_count, sizeof *r->sizes);
  TWS_TRY(tws_executor_get(t->executor, 0, masters, 0, r->raw, r->count, err));
  tws_convert_elements(TWS_F32, r->raw, TWS_F64, r->weight, r->count);
  return TWS_OK;
}

/* Trains one rank as the options say, without offloading: the sections zenflow and offload_optimizer are switched
 * off. */
static inline tws_code columns_train(const tws_train_options *options, tws_error *err) {
  tws_train_options plain = *options;
  tws_config *config;
  TWS_TRY(tws_config_clone(options->plan.config, &config, err));
  config->zenflow.on = 0;
  config->zero.offload_optimizer = 0;
  plain.plan.config = config;
  columns_reference r = {.t = reference_of(&plain, config), .config = options->plan.config};
  TWS_TRY(columns_begin(&r, err));
  for (int64_t step = 1; step <= options->steps; step++) {
    tws_step_report report;
    TWS_TRY(columns_step(&r, step, &report, err));
    options->on_step(options->user, &report);
  }
  double *const arrays[] = {r.weight, r.m, r.v, r.gradient, r.sum};
  for (size_t i = 0; i < sizeof arrays / sizeof *arrays; i++) free(arrays[i]);
  free(r.fast);
  free(r.raw);
  free(r.sizes);
  tws_training_release(&r.t);
  tws_config_destroy(config);
  return TWS_OK;
}

#endif
