#include "estimators/beside.h"

#include <math.h>
#include <string.h>

#include "estimators/beside_events.h"

/* ---- going through them ---- */

typedef struct moved {
  double ready, end;
  uint32_t cause; /* number + 1 of the operation that it waited for last; 0: none but what computes */
  const tws_beside_op *op;
  uint32_t was; /* of what is carried over: its number + 1 in the micro-batch before */
} moved;

typedef struct walk {
  const tws_beside_events *of;
  const tws_beside_trace *trace;
  double stretch, now, moves_end[TWS_BESIDE_STREAMS];
  double channel_end[TWS_CHANNEL_COUNT];
  uint32_t on_stream[TWS_BESIDE_STREAMS], on_channel[TWS_CHANNEL_COUNT]; /* number + 1 of the last */
  moved *moved;                                                          /* from `most` on: what is carried over */
  uint32_t most, carried;
  tws_composed_account *account;
  double axis_s[TWS_PIECE_AXES];
  /* Where there is an account: the micro-batch before, and how long it took. At its end what computes waited so long
   * for the rest, in which so much was exposed; but what computes next may wait for something else, longer. */
  moved *before;
  double shift, open_s, open_axis_s[TWS_PIECE_AXES];
  tws_beside_wait *waits; /* NULL: nobody asks */
  size_t wait_count;
} walk;

static double seconds_of(const walk *w, tws_piece_time t) {
  return tws_stretched_seconds(t, w->stretch);
}

static void begin_move(walk *w, uint32_t number, const tws_beside_op *op) {
  moved *m = &w->moved[number];
  const int stream = op->stream;
  *m = (moved){.ready = w->now, .op = op};
  if (w->moves_end[stream] > m->ready) {
    m->ready = w->moves_end[stream];
    m->cause = w->on_stream[stream];
  }
  if (op->channel != TWS_CHANNEL_NONE && w->channel_end[op->channel] > m->ready) {
    m->ready = w->channel_end[op->channel];
    m->cause = w->on_channel[op->channel];
  }
  m->end = m->ready + seconds_of(w, op->time);
  w->moves_end[stream] = m->end;
  w->on_stream[stream] = number + 1;
  if (op->channel == TWS_CHANNEL_NONE) return;
  w->channel_end[op->channel] = m->end;
  w->on_channel[op->channel] = number + 1;
}

/* The time of an operation, and of those that it waited for, between these moments. */
static void expose(const walk *w, uint32_t number, double from, double to, double *axis_s) {
  const moved *all = w->moved;
  double began = 0; /* their micro-batch */
  for (uint32_t i = number + 1; i && to > from;) {
    const moved *m = &all[i - 1];
    if (m->was && all == w->moved) {
      i = m->was;
      all = w->before;
      began = -w->shift;
      continue;
    }
    const double ready = m->ready + began > from ? m->ready + began : from;
    if (m->op->axis < TWS_PIECE_AXES) axis_s[m->op->axis] += to - ready;
    to = ready;
    i = m->cause;
  }
  if (to > from && w->open_s > 0) tws_add_axes(axis_s, 1, w->open_axis_s); /* it began with the micro-batch */
}

static void close_gap(walk *w) {
  if (w->open_s > 0) tws_add_axes(w->axis_s, 1, w->open_axis_s);
  w->open_s = 0;
}

/* What computes waits until this one has ended: its time and that of those that it waited for, as far as nothing was
 * computed meanwhile. */
static void wait_for(walk *w, uint32_t number) {
  const double until = w->moved[number].end;
  if (until <= w->now) return;
  if (w->account) expose(w, number, w->now - w->open_s, until, w->axis_s);
  w->open_s = 0;
  w->now = until;
}

/* Likewise for all that is reduced, when a micro-batch ends. */
static void wait_for_reduced(walk *w) {
  const uint32_t last = w->on_stream[TWS_BESIDE_REDUCES];
  const double until = last ? w->moved[last - 1].end : 0;
  close_gap(w);
  if (until <= w->now) return;
  memset(w->open_axis_s, 0, sizeof w->open_axis_s);
  if (w->account) expose(w, last - 1, w->now, until, w->open_axis_s);
  w->open_s = w->account ? until - w->now : 0;
  w->now = until;
}

