#include "real/executor.h"
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include "base/host_memory.h"
#include "base/memory.h"
#include "models/collective.h"
#include "plan/collective.h"
#include "base/units.h"
#include "real/disk.h"
#include "real/operands.h"

/* An operation with all its addresses and dependencies resolved. */
typedef struct step_op {
  const tws_work *work;
  const tws_arguments *arguments; /* NULL: the operation has no arguments */
  void **address;                 /* [operand] for COMPUTE, HOST, COPY, SEND, RECV */
  tws_dtype *dtype;
  tws_comm_segment *segments; /* for COLLECTIVE */
  const char *label, *where;  /* where: the ranks that a collective or message waits for, as text; "" for other
                               * operations */
  const double *loss;         /* address of a loss that must be finite afterwards; NULL: not checked */
  uint64_t bytes;             /* size of the data, for COPY, SEND, RECV */
  uint32_t label_length, where_length;
  int count; /* number of operands, or of segments */
  int root;  /* for REDUCE and BROADCAST the root; for COPY the index of the operand that is on the disk */
  uint8_t kind, stream;
  uint16_t wait_count;
  uint32_t signal;       /* event that the operation signals when it ends, or TWS_NONE */
  const uint32_t *waits; /* events of the operations that it depends on */
  tws_disk *disk;        /* for COPY: the disk in which one of the two operands is; NULL: none is on a disk */
  uint32_t disk_before;  /* last disk operation that this operation waits for */
  /* task of the host for this operation, in the order of its stream; NULL: none, or the backend has no streams */
  tws_host_task *task;
} step_op;

/* One allocation per tier: for the memory that programs use while they run, or for one state. */
typedef struct arenas {
  void *base[TWS_TIER_COUNT]; /* per tier: base address of the arena; for the disk tier a tws_disk */
  uint64_t bytes[TWS_TIER_COUNT];
  uint8_t owned[TWS_TIER_COUNT]; /* 1: allocated by the backend; 0: by the communicator */
} arenas;

typedef struct program {
  const tws_plan *plan;
  const arenas *state;
  step_op *ops;
  const char **group_text; /* [group of the plan] description such as " (model group of ranks 0 1)" */
  uint64_t *tickets;       /* [operation] ticket of its disk transfer; NULL: the plan has none */
  int ran, recorded;
} program;

struct tws_executor {
  tws_executor_setup setup;
  tws_arena *arena;
  arenas shared; /* used by all programs, which run one after another */
  arenas *states;
  const tws_state **state_of; /* states[i] holds the arenas of state_of[i] */
  int state_count;
  program *programs;
  _Atomic(const step_op *) doing; /* the operation that is running; NULL: between steps */
  size_t prefix;                  /* length of the activity line's beginning, which names the step */
  int replays;                    /* 1: the backend can record a program and launch it as a whole */
  char not_recorded[256];         /* the reason for a failed recording; empty: it succeeded, or was not attempted */
  tws_disk *on_disk;              /* the disk that was used last */
};

/* ---- memory ---- */

/* Creates the swap file of an arena on disk. Swap files are numbered, so that the engines of one process have files of
 * their own. */
static tws_code allocate_disk(tws_executor *x, arenas *a, tws_error *err) {
  static _Atomic unsigned files;
  char name[64];
  tws_disk *disk = NULL;
  if (a->bytes[TWS_TIER_DISK] == 0) return TWS_OK;
  const int state = (int)(a - x->states), rank = x->setup.programs[0]->rank;
  const unsigned number = files++;
  if (a == &x->shared)
    snprintf(name, sizeof name, "rank%d-programs-%u", rank, number);
  else
    snprintf(name, sizeof name, "rank%d-state%d-%u", rank, state, number);
  TWS_TRY(tws_disk_create(&x->setup.disk, name, a->bytes[TWS_TIER_DISK], &disk, err));
  a->base[TWS_TIER_DISK] = disk;
  return TWS_OK;
}

static tws_code allocate_tier(tws_executor *x, arenas *a, tws_tier tier, tws_error *err) {
  if (tier == TWS_TIER_DISK) return allocate_disk(x, a, err);
  int host = x->setup.ops->wait == NULL; /* a backend without streams computes in host memory */
  if (host && x->setup.comm && x->setup.comm_ops->allocate)
    TWS_TRY(x->setup.comm_ops->allocate(x->setup.comm, a->bytes[tier], &a->base[tier], err));
  if (a->base[tier] || a->bytes[tier] == 0) return TWS_OK;
  TWS_TRY(x->setup.ops->allocate(x->setup.backend, tier, a->bytes[tier], &a->base[tier], err));
  a->owned[tier] = 1;
  return TWS_OK;
}

static tws_code allocate(tws_executor *x, arenas *a, tws_error *err) {
  for (int tier = 0; tier < TWS_TIER_COUNT; tier++) {
    tws_code code = allocate_tier(x, a, (tws_tier)tier, err);
    if (code != TWS_OK) return tws_fail_in(err, code, "%s memory", tws_tier_name((tws_tier)tier));
  }
  return TWS_OK;
}

static void release(tws_executor *x, arenas *a) {
  for (int tier = 0; tier < TWS_TIER_COUNT; tier++)
    if (a->base[tier] && a->owned[tier]) x->setup.ops->release(x->setup.backend, (tws_tier)tier, a->base[tier]);
  tws_disk_destroy(a->base[TWS_TIER_DISK]);
}

