/* The verifier. It trusts nothing that tws_plan_build() derived: from streams and dependencies alone it computes which
 * operations have certainly ended before each operation starts, then replays the operations over the bytes of each
 * arena. */
#include <stdlib.h>
#include <string.h>

#include "models/collective.h"
#include "models/operator.h"
#include "plan/collective.h"

typedef struct reach {
  uint32_t position[TWS_STREAM_COUNT]; /* per stream: 1-based position of an operation; 0: none */
} reach;

typedef struct piece { /* the bytes between two adjacent cuts of an arena */
  uint32_t owner;      /* 1 + the index of the buffer that has used these bytes last; 0: no buffer has */
  uint32_t written_by; /* 1 + the index of the operation that wrote these bytes last; 0: they have no content */
  reach touched;       /* positions of the last access of each stream */
  reach wrote;         /* positions of the last write of each stream */
} piece;

typedef struct verifier {
  const tws_plan *plan;
  tws_error *err;
  tws_arena *scratch;
  reach *clock;
  uint32_t *position;
  uint64_t *cuts[TWS_ARENA_COUNT];
  size_t cut_count[TWS_ARENA_COUNT];
  piece *pieces[TWS_ARENA_COUNT];
  size_t *first_piece; /* per operand: index of the first segment of its arena that it covers */
} verifier;

static tws_code complain_of(verifier *v, uint32_t op, const char *what, uint32_t buffer) {
  char label[160];
  return tws_fail(v->err, TWS_INTERNAL, "this is a defect of the plan, not of the input: please report it",
                  "rank %d, operation %u (%s): %s '%s'", v->plan->rank, op,
                  tws_op_label(v->plan, op, label, sizeof label), what,
                  buffer < v->plan->buffer_count ? v->plan->buffers[buffer].name : "");
}

static int by_value(const void *a, const void *b) {
  uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
  return (x > y) - (x < y);
}

/* Checks that the ranges of a collective fit the group, and that their sizes add up to the bytes of its work. */
static tws_code check_collective(verifier *v, uint32_t op) {
  const tws_plan *plan = v->plan;
  const tws_op *o = &plan->ops[op];
  const tws_work *work = &plan->works[o->work];
  uint64_t whole = 0;
  if (work->group >= plan->group_count) return complain_of(v, op, "names no group", TWS_NONE);
  const tws_collective_row *row = tws_collective_of((tws_collective)work->code);
  const uint64_t parts = row->sends_parts || row->receives_parts ? (uint64_t)plan->groups[work->group].size : 1;
  for (uint32_t next = 0; next < o->operand_count;) {
    tws_plan_segment segment;
    tws_error why = {0};
    if (tws_plan_next_segment(plan, o, &next, &segment, &why) != TWS_OK)
      return complain_of(v, op, why.message, TWS_NONE);
    whole += segment.count * parts * tws_dtype_bytes(segment.dtype);
  }
  if (whole != (uint64_t)work->d[0] && o->operand_count && !(work->flags & TWS_UNEVEN))
    return complain_of(v, op, "has ranges of other bytes than its work says", TWS_NONE);
  return TWS_OK;
}

