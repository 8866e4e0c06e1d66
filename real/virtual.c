/* All ranks of a training in one process: each has its plan, its memory and its position in the data, and they share
 * one backend. The caller decides in which order their operations run. */
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/checksum.h"
#include "base/memory.h"
#include "checkpoint/folder.h"
#include "checkpoint/shard.h"
#include "models/collective.h"
#include "real/local_comm.h"
#include "real/shared_pages.h"
#include "real/train_internal.h"

struct tws_virtual {
  tws_training *ranks;
  int world;
  const tws_plan **plans[TWS_PROGRAM_COUNT]; /* [program][rank] */
  tws_step_report *reports;
  tws_backend *backend;
  const tws_backend_ops *ops;
  const tws_comm_segment **segments; /* [world] scratch: the segments of a collective's members */
  tws_shared_pages *pages;           /* NULL: ranks share no storage */
  tws_evaluation_sum evaluated;
};

/* ---- storage ---- */

/* Returns 1 for buffers of which several ranks may have equal bytes. Activations differ, as the ranks' data do. */
static int may_be_equal(const tws_buffer *b) {
  return b->tier != TWS_TIER_DISK && (b->category == TWS_CATEGORY_PARAMETER || b->category == TWS_CATEGORY_GATHERED ||
                                      b->category == TWS_CATEGORY_GRADIENT || b->category == TWS_CATEGORY_MASTER ||
                                      b->category == TWS_CATEGORY_MOMENT || b->category == TWS_CATEGORY_BUCKET);
}

static tws_code settle(tws_virtual *v, tws_program program, uint32_t rank, uint32_t buffer, uint64_t offset,
                       uint64_t count, uint32_t writer, tws_error *err) {
  const tws_training *t = &v->ranks[rank];
  const tws_buffer *b = &t->programs[program]->buffers[buffer];
  const void *at;
  if (!may_be_equal(b)) return TWS_OK;
  TWS_TRY(tws_executor_find(t->executor, (int)program, buffer, offset, count, &at, err));
  return tws_shared_pages_share(v->pages, rank, at, count * tws_dtype_bytes((tws_dtype)b->dtype), writer, err);
}

static tws_code settle_state(tws_virtual *v, uint32_t rank, tws_error *err) {
  const tws_plan *plan = v->ranks[rank].plan;
  for (uint32_t b = 0; v->pages && b < plan->buffer_count; b++)
    if (plan->buffers[b].lifetime == TWS_LIFETIME_STATE)
      TWS_TRY(settle(v, TWS_PROGRAM_TRAIN, rank, b, 0, plan->buffers[b].elements, 0, err));
  return TWS_OK;
}

/* Shares the memory that an operation has just written with other ranks that have the same bytes. */
static tws_code settle_written(tws_virtual *v, tws_program program, uint32_t rank, uint32_t index, tws_error *err) {
  const tws_plan *plan = v->ranks[rank].programs[program];
  const tws_op *op = &plan->ops[index];
  const uint32_t writer = 1 + (uint32_t)op->kind + ((uint32_t)plan->works[op->work].code << 8);
  for (uint32_t i = 0; v->pages && i < op->operand_count; i++) {
    const tws_operand *o = &plan->operands[op->operand_first + i];
    if (o->access & TWS_WRITE) TWS_TRY(settle(v, program, rank, o->buffer, o->offset, o->count, writer, err));
  }
  return TWS_OK;
}

/* ---- creation and destruction ---- */

