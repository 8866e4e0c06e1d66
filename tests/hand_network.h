/* Networks that a test writes down module by module: planned, verified, laid out, costed, simulated, executed on the
 * host and differentiated against finite differences. */
#ifndef TESTS_HAND_NETWORK_H
#define TESTS_HAND_NETWORK_H

#include <check.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/random.h"
#include "estimators/estimators.h"
#include "models/network/build.h"
#include "plan/hyper.h"
#include "real/executor.h"
#include "real/init.h"
#include "tests/configs.h"
#include "tests/job_seconds.h"

const tws_backend_ops *tws_host_backend(void);

#define HAND_OK(call) ck_assert_msg((call) == TWS_OK, "%s", err.message)

typedef struct hand_network {
  tws_network *net;
  tws_network_builder b;
} hand_network;

static inline void hand_network_begin(hand_network *h, int64_t vocabulary, int64_t modules) {
  memset(h, 0, sizeof *h);
  HAND_OK(tws_network_create("by hand", &h->net, &err));
  h->b.net = h->net;
  h->net->vocabulary = h->net->padded_vocabulary = vocabulary;
  HAND_OK(tws_build_reserve(&h->b, modules, &err));
}

/* ---- a job of one rank ---- */

typedef struct hand_job {
  tws_config *config;
  tws_plan *train, *evaluate;
  const tws_plan *programs[2];
  tws_backend *backend;
  tws_executor *executor;
  float *weights, *gradients; /* one parameter after another */
  int64_t step;               /* number of steps before the current one, from which its random bits follow */
  uint64_t *first;            /* per parameter */
  const void *input[TWS_NETWORK_INPUTS];
} hand_job;

static inline tws_plan *hand_plan_of(const tws_network *network, const tws_config *config, tws_program program,
                                     tws_state *state) {
  tws_plan_request request = {.network = network, .config = config, .program = program, .state = state, .threads = 1};
  tws_plan *plan = NULL;
  HAND_OK(tws_plan_topology(config, 1, &request.topology, &err));
  HAND_OK(tws_plan_build(&request, &plan, &err));
  HAND_OK(tws_plan_verify(plan, &err));
  return plan;
}

/* Checks that all readers agree on the plan: the ledger has the bytes of the arena, and the longest path takes as long
 * as the simulation. */
static inline void hand_plan_read(const tws_plan *plan) {
  tws_ledger ledger;
  HAND_OK(tws_ledger_read(plan, &ledger, &err));
  ck_assert_uint_eq(ledger.tier[TWS_TIER_DEVICE].arena_bytes, tws_plan_bytes(plan, TWS_TIER_DEVICE));
  job_seconds(&plan, 1);
}

/* Copies an entry of the state, parameter by parameter, from the executor's buffer to values (put 0) or from values to
 * the buffer (put 1). */
static inline void hand_move(hand_job *job, uint32_t buffer, const char *entry, float *values, int put) {
  const tws_state *state = job->train->state;
  const uint32_t at = tws_state_find(state, entry);
  ck_assert_uint_ne(at, TWS_NONE);
  tws_state_part part;
  for (uint32_t shard = 0; tws_state_next_part(state, at, &shard, &part);) {
    float *with = values + job->first[part.param] + part.param_first;
    if (put)
      HAND_OK(tws_executor_put(job->executor, 0, buffer, part.first, with, part.count, &err));
    else
      HAND_OK(tws_executor_get(job->executor, 0, buffer, part.first, with, part.count, &err));
  }
}

static inline const char *hand_entry_name(const hand_job *job, uint32_t buffer) {
  return job->train->buffers[buffer].name;
}

/* Resets the running statistics to their values at the beginning of a job. */
static inline void hand_reset_running(hand_job *job) {
  const uint32_t buffer = job->train->running;
  if (buffer == TWS_NONE) return;
  float *values = calloc(job->train->buffers[buffer].elements, sizeof *values);
  tws_init_running(job->train, values);
  HAND_OK(tws_executor_put(job->executor, 0, buffer, 0, values, job->train->buffers[buffer].elements, &err));
  free(values);
}

