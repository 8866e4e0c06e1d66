#include "estimators/beside.h"

#include <string.h>

/* ---- events of a body ---- */

typedef struct maker {
  const tws_beside_moves *moves;
  const tws_composed_chunk *chunk;
  int later;
  tws_piece_time since;             /* layers before the one at hand */
  uint32_t *left, *pending;         /* per gradient: writes to come; per bucket: gradients */
  uint8_t *begun;                   /* per bucket */
  uint32_t *by_layer, *layer_first; /* gradients by layer; per layer: where they begin there */
  int layers;
  uint32_t *reading; /* per item of moved parameters: event number + 1 of its gather, until it is waited for */
  uint32_t visit;    /* next of moved parameters */
  uint32_t flushed[2];
  uint32_t completed;
  tws_beside_event *events;
  size_t count, capacity;
  uint32_t ops;
  int failed; /* 1: it is not known, 2: no memory */
} maker;

static void put(maker *m, tws_piece_time at, const tws_beside_op *op, uint32_t waits_for) {
  if (m->failed) return;
  if (tws_reserve(&m->events, &m->capacity, m->count + 1, sizeof *m->events)) {
    m->failed = 2;
    return;
  }
  m->events[m->count++] = (tws_beside_event){
      {m->since.kernel + at.kernel, m->since.other + at.other}, op, waits_for ? waits_for - 1 : m->ops, waits_for > 0};
  m->ops += !waits_for;
}

/* A parameter's layer in the whole network, for a mark in a sample's layer that stands for layer `at`: its own, a
 * neighbour's that it shares a kernel with, or one outside those that are alike. */
static int layer_in_whole(const tws_composed_chunk *chunk, const tws_sample_pieces *s, int layer, int at, int own) {
  const int apart = own - layer;
  if (apart >= -1 && apart <= 1) return at + apart;
  if (s == chunk->head && own < chunk->head_end) return own;
  const int left_out = chunk->head_end + chunk->between - chunk->tail_first;
  return chunk->tail && s == chunk->tail && own >= chunk->tail_first ? own + left_out : own;
}

static uint32_t gradient_of(const maker *m, int layer, uint32_t which) {
  if (layer < 0 || layer >= m->layers) return TWS_NONE;
  for (uint32_t i = m->layer_first[layer]; i < m->layer_first[layer + 1]; i++)
    if (m->moves->gradients[m->later].items[m->by_layer[i]].which == which) return m->by_layer[i];
  return TWS_NONE;
}

static void begin_bucket(maker *m, tws_piece_time at, uint32_t gradient) {
  const uint32_t bucket = m->moves->gradients[m->later].items[gradient].bucket;
  if (m->begun[bucket]) return;
  m->begun[bucket] = 1;
  if (m->flushed[0]) put(m, at, NULL, m->flushed[0]);
}

static void complete(maker *m, tws_piece_time at, uint32_t gradient) {
  const tws_moved_gradients *all = &m->moves->gradients[m->later];
  const tws_moved_gradient *g = &all->items[gradient];
  const tws_beside_op *ops = m->moves->reduces[m->later];
  const uint32_t first = m->moves->first_reduction[m->later];
  m->completed++;
  for (uint32_t op = g->padded.first; op < g->padded.end; op++) put(m, at, &ops[op - first], 0);
  if (--m->pending[g->bucket]) return;
  for (uint32_t i = 0; i < all->count; i++) { /* the sample's last may be another than the body's */
    const tws_moved_gradient *last = &all->items[i];
    if (last->bucket != g->bucket || last->reduced.first == last->reduced.end) continue;
    for (uint32_t op = last->reduced.first; op < last->reduced.end; op++) put(m, at, &ops[op - first], 0);
  }
  m->flushed[0] = m->flushed[1];
  m->flushed[1] = m->ops;
}

/* What is gathered before the next visit. */
static void gather(maker *m, tws_piece_time at) {
  const tws_moved_params *p = &m->moves->params[m->later];
  const tws_moved_visit *v = &p->visits[m->visit++];
  const uint32_t before = m->ops, first = m->moves->first_gather[m->later];
  for (uint32_t op = v->gathered.first; op < v->gathered.end; op++)
    put(m, at, &m->moves->gathers[m->later][op - first], 0);
  for (uint32_t i = v->first; i < v->end; i++)
    m->reading[i] = p->items[i].op == TWS_NONE ? 0 : before + p->items[i].op - v->gathered.first + 1;
}

static void visit(maker *m, tws_piece_time at, int layer, int backward) {
  const tws_moved_params *p = &m->moves->params[m->later];
  if (!p->visit_count) return;
  const tws_moved_visit *v = &p->visits[m->visit];
  if (m->visit >= p->visit_count || v->layer != layer || v->backward != backward)
    m->failed = m->failed ? m->failed : 1;
  else
    gather(m, at);
}

/* The latest gather of a parameter, unless something has waited for it. */
static void read_param(maker *m, tws_piece_time at, int layer, uint32_t which) {
  const tws_moved_params *p = &m->moves->params[m->later];
  for (uint32_t i = m->visit ? p->visits[m->visit - 1].end : 0; i-- > 0;) {
    if (p->items[i].layer != layer || p->items[i].which != which) continue;
    if (m->reading[i]) put(m, at, NULL, m->reading[i]);
    m->reading[i] = 0;
    return;
  }
}

