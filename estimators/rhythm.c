#include "estimators/rhythm.h"

#include <string.h>

void tws_chunk_times_of(const tws_chunk_pieces *pieces, double stretch, tws_chunk_times *out) {
  out->pieces = pieces;
  for (int later = 0; later < 2; later++)
    for (int e = 0; e < TWS_CONTEXT_EVENTS; e++) {
      if (!pieces->has[e]) continue;
      const tws_piece *p = &pieces->event[later][e];
      tws_chunk_event *to = &out->event[later][e];
      to->seconds = stretch * p->time.kernel + p->time.other;
      to->delta = p->delta;
      to->before = p->before;
      to->after = p->after;
      to->begins = p->begins;
      to->point_count = p->point_count;
      for (int i = 0; i < p->point_count; i++)
        to->points[i] = (tws_event_point){stretch * p->points[i].at.kernel + p->points[i].at.other, p->points[i].kind,
                                          p->points[i].buffer};
    }
}

static const tws_chunk_event *event_of(const tws_rhythm_stage *stage, const tws_pipeline_event *e) {
  return &stage->chunks[e->action.chunk]
              ->event[e->action.micro_batch > 0][tws_context_event_of(e->kind, e->action.kind)];
}

tws_code tws_rhythm_bytes(tws_rhythm *r, tws_error *err) {
  (void)err;
  for (int s = 0; s < r->shape->stages; s++) {
    tws_rhythm_stage *stage = &r->stages[s];
    int64_t alive = 0, peak = 0, gradients = 0;
    for (uint32_t i = 0; i < r->programs[s].count; i++) {
      const tws_chunk_event *e = event_of(stage, &r->programs[s].events[i]);
      if (alive + gradients + e->before > peak) peak = alive + gradients + e->before;
      if (e->begins) gradients = stage->gradient_bytes;
      if (alive + gradients + e->after > peak) peak = alive + gradients + e->after;
      alive += e->delta;
    }
    stage->peak = peak;
    stage->held = gradients;
  }
  return TWS_OK;
}

/* ---- times ---- */

typedef struct message_state {
  double written, message, used; /* when it was written, moved, and used by a kernel last */
  int32_t before;                /* what lay in its slot, or -1 */
} message_state;

typedef struct runner {
  tws_rhythm *r;
  uint32_t *next;        /* per stage: event */
  uint8_t *waits;        /* per stage: for the other end of a message */
  double *ready;         /* likewise: since when it could be sent or received */
  message_state **state; /* per stage: [chunk][micro-batch][buffer] */
  struct slot {
    uint64_t bytes;
    int32_t state;
  } * *slots; /* per stage: free ones in the order in which they came free */
  int *slot_count;
  size_t *slot_capacity;
} runner;

enum { SPARE_SLOTS = 2 }; /* as plan/layout.c */

static void take_slot(runner *u, int s, uint64_t bytes, message_state *state) {
  struct slot *slots = u->slots[s];
  int oldest = -1, fitting = 0;
  for (int i = 0; i < u->slot_count[s]; i++) {
    if (slots[i].bytes != bytes) continue;
    if (fitting++ == 0) oldest = i;
    if (fitting > SPARE_SLOTS) break;
  }
  state->before = -1;
  if (fitting <= SPARE_SLOTS) return;
  state->before = slots[oldest].state;
  u->slot_count[s]--;
  memmove(slots + oldest, slots + oldest + 1, (size_t)(u->slot_count[s] - oldest) * sizeof *slots);
}

static int give_slot(runner *u, int s, uint64_t bytes, int32_t state) {
  if (tws_reserve(&u->slots[s], &u->slot_capacity[s], (size_t)u->slot_count[s] + 1, sizeof **u->slots)) return 0;
  u->slots[s][u->slot_count[s]++] = (struct slot){bytes, state};
  return 1;
}

static double later(double a, double b) {
  return a > b ? a : b;
}