/* What of the last micro-batch still runs on the stream of gathers, in its order, from the beginning of the next. */
static void carry_over(walk *w, uint32_t number, moved *to) {
  const moved *m = &w->moved[number];
  if (m->op->stream != TWS_BESIDE_GATHERS || m->end <= w->now) return;
  const double ready = m->ready - w->now;
  const uint32_t cause = ready > 0 && w->carried ? w->most + w->carried : 0;
  to[w->most + w->carried] = (moved){ready, m->end - w->now, cause, m->op, w->account && !cause ? number + 1 : 0};
  w->carried++;
}

/* last: the kind of the one before, or -1. */
static void begin_micro_batch(walk *w, int last) {
  const uint32_t before = w->carried, ops = last >= 0 ? w->of->ops[last] : 0;
  const int gathering = w->moves_end[TWS_BESIDE_GATHERS] > w->now;
  moved *to = w->account ? w->before : w->moved;
  w->carried = 0;
  for (uint32_t i = 0; i < before && gathering; i++) carry_over(w, w->most + i, to);
  for (uint32_t i = 0; i < ops && gathering; i++)
    if (w->moved[i].op) carry_over(w, i, to);
  if (w->account) w->before = w->moved;
  w->moved = to;
  w->shift = w->now;
  w->now = 0;
  memset(w->moves_end, 0, sizeof w->moves_end);
  memset(w->channel_end, 0, sizeof w->channel_end);
  memset(w->on_stream, 0, sizeof w->on_stream);
  memset(w->on_channel, 0, sizeof w->on_channel);
  memset(w->axis_s, 0, sizeof w->axis_s);
  if (!w->carried) return;
  w->on_stream[TWS_BESIDE_GATHERS] = w->most + w->carried;
  w->moves_end[TWS_BESIDE_GATHERS] = w->moved[w->on_stream[TWS_BESIDE_GATHERS] - 1].end;
}

/* Of all that one computation waits for. */
static uint32_t last_waited_for(const walk *w, int kind, const tws_trace_moment *moments, size_t *at) {
  const tws_beside_event *e = &w->of->items[kind][*at], *end = w->of->items[kind] + w->of->count[kind];
  const tws_piece_time *from = &moments[e->entry].at;
  uint32_t last = e->number;
  for (const tws_beside_event *next = e + 1; next < end && next->waits; next++, ++*at) {
    const tws_piece_time *to = &moments[next->entry].at;
    if (to->kernel > from->kernel || to->other > from->other) break;
    if (w->moved[next->number].end > w->moved[last].end) last = next->number;
  }
  return last;
}

static int is_later(int kind) {
  return kind == TWS_BESIDE_LATER || kind == TWS_BESIDE_LAST;
}

/* One micro-batch, from its beginning at 0 on, until all is reduced. */
static void go(walk *w, int kind) {
  const tws_beside_events *b = w->of;
  const int later = is_later(kind);
  const tws_trace_moment *moments = w->trace->items[later];
  tws_piece_time before = {0, 0};
  for (size_t i = 0; i < b->count[kind]; i++) {
    const tws_beside_event *e = &b->items[kind][i];
    const tws_trace_moment *moment = &moments[e->entry];
    const double computed_s =
        seconds_of(w, (tws_piece_time){moment->at.kernel - before.kernel, moment->at.other - before.other});
    if (computed_s > 0) close_gap(w);
    w->now += computed_s;
    before = moment->at;
    const double came = w->now;
    const tws_beside_op *op = e->waits ? NULL : b->op[kind][e->number];
    if (!op) op = moment->op;
    if (e->waits)
      wait_for(w, last_waited_for(w, kind, moments, &i));
    else if (op->stream == TWS_BESIDE_COMPUTES || (b->in_line && !op->is_own)) {
      close_gap(w);
      w->now += seconds_of(w, op->time);
      w->moved[e->number] = (moved){.ready = 0};
    } else
      begin_move(w, e->number, op);
    if (w->waits && w->now > came) {
      const double at_s = seconds_of(w, moment->at);
      w->waits[w->wait_count++] = (tws_beside_wait){at_s, w->now - at_s};
    }
  }
  const tws_piece_time *whole = &w->trace->whole[later];
  w->now += seconds_of(w, (tws_piece_time){whole->kernel - before.kernel, whole->other - before.other});
  wait_for_reduced(w);
}