static void go_through(maker *m, int event, int at, int counting) {
  int layer;
  const tws_sample_pieces *s = tws_composed_layer(m->chunk, at, &layer);
  if (!s->marks[m->later][event] || !s->layer[m->later][event]) {
    m->failed = 1;
    return;
  }
  const tws_marks *marks = &s->marks[m->later][event][layer];
  for (uint32_t i = 0; i < marks->count && !m->failed; i++) {
    const tws_mark *k = &marks->items[i];
    const int whole = m->chunk->of.first + at;
    const int own = layer_in_whole(m->chunk, s, layer + s->first_layer, whole, k->layer);
    if (k->kind == TWS_MARK_VISIT || k->kind == TWS_MARK_READS) {
      if (counting || !m->moves->params[m->later].visit_count) continue;
      if (k->kind == TWS_MARK_VISIT)
        visit(m, k->at, whole, event == TWS_CONTEXT_BACKWARD);
      else
        read_param(m, k->at, own, k->which);
      continue;
    }
    const uint32_t gradient = gradient_of(m, own, k->which);
    if (gradient == TWS_NONE) {
      m->failed = 1;
    } else if (counting) {
      m->left[gradient] += k->kind == TWS_MARK_WRITTEN;
    } else if (k->kind == TWS_MARK_WRITES) {
      begin_bucket(m, k->at, gradient);
    } else if (--m->left[gradient] == 0) {
      complete(m, k->at, gradient);
    }
  }
  m->since.kernel += s->layer[m->later][event][layer].time.kernel;
  m->since.other += s->layer[m->later][event][layer].time.other;
}

static void pass_through(maker *m, int counting) {
  const tws_composed_chunk *c = m->chunk;
  const int tail = c->tail ? c->tail->first_layer + c->tail->layers - c->tail_first : 0;
  const int layers = c->head_end - c->head->first_layer + c->between + tail;
  const tws_moved_params *p = &m->moves->params[m->later];
  m->since = (tws_piece_time){0, 0};
  for (int backward = 0; backward < 2; backward++) {
    while (!counting && m->visit < p->visit_count && p->visits[m->visit].layer < 0 &&
           p->visits[m->visit].backward == backward)
      gather(m, (tws_piece_time){0, 0});
    for (int i = 0; i < layers && !m->failed; i++)
      go_through(m, backward ? TWS_CONTEXT_BACKWARD : TWS_CONTEXT_FORWARD, backward ? layers - 1 - i : i, counting);
  }
}

static int index_gradients(maker *m, tws_arena *scratch) {
  const tws_moved_gradients *g = &m->moves->gradients[m->later];
  m->layers = 0;
  for (uint32_t i = 0; i < g->count; i++) {
    if (g->items[i].layer < 0) return 0;
    if (g->items[i].layer >= m->layers) m->layers = g->items[i].layer + 1;
  }
  m->by_layer = tws_arena_alloc(scratch, g->count + 1u, sizeof *m->by_layer);
  uint32_t *first = m->layer_first = tws_arena_alloc(scratch, (size_t)m->layers + 2, sizeof *first);
  m->left = tws_arena_alloc(scratch, g->count + 1u, sizeof *m->left);
  m->pending = tws_arena_alloc(scratch, g->buckets + 1u, sizeof *m->pending);
  m->begun = tws_arena_alloc(scratch, g->buckets + 1u, 1);
  m->reading = tws_arena_alloc(scratch, m->moves->params[m->later].count + 1u, sizeof *m->reading);
  if (!m->by_layer || !first || !m->left || !m->pending || !m->begun || !m->reading) {
    m->failed = 2;
    return 0;
  }
  for (uint32_t i = 0; i < g->count; i++) {
    first[g->items[i].layer + 2]++; /* two further on, which filling makes good */
    m->pending[g->items[i].bucket]++;
  }
  for (int layer = 0; layer < m->layers; layer++) first[layer + 2] += first[layer + 1];
  for (uint32_t i = 0; i < g->count; i++) m->by_layer[first[g->items[i].layer + 1]++] = i;
  return 1;
}

/* Whether all that is gathered is there when the micro-batch ends: someone waits for it, or it is reduced behind it. */
static int ends_whole(const maker *m) {
  uint32_t open[TWS_CHANNEL_COUNT] = {0}; /* number + 1 of the last gather that nobody is known to be behind */
  for (size_t i = 0; i < m->count; i++) {
    const tws_beside_event *e = &m->events[i];
    for (int c = 0; c < TWS_CHANNEL_COUNT && e->waits; c++)
      if (open[c] == e->number + 1) open[c] = 0;
    if (!e->waits && !e->op->computes) open[e->op->channel] = e->op->gathers ? e->number + 1 : 0;
  }
  for (int c = 0; c < TWS_CHANNEL_COUNT; c++)
    if (open[c]) return 0;
  return 1;
}

