#include "estimators/beside.h"

#include <math.h>
#include <string.h>

/* ---- events of a body ---- */

typedef struct maker {
  const tws_beside_moves *moves;
  const tws_composed_chunk *chunk;
  int later;
  tws_piece_time since;             /* layers before the one at hand */
  uint32_t *left, *pending;         /* per gradient: writes to come; per bucket: gradients */
  uint32_t *completes;              /* per bucket: the gradient that is its last in the moves' sample */
  uint8_t *begun;                   /* per bucket */
  uint32_t *by_layer, *layer_first; /* gradients by layer; per layer: where they begin there */
  int layers;
  uint32_t
      *gathered; /* per parameter (place_of()): 1 + the number of its gather, until that is waited for; NOT_MOVED */
  int param_layers;
  uint32_t most_params; /* of a layer */
  uint32_t visit;       /* next of moved parameters */
  uint32_t flushed[2];
  uint32_t completed;
  /* 1 + numbers: of the last on a channel; of one that ends in the micro-batch, as then all before it do. */
  uint32_t last_gather, done_gather;
  uint32_t on_channel[TWS_CHANNEL_COUNT]; /* 1 + the number of the last gather there */
  tws_beside_event *events;
  size_t count, capacity;
  uint32_t ops;
  int failed; /* 1: it is not known, 2: no memory */
} maker;
#define NOT_MOVED UINT32_MAX

static void put(maker *m, tws_piece_time at, const tws_beside_op *op, uint32_t waits_for) {
  if (m->failed) return;
  if (tws_reserve(&m->events, &m->capacity, m->count + 1, sizeof *m->events)) {
    m->failed = 2;
    return;
  }
  m->events[m->count++] = (tws_beside_event){
      {m->since.kernel + at.kernel, m->since.other + at.other}, op, waits_for ? waits_for - 1 : m->ops, waits_for > 0};
  if (waits_for) return;
  m->ops++;
  if (op->gathers) {
    if (op->channel != TWS_CHANNEL_NONE) m->last_gather = m->on_channel[op->channel] = m->ops;
  } else if (!op->computes && m->on_channel[op->channel] > m->done_gather) {
    m->done_gather = m->on_channel[op->channel]; /* it is reduced behind it */
  }
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
    if (m->moves->reductions[m->later]->gradients.items[m->by_layer[i]].which == which) return m->by_layer[i];
  return TWS_NONE;
}

static void begin_bucket(maker *m, tws_piece_time at, uint32_t gradient) {
  const uint32_t bucket = m->moves->reductions[m->later]->gradients.items[gradient].bucket;
  if (m->begun[bucket]) return;
  m->begun[bucket] = 1;
  if (m->flushed[0]) put(m, at, NULL, m->flushed[0]);
}

static void complete(maker *m, tws_piece_time at, uint32_t gradient) {
  const tws_beside_reductions *r = m->moves->reductions[m->later];
  const tws_moved_gradients *all = &r->gradients;
  const tws_moved_gradient *g = &all->items[gradient];
  m->completed++;
  for (uint32_t op = g->padded.first; op < g->padded.end; op++) put(m, at, &r->ops[op - r->first], 0);
  if (--m->pending[g->bucket]) return;
  const tws_moved_gradient *last = &all->items[m->completes[g->bucket]];
  for (uint32_t op = last->reduced.first; op < last->reduced.end; op++) put(m, at, &r->ops[op - r->first], 0);
  m->flushed[0] = m->flushed[1];
  m->flushed[1] = m->ops;
}

static uint32_t *place_of(const maker *m, int layer, uint32_t which) {
  const int known = layer >= 0 && layer < m->param_layers && which < m->most_params;
  return known ? &m->gathered[(size_t)layer * m->most_params + which] : NULL;
}