/* Micro-batches that begin alike are alike: all others are as one that leaves what it found. */
static double walk_through(walk *w, tws_body_beside *beside, int64_t micro_batches, double *behind_s) {
  const int64_t alone = w->of->kinds > 2; /* the last is none of the others */
  double seconds = 0, found = 0;
  int kind = -1;
  for (int64_t i = 0, times; i < micro_batches; i += times) {
    begin_micro_batch(w, kind);
    const int is_last = alone && i + 1 == micro_batches;
    const double carried = w->moves_end[TWS_BESIDE_GATHERS], near = i > 0 ? 1e-13 * seconds / (double)i : 0;
    /* so is what is exposed where one goes over into the next */
    const int as_before = i > 1 && fabs(carried - found) <= near;
    const int alike = i > 0 && !is_last && (as_before || (w->carried == 0 && !w->account));
    found = carried;
    kind = i > 0 ? is_last ? TWS_BESIDE_LAST : TWS_BESIDE_LATER : is_last ? TWS_BESIDE_ONLY : TWS_BESIDE_FIRST;
    go(w, kind);
    times = alike ? micro_batches - alone - i : 1;
    seconds += (double)times * w->now;
    if (!alone && carried <= 0 && w->moves_end[TWS_BESIDE_GATHERS] <= w->now) {
      beside->timed |= i > 0 ? 2 : 1;
      *(i > 0 ? &beside->later_s : &beside->first_s) = w->now;
    }
    for (int axis = 0; axis < TWS_REPORT_COUNT && w->account; axis++)
      if (tws_report_has(axis)) w->account->axis_exposed_s[axis] += (double)times * w->axis_s[tws_piece_axis(axis)];
  }
  for (int axis = 0; axis < TWS_REPORT_COUNT && w->account && w->open_s > 0; axis++)
    if (tws_report_has(axis)) w->account->axis_exposed_s[axis] += w->open_axis_s[tws_piece_axis(axis)];
  const double gathered = w->moves_end[TWS_BESIDE_GATHERS];
  *behind_s = gathered > w->now ? gathered - w->now : 0;
  return seconds;
}

/* ---- what is kept ---- */

/* Traces of a few bodies. Outlines and events come again with the next size of micro-batches, when all ways to make
 * activations again, stages and buckets have had their turn. */
enum { KEPT_TRACES = 8, KEPT_OUTLINES = 16, KEPT_EVENTS = 64 };

typedef struct kept_outline {
  uint64_t id; /* that no other has, nor had; 0: none */
  tws_beside_outline outline;
  int failed;
} kept_outline;

typedef struct kept_trace {
  const tws_body *body;
  tws_outline_asked asked;
  const kept_outline *outline;
  uint64_t outline_id;
  tws_beside_trace trace;
} kept_trace;

typedef struct kept_events {
  const tws_beside_moves *moves;
  uint64_t outline_id;
  tws_beside_events events;
  int failed;
} kept_events;

struct tws_beside_memory {
  kept_outline outlines[KEPT_OUTLINES];
  kept_trace traces[KEPT_TRACES];
  kept_events events[KEPT_EVENTS];
  int next_outline, next_trace, next_events;
  uint64_t last_id;
  moved *moved;
  tws_beside_wait *waits;
  size_t moved_capacity, wait_capacity;
};