/* Plans a job of one rank for the network and draws its weights by the network's initialisation rules, or near 1 where
 * a rule says so. */
static inline void hand_job_begin(hand_job *job, const tws_network *network, const char *config) {
  memset(job, 0, sizeof *job);
  ck_assert_msg(resolve(config, 1, network->hidden, &job->config) == TWS_OK, "%s: %s", config, err.message);
  job->train = hand_plan_of(network, job->config, TWS_PROGRAM_TRAIN, NULL);
  job->evaluate = hand_plan_of(network, job->config, TWS_PROGRAM_EVALUATE, job->train->state);
  hand_plan_read(job->train);
  hand_plan_read(job->evaluate);
  HAND_OK(tws_host_backend()->create(0, 1, &job->backend, &err));
  job->programs[TWS_PROGRAM_TRAIN] = job->train;
  job->programs[TWS_PROGRAM_EVALUATE] = job->evaluate;
  const tws_executor_setup setup = {
      .programs = job->programs, .program_count = 2, .ops = tws_host_backend(), .backend = job->backend};
  HAND_OK(tws_executor_create(&setup, &job->executor, &err));
  job->first = calloc(network->param_count + 1u, sizeof *job->first);
  for (uint32_t p = 0; p < network->param_count; p++)
    job->first[p + 1] = job->first[p] + (uint64_t)tws_param_numel(&network->params[p]);
  hand_reset_running(job);
  const uint64_t total = job->first[network->param_count];
  job->weights = calloc(total + 1, sizeof *job->weights);
  job->gradients = calloc(total + 1, sizeof *job->gradients);
  for (uint32_t p = 0; p < network->param_count; p++)
    for (uint64_t i = job->first[p]; i < job->first[p + 1]; i++) {
      const tws_param *param = &network->params[p];
      const double spread = param->init_std > 0 ? param->init_std : 0.2;
      job->weights[i] = (float)(param->init_value + spread * tws_random_normal(5, p, i));
    }
}

static inline void hand_job_end(hand_job *job) {
  tws_executor_destroy(job->executor);
  tws_host_backend()->destroy(job->backend);
  tws_plan_destroy(job->evaluate);
  tws_plan_destroy(job->train);
  tws_config_destroy(job->config);
  free(job->weights);
  free(job->gradients);
  free(job->first);
}

/* Sets the data of an input. Each step copies it anew, because the programs share the memory of inputs. */
static inline void hand_input(hand_job *job, uint32_t input, const void *data) {
  job->input[input] = data;
}

/* Returns the loss with these weights, including the auxiliary loss of routers. With train 1 the job's gradients are
 * set, too. */
static inline double hand_loss(hand_job *job, const float *weights, int train) {
  const tws_plan *plan = train ? job->train : job->evaluate;
  const int program = train ? TWS_PROGRAM_TRAIN : TWS_PROGRAM_EVALUATE;
  float hyper[TWS_HYPER_COUNT];
  double metrics[TWS_METRIC_COUNT] = {0};
  float *copy = malloc(sizeof *copy * job->first[job->train->network->param_count]);
  memcpy(copy, weights, sizeof *copy * job->first[job->train->network->param_count]);
  hand_move(job, job->train->parameters, hand_entry_name(job, job->train->parameters), copy, 1);
  free(copy);
  tws_hyper_fill(job->config, job->step + 1, 1, hyper);
  for (uint32_t i = 0; i < plan->network->input_count; i++) {
    const uint64_t count = plan->buffers[plan->input[i]].elements;
    HAND_OK(tws_executor_put(job->executor, program, plan->input[i], 0, job->input[i], count, &err));
  }
  HAND_OK(tws_executor_put(job->executor, program, plan->hyper, 0, hyper, TWS_HYPER_COUNT, &err));
  HAND_OK(tws_executor_put(job->executor, program, plan->metrics, 0, metrics, TWS_METRIC_COUNT, &err));
  if (train) { /* AdamW's first moment begins at 0 and is (1 - beta1) x the gradient after the step */
    const uint32_t moment = plan->optimizer_state[0];
    float *zeros = calloc(plan->buffers[moment].elements, sizeof *zeros);
    HAND_OK(tws_executor_put(job->executor, 0, moment, 0, zeros, plan->buffers[moment].elements, &err));
    free(zeros);
  }
  HAND_OK(tws_executor_step(job->executor, program, 1, NULL, NULL, NULL, &err));
  HAND_OK(tws_executor_get(job->executor, program, plan->metrics, 0, metrics, TWS_METRIC_COUNT, &err));
  if (train) {
    const uint32_t moment = plan->optimizer_state[0];
    hand_move(job, moment, hand_entry_name(job, moment), job->gradients, 0);
    for (uint64_t i = 0; i < job->first[plan->network->param_count]; i++)
      job->gradients[i] /= (float)(1 - job->config->beta1);
  }
  return metrics[TWS_METRIC_LOSS] + metrics[TWS_METRIC_AUXILIARY];
}

