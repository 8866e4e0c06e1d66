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

typedef struct clocks { /* behind an event */
  double compute_s, messages_s;
} clocks;

typedef struct runner {
  tws_rhythm *r;
  clocks **clocks;       /* per stage: [event]; NULL: nobody asks */
  uint32_t *next;        /* per stage: event */
  uint8_t *waits;        /* per stage: for the other end of a message */
  double *ready;         /* likewise: since when it could be sent or received */
  size_t states;         /* of a stage */
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

/* ---- what does not depend on times is kept ---- */

static tws_rhythm_end end_of(const runner *u, int s, const tws_pipeline_event *at) {
  return (tws_rhythm_end){.stage = (uint16_t)s,
                          .chunk = at->action.chunk,
                          .event = (uint8_t)tws_context_event_of(at->kind, at->action.kind),
                          .is_later = at->action.micro_batch > 0,
                          .sends = at->kind == TWS_EVENT_SEND,
                          .state = (uint32_t)((size_t)s * u->states) + (uint32_t)state_at(u, at)};
}

static int keep_before(runner *u, int s, int waits, const message_state *state) {
  tws_rhythm_trace *t = u->r->trace;
  if (!t) return 1;
  if (tws_reserve(&t->before, &t->before_capacity, t->before_count + 1, sizeof *t->before)) return 0;
  t->before[t->before_count++] = waits && state->before >= 0 ? (int32_t)((size_t)s * u->states) + state->before : -1;
  return 1;
}

/* The move whose slots come next. */
static tws_rhythm_move *keep_move(runner *u) {
  tws_rhythm_trace *t = u->r->trace;
  if (tws_reserve(&t->moves, &t->capacity, t->count + 1, sizeof *t->moves)) return NULL;
  t->moves[t->count].before = (uint32_t)t->before_count;
  return &t->moves[t->count++];
}

static int keep_action(runner *u, int s, const tws_pipeline_event *at) {
  tws_rhythm_move *m = u->r->trace ? keep_move(u) : NULL;
  if (!m) return !u->r->trace;
  m->here = end_of(u, s, at);
  m->message_s = -1;
  return 1;
}

static int takes_slot(const runner *u, int s, const tws_pipeline_event *at) {
  const tws_chunk_event *e = event_of(&u->r->stages[s], at);
  for (int i = 0; i < e->point_count; i++)
    if (e->points[i].kind == TWS_POINT_TAKE) return 1;
  return 0;
}

static int keep_end(runner *u, int s, const tws_pipeline_event *at, tws_rhythm_end *end) {
  *end = end_of(u, s, at);
  end->state += u->r->stages[s].chunks[at->action.chunk]->pieces->message_buffer[end->event];
  return keep_before(u, s, takes_slot(u, s, at), &u->state[0][end->state]);
}

static int keep_message(runner *u, int s, const tws_pipeline_event *at, const tws_pipeline_event *there,
                        double message_s) {
  tws_rhythm_move *m = u->r->trace ? keep_move(u) : NULL;
  if (!m) return !u->r->trace;
  m->message_s = message_s;
  return keep_end(u, s, at, &m->here) && keep_end(u, at->peer, there, &m->there);
}

static int run_action(runner *u, int s, const tws_pipeline_event *at) {
  tws_rhythm_stage *stage = &u->r->stages[s];
  const tws_chunk_event *e = event_of(stage, at);
  const int32_t first = state_at(u, at);
  const uint64_t *bytes = stage->chunks[at->action.chunk]->pieces->slot_bytes;
  double now = stage->compute_s, from = 0;
  if (!keep_action(u, s, at)) return 0;
  if (u->r->serial) now = later(now, stage->messages_s);
  for (int i = 0; i < e->point_count; i++) {
    const tws_event_point *p = &e->points[i];
    message_state *state = &u->state[s][first + p->buffer];
    now += p->at - from;
    from = p->at;
    switch (p->kind) {
      case TWS_POINT_TAKE:
        take_slot(u, s, bytes[p->buffer], state);
        if (!keep_before(u, s, 1, state)) return 0;
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

static void end_event(runner *u, int s) {
  const tws_rhythm_stage *stage = &u->r->stages[s];
  if (u->clocks) u->clocks[s][u->next[s]] = (clocks){stage->compute_s, stage->messages_s};
  u->next[s]++;
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
  end_event(u, s);
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
      end_event(u, s);
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
    if (!keep_message(u, s, at, there, later(here_s, there_s))) return -1;
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

/* ---- again ---- */

static const tws_chunk_event *event_at(const runner *u, const tws_rhythm_end *end) {
  return &u->r->stages[end->stage].chunks[end->chunk]->event[end->is_later][end->event];
}

static double since_before(const message_state *all, int32_t before) {
  return before < 0 ? 0 : later(all[before].message, all[before].used);
}

static void replay_action(runner *u, const tws_rhythm_move *m) {
  tws_rhythm_stage *stage = &u->r->stages[m->here.stage];
  const tws_chunk_event *e = event_at(u, &m->here);
  const int32_t *before = u->r->trace->before + m->before;
  message_state *all = u->state[0], *own = all + m->here.state;
  double now = stage->compute_s, from = 0;
  if (u->r->serial) now = later(now, stage->messages_s);
  for (int i = 0; i < e->point_count; i++) {
    const tws_event_point *p = &e->points[i];
    now += p->at - from;
    from = p->at;
    if (p->kind == TWS_POINT_TAKE) now = later(now, since_before(all, *before++));
    if (p->kind == TWS_POINT_WAIT) now = later(now, own[p->buffer].message);
    if (p->kind == TWS_POINT_WRITTEN) own[p->buffer].written = now;
    if (p->kind == TWS_POINT_USED) own[p->buffer].used = now;
  }
  stage->compute_s = now + (e->seconds - from);
}

static double replay_end(const runner *u, const tws_rhythm_end *end, int32_t before) {
  const tws_rhythm_stage *stage = &u->r->stages[end->stage];
  double ready = later(stage->messages_s, since_before(u->state[0], before));
  if (u->r->serial) ready = later(ready, stage->compute_s);
  return end->sends ? later(ready, u->state[0][end->state].written) : ready;
}

static void replay(runner *u) {
  const tws_rhythm_trace *t = u->r->trace;
  tws_rhythm_stage *stages = u->r->stages;
  for (size_t i = 0; i < t->count; i++) {
    const tws_rhythm_move *m = &t->moves[i];
    if (m->message_s < 0) {
      replay_action(u, m);
      end_event(u, m->here.stage);
      continue;
    }
    const double end =
        later(replay_end(u, &m->here, t->before[m->before]), replay_end(u, &m->there, t->before[m->before + 1])) +
        m->message_s;
    u->state[0][m->here.state].message = u->state[0][m->there.state].message = end;
    stages[m->here.stage].messages_s = stages[m->there.stage].messages_s = end;
    end_event(u, m->here.stage);
    end_event(u, m->there.stage);
  }
}

void tws_rhythm_trace_free(tws_rhythm_trace *t) {
  tws_free(t->moves);
  tws_free(t->before);
  *t = (tws_rhythm_trace){.micro_batches = 0};
}

static tws_code go_through(runner *u, tws_error *err) {
  tws_rhythm_trace *t = u->r->trace;
  if (t && t->micro_batches == u->r->shape->micro_batches) {
    replay(u);
    return TWS_OK;
  }
  if (t) t->micro_batches = 0;
  if (t) t->count = t->before_count = 0;
  TWS_TRY(run_stages(u, err));
  if (t) t->micro_batches = u->r->shape->micro_batches;
  return TWS_OK;
}

/* ---- repetition ----
 * Once a stage does both forward and backward passes its program is the same for each micro-batch. Where all stages do,
 * for as many micro-batches as are in flight, what they did some micro-batches before by the same time later, they do
 * so until the first of them runs out of forward passes. */

/* The events of a stage between its first backward and its last forward pass. */
static void steady_events(const tws_pipeline_program *p, uint32_t *first, uint32_t *last) {
  const tws_pipeline_event *e = p->events;
  *first = 0;
  *last = p->count - 1;
  while (*first < p->count && (e[*first].kind != TWS_EVENT_ACTION || e[*first].action.kind == TWS_ACTION_FORWARD))
    ++*first;
  while (*last > 0 && (e[*last].kind != TWS_EVENT_ACTION || e[*last].action.kind != TWS_ACTION_FORWARD)) --*last;
}

static int is_same_event(const tws_pipeline_event *a, const tws_pipeline_event *b, int apart) {
  return a->kind == b->kind && a->peer == b->peer && a->action.kind == b->action.kind &&
         a->action.chunk == b->action.chunk && a->action.micro_batch + (uint32_t)apart == b->action.micro_batch;
}

/* When the first stage has no more forward passes. */
static double steady_until(const runner *u) {
  double until = 0;
  for (int s = 0; s < u->r->shape->stages; s++) {
    uint32_t first, last;
    steady_events(&u->r->programs[s], &first, &last);
    const double end = u->clocks[s][last].compute_s;
    if (s == 0 || end < until) until = end;
  }
  return until;
}

static int is_repeated(const runner *u, double until, int every, double *seconds) {
  const tws_rhythm *r = u->r;
  const uint32_t micro_batches = (uint32_t)r->shape->micro_batches, chunks = (uint32_t)r->shape->virtual_stages;
  const uint32_t in_flight = tws_pipeline_in_flight(r->shape, 0) / chunks + 1;
  for (int s = 0; s < r->shape->stages; s++) {
    const tws_pipeline_program *p = &r->programs[s];
    const uint32_t each = p->count / micro_batches, back = each * (uint32_t)every, seen = back + each * in_flight;
    uint32_t first, last;
    const clocks *c = u->clocks[s];
    steady_events(p, &first, &last);
    while (last > first && (c[last].compute_s > until || c[last].messages_s > until)) last--;
    if (last < first + seen + back) return 0;
    if (s == 0) *seconds = c[last].compute_s - c[last - back].compute_s;
    const double most = 1e-13 * c[last].compute_s;
    for (uint32_t i = last - seen; i <= last; i++) {
      const double compute_s = c[i].compute_s - c[i - back].compute_s - *seconds;
      const double messages_s = c[i].messages_s - c[i - back].messages_s - *seconds;
      if (compute_s > most || compute_s < -most || messages_s > most || messages_s < -most) return 0;
      if (!is_same_event(&p->events[i - back], &p->events[i], every)) return 0;
    }
  }
  return 1;
}

static void find_repetition(const runner *u) {
  tws_rhythm *r = u->r;
  const double until = u->clocks ? steady_until(u) : 0;
  r->repeats = 0;
  for (int i = 0; i < 2 && u->clocks && !r->repeats; i++)
    if (r->may_repeat[i] && is_repeated(u, until, r->may_repeat[i], &r->repeats_s)) r->repeats = r->may_repeat[i];
}

static int keep_clocks(runner *u, tws_arena *arena) {
  const size_t stages = (size_t)u->r->shape->stages;
  if (!u->r->may_repeat[0]) return 1;
  u->clocks = tws_arena_alloc(arena, stages, sizeof *u->clocks);
  for (size_t s = 0; s < stages && u->clocks; s++) {
    u->clocks[s] = tws_arena_alloc_unset(arena, u->r->programs[s].count + 1u, sizeof **u->clocks);
    if (!u->clocks[s]) return 0;
  }
  return u->clocks != NULL;
}

tws_code tws_rhythm_run(tws_rhythm *r, tws_error *err) {
  const size_t stages = (size_t)r->shape->stages;
  const size_t states = (size_t)r->shape->virtual_stages * (size_t)r->shape->micro_batches * TWS_MESSAGE_BUFFERS;
  tws_arena *arena = tws_arena_create();
  if (!arena) return tws_fail(err, TWS_MEMORY, NULL, "no memory for the rhythm of a pipeline");
  runner u = {.r = r, .states = states};
  u.next = tws_arena_alloc(arena, stages, sizeof *u.next);
  u.waits = tws_arena_alloc(arena, stages, 1);
  u.ready = tws_arena_alloc(arena, stages, sizeof *u.ready);
  u.state = tws_arena_alloc(arena, stages, sizeof *u.state);
  u.slots = tws_arena_alloc(arena, stages, sizeof *u.slots);
  u.slot_count = tws_arena_alloc(arena, stages, sizeof *u.slot_count);
  u.slot_capacity = tws_arena_alloc(arena, stages, sizeof *u.slot_capacity);
  message_state *state = tws_arena_alloc_unset(arena, stages * states, sizeof *state);
  tws_code code = TWS_OK;
  if (!u.next || !u.waits || !u.ready || !u.state || !u.slots || !u.slot_count || !u.slot_capacity || !state ||
      !keep_clocks(&u, arena))
    code = tws_fail(err, TWS_MEMORY, NULL, "no memory for the rhythm of a pipeline");
  for (size_t s = 0; s < stages && code == TWS_OK; s++) {
    u.state[s] = state + s * states;
    r->stages[s].compute_s = r->stages[s].messages_s = 0;
  }
  for (size_t i = 0; i < stages * states && code == TWS_OK; i++) state[i] = (message_state){0, 0, 0, -1};
  if (code == TWS_OK) code = go_through(&u, err);
  if (code == TWS_OK) find_repetition(&u);
  for (size_t s = 0; s < stages && u.slots; s++) tws_free(u.slots[s]);
  tws_arena_destroy(arena);
  return code;
}
