/* Derives dependencies between streams in one sweep in issue order, after the layout. An operation waits for
 * conflicting accesses to the same segment of a buffer, for the last users of the memory that a new buffer occupies,
 * and for the previous operation on its channel.
 *
 * Plans with micro-batch barriers (tws_plan.micro_batch_barriers: ZeRO 2 and 3, overlapped or offloaded) are
 * synchronized as DeepSpeed's streams are: gathers, reductions and copies from the host wait for the computation that
 * was issued before them, and every micro-batch and the optimizer phase begin when all gradients are reduced and, on
 * several ranks, copied to the host.
 *
 * Copies of activation checkpoints to and from the host wait for the computation that was issued before them. When a
 * copy to the host is issued, computation waits for the previous such copy, so that at most two checkpoints are on the
 * device; a pass begins after the copies of the previous pass.
 *
 * In all these plans, and if exchanges of tensor ranks or of a ring overlap with compute, no operation waits for
 * memory, so that times do not depend on the layout and no overlap is lost. A sweep before the layout determines when
 * the compute stream has waited for the last user of a buffer; the layout reserves the buffer's memory until then. The
 * memory is then free for all operations that are issued later on the compute stream or wait for it. An exchange waits
 * only for its inputs, so the memory of a buffer that it writes first is reserved from that operation on. */
#include <string.h>

#include "plan/builder.h"
#include "plan/history.h"
#include "plan/layout.h"

/* State of the sweep. The streams that the plan uses are numbered 0 .. streams - 1 here. A position in a stream is the
 * 1-based number of an operation of the stream; 0: before the first operation. */
typedef struct finisher {
  tws_builder *b;
  tws_plan *plan;
  uint32_t streams;
  uint8_t stream_index[TWS_STREAM_COUNT], used[TWS_STREAM_COUNT];
  uint8_t *stream; /* per operation: number of its stream */
  /* per operation and stream: position that the stream has reached for certain when the operation starts */
  uint32_t *clock;
  uint32_t *position;             /* per operation: its position in its stream */
  uint32_t *at[TWS_STREAM_COUNT]; /* per stream and position: index of the operation */
  uint32_t length[TWS_STREAM_COUNT];
  uint32_t needed[TWS_STREAM_COUNT]; /* per stream: position that the current operation has to wait for */
  uint32_t *written_by;              /* per cell (a segment of a buffer): 1 + the operation that wrote it last */
  uint32_t *read_at;                 /* per cell and stream: position of the last read since that write */
  uint32_t *touched;                 /* per buffer and stream: position of the last operation that used it */
  uint8_t *begun;                    /* per buffer: 1 if its lifetime has begun */
  uint32_t *first_piece;             /* per operand: index of the buffer's segment in which it begins */
  uint32_t *ending;                  /* per operation: head of the list of buffers whose last operation it is */
  uint32_t *ending_next;             /* per buffer: the next buffer in the list of `ending` */
  int placed;                        /* 1: buffers have offsets */
  const uint8_t *messages;           /* per buffer: 1 for buffers of messages; not NULL: only these have offsets */
  tws_history history[TWS_TIER_COUNT];
} finisher;

static void require_place(finisher *f, uint32_t stream, uint32_t place) {
  if (place > f->needed[stream]) f->needed[stream] = place;
}

static void require_places(finisher *f, const uint32_t *places) {
  for (uint32_t k = 0; k < f->streams; k++) require_place(f, k, places[k]);
}

/* Makes an operation wait until the stream has completed the operation at this position. */
static void wait_for(finisher *f, uint32_t op, uint32_t stream, uint32_t place) {
  tws_plan *plan = f->plan;
  uint32_t *clock = f->clock + (size_t)op * f->streams;
  uint32_t other = f->at[stream][place - 1];
  if (f->b->failed != TWS_OK) return;
  if (tws_reserve(&plan->deps, &f->b->dep_capacity, plan->dep_count + 1u, sizeof *plan->deps)) {
    tws_builder_fail(f->b, TWS_MEMORY, "no memory");
    return;
  }
  plan->deps[plan->dep_count++] = other;
  plan->ops[op].dep_count++;
  plan->ops[other].awaited = 1;
  const uint32_t *known = f->clock + (size_t)other * f->streams;
  for (uint32_t k = 0; k < f->streams; k++) {
    if (known[k] > clock[k]) clock[k] = known[k];
  }
  if (clock[stream] < place) clock[stream] = place;
}