static tws_code check_structure(verifier *v) {
  const tws_plan *plan = v->plan;
  for (uint32_t op = 0; op < plan->op_count; op++) {
    const tws_op *o = &plan->ops[op];
    if (o->kind >= TWS_OP_KIND_COUNT || o->stream >= TWS_STREAM_COUNT || o->phase >= TWS_PHASE_COUNT ||
        o->place >= TWS_PLACE_COUNT || o->channel >= TWS_CHANNEL_COUNT || o->work >= plan->work_count) {
      return complain_of(v, op, "a field is out of range", TWS_NONE);
    }
    for (uint32_t i = 0; i < o->dep_count; i++) {
      uint32_t dep = plan->deps[o->dep_first + i];
      if (dep >= op) return complain_of(v, op, "waits for an operation that is issued later", TWS_NONE);
      if (!plan->ops[dep].awaited) return complain_of(v, op, "waits for an operation that is not marked so", TWS_NONE);
      if (plan->ops[dep].stream == o->stream) return complain_of(v, op, "waits for its own stream", TWS_NONE);
    }
    for (uint32_t i = 0; i < o->operand_count; i++) {
      const tws_operand *operand = &plan->operands[o->operand_first + i];
      if (operand->buffer >= plan->buffer_count) return complain_of(v, op, "names no buffer", TWS_NONE);
      const tws_buffer *buffer = &plan->buffers[operand->buffer];
      if (operand->offset + operand->count > buffer->elements) {
        return complain_of(v, op, "reaches past the end of", operand->buffer);
      }
      if (buffer->offset + buffer->bytes > tws_plan_arena_of(plan, buffer) || buffer->offset % TWS_ALIGNMENT) {
        return complain_of(v, op, "uses memory outside the arena:", operand->buffer);
      }
    }
    if (o->kind == TWS_OP_COLLECTIVE) TWS_TRY(check_collective(v, op));
    if (o->arguments > plan->argument_count) return complain_of(v, op, "names no arguments", TWS_NONE);
    const tws_operator *row = o->kind == TWS_OP_COMPUTE ? tws_operator_of((tws_kernel)plan->works[o->work].code) : NULL;
    if (o->arguments && (!row || row->arguments == 0))
      return complain_of(v, op, "has arguments, and what it does has none", TWS_NONE);
  }
  return TWS_OK;
}

/* Checks that each operation of a channel starts after the previous one has ended. */
static tws_code check_channels(verifier *v) {
  const tws_plan *plan = v->plan;
  uint32_t last[TWS_CHANNEL_COUNT] = {0}; /* per channel: 1 + the last operation */
  for (uint32_t op = 0; op < plan->op_count; op++) {
    const tws_op *o = &plan->ops[op];
    const uint32_t before = last[o->channel];
    if (o->channel == TWS_CHANNEL_NONE) continue;
    if (before && v->clock[op].position[plan->ops[before - 1].stream] < v->position[before - 1])
      return complain_of(v, op, "does not wait for the operation before it on channel", TWS_NONE);
    last[o->channel] = op + 1;
  }
  return TWS_OK;
}

static tws_code run_clocks(verifier *v) {
  const tws_plan *plan = v->plan;
  uint32_t length[TWS_STREAM_COUNT] = {0}, last[TWS_STREAM_COUNT] = {0};
  v->clock = tws_arena_alloc(v->scratch, plan->op_count + 1u, sizeof *v->clock);
  v->position = tws_arena_alloc(v->scratch, plan->op_count + 1u, sizeof *v->position);
  if (!v->clock || !v->position) return tws_fail(v->err, TWS_MEMORY, NULL, "no memory to verify the plan");
  for (uint32_t op = 0; op < plan->op_count; op++) {
    const tws_op *o = &plan->ops[op];
    reach *clock = &v->clock[op];
    if (last[o->stream]) *clock = v->clock[last[o->stream] - 1];
    clock->position[o->stream] = length[o->stream];
    v->position[op] = ++length[o->stream];
    last[o->stream] = op + 1;
    for (uint32_t i = 0; i < o->dep_count; i++) {
      uint32_t dep = plan->deps[o->dep_first + i];
      for (int s = 0; s < TWS_STREAM_COUNT; s++) {
        uint32_t known = v->clock[dep].position[s];
        if (s == plan->ops[dep].stream) known = v->position[dep];
        if (known > clock->position[s]) clock->position[s] = known;
      }
    }
  }
  return TWS_OK;
}

/* Checks the micro-batch barriers of a plan (tws_plan.micro_batch_barriers): collectives of parameters and gradients
 * wait for the computation issued before them, and a micro-batch waits for the reductions of earlier ones and, on
 * several ranks, for their copies to the host. Positions are indices in streams. */
