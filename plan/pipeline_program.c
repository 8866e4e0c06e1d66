#include "plan/pipeline_program.h"

#include <stdlib.h>

/* time units per kind of action in an ideal pipeline: forward, input gradient and weight gradient take 1 each, a whole
 * backward pass 2; messages take 0 */
static const int units[TWS_ACTION_KIND_COUNT] = {1, 2, 1, 1};

typedef struct ideal {
  const tws_pipeline_shape *shape;
  int blocks;
  uint32_t length;
  tws_pipeline_action *order; /* [stage][length] actions of each stage in order */
  uint32_t *next;             /* per stage: index of its next action */
  int64_t *clock;             /* per stage: time at which its last action ended */
  /* [block][micro-batch] time at which the forward, and the backward, action ended; 0: it has not ended */
  int64_t *end[2];
} ideal;

static int64_t *end_of(const ideal *pipe, int backward, int block, uint32_t micro_batch) {
  return &pipe->end[backward][(size_t)block * (size_t)pipe->shape->micro_batches + micro_batch];
}

static int is_backward(const tws_pipeline_action *action) {
  return action->kind != TWS_ACTION_FORWARD;
}

/* Returns the block whose action produces the input of this action of `block`; -1: there is none (first forward, last
 * backward, gradients of weights). */
static int source_block(const ideal *pipe, const tws_pipeline_action *action, int block) {
  if (action->kind == TWS_ACTION_BACKWARD_WEIGHT) return -1;
  if (action->kind == TWS_ACTION_FORWARD) return block - 1;
  return block + 1 < pipe->blocks ? block + 1 : -1;
}

static int target_block(const ideal *pipe, const tws_pipeline_action *action, int block) {
  if (action->kind == TWS_ACTION_BACKWARD_WEIGHT) return -1;
  if (action->kind == TWS_ACTION_FORWARD) return block + 1 < pipe->blocks ? block + 1 : -1;
  return block - 1;
}

/* Runs the actions of a stage until one needs a message that is not produced yet; returns the number of actions. Values
 * from the same stage are ready because of the stage's own order. */
static uint32_t run_stage(ideal *pipe, int stage) {
  uint32_t before = pipe->next[stage];
  while (pipe->next[stage] < pipe->length) {
    const tws_pipeline_action *action = &pipe->order[(size_t)stage * pipe->length + pipe->next[stage]];
    int block = tws_pipeline_block(pipe->shape, stage, action->chunk), source = source_block(pipe, action, block);
    int64_t start = pipe->clock[stage];
    if (source >= 0) {
      int64_t ready = *end_of(pipe, is_backward(action), source, action->micro_batch);
      if (ready == 0) break;
      if (ready > start) start = ready;
    }
    pipe->clock[stage] = start + units[action->kind];
    if (action->kind != TWS_ACTION_BACKWARD_WEIGHT) {
      *end_of(pipe, is_backward(action), block, action->micro_batch) = pipe->clock[stage];
    }
    pipe->next[stage]++;
  }
  return pipe->next[stage] - before;
}

static tws_code run_all(ideal *pipe, tws_arena *scratch, tws_error *err) {
  size_t stages = (size_t)pipe->shape->stages, passes = (size_t)pipe->blocks * (size_t)pipe->shape->micro_batches;
  pipe->order = tws_arena_alloc(scratch, stages * pipe->length, sizeof *pipe->order);
  pipe->next = tws_arena_alloc(scratch, stages, sizeof *pipe->next);
  pipe->clock = tws_arena_alloc(scratch, stages, sizeof *pipe->clock);
  for (int i = 0; i < 2; i++) pipe->end[i] = tws_arena_alloc(scratch, passes, sizeof *pipe->end[i]);
  if (!pipe->order || !pipe->next || !pipe->clock || !pipe->end[0] || !pipe->end[1]) {
    return tws_fail(err, TWS_MEMORY, NULL, "out of memory while ordering the messages of %d pipeline stages",
                    pipe->shape->stages);
  }
  for (size_t s = 0; s < stages; s++) tws_pipeline_order(pipe->shape, (int)s, pipe->order + s * pipe->length);
  uint64_t left = stages * pipe->length;
  while (left) {
    uint64_t done = 0;
    for (int s = 0; s < pipe->shape->stages; s++) done += run_stage(pipe, s);
    if (done == 0) return tws_fail(err, TWS_INTERNAL, NULL, "the pipeline schedule cannot be executed");
    left -= done;
  }
  return TWS_OK;
}

/* An event, with the time at which it happens in the ideal pipeline. Events are sorted by time. At equal times messages
 * come before the action that starts; the order of messages at equal times depends only on quantities that both stages
 * know. */