/* Makes an operation wait for all positions in `needed`, beginning with the operation that was issued last: it may have
 * waited for the others, but the others cannot have waited for it. So no added dependency is implied by another one. */
static void wait_for_all(finisher *f, uint32_t op) {
  const uint32_t *clock = f->clock + (size_t)op * f->streams;
  for (;;) {
    uint32_t latest = TWS_NONE, from = 0;
    for (uint32_t k = 0; k < f->streams; k++) {
      if (k == f->stream[op] || f->needed[k] <= clock[k]) continue;
      uint32_t other = f->at[k][f->needed[k] - 1];
      if (latest != TWS_NONE && other < latest) continue;
      latest = other;
      from = k;
    }
    if (latest == TWS_NONE || f->b->failed != TWS_OK) return;
    wait_for(f, op, from, f->needed[from]);
  }
}

static void begin_buffer(finisher *f, uint32_t index) {
  const tws_buffer *buffer = &f->plan->buffers[index];
  const uint32_t after = f->b->segments[index].after;
  if (after) require_place(f, f->stream[after - 1], f->position[after - 1]);
  if (!f->placed || (f->messages && !f->messages[index])) return;
  tws_history_require(&f->history[buffer->tier], buffer->offset, tws_layout_bytes(buffer->bytes), f->touched,
                      f->streams, f->needed);
}

/* Returns 1 if several streams use a buffer. Operations of one stream run in order, so a buffer that only one stream
 * uses needs no dependency tracking. */
static int is_shared(const tws_buffer *buffer) {
  return (buffer->streams & (buffer->streams - 1)) != 0;
}

/* Returns 1 if the operand overlaps segment i; `first` is the segment in which the operand begins. */
static int touches_piece(const struct tws_buffer_segments *segments, uint32_t i, uint32_t first,
                         const tws_operand *operand) {
  return i == first || (i < segments->count && segments->start[i] < operand->offset + operand->count);
}

/* Returns the index of the segment that contains an element. Parameters are used in order, so the segment is usually
 * near the one that was found last. */
static uint32_t find_piece(struct tws_buffer_segments *segments, uint64_t element) {
  enum { NEAR = 4 };
  uint32_t at = segments->hint;
  for (int i = 0; i < NEAR && at + 1 < segments->count && segments->start[at + 1] <= element; i++) at++;
  for (int i = 0; i < NEAR && at > 0 && segments->start[at] > element; i++) at--;
  const int found =
      (at == 0 || segments->start[at] <= element) && (at + 1 >= segments->count || segments->start[at + 1] > element);
  return segments->hint = found ? at : tws_builder_segment_at(segments, element);
}

static void access_operand(finisher *f, const tws_operand *operand) {
  if (operand->count == 0 || !is_shared(&f->plan->buffers[operand->buffer])) return;
  struct tws_buffer_segments *segments = &f->b->segments[operand->buffer];
  uint32_t first = find_piece(segments, operand->offset);
  f->first_piece[operand - f->plan->operands] = first;
  for (uint32_t i = first; touches_piece(segments, i, first, operand); i++) {
    size_t cell = segments->first_cell + i;
    if (f->written_by[cell]) {
      uint32_t writer = f->written_by[cell] - 1;
      require_place(f, f->stream[writer], f->position[writer]);
    }
    if (operand->access & TWS_WRITE) require_places(f, f->read_at + cell * f->streams);
  }
}

/* Records an operand's accesses to segments; called when all dependencies of its operation are known. This is a
 * separate step, so that operands of one operation that overlap (in-place kernels) do not wait for each other. */
static void mark_operand(finisher *f, uint32_t op, const tws_operand *operand) {
  uint32_t stream = f->stream[op];
  f->touched[(size_t)operand->buffer * f->streams + stream] = f->position[op];
  if (operand->count == 0 || !is_shared(&f->plan->buffers[operand->buffer])) return;
  const struct tws_buffer_segments *segments = &f->b->segments[operand->buffer];
  uint32_t first = f->first_piece[operand - f->plan->operands];
  for (uint32_t i = first; touches_piece(segments, i, first, operand); i++) {
    size_t cell = segments->first_cell + i;
    if (operand->access & TWS_WRITE) {
      /* Several streams may write different parts of one segment alternately; each of these writes waited for the
       * previous one. */
      f->written_by[cell] = op + 1;
      for (uint32_t k = 0; k < f->streams; k++) f->read_at[cell * f->streams + k] = 0;
    } else {
      f->read_at[cell * f->streams + stream] = f->position[op];
    }
  }
}