static tws_code open_rank(tws_virtual *v, tws_training *t, tws_error *err) {
  TWS_TRY(tws_training_plan(t, err));
  TWS_TRY(tws_resume_open(t, err));
  if (t->resumed) TWS_TRY(tws_resume_counters(t, err));
  TWS_TRY(tws_training_open_data(t, err));
  TWS_TRY(tws_inputs_open(t, err));
  TWS_TRY(tws_checkpoint_lock(t, err));
  tws_executor_setup setup = {
      .programs = t->programs, .program_count = TWS_PROGRAM_COUNT, .ops = v->ops, .backend = v->backend};
  TWS_TRY(tws_training_disk(t, &setup.disk, err));
  if (v->pages) {
    TWS_TRY(tws_shared_pages_begin_rank(v->pages, err));
    setup.comm = tws_shared_pages_comm(v->pages);
    setup.comm_ops = tws_shared_pages_ops();
  }
  TWS_TRY(tws_executor_create(&setup, &t->executor, err));
  TWS_TRY(tws_training_weights(t, err));
  return settle_state(v, (uint32_t)t->rank, err);
}

static tws_code open_ranks(tws_virtual *v, const tws_train_options *options, tws_error *err) {
  const tws_plan_request *plan = &options->plan;
  if (plan->backend != TWS_BACKEND_HOST)
    return tws_fail(err, TWS_UNSUPPORTED, NULL, "ranks are emulated on the host's kernels");
  v->ops = tws_real_backend("host");
  v->world = tws_topology_world(&plan->topology);
  v->ranks = tws_calloc((size_t)v->world, sizeof *v->ranks);
  int room = 1;
  for (int p = 0; p < TWS_PROGRAM_COUNT; p++) {
    v->plans[p] = tws_calloc((size_t)v->world, sizeof *v->plans[p]);
    room &= v->plans[p] != NULL;
  }
  v->reports = tws_calloc((size_t)v->world, sizeof *v->reports);
  v->segments = tws_calloc((size_t)v->world, sizeof *v->segments);
  if (!room || !v->ranks || !v->reports || !v->segments) return tws_fail(err, TWS_MEMORY, NULL, "out of memory");
  const int threads = plan->threads > 0 ? plan->threads : 1;
  if (options->share) TWS_TRY(tws_shared_pages_create(&v->pages, err));
  TWS_TRY(v->ops->create(0, threads, &v->backend, err));
  for (int r = 0; r < v->world; r++) {
    v->ranks[r] = (tws_training){
        .options = options, .config = plan->config, .rank = r, .world = v->world, .threads = threads, .ops = v->ops};
    const tws_code code = open_rank(v, &v->ranks[r], err);
    if (code != TWS_OK) return v->world > 1 ? tws_fail_in(err, code, "rank %d", r) : code;
    v->plans[TWS_PROGRAM_TRAIN][r] = v->ranks[r].plan;
    v->plans[TWS_PROGRAM_EVALUATE][r] = v->ranks[r].evaluation;
    for (int p = TWS_PROGRAM_APPLY; p < TWS_PROGRAM_COUNT; p++) v->plans[p][r] = v->ranks[r].programs[p];
  }
  return options->save ? tws_checkpoint_prepare_all(v->ranks, v->world, err) : TWS_OK;
}