/* Finds the arenas of a program's state: those of another program over the same state, or else newly allocated ones. */
static tws_code find_state(tws_executor *x, program *p, tws_error *err) {
  const tws_state *state = p->plan->state;
  int at = 0;
  while (at < x->state_count && x->state_of[at] != state) at++;
  p->state = &x->states[at];
  if (at < x->state_count) return TWS_OK;
  x->state_of[x->state_count++] = state;
  if (state) memcpy(x->states[at].bytes, state->arena_bytes, sizeof state->arena_bytes);
  return allocate(x, &x->states[at], err);
}

/* Checks the device limit before anything is allocated. Arenas never grow, and no operand exceeds them, so a plan
 * within the limit stays within it. */
static tws_code check_device_limit(const tws_executor *x, tws_error *err) {
  uint64_t bytes = x->shared.bytes[TWS_TIER_DEVICE];
  char need[32], have[32];
  for (int i = 0; i < x->setup.program_count; i++) {
    const tws_state *state = x->setup.programs[i] ? x->setup.programs[i]->state : NULL;
    int seen = 0;
    for (int k = 0; k < i; k++) seen |= x->setup.programs[k] && x->setup.programs[k]->state == state;
    if (state && !seen) bytes += state->arena_bytes[TWS_TIER_DEVICE];
  }
  if (!x->setup.device_limit || bytes <= x->setup.device_limit) return TWS_OK;
  return tws_fail(err, TWS_MEMORY, "use a smaller micro batch, a higher ZeRO stage, or offload the optimizer",
                  "the device arenas need %s, and %s are allowed", tws_format_bytes((double)bytes, need, sizeof need),
                  tws_format_bytes((double)x->setup.device_limit, have, sizeof have));
}

static tws_code allocate_all(tws_executor *x, tws_error *err) {
  const int count = x->setup.program_count;
  x->programs = tws_arena_alloc(x->arena, (size_t)count, sizeof *x->programs);
  x->states = tws_arena_alloc(x->arena, (size_t)count, sizeof *x->states);
  x->state_of = tws_arena_alloc(x->arena, (size_t)count, sizeof *x->state_of);
  if (!x->programs || !x->states || !x->state_of) return tws_fail(err, TWS_MEMORY, NULL, "out of memory");
  for (int i = 0; i < count; i++) {
    const tws_plan *plan = x->programs[i].plan = x->setup.programs[i];
    for (int tier = 0; plan && tier < TWS_TIER_COUNT; tier++)
      if (plan->arena_bytes[tier] > x->shared.bytes[tier]) x->shared.bytes[tier] = plan->arena_bytes[tier];
  }
  TWS_TRY(check_device_limit(x, err));
  TWS_TRY(allocate(x, &x->shared, err));
  for (int i = 0; i < count; i++)
    if (x->programs[i].plan) TWS_TRY(find_state(x, &x->programs[i], err));
  return TWS_OK;
}

uint64_t tws_executor_allocated(const tws_executor *x, tws_tier tier) {
  uint64_t bytes = x->shared.base[tier] ? x->shared.bytes[tier] : 0;
  for (int i = 0; i < x->state_count; i++)
    if (x->states[i].base[tier]) bytes += x->states[i].bytes[tier];
  return bytes;
}

static const arenas *arenas_of(const tws_executor *x, const program *p, const tws_buffer *buffer) {
  return buffer->lifetime == TWS_LIFETIME_STATE ? p->state : &x->shared;
}

/* Returns the address of a range of a buffer, or its offset in the file if it is on the disk. Fails if the range
 * exceeds the buffer, or the buffer its arena. */
static tws_code resolve(const tws_executor *x, const program *p, uint32_t index, uint64_t offset, uint64_t count,
                        void **address, tws_error *err) {
  const tws_plan *plan = p->plan;
  if (index >= plan->buffer_count) return tws_fail(err, TWS_INTERNAL, NULL, "no buffer %u", (unsigned)index);
  const tws_buffer *buffer = &plan->buffers[index];
  const arenas *a = arenas_of(x, p, buffer);
  uint64_t size = tws_dtype_bytes((tws_dtype)buffer->dtype), arena = tws_plan_arena_of(plan, buffer);
  if (offset > buffer->elements || count > buffer->elements - offset)
    return tws_fail(err, TWS_INTERNAL, NULL, "elements %" PRIu64 " to %" PRIu64 " are not in buffer '%s' of %" PRIu64,
                    offset, offset + count, buffer->name, buffer->elements);
  if (buffer->offset > arena || buffer->elements > (arena - buffer->offset) / size)
    return tws_fail(err, TWS_INTERNAL, NULL, "buffer '%s' is not in its arena of %" PRIu64 " bytes", buffer->name,
                    arena);
  const uint64_t at = buffer->offset + offset * size;
  *address = buffer->tier == TWS_TIER_DISK ? (void *)(uintptr_t)at : (char *)a->base[buffer->tier] + at;
  return TWS_OK;
}

/* Copies between memory and a buffer on the disk, and waits for the transfer. */
static tws_code move_on_disk(const tws_executor *x, const program *p, uint32_t index, int writes, const void *at,
                             void *memory, uint64_t bytes, tws_error *err) {
  const tws_buffer *buffer = &p->plan->buffers[index];
  tws_disk *disk = arenas_of(x, p, buffer)->base[TWS_TIER_DISK];
  const tws_disk_transfer transfer = {
      .writes = writes, .offset = (uintptr_t)at, .bytes = bytes, .memory = memory, .what = buffer->name};
  uint64_t ticket;
  TWS_TRY(tws_disk_start(disk, &transfer, &ticket, err));
  return tws_disk_wait(disk, ticket, err);
}