static void release_ending(finisher *f, uint32_t op) {
  for (uint32_t i = f->ending[op]; i != TWS_NONE; i = f->ending_next[i]) {
    tws_buffer *buffer = &f->plan->buffers[i];
    if (f->messages && !f->messages[i]) continue;
    if (tws_history_record(&f->history[buffer->tier], buffer->offset, tws_layout_bytes(buffer->bytes), i)) {
      tws_builder_fail(f->b, TWS_MEMORY, "no memory");
    }
  }
}

static void find_streams(finisher *f) {
  uint32_t used[TWS_STREAM_COUNT] = {0};
  for (uint32_t op = 0; op < f->plan->op_count; op++) used[f->plan->ops[op].stream]++;
  for (int s = 0; s < TWS_STREAM_COUNT; s++) {
    if (!used[s]) continue;
    f->length[f->streams] = used[s];
    f->stream_index[s] = (uint8_t)f->streams++;
    f->used[s] = 1;
  }
}

static tws_code prepare_sweep(finisher *f, tws_arena *scratch) {
  tws_plan *plan = f->plan;
  uint32_t cells = 0;
  for (uint32_t i = 0; i < plan->buffer_count; i++) {
    f->b->segments[i].first_cell = cells;
    if (is_shared(&plan->buffers[i])) cells += f->b->segments[i].count;
  }
  f->stream = tws_arena_alloc_unset(scratch, plan->op_count + 1u, 1);
  f->clock = tws_arena_alloc_unset(scratch, ((size_t)plan->op_count + 1) * f->streams, sizeof *f->clock);
  f->position = tws_arena_alloc_unset(scratch, plan->op_count + 1u, sizeof *f->position);
  f->written_by = tws_arena_alloc(scratch, cells + 1u, sizeof *f->written_by);
  f->read_at = tws_arena_alloc(scratch, ((size_t)cells + 1) * f->streams, sizeof *f->read_at);
  f->touched = tws_arena_alloc(scratch, ((size_t)plan->buffer_count + 1) * f->streams, sizeof *f->touched);
  f->begun = tws_arena_alloc(scratch, plan->buffer_count + 1u, 1);
  f->first_piece = tws_arena_alloc_unset(scratch, plan->operand_count + 1u, sizeof *f->first_piece);
  f->ending = tws_arena_alloc_unset(scratch, plan->op_count + 1u, sizeof *f->ending);
  f->ending_next = tws_arena_alloc_unset(scratch, plan->buffer_count + 1u, sizeof *f->ending_next);
  if (!f->stream || !f->clock || !f->position || !f->written_by || !f->read_at || !f->touched || !f->begun ||
      !f->first_piece || !f->ending || !f->ending_next) {
    return tws_builder_fail(f->b, TWS_MEMORY, "no memory");
  }
  for (uint32_t k = 0; k < f->streams; k++) {
    f->at[k] = tws_arena_alloc_unset(scratch, f->length[k] + 1u, sizeof *f->at[k]);
    if (!f->at[k]) return tws_builder_fail(f->b, TWS_MEMORY, "no memory");
    f->length[k] = 0;
  }
  for (uint32_t op = 0; op < plan->op_count; op++) {
    const uint8_t stream = f->stream[op] = f->stream_index[plan->ops[op].stream];
    f->at[stream][f->length[stream]] = op;
    f->position[op] = ++f->length[stream];
    f->ending[op] = TWS_NONE;
  }
  for (uint32_t i = plan->buffer_count; i-- > 0;) {
    tws_buffer *buffer = &plan->buffers[i];
    if (buffer->lifetime != TWS_LIFETIME_OPS || buffer->last_op == TWS_NONE) continue;
    f->ending_next[i] = f->ending[buffer->last_op];
    f->ending[buffer->last_op] = i;
  }
  return TWS_OK;
}