const tws_beside_moves *tws_beside_nothing(void) {
  static const tws_beside_gathers gathers;
  static const tws_beside_reductions reductions;
  static const tws_beside_moves nothing = {
      .kinds = 2, .begin = &gathers, .gathers = {&gathers, &gathers}, .reductions = {&reductions, &reductions}};
  return &nothing;
}

tws_beside_memory *tws_beside_memory_create(void) {
  return tws_calloc(1, sizeof(tws_beside_memory));
}

void tws_beside_memory_destroy(tws_beside_memory *m) {
  if (!m) return;
  for (int i = 0; i < KEPT_OUTLINES; i++) tws_beside_outline_free(&m->outlines[i].outline);
  for (int i = 0; i < KEPT_TRACES; i++) tws_beside_trace_free(&m->traces[i].trace);
  for (int i = 0; i < KEPT_EVENTS; i++) tws_beside_events_free(&m->events[i].events);
  tws_free(m->moved);
  tws_free(m->waits);
  tws_free(m);
}

/* Of a chunk; NULL: no memory. */
static const kept_outline *find_outline(const tws_beside_source *from, tws_outline_asked asked) {
  tws_beside_memory *m = from->memory;
  kept_outline *own = &m->outlines[m->next_outline];
  own->id = 0;
  if (!tws_beside_outline_begin(from->chunk, asked, &own->outline)) return NULL;
  for (int i = 0; i < KEPT_OUTLINES; i++) {
    const kept_outline *o = &m->outlines[i];
    if (o->id && o->outline.made_count == own->outline.made_count &&
        memcmp(o->outline.made_of, own->outline.made_of, own->outline.made_count * sizeof *own->outline.made_of) == 0)
      return o;
  }
  own->failed = tws_beside_outline_make(from->chunk, asked, &own->outline);
  if (own->failed == 2) return NULL;
  own->id = ++m->last_id;
  m->next_outline = (m->next_outline + 1) % KEPT_OUTLINES;
  return own;
}

/* Of a body, whose outline is there, too; NULL: no memory. */
static const kept_trace *find_trace(const tws_beside_source *from) {
  tws_beside_memory *m = from->memory;
  tws_outline_asked asked = tws_beside_asks(from->moves);
  asked.joins = from->joins;
  for (int i = 0; i < KEPT_TRACES; i++) {
    const kept_trace *t = &m->traces[i];
    if (t->body == from->body && memcmp(&t->asked, &asked, sizeof asked) == 0 && t->outline->id == t->outline_id)
      return t;
  }
  kept_trace *t = &m->traces[m->next_trace];
  t->body = NULL;
  t->outline = find_outline(from, asked);
  if (!t->outline) return NULL;
  t->outline_id = t->outline->id;
  if (!t->outline->failed && !tws_beside_trace_make(from->chunk, &t->outline->outline, &t->trace)) return NULL;
  t->body = from->body;
  t->asked = asked;
  m->next_trace = (m->next_trace + 1) % KEPT_TRACES;
  return t;
}

/* As tws_beside_events_make(). */
static int find_events(const tws_beside_source *from, const tws_beside_events **events,
                       const tws_beside_trace **trace) {
  tws_beside_memory *m = from->memory;
  const kept_trace *t = find_trace(from);
  if (!t) return 2;
  *trace = &t->trace;
  if (t->outline->failed) return t->outline->failed;
  int at = 0;
  while (at < KEPT_EVENTS && (m->events[at].moves != from->moves || m->events[at].outline_id != t->outline_id)) at++;
  if (at == KEPT_EVENTS) {
    at = m->next_events;
    m->next_events = (at + 1) % KEPT_EVENTS;
    m->events[at].moves = from->moves;
    m->events[at].outline_id = t->outline_id;
    m->events[at].failed = tws_beside_events_make(from->moves, &t->outline->outline, &m->events[at].events);
    if (m->events[at].failed == 2) m->events[at].moves = NULL;
  }
  *events = &m->events[at].events;
  return m->events[at].failed;
}

