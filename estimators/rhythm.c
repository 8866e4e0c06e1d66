#include "estimators/rhythm.h"

#include <string.h>

static int event_times(const tws_composed_chunk *chunk, int later, int e, double stretch, int apart, tws_arena *arena,
                       tws_chunk_event *to) {
  const tws_piece *p = &chunk->pieces.event[later][e];
  const int acts = tws_context_acts(e);
  to->seconds = stretch * p->time.kernel + p->time.other;
  to->delta = p->delta;
  to->before = p->before;
  to->after = p->after;
  to->begins = p->begins;
  to->point_count = p->point_count;
  for (int i = 0; i < p->point_count; i++)
    to->points[i] = (tws_event_point){stretch * p->points[i].at.kernel + p->points[i].at.other, p->points[i].kind,
                                      p->points[i].buffer};
  to->steps = (tws_action_steps){NULL, 0, 0, 0, 0};
  if (!acts || !(apart || (chunk->exchanges && !chunk->far))) return 1;
  const int made = tws_action_steps_make(chunk, later, e, stretch, apart, arena, &to->steps);
  to->seconds += to->steps.waited_s;
  return made;
}

int tws_chunk_times_of(const tws_composed_chunk *chunk, double stretch, int apart, tws_arena *arena,
                       tws_chunk_times *out) {
  out->pieces = &chunk->pieces;
  out->exchanges = chunk->exchanges && !chunk->far;
  for (int later = 0; later < 2; later++)
    for (int e = 0; e < TWS_CONTEXT_EVENTS; e++)
      if (chunk->pieces.has[e] && !event_times(chunk, later, e, stretch, apart, arena, &out->event[later][e])) return 0;
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

/* Which operation of the stage did so, where an account is asked for. */
typedef struct message_causes {
  uint32_t written, message, used;
} message_causes;

typedef struct clocks { /* behind an event; exchanges_s: of a stage that has them, when none of ranks is under way */
  double compute_s, messages_s, exchanges_s;
} clocks;

/* A stage's exchanges on one stream, the last ones by their numbers. */
typedef struct stream_clocks {
  double end[TWS_EXCHANGES_BACK];
  uint32_t number[TWS_EXCHANGES_BACK]; /* 1 + those, where an account is asked for */
  uint32_t begun, last;                /* last: see number */
  double ended;                        /* the last */
} stream_clocks;
typedef struct exchange_clocks {
  stream_clocks on[TWS_OWN_STREAMS];
} exchange_clocks;

typedef struct runner {
  tws_rhythm *r;
  const tws_rhythm_order *order;
  int lines;
  size_t states, legs_of_line; /* of one line */
  clocks **clocks;             /* [line][stage]: [event]; NULL: nobody asks */
  uint32_t *next;              /* per stage: event */
  message_state *state;        /* [line][stage][chunk][micro-batch][buffer] */
  message_causes *causes;      /* likewise; NULL: nobody asks */
  double *legs;                /* [line][stage][chunk][event]: of a message, less than 0: not asked yet */
  exchange_clocks *exchanges;  /* [line][stage]; NULL: there are none */
  double *left;                /* [state / TWS_MESSAGE_BUFFERS][TWS_TIMES_LEFT] */
} runner;

static double later(double a, double b) {
  return a > b ? a : b;
}

/* ---- what is waited for, where an account is asked for: 1 + numbers of a stage's operations; 0: what computes ---- */

/* Of two that are waited for until then, the one that tells: that which ends last, and of two that end at once, but for
 * rounding, not the message, and else the one that began last, as tws_path_cause() has it. */
static uint32_t cause_of(const tws_rhythm_stage *stage, uint32_t a, double a_s, uint32_t b, double b_s) {
  const double near = 1e-12 * b_s;
  if (b_s > a_s + near || b_s < a_s - near) return b_s > a_s ? b : a;
  if (!a || !b) return a ? a : b;
  const int message = stage->ops[a - 1].axis == TWS_RHYTHM_MESSAGE;
  if (message != (stage->ops[b - 1].axis == TWS_RHYTHM_MESSAGE)) return message ? b : a;
  return a > b ? a : b;
}

/* What computes has waited, for this one last. */
static void expose(tws_rhythm_stage *stage, uint32_t by, double from, double to) {
  while (by && to > from) {
    const tws_rhythm_op *o = &stage->ops[by - 1];
    const double met = later(o->met_s, from), ready = later(o->ready_s, from);
    if (o->axis == TWS_RHYTHM_MESSAGE)
      stage->exposed_s += to - met;
    else if (o->axis < TWS_PIECE_AXES)
      stage->exchanged_s[o->axis] += to - met;
    stage->bubble_s += met - ready;
    to = ready;
    by = o->cause;
  }
}

void tws_rhythm_gap(tws_rhythm_stage *stage, double from, double to) {
  expose(stage, stage->last_message, from, to);
}

static double since_before(const message_state *state, int32_t before) {
  return before < 0 ? 0 : later(state[before].message, state[before].used);
}

/* Who did that last; causes: of a line. */
static uint32_t by_before(const runner *u, const tws_rhythm_stage *stage, size_t line_state, int32_t before) {
  if (!u->causes || before < 0) return 0;
  const message_state *state = &u->state[line_state + (size_t)before];
  const message_causes *by = &u->causes[line_state + (size_t)before];
  return cause_of(stage, by->message, state->message, by->used, state->used);
}

static tws_rhythm_stage *stage_of(const runner *u, int line, int s) {
  return &u->r->stages[line * u->r->shape->stages + s];
}

static void end_event(runner *u, int s) {
  for (int line = 0; line < u->lines && u->clocks; line++) {
    const tws_rhythm_stage *stage = stage_of(u, line, s);
    const int at = line * u->r->shape->stages + s;
    const double exchanges_s = u->exchanges ? later(u->exchanges[at].on[TWS_OWN_EXCHANGES].ended, stage->compute_s) : 0;
    u->clocks[at][u->next[s]] = (clocks){stage->compute_s, stage->messages_s, exchanges_s};
  }
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

/* Since when the stage's next computation waits: also for what the action before did behind all that it computed. */
static double take_waits(tws_rhythm_stage *stage, double now) {
  const double waits = now - stage->behind_s;
  stage->behind_s = 0;
  return waits;
}

/* A line's action, step by step. */
typedef struct walk {
  const runner *u;
  const tws_rhythm_move *m;
  const tws_chunk_event *e;
  tws_rhythm_stage *stage;
  exchange_clocks *x;
  size_t of_line;       /* its first state */
  message_state *state; /* of the line */
  double *left;         /* of the context */
  uint32_t next;        /* step */
  /* now; since when what computes has waited, for all of one operation at once; the step's place; when messages let the
   * next exchange begin */
  double now, waits, from, due;
  double copied;       /* until then it waits for copies of the action before */
  uint32_t by, due_by; /* what it waits for until now; what lets the next exchange begin */
} walk;

static walk begin_walk(const runner *u, const tws_rhythm_move *m, int line) {
  tws_rhythm_stage *stage = stage_of(u, line, m->here.stage);
  const size_t state = (size_t)line * u->states;
  const double now = u->r->serial ? later(stage->compute_s, stage->messages_s) : stage->compute_s;
  const double waits = take_waits(stage, now);
  return (walk){.u = u,
                .m = m,
                .e = &stage->chunks[m->here.chunk]->event[m->here.is_later][m->here.event],
                .stage = stage,
                .x = u->exchanges ? &u->exchanges[line * u->r->shape->stages + m->here.stage] : NULL,
                .of_line = state,
                .state = u->state + state,
                .left = u->left ? u->left + (state + m->here.state) / TWS_MESSAGE_BUFFERS * TWS_TIMES_LEFT : NULL,
                .now = now,
                .waits = waits,
                .copied = now};
}

static void wait_until(walk *w, double until, uint32_t by) {
  if (w->u->causes) w->by = cause_of(w->stage, w->by, w->now, by, until);
  w->now = later(w->now, until);
}

static void pass_point(walk *w, const tws_action_step *s) {
  const runner *u = w->u;
  const size_t own_state = (size_t)w->m->here.state + s->which;
  message_state *own = &w->state[own_state];
  message_causes *causes = u->causes ? &u->causes[w->of_line + own_state] : NULL;
  if (s->point == TWS_POINT_TAKE || s->point == TWS_POINT_WAIT) {
    const int takes = s->point == TWS_POINT_TAKE;
    const int32_t before = takes ? before_in_slot(u, w->m, w->e, s->which) : -1;
    const double until = takes ? since_before(w->state, before) : own->message;
    const uint32_t by = takes ? by_before(u, w->stage, w->of_line, before) : causes ? causes->message : 0;
    if (!s->aside) {
      wait_until(w, until, by);
      return;
    }
    if (causes) w->due_by = cause_of(w->stage, w->due_by, w->due, by, until);
    w->due = later(w->due, until);
    return;
  }
  if (s->point != TWS_POINT_WRITTEN && s->point != TWS_POINT_USED) return;
  const stream_clocks *x = s->aside ? &w->x->on[s->aside - 1] : NULL;
  const double then = x ? x->ended : w->now;
  double *last = s->point == TWS_POINT_WRITTEN ? &own->written : &own->used;
  uint32_t *by = !causes ? NULL : s->point == TWS_POINT_WRITTEN ? &causes->written : &causes->used;
  if (by) *by = cause_of(w->stage, *by, *last, x ? x->last : 0, then);
  *last = later(*last, then);
}

/* When an exchange may begin here. */
static double exchange_ready(const walk *w, const tws_action_step *s) {
  const double since = s->kind == TWS_STEP_EXCHANGE ? w->now : s->which == TWS_NONE ? 0 : w->left[s->which];
  return later(w->x->on[s->stream].ended, later(since, s->stream == TWS_OWN_EXCHANGES ? w->due : 0));
}

/* Into the stage's account; returns 1 + its number. */
static uint32_t keep_op(tws_rhythm_stage *stage, tws_rhythm_op op) {
  stage->ops[stage->op_count++] = op;
  return stage->op_count;
}

static void run_exchange(walk *w, const tws_action_step *s, double met, double seconds) {
  const double ready = exchange_ready(w, s), ended = met + seconds;
  stream_clocks *x = &w->x->on[s->stream];
  if (w->u->causes) {
    const int due = s->stream == TWS_OWN_EXCHANGES && w->due > 0;
    uint32_t cause = cause_of(w->stage, x->last, x->ended, due ? w->due_by : 0, due ? w->due : 0);
    if (ready > later(x->ended, due ? w->due : 0)) cause = 0;
    x->last = x->number[x->begun % TWS_EXCHANGES_BACK] =
        keep_op(w->stage, (tws_rhythm_op){ready, met, ended, cause, s->axis});
  }
  x->ended = x->end[x->begun++ % TWS_EXCHANGES_BACK] = ended;
  if (s->stream != TWS_OWN_EXCHANGES) return;
  w->due = 0;
  w->due_by = 0;
}

/* What computes has waited. */
static void end_waits(walk *w) {
  if (w->u->causes && w->now > w->copied) expose(w->stage, w->by, w->waits, w->now);
  w->by = 0;
}

/* As far as a step that others are met in, which it returns; NULL: none is left. */
static const tws_action_step *walk_on(walk *w) {
  const tws_action_steps *steps = &w->e->steps;
  for (; w->next < steps->count; w->next++) {
    const tws_action_step *s = &steps->items[w->next];
    if (s->at > w->from || s->at < w->from) {
      end_waits(w);
      w->now += s->at - w->from;
      w->from = s->at;
      w->waits = w->now;
    }
    stream_clocks *x;
    uint32_t at;
    if (s->meets) return s;
    switch ((tws_action_step_kind)s->kind) {
      case TWS_STEP_POINT:
        pass_point(w, s);
        break;
      case TWS_STEP_EXCHANGE:
      case TWS_STEP_LATE:
        run_exchange(w, s, exchange_ready(w, s), s->seconds);
        break;
      case TWS_STEP_LEAVE:
        w->left[s->which] = w->now;
        break;
      case TWS_STEP_ENDED:
        x = &w->x->on[TWS_OWN_EXCHANGES];
        if (w->now > x->ended) x->last = 0;
        x->ended = later(x->ended, w->now);
        break;
      case TWS_STEP_WAIT:
        x = &w->x->on[s->stream];
        at = (x->begun - 1 - s->which) % TWS_EXCHANGES_BACK;
        wait_until(w, x->end[at], w->u->causes ? x->number[at] : 0);
        break;
      case TWS_STEP_JOIN:
        break;
    }
  }
  return NULL;
}

/* What it waits behind all that it computes is open: the next computation may wait for something else longer. */
static void end_walk(walk *w) {
  const tws_action_steps *steps = &w->e->steps;
  const tws_action_step *last = steps->count ? &steps->items[steps->count - 1] : NULL;
  const int open = last && last->kind == TWS_STEP_WAIT && last->aside;
  if (!open) end_waits(w);
  w->stage->compute_s = w->now + (w->e->seconds - w->from);
  w->stage->behind_s = open ? w->now - w->waits : steps->behind_s;
  w->stage->exchanged_s[tws_piece_axis(TWS_AXIS_MODEL)] += w->e->steps.exchanged_s;
}

/* ---- lines that meet ---- */

const uint8_t *tws_lines_along(const tws_line_groups *g, tws_axes axes) {
  for (int i = 0; i < g->count; i++)
    if (g->along[i].axes == axes) return g->along[i].of;
  return NULL;
}

static double ready_to_meet(const walk *w, const tws_action_step *s) {
  return s->kind == TWS_STEP_JOIN ? w->now : exchange_ready(w, s);
}

/* Of lines in a group with this one, in which all have come to the same kind of step. */
static void meet(walk *lines, const tws_action_step **at, const uint8_t *of, int first, int count) {
  double met = 0, seconds = 0;
  for (int i = first; i < count; i++) {
    if (of[i] != of[first]) continue;
    met = later(met, ready_to_meet(&lines[i], at[i]));
    seconds = later(seconds, at[i]->seconds);
  }
  for (int i = first; i < count; i++) {
    walk *w = &lines[i];
    if (of[i] != of[first]) continue;
    if (at[i]->kind == TWS_STEP_JOIN) {
      end_waits(w);
      w->stage->bubble_s += met - w->now;
      w->stage->exchanged_s[at[i]->axis] += seconds - at[i]->seconds;
      w->waits = w->now = met + seconds - at[i]->seconds; /* its own are between this step and the next */
    } else {
      run_exchange(w, at[i], met, seconds);
    }
    w->next++;
    at[i] = walk_on(w);
  }
}

/* Whether all that this line meets in its next step are there. */
static int all_there(const tws_action_step *const *at, const uint8_t *of, int first, int count) {
  for (int i = 0; i < count; i++)
    if (of[i] == of[first] && (!at[i] || at[i]->meets != at[first]->meets || at[i]->kind != at[first]->kind)) return 0;
  return 1;
}

/* 0: they wait for each other. */
static int run_lines(const runner *u, const tws_rhythm_move *m) {
  walk lines[TWS_MOST_LINES];
  const tws_action_step *at[TWS_MOST_LINES];
  for (int i = 0; i < u->lines; i++) {
    lines[i] = begin_walk(u, m, i);
    at[i] = walk_on(&lines[i]);
  }
  for (int moved = 1; moved;) {
    moved = 0;
    for (int i = 0; i < u->lines; i++) {
      const uint8_t *of = at[i] ? tws_lines_along(u->r->groups, at[i]->meets) : NULL;
      if (!of || of[i] != i || !all_there(at, of, i, u->lines)) continue;
      meet(lines, at, of, i, u->lines);
      moved = 1;
    }
  }
  for (int i = 0; i < u->lines; i++) {
    if (at[i]) return 0;
    end_walk(&lines[i]);
  }
  return 1;
}

static int run_action(runner *u, const tws_rhythm_move *m) {
  tws_rhythm_stage *stage = &u->r->stages[m->here.stage];
  const tws_chunk_event *e = &stage->chunks[m->here.chunk]->event[m->here.is_later][m->here.event];
  if (u->lines > 1) return run_lines(u, m);
  if (e->steps.items) {
    walk w = begin_walk(u, m, 0);
    walk_on(&w);
    end_walk(&w);
    return 1;
  }
  const int32_t *before = u->order->before + m->before;
  message_state *own = u->state + m->here.state;
  message_causes *causes = u->causes ? u->causes + m->here.state : NULL;
  double now = stage->compute_s, from = 0, waits = take_waits(stage, now);
  if (u->r->serial) waits = now = later(now, stage->messages_s);
  for (int i = 0; i < e->point_count; i++) {
    const tws_event_point *p = &e->points[i];
    now += p->at - from;
    if (p->at > from) waits = now;
    from = p->at;
    if (p->kind == TWS_POINT_TAKE_AHEAD) before++; /* of an exchange of which nothing is known */
    if (p->kind == TWS_POINT_TAKE || p->kind == TWS_POINT_WAIT) {
      const int takes = p->kind == TWS_POINT_TAKE;
      const double until = takes ? since_before(u->state, *before) : own[p->buffer].message;
      if (causes && until > now)
        expose(stage, takes ? by_before(u, stage, 0, *before) : causes[p->buffer].message, waits, until);
      before += takes;
      waits = now = later(now, until);
    }
    if (p->kind == TWS_POINT_WRITTEN) own[p->buffer].written = now;
    if (p->kind == TWS_POINT_USED) own[p->buffer].used = now;
    if (causes && p->kind == TWS_POINT_WRITTEN) causes[p->buffer].written = 0;
    if (causes && p->kind == TWS_POINT_USED) causes[p->buffer].used = 0;
  }
  stage->compute_s = now + (e->seconds - from);
  return 1;
}

static double ready_at(const runner *u, int line, const tws_rhythm_end *end, int32_t before) {
  const tws_rhythm_stage *stage = stage_of(u, line, end->stage);
  const message_state *state = u->state + (size_t)line * u->states;
  double ready = later(stage->messages_s, since_before(state, before));
  if (u->r->serial) ready = later(ready, stage->compute_s);
  return end->sends ? later(ready, state[end->state].written) : ready;
}

/* By the longer of both ends. */
static double message_s(const runner *u, int line, const tws_rhythm_move *m) {
  const tws_rhythm *r = u->r;
  const int here = m->here.stage, there = m->there.stage;
  double *known = u->legs + (size_t)line * u->legs_of_line;
  known += (here * r->shape->virtual_stages + m->here.chunk) * TWS_CONTEXT_EVENTS + m->here.event;
  if (*known < 0) {
    const uint64_t bytes = stage_of(u, line, here)->chunks[m->here.chunk]->pieces->message_bytes[m->here.event];
    *known = later(r->message(r->user, line, here, there, bytes), r->message(r->user, line, there, here, bytes));
  }
  return *known;
}

/* What an end of a message waited for. */
static uint32_t cause_at(const runner *u, int line, const tws_rhythm_end *end, int32_t before) {
  const tws_rhythm_stage *stage = stage_of(u, line, end->stage);
  const size_t of_line = (size_t)line * u->states, own = of_line + (size_t)end->state;
  const double since = since_before(u->state + of_line, before), written = end->sends ? u->state[own].written : 0;
  uint32_t by = cause_of(stage, stage->last_message, stage->messages_s, by_before(u, stage, of_line, before), since);
  if (end->sends) by = cause_of(stage, by, later(stage->messages_s, since), u->causes[own].written, written);
  return u->r->serial && stage->compute_s > later(stage->messages_s, later(since, written)) ? 0 : by;
}

/* In one queue what computes waits for all of it. */
static void keep_message(const runner *u, int line, const tws_rhythm_end *at, tws_rhythm_op message) {
  tws_rhythm_stage *stage = stage_of(u, line, at->stage);
  stage->last_message = keep_op(stage, message);
  u->causes[(size_t)line * u->states + (size_t)at->state].message = stage->last_message;
  if (!u->r->serial) return;
  stage->exposed_s += message.end_s - message.met_s;
  stage->bubble_s += message.met_s - message.ready_s;
}

static void run_message(runner *u, int line, const tws_rhythm_move *m) {
  const int32_t *before = u->order->before + m->before;
  const double ready[2] = {ready_at(u, line, &m->here, before[0]), ready_at(u, line, &m->there, before[1])};
  const double met = later(ready[0], ready[1]), end = met + message_s(u, line, m);
  tws_rhythm_stage *here = stage_of(u, line, m->here.stage), *there = stage_of(u, line, m->there.stage);
  message_state *state = u->state + (size_t)line * u->states;
  for (int i = 0; i < 2 && u->causes; i++) {
    const tws_rhythm_end *at = i ? &m->there : &m->here;
    const uint32_t cause = cause_at(u, line, at, before[i]);
    keep_message(u, line, at, (tws_rhythm_op){ready[i], met, end, cause, TWS_RHYTHM_MESSAGE});
  }
  state[m->here.state].message = state[m->there.state].message = end;
  here->messages_s = there->messages_s = end;
}

/* 0: lines wait for each other. */
static int run_moves(runner *u) {
  const tws_rhythm_order *o = u->order;
  for (size_t i = 0; i < o->count; i++) {
    const tws_rhythm_move *m = &o->moves[i];
    if (!m->is_message) {
      if (!run_action(u, m)) return 0;
      end_event(u, m->here.stage);
      continue;
    }
    for (int line = 0; line < u->lines; line++) run_message(u, line, m);
    end_event(u, m->here.stage);
    end_event(u, m->there.stage);
  }
  return 1;
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
  const int stages = u->r->shape->stages;
  double until = 0;
  for (int i = 0; i < u->lines * stages; i++) {
    uint32_t first, last;
    steady_events(&u->r->programs[i % stages], &first, &last);
    const double end = u->clocks[i][last].compute_s;
    if (i == 0 || end < until) until = end;
  }
  return until;
}

static int is_repeated(const runner *u, double until, int every, double *seconds) {
  const tws_rhythm *r = u->r;
  const uint32_t micro_batches = (uint32_t)r->shape->micro_batches, chunks = (uint32_t)r->shape->virtual_stages;
  const uint32_t in_flight = tws_pipeline_in_flight(r->shape, 0) / chunks + 1;
  for (int s = 0; s < u->lines * r->shape->stages; s++) {
    const tws_pipeline_program *p = &r->programs[s % r->shape->stages];
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
      const double messages_s = r->shape->stages > 1 ? c[i].messages_s - c[i - back].messages_s - *seconds : 0;
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
  const size_t stages = (size_t)u->r->shape->stages, all = (size_t)u->lines * stages;
  if (!u->r->may_repeat[0]) return 1;
  u->clocks = tws_arena_alloc(arena, all, sizeof *u->clocks);
  for (size_t s = 0; s < all && u->clocks; s++) {
    u->clocks[s] = tws_arena_alloc_unset(arena, u->r->programs[s % stages].count + 1u, sizeof **u->clocks);
    if (!u->clocks[s]) return 0;
  }
  return u->clocks != NULL;
}

/* All exchanges that are steps. */
static size_t exchange_steps(const tws_rhythm *r, int at) {
  const tws_pipeline_program *p = &r->programs[at % r->shape->stages];
  size_t count = 1;
  for (uint32_t i = 0; i < p->count; i++) {
    const tws_chunk_event *e = event_of(&r->stages[at], &p->events[i]);
    for (uint32_t k = 0; k < e->steps.count; k++)
      count += e->steps.items[k].kind == TWS_STEP_EXCHANGE || e->steps.items[k].kind == TWS_STEP_LATE;
  }
  return count;
}

static int begin_account(runner *u, tws_arena *arena) {
  const tws_rhythm *r = u->r;
  if (!r->account) return 1;
  u->causes = tws_arena_alloc(arena, (size_t)u->lines * u->states, sizeof *u->causes);
  for (int i = 0; u->causes && i < u->lines * r->shape->stages; i++) {
    tws_rhythm_stage *stage = &r->stages[i];
    const size_t ops = r->programs[i % r->shape->stages].count + exchange_steps(r, i);
    stage->ops = tws_arena_alloc_unset(r->account, ops, sizeof *stage->ops);
    stage->op_count = stage->last_message = 0;
    stage->exposed_s = stage->bubble_s = 0;
    memset(stage->exchanged_s, 0, sizeof stage->exchanged_s);
    if (!stage->ops) return 0;
  }
  return u->causes != NULL;
}

/* 0: no memory. */
static int begin_exchanges(runner *u, tws_arena *arena) {
  const tws_rhythm *r = u->r;
  const size_t all = (size_t)u->lines * (size_t)r->shape->stages;
  int any = 0;
  for (size_t i = 0; i < all; i++)
    for (int c = 0; c < r->shape->virtual_stages; c++) any |= r->stages[i].chunks[c]->exchanges;
  if (!any) return 1;
  u->exchanges = tws_arena_alloc_unset(arena, all, sizeof *u->exchanges);
  for (size_t i = 0; i < all && u->exchanges; i++)
    for (int stream = 0; stream < TWS_OWN_STREAMS; stream++) {
      stream_clocks *x = &u->exchanges[i].on[stream];
      x->begun = x->last = 0;
      x->ended = 0;
    }
  u->left =
      tws_arena_alloc(arena, (size_t)u->lines * u->states / TWS_MESSAGE_BUFFERS * TWS_TIMES_LEFT, sizeof *u->left);
  return u->exchanges && u->left;
}

tws_code tws_rhythm_run(tws_rhythm *r, tws_error *err) {
  const size_t stages = (size_t)r->shape->stages, chunks = stages * (size_t)r->shape->virtual_stages;
  runner u = {.r = r,
              .lines = r->lines > 1 ? r->lines : 1,
              .states = chunks * (size_t)r->shape->micro_batches * TWS_MESSAGE_BUFFERS,
              .legs_of_line = chunks * TWS_CONTEXT_EVENTS};
  const size_t lines = (size_t)u.lines, legs = lines * u.legs_of_line;
  TWS_TRY(tws_rhythm_order_find(r->orders, r, &u.order, err));
  tws_arena *arena = tws_arena_create();
  u.next = tws_arena_alloc(arena, stages, sizeof *u.next);
  u.state = tws_arena_alloc(arena, lines * u.states, sizeof *u.state);
  u.legs = tws_arena_alloc(arena, legs, sizeof *u.legs);
  tws_code code = TWS_OK;
  if (!u.next || !u.state || !u.legs || !keep_clocks(&u, arena) || !begin_account(&u, arena) ||
      !begin_exchanges(&u, arena))
    code = tws_fail(err, TWS_MEMORY, NULL, "no memory for the rhythm of a pipeline");
  for (size_t i = 0; i < legs && code == TWS_OK; i++) u.legs[i] = -1;
  for (size_t s = 0; s < lines * stages; s++)
    r->stages[s].compute_s = r->stages[s].messages_s = r->stages[s].behind_s = 0;
  if (code == TWS_OK && !run_moves(&u))
    code = tws_fail(err, TWS_INTERNAL, NULL, "ranks wait for ever in the rhythm of a pipeline");
  if (code == TWS_OK) find_repetition(&u);
  for (size_t s = 0; s < lines * stages && code == TWS_OK; s++)
    r->stages[s].exchanging = u.exchanges && u.exchanges[s].on[TWS_OWN_EXCHANGES].ended > r->stages[s].compute_s;
  tws_arena_destroy(arena);
  return code;
}