static tws_code check_pace(verifier *v) {
  const tws_plan *plan = v->plan;
  uint32_t computed = 0, reduced = 0, all_reduced = 0, copied = 0, all_copied = 0;
  for (uint32_t op = 0; op < plan->op_count && plan->micro_batch_barriers; op++) {
    const tws_op *o = &plan->ops[op], *before = op > 0 ? o - 1 : o;
    const int ends = tws_op_in_optimizer_phase(plan, op), moves = tws_stream_waits_for_compute(o->stream);
    const int begins =
        o->micro_batch != before->micro_batch || ends != tws_op_in_optimizer_phase(plan, op > 0 ? op - 1 : op);
    if (begins) all_reduced = reduced;
    if (begins && plan->world > 1) all_copied = copied;
    if (moves && !ends && v->clock[op].position[TWS_STREAM_COMPUTE] < computed)
      return complain_of(v, op, "does not wait for what computes", TWS_NONE);
    if (v->clock[op].position[TWS_STREAM_REDUCE] < all_reduced)
      return complain_of(v, op, "does not wait for what was reduced", TWS_NONE);
    if (v->clock[op].position[TWS_STREAM_COPY_OUT] < all_copied)
      return complain_of(v, op, "does not wait for what was copied to the host", TWS_NONE);
    if (o->stream == TWS_STREAM_COMPUTE) computed = v->position[op];
    if (o->stream == TWS_STREAM_REDUCE) reduced = v->position[op];
    if (o->stream == TWS_STREAM_COPY_OUT) copied = v->position[op];
  }
  return TWS_OK;
}

/* Checks copies of activation checkpoints: they wait for the computation issued before them; a pass begins after the
 * copies of earlier passes; and after a copy to the host is issued, computation waits for the copies before it.
 * Positions are indices in streams. */
static tws_code check_checkpoints(verifier *v) {
  const tws_plan *plan = v->plan;
  uint32_t computed = 0, sent = 0, last_sent = 0, brought = 0, all_sent = 0, all_brought = 0, pass = 0, since = 0;
  for (uint32_t op = 0; op < plan->op_count; op++) {
    const tws_op *o = &plan->ops[op];
    const uint32_t *reached = v->clock[op].position;
    const int moves = tws_op_moves_checkpoint(plan, o);
    if (!tws_op_follows_checkpoints(plan, o)) continue;
    if (tws_op_pass(o) != pass) {
      all_sent = last_sent;
      all_brought = brought;
      sent = 0;
    }
    pass = tws_op_pass(o);
    if (moves && reached[TWS_STREAM_COMPUTE] < computed)
      return complain_of(v, op, "does not wait for what computes", TWS_NONE);
    if (reached[TWS_STREAM_COPY_OUT] < all_sent || reached[TWS_STREAM_COPY_IN] < all_brought)
      return complain_of(v, op, "does not wait for checkpoints of the pass before", TWS_NONE);
    if (o->stream == TWS_STREAM_COMPUTE && reached[TWS_STREAM_COPY_OUT] < sent)
      return complain_of(v, op, "does not wait for the checkpoint that was sent before the last", TWS_NONE);
    if (o->stream == TWS_STREAM_COMPUTE) computed = since = v->position[op];
    if (!moves) continue;
    if (o->stream == TWS_STREAM_COPY_IN) brought = v->position[op];
    if (o->stream != TWS_STREAM_COPY_OUT) continue;
    if (since) sent = last_sent;
    last_sent = v->position[op];
    since = 0;
  }
  return TWS_OK;
}

static void operand_bytes(const tws_plan *plan, const tws_operand *operand, uint64_t *begin, uint64_t *end) {
  const tws_buffer *buffer = &plan->buffers[operand->buffer];
  size_t size = tws_dtype_bytes((tws_dtype)buffer->dtype);
  *begin = buffer->offset + operand->offset * size;
  *end = *begin + operand->count * size;
}

/* Returns the index of the first element >= `value` of an ascending array; `count` if there is none. */
static size_t place_of(const uint64_t *values, size_t count, uint64_t value) {
  size_t first = 0;
  while (count) {
    size_t half = count / 2;
    if (values[first + half] < value) {
      first += half + 1;
      count -= half + 1;
    } else {
      count = half;
    }
  }
  return first;
}