tws_code tws_executor_put(tws_executor *x, int index, uint32_t buffer, uint64_t offset, const void *from,
                          uint64_t count, tws_error *err) {
  const program *p = &x->programs[index];
  void *to = NULL;
  TWS_TRY(resolve(x, p, buffer, offset, count, &to, err));
  uint64_t bytes = count * tws_dtype_bytes((tws_dtype)p->plan->buffers[buffer].dtype);
  if (p->plan->buffers[buffer].tier == TWS_TIER_DISK)
    return move_on_disk(x, p, buffer, 1, to, (void *)(uintptr_t)from, bytes, err);
  return x->setup.ops->copy(x->setup.backend, to, from, bytes, TWS_STREAM_COMPUTE, err);
}

tws_code tws_executor_zero(tws_executor *x, int index, uint32_t buffer, tws_error *err) {
  enum { SOME = 64 };
  static const double zeros[SOME];
  const uint64_t count = x->programs[index].plan->buffers[buffer].elements;
  for (uint64_t i = 0; i < count; i += SOME)
    TWS_TRY(tws_executor_put(x, index, buffer, i, zeros, count - i < SOME ? count - i : SOME, err));
  return TWS_OK;
}

tws_code tws_executor_get(tws_executor *x, int index, uint32_t buffer, uint64_t offset, void *to, uint64_t count,
                          tws_error *err) {
  const program *p = &x->programs[index];
  void *from = NULL;
  TWS_TRY(resolve(x, p, buffer, offset, count, &from, err));
  uint64_t bytes = count * tws_dtype_bytes((tws_dtype)p->plan->buffers[buffer].dtype);
  if (p->plan->buffers[buffer].tier == TWS_TIER_DISK) return move_on_disk(x, p, buffer, 0, from, to, bytes, err);
  TWS_TRY(x->setup.ops->copy(x->setup.backend, to, from, bytes, TWS_STREAM_COMPUTE, err));
  return x->setup.ops->synchronize(x->setup.backend, err);
}

tws_code tws_executor_find(const tws_executor *x, int index, uint32_t buffer, uint64_t offset, uint64_t count,
                           const void **at, tws_error *err) {
  void *found = NULL;
  TWS_TRY(resolve(x, &x->programs[index], buffer, offset, count, &found, err));
  *at = found;
  return TWS_OK;
}

/* ---- preparation ---- */

static tws_code prepare_operands(tws_executor *x, const program *p, const tws_op *op, step_op *s, tws_error *err) {
  const tws_plan *plan = p->plan;
  s->count = op->operand_count;
  s->address = tws_arena_alloc(x->arena, (size_t)s->count + 1, sizeof *s->address);
  s->dtype = tws_arena_alloc(x->arena, (size_t)s->count + 1, sizeof *s->dtype);
  if (!s->address || !s->dtype) return tws_fail(err, TWS_MEMORY, NULL, "out of memory");
  for (int i = 0; i < s->count; i++) {
    const tws_operand *o = &plan->operands[op->operand_first + (uint32_t)i];
    TWS_TRY(resolve(x, p, o->buffer, o->offset, o->count, &s->address[i], err));
    if (plan->buffers[o->buffer].tier == TWS_TIER_DISK && op->kind != TWS_OP_COPY)
      return tws_fail(err, TWS_INTERNAL, NULL, "buffer '%s' is on the disk", plan->buffers[o->buffer].name);
    s->dtype[i] = (tws_dtype)plan->buffers[o->buffer].dtype;
    s->bytes = o->count * tws_dtype_bytes(s->dtype[i]);
    TWS_TRY(tws_check_operand_size(&plan->works[op->work], i, o->count, err));
  }
  return TWS_OK;
}

/* Returns the transfer of a copy from or to a disk. */
static tws_disk_transfer transfer_of(const program *p, uint32_t index) {
  const step_op *s = &p->ops[index];
  const tws_operand *operand = &p->plan->operands[p->plan->ops[index].operand_first + (uint32_t)s->root];
  return (tws_disk_transfer){.writes = s->root == 1,
                             .offset = (uintptr_t)s->address[s->root],
                             .bytes = s->bytes,
                             .memory = s->address[1 - s->root],
                             .what = p->plan->buffers[operand->buffer].name};
}

static tws_code prepare_copy(tws_executor *x, const program *p, const tws_op *op, step_op *s, tws_error *err) {
  TWS_TRY(prepare_operands(x, p, op, s, err));
  const tws_operand *o = &p->plan->operands[op->operand_first];
  if (s->count != 2 || o[0].count != o[1].count || s->dtype[0] != s->dtype[1])
    return tws_fail(err, TWS_INTERNAL, NULL, "a copy needs two ranges of one length and type");
  int disks = 0;
  for (int i = 0; i < 2; i++) {
    const tws_buffer *buffer = &p->plan->buffers[o[i].buffer];
    if (buffer->tier != TWS_TIER_DISK) continue;
    s->disk = arenas_of(x, p, buffer)->base[TWS_TIER_DISK];
    s->root = i; /* operand 1 is written, so a copy to the disk has root 1 */
    disks++;
  }
  if (disks == 2) return tws_fail(err, TWS_INTERNAL, NULL, "a copy from the disk to the disk");
  return TWS_OK;
}