/* streams whose operations a micro-batch barrier waits for */
static const uint8_t emptied[] = {TWS_STREAM_REDUCE, TWS_STREAM_COPY_OUT};
enum { EMPTIED = sizeof emptied };

/* Adds the dependencies of micro-batch barriers: gathers, reductions and copies from the host wait for computation;
 * operations after a micro-batch wait for its reductions and copies to the host; left[]: per stream of `emptied`, 1 +
 * the index of the last of these reductions or copies. */
static void keep_step(finisher *f, uint32_t op, const uint32_t *last, uint32_t *left) {
  const tws_op *o = &f->plan->ops[op], *before = op > 0 ? o - 1 : o;
  const int ends = tws_op_in_optimizer_phase(f->plan, op), compute = f->stream_index[TWS_STREAM_COMPUTE];
  const int moves = tws_stream_waits_for_compute(o->stream);
  const int begins =
      o->micro_batch != before->micro_batch || ends != tws_op_in_optimizer_phase(f->plan, op > 0 ? op - 1 : op);
  for (int i = 0; i < EMPTIED; i++) {
    if (!tws_stream_ends_micro_batch(f->plan, emptied[i])) continue;
    if (begins && f->used[emptied[i]]) left[i] = last[f->stream_index[emptied[i]]];
    if (left[i]) require_place(f, f->stream[left[i] - 1], f->position[left[i] - 1]);
  }
  if (moves && !ends && last[compute]) require_place(f, (uint32_t)compute, f->position[last[compute] - 1]);
}

/* the checkpoint copies of earlier operations; all members except `pass` are 1 + the index of an operation, 0: none */
typedef struct checkpoint_copies {
  /* pass: number of the current pass; last: the last copies of this pass to the host, and from the host */
  uint32_t pass, last[2];
  uint32_t left[2]; /* the last copies of earlier passes to the host, and from the host */
  uint32_t before;  /* the last copy to the host, before the current one, for which computation waited */
  int computed;     /* 1: an operation has computed since the last copy to the host was issued */
} checkpoint_copies;

/* Adds the dependencies of checkpoint copies: the copies wait for computation; computation after a copy to the host
 * waits for the previous copies to the host; operations after a pass wait for all copies of the pass. */
static void keep_checkpoints(finisher *f, uint32_t op, const uint32_t *last, checkpoint_copies *c) {
  const tws_plan *plan = f->plan;
  const tws_op *o = &plan->ops[op];
  const int compute = f->stream_index[TWS_STREAM_COMPUTE], moves = tws_op_moves_checkpoint(plan, o);
  if (!tws_op_follows_checkpoints(plan, o)) return;
  if (c->pass != tws_op_pass(o) + 1)
    *c = (checkpoint_copies){.pass = tws_op_pass(o) + 1,
                             .left = {c->last[0] ? c->last[0] : c->left[0], c->last[1] ? c->last[1] : c->left[1]}};
  for (int i = 0; i < 2; i++)
    if (c->left[i]) require_place(f, f->stream[c->left[i] - 1], f->position[c->left[i] - 1]);
  if (o->stream == TWS_STREAM_COMPUTE) {
    if (c->before) require_place(f, f->stream[c->before - 1], f->position[c->before - 1]);
    c->computed = 1;
  }
  if (!moves) return;
  if (last[compute]) require_place(f, (uint32_t)compute, f->position[last[compute] - 1]);
  if (o->stream == TWS_STREAM_COPY_OUT && c->computed) {
    c->before = c->last[0];
    c->computed = 0;
  }
  c->last[o->stream == TWS_STREAM_COPY_IN] = op + 1;
}

