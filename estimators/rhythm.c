#include "estimators/rhythm.h"

#include <string.h>

void tws_chunk_times_of(const tws_chunk_pieces *pieces, const tws_chunk_waits *waits, double stretch,
                        tws_chunk_times *out) {
  out->pieces = pieces;
  for (int later = 0; later < 2; later++)
    for (int e = 0; e < TWS_CONTEXT_EVENTS; e++) {
      if (!pieces->has[e]) continue;
      const tws_piece *p = &pieces->event[later][e];
      tws_chunk_event *to = &out->event[later][e];
      to->seconds = stretch * p->time.kernel + p->time.other + (waits ? waits->seconds[later][e] : 0);
      to->delta = p->delta;
      to->before = p->before;
      to->after = p->after;
      to->begins = p->begins;
      to->point_count = p->point_count;
      for (int i = 0; i < p->point_count; i++) {
        const double at = stretch * p->points[i].at.kernel + p->points[i].at.other;
        to->points[i] =
            (tws_event_point){at + (waits ? waits->before[later][e][i] : 0), p->points[i].kind, p->points[i].buffer};
      }
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
} message_state;

typedef struct clocks { /* behind an event */
  double compute_s, messages_s;
} clocks;

typedef struct runner {
  tws_rhythm *r;
  const tws_rhythm_order *order;
  clocks **clocks;      /* per stage: [event]; NULL: nobody asks */
  uint32_t *next;       /* per stage: event */
  message_state *state; /* [stage][chunk][micro-batch][buffer] */
  double *legs;         /* [stage][chunk][event]: of a message, less than 0: not asked yet */
} runner;

static double later(double a, double b) {
  return a > b ? a : b;
}

void tws_rhythm_gap(tws_rhythm_stage *stage, double from, double to) {
  for (uint32_t i = stage->message_count; i-- > 0 && to > from;) {
    const tws_message_times *m = &stage->messages[i];
    if (m->end_s > to) continue;
    if (m->end_s <= from) return;
    const double met = later(m->met_s, from), ready = later(m->ready_s, from);
    stage->exposed_s += to - met;
    stage->bubble_s += met - ready;
    to = ready;
  }
}

static double since_before(const runner *u, int32_t before) {
  return before < 0 ? 0 : later(u->state[before].message, u->state[before].used);
}

static void end_event(runner *u, int s) {
  const tws_rhythm_stage *stage = &u->r->stages[s];
  if (u->clocks) u->clocks[s][u->next[s]] = (clocks){stage->compute_s, stage->messages_s};
  u->next[s]++;
}

static void run_action(runner *u, const tws_rhythm_move *m) {
  tws_rhythm_stage *stage = &u->r->stages[m->here.stage];
  const tws_chunk_event *e = &stage->chunks[m->here.chunk]->event[m->here.is_later][m->here.event];
  const int32_t *before = u->order->before + m->before;
  message_state *own = u->state + m->here.state;
  double now = stage->compute_s, from = 0;
  if (u->r->serial) now = later(now, stage->messages_s);
  for (int i = 0; i < e->point_count; i++) {
    const tws_event_point *p = &e->points[i];
    now += p->at - from;
    from = p->at;
    if (p->kind == TWS_POINT_TAKE || p->kind == TWS_POINT_WAIT) {
      const double until = p->kind == TWS_POINT_TAKE ? since_before(u, *before++) : own[p->buffer].message;
      if (u->r->account) tws_rhythm_gap(stage, now, until);
      now = later(now, until);
    }
    if (p->kind == TWS_POINT_WRITTEN) own[p->buffer].written = now;
    if (p->kind == TWS_POINT_USED) own[p->buffer].used = now;
  }
  stage->compute_s = now + (e->seconds - from);
}

static double ready_at(const runner *u, const tws_rhythm_end *end, int32_t before) {
  const tws_rhythm_stage *stage = &u->r->stages[end->stage];
  double ready = later(stage->messages_s, since_before(u, before));
  if (u->r->serial) ready = later(ready, stage->compute_s);
  return end->sends ? later(ready, u->state[end->state].written) : ready;
}

/* By the longer of both ends. */
static double message_s(const runner *u, const tws_rhythm_move *m) {
  const tws_rhythm *r = u->r;
  const int here = m->here.stage, there = m->there.stage;
  double *known = &u->legs[(here * r->shape->virtual_stages + m->here.chunk) * TWS_CONTEXT_EVENTS + m->here.event];
  if (*known < 0) {
    const uint64_t bytes = r->stages[here].chunks[m->here.chunk]->pieces->message_bytes[m->here.event];
    *known = later(r->message(r->user, here, there, bytes), r->message(r->user, there, here, bytes));
  }
  return *known;
}

/* In one queue what computes waits for all of it. */
static void keep_message(const runner *u, int s, const tws_message_times *times) {
  tws_rhythm_stage *stage = &u->r->stages[s];
  stage->messages[stage->message_count++] = *times;
  if (!u->r->serial) return;
  stage->exposed_s += times->end_s - times->met_s;
  stage->bubble_s += times->met_s - times->ready_s;
}

static void run_moves(runner *u) {
  const tws_rhythm_order *o = u->order;
  tws_rhythm_stage *stages = u->r->stages;
  for (size_t i = 0; i < o->count; i++) {
    const tws_rhythm_move *m = &o->moves[i];
    if (!m->is_message) {
      run_action(u, m);
      end_event(u, m->here.stage);
      continue;
    }
    const double ready[2] = {ready_at(u, &m->here, o->before[m->before]),
                             ready_at(u, &m->there, o->before[m->before + 1])};
    const double met = later(ready[0], ready[1]), end = met + message_s(u, m);
    for (int there = 0; there < 2 && u->r->account; there++)
      keep_message(u, there ? m->there.stage : m->here.stage, &(tws_message_times){ready[there], met, end});
    u->state[m->here.state].message = u->state[m->there.state].message = end;
    stages[m->here.stage].messages_s = stages[m->there.stage].messages_s = end;
    end_event(u, m->here.stage);
    end_event(u, m->there.stage);
  }
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

static int begin_account(tws_rhythm *r) {
  for (int s = 0; r->account && s < r->shape->stages; s++) {
    tws_rhythm_stage *stage = &r->stages[s];
    stage->messages = tws_arena_alloc_unset(r->account, r->programs[s].count + 1u, sizeof *stage->messages);
    stage->message_count = 0;
    stage->exposed_s = stage->bubble_s = 0;
    if (!stage->messages) return 0;
  }
  return 1;
}

tws_code tws_rhythm_run(tws_rhythm *r, tws_error *err) {
  const size_t stages = (size_t)r->shape->stages, chunks = stages * (size_t)r->shape->virtual_stages;
  const size_t states = chunks * (size_t)r->shape->micro_batches * TWS_MESSAGE_BUFFERS;
  runner u = {.r = r};
  TWS_TRY(tws_rhythm_order_find(r->orders, r, &u.order, err));
  tws_arena *arena = tws_arena_create();
  u.next = tws_arena_alloc(arena, stages, sizeof *u.next);
  u.state = tws_arena_alloc(arena, states, sizeof *u.state);
  u.legs = tws_arena_alloc(arena, chunks * TWS_CONTEXT_EVENTS, sizeof *u.legs);
  tws_code code = TWS_OK;
  if (!u.next || !u.state || !u.legs || !keep_clocks(&u, arena) || !begin_account(r))
    code = tws_fail(err, TWS_MEMORY, NULL, "no memory for the rhythm of a pipeline");
  for (size_t i = 0; i < chunks * TWS_CONTEXT_EVENTS && code == TWS_OK; i++) u.legs[i] = -1;
  for (size_t s = 0; s < stages; s++) r->stages[s].compute_s = r->stages[s].messages_s = 0;
  if (code == TWS_OK) run_moves(&u);
  if (code == TWS_OK) find_repetition(&u);
  tws_arena_destroy(arena);
  return code;
}