static tws_code prepare_collective(tws_executor *x, const program *p, const tws_op *op, step_op *s, tws_error *err) {
  const tws_plan *plan = p->plan;
  if (s->work->group >= plan->group_count) return tws_fail(err, TWS_INTERNAL, NULL, "no group %u", s->work->group);
  if (s->work->code == TWS_COLLECTIVE_ALL_TO_ALL && s->work->d[6] > 0)
    return tws_fail(err, TWS_UNSUPPORTED, "leave out twinspeed.expert_dispatch_fp8: it is for predictions",
                    "exchanges of experts in 8 bits cannot be run");
  s->segments = tws_arena_alloc(x->arena, op->operand_count + 1u, sizeof *s->segments);
  if (!s->segments) return tws_fail(err, TWS_MEMORY, NULL, "out of memory");
  if (tws_collective_of((tws_collective)s->work->code)->root != TWS_ROOT_NONE) s->root = (int)op->peer;
  for (uint32_t next = 0; next < op->operand_count;) {
    tws_comm_segment *segment = &s->segments[s->count++];
    tws_plan_segment ranges;
    void *at[3] = {NULL, NULL, NULL};
    TWS_TRY(tws_plan_next_segment(plan, op, &next, &ranges, err));
    const tws_operand *const operand[3] = {ranges.send, ranges.receive, ranges.counts};
    for (int i = 0; i < 3; i++)
      if (operand[i]) TWS_TRY(resolve(x, p, operand[i]->buffer, operand[i]->offset, operand[i]->count, &at[i], err));
    *segment = (tws_comm_segment){
        .send = at[0], .receive = at[1], .dtype = ranges.dtype, .count = ranges.count, .counts = at[2]};
  }
  return TWS_OK;
}

enum { WHERE = 80, NAMED_RANKS = 8 };

/* Builds the groups' descriptions, such as " (data group of ranks 0 2 4 6)"; large groups are described by their first
 * and last ranks. */
static tws_code describe_groups(tws_executor *x, program *p, tws_error *err) {
  const tws_plan *plan = p->plan;
  p->group_text = tws_arena_alloc(x->arena, plan->group_count + 1u, sizeof *p->group_text);
  if (!p->group_text) return tws_fail(err, TWS_MEMORY, NULL, "out of memory");
  for (uint32_t g = 0; g < plan->group_count; g++) {
    const tws_group *group = &plan->groups[g];
    char text[WHERE + 32];
    int n = snprintf(text, WHERE, " (%.12s group of ranks", tws_axes_name(group->axes));
    for (int i = 0; i < group->size && n < WHERE - 16; i++) {
      int skipped = group->size > NAMED_RANKS && i == NAMED_RANKS - 2;
      if (skipped) i = group->size - 1;
      n += snprintf(text + n, sizeof text - (size_t)n, skipped ? " ... %d" : " %d", group->ranks[i]);
    }
    snprintf(text + n, sizeof text - (size_t)n, ")");
    p->group_text[g] = tws_arena_strdup(x->arena, text);
    if (!p->group_text[g]) return tws_fail(err, TWS_MEMORY, NULL, "out of memory");
  }
  return TWS_OK;
}

static tws_code name_op(tws_executor *x, const program *p, uint32_t index, tws_error *err) {
  const tws_plan *plan = p->plan;
  const tws_op *op = &plan->ops[index];
  step_op *s = &p->ops[index];
  char label[160];
  s->label = tws_arena_strdup(x->arena, tws_op_label(plan, index, label, (int)sizeof label));
  s->where = "";
  if (op->kind == TWS_OP_COLLECTIVE && s->work->group < plan->group_count) s->where = p->group_text[s->work->group];
  if (op->kind == TWS_OP_SEND || op->kind == TWS_OP_RECV)
    s->where = tws_arena_printf(x->arena, " (rank %u)", (unsigned)op->peer);
  if (!s->label || !s->where) return tws_fail(err, TWS_MEMORY, NULL, "out of memory");
  s->label_length = (uint32_t)strlen(s->label);
  s->where_length = (uint32_t)strlen(s->where);
  return TWS_OK;
}

static tws_code prepare_op(tws_executor *x, const program *p, uint32_t index, tws_error *err) {
  const tws_plan *plan = p->plan;
  const tws_op *op = &plan->ops[index];
  step_op *s = &p->ops[index];
  s->work = &plan->works[op->work];
  s->arguments = tws_op_arguments(plan, op);
  s->kind = op->kind;
  s->stream = op->stream;
  TWS_TRY(name_op(x, p, index, err));
  if (op->kind == TWS_OP_COLLECTIVE) return prepare_collective(x, p, op, s, err);
  if (op->kind == TWS_OP_COPY) return prepare_copy(x, p, op, s, err);
  TWS_TRY(prepare_operands(x, p, op, s, err));
  if (op->kind != TWS_OP_COMPUTE && op->kind != TWS_OP_HOST) return TWS_OK;
  /* with a loss scale, the kernel CLIP checks the loss */
  const int checked = !x->setup.ops->wait && !(s->work->flags & TWS_SCALED);
  if (checked && tws_is_whole_loss((tws_kernel)s->work->code)) s->loss = s->address[2];
  if (checked && s->work->code == TWS_KERNEL_VOCABULARY_LOSS) s->loss = s->address[3];
  const int on_host = op->place == TWS_PLACE_HOST && x->setup.host;
  if (on_host ? !tws_host_work_supports(s->work) : x->setup.ops->supports && !x->setup.ops->supports(s->work))
    return tws_fail(err, TWS_UNSUPPORTED, "use fp32 or bf16, or another device", "backend %s has no kernel %s of %s%s",
                    on_host ? "host" : x->setup.ops->name, tws_kernel_name((tws_kernel)s->work->code),
                    tws_dtype_name((tws_dtype)s->work->dtype), s->work->flags & TWS_SCALED ? " with a loss scale" : "");
  return TWS_OK;
}