static void gather(maker *m, tws_piece_time at, const tws_beside_gathers *g, const tws_moved_visit *v) {
  const uint32_t before = m->ops;
  for (uint32_t op = v->gathered.first; op < v->gathered.end; op++) put(m, at, &g->ops[op - g->first], 0);
  for (uint32_t i = v->first; i < v->end; i++) {
    const tws_moved_param *p = &g->params.items[i];
    if (p->op != TWS_NONE) *place_of(m, p->layer, p->which) = before + p->op - v->gathered.first + 1;
  }
}

/* What is gathered before the next visit, which has to be this one. */
static void visit(maker *m, tws_piece_time at, int layer, int backward) {
  const tws_beside_gathers *g = m->moves->gathers[m->later];
  const tws_moved_visit *v = &g->params.visits[m->visit];
  if (m->visit >= g->params.visit_count || v->layer != layer || v->backward != backward) {
    m->failed = m->failed ? m->failed : 1;
    return;
  }
  m->visit++;
  gather(m, at, g, v);
}

/* Unless something has waited for the parameter's latest gather. */
static void read_param(maker *m, tws_piece_time at, int layer, uint32_t which) {
  uint32_t *gathered = place_of(m, layer, which);
  if (!gathered || *gathered == NOT_MOVED) {
    m->failed = m->failed ? m->failed : 1;
    return;
  }
  if (!*gathered) return;
  if (*gathered > m->done_gather) m->done_gather = *gathered;
  put(m, at, NULL, *gathered);
  *gathered = 0;
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
      if (counting || !m->moves->gathers[m->later]->params.visit_count) continue;
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
  const tws_moved_params *p = &m->moves->gathers[m->later]->params;
  m->since = (tws_piece_time){0, 0};
  if (!counting && !m->later && m->moves->begin->params.visit_count)
    gather(m, m->since, m->moves->begin, m->moves->begin->params.visits);
  for (int backward = 0; backward < 2; backward++) {
    while (!counting && m->visit < p->visit_count && p->visits[m->visit].layer < 0 &&
           p->visits[m->visit].backward == backward)
      visit(m, (tws_piece_time){0, 0}, p->visits[m->visit].layer, backward);
    for (int i = 0; i < layers && !m->failed; i++)
      go_through(m, backward ? TWS_CONTEXT_BACKWARD : TWS_CONTEXT_FORWARD, backward ? layers - 1 - i : i, counting);
  }
}

static int index_gradients(maker *m, tws_arena *scratch) {
  const tws_moved_gradients *g = &m->moves->reductions[m->later]->gradients;
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
  m->completes = tws_arena_alloc(scratch, g->buckets + 1u, sizeof *m->completes);
  if (!m->by_layer || !first || !m->left || !m->pending || !m->begun || !m->completes) {
    m->failed = 2;
    return 0;
  }
  for (uint32_t i = 0; i < g->count; i++) {
    first[g->items[i].layer + 2]++; /* two further on, which filling makes good */
    m->pending[g->items[i].bucket]++;
    if (g->items[i].reduced.first < g->items[i].reduced.end) m->completes[g->items[i].bucket] = i;
  }
  for (int layer = 0; layer < m->layers; layer++) first[layer + 2] += first[layer + 1];
  for (uint32_t i = 0; i < g->count; i++) m->by_layer[first[g->items[i].layer + 1]++] = i;
  return 1;
}

/* Parameters that are gathered, of which none has been yet; 0: not all are told of, or no memory (m->failed is 2). */
static int index_params(maker *m, tws_arena *scratch) {
  const tws_beside_gathers *all[] = {m->moves->begin, m->moves->gathers[0], m->moves->gathers[1]};
  for (int k = 0; k < 3; k++)
    for (uint32_t i = 0; i < all[k]->params.count; i++) {
      const tws_moved_param *p = &all[k]->params.items[i];
      if (p->layer < 0) return 0;
      if (p->layer >= m->param_layers) m->param_layers = p->layer + 1;
      if (p->which >= m->most_params) m->most_params = p->which + 1;
    }
  const size_t places = (size_t)m->param_layers * m->most_params;
  m->gathered = tws_arena_alloc_unset(scratch, places + 1, sizeof *m->gathered);
  m->failed = m->gathered ? m->failed : 2;
  for (size_t i = 0; i < places && m->gathered; i++) m->gathered[i] = NOT_MOVED;
  for (int k = 0; k < 3 && m->gathered; k++)
    for (uint32_t i = 0; i < all[k]->params.count; i++)
      *place_of(m, all[k]->params.items[i].layer, all[k]->params.items[i].which) = 0;
  return m->gathered != NULL;
}