static int make_events(const tws_beside_moves *moves, const tws_composed_chunk *chunk, int later, tws_arena *arena,
                       tws_body_beside *out) {
  maker m = {.moves = moves, .chunk = chunk, .later = later};
  tws_arena *scratch = tws_arena_create();
  if (!scratch) return 2;
  if (!chunk->head || !index_gradients(&m, scratch)) m.failed = m.failed ? m.failed : 1;
  if (!m.failed) pass_through(&m, 1);
  if (!m.failed) pass_through(&m, 0);
  if (m.completed != moves->gradients[later].count || m.visit != moves->params[later].visit_count)
    m.failed = m.failed ? m.failed : 1;
  if (!m.failed && !ends_whole(&m)) m.failed = 1;
  if (!m.failed) {
    out->events[later] = tws_arena_alloc_unset(arena, m.count + 1, sizeof *m.events);
    if (out->events[later])
      memcpy(out->events[later], m.events, m.count * sizeof *m.events);
    else
      m.failed = 2;
    out->count[later] = (uint32_t)m.count;
    out->ops[later] = m.ops;
    out->whole[later] = m.since;
  }
  tws_free(m.events);
  tws_arena_destroy(scratch);
  return m.failed;
}

tws_code tws_beside_find(const tws_beside_moves *moves, const tws_composed_chunk *chunk, tws_body *body,
                         tws_arena *arena, tws_body_beside **out, tws_error *err) {
  tws_body_beside *b = body->besides;
  while (b && b->of != moves) b = b->next;
  *out = b;
  if (b) return TWS_OK;
  b = tws_arena_alloc(arena, 1, sizeof *b);
  int failed = b ? make_events(moves, chunk, 0, arena, b) : 2;
  if (!failed) failed = make_events(moves, chunk, 1, arena, b);
  if (failed == 2) return tws_fail(err, TWS_MEMORY, NULL, "no memory for what runs beside the layers");
  b->of = moves;
  b->known = !failed;
  b->next = body->besides;
  *out = body->besides = b;
  return TWS_OK;
}

/* ---- going through them ---- */

typedef struct moved {
  double ready, end;
  uint32_t cause; /* number + 1 of the operation that it waited for last; 0: none but what computes */
  const tws_beside_op *op;
} moved;

typedef struct walk {
  const tws_body_beside *of;
  double stretch, now, moves_end[2]; /* of streams: reductions, gathers */
  double channel_end[TWS_CHANNEL_COUNT];
  uint32_t on_stream[2], on_channel[TWS_CHANNEL_COUNT]; /* number + 1 of the last */
  moved *moved;
  tws_composed_account *account;
  double axis_s[TWS_PIECE_AXES];
} walk;

static double seconds_of(const walk *w, tws_piece_time t) {
  return w->stretch * t.kernel + t.other;
}

static void begin_move(walk *w, uint32_t number, const tws_beside_op *op) {
  moved *m = &w->moved[number];
  const int stream = op->gathers;
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

/* One micro-batch, from its beginning at 0 on, until all is reduced. */
static void go(walk *w, int later) {
  const tws_body_beside *b = w->of;
  tws_piece_time before = {0, 0};
  w->now = 0;
  memset(w->moves_end, 0, sizeof w->moves_end);
  memset(w->channel_end, 0, sizeof w->channel_end);
  memset(w->on_stream, 0, sizeof w->on_stream);
  memset(w->on_channel, 0, sizeof w->on_channel);
  memset(w->axis_s, 0, sizeof w->axis_s);
  for (uint32_t i = 0; i < b->count[later]; i++) {
    const tws_beside_event *e = &b->events[later][i];
    w->now += seconds_of(w, (tws_piece_time){e->at.kernel - before.kernel, e->at.other - before.other});
    before = e->at;
    if (e->waits)
      wait_for(w, e->number);
    else if (e->op->computes)
      w->now += seconds_of(w, e->op->time);
    else
      begin_move(w, e->number, e->op);
  }
  const tws_piece_time *whole = &b->whole[later];
  w->now += seconds_of(w, (tws_piece_time){whole->kernel - before.kernel, whole->other - before.other});
  if (w->on_stream[0]) wait_for(w, w->on_stream[0] - 1);
}

double tws_beside_seconds(const tws_body_beside *beside, int64_t micro_batches, double stretch,
                          tws_composed_account *account) {
  walk w = {.of = beside, .stretch = stretch, .account = account};
  double seconds = 0;
  w.moved = tws_calloc((beside->ops[0] > beside->ops[1] ? beside->ops[0] : beside->ops[1]) + 1u, sizeof *w.moved);
  for (int later = 0; later < 2 && w.moved; later++) {
    const double times = later ? (double)(micro_batches - 1) : 1;
    if (times < 1) break;
    go(&w, later);
    seconds += times * w.now;
    for (int axis = 0; axis < TWS_REPORT_COUNT && account; axis++)
      if (tws_report_has(axis)) account->axis_exposed_s[axis] += times * w.axis_s[tws_piece_axis(axis)];
  }
  if (!w.moved) seconds = -1;
  tws_free(w.moved);
  return seconds;
}