tws_code tws_beside_find(const tws_beside_source *from, tws_body_beside **out, tws_error *err) {
  tws_body_beside *b = from->body->besides;
  const tws_beside_events *events;
  const tws_beside_trace *trace;
  while (b && b->of != from->moves) b = b->next;
  *out = b;
  if (b) return TWS_OK;
  b = tws_arena_alloc(from->arena, 1, sizeof *b);
  const int failed = b ? find_events(from, &events, &trace) : 2;
  if (failed == 2) return tws_fail(err, TWS_MEMORY, NULL, "no memory for what runs beside the layers");
  *b = (tws_body_beside){.of = from->moves, .known = !failed, .next = from->body->besides};
  *out = from->body->besides = b;
  return TWS_OK;
}

/* 0: no memory. */
static int begin_walk(const tws_beside_source *from, double stretch, walk *w) {
  tws_beside_memory *m = from->memory;
  *w = (walk){.stretch = stretch};
  if (find_events(from, &w->of, &w->trace)) return 0;
  for (int kind = 0; kind < w->of->kinds; kind++)
    if (w->of->ops[kind] > w->most) w->most = w->of->ops[kind];
  const size_t room = 3 * (size_t)w->most + 1;
  if (tws_reserve(&m->moved, &m->moved_capacity, 2 * room, sizeof *m->moved)) return 0;
  w->moved = m->moved;
  w->before = m->moved + room;
  return 1;
}

int tws_beside_waits_of(const tws_beside_source *from, int later, double stretch, tws_beside_waits *out) {
  tws_beside_memory *m = from->memory;
  const int kind = later ? TWS_BESIDE_LATER : TWS_BESIDE_FIRST;
  walk w;
  if (!begin_walk(from, stretch, &w)) return 0;
  if (tws_reserve(&m->waits, &m->wait_capacity, w.of->count[kind] + 1, sizeof *m->waits)) return 0;
  w.waits = m->waits;
  begin_micro_batch(&w, -1);
  go(&w, kind);
  const double computed_s = seconds_of(&w, w.trace->whole[later != 0]);
  *out = (tws_beside_waits){m->waits, w.wait_count, computed_s, w.now - computed_s};
  return 1;
}

double tws_beside_seconds(const tws_beside_source *from, tws_body_beside *beside, int64_t micro_batches, double stretch,
                          tws_composed_account *account, double *behind_s) {
  if (beside->stretch < stretch || beside->stretch > stretch) beside->timed = 0;
  beside->stretch = stretch;
  *behind_s = 0;
  if (!account && beside->timed == (micro_batches > 1 ? 3 : beside->timed | 1))
    return beside->first_s + (double)(micro_batches - 1) * (micro_batches > 1 ? beside->later_s : 0);
  walk w;
  if (!begin_walk(from, stretch, &w)) return -1;
  w.account = account;
  return walk_through(&w, beside, micro_batches, behind_s);
}

int tws_beside_list_events(const tws_beside_source *from, int kind, double stretch, tws_arena *arena,
                           tws_line_events *out) {
  const tws_beside_events *b;
  const tws_beside_trace *trace;
  if (find_events(from, &b, &trace) || kind >= b->kinds) return 0;
  const int later = is_later(kind);
  *out = (tws_line_events){.items = tws_arena_alloc_unset(arena, b->count[kind] + 1, sizeof *out->items),
                           .count = b->count[kind],
                           .ops = b->ops[kind],
                           .computed_s = tws_stretched_seconds(trace->whole[later], stretch)};
  for (size_t i = 0; i < out->count && out->items; i++) {
    const tws_beside_event *e = &b->items[kind][i];
    const tws_trace_moment *moment = &trace->items[later][e->entry];
    const tws_beside_op *op = e->waits ? NULL : b->op[kind][e->number] ? b->op[kind][e->number] : moment->op;
    out->items[i] = (tws_line_event){.computed_s = tws_stretched_seconds(moment->at, stretch),
                                     .op = op,
                                     .number = e->number,
                                     .takes = op ? b->takes[kind][e->number] : (tws_line_takes){0, 0}};
  }
  return out->items != NULL;
}