static tws_code make_pieces(verifier *v) {
  const tws_plan *plan = v->plan;
  unsigned char *whole = tws_arena_alloc(v->scratch, plan->buffer_count + 1u, 1);
  v->first_piece = tws_arena_alloc(v->scratch, plan->operand_count + 1u, sizeof *v->first_piece);
  if (!whole || !v->first_piece) return tws_fail(v->err, TWS_MEMORY, NULL, "no memory to verify the plan");
  for (int arena = 0; arena < TWS_ARENA_COUNT; arena++) {
    size_t n = 0;
    uint64_t *cuts = tws_arena_alloc(v->scratch, 2 * (size_t)plan->operand_count + 2, sizeof *cuts);
    if (!cuts) return tws_fail(v->err, TWS_MEMORY, NULL, "no memory to verify the plan");
    for (uint32_t i = 0; i < plan->operand_count; i++) {
      const tws_operand *operand = &plan->operands[i];
      const tws_buffer *buffer = &plan->buffers[operand->buffer];
      if (tws_buffer_arena(buffer) != arena || !operand->count) continue;
      /* the cuts at the boundaries of this buffer have been added for an earlier operand */
      if (operand->count == buffer->elements && whole[operand->buffer]) continue;
      whole[operand->buffer] |= operand->count == buffer->elements;
      operand_bytes(plan, operand, &cuts[n], &cuts[n + 1]);
      n += 2;
    }
    qsort(cuts, n, sizeof *cuts, by_value);
    size_t unique = 0;
    for (size_t i = 0; i < n; i++) {
      if (unique == 0 || cuts[unique - 1] != cuts[i]) cuts[unique++] = cuts[i];
    }
    v->cuts[arena] = cuts;
    v->cut_count[arena] = unique;
    v->pieces[arena] = tws_arena_alloc(v->scratch, unique + 1, sizeof *v->pieces[arena]);
    if (!v->pieces[arena]) return tws_fail(v->err, TWS_MEMORY, NULL, "no memory to verify the plan");
  }
  for (uint32_t i = 0; i < plan->operand_count; i++) {
    uint64_t begin, end;
    int arena = tws_buffer_arena(&plan->buffers[plan->operands[i].buffer]);
    operand_bytes(plan, &plan->operands[i], &begin, &end);
    v->first_piece[i] = place_of(v->cuts[arena], v->cut_count[arena], begin);
  }
  return TWS_OK;
}

static int has_happened(const verifier *v, uint32_t op, const reach *touched) {
  for (int s = 0; s < TWS_STREAM_COUNT; s++) {
    if (touched->position[s] > v->clock[op].position[s]) return 0;
  }
  return 1;
}

/* Checks the first access of a buffer to a segment of memory that belonged to another buffer, or to none. */
static tws_code take_over(verifier *v, uint32_t op, uint32_t buffer, piece *p) {
  const tws_buffer *b = &v->plan->buffers[buffer];
  if (p->owner) {
    const tws_buffer *before = &v->plan->buffers[p->owner - 1];
    if (before->lifetime != TWS_LIFETIME_OPS || b->lifetime != TWS_LIFETIME_OPS || before->last_op >= op) {
      return complain_of(v, op, "overwrites memory of a buffer that is still in use:", p->owner - 1);
    }
    if (!has_happened(v, op, &p->touched)) {
      return complain_of(v, op, "reuses memory that another stream may still be using:", p->owner - 1);
    }
  }
  memset(p, 0, sizeof *p);
  p->owner = buffer + 1;
  /* a buffer of the program or the state counts as written, by the host before the program, unlike one of operations */
  p->written_by = b->lifetime != TWS_LIFETIME_OPS ? op + 1 : 0;
  return TWS_OK;
}