static void sweep_operations(finisher *f) {
  tws_plan *plan = f->plan;
  /* Each is 1 + the index of an operation, or 0: the last one on each stream, the last one on each channel, and the
   * last one of earlier micro-batches on each stream. */
  uint32_t last[TWS_STREAM_COUNT], on_channel[TWS_CHANNEL_COUNT], left[EMPTIED] = {0};
  checkpoint_copies checkpoints = {.pass = 0};
  memset(last, 0, sizeof last);
  memset(on_channel, 0, sizeof on_channel);
  for (uint32_t op = 0; op < plan->op_count && f->b->failed == TWS_OK; op++) {
    tws_op *o = &plan->ops[op];
    o->dep_first = plan->dep_count;
    uint32_t stream = f->stream[op], *clock = f->clock + (size_t)op * f->streams;
    if (last[stream])
      memcpy(clock, f->clock + (size_t)(last[stream] - 1) * f->streams, f->streams * sizeof *clock);
    else
      memset(clock, 0, f->streams * sizeof *clock);
    clock[stream] = f->position[op] - 1;
    memset(f->needed, 0, sizeof f->needed);
    const tws_operand *operands = plan->operands + o->operand_first;
    for (int i = 0; i < o->operand_count; i++) {
      const tws_buffer *buffer = &plan->buffers[operands[i].buffer];
      /* several operands may refer to the same new buffer */
      if (buffer->lifetime == TWS_LIFETIME_OPS && !f->begun[operands[i].buffer]) {
        f->begun[operands[i].buffer] = 1;
        begin_buffer(f, operands[i].buffer);
      }
      access_operand(f, &operands[i]);
    }
    if (o->channel != TWS_CHANNEL_NONE) {
      const uint32_t before = on_channel[o->channel];
      if (before) require_place(f, f->stream[before - 1], f->position[before - 1]);
      on_channel[o->channel] = op + 1;
    }
    if (f->plan->micro_batch_barriers) keep_step(f, op, last, left);
    keep_checkpoints(f, op, last, &checkpoints);
    wait_for_all(f, op);
    for (int i = 0; i < o->operand_count; i++) mark_operand(f, op, &operands[i]);
    last[stream] = op + 1;
    if (f->placed) release_ending(f, op);
  }
}

/* ---- before the layout ---- */

/* Returns an array [position in the stream]: index of the first computation that is known to run after the operation at
 * this position; op_count: there is none. */
static uint32_t *first_behind(const finisher *f, uint32_t stream, tws_arena *scratch) {
  const uint32_t compute = f->stream_index[TWS_STREAM_COMPUTE];
  uint32_t *behind = tws_arena_alloc_unset(scratch, f->length[stream] + 1u, sizeof *behind), place = 0;
  for (uint32_t i = 0; behind && i < f->length[compute]; i++) {
    const uint32_t op = f->at[compute][i], done = f->clock[(size_t)op * f->streams + stream];
    while (place < done) behind[++place] = op;
  }
  while (behind && place < f->length[stream]) behind[++place] = f->plan->op_count;
  return behind;
}

/* Determines until when each device buffer keeps its memory: computations that run after its last user on another
 * stream may reuse it. */
static int find_held(finisher *f, tws_arena *scratch) {
  const uint32_t compute = f->stream_index[TWS_STREAM_COMPUTE];
  uint32_t *held = f->b->held = tws_arena_alloc_unset(scratch, f->plan->buffer_count + 1u, sizeof *held);
  if (!held) return -1;
  for (uint32_t i = 0; i < f->plan->buffer_count; i++) {
    const uint32_t until = f->b->segments[i].until;
    held[i] = f->plan->buffers[i].last_op;
    if (until > held[i] + 1 && held[i] != TWS_NONE) held[i] = until - 1;
  }
  for (uint32_t k = 0; k < f->streams; k++) {
    const uint32_t *behind = k == compute ? NULL : first_behind(f, k, scratch);
    if (k == compute) continue;
    if (!behind) return -1;
    for (uint32_t i = 0; i < f->plan->buffer_count; i++) {
      const uint32_t place = f->touched[(size_t)i * f->streams + k];
      if (f->plan->buffers[i].tier != TWS_TIER_DEVICE) continue;
      if (place && behind[place] > held[i] + 1) held[i] = behind[place] - 1;
    }
  }
  return 0;
}

/* Determines the operation from which on each buffer has its memory: for a buffer that an exchange writes first, the
 * last computation that this exchange waits for. */
static int find_taken(finisher *f, tws_arena *scratch) {
  const uint32_t compute = f->stream_index[TWS_STREAM_COMPUTE];
  uint32_t *taken = f->b->taken = tws_arena_alloc_unset(scratch, f->plan->buffer_count + 1u, sizeof *taken);
  for (uint32_t i = 0; taken && i < f->plan->buffer_count; i++) {
    const uint32_t first = taken[i] = f->plan->buffers[i].first_op;
    if (f->plan->buffers[i].lifetime != TWS_LIFETIME_OPS || first == TWS_NONE) continue;
    if (f->plan->ops[first].stream != TWS_STREAM_EXCHANGE) continue;
    const uint32_t place = f->clock[(size_t)first * f->streams + compute];
    taken[i] = place ? f->at[compute][place - 1] : 0;
  }
  return taken ? 0 : -1;
}