/* Makes the task of an operation on the host's cores or a disk, or of one that waits for a disk, on a backend with
 * streams. */
static tws_code prepare_task(tws_executor *x, const program *p, uint32_t index, tws_error *err) {
  step_op *s = &p->ops[index];
  const int place = p->plan->ops[index].place;
  if (place == TWS_PLACE_DEVICE && s->disk_before == TWS_NONE) return TWS_OK;
  if (!x->setup.host || !x->setup.ops->call)
    return tws_fail(err, TWS_UNSUPPORTED, "leave offloading out, or train on the host",
                    "backend %s runs nothing on the host's cores", x->setup.ops->name);
  tws_host_task *t = s->task = tws_arena_alloc(x->arena, 1, sizeof *t);
  if (!t) return tws_fail(err, TWS_MEMORY, NULL, "out of memory");
  *t = (tws_host_task){.host = x->setup.host,
                       .kind = s->disk                     ? TWS_HOST_TRANSFER
                               : place == TWS_PLACE_DEVICE ? TWS_HOST_WAIT
                               : s->kind == TWS_OP_COPY    ? TWS_HOST_COPY
                                                           : TWS_HOST_KERNEL,
                       .label = s->label,
                       .work = s->work,
                       .arguments = s->arguments,
                       .address = s->address,
                       .dtype = s->dtype,
                       .count = s->count,
                       .bytes = s->bytes,
                       .disk = s->disk};
  if (s->disk_before != TWS_NONE) {
    t->awaited = p->ops[s->disk_before].disk;
    t->awaited_ticket = &p->tickets[s->disk_before];
  }
  if (!s->disk) return TWS_OK;
  t->ticket = &p->tickets[index];
  t->transfer = transfer_of(p, index);
  return TWS_OK;
}

/* Finds for each operation the last disk transfer that it waits for; that is enough, since the disk is a queue. */
static tws_code find_disk_waits(tws_executor *x, program *p, tws_error *err) {
  const tws_plan *plan = p->plan;
  int used = 0;
  for (uint32_t i = 0; i < plan->op_count; i++) {
    step_op *s = &p->ops[i];
    s->disk_before = TWS_NONE;
    used |= s->disk != NULL;
    for (uint32_t k = 0; k < plan->ops[i].dep_count; k++) {
      const uint32_t dep = plan->deps[plan->ops[i].dep_first + k];
      if (p->ops[dep].disk && (s->disk_before == TWS_NONE || dep > s->disk_before)) s->disk_before = dep;
    }
  }
  if (!used) return TWS_OK;
  p->tickets = tws_arena_alloc(x->arena, plan->op_count, sizeof *p->tickets);
  return p->tickets ? TWS_OK : tws_fail(err, TWS_MEMORY, NULL, "out of memory");
}

/* Assigns an event to each operation that another stream waits for. The event is reused after the last operation
 * that waits. */
static tws_code assign_events(tws_executor *x, const program *p, tws_error *err) {
  const tws_plan *plan = p->plan;
  uint32_t *last = tws_calloc(plan->op_count + 1u, sizeof *last); /* [operation] the last operation that waits for it */
  uint32_t *unused = tws_calloc(plan->op_count + 1u, sizeof *unused), unused_count = 0, events = 0;
  uint32_t *waits = tws_arena_alloc(x->arena, plan->dep_count + 1u, sizeof *waits);
  for (uint32_t i = 0; last && i < plan->op_count; i++)
    for (uint32_t k = 0; k < plan->ops[i].dep_count; k++) last[plan->deps[plan->ops[i].dep_first + k]] = i;
  for (uint32_t i = 0; last && unused && waits && i < plan->op_count; i++) {
    const tws_op *op = &plan->ops[i];
    step_op *s = &p->ops[i];
    s->waits = waits + op->dep_first;
    s->wait_count = op->dep_count;
    for (uint32_t k = 0; k < op->dep_count; k++) {
      const uint32_t dep = plan->deps[op->dep_first + k];
      waits[op->dep_first + k] = p->ops[dep].signal;
      if (last[dep] == i) unused[unused_count++] = p->ops[dep].signal;
    }
    s->signal = !op->awaited ? TWS_NONE : unused_count ? unused[--unused_count] : events++;
  }
  const int ok = last && unused && waits;
  tws_free(last);
  tws_free(unused);
  return ok ? TWS_OK : tws_fail(err, TWS_MEMORY, NULL, "out of memory");
}

static tws_code prepare(tws_executor *x, program *p, tws_error *err) {
  uint32_t count = p->plan->op_count;
  p->ops = tws_arena_alloc(x->arena, count + 1u, sizeof *p->ops);
  if (!p->ops) return tws_fail(err, TWS_MEMORY, NULL, "out of memory");
  TWS_TRY(describe_groups(x, p, err));
  for (uint32_t i = 0; i < count; i++) {
    tws_code code = prepare_op(x, p, i, err);
    if (code != TWS_OK)
      return tws_fail_in(err, code, "operation %u (%s)", (unsigned)i, p->ops[i].label ? p->ops[i].label : "?");
  }
  TWS_TRY(find_disk_waits(x, p, err));
  if (!x->setup.ops->wait) return TWS_OK;
  for (uint32_t i = 0; i < count; i++) TWS_TRY(prepare_task(x, p, i, err));
  return assign_events(x, p, err);
}

