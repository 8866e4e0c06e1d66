/* Which operations have to wait for operations of other streams: those that touch the same piece of a buffer, and those
 * that last used the memory a new buffer is laid on. One sweep in issue order, after the layout. */
#include <string.h>

#include "plan/builder.h"
#include "plan/history.h"
#include "plan/layout.h"

typedef struct cell {  /* a piece of a buffer */
  uint32_t written_by; /* operation + 1 */
  tws_touched read_at; /* last read per stream since then, as stream positions */
} cell;

typedef struct finisher {
  tws_builder *b;
  tws_plan *plan;
  tws_touched *clock;             /* per operation: how far each stream is known to be done when it starts */
  uint32_t *position;             /* per operation: 1-based place in its stream */
  uint32_t *at[TWS_STREAM_COUNT]; /* operation by place */
  uint32_t length[TWS_STREAM_COUNT];
  cell *cells;
  tws_touched *touched;  /* per buffer */
  uint8_t *begun;        /* per buffer */
  uint32_t *first_piece; /* per operand: where it begins */
  uint32_t *ending;      /* buffers by last operation: first of a list */
  uint32_t *ending_next; /* per buffer */
  tws_history history[TWS_TIER_COUNT];
} finisher;

/* Wait until `stream` has done its operation number `place`. */
static void wait_for(finisher *f, uint32_t op, int stream, uint32_t place) {
  tws_plan *plan = f->plan;
  tws_touched *clock = &f->clock[op];
  if (place == 0 || stream == plan->ops[op].stream || clock->position[stream] >= place) return;
  uint32_t other = f->at[stream][place - 1];
  if (f->b->failed != TWS_OK) return;
  if (tws_reserve(&plan->deps, &f->b->dep_capacity, plan->dep_count + 1u, sizeof *plan->deps)) {
    tws_builder_fail(f->b, TWS_MEMORY, "no memory");
    return;
  }
  plan->deps[plan->dep_count++] = other;
  plan->ops[op].dep_count++;
  for (int s = 0; s < TWS_STREAM_COUNT; s++) {
    if (f->clock[other].position[s] > clock->position[s]) clock->position[s] = f->clock[other].position[s];
  }
  if (clock->position[stream] < place) clock->position[stream] = place;
}

static void wait_all(finisher *f, uint32_t op, const tws_touched *touched) {
  for (int s = 0; s < TWS_STREAM_COUNT; s++) wait_for(f, op, s, touched->position[s]);
}

static void begin_buffer(finisher *f, uint32_t index, uint32_t op) {
  const tws_buffer *buffer = &f->plan->buffers[index];
  tws_touched touched;
  if (tws_history_take(&f->history[buffer->tier], buffer->offset, tws_layout_bytes(buffer->bytes), f->touched,
                       &touched)) {
    tws_builder_fail(f->b, TWS_MEMORY, "no memory");
  }
  wait_all(f, op, &touched);
}

static uint32_t piece_at(const struct tws_pieces *pieces, uint64_t element) {
  uint32_t low = 0, high = pieces->count;
  while (high - low > 1) {
    uint32_t middle = low + (high - low) / 2;
    if (pieces->start[middle] <= element) {
      low = middle;
    } else {
      high = middle;
    }
  }
  return low;
}

/* Whether the operand, which begins in piece `first`, reaches piece i. */
static int touches(const struct tws_pieces *pieces, uint32_t i, uint32_t first, const tws_operand *operand) {
  return i == first || (i < pieces->count && pieces->start[i] < operand->offset + operand->count);
}

static void access_operand(finisher *f, uint32_t op, const tws_operand *operand) {
  if (operand->count == 0) return;
  const struct tws_pieces *pieces = &f->b->pieces[operand->buffer];
  uint32_t first = piece_at(pieces, operand->offset);
  f->first_piece[operand - f->plan->operands] = first;
  for (uint32_t i = first; touches(pieces, i, first, operand); i++) {
    cell *c = &f->cells[pieces->first_cell + i];
    if (c->written_by) {
      uint32_t writer = c->written_by - 1;
      wait_for(f, op, f->plan->ops[writer].stream, f->position[writer]);
    }
    if (operand->access & TWS_WRITE) wait_all(f, op, &c->read_at);
  }
}

/* After all waits of an operation are known: leave its marks. Separate, so that operands of one operation that overlap
 * (in-place kernels) do not wait for each other. */
static void mark_operand(finisher *f, uint32_t op, const tws_operand *operand) {
  int stream = f->plan->ops[op].stream;
  f->touched[operand->buffer].position[stream] = f->position[op];
  if (operand->count == 0) return;
  const struct tws_pieces *pieces = &f->b->pieces[operand->buffer];
  uint32_t first = f->first_piece[operand - f->plan->operands];
  for (uint32_t i = first; touches(pieces, i, first, operand); i++) {
    cell *c = &f->cells[pieces->first_cell + i];
    if (operand->access & TWS_WRITE) {
      /* Several streams may write different parts of one piece in turn; each waited for the one before. */
      c->written_by = op + 1;
      memset(&c->read_at, 0, sizeof c->read_at);
    } else {
      c->read_at.position[stream] = f->position[op];
    }
  }
}

