#include "estimators/beside.h"

#include <math.h>
#include <string.h>

#include "estimators/beside_events.h"

/* ---- going through them ---- */

typedef struct moved {
  double ready, end;
  uint32_t cause; /* number + 1 of the operation that it waited for last; 0: none but what computes */
  const tws_beside_op *op;
} moved;

typedef struct walk {
  const tws_beside_events *of;
  double stretch, now, moves_end[TWS_BESIDE_STREAMS];
  double channel_end[TWS_CHANNEL_COUNT];
  uint32_t on_stream[TWS_BESIDE_STREAMS], on_channel[TWS_CHANNEL_COUNT]; /* number + 1 of the last */
  moved *moved;                                                          /* from `most` on: what is carried over */
  uint32_t most, carried;
  tws_composed_account *account;
  double axis_s[TWS_PIECE_AXES];
  tws_beside_wait *waits; /* NULL: nobody asks */
  size_t wait_count;
} walk;

static double seconds_of(const walk *w, tws_piece_time t) {
  return w->stretch * t.kernel + t.other;
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

/* What computes waits until this one has ended: its time and that of those that it waited for, as far as nothing was
 * computed meanwhile. */
static void wait_for(walk *w, uint32_t number) {
  double to = w->moved[number].end;
  if (to <= w->now) return;
  const double until = to;
  for (uint32_t i = number + 1; w->account && i && to > w->now; i = w->moved[i - 1].cause) {
    const moved *m = &w->moved[i - 1];
    const double from = m->ready > w->now ? m->ready : w->now;
    w->axis_s[m->op->axis] += to - from;
    to = from;
  }
  w->now = until;
}

/* What of the last micro-batch still runs on the stream of gathers, in its order, from the beginning of the next. */
static void carry_over(walk *w, const moved *m) {
  if (m->op->stream != TWS_BESIDE_GATHERS || m->end <= w->now) return;
  const double ready = m->ready - w->now;
  w->moved[w->most + w->carried] =
      (moved){ready, m->end - w->now, ready > 0 && w->carried ? w->most + w->carried : 0, m->op};
  w->carried++;
}

/* last: the kind of the one before, or -1. */
static void begin_micro_batch(walk *w, int last) {
  const uint32_t before = w->carried, ops = last >= 0 ? w->of->ops[last] : 0;
  w->carried = 0;
  for (uint32_t i = 0; i < before; i++) carry_over(w, &w->moved[w->most + i]);
  for (uint32_t i = 0; i < ops; i++)
    if (w->moved[i].op) carry_over(w, &w->moved[i]);
  w->now = 0;
  memset(w->moved, 0, w->most * sizeof *w->moved);
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
static uint32_t last_waited_for(const walk *w, int kind, size_t *at) {
  const tws_beside_event *e = &w->of->items[kind][*at], *end = w->of->items[kind] + w->of->count[kind];
  uint32_t last = e->number;
  for (const tws_beside_event *next = e + 1; next < end && next->waits; next++, ++*at) {
    if (next->at.kernel > e->at.kernel || next->at.other > e->at.other) break;
    if (w->moved[next->number].end > w->moved[last].end) last = next->number;
  }
  return last;
}

/* One micro-batch, from its beginning at 0 on, until all is reduced. */
static void go(walk *w, int kind) {
  const tws_beside_events *b = w->of;
  tws_piece_time before = {0, 0};
  for (size_t i = 0; i < b->count[kind]; i++) {
    const tws_beside_event *e = &b->items[kind][i];
    w->now += seconds_of(w, (tws_piece_time){e->at.kernel - before.kernel, e->at.other - before.other});
    before = e->at;
    const double came = w->now;
    if (e->waits)
      wait_for(w, last_waited_for(w, kind, &i));
    else if (e->op->stream == TWS_BESIDE_COMPUTES || (b->in_line && e->op->stream != TWS_BESIDE_EXCHANGES))
      w->now += seconds_of(w, e->op->time);
    else
      begin_move(w, e->number, e->op);
    if (w->waits && w->now > came) {
      const double computed_s = seconds_of(w, e->at);
      w->waits[w->wait_count++] = (tws_beside_wait){computed_s, w->now - computed_s};
    }
  }
  const tws_piece_time *whole = &b->whole[kind];
  w->now += seconds_of(w, (tws_piece_time){whole->kernel - before.kernel, whole->other - before.other});
  if (w->on_stream[TWS_BESIDE_REDUCES]) wait_for(w, w->on_stream[TWS_BESIDE_REDUCES] - 1);
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
    const int alike = i > 0 && !is_last && (w->carried == 0 || (i > 1 && fabs(carried - found) <= near));
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
  const double gathered = w->moves_end[TWS_BESIDE_GATHERS];
  *behind_s = gathered > w->now ? gathered - w->now : 0;
  return seconds;
}

/* ---- what is kept ---- */

enum { KEPT = 8 };
struct tws_beside_memory {
  struct {
    const tws_body *body;
    tws_beside_trace trace;
    int failed;
  } traces[KEPT];
  struct {
    const tws_body_beside *beside;
    tws_beside_events events;
  } events[KEPT];
  int next_trace, next_events;
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
  for (int i = 0; i < KEPT; i++) {
    tws_beside_trace_free(&m->traces[i].trace);
    tws_beside_events_free(&m->events[i].events);
  }
  tws_free(m->moved);
  tws_free(m->waits);
  tws_free(m);
}

static const tws_beside_trace *find_trace(const tws_beside_source *from, int *failed) {
  tws_beside_memory *m = from->memory;
  int at = 0;
  const int gathers = tws_beside_gathers_any(from->moves);
  while (at < KEPT && (m->traces[at].body != from->body || m->traces[at].trace.gathers < gathers)) at++;
  if (at == KEPT) {
    at = m->next_trace;
    m->next_trace = (at + 1) % KEPT;
    m->traces[at].body = from->body;
    m->traces[at].failed = tws_beside_trace_make(from->chunk, gathers, &m->traces[at].trace);
  }
  *failed = m->traces[at].failed;
  return &m->traces[at].trace;
}

static const tws_beside_events *find_events(const tws_beside_source *from, const tws_body_beside *beside, int *failed) {
  tws_beside_memory *m = from->memory;
  *failed = 0;
  for (int i = 0; i < KEPT; i++)
    if (m->events[i].beside == beside) return &m->events[i].events;
  const tws_beside_trace *trace = find_trace(from, failed);
  if (*failed) return NULL;
  const int at = m->next_events;
  m->events[at].beside = NULL;
  *failed = tws_beside_events_make(from->moves, trace, &m->events[at].events);
  if (*failed) return NULL;
  m->events[at].beside = beside;
  m->next_events = (at + 1) % KEPT;
  return &m->events[at].events;
}

tws_code tws_beside_find(const tws_beside_source *from, tws_body_beside **out, tws_error *err) {
  tws_body_beside *b = from->body->besides;
  int failed = 2;
  while (b && b->of != from->moves) b = b->next;
  *out = b;
  if (b) return TWS_OK;
  b = tws_arena_alloc(from->arena, 1, sizeof *b);
  if (b) find_events(from, b, &failed);
  if (failed == 2) return tws_fail(err, TWS_MEMORY, NULL, "no memory for what runs beside the layers");
  *b = (tws_body_beside){.of = from->moves, .known = !failed, .next = from->body->besides};
  *out = from->body->besides = b;
  return TWS_OK;
}

/* 0: no memory. */
static int begin_walk(const tws_beside_source *from, const tws_body_beside *beside, double stretch, walk *w) {
  tws_beside_memory *m = from->memory;
  int failed;
  *w = (walk){.of = find_events(from, beside, &failed), .stretch = stretch};
  if (!w->of) return 0;
  for (int kind = 0; kind < w->of->kinds; kind++)
    if (w->of->ops[kind] > w->most) w->most = w->of->ops[kind];
  if (tws_reserve(&m->moved, &m->moved_capacity, 3 * (size_t)w->most + 1, sizeof *m->moved)) return 0;
  w->moved = m->moved;
  return 1;
}

int tws_beside_waits_of(const tws_beside_source *from, tws_body_beside *beside, int later, double stretch,
                        tws_beside_waits *out) {
  tws_beside_memory *m = from->memory;
  const int kind = later ? TWS_BESIDE_LATER : TWS_BESIDE_FIRST;
  walk w;
  if (!begin_walk(from, beside, stretch, &w)) return 0;
  if (tws_reserve(&m->waits, &m->wait_capacity, w.of->count[kind] + 1, sizeof *m->waits)) return 0;
  w.waits = m->waits;
  begin_micro_batch(&w, -1);
  go(&w, kind);
  const double computed_s = seconds_of(&w, w.of->whole[kind]);
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
  if (!begin_walk(from, beside, stretch, &w)) return -1;
  w.account = account;
  return walk_through(&w, beside, micro_batches, behind_s);
}