static tws_code check_matmul_dtype(const tws_executor_setup *setup, tws_error *err) {
  for (int i = 0; i < setup->program_count; i++) {
    const tws_plan *plan = setup->programs[i];
    if (plan && plan->matmul_dtype != TWS_MATMUL_AUTO)
      return tws_fail(err, TWS_UNSUPPORTED,
                      plan->matmul_dtype == TWS_MATMUL_FP8
                          ? "leave out --runtime: fp8 is run as this program does it"
                          : "set twinspeed.matmul_dtype to fp8, or leave it out: others are for predictions",
                      "matrix products in %s cannot be run", tws_matmul_dtype_name(plan->matmul_dtype));
  }
  return TWS_OK;
}

tws_code tws_executor_create(const tws_executor_setup *setup, tws_executor **out, tws_error *err) {
  *out = NULL;
  TWS_TRY(check_matmul_dtype(setup, err));
  tws_executor *x = tws_calloc(1, sizeof *x);
  if (!x) return tws_fail(err, TWS_MEMORY, NULL, "out of memory");
  x->setup = *setup;
  x->arena = tws_arena_create();
  atomic_store(&x->doing, NULL);
  x->replays = setup->ops->record && setup->ops->replay && (!setup->comm || setup->comm_ops->start_collective);
  tws_code code = x->arena ? allocate_all(x, err) : tws_fail(err, TWS_MEMORY, NULL, "out of memory");
  for (int i = 0; i < setup->program_count && code == TWS_OK; i++)
    if (setup->programs[i]) code = prepare(x, &x->programs[i], err);
  if (code == TWS_OK) code = tws_host_check_limit(err); /* checks the limit after all arenas were allocated */
  if (code != TWS_OK) {
    tws_executor_destroy(x);
    return code;
  }
  *out = x;
  return TWS_OK;
}

void tws_executor_destroy(tws_executor *x) {
  if (!x) return;
  release(x, &x->shared);
  for (int i = 0; i < x->state_count; i++) release(x, &x->states[i]);
  tws_arena_destroy(x->arena);
  tws_free(x);
}

/* ---- a step ---- */

/* Waits for all transfers of all disks. */
static tws_code wait_for_disks(tws_executor *x, tws_error *err) {
  for (int i = -1; i < x->state_count; i++) {
    tws_disk *disk = (i < 0 ? &x->shared : &x->states[i])->base[TWS_TIER_DISK];
    if (disk) TWS_TRY(tws_disk_wait(disk, tws_disk_started(disk), err));
  }
  return TWS_OK;
}

/* Starts a copy from or to the disk on a backend without streams, where all earlier operations have completed. */
static tws_code start_on_disk(tws_executor *x, const program *p, uint32_t index, double *times, tws_error *err) {
  const step_op *s = &p->ops[index];
  tws_disk_transfer transfer = transfer_of(p, index);
  transfer.times = times;
  if (x->on_disk && x->on_disk != s->disk) TWS_TRY(tws_disk_wait(x->on_disk, tws_disk_started(x->on_disk), err));
  x->on_disk = s->disk;
  return tws_disk_start(s->disk, &transfer, &p->tickets[index], err);
}

static tws_code wait_for_dependencies(tws_executor *x, const program *p, const step_op *s, tws_error *err) {
  if (!x->setup.ops->wait)
    return s->disk_before == TWS_NONE ? TWS_OK
                                      : tws_disk_wait(p->ops[s->disk_before].disk, p->tickets[s->disk_before], err);
  for (int i = 0; i < s->wait_count; i++)
    TWS_TRY(x->setup.ops->wait(x->setup.backend, (tws_stream)s->stream, s->waits[i], err));
  if (s->task && s->task->kind == TWS_HOST_WAIT)
    TWS_TRY(x->setup.ops->call(x->setup.backend, (tws_stream)s->stream, tws_host_work_run, s->task, err));
  /* Messages between processes are sent from host memory at once, so their data must be complete, and the device is
   * synchronized first. A communicator with streams of its own enqueues them in stream order instead. */
  if (x->setup.comm_ops && x->setup.comm_ops->start_collective) return TWS_OK;
  if (s->kind == TWS_OP_COLLECTIVE || s->kind == TWS_OP_SEND || s->kind == TWS_OP_RECV)
    return x->setup.ops->synchronize(x->setup.backend, err);
  return TWS_OK;
}

static tws_code collective(const tws_executor_setup *u, const step_op *s, tws_error *err) {
  const tws_collective kind = (tws_collective)s->work->code;
  const int group = (int)s->work->group;
  if (u->comm_ops->start_collective)
    return u->comm_ops->start_collective(u->comm, group, kind, s->root, s->segments, s->count, (tws_stream)s->stream,
                                         err);
  return u->comm_ops->collective(u->comm, group, kind, s->root, s->segments, s->count, err);
}

static tws_code message(const tws_executor_setup *u, const step_op *s, int peer, tws_error *err) {
  const int receives = s->kind == TWS_OP_RECV;
  if (u->comm_ops->start_message)
    return u->comm_ops->start_message(u->comm, peer, receives, s->address[0], s->bytes, (tws_stream)s->stream, err);
  if (receives) return u->comm_ops->receive(u->comm, peer, s->address[0], s->bytes, err);
  return u->comm_ops->send(u->comm, peer, s->address[0], s->bytes, err);
}

