/* Where a body's layers come to what ZeRO moves: outlines and traces of bodies, and the events that
 * moves make of them. */
#include "estimators/beside_events.h"

#include <string.h>

#include "plan/bucket_turns.h"

/* ---- outlines ---- */

typedef struct place {    /* of a parameter */
  uint32_t left, read_at; /* writes of its gradient to come; the visit that it was read in last */
  size_t begun;           /* 1 + where its gradient begins in the outline */
} place;

typedef struct tracer {
  const tws_composed_chunk *chunk;
  tws_beside_outline *to;
  int later, layers;
  tws_outline_asked asked;
  uint32_t params, visits, completed; /* most of a layer; so far; gradients */
  uint32_t passed, mark;              /* see tws_outline_entry */
  place *places;
  int failed; /* 1: it is not known, 2: no memory */
} tracer;

/* The passes that a chunk of a whole network has. */
static int event_of(int backward) {
  return backward ? TWS_CONTEXT_BACKWARD : TWS_CONTEXT_FORWARD;
}

static int has_marks(const tws_sample_pieces *s, int later, int backward) {
  return s->marks[later][event_of(backward)] && s->layer[later][event_of(backward)];
}

static size_t words_of(const tws_sample_pieces *s) { /* at most */
  size_t words = 6;
  for (int i = 0; i < 4; i++)
    for (int layer = 0; layer < s->layers && has_marks(s, i / 2, i % 2); layer++)
      words += 1 + 3 * (size_t)s->marks[i / 2][event_of(i % 2)][layer].count;
  return words;
}

/* With joins that nobody asks for: entries say where their mark is among all. */
static uint32_t *list_marks(const tws_sample_pieces *s, uint32_t *to) {
  *to++ = (uint32_t)s->first_layer;
  *to++ = (uint32_t)s->layers;
  for (int i = 0; i < 4; i++) {
    const int has = has_marks(s, i / 2, i % 2);
    *to++ = (uint32_t)has;
    for (int layer = 0; layer < s->layers && has; layer++) {
      const tws_marks *marks = &s->marks[i / 2][event_of(i % 2)][layer];
      *to++ = TWS_NONE; /* a layer */
      for (uint32_t k = 0; k < marks->count; k++) {
        *to++ = marks->items[k].kind + 256u * marks->items[k].stream;
        *to++ = (uint32_t)marks->items[k].layer;
        *to++ = marks->items[k].which;
      }
    }
  }
  return to;
}