/* Returns 1 if training differs from an evaluation: training normalises by batch statistics, or has dropout. */
static inline int hand_trains_apart(const hand_job *job) {
  const tws_network *network = job->train->network;
  int apart = job->train->running != TWS_NONE;
  for (uint32_t m = 0; m < network->module_count; m++) apart |= network->modules[m].dropout > 0;
  return apart;
}

/* Returns the slope of the loss along a random direction of parameter p, by its difference over two steps of length
 * h; *expected: the slope by the gradients; *size: the sum of their squares. `moved` has room for all weights. */
static inline double hand_slope(hand_job *job, const float *gradients, uint32_t p, double h, int trains, float *moved,
                                double *expected, double *size) {
  const uint64_t first = job->first[p], count = job->first[p + 1] - first;
  double at[2];
  for (int side = 0; side < 2; side++) {
    memcpy(moved, job->weights, job->first[job->train->network->param_count] * sizeof *moved);
    *expected = *size = 0;
    for (uint64_t i = 0; i < count; i++) {
      const uint64_t e = first + i;
      const double direction = tws_random_normal(9, p, i) / sqrt((double)count);
      moved[e] += (float)((side ? h : -h) * direction);
      *expected += direction * gradients[e];
      *size += (double)gradients[e] * gradients[e];
    }
    at[side] = hand_loss(job, moved, trains);
  }
  return (at[1] - at[0]) / (2 * h);
}

/* Compares the change of the loss along a random direction of each parameter with its gradient: central differences of
 * a step h in float32 have errors of about h^2 and 1e-7 / h, which `noise` allows for where gradients are small. The
 * loss is that of an evaluation where training computes the same. */
static inline void hand_differentiate_by(hand_job *job, double tolerance, double h, double noise) {
  const tws_network *network = job->train->network;
  const uint64_t total = job->first[network->param_count];
  const int trains = hand_trains_apart(job);
  const double loss = hand_loss(job, job->weights, 1), again = hand_loss(job, job->weights, trains);
  ck_assert_double_eq_tol(loss, again, 1e-6 * fabs(loss));
  float *moved = malloc(total * sizeof *moved), *gradients = malloc(total * sizeof *gradients);
  memcpy(gradients, job->gradients, total * sizeof *gradients);
  for (uint32_t p = 0; p < network->param_count; p++) {
    const uint64_t count = job->first[p + 1] - job->first[p];
    double found = 0, expected = 0, size = 0;
    /* the loss is rounded to float32, which matters less in a larger step; curvature and kinks matter more there */
    for (int larger = 0; larger < 2; larger++) {
      const double step = larger ? 4 * h : h;
      found = hand_slope(job, gradients, p, step, trains, moved, &expected, &size);
      const double scale = sqrt(size / (double)count) + 1e-4;
      if (fabs(found - expected) < tolerance * (fabs(expected) + scale) + noise) break;
      ck_assert_msg(!larger, "%s: the loss changes by %g along a direction, its gradient says %g",
                    network->params[p].name, found, expected);
    }
    ck_assert_msg(size > 0, "%s has no gradient", network->params[p].name);
  }
  free(gradients);
  free(moved);
}

static inline void hand_differentiate(hand_job *job, double tolerance) {
  hand_differentiate_by(job, tolerance, 1e-3, 0);
}

#endif