/* Runs one operation. times: receives its start and end, or NULL. */
static tws_code run_op(tws_executor *x, const program *p, uint32_t index, double *times, tws_error *err) {
  const tws_executor_setup *u = &x->setup;
  const step_op *s = &p->ops[index];
  if (s->task && s->task->kind != TWS_HOST_WAIT)
    return u->ops->call(u->backend, (tws_stream)s->stream, tws_host_work_run, s->task, err);
  switch ((tws_op_kind)s->kind) {
    case TWS_OP_COMPUTE:
    case TWS_OP_HOST:
      TWS_TRY(
          u->ops->run(u->backend, s->work, s->arguments, s->address, s->dtype, s->count, (tws_stream)s->stream, err));
      if (s->loss && !isfinite(*s->loss))
        return tws_fail(err, TWS_RANK, "lower the learning rate, clip gradients, or look for bad data",
                        "the loss is not a finite number");
      return TWS_OK;
    case TWS_OP_COLLECTIVE:
      return collective(u, s, err);
    case TWS_OP_COPY:
      if (s->disk) return start_on_disk(x, p, index, times, err);
      return u->ops->copy(u->backend, s->address[1], s->address[0], s->bytes, (tws_stream)s->stream, err);
    case TWS_OP_SEND:
    case TWS_OP_RECV:
      return message(u, s, (int)p->plan->ops[index].peer, err);
    default:
      return tws_fail(err, TWS_INTERNAL, NULL, "unknown kind of operation %d", s->kind);
  }
}

tws_code tws_executor_run(tws_executor *x, int index, uint32_t op, tws_error *err) {
  const program *p = &x->programs[index];
  tws_code code = run_op(x, p, op, NULL, err);
  if (code == TWS_OK) code = wait_for_disks(x, err);
  return code == TWS_OK ? code : tws_fail_in(err, code, "operation %u (%s)", (unsigned)op, p->ops[op].label);
}

const tws_comm_segment *tws_executor_segments(const tws_executor *x, int index, uint32_t op, int *count) {
  const step_op *s = &x->programs[index].ops[op];
  *count = s->count;
  return s->segments;
}

void *tws_executor_message(const tws_executor *x, int index, uint32_t op, uint64_t *bytes) {
  const step_op *s = &x->programs[index].ops[op];
  *bytes = s->bytes;
  return s->address[0];
}

/* Writes the activity line. Other processes may read it at any time, even while it is being written; it is always
 * zero-terminated. */
static void say(tws_executor *x, size_t prefix, const step_op *s) {
  char *to = x->setup.activity + prefix;
  size_t room = x->setup.activity_bytes - prefix - 1, label = s->label_length, where = s->where_length;
  if (label > room) label = room;
  if (where > room - label) where = room - label;
  memcpy(to, s->label, label);
  memcpy(to + label, s->where, where);
  to[label + where] = '\0';
}

static size_t begin_line(tws_executor *x, int64_t step) {
  if (!x->setup.activity || x->setup.activity_bytes < 64) return 0;
  return (size_t)snprintf(x->setup.activity, 48, "step %" PRId64 ", ", step);
}

static tws_code mark(const tws_executor *x, const step_op *s, double *times, uint32_t index, tws_error *err) {
  /* a disk records the times of its transfers itself; with streams, tasks start transfers, and no time is recorded
   * here */
  if (!times || (s->disk && !x->setup.ops->mark)) return TWS_OK;
  if (x->setup.ops->mark) return x->setup.ops->mark(x->setup.backend, (tws_stream)s->stream, index, err);
  times[index] = tws_clock_s();
  return TWS_OK;
}

typedef struct range {
  uint32_t first, end;
} range;

/* Runs the operations of a range in issue order. The first step on a backend with streams waits for each operation: it
 * loads kernels, allocates memory and connects, none of which may overlap with a kernel that waits for another rank. */
static tws_code run_range(tws_executor *x, const program *p, range ops, size_t prefix, double *times,
                          tws_executor_probe probe, void *user, tws_error *err) {
  const int careful = x->setup.ops->wait && !p->ran;
  for (uint32_t i = ops.first; i < ops.end; i++) {
    const step_op *s = &p->ops[i];
    atomic_store_explicit(&x->doing, s, memory_order_relaxed);
    if (prefix) say(x, prefix, s);
    tws_code code = probe ? probe(user, i, err) : TWS_OK;
    if (code == TWS_OK) code = wait_for_dependencies(x, p, s, err);
    if (code == TWS_OK) code = mark(x, s, times, 2 * i, err);
    if (code == TWS_OK) code = run_op(x, p, i, times ? times + 2 * (size_t)i : NULL, err);
    if (code == TWS_OK && x->setup.ops->signal && s->signal != TWS_NONE)
      code = x->setup.ops->signal(x->setup.backend, (tws_stream)s->stream, s->signal, err);
    if (code == TWS_OK) code = mark(x, s, times, 2 * i + 1, err);
    if (code == TWS_OK && careful) code = x->setup.ops->synchronize(x->setup.backend, err);
    if (code != TWS_OK) return tws_fail_in(err, code, "operation %u (%s)%s", (unsigned)i, s->label, s->where);
  }
  return x->setup.ops->wait ? TWS_OK : wait_for_disks(x, err); /* on a backend with streams, tasks start the transfers
                                                                * later, so there is nothing to wait for yet */
}

static tws_code run_ops(tws_executor *x, const program *p, size_t prefix, double *times, tws_executor_probe probe,
                        void *user, tws_error *err) {
  return run_range(x, p, (range){0, p->plan->op_count}, prefix, times, probe, user, err);
}