static tws_code sweep_before_layout(finisher *f, tws_arena *scratch) {
  if (prepare_sweep(f, scratch) != TWS_OK) return f->b->failed;
  sweep_operations(f);
  if (f->b->failed == TWS_OK && (find_held(f, scratch) || find_taken(f, scratch)))
    return tws_builder_fail(f->b, TWS_MEMORY, "no memory");
  f->plan->dep_count = 0;
  for (uint32_t op = 0; op < f->plan->op_count; op++) f->plan->ops[op].dep_count = f->plan->ops[op].awaited = 0;
  return f->b->failed;
}

tws_code tws_builder_depend(tws_builder *b) {
  if (b->failed != TWS_OK) return b->failed;
  finisher f = {.b = b, .plan = b->plan};
  tws_arena *scratch = tws_arena_create();
  if (!scratch) return tws_builder_fail(b, TWS_MEMORY, "no memory");
  find_streams(&f);
  if (f.streams > 1 && prepare_sweep(&f, scratch) == TWS_OK) sweep_operations(&f);
  tws_arena_destroy(scratch);
  return b->failed;
}

/* Returns 1 if some stream may wait for the reuse of memory by another stream, except for messages: this is so if
 * several streams use buffers that do not live as long as the program. */
static int waits_for_memory(const tws_builder *b, const uint8_t *messages) {
  uint16_t streams[TWS_TIER_COUNT] = {0};
  int waits = 0;
  for (uint32_t i = 0; i < b->plan->buffer_count; i++) {
    const tws_buffer *buffer = &b->plan->buffers[i];
    if (buffer->lifetime == TWS_LIFETIME_OPS && !messages[i]) streams[buffer->tier] |= buffer->streams;
  }
  for (int t = 0; t < TWS_TIER_COUNT; t++)
    waits |= (streams[t] & (streams[t] - 1)) && !(t == TWS_TIER_DEVICE && b->no_wait_for_memory);
  return waits;
}

/* If no layout could change the dependencies, derives them without offsets and sets *done to 1. */
static tws_code finish_for_times(finisher *f, tws_arena *scratch, int *done) {
  const uint8_t *messages = tws_layout_find_messages(f->plan, scratch);
  if (!messages) return tws_builder_fail(f->b, TWS_MEMORY, "no memory");
  *done = f->streams < 2 || !waits_for_memory(f->b, messages);
  if (!*done || f->streams < 2) return TWS_OK;
  if (tws_layout_messages(f->b, scratch) != TWS_OK || prepare_sweep(f, scratch) != TWS_OK) return f->b->failed;
  f->placed = 1;
  f->messages = messages;
  sweep_operations(f);
  return f->b->failed;
}

static tws_code finish_laid_out(finisher *f, tws_arena *scratch) {
  if (f->b->no_wait_for_memory && f->streams > 1 && sweep_before_layout(f, scratch) != TWS_OK) return f->b->failed;
  f->placed = 1;
  /* On a single stream the order of operations is sufficient, so there are no dependencies. */
  if (tws_layout_make(f->b, scratch) != TWS_OK || f->b->use == TWS_PLAN_FOR_MEMORY) return f->b->failed;
  if (f->streams > 1 && prepare_sweep(f, scratch) == TWS_OK) sweep_operations(f);
  return f->b->failed;
}

tws_code tws_builder_finish(tws_builder *b) {
  if (b->failed != TWS_OK) return b->failed;
  finisher f = {.b = b, .plan = b->plan};
  tws_arena *scratch = tws_arena_create();
  if (!scratch) return tws_builder_fail(b, TWS_MEMORY, "no memory");
  int done = 0;
  find_streams(&f);
  if (b->use != TWS_PLAN_FOR_TIMES || (finish_for_times(&f, scratch, &done) == TWS_OK && !done))
    finish_laid_out(&f, scratch);
  for (int t = 0; t < TWS_TIER_COUNT; t++) tws_history_free(&f.history[t]);
  tws_arena_destroy(scratch);
  b->held = b->taken = NULL;
  return b->failed;
}