int tws_beside_outline_begin(const tws_composed_chunk *c, tws_outline_asked asked, tws_beside_outline *to) {
  const uint32_t chunk[] = {(uint32_t)(asked.gathers + 2 * asked.joins + 4 * asked.passes),
                            (uint32_t)c->of.first,
                            (uint32_t)c->head_end,
                            (uint32_t)c->between,
                            (uint32_t)c->tail_first,
                            c->head ? 1u + (c->tail != NULL) + (c->tail == c->head) : 0};
  size_t words = sizeof chunk / sizeof *chunk;
  if (c->head) words += words_of(c->head);
  if (c->tail && c->tail != c->head) words += words_of(c->tail);
  to->made_count = 0;
  if (tws_reserve(&to->made_of, &to->made_capacity, words, sizeof *to->made_of)) return 0;
  memcpy(to->made_of, chunk, sizeof chunk);
  if (!c->tail) to->made_of[4] = 0; /* it is not set */
  uint32_t *at = to->made_of + sizeof chunk / sizeof *chunk;
  if (c->head) at = list_marks(c->head, at);
  if (c->tail && c->tail != c->head) at = list_marks(c->tail, at);
  to->made_count = (size_t)(at - to->made_of);
  return 1;
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

static void add_entry(tracer *t, tws_trace_kind kind, int layer, uint32_t which, int backward) {
  tws_beside_outline *to = t->to;
  size_t *count = &to->count[t->later];
  if (*count == to->capacity[t->later] &&
      tws_reserve(&to->items[t->later], &to->capacity[t->later], *count + 1, sizeof **to->items)) {
    t->failed = 2;
    return;
  }
  to->items[t->later][(*count)++] =
      (tws_outline_entry){layer, which, t->completed, t->passed, t->mark, (uint8_t)kind, (uint8_t)backward, 0};
}

static void begin_gradient(tracer *t, const tws_mark *k, place *p, int own, int backward) {
  if (p->begun) return;
  add_entry(t, TWS_TRACE_BEGINS, own, k->which, backward);
  p->begun = t->to->count[t->later];
}

static void complete_gradient(tracer *t, const tws_mark *k, place *p, int own, int backward) {
  if (--p->left) return;
  add_entry(t, TWS_TRACE_COMPLETE, own, k->which, backward);
  if (!t->failed && p->begun) t->to->items[t->later][p->begun - 1].number = t->completed;
  t->completed++;
}

static void add_exchange(tracer *t, const tws_mark *k) {
  const int begins = k->kind == TWS_MARK_EXCHANGES || k->kind == TWS_MARK_EARLY;
  if (k->kind == TWS_MARK_JOIN && t->asked.joins) add_entry(t, TWS_TRACE_JOINS, -1, 0, 0);
  if (!begins && k->kind != TWS_MARK_WAITS) return;
  add_entry(t, begins ? TWS_TRACE_EXCHANGES : TWS_TRACE_WAITS, -1, 0, 0);
  tws_outline_entry *e = t->failed ? NULL : &t->to->items[t->later][t->to->count[t->later] - 1];
  if (e) e->number = k->which;
  if (e) e->stream = k->stream;
}

static void add_mark(tracer *t, const tws_mark *k, int whole, int own, int backward) {
  place *p = own >= 0 && own < t->layers ? &t->places[(size_t)own * t->params + k->which] : NULL;
  if ((k->kind == TWS_MARK_VISIT || k->kind == TWS_MARK_READS) && !t->asked.gathers) return;
  if (k->kind == TWS_MARK_VISIT) {
    t->visits++;
    add_entry(t, TWS_TRACE_VISIT, whole, 0, backward);
  } else if (k->kind == TWS_MARK_READS) {
    if (p && p->read_at == t->visits) return;
    if (p) p->read_at = t->visits;
    add_entry(t, TWS_TRACE_READS, own, k->which, backward);
  } else if (!p) {
    t->failed = 1; /* a gradient of no layer */
  } else if (k->kind == TWS_MARK_WRITES) {
    begin_gradient(t, k, p, own, backward);
  } else {
    complete_gradient(t, k, p, own, backward);
  }
}

static void trace_layer(tracer *t, int at, int backward, int counting) {
  const int whole = t->chunk->of.first + at;
  int layer;
  const tws_sample_pieces *s = tws_composed_layer(t->chunk, at, &layer);
  if (!has_marks(s, t->later, backward)) {
    t->failed = 1;
    return;
  }
  const tws_marks *marks = &s->marks[t->later][event_of(backward)][layer];
  for (t->mark = 0; t->mark < marks->count && !t->failed; t->mark++) {
    const tws_mark *k = &marks->items[t->mark];
    const int own = layer_in_whole(t->chunk, s, layer + s->first_layer, whole, k->layer);
    if (k->kind >= TWS_MARK_EXCHANGES) {
      if (!counting) add_exchange(t, k);
    } else if (!counting)
      add_mark(t, k, whole, own, backward);
    else if (k->kind == TWS_MARK_WRITTEN && own >= 0 && own < t->layers)
      t->places[(size_t)own * t->params + k->which].left++;
  }
}

static void most_params(const tws_sample_pieces *s, uint32_t *most) {
  for (int later = 0; later < 2; later++)
    for (int e = 0; e < TWS_CONTEXT_EVENTS; e++)
      for (int layer = 0; layer < s->layers && s->marks[later][e]; layer++)
        for (uint32_t i = 0; i < s->marks[later][e][layer].count; i++) {
          const tws_mark *k = &s->marks[later][e][layer].items[i];
          if (k->kind < TWS_MARK_EXCHANGES && k->which >= *most) *most = k->which + 1;
        }
}

int tws_beside_outline_make(const tws_composed_chunk *c, tws_outline_asked asked, tws_beside_outline *to) {
  tracer t = {.chunk = c, .to = to, .asked = asked, .params = 1};
  to->count[0] = to->count[1] = 0;
  if (!c->head) return 1;
  t.layers = tws_chunk_layers(c);
  most_params(c->head, &t.params);
  if (c->tail) most_params(c->tail, &t.params);
  const size_t bytes = (size_t)t.layers * t.params * sizeof *t.places;
  t.places = tws_calloc(bytes + 1, 1);
  if (!t.places) return 2;
  for (t.later = 0; t.later < 2 && !t.failed; t.later++) {
    memset(t.places, 0, bytes);
    t.completed = 0;
    for (int counting = 1; counting >= 0; counting--) {
      t.passed = 0;
      for (int pass = 0; pass < 2 && !t.failed; pass++) {
        t.visits++;
        t.mark = TWS_NONE;
        if (!counting && asked.passes) add_entry(&t, TWS_TRACE_PASS, -1, 0, pass);
        for (int i = 0; i < t.layers && !t.failed; i++, t.passed++)
          trace_layer(&t, pass ? t.layers - 1 - i : i, pass, counting);
      }
    }
  }
  tws_free(t.places);
  return t.failed;
}

void tws_beside_outline_free(tws_beside_outline *outline) {
  for (int later = 0; later < 2; later++) tws_free(outline->items[later]);
  tws_free(outline->made_of);
}

/* ---- traces ---- */

int tws_beside_trace_make(const tws_composed_chunk *c, const tws_beside_outline *o, tws_beside_trace *to) {
  const uint32_t layers = (uint32_t)tws_chunk_layers(c);
  for (int later = 0; later < 2; later++) {
    const tws_outline_entry *e = o->items[later], *end = e ? e + o->count[later] : NULL;
    tws_piece_time since = {0, 0}; /* layers before the one at hand */
    if (tws_reserve(&to->items[later], &to->capacity[later], o->count[later] + 1, sizeof **to->items)) return 0;
    tws_trace_moment *moment = to->items[later];
    for (uint32_t passed = 0; passed < 2 * layers; passed++) {
      const int backward = passed >= layers;
      int layer;
      const tws_sample_pieces *s = tws_composed_layer(c, (int)(backward ? 2 * layers - 1 - passed : passed), &layer);
      const tws_mark *marks = s->marks[later][event_of(backward)][layer].items;
      for (; e < end && e->passed == passed; e++, moment++) {
        *moment = (tws_trace_moment){since, NULL};
        if (e->mark == TWS_NONE) continue;
        moment->at = tws_sum_of_times(since, marks[e->mark].at);
        moment->op = marks[e->mark].op;
      }
      since = tws_sum_of_times(since, s->layer[later][event_of(backward)][layer].time);
    }
    to->whole[later] = since;
  }
  return 1;
}

void tws_beside_trace_free(tws_beside_trace *trace) {
  for (int later = 0; later < 2; later++) tws_free(trace->items[later]);
}

/* ---- events ---- */

typedef struct numbers { /* 1 + those of the last that copies something, and that reduces; 0: none does */
  uint32_t copied, reduced;
} numbers;

typedef struct maker {
  const tws_beside_moves *moves;
  int kind, later;
  uint32_t *pending;                /* per bucket: gradients */
  uint32_t *completes;              /* per bucket: the gradient that is its last in the moves' sample */
  uint8_t *begun;                   /* per bucket */
  uint32_t *by_layer, *layer_first; /* gradients by layer; per layer: where they begin there; NULL: not asked for yet */
  int layers;
  tws_arena *scratch;
  uint32_t *gathered; /* per parameter (place_of()): 1 + number of its gather, until that is waited for; NOT_MOVED */
  int param_layers;
  uint32_t most_params; /* of a layer */
  uint32_t *number_of;  /* per operation from first_gather on: 1 + its number; NULL: nobody asks */
  uint32_t first_gather;
  uint32_t visit; /* next of moved parameters */
  uint32_t flushed[2];
  tws_bucket_turns turns; /* where buckets take them; */
  numbers *emptied;       /* per bucket: of what makes room for it */
  uint8_t *brought;       /* likewise: its sums have been asked for */
  uint32_t completed;
  /* 1 + numbers: of the last on a channel; of one that ends in the micro-batch, as then all before it do. */
  uint32_t last_gather, done_gather;
  uint32_t waited[TWS_BESIDE_STREAMS + 1]; /* likewise, per stream: that the layers have waited for */
  uint32_t on_channel[TWS_CHANNEL_COUNT];  /* 1 + the number of the last gather there */
  uint32_t exchanges[TWS_OWN_STREAMS][TWS_EXCHANGES_BACK],
      exchange_count[TWS_OWN_STREAMS]; /* 1 + numbers of the last */
  tws_beside_events *to;
  uint32_t ops, entry; /* so far; of the outline, the one at hand */
  int failed;          /* 1: it is not known, 2: no memory */
} maker;
#define NOT_MOVED UINT32_MAX

/* op: NULL for an exchange. */
static void put(maker *m, const tws_beside_op *op, uint32_t waits_for) {
  if (m->failed) return;
  tws_beside_events *to = m->to;
  const int kind = m->kind;
  if ((to->count[kind] == to->capacity[kind] &&
       tws_reserve(&to->items[kind], &to->capacity[kind], to->count[kind] + 1, sizeof *to->items[kind])) ||
      (m->ops == to->op_capacity[kind] &&
       (tws_reserve(&to->op[kind], &to->op_capacity[kind], m->ops + 1u, sizeof *to->op[kind]) ||
        tws_reserve(&to->takes[kind], &to->takes_capacity[kind], to->op_capacity[kind], sizeof *to->takes[kind])))) {
    m->failed = 2;
    return;
  }
  to->items[kind][to->count[kind]++] =
      (tws_beside_event){m->entry, (waits_for ? waits_for - 1 : m->ops) & INT32_MAX, waits_for > 0};
  if (waits_for) return;
  to->takes[kind][m->ops] = (tws_line_takes){0, 0};
  to->op[kind][m->ops++] = op;
  if (m->moves->in_line || !op) return;
  if (op->stream == TWS_BESIDE_GATHERS) {
    if (op->channel != TWS_CHANNEL_NONE) m->last_gather = m->on_channel[op->channel] = m->ops;
  } else if (op->stream == TWS_BESIDE_REDUCES && m->on_channel[op->channel] > m->done_gather) {
    m->done_gather = m->on_channel[op->channel]; /* it is reduced behind it */
  }
}

static int list_by_layer(maker *m, const tws_moved_gradients *g) {
  for (uint32_t i = 0; i < g->count; i++)
    if (g->items[i].layer >= m->layers) m->layers = g->items[i].layer + 1;
  m->by_layer = tws_arena_alloc(m->scratch, g->count + 1u, sizeof *m->by_layer);
  uint32_t *first = m->layer_first = tws_arena_alloc(m->scratch, (size_t)m->layers + 2, sizeof *first);
  m->failed = m->by_layer && first ? m->failed : 2;
  if (m->failed) return 0;
  for (uint32_t i = 0; i < g->count; i++) first[g->items[i].layer + 2]++; /* two further on: filling makes it good */
  for (int layer = 0; layer < m->layers; layer++) first[layer + 2] += first[layer + 1];
  for (uint32_t i = 0; i < g->count; i++) m->by_layer[first[g->items[i].layer + 1]++] = i;
  return 1;
}

/* Most become complete in the order of the moves' sample. */
static uint32_t gradient_of(maker *m, const tws_outline_entry *e) {
  const tws_moved_gradients *all = &m->moves->reductions[m->kind]->gradients;
  const tws_moved_gradient *likely = &all->items[e->number];
  if (e->number < all->count && likely->layer == e->layer && likely->which == e->which) return e->number;
  if (!m->by_layer && !list_by_layer(m, all)) return TWS_NONE;
  if (e->layer >= m->layers) return TWS_NONE;
  for (uint32_t i = m->layer_first[e->layer]; i < m->layer_first[e->layer + 1]; i++)
    if (all->items[m->by_layer[i]].which == e->which) return m->by_layer[i];
  return TWS_NONE;
}

/* The bucket is empty before that. */
static int is_of_host(const tws_beside_op *op) {
  return op && op->stream == TWS_BESIDE_HOSTS;
}

/* Its sums come back, when what was there before has gone: emptied. */
static void bring(maker *m, uint32_t bucket, numbers emptied) {
  const tws_beside_reductions *r = m->moves->reductions[m->kind];
  const tws_op_range brought = r->gradients.brought[bucket];
  for (uint32_t op = brought.first; op < brought.end; op++) {
    put(m, tws_beside_op_at(&r->ops, op), 0);
    if (m->failed) return;
    tws_line_takes *takes = &m->to->takes[m->kind][m->ops - 1];
    if (emptied.copied) takes->one = m->ops - emptied.copied;
    if (emptied.reduced) takes->other = m->ops - emptied.reduced;
  }
  m->emptied[bucket] = (numbers){.copied = m->ops};
  m->brought[bucket] = 1;
}

static void begin_bucket(maker *m, uint32_t gradient) {
  const tws_moved_gradients *all = &m->moves->reductions[m->kind]->gradients;
  const uint32_t bucket = all->items[gradient].bucket;
  if (m->begun[bucket]) return;
  m->begun[bucket] = 1;
  if (all->brought && !m->brought[bucket]) bring(m, bucket, (numbers){0, 0});
  const numbers emptied = all->turns != TWS_TURNS_NONE ? m->emptied[bucket] : (numbers){.copied = m->flushed[0]};
  if (emptied.copied) put(m, NULL, emptied.copied);
  if (emptied.reduced) put(m, NULL, emptied.reduced);
}

/* The next one may have its buffer: `first` was put first of what took what was there to where it is kept. */
static void end_turn(maker *m, uint32_t bucket, uint32_t first) {
  const uint32_t next = m->turns.next[bucket];
  if (next == TWS_NONE || m->failed) return;
  numbers emptied = {0, 0};
  for (uint32_t i = first; i < m->ops; i++) {
    const int stream = m->to->op[m->kind][i]->stream;
    if (stream == TWS_BESIDE_COPIES) emptied.copied = i + 1;
    if (stream == TWS_BESIDE_REDUCES && !m->moves->in_line) emptied.reduced = i + 1;
  }
  m->emptied[next] = emptied;
  if (m->moves->reductions[m->kind]->gradients.brought) bring(m, next, emptied);
}

static void complete(maker *m, uint32_t gradient) {
  const tws_beside_reductions *r = m->moves->reductions[m->kind];
  const tws_moved_gradients *all = &r->gradients;
  const tws_moved_gradient *g = &all->items[gradient];
  m->completed++;
  for (uint32_t op = g->padded.first; op < g->padded.end; op++) put(m, tws_beside_op_at(&r->ops, op), 0);
  if (--m->pending[g->bucket]) return;
  const tws_moved_gradient *last = &all->items[m->completes[g->bucket]];
  const uint32_t first = m->ops;
  for (uint32_t op = last->reduced.first; op < last->reduced.end; op++) {
    put(m, tws_beside_op_at(&r->ops, op), 0);
    if (all->takes && !m->failed) m->to->takes[m->kind][m->ops - 1].one = all->takes[op - all->range.first];
  }
  m->flushed[0] = m->flushed[1];
  m->flushed[1] = m->ops;
  while (m->flushed[1] && is_of_host(m->to->op[m->kind][m->flushed[1] - 1])) m->flushed[1]--;
  if (all->turns != TWS_TURNS_NONE) end_turn(m, g->bucket, first);
}

static uint32_t *place_of(const maker *m, int layer, uint32_t which) {
  const int known = layer >= 0 && layer < m->param_layers && which < m->most_params;
  return known ? &m->gathered[(size_t)layer * m->most_params + which] : NULL;
}

/* What comes from the host is taken by those behind it. */
static void put_gather(maker *m, const tws_beside_gathers *g, uint32_t op) {
  put(m, tws_beside_op_at(&g->ops, op), 0);
  if (!g->params.takes || m->failed) return;
  const uint32_t back = g->params.takes[op - g->params.range.first];
  const uint32_t before = back && op - back >= m->first_gather ? m->number_of[op - back - m->first_gather] : 0;
  m->number_of[op - m->first_gather] = m->ops;
  if (before) m->to->takes[m->kind][m->ops - 1].one = m->ops - before;
}

static void gather(maker *m, const tws_beside_gathers *g, const tws_moved_visit *v) {
  const uint32_t before = m->ops;
  for (uint32_t op = v->gathered.first; op < v->gathered.end; op++) put_gather(m, g, op);
  for (uint32_t i = v->first; i < v->end; i++) {
    const tws_moved_param *p = &g->params.items[i];
    if (p->op != TWS_NONE) *place_of(m, p->layer, p->which) = before + p->op - v->gathered.first + 1;
  }
}

/* What is gathered before the next visit, which has to be this one. */
static void visit(maker *m, int layer, int backward) {
  const tws_beside_gathers *g = m->moves->gathers[m->later];
  const tws_moved_visit *v = &g->params.visits[m->visit];
  if (m->visit >= g->params.visit_count || v->layer != layer || v->backward != backward) {
    m->failed = m->failed ? m->failed : 1;
    return;
  }
  m->visit++;
  gather(m, g, v);
}

/* Unless something has waited for the parameter's latest gather, or one behind it: they end in their order. */
static void read_param(maker *m, int layer, uint32_t which) {
  uint32_t *gathered = place_of(m, layer, which);
  if (!gathered || *gathered == NOT_MOVED) {
    m->failed = m->failed ? m->failed : 1;
    return;
  }
  if (!*gathered || m->failed) return;
  const tws_beside_op *op = m->to->op[m->kind][*gathered - 1];
  uint32_t *waited = &m->waited[op->stream < TWS_BESIDE_STREAMS ? op->stream : TWS_BESIDE_STREAMS];
  if (op->stream == TWS_BESIDE_GATHERS && *gathered > m->done_gather) m->done_gather = *gathered;
  if (*gathered > *waited) put(m, NULL, *gathered);
  if (*gathered > *waited) *waited = *gathered;
  *gathered = 0;
}

/* What is gathered before a pass begins: for the step, and by visits of no module. */
static void begin_pass(maker *m, int backward) {
  const tws_beside_gathers *begin = m->moves->begin;
  const tws_moved_params *p = &m->moves->gathers[m->later]->params;
  const tws_moved_gradients *all = &m->moves->reductions[m->kind]->gradients;
  for (uint32_t i = 0; i < m->turns.places && all->brought && backward == (all->turns == TWS_TURNS_WITH_BACKWARD); i++)
    if (!m->brought[m->turns.first[i]]) bring(m, m->turns.first[i], (numbers){0, 0});
  if (!m->later && !backward && begin->params.visit_count) gather(m, begin, begin->params.visits);
  while (m->visit < p->visit_count && p->visits[m->visit].layer < 0 && p->visits[m->visit].backward == backward)
    visit(m, p->visits[m->visit].layer, backward);
}

static void go_through(maker *m, const tws_outline_entry *e) {
  uint32_t gradient;
  switch ((tws_trace_kind)e->kind) {
    case TWS_TRACE_EXCHANGES:
      put(m, NULL, 0);
      m->exchanges[e->stream][m->exchange_count[e->stream]++ % TWS_EXCHANGES_BACK] = m->ops;
      return;
    case TWS_TRACE_JOINS:
      put(m, NULL, 0);
      return;
    case TWS_TRACE_WAITS:
      put(m, NULL, m->exchanges[e->stream][(m->exchange_count[e->stream] - 1 - e->number) % TWS_EXCHANGES_BACK]);
      return;
    case TWS_TRACE_PASS:
      begin_pass(m, e->backward);
      return;
    case TWS_TRACE_VISIT:
      visit(m, e->layer, e->backward);
      return;
    case TWS_TRACE_READS:
      read_param(m, e->layer, e->which);
      return;
    case TWS_TRACE_BEGINS:
    case TWS_TRACE_COMPLETE:
      gradient = gradient_of(m, e);
      if (gradient == TWS_NONE)
        m->failed = m->failed ? m->failed : 1;
      else if (e->kind == TWS_TRACE_BEGINS)
        begin_bucket(m, gradient);
      else
        complete(m, gradient);
  }
}

static int index_gradients(maker *m) {
  const tws_moved_gradients *g = &m->moves->reductions[m->kind]->gradients;
  m->pending = tws_arena_alloc(m->scratch, g->buckets + 1u, sizeof *m->pending);
  m->begun = tws_arena_alloc(m->scratch, g->buckets + 1u, 1);
  m->completes = tws_arena_alloc(m->scratch, g->buckets + 1u, sizeof *m->completes);
  if (!m->pending || !m->begun || !m->completes) {
    m->failed = 2;
    return 0;
  }
  for (uint32_t i = 0; i < g->count; i++) {
    if (g->items[i].layer < 0) return 0;
    m->pending[g->items[i].bucket]++;
    if (g->items[i].reduced.first < g->items[i].reduced.end) m->completes[g->items[i].bucket] = i;
  }
  return 1;
}

/* Where what is gathered comes from the host. */
static void number_gathers(maker *m) {
  const tws_moved_params *begin = &m->moves->begin->params, *all = &m->moves->gathers[m->later]->params;
  if (!all->takes || m->failed) return;
  m->first_gather = begin->takes && begin->range.first < all->range.first ? begin->range.first : all->range.first;
  m->number_of = tws_arena_alloc(m->scratch, all->range.end - m->first_gather + 1u, sizeof *m->number_of);
  if (!m->number_of) m->failed = 2;
}

/* As they do in the first micro-batch. */
static void find_turns(maker *m, const tws_beside_outline *outline) {
  const tws_moved_gradients *all = &m->moves->reductions[m->kind]->gradients;
  const size_t bytes = (all->buckets + 1u) * sizeof *m->pending;
  uint32_t *pending = tws_arena_alloc_unset(m->scratch, bytes, 1);
  uint8_t *begun = tws_arena_alloc(m->scratch, all->buckets + 1u, 1);
  m->emptied = tws_arena_alloc(m->scratch, all->buckets + 1u, sizeof *m->emptied);
  m->brought = tws_arena_alloc(m->scratch, all->buckets + 1u, 1);
  if (!pending || !begun || !m->emptied || !m->brought || !tws_bucket_turns_make(all->buckets, m->scratch, &m->turns)) {
    m->failed = 2;
    return;
  }
  memcpy(pending, m->pending, bytes);
  for (size_t i = 0; i < outline->count[0] && !m->failed; i++) {
    const tws_outline_entry *e = &outline->items[0][i];
    if (e->kind != TWS_TRACE_BEGINS && e->kind != TWS_TRACE_COMPLETE) continue;
    const uint32_t gradient = gradient_of(m, e), bucket = gradient != TWS_NONE ? all->items[gradient].bucket : 0;
    if (gradient == TWS_NONE)
      m->failed = m->failed ? m->failed : 1;
    else if (e->kind == TWS_TRACE_COMPLETE && --pending[bucket] == 0)
      tws_bucket_turns_end(&m->turns, bucket);
    else if (e->kind == TWS_TRACE_BEGINS && !begun[bucket]++)
      tws_bucket_turns_begin(&m->turns, bucket);
  }
}

/* Parameters that are gathered, of which none has been yet; 0: not all are told of, or no memory (m->failed is 2). */
static int index_params(maker *m) {
  const tws_beside_gathers *all[] = {m->moves->begin, m->moves->gathers[0], m->moves->gathers[1]};
  for (int k = 0; k < 3; k++)
    for (uint32_t i = 0; i < all[k]->params.count; i++) {
      const tws_moved_param *p = &all[k]->params.items[i];
      if (p->layer < 0) return 0;
      if (p->layer >= m->param_layers) m->param_layers = p->layer + 1;
      if (p->which >= m->most_params) m->most_params = p->which + 1;
    }
  const size_t places = (size_t)m->param_layers * m->most_params;
  m->gathered = tws_arena_alloc_unset(m->scratch, places + 1, sizeof *m->gathered);
  m->failed = m->gathered ? m->failed : 2;
  for (size_t i = 0; i < places && m->gathered; i++) m->gathered[i] = NOT_MOVED;
  for (int k = 0; k < 3 && m->gathered; k++)
    for (uint32_t i = 0; i < all[k]->params.count; i++)
      *place_of(m, all[k]->params.items[i].layer, all[k]->params.items[i].which) = 0;
  return m->gathered != NULL;
}

tws_outline_asked tws_beside_asks(const tws_beside_moves *moves) {
  const int gathers =
      moves->begin->params.count || moves->gathers[0]->params.visit_count || moves->gathers[1]->params.visit_count;
  return (tws_outline_asked){.passes = gathers || moves->reductions[TWS_BESIDE_LATER]->gradients.brought,
                             .gathers = gathers};
}

int tws_beside_events_make(const tws_beside_moves *moves, const tws_beside_outline *outline, tws_beside_events *to) {
  int failed = 0;
  to->kinds = moves->kinds;
  to->in_line = moves->in_line;
  for (int kind = 0; kind < moves->kinds && !failed; kind++) {
    const int later = kind == TWS_BESIDE_LATER || kind == TWS_BESIDE_LAST;
    maker m = {.moves = moves, .kind = kind, .later = later, .to = to, .scratch = tws_arena_create()};
    if (!m.scratch) return 2;
    to->count[kind] = 0;
    if (!index_gradients(&m) || !index_params(&m)) m.failed = m.failed ? m.failed : 1;
    if (!m.failed && moves->reductions[kind]->gradients.turns != TWS_TURNS_NONE) find_turns(&m, outline);
    number_gathers(&m);
    for (; m.entry < outline->count[later] && !m.failed; m.entry++) go_through(&m, &outline->items[later][m.entry]);
    tws_arena_destroy(m.scratch);
    /* what has no channel may end in the next micro-batch: codes of parameters that nobody reads any more */
    const int whole = m.completed == moves->reductions[kind]->gradients.count &&
                      m.visit == moves->gathers[later]->params.visit_count && m.done_gather >= m.last_gather;
    failed = m.failed || whole ? m.failed : 1;
    to->ops[kind] = m.ops;
  }
  return failed;
}

void tws_beside_events_free(tws_beside_events *events) {
  for (int kind = 0; kind < TWS_BESIDE_KINDS; kind++) {
    tws_free(events->items[kind]);
    tws_free(events->op[kind]);
    tws_free(events->takes[kind]);
  }
}