tws_disk_count tws_executor_disk_transferred(const tws_executor *x) {
  tws_disk_count sum = {0, 0};
  for (int i = -1; i < x->state_count; i++) {
    tws_disk *disk = (i < 0 ? &x->shared : &x->states[i])->base[TWS_TIER_DISK];
    const tws_disk_count moved = disk ? tws_disk_transferred(disk) : (tws_disk_count){0, 0};
    sum.read += moved.read;
    sum.written += moved.written;
  }
  return sum;
}

static tws_code record_step(tws_executor *x, const program *p, size_t prefix, tws_error *err) {
  const tws_backend_ops *ops = x->setup.ops;
  TWS_TRY(ops->record(x->setup.backend, 1, err));
  const tws_code code = run_ops(x, p, prefix, NULL, NULL, NULL, err);
  if (code == TWS_OK) return ops->record(x->setup.backend, 0, err);
  ops->record(x->setup.backend, -1, NULL);
  return code;
}

/* Launches the whole step, which the first call records. If recording fails, no operation has run: the steps then run
 * operation by operation, which reports errors that have other causes than the recording. */
static tws_code replay(tws_executor *x, program *p, size_t prefix, tws_error *err) {
  static const step_op whole = {.label = "a recorded step", .where = "", .label_length = 15};
  const tws_backend_ops *ops = x->setup.ops;
  if (!p->recorded) {
    tws_error why = {0};
    const tws_code code = record_step(x, p, prefix, &why);
    if (code == TWS_HANG) {
      if (err) *err = why;
      return code;
    }
    if (code != TWS_OK) {
      x->replays = 0;
      if (code != TWS_UNSUPPORTED) snprintf(x->not_recorded, sizeof x->not_recorded, "%.250s", why.message);
      return run_ops(x, p, prefix, NULL, NULL, NULL, err);
    }
    p->recorded = 1;
  }
  atomic_store_explicit(&x->doing, &whole, memory_order_relaxed);
  if (prefix) say(x, prefix, &whole);
  return ops->replay(x->setup.backend, err);
}

/* Converts time stamps of the device to seconds of tws_clock_s(), assuming that the last of them was recorded just
 * now. */
static tws_code read_marks(const tws_executor *x, const program *p, double *times, tws_error *err) {
  const uint32_t count = 2 * p->plan->op_count;
  double last = 0;
  TWS_TRY(x->setup.ops->marked(x->setup.backend, count, times, err));
  const double now = tws_clock_s();
  for (uint32_t i = 0; i < count; i++) last = fmax(last, times[i]);
  for (uint32_t i = 0; i < count; i++) times[i] += now - last;
  for (uint32_t i = 0; i < p->plan->op_count; i++) /* stream DISK only starts transfers; the disk has their times */
    if (p->ops[i].disk) memcpy(times + 2 * (size_t)i, p->ops[i].task->times, sizeof p->ops[i].task->times);
  return TWS_OK;
}

tws_code tws_executor_start(tws_executor *x, int index, int64_t step, double *times, tws_executor_probe probe,
                            void *user, tws_error *err) {
  program *p = &x->programs[index];
  x->prefix = begin_line(x, step);
  if (x->replays && index == x->setup.recorded && p->ran && !times && !probe) return replay(x, p, x->prefix, err);
  return run_ops(x, p, x->prefix, times, probe, user, err);
}

tws_code tws_executor_finish(tws_executor *x, int index, double *times, tws_error *err) {
  program *p = &x->programs[index];
  TWS_TRY(x->setup.ops->synchronize(x->setup.backend, err));
  if (x->setup.host) {
    TWS_TRY(tws_host_work_failed(x->setup.host, err));
    TWS_TRY(wait_for_disks(x, err));
  }
  if (times && x->setup.ops->mark) TWS_TRY(read_marks(x, p, times, err));
  p->ran = 1;
  atomic_store(&x->doing, NULL);
  if (x->prefix) snprintf(x->setup.activity + x->prefix, x->setup.activity_bytes - x->prefix, "between steps");
  return TWS_OK;
}

tws_code tws_executor_part(tws_executor *x, int index, uint32_t first, uint32_t end, int64_t step, tws_error *err) {
  program *p = &x->programs[index];
  const int ran = p->ran;
  x->prefix = begin_line(x, step);
  TWS_TRY(run_range(x, p, (range){first, end}, x->prefix, NULL, NULL, NULL, err));
  TWS_TRY(tws_executor_finish(x, index, NULL, err));
  if (end < p->plan->op_count) p->ran = ran; /* the program has not run completely */
  return TWS_OK;
}

tws_code tws_executor_step(tws_executor *x, int index, int64_t step, double *times, tws_executor_probe probe,
                           void *user, tws_error *err) {
  TWS_TRY(tws_executor_start(x, index, step, times, probe, user, err));
  return tws_executor_finish(x, index, times, err);
}

const char *tws_executor_not_recorded(const tws_executor *x) {
  return x->not_recorded[0] ? x->not_recorded : NULL;
}

const void *tws_executor_at(const tws_executor *x) {
  return atomic_load(&x->doing);
}

const char *tws_executor_activity(const tws_executor *x, char *buffer, int size) {
  const step_op *s = atomic_load(&x->doing);
  snprintf(buffer, (size_t)size, "%s%s", s ? s->label : "between steps", s ? s->where : "");
  return buffer;
}

const char *tws_executor_label(const tws_executor *x, int index, uint32_t op) {
  return x->programs[index].ops[op].label;
}
