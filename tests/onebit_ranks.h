/* Optimizers with phases on all ranks of a job in this process: only the operations of the optimizer phase run, on
 * gradients that the test gives. */
#ifndef TESTS_ONEBIT_RANKS_H
#define TESTS_ONEBIT_RANKS_H

#include <check.h>
#include <stdio.h>
#include <stdlib.h>

#include "models/network/build.h"
#include "plan/hyper.h"
#include "plan/phases.h"
#include "real/executor.h"
#include "real/local_comm.h"
#include "tests/configs.h"

const tws_backend_ops *tws_host_backend(void);

enum { ONEBIT_RANKS = 4, ONEBIT_PARAMS = 16 };
#define ONEBIT_OK(call) ck_assert_msg((call) == TWS_OK, "%s", err.message)

typedef struct onebit_rank {
  tws_plan *plan[TWS_PROGRAM_COUNT];
  const tws_plan *programs[TWS_PROGRAM_COUNT];
  tws_executor *executor;
} onebit_rank;

typedef struct onebit_job {
  tws_network *network;
  tws_config *config;
  tws_backend *backend;
  int ranks;
  onebit_rank rank[ONEBIT_RANKS];
  int64_t update;     /* number of updates so far */
  tws_step_kind kind; /* of the last update */
  uint64_t sent;      /* bytes that rank 0 has sent, as the segments of its collectives say */
} onebit_job;

/* Makes a network whose parameters include a table [rows, columns] and biases of these sizes. Without biases its only
 * other parameter is a table of 2 positions. */
static inline tws_network *onebit_network(int64_t rows, int64_t columns, const int64_t *biases, int count) {
  tws_network *network;
  tws_network_builder b = {0};
  char name[32];
  ONEBIT_OK(tws_network_create("by hand", &network, &err));
  b.net = network;
  network->vocabulary = network->padded_vocabulary = rows;
  network->hidden = columns;
  network->positions = count > 0 ? 8 : 2;
  ONEBIT_OK(tws_build_reserve(&b, count + 4, &err));
  uint32_t x = tws_build_embedding(&b, "embed", "table", count > 0 ? NULL : "positions", 0.5F);
  for (int i = 0; i < count; i++) {
    snprintf(name, sizeof name, "layer%d", i);
    x = tws_build_linear(&b, 0, tws_build_name(&b, "%s", name), x, i ? biases[i - 1] : columns, biases[i], 0.3F, 1,
                         NULL, TWS_NONE);
  }
  tws_build_loss(&b, tws_build_linear(&b, -2, "head", x, count > 0 ? biases[count - 1] : columns, rows, 0.3F, 0, NULL,
                                      count > 0 ? TWS_NONE : 0));
  return network;
}

static inline uint32_t onebit_param(const onebit_job *job, const char *name) {
  for (uint32_t p = 0; p < job->network->param_count; p++)
    if (strcmp(job->network->params[p].name, name) == 0) return p;
  ck_abort_msg("no parameter %s", name);
  return 0;
}

static inline void onebit_begin(onebit_job *job, tws_network *network, const char *config, int ranks) {
  memset(job, 0, sizeof *job);
  job->network = network;
  job->ranks = ranks;
  ck_assert_msg(resolve(config, ranks, network->hidden, &job->config) == TWS_OK, "%s: %s", config, err.message);
  ONEBIT_OK(tws_host_backend()->create(0, 1, &job->backend, &err));
  for (int r = 0; r < ranks; r++) {
    onebit_rank *own = &job->rank[r];
    tws_plan_request request = {.network = network, .config = job->config, .rank = r, .threads = 1};
    ONEBIT_OK(tws_plan_topology(job->config, ranks, &request.topology, &err));
    for (int p = 0; p < TWS_PROGRAM_COUNT; p++) {
      request.program = (tws_program)p;
      if (p == TWS_PROGRAM_EVALUATE || !tws_plan_has_program(job->config, request.program)) continue;
      if (p > 0) request.state = own->plan[0]->state;
      ONEBIT_OK(tws_plan_build(&request, &own->plan[p], &err));
      ONEBIT_OK(tws_plan_verify(own->plan[p], &err));
      own->programs[p] = own->plan[p];
    }
    const tws_executor_setup setup = {.programs = own->programs,
                                      .program_count = TWS_PROGRAM_COUNT,
                                      .ops = tws_host_backend(),
                                      .backend = job->backend};
    ONEBIT_OK(tws_executor_create(&setup, &own->executor, &err));
  }
}

static inline void onebit_end(onebit_job *job) {
  for (int r = 0; r < job->ranks; r++) {
    tws_executor_destroy(job->rank[r].executor);
    for (int p = TWS_PROGRAM_COUNT - 1; p >= 0; p--) tws_plan_destroy(job->rank[r].plan[p]);
  }
  tws_host_backend()->destroy(job->backend);
  tws_config_destroy(job->config);
  tws_network_destroy(job->network);
}

/* Returns the offset of a parameter in the buffers of the state. */
static inline uint64_t onebit_offset(const onebit_job *job, uint32_t param) {
  const tws_state *state = job->rank[0].plan[0]->state;
  for (uint32_t i = 0; i < state->shard_count; i++)
    if (state->shards[i].param == param) return state->shards[i].storage_offset;
  ck_abort_msg("no shard of a parameter");
  return 0;
}

