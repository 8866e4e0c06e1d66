#include "estimators/rhythm.h"

#include <string.h>

static int event_times(const tws_composed_chunk *chunk, int later, int e, double stretch, tws_arena *arena,
                       tws_chunk_event *to) {
  const tws_piece *p = &chunk->pieces.event[later][e];
  const int acts = e == TWS_CONTEXT_FORWARD || e == TWS_CONTEXT_BACKWARD || e == TWS_CONTEXT_WEIGHT;
  to->seconds = stretch * p->time.kernel + p->time.other;
  to->delta = p->delta;
  to->before = p->before;
  to->after = p->after;
  to->begins = p->begins;
  to->point_count = p->point_count;
  for (int i = 0; i < p->point_count; i++)
    to->points[i] = (tws_event_point){stretch * p->points[i].at.kernel + p->points[i].at.other, p->points[i].kind,
                                      p->points[i].buffer};
  to->steps = (tws_action_steps){NULL, 0, 0};
  if (!chunk->exchanges || chunk->far || !acts) return 1;
  const int made = tws_action_steps_make(chunk, later, e, stretch, arena, &to->steps);
  to->seconds += to->steps.waited_s;
  return made;
}

int tws_chunk_times_of(const tws_composed_chunk *chunk, double stretch, tws_arena *arena, tws_chunk_times *out) {
  out->pieces = &chunk->pieces;
  out->exchanges = chunk->exchanges && !chunk->far;
  for (int later = 0; later < 2; later++)
    for (int e = 0; e < TWS_CONTEXT_EVENTS; e++)
      if (chunk->pieces.has[e] && !event_times(chunk, later, e, stretch, arena, &out->event[later][e])) return 0;
  return 1;
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

typedef struct clocks { /* behind an event; exchanges_s: of a stage that has them, when none is under way */
  double compute_s, messages_s, exchanges_s;
} clocks;

/* Exchanges of a stage's tensor ranks, the last ones by their numbers. */
typedef struct exchange_clocks {
  double end[TWS_EXCHANGES_BACK];
  uint32_t begun;
  double ended; /* the last */
} exchange_clocks;

typedef struct runner {
  tws_rhythm *r;
  const tws_rhythm_order *order;
  clocks **clocks;            /* per stage: [event]; NULL: nobody asks */
  uint32_t *next;             /* per stage: event */
  message_state *state;       /* [stage][chunk][micro-batch][buffer] */
  double *legs;               /* [stage][chunk][event]: of a message, less than 0: not asked yet */
  exchange_clocks *exchanges; /* per stage; NULL: there are none */
  double *left;               /* [state / TWS_MESSAGE_BUFFERS][TWS_TIMES_LEFT] */
} runner;

static double later(double a, double b) {
  return a > b ? a : b;
}

/* The latest of the messages that have ended by then, of the first `count`; 0: there is none. */
static uint32_t last_message(const tws_rhythm_stage *stage, uint32_t count, double by) {
  while (count > 0 && stage->messages[count - 1].end_s > by) count--;
  return count;
}

static uint32_t last_exchange(const tws_rhythm_stage *stage, uint32_t count, double by) {
  while (count > 0 && stage->exchanges[count - 1].end_s > by) count--;
  return count;
}

/* Of a message and an exchange that end at once, but for rounding, the exchange was issued later, and tells. */
void tws_rhythm_gap(tws_rhythm_stage *stage, double from, double to) {
  const double near = 1e-13 * to;
  uint32_t message = stage->message_count, exchange = stage->exchange_count;
  while (to > from) {
    message = last_message(stage, message, to);
    exchange = last_exchange(stage, exchange, to);
    const tws_message_times *m = message ? &stage->messages[message - 1] : NULL;
    const tws_exchange_times *x = exchange ? &stage->exchanges[exchange - 1] : NULL;
    if (x && x->end_s > from && (!m || x->end_s > m->end_s - near)) {
      const double ready = later(x->ready_s, from);
      stage->exchanged_s += to - ready;
      to = ready;
      exchange--;
      continue;
    }
    if (!m || m->end_s <= from) return;
    const double met = later(m->met_s, from), ready = later(m->ready_s, from);
    stage->exposed_s += to - met;
    stage->bubble_s += met - ready;
    to = ready;
    message--;
  }
}

static double since_before(const runner *u, int32_t before) {
  return before < 0 ? 0 : later(u->state[before].message, u->state[before].used);
}

static void end_event(runner *u, int s) {
  const tws_rhythm_stage *stage = &u->r->stages[s];
  const double exchanges_s = u->exchanges ? later(u->exchanges[s].ended, stage->compute_s) : 0;
  if (u->clocks) u->clocks[s][u->next[s]] = (clocks){stage->compute_s, stage->messages_s, exchanges_s};
  u->next[s]++;
}

/* What lay in the slot of a buffer that the action begins. */
static int32_t before_in_slot(const runner *u, const tws_rhythm_move *m, const tws_chunk_event *e, uint32_t buffer) {
  const int32_t *before = u->order->before + m->before;
  for (int i = 0; i < e->point_count; i++) {
    if (e->points[i].kind != TWS_POINT_TAKE && e->points[i].kind != TWS_POINT_TAKE_AHEAD) continue;
    if (e->points[i].buffer == buffer) return *before;
    before++;
  }
  return -1;
}

static void begin_exchange(const runner *u, tws_rhythm_stage *stage, exchange_clocks *x, double since, double seconds) {
  const double ready = later(x->ended, since);
  x->ended = x->end[x->begun++ % TWS_EXCHANGES_BACK] = ready + seconds;
  if (u->r->account) stage->exchanges[stage->exchange_count++] = (tws_exchange_times){ready, x->ended};
}

/* *due: when messages let the next exchange begin. */
static double pass_point(const runner *u, const tws_rhythm_move *m, const tws_chunk_event *e, const tws_action_step *s,
                         double now, double *due) {
  message_state *own = &u->state[m->here.state + s->which];
  if (s->point == TWS_POINT_TAKE || s->point == TWS_POINT_WAIT) {
    const double until = s->point == TWS_POINT_TAKE ? since_before(u, before_in_slot(u, m, e, s->which)) : own->message;
    if (s->aside) *due = later(*due, until);
    return s->aside ? now : later(now, until);
  }
  const double then = s->aside ? u->exchanges[m->here.stage].ended : now;
  double *last = s->point == TWS_POINT_WRITTEN ? &own->written : &own->used;
  if (s->point == TWS_POINT_WRITTEN || s->point == TWS_POINT_USED) *last = later(*last, then);
  return now;
}

/* What computes waits for all of one operation at once: from `waits` on. */
static void run_steps(runner *u, const tws_rhythm_move *m, const tws_chunk_event *e) {
  tws_rhythm_stage *stage = &u->r->stages[m->here.stage];
  exchange_clocks *x = &u->exchanges[m->here.stage];
  double *left = u->left + (size_t)m->here.state / TWS_MESSAGE_BUFFERS * TWS_TIMES_LEFT;
  double now = stage->compute_s, waits = now, from = 0, due = 0;
  for (uint32_t i = 0; i < e->steps.count; i++) {
    const tws_action_step *s = &e->steps.items[i];
    if (s->at > from || s->at < from) {
      if (u->r->account) tws_rhythm_gap(stage, waits, now);
      now += s->at - from;
      from = s->at;
      waits = now;
    }
    switch ((tws_action_step_kind)s->kind) {
      case TWS_STEP_POINT:
        now = pass_point(u, m, e, s, now, &due);
        break;
      case TWS_STEP_EXCHANGE:
        begin_exchange(u, stage, x, later(now, due), s->seconds);
        due = 0;
        break;
      case TWS_STEP_LATE:
        begin_exchange(u, stage, x, s->which == TWS_NONE ? due : later(left[s->which], due), s->seconds);
        due = 0;
        break;
      case TWS_STEP_LEAVE:
        left[s->which] = now;
        break;
      case TWS_STEP_ENDED:
        x->ended = later(x->ended, now);
        break;
      case TWS_STEP_WAIT:
        now = later(now, x->end[(x->begun - 1 - s->which) % TWS_EXCHANGES_BACK]);
        break;
    }
  }
  if (u->r->account) tws_rhythm_gap(stage, waits, now);
  stage->compute_s = now + (e->seconds - from);
  stage->exchanged_s += e->steps.waited_s;
}

static void run_action(runner *u, const tws_rhythm_move *m) {
  tws_rhythm_stage *stage = &u->r->stages[m->here.stage];
  const tws_chunk_event *e = &stage->chunks[m->here.chunk]->event[m->here.is_later][m->here.event];
  if (e->steps.items) {
    run_steps(u, m, e);
    return;
  }
  const int32_t *before = u->order->before + m->before;
  message_state *own = u->state + m->here.state;
  double now = stage->compute_s, from = 0;
  if (u->r->serial) now = later(now, stage->messages_s);
  for (int i = 0; i < e->point_count; i++) {
    const tws_event_point *p = &e->points[i];
    now += p->at - from;
    from = p->at;
    if (p->kind == TWS_POINT_TAKE_AHEAD) before++; /* of an exchange of which nothing is known */
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
      const double exchanges_s = u->exchanges ? c[i].exchanges_s - c[i - back].exchanges_s - *seconds : 0;
      if (compute_s > most || compute_s < -most || messages_s > most || messages_s < -most) return 0;
      if (exchanges_s > most || exchanges_s < -most) return 0;
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

/* All exchanges that are steps. */
static size_t exchange_steps(const tws_rhythm *r, int s) {
  size_t count = 1;
  for (uint32_t i = 0; i < r->programs[s].count; i++) {
    const tws_chunk_event *e = event_of(&r->stages[s], &r->programs[s].events[i]);
    for (uint32_t k = 0; k < e->steps.count; k++)
      count += e->steps.items[k].kind == TWS_STEP_EXCHANGE || e->steps.items[k].kind == TWS_STEP_LATE;
  }
  return count;
}

static int begin_account(tws_rhythm *r) {
  for (int s = 0; r->account && s < r->shape->stages; s++) {
    tws_rhythm_stage *stage = &r->stages[s];
    stage->messages = tws_arena_alloc_unset(r->account, r->programs[s].count + 1u, sizeof *stage->messages);
    stage->exchanges = tws_arena_alloc_unset(r->account, exchange_steps(r, s), sizeof *stage->exchanges);
    stage->message_count = stage->exchange_count = 0;
    stage->exposed_s = stage->bubble_s = stage->exchanged_s = 0;
    if (!stage->messages || !stage->exchanges) return 0;
  }
  return 1;
}

/* 0: no memory. */
static int begin_exchanges(runner *u, size_t contexts, tws_arena *arena) {
  const tws_rhythm *r = u->r;
  int any = 0;
  for (int s = 0; s < r->shape->stages; s++)
    for (int c = 0; c < r->shape->virtual_stages; c++) any |= r->stages[s].chunks[c]->exchanges;
  if (!any) return 1;
  u->exchanges = tws_arena_alloc(arena, (size_t)r->shape->stages, sizeof *u->exchanges);
  u->left = tws_arena_alloc(arena, contexts * TWS_TIMES_LEFT, sizeof *u->left);
  return u->exchanges && u->left;
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
  if (!u.next || !u.state || !u.legs || !keep_clocks(&u, arena) || !begin_account(r) ||
      !begin_exchanges(&u, states / TWS_MESSAGE_BUFFERS, arena))
    code = tws_fail(err, TWS_MEMORY, NULL, "no memory for the rhythm of a pipeline");
  for (size_t i = 0; i < chunks * TWS_CONTEXT_EVENTS && code == TWS_OK; i++) u.legs[i] = -1;
  for (size_t s = 0; s < stages; s++) r->stages[s].compute_s = r->stages[s].messages_s = 0;
  if (code == TWS_OK) run_moves(&u);
  if (code == TWS_OK) find_repetition(&u);
  for (size_t s = 0; s < stages && code == TWS_OK; s++)
    r->stages[s].exchanging = u.exchanges && u.exchanges[s].ended > r->stages[s].compute_s;
  tws_arena_destroy(arena);
  return code;
}