static void release_ending(finisher *f, uint32_t op) {
  for (uint32_t i = f->ending[op]; i != TWS_NONE; i = f->ending_next[i]) {
    tws_buffer *buffer = &f->plan->buffers[i];
    if (tws_history_give(&f->history[buffer->tier], buffer->offset, tws_layout_bytes(buffer->bytes), i)) {
      tws_builder_fail(f->b, TWS_MEMORY, "no memory");
    }
  }
}

static tws_code prepare(finisher *f, tws_arena *scratch) {
  tws_plan *plan = f->plan;
  uint32_t cells = 0;
  for (uint32_t i = 0; i < plan->buffer_count; i++) {
    f->b->pieces[i].first_cell = cells;
    cells += f->b->pieces[i].count;
  }
  f->clock = tws_arena_alloc(scratch, plan->op_count + 1u, sizeof *f->clock);
  f->position = tws_arena_alloc(scratch, plan->op_count + 1u, sizeof *f->position);
  f->cells = tws_arena_alloc(scratch, cells + 1u, sizeof *f->cells);
  f->touched = tws_arena_alloc(scratch, plan->buffer_count + 1u, sizeof *f->touched);
  f->begun = tws_arena_alloc(scratch, plan->buffer_count + 1u, 1);
  f->first_piece = tws_arena_alloc(scratch, plan->operand_count + 1u, sizeof *f->first_piece);
  f->ending = tws_arena_alloc(scratch, plan->op_count + 1u, sizeof *f->ending);
  f->ending_next = tws_arena_alloc(scratch, plan->buffer_count + 1u, sizeof *f->ending_next);
  if (!f->clock || !f->position || !f->cells || !f->touched || !f->begun || !f->first_piece || !f->ending ||
      !f->ending_next) {
    return tws_builder_fail(f->b, TWS_MEMORY, "no memory");
  }
  for (uint32_t op = 0; op < plan->op_count; op++) {
    f->position[op] = ++f->length[plan->ops[op].stream];
    f->ending[op] = TWS_NONE;
  }
  for (int s = 0; s < TWS_STREAM_COUNT; s++) {
    f->at[s] = tws_arena_alloc(scratch, f->length[s] + 1u, sizeof *f->at[s]);
    if (!f->at[s]) return tws_builder_fail(f->b, TWS_MEMORY, "no memory");
  }
  for (uint32_t op = 0; op < plan->op_count; op++) f->at[plan->ops[op].stream][f->position[op] - 1] = op;
  for (uint32_t i = plan->buffer_count; i-- > 0;) {
    tws_buffer *buffer = &plan->buffers[i];
    if (buffer->persistent || buffer->last_op == TWS_NONE) continue;
    f->ending_next[i] = f->ending[buffer->last_op];
    f->ending[buffer->last_op] = i;
  }
  return TWS_OK;
}

static void sweep(finisher *f) {
  tws_plan *plan = f->plan;
  uint32_t last[TWS_STREAM_COUNT];
  memset(last, 0, sizeof last);
  for (uint32_t op = 0; op < plan->op_count && f->b->failed == TWS_OK; op++) {
    tws_op *o = &plan->ops[op];
    o->dep_first = plan->dep_count;
    if (last[o->stream]) f->clock[op] = f->clock[last[o->stream] - 1];
    f->clock[op].position[o->stream] = f->position[op] - 1;
    const tws_operand *operands = plan->operands + o->operand_first;
    for (int i = 0; i < o->operand_count; i++) {
      const tws_buffer *buffer = &plan->buffers[operands[i].buffer];
      /* the same new buffer may be named by several operands */
      if (buffer->first_op == op && !buffer->persistent && !f->begun[operands[i].buffer]) {
        f->begun[operands[i].buffer] = 1;
        begin_buffer(f, operands[i].buffer, op);
      }
      access_operand(f, op, &operands[i]);
    }
    for (int i = 0; i < o->operand_count; i++) mark_operand(f, op, &operands[i]);
    last[o->stream] = op + 1;
    release_ending(f, op);
  }
}

tws_code tws_builder_finish(tws_builder *b) {
  if (b->failed != TWS_OK) return b->failed;
  finisher f = {.b = b, .plan = b->plan};
  tws_arena *scratch = tws_arena_create();
  if (!scratch) return tws_builder_fail(b, TWS_MEMORY, "no memory");
  if (tws_layout_make(b, scratch) == TWS_OK && prepare(&f, scratch) == TWS_OK) sweep(&f);
  for (int t = 0; t < TWS_TIER_COUNT; t++) tws_history_free(&f.history[t]);
  tws_arena_destroy(scratch);
  return b->failed;
}