static double slot_free(const runner *u, int s, const message_state *state) {
  if (state->before < 0) return 0;
  const message_state *b = &u->state[s][state->before];
  return later(b->message, b->used);
}

static int32_t state_at(const runner *u, const tws_pipeline_event *e) {
  return (int32_t)(((int64_t)e->action.chunk * u->r->shape->micro_batches + e->action.micro_batch) *
                   TWS_MESSAGE_BUFFERS);
}

static int run_action(runner *u, int s, const tws_pipeline_event *at) {
  tws_rhythm_stage *stage = &u->r->stages[s];
  const tws_chunk_event *e = event_of(stage, at);
  const int32_t first = state_at(u, at);
  const uint64_t *bytes = stage->chunks[at->action.chunk]->pieces->slot_bytes;
  double now = stage->compute_s, from = 0;
  if (u->r->serial) now = later(now, stage->messages_s);
  for (int i = 0; i < e->point_count; i++) {
    const tws_event_point *p = &e->points[i];
    message_state *state = &u->state[s][first + p->buffer];
    now += p->at - from;
    from = p->at;
    switch (p->kind) {
      case TWS_POINT_TAKE:
        take_slot(u, s, bytes[p->buffer], state);
        now = later(now, slot_free(u, s, state));
        break;
      case TWS_POINT_TAKE_ASIDE:
        take_slot(u, s, bytes[p->buffer], state);
        break;
      case TWS_POINT_WAIT:
        now = later(now, state->message);
        break;
      case TWS_POINT_WRITTEN:
        state->written = now;
        break;
      case TWS_POINT_USED:
        state->used = now;
        break;
      default:
        if (!give_slot(u, s, bytes[p->buffer], first + p->buffer)) return 0;
        break;
    }
  }
  stage->compute_s = now + (e->seconds - from);
  return 1;
}

/* When this end of a message is ready; its slot is taken. */
static double message_ready(runner *u, int s, const tws_pipeline_event *at) {
  tws_rhythm_stage *stage = &u->r->stages[s];
  const tws_chunk_times *chunk = stage->chunks[at->action.chunk];
  const tws_context_event kind = tws_context_event_of(at->kind, at->action.kind);
  const tws_chunk_event *e = event_of(stage, at);
  const int buffer = chunk->pieces->message_buffer[kind];
  message_state *state = &u->state[s][state_at(u, at) + buffer];
  double ready = stage->messages_s;
  if (u->r->serial) ready = later(ready, stage->compute_s);
  for (int i = 0; i < e->point_count; i++) {
    if (e->points[i].kind != TWS_POINT_TAKE) continue;
    take_slot(u, s, chunk->pieces->slot_bytes[buffer], state);
    ready = later(ready, slot_free(u, s, state));
  }
  return at->kind == TWS_EVENT_SEND ? later(ready, state->written) : ready;
}

static int message_ends(runner *u, int s, const tws_pipeline_event *at, double end) {
  tws_rhythm_stage *stage = &u->r->stages[s];
  const tws_chunk_times *chunk = stage->chunks[at->action.chunk];
  const tws_chunk_event *e = event_of(stage, at);
  const int buffer = chunk->pieces->message_buffer[tws_context_event_of(at->kind, at->action.kind)];
  const int32_t state = state_at(u, at) + buffer;
  u->state[s][state].message = end;
  stage->messages_s = end;
  for (int i = 0; i < e->point_count; i++)
    if (e->points[i].kind == TWS_POINT_GIVE && !give_slot(u, s, chunk->pieces->slot_bytes[buffer], state)) return 0;
  u->waits[s] = 0;
  u->next[s]++;
  return 1;
}