static tws_code check_operand(verifier *v, uint32_t op, const tws_operand *operand, int mark) {
  const tws_plan *plan = v->plan;
  uint64_t begin, end;
  if (!operand->count) return TWS_OK;
  operand_bytes(plan, operand, &begin, &end);
  int arena = tws_buffer_arena(&plan->buffers[operand->buffer]), stream = plan->ops[op].stream;
  uint64_t *cuts = v->cuts[arena];
  for (size_t i = v->first_piece[operand - plan->operands]; cuts[i] < end; i++) {
    piece *p = &v->pieces[arena][i];
    if (mark) {
      p->touched.position[stream] = v->position[op];
      if (operand->access & TWS_WRITE) {
        p->written_by = op + 1;
        p->wrote.position[stream] = v->position[op];
      }
      continue;
    }
    if (p->owner != operand->buffer + 1) TWS_TRY(take_over(v, op, operand->buffer, p));
    if ((operand->access & TWS_READ) && !p->written_by) {
      return complain_of(v, op, "reads what no operation has written:", operand->buffer);
    }
    if (!has_happened(v, op, operand->access & TWS_WRITE ? &p->touched : &p->wrote)) {
      return complain_of(v, op, "is not ordered after another stream's access to", operand->buffer);
    }
  }
  return TWS_OK;
}

/* Replays the operations: for each one, checks all accesses before it records any, since operations in place read and
 * write one range. */
static tws_code replay_operations(verifier *v) {
  const tws_plan *plan = v->plan;
  for (uint32_t op = 0; op < plan->op_count; op++) {
    const tws_op *o = &plan->ops[op];
    const tws_operand *operands = plan->operands + o->operand_first;
    for (int i = 0; i < o->operand_count; i++) TWS_TRY(check_operand(v, op, &operands[i], 0));
    for (int i = 0; i < o->operand_count; i++) TWS_TRY(check_operand(v, op, &operands[i], 1));
  }
  return TWS_OK;
}

/* Checks that both ranges of each copy have the same length and type. Returns TWS_INTERNAL otherwise. */
static tws_code check_copies(verifier *v) {
  const tws_plan *plan = v->plan;
  for (uint32_t op = 0; op < plan->op_count; op++) {
    const tws_operand *o = &plan->operands[plan->ops[op].operand_first];
    if (plan->ops[op].kind != TWS_OP_COPY) continue;
    if (plan->ops[op].operand_count != 2 || o[0].count != o[1].count ||
        plan->buffers[o[0].buffer].dtype != plan->buffers[o[1].buffer].dtype)
      return complain_of(v, op, "copies to a range of another length or type:", o[1].buffer);
  }
  return TWS_OK;
}

static tws_code check_lifetimes(verifier *v) {
  const tws_plan *plan = v->plan;
  for (uint32_t op = 0; op < plan->op_count; op++) {
    const tws_op *o = &plan->ops[op];
    for (int i = 0; i < o->operand_count; i++) {
      const tws_buffer *b = &plan->buffers[plan->operands[o->operand_first + (uint32_t)i].buffer];
      if (b->lifetime == TWS_LIFETIME_OPS && (op < b->first_op || op > b->last_op)) {
        return complain_of(
            v, op, "uses a buffer outside its lifetime:", plan->operands[o->operand_first + (uint32_t)i].buffer);
      }
    }
  }
  return TWS_OK;
}

tws_code tws_plan_verify(const tws_plan *plan, tws_error *err) {
  verifier v = {.plan = plan, .err = err, .scratch = tws_arena_create()};
  if (!v.scratch) return tws_fail(err, TWS_MEMORY, NULL, "no memory to verify the plan");
  tws_code code = check_structure(&v);
  if (code == TWS_OK) code = check_copies(&v);
  if (code == TWS_OK) code = check_lifetimes(&v);
  if (code == TWS_OK) code = run_clocks(&v);
  if (code == TWS_OK) code = check_channels(&v);
  if (code == TWS_OK) code = check_pace(&v);
  if (code == TWS_OK) code = check_checkpoints(&v);
  if (code == TWS_OK) code = make_pieces(&v);
  if (code == TWS_OK) code = replay_operations(&v);
  tws_arena_destroy(v.scratch);
  return code;
}