/* Copies elements of a buffer of a rank's state to values (put 0) or from values (put 1). */
static inline void onebit_move(onebit_job *job, int rank, uint32_t buffer, uint64_t at, float *values, uint64_t count,
                               int put) {
  tws_executor *x = job->rank[rank].executor;
  if (put)
    ONEBIT_OK(tws_executor_put(x, TWS_PROGRAM_TRAIN, buffer, at, values, count, &err));
  else
    ONEBIT_OK(tws_executor_get(x, TWS_PROGRAM_TRAIN, buffer, at, values, count, &err));
}

static inline uint32_t onebit_buffer(const tws_plan *plan, const char *name) {
  for (uint32_t b = 0; b < plan->buffer_count; b++)
    if (strcmp(plan->buffers[b].name, name) == 0) return b;
  ck_abort_msg("no buffer %s", name);
  return 0;
}

static inline void onebit_meet(onebit_job *job, int program, uint32_t op) {
  const tws_comm_segment *segments[ONEBIT_RANKS];
  const tws_plan *plan = job->rank[0].plan[program];
  const tws_op *o = &plan->ops[op];
  int count = 0;
  for (int r = 0; r < job->ranks; r++) segments[r] = tws_executor_segments(job->rank[r].executor, program, op, &count);
  ONEBIT_OK(
      tws_local_collective((tws_collective)plan->works[o->work].code, (int)o->peer, segments, job->ranks, count, &err));
}

/* Runs a program's operations from `first` on, on all ranks: the operations of equal ranks have one order. */
static inline void onebit_run(onebit_job *job, int program, uint32_t first) {
  const tws_plan *plan = job->rank[0].plan[program];
  for (uint32_t op = first; op < plan->op_count; op++) {
    if (plan->ops[op].kind == TWS_OP_COLLECTIVE) {
      onebit_meet(job, program, op);
      continue;
    }
    for (int r = 0; r < job->ranks; r++) ONEBIT_OK(tws_executor_run(job->rank[r].executor, program, op, &err));
  }
}

/* Returns the first operation after clipping. */
static inline uint32_t onebit_clipped(const tws_plan *plan) {
  for (uint32_t op = 0; op < plan->op_count; op++)
    if (plan->ops[op].kind == TWS_OP_COMPUTE && plan->works[plan->ops[op].work].code == TWS_KERNEL_CLIP) return op + 1;
  ck_abort_msg("no clipping");
  return 0;
}

/* Begins the next update and returns its kind, which says the program that it runs. */
static inline tws_step_kind onebit_next(onebit_job *job) {
  job->kind = tws_step_kind_of(job->config, ++job->update, 0);
  return job->kind;
}

/* Gives a rank the gradient of a parameter: the mean over the ranks, or where gradients stay local the rank's own. */
static inline void onebit_gradient(onebit_job *job, int rank, uint32_t param, const double *const *own, int count) {
  const int program = job->kind.program;
  const tws_plan *plan = job->rank[rank].plan[program];
  float values[512];
  ck_assert(count <= 512);
  for (int i = 0; i < count; i++) {
    double sum = 0;
    for (int r = 0; r < job->ranks; r++) sum += own[r][i];
    if (program != TWS_PROGRAM_TRAIN) sum = own[rank][i];
    values[i] = (float)(sum / job->ranks);
  }
  ONEBIT_OK(tws_executor_put(job->rank[rank].executor, program, plan->gradients, onebit_offset(job, param), values,
                             (uint64_t)count, &err));
}

/* Sets all gradients of the update to 0. */
static inline void onebit_clear(onebit_job *job) {
  const int program = job->kind.program;
  for (int r = 0; r < job->ranks; r++) {
    const tws_plan *plan = job->rank[r].plan[program];
    const uint64_t count = plan->buffers[plan->gradients].elements;
    float *zeros = calloc(count, sizeof *zeros);
    ONEBIT_OK(tws_executor_put(job->rank[r].executor, program, plan->gradients, 0, zeros, count, &err));
    free(zeros);
  }
}

/* Runs the update on all ranks: its program from the first operation after clipping on, then the program FREEZE where a
 * phase begins. clip 0 skips the update. */
static inline void onebit_update(onebit_job *job, double clip) {
  const int program = job->kind.program;
  for (int r = 0; r < job->ranks; r++) {
    const tws_plan *plan = job->rank[r].plan[program];
    double metrics[TWS_METRIC_COUNT] = {[TWS_METRIC_CLIP] = clip};
    float hyper[TWS_HYPER_COUNT];
    tws_hyper_fill(job->config, job->update, 1, hyper);
    ONEBIT_OK(tws_executor_put(job->rank[r].executor, program, plan->hyper, 0, hyper, TWS_HYPER_COUNT, &err));
    ONEBIT_OK(tws_executor_put(job->rank[r].executor, program, plan->metrics, 0, metrics, TWS_METRIC_COUNT, &err));
  }
  onebit_run(job, program, onebit_clipped(job->rank[0].plan[program]));
  if (job->kind.begins_phase) onebit_run(job, TWS_PROGRAM_FREEZE, 0);
}

#endif