/* -1: no memory; else whether something happened. */
static int run_stage(runner *u, int s) {
  tws_rhythm *r = u->r;
  const tws_pipeline_program *program = &r->programs[s];
  int moved = 0;
  while (u->next[s] < program->count) {
    const tws_pipeline_event *at = &program->events[u->next[s]];
    if (at->kind == TWS_EVENT_ACTION) {
      if (!run_action(u, s, at)) return -1;
      u->next[s]++;
      moved = 1;
      continue;
    }
    if (!u->waits[s]) {
      u->ready[s] = message_ready(u, s, at);
      u->waits[s] = 1;
      moved = 1;
    }
    const int peer = at->peer;
    if (!u->waits[peer]) return moved;
    const tws_pipeline_event *there = &r->programs[peer].events[u->next[peer]];
    if (there->peer != s || there->kind == at->kind) return moved;
    const tws_chunk_pieces *pieces = r->stages[s].chunks[at->action.chunk]->pieces;
    const uint64_t bytes = pieces->message_bytes[tws_context_event_of(at->kind, at->action.kind)];
    const double here_s = r->message(r->user, s, peer, bytes), there_s = r->message(r->user, peer, s, bytes);
    const double end = later(u->ready[s], u->ready[peer]) + later(here_s, there_s);
    if (!message_ends(u, s, at, end) || !message_ends(u, peer, there, end)) return -1;
    moved = 1;
  }
  return moved;
}

static tws_code run_stages(runner *u, tws_error *err) {
  const int stages = u->r->shape->stages;
  for (int moved = 1; moved;) {
    moved = 0;
    for (int s = 0; s < stages; s++) {
      const int here = run_stage(u, s);
      if (here < 0) return tws_fail(err, TWS_MEMORY, NULL, "no memory for the rhythm of a pipeline");
      moved |= here;
    }
  }
  for (int s = 0; s < stages; s++)
    if (u->next[s] < u->r->programs[s].count)
      return tws_fail(err, TWS_INTERNAL, NULL, "stage %d waits for ever in the rhythm of a pipeline", s);
  return TWS_OK;
}

tws_code tws_rhythm_run(tws_rhythm *r, tws_error *err) {
  const size_t stages = (size_t)r->shape->stages;
  const size_t states = (size_t)r->shape->virtual_stages * (size_t)r->shape->micro_batches * TWS_MESSAGE_BUFFERS;
  tws_arena *arena = tws_arena_create();
  if (!arena) return tws_fail(err, TWS_MEMORY, NULL, "no memory for the rhythm of a pipeline");
  runner u = {.r = r};
  u.next = tws_arena_alloc(arena, stages, sizeof *u.next);
  u.waits = tws_arena_alloc(arena, stages, 1);
  u.ready = tws_arena_alloc(arena, stages, sizeof *u.ready);
  u.state = tws_arena_alloc(arena, stages, sizeof *u.state);
  u.slots = tws_arena_alloc(arena, stages, sizeof *u.slots);
  u.slot_count = tws_arena_alloc(arena, stages, sizeof *u.slot_count);
  u.slot_capacity = tws_arena_alloc(arena, stages, sizeof *u.slot_capacity);
  message_state *state = tws_arena_alloc_unset(arena, stages * states, sizeof *state);
  tws_code code = TWS_OK;
  if (!u.next || !u.waits || !u.ready || !u.state || !u.slots || !u.slot_count || !u.slot_capacity || !state)
    code = tws_fail(err, TWS_MEMORY, NULL, "no memory for the rhythm of a pipeline");
  for (size_t s = 0; s < stages && code == TWS_OK; s++) {
    u.state[s] = state + s * states;
    r->stages[s].compute_s = r->stages[s].messages_s = 0;
  }
  for (size_t i = 0; i < stages * states && code == TWS_OK; i++) state[i] = (message_state){0, 0, 0, -1};
  if (code == TWS_OK) code = run_stages(&u, err);
  for (size_t s = 0; s < stages && u.slots; s++) tws_free(u.slots[s]);
  tws_arena_destroy(arena);
  return code;
}