static int make_events(const tws_beside_moves *moves, const tws_composed_chunk *chunk, int later, tws_arena *arena,
                       tws_body_beside *out) {
  maker m = {.moves = moves, .chunk = chunk, .later = later};
  tws_arena *scratch = tws_arena_create();
  if (!scratch) return 2;
  if (!chunk->head || !index_gradients(&m, scratch) || !index_params(&m, scratch)) m.failed = m.failed ? m.failed : 1;
  if (!m.failed) pass_through(&m, 1);
  if (!m.failed) pass_through(&m, 0);
  /* what has no channel may end in the next micro-batch: codes of parameters that nobody reads any more */
  const int whole = m.completed == moves->reductions[later]->gradients.count &&
                    m.visit == moves->gathers[later]->params.visit_count && m.done_gather >= m.last_gather;
  if (!m.failed && !whole) m.failed = 1;
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
  moved *moved;                                         /* from `most` on: what is carried over */
  uint32_t most, carried;
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

/* What of the last micro-batch still runs on the stream of gathers, in its order, from the beginning of the next. */
static void carry_over(walk *w, const moved *m) {
  if (!m->op->gathers || m->end <= w->now) return;
  const double ready = m->ready - w->now;
  w->moved[w->most + w->carried] =
      (moved){ready, m->end - w->now, ready > 0 && w->carried ? w->most + w->carried : 0, m->op};
  w->carried++;
}

static void begin_micro_batch(walk *w, int64_t number) {
  const uint32_t before = w->carried, ops = number > 0 ? w->of->ops[number > 1] : 0;
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
  w->on_stream[1] = w->most + w->carried;
  w->moves_end[1] = w->moved[w->on_stream[1] - 1].end;
}

/* One micro-batch, from its beginning at 0 on, until all is reduced. */
static void go(walk *w, int later) {
  const tws_body_beside *b = w->of;
  tws_piece_time before = {0, 0};
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

/* Micro-batches that begin alike are alike: all others are as one that leaves what it found. */
double tws_beside_seconds(const tws_body_beside *beside, int64_t micro_batches, double stretch,
                          tws_composed_account *account, double *behind_s) {
  walk w = {.of = beside, .stretch = stretch, .account = account};
  double seconds = 0, found = 0;
  w.most = beside->ops[0] > beside->ops[1] ? beside->ops[0] : beside->ops[1];
  w.moved = tws_calloc(3 * (size_t)w.most + 1, sizeof *w.moved);
  if (!w.moved) return -1;
  for (int64_t i = 0, times; i < micro_batches; i += times) {
    begin_micro_batch(&w, i);
    const double carried = w.moves_end[1], near = i > 0 ? 1e-13 * seconds / (double)i : 0;
    const int alike = i > 0 && (w.carried == 0 || (i > 1 && fabs(carried - found) <= near));
    found = carried;
    go(&w, i > 0);
    times = alike ? micro_batches - i : 1;
    seconds += (double)times * w.now;
    for (int axis = 0; axis < TWS_REPORT_COUNT && account; axis++)
      if (tws_report_has(axis)) account->axis_exposed_s[axis] += (double)times * w.axis_s[tws_piece_axis(axis)];
  }
  *behind_s = w.moves_end[1] > w.now ? w.moves_end[1] - w.now : 0;
  tws_free(w.moved);
  return seconds;
}
