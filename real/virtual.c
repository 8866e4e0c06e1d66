/* All ranks of a training in one process: each has its plan, its memory and its place in the data, and they share one
 * backend. Who drives it decides in which order their operations run. */
#include <string.h>

#include "base/memory.h"
#include "models/collective.h"
#include "real/local_comm.h"
#include "real/train_internal.h"

struct tws_virtual {
  tws_training *ranks;
  int world;
  const tws_plan **plans;
  tws_step_report *reports;
  tws_backend *backend;
  const tws_backend_ops *ops;
  const tws_comm_segment **segments; /* [world] of the members of a collective */
};

static tws_code open_rank(tws_virtual *v, tws_training *t, tws_error *err) {
  TWS_TRY(tws_training_plan(t, err));
  TWS_TRY(tws_training_open_data(t, err));
  tws_executor_setup setup = {.programs = t->programs, .program_count = 1, .ops = v->ops, .backend = v->backend};
  TWS_TRY(tws_training_disk(t, &setup.disk, err));
  TWS_TRY(tws_executor_create(&setup, &t->executor, err));
  return tws_training_weights(t, err);
}

static tws_code open_ranks(tws_virtual *v, const tws_train_options *options, tws_error *err) {
  const tws_plan_request *plan = &options->plan;
  if (plan->backend != TWS_BACKEND_HOST)
    return tws_fail(err, TWS_UNSUPPORTED, NULL, "ranks are emulated on the host's kernels");
  v->ops = tws_real_backend("host");
  v->world = tws_topology_world(&plan->topology);
  v->ranks = tws_calloc((size_t)v->world, sizeof *v->ranks);
  v->plans = tws_calloc((size_t)v->world, sizeof *v->plans);
  v->reports = tws_calloc((size_t)v->world, sizeof *v->reports);
  v->segments = tws_calloc((size_t)v->world, sizeof *v->segments);
  if (!v->ranks || !v->plans || !v->reports || !v->segments) return tws_fail(err, TWS_MEMORY, NULL, "out of memory");
  const int threads = plan->threads > 0 ? plan->threads : 1;
  TWS_TRY(v->ops->create(0, threads, &v->backend, err));
  for (int r = 0; r < v->world; r++) {
    v->ranks[r] = (tws_training){
        .options = options, .config = plan->config, .rank = r, .world = v->world, .threads = threads, .ops = v->ops};
    const tws_code code = open_rank(v, &v->ranks[r], err);
    if (code != TWS_OK) return v->world > 1 ? tws_fail_in(err, code, "rank %d", r) : code;
    v->plans[r] = v->ranks[r].plan;
  }
  return TWS_OK;
}

static void virtual_close(tws_virtual *v) {
  if (!v) return;
  for (int r = 0; v->ranks && r < v->world; r++) tws_training_release(&v->ranks[r]);
  if (v->backend) v->ops->destroy(v->backend);
  tws_free(v->ranks);
  tws_free(v->plans);
  tws_free(v->reports);
  tws_free(v->segments);
  tws_free(v);
}

static tws_code virtual_open(const tws_train_options *options, tws_virtual **out, tws_error *err) {
  tws_virtual *v = tws_calloc(1, sizeof *v);
  *out = NULL;
  if (!v) return tws_fail(err, TWS_MEMORY, NULL, "out of memory");
  const tws_code code = open_ranks(v, options, err);
  if (code != TWS_OK) {
    virtual_close(v);
    return code;
  }
  *out = v;
  return TWS_OK;
}

static const tws_plan *const *virtual_plans(const tws_virtual *v, int *count) {
  *count = v->world;
  return v->plans;
}

static tws_code virtual_begin(tws_virtual *v, int64_t step, tws_error *err) {
  for (int r = 0; r < v->world; r++) TWS_TRY(tws_training_begin_step(&v->ranks[r], step, &v->reports[r], err));
  return TWS_OK;
}

static tws_code virtual_run(tws_virtual *v, uint32_t rank, uint32_t op, tws_error *err) {
  const tws_code code = tws_executor_run(v->ranks[rank].executor, TWS_PROGRAM_TRAIN, op, err);
  return code == TWS_OK || v->world == 1 ? code : tws_fail_in(err, code, "rank %u", rank);
}

static tws_code deliver_message(tws_virtual *v, const tws_run_member *members, tws_error *err) {
  const int sends = v->plans[members[0].rank]->ops[members[0].op].kind == TWS_OP_SEND;
  const tws_run_member *sender = &members[sends ? 0 : 1], *receiver = &members[sends ? 1 : 0];
  uint64_t sent, received;
  const void *from = tws_executor_message(v->ranks[sender->rank].executor, TWS_PROGRAM_TRAIN, sender->op, &sent);
  void *to = tws_executor_message(v->ranks[receiver->rank].executor, TWS_PROGRAM_TRAIN, receiver->op, &received);
  if (sent != received) return tws_fail(err, TWS_INTERNAL, NULL, "a message's two ends differ in length");
  memcpy(to, from, sent);
  return TWS_OK;
}

/* Members come in the order in which they were ready; sums run in the order of the group. */
static tws_code virtual_meet(tws_virtual *v, const tws_run_member *members, uint32_t count, tws_error *err) {
  const tws_plan *plan = v->plans[members[0].rank];
  const tws_op *op = &plan->ops[members[0].op];
  if (op->kind != TWS_OP_COLLECTIVE) return deliver_message(v, members, err);
  const tws_work *work = &plan->works[op->work];
  int segments = 0;
  for (uint32_t i = 0; i < count; i++) {
    const tws_plan *p = v->plans[members[i].rank];
    const tws_group *group = &p->groups[p->works[p->ops[members[i].op].work].group];
    if ((uint32_t)group->size != count) return tws_fail(err, TWS_INTERNAL, NULL, "a collective lacks members");
    v->segments[group->index] =
        tws_executor_segments(v->ranks[members[i].rank].executor, TWS_PROGRAM_TRAIN, members[i].op, &segments);
  }
  const int rooted = tws_collective_of((tws_collective)work->code)->root != TWS_ROOT_NONE;
  return tws_local_collective((tws_collective)work->code, rooted ? (int)op->peer : 0, v->segments, (int)count, segments,
                              err);
}

static tws_code virtual_end(tws_virtual *v, double seconds, tws_step_report *report, tws_error *err) {
  double metrics[TWS_METRIC_COUNT];
  for (int r = 0; r < v->world; r++) {
    TWS_TRY(tws_training_read_metrics(&v->ranks[r], metrics, err));
    TWS_TRY(tws_training_end_step(&v->ranks[r], metrics, seconds, &v->reports[r], err));
  }
  *report = v->reports[0];
  return TWS_OK;
}

static uint64_t virtual_allocated(const tws_virtual *v, int rank, tws_tier tier) {
  return tws_executor_allocated(v->ranks[rank].executor, tier);
}

const tws_virtual_api tws_virtual_ranks = {.open = virtual_open,
                                           .close = virtual_close,
                                           .plans = virtual_plans,
                                           .begin = virtual_begin,
                                           .run = virtual_run,
                                           .meet = virtual_meet,
                                           .end = virtual_end,
                                           .allocated = virtual_allocated};