static void virtual_close(tws_virtual *v) {
  if (!v) return;
  for (int r = 0; v->ranks && r < v->world; r++) tws_training_release(&v->ranks[r]);
  if (v->backend) v->ops->destroy(v->backend);
  tws_shared_pages_destroy(v->pages);
  tws_free(v->ranks);
  for (int p = 0; p < TWS_PROGRAM_COUNT; p++) tws_free(v->plans[p]);
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

static const tws_plan *const *virtual_plans(const tws_virtual *v, tws_program program, int *count) {
  *count = v->world;
  return v->plans[program][0] ? v->plans[program] : NULL;
}

static int64_t virtual_first_step(const tws_virtual *v) {
  return v->ranks[0].first_step;
}

static tws_code virtual_begin(tws_virtual *v, int64_t step, tws_error *err) {
  for (int r = 0; r < v->world; r++) TWS_TRY(tws_training_begin_step(&v->ranks[r], step, &v->reports[r], err));
  return TWS_OK;
}

static tws_program virtual_step_program(const tws_virtual *v) {
  return v->ranks[0].now;
}

static tws_code virtual_run(tws_virtual *v, tws_program program, uint32_t rank, uint32_t op, tws_error *err) {
  tws_code code = tws_executor_run(v->ranks[rank].executor, (int)program, op, err);
  if (code == TWS_OK) code = settle_written(v, program, rank, op, err);
  return code == TWS_OK || v->world == 1 ? code : tws_fail_in(err, code, "rank %u", rank);
}

static tws_code deliver_message(tws_virtual *v, int program, const tws_run_member *members, tws_error *err) {
  const int sends = v->plans[program][members[0].rank]->ops[members[0].op].kind == TWS_OP_SEND;
  const tws_run_member *sender = &members[sends ? 0 : 1], *receiver = &members[sends ? 1 : 0];
  uint64_t sent, received;
  const void *from = tws_executor_message(v->ranks[sender->rank].executor, program, sender->op, &sent);
  void *to = tws_executor_message(v->ranks[receiver->rank].executor, program, receiver->op, &received);
  if (sent != received) return tws_fail(err, TWS_INTERNAL, NULL, "a message's two ends differ in length");
  memcpy(to, from, sent);
  return TWS_OK;
}

static tws_code differ(tws_error *err) {
  return tws_fail(err, TWS_INTERNAL, NULL, "the members of a collective do not do the same");
}

/* Runs a collective or a message. `members` are in the order in which they became ready; sums are computed in the order
 * of the group. */
static tws_code virtual_meet(tws_virtual *v, tws_program program, const tws_run_member *members, uint32_t count,
                             tws_error *err) {
  const tws_plan *const *plans = v->plans[program];
  const tws_plan *plan = plans[members[0].rank];
  const tws_op *op = &plan->ops[members[0].op];
  if (op->kind != TWS_OP_COLLECTIVE) return deliver_message(v, (int)program, members, err);
  const tws_work *work = &plan->works[op->work];
  int segments = 0;
  for (uint32_t i = 0; i < count; i++) {
    int own = 0;
    const tws_plan *p = plans[members[i].rank];
    const tws_work *w = &p->works[p->ops[members[i].op].work];
    if (w->kind != TWS_OP_COLLECTIVE || w->code != work->code || (uint32_t)p->groups[w->group].size != count)
      return differ(err);
    const tws_comm_segment *of =
        tws_executor_segments(v->ranks[members[i].rank].executor, (int)program, members[i].op, &own);
    v->segments[p->groups[w->group].index] = of;
    if (i == 0) segments = own;
    if (own != segments) return differ(err);
  }
  for (uint32_t i = 1; i < count; i++)
    for (int k = 0; k < segments; k++)
      if (v->segments[i][k].count != v->segments[0][k].count) return differ(err);
  const int rooted = tws_collective_of((tws_collective)work->code)->root != TWS_ROOT_NONE;
  TWS_TRY(tws_local_collective((tws_collective)work->code, rooted ? (int)op->peer : 0, v->segments, (int)count,
                               segments, err));
  for (uint32_t i = 0; i < count; i++) TWS_TRY(settle_written(v, program, members[i].rank, members[i].op, err));
  return TWS_OK;
}

static tws_code virtual_end(tws_virtual *v, double seconds, tws_step_report *report, tws_error *err) {
  double metrics[TWS_METRIC_COUNT];
  for (int r = 0; r < v->world; r++) {
    TWS_TRY(tws_training_read_metrics(&v->ranks[r], metrics, err));
    const tws_code code = tws_training_end_step(&v->ranks[r], metrics, seconds, &v->reports[r], err);
    if (code != TWS_OK) return v->world > 1 ? tws_fail_in(err, code, "rank %d", r) : code;
  }
  *report = v->reports[0];
  tws_step_report_complete(&v->ranks[0], report);
  return TWS_OK;
}

static int virtual_applies(const tws_virtual *v, int64_t step, tws_program *program) {
  return tws_training_applies(&v->ranks[0], step, program);
}

static tws_code virtual_apply_begin(tws_virtual *v, tws_program program, tws_error *err) {
  for (int r = 0; r < v->world; r++) TWS_TRY(tws_training_begin_apply(&v->ranks[r], program, err));
  return TWS_OK;
}

static void virtual_apply_end(const tws_virtual *v, double seconds, tws_step_report *report) {
  tws_training_set_step_seconds(&v->ranks[0], report->seconds + seconds, report);
  tws_step_report_complete(&v->ranks[0], report);
}

static uint64_t virtual_saved(const tws_virtual *v) {
  const tws_shared_count count = v->pages ? tws_shared_pages_count(v->pages) : (tws_shared_count){0, 0};
  return count.mapped_bytes > count.held_bytes ? count.mapped_bytes - count.held_bytes : 0;
}

static uint64_t virtual_allocated(const tws_virtual *v, int rank, tws_tier tier) {
  return tws_executor_allocated(v->ranks[rank].executor, tier);
}

/* ---- evaluation ---- */

static int64_t evaluation_batches(const tws_virtual *v) {
  return v->ranks[0].eval_batches;
}

static tws_code evaluation_begin(tws_virtual *v, int64_t batch, tws_error *err) {
  if (batch == 0) v->evaluated = (tws_evaluation_sum){0};
  for (int r = 0; r < v->world; r++) TWS_TRY(tws_evaluation_put(&v->ranks[r], &v->ranks[r].eval_data, batch, err));
  return TWS_OK;
}

static tws_code evaluation_end(tws_virtual *v, tws_error *err) {
  return tws_evaluation_add(&v->ranks[0], &v->evaluated, err);
}

static tws_code evaluation_loss(tws_virtual *v, double *loss, tws_error *err) {
  return tws_evaluation_mean(&v->evaluated, loss, err);
}

/* ---- saving ---- */

static tws_code virtual_save(tws_virtual *v, tws_error *err) {
  return tws_checkpoint_write_all(v->ranks, v->world, err);
}

static tws_code virtual_publish(tws_virtual *v, tws_error *err) {
  return tws_checkpoint_publish_all(v->ranks, v->world, err);
}

static void virtual_drop(tws_virtual *v, double written) {
  const tws_training *first = &v->ranks[0];
  char temporary[TWS_FOLDER_SIZE], path[TWS_FOLDER_SIZE + 64], name[64];
  struct stat info;
  int fd;
  tws_folder_temporary(first->options->save, tws_checkpoint_tag(first), temporary, sizeof temporary);
  for (int r = 0; r < v->world; r++) {
    snprintf(path, sizeof path, "%s/%s", temporary, tws_shard_name(r, name, sizeof name));
    if (tws_changed_file(path, 0, &fd, NULL) != TWS_OK || fd < 0) continue;
    const int cut = written > 0 && written < 1 && fstat(fd, &info) == 0;
    if (cut ? ftruncate(fd, (off_t)(written * (double)info.st_size)) != 0 : !(written > 0)) tws_remove_file(path);
    close(fd);
  }
  tws_checkpoint_drop_all(v->ranks, v->world);
}

static uint64_t virtual_save_bytes(const tws_virtual *v, int rank) {
  return tws_checkpoint_share_bytes(&v->ranks[rank]);
}

/* ---- faults ---- */

static tws_code virtual_flip(tws_virtual *v, int rank, const char *entry, uint64_t element, int bit, tws_error *err) {
  tws_training *t = &v->ranks[rank];
  const uint32_t buffer = tws_training_buffer(t->plan, entry);
  unsigned char value[8] = {0};
  if (buffer == TWS_NONE)
    return tws_fail(err, TWS_INVALID, "`twinspeed simulate --print-plan` lists buffers",
                    "the state has no entry \"%s\"", entry);
  const tws_buffer *b = &t->plan->buffers[buffer];
  const int bits = 8 * (int)tws_dtype_bytes((tws_dtype)b->dtype);
  if (b->elements == 0) return TWS_OK;
  element %= b->elements;
  TWS_TRY(tws_executor_get(t->executor, TWS_PROGRAM_TRAIN, buffer, element, value, 1, err));
  value[bit % bits / 8] = (unsigned char)(value[bit % bits / 8] ^ 1u << (bit % 8));
  return tws_executor_put(t->executor, TWS_PROGRAM_TRAIN, buffer, element, value, 1, err);
}

static void flip_received(tws_virtual *v, tws_program program, const tws_run_member *member, uint64_t byte, int bit) {
  const tws_executor *x = v->ranks[member->rank].executor;
  const tws_op *op = &v->plans[program][member->rank]->ops[member->op];
  uint64_t bytes = 0;
  unsigned char *to = NULL;
  int count = 0;
  if (op->kind == TWS_OP_COLLECTIVE) {
    const tws_comm_segment *segments = tws_executor_segments(x, (int)program, member->op, &count);
    if (count > 0) to = segments[0].receive;
    if (count > 0) bytes = segments[0].count * tws_dtype_bytes(segments[0].dtype);
  } else {
    to = tws_executor_message(x, (int)program, member->op, &bytes);
  }
  if (to && bytes > 0) to[byte % bytes] = (unsigned char)(to[byte % bytes] ^ 1u << (bit % 8));
}

/* Overwrites a range: floating-point numbers become NaN; integers, which are indices, become 0, a valid index. */
static void virtual_spoil(tws_virtual *v, tws_program program, uint32_t rank, uint32_t buffer, uint64_t offset,
                          uint64_t count) {
  const tws_training *t = &v->ranks[rank];
  const tws_dtype dtype = (tws_dtype)t->programs[program]->buffers[buffer].dtype;
  const void *at = NULL;
  const int number = dtype != TWS_I32 && dtype != TWS_U8;
  if (tws_executor_find(t->executor, (int)program, buffer, offset, count, &at, NULL) == TWS_OK && at)
    memset((void *)(uintptr_t)at, number ? 0xff : 0, count * tws_dtype_bytes(dtype));
}

static uint64_t virtual_digest(const tws_virtual *v) {
  uint64_t sum = 0;
  for (int r = 0; r < v->world; r++) {
    const tws_plan *plan = v->ranks[r].plan;
    for (uint32_t b = 0; b < plan->buffer_count; b++) {
      const tws_buffer *buffer = &plan->buffers[b];
      const void *at = NULL;
      if (buffer->lifetime != TWS_LIFETIME_STATE || buffer->tier == TWS_TIER_DISK) continue;
      if (tws_executor_find(v->ranks[r].executor, TWS_PROGRAM_TRAIN, b, 0, buffer->elements, &at, NULL) == TWS_OK && at)
        sum = tws_checksum(sum, at, buffer->elements * tws_dtype_bytes((tws_dtype)buffer->dtype));
    }
  }
  return sum;
}

const tws_virtual_api tws_virtual_ranks = {.open = virtual_open,
                                           .close = virtual_close,
                                           .plans = virtual_plans,
                                           .applies = virtual_applies,
                                           .apply_begin = virtual_apply_begin,
                                           .apply_end = virtual_apply_end,
                                           .first_step = virtual_first_step,
                                           .begin = virtual_begin,
                                           .step_program = virtual_step_program,
                                           .run = virtual_run,
                                           .meet = virtual_meet,
                                           .end = virtual_end,
                                           .evaluation_batches = evaluation_batches,
                                           .evaluation_begin = evaluation_begin,
                                           .evaluation_end = evaluation_end,
                                           .evaluation_loss = evaluation_loss,
                                           .save = virtual_save,
                                           .publish = virtual_publish,
                                           .drop = virtual_drop,
                                           .save_bytes = virtual_save_bytes,
                                           .flip = virtual_flip,
                                           .flip_received = flip_received,
                                           .spoil = virtual_spoil,
                                           .digest = virtual_digest,
                                           .allocated = virtual_allocated,
                                           .saved = virtual_saved};