typedef struct timed_event {
  int64_t time;
  /* second sort key; messages: 2 x receiving block + direction (then the micro-batch decides); actions: INT32_MAX */
  int rank;
  tws_pipeline_event event;
} timed_event;

static int by_time(const void *left, const void *right) {
  const timed_event *a = left, *b = right;
  if (a->time != b->time) return a->time < b->time ? -1 : 1;
  if (a->rank != b->rank) return a->rank < b->rank ? -1 : 1;
  uint32_t x = a->event.action.micro_batch, y = b->event.action.micro_batch;
  return x < y ? -1 : x > y;
}

/* Sorts events by insertion, since most are in order and an early message is only a few positions off. If more than
 * MOVES moves per event are needed, the function calls qsort(). */
static void sort_events(timed_event *events, uint32_t count) {
  enum { MOVES = 24 };
  uint64_t left = (uint64_t)MOVES * count;
  for (uint32_t i = 1; i < count; i++) {
    if (by_time(&events[i - 1], &events[i]) <= 0) continue;
    const timed_event moved = events[i];
    uint32_t at = i;
    for (; at > 0 && by_time(&events[at - 1], &moved) > 0; at--) events[at] = events[at - 1];
    events[at] = moved;
    if (i - at > left) {
      qsort(events, count, sizeof *events, by_time);
      return;
    }
    left -= i - at;
  }
}

static uint32_t list_stage(const ideal *pipe, int stage, timed_event *events) {
  uint32_t count = 0;
  int64_t clock = 0;
  for (uint32_t i = 0; i < pipe->length; i++) {
    const tws_pipeline_action *action = &pipe->order[(size_t)stage * pipe->length + i];
    int backward = is_backward(action), block = tws_pipeline_block(pipe->shape, stage, action->chunk);
    int source = source_block(pipe, action, block), target = target_block(pipe, action, block);
    tws_pipeline_event event = {.action = *action, .peer = -1};
    int64_t ready = source < 0 ? 0 : *end_of(pipe, backward, source, action->micro_batch);
    if (ready > clock) clock = ready;
    if (source >= 0 && tws_pipeline_block_stage(pipe->shape, source) != stage) {
      event.kind = TWS_EVENT_RECV;
      event.peer = tws_pipeline_block_stage(pipe->shape, source);
      events[count++] = (timed_event){.time = ready, .rank = 2 * block + backward, .event = event};
    }
    event.kind = TWS_EVENT_ACTION;
    event.peer = -1;
    events[count++] = (timed_event){.time = clock, .rank = INT32_MAX, .event = event};
    clock += units[action->kind];
    if (target >= 0 && tws_pipeline_block_stage(pipe->shape, target) != stage) {
      event.kind = TWS_EVENT_SEND;
      event.peer = tws_pipeline_block_stage(pipe->shape, target);
      events[count++] = (timed_event){.time = clock, .rank = 2 * target + backward, .event = event};
    }
  }
  sort_events(events, count);
  return count;
}

static tws_code list_events(const ideal *pipe, int stage, timed_event *timed, tws_arena *arena,
                            tws_pipeline_program *program, tws_error *err) {
  program->count = list_stage(pipe, stage, timed);
  program->events = tws_arena_alloc_unset(arena, program->count + 1u, sizeof *program->events);
  if (!program->events)
    return tws_fail(err, TWS_MEMORY, NULL, "out of memory while ordering the messages of stage %d", stage);
  for (uint32_t i = 0; i < program->count; i++) program->events[i] = timed[i].event;
  return TWS_OK;
}

tws_code tws_pipeline_program_make(const tws_pipeline_shape *shape, int stage, tws_arena *arena,
                                   tws_pipeline_program *program, tws_error *err) {
  ideal pipe = {.shape = shape, .blocks = shape->stages * shape->virtual_stages};
  pipe.length = tws_pipeline_order_length(shape);
  tws_arena *scratch = tws_arena_create();
  if (!scratch) return tws_fail(err, TWS_MEMORY, NULL, "out of memory while ordering the messages of a pipeline");
  timed_event *timed = NULL;
  tws_code code = run_all(&pipe, scratch, err);
  if (code == TWS_OK) timed = tws_arena_alloc_unset(scratch, 3 * (size_t)pipe.length + 1, sizeof *timed);
  if (code == TWS_OK && !timed)
    code = tws_fail(err, TWS_MEMORY, NULL, "out of memory while ordering the messages of stage %d", stage);
  if (code == TWS_OK) code = list_events(&pipe, stage, timed, arena, program, err);
  tws_arena_destroy(scratch);
  return code;
}
