#include "estimators/chunks.h"

#include <string.h>

#include "models/network/shorten.h"

/* Alike layers of a sample that stands for any number of them: the first, two between, the last. */
enum { SAMPLED = 4 };

typedef tws_layer_range range;

typedef struct tws_body_sample {
  range of;
  tws_code code; /* not lowered: why */
  tws_sample_pieces pieces;
  struct tws_body_sample *next;
} body_sample;

/* Alike layers of a shortened network before and behind those that are left out. No sample reaches farther into them,
 * and what is behind a sample that ends among them is one of them. */
enum { BEFORE = 3, BEHIND = 3 };

static const tws_network *shorten(const tws_network *network, const uint32_t *at, int first, int end,
                                  tws_arena *arena) {
  if (!at || first + 1 >= end) return NULL;
  return tws_network_shorten(network, at[first], at[end], at[first] - at[first - 1], arena);
}

tws_fewer_layers tws_fewer_layers_of(const tws_network *network, const tws_tail_pieces *layers, tws_arena *arena) {
  tws_fewer_layers fewer = {.first = layers->alike_first + BEFORE, .end = layers->alike_end - BEHIND};
  const int half = SAMPLED / 2;
  const uint32_t *at = layers->layer_modules;
  fewer.network = shorten(network, at, fewer.first, fewer.end, arena);
  fewer.least = shorten(network, at, layers->alike_first + half, layers->alike_end - half, arena);
  return fewer;
}

/* Moves a range to where it is in the shortened network; 0: it is not there. */
static int in_fewer(const tws_fewer_layers *fewer, range *of) {
  if (!fewer->network) return 0;
  if (of->end < fewer->first + BEHIND) return 1;
  if (of->first <= fewer->end - BEFORE) return 0;
  of->first -= fewer->end - fewer->first;
  of->end -= fewer->end - fewer->first;
  return 1;
}

static tws_code find_sample(const tws_chunk_source *from, range of, const tws_sample_pieces **out, tws_error *err) {
  for (body_sample *s = from->body->samples; s; s = s->next)
    if (memcmp(&s->of, &of, sizeof of) == 0) {
      *out = &s->pieces;
      return s->code == TWS_OK ? TWS_OK : tws_fail(err, s->code, NULL, "a part of the model cannot be sampled");
    }
  tws_plan_request plan = *from->request;
  tws_repeats *repeats = of.in_least ? from->body->repeats : NULL;
  range at = of;
  tws_config config = *plan.config;
  if (from->zero_stage) config.zero.stage = from->zero_stage;
  plan.config = &config;
  if (of.in_least)
    plan.network = from->fewer->least;
  else if (in_fewer(from->fewer, &at))
    plan.network = from->fewer->network;
  const tws_sample_request wanted = {.plan = &plan,
                                     .first_layer = at.first,
                                     .end_layer = at.end,
                                     .goes_on = of.goes_on,
                                     .split = from->split,
                                     .once = repeats && *repeats == TWS_REPEATS,
                                     .alike_known = 1,
                                     .memory = from->memory};
  tws_plan_sample sample;
  body_sample *s = tws_arena_alloc(from->arena, 1, sizeof *s);
  if (!s) return tws_fail(err, TWS_MEMORY, NULL, "no memory for a sample");
  s->of = of;
  s->next = from->body->samples;
  from->body->samples = s;
  s->code = tws_plan_sample_make(&wanted, &sample, err);
  ++*from->lowered;
  TWS_TRY(s->code);
  s->code = tws_pieces_of_body(&sample, &wanted, from->costs, from->bounded, from->apart, from->arena, &s->pieces, err);
  s->pieces.first_layer = of.first;
  tws_plan_sample_free(&sample);
  if (s->code == TWS_OK && repeats && *repeats == TWS_REPEATS_UNKNOWN)
    *repeats = tws_pieces_repeat(&s->pieces) ? TWS_REPEATS : TWS_REPEATS_NOT;
  *out = &s->pieces;
  return s->code;
}

/* Whether two layers begin and wait for exchanges alike, and meet others. */
static int same_exchanges(const tws_sample_pieces *s, int later, int e, int layer) {
  const tws_marks *a = &s->marks[later][e][layer], *b = a + 1;
  if (!s->marks[later][e]) return 0;
  for (uint32_t i = 0, k = 0;; i++, k++) {
    while (i < a->count && a->items[i].kind < TWS_MARK_EXCHANGES) i++;
    while (k < b->count && b->items[k].kind < TWS_MARK_EXCHANGES) k++;
    if (i == a->count || k == b->count) return i == a->count && k == b->count;
    const tws_mark *x = &a->items[i], *y = &b->items[k];
    if (x->kind != y->kind || x->which != y->which || x->stream != y->stream || x->point != y->point ||
        x->at.kernel != y->at.kernel || x->at.other != y->at.other)
      return 0;
    if (x->op && (x->op->time.other != y->op->time.other || x->op->meets != y->op->meets)) return 0;
  }
}

/* Whether the sample's layers [between, end) are alike indeed, so that any number of them can be. */
static int repeats(const tws_sample_pieces *s, int between, int end) {
  for (int later = 0; later < 2; later++)
    for (int e = 0; e < TWS_CONTEXT_EVENTS; e++) {
      if (!tws_context_acts(e)) continue;
      if (!s->whole.has[e]) continue;
      const tws_piece *layer = s->layer[later][e];
      for (int i = between; i + 1 < end; i++)
        if (!layer || !tws_same_pieces(&layer[i - s->first_layer], &layer[i + 1 - s->first_layer]) ||
            (((s->exchanges && s->in_order) || s->joins) && !same_exchanges(s, later, e, i - s->first_layer)))
          return 0;
    }
  return s->closed;
}

/* Layers [from, end) of a sample, behind (or, backward, before) what is there. */
static int append_layers(const tws_sample_pieces *s, int later, int e, int from, int end, tws_piece *to) {
  const int down = e != TWS_CONTEXT_FORWARD;
  for (int i = from; i < end; i++) {
    const int layer = (down ? end - 1 - (i - from) : i) - s->first_layer;
    if (!tws_piece_append(to, &s->layer[later][e][layer])) return 0;
  }
  return 1;
}

/* One chunk from two samples: up to the second of `head`'s alike layers, so many between, from the last of `tail`'s
 * alike layers on. */
static int put_together(const tws_sample_pieces *head, int head_alike, const tws_sample_pieces *tail, int tail_alike,
                        int between, tws_chunk_pieces *out) {
  memset(out->has, 0, sizeof out->has);
  for (int e = 0; e < TWS_CONTEXT_EVENTS; e++) {
    const int enters = e == TWS_CONTEXT_RECV || e == TWS_CONTEXT_SEND_GRADIENT;
    const tws_sample_pieces *of = enters ? head : tail;
    if (!of->whole.has[e]) continue;
    out->has[e] = 1;
    out->message_bytes[e] = of->whole.message_bytes[e];
    out->message_buffer[e] = of->whole.message_buffer[e];
    for (int later = 0; later < 2; later++) {
      tws_piece *to = &out->event[later][e];
      if (!tws_context_acts(e)) {
        *to = of->whole.event[later][e];
        continue;
      }
      const tws_piece middle = tws_piece_repeat(&head->layer[later][e][head_alike + 1 - head->first_layer], between);
      *to = tws_piece_empty();
      int good;
      if (e == TWS_CONTEXT_FORWARD)
        good = append_layers(head, later, e, head->first_layer, head_alike + 1, to) && tws_piece_append(to, &middle) &&
               append_layers(tail, later, e, tail_alike + SAMPLED - 1, tail->first_layer + tail->layers, to);
      else
        good = append_layers(tail, later, e, tail_alike + SAMPLED - 1, tail->first_layer + tail->layers, to) &&
               tws_piece_append(to, &middle) && append_layers(head, later, e, head->first_layer, head_alike + 1, to);
      if (!good) return 0;
    }
  }
  out->buffers = tail->whole.buffers > head->whole.buffers ? tail->whole.buffers : head->whole.buffers;
  memcpy(out->slot_bytes, (head == tail || head->whole.buffers > 0 ? head : tail)->whole.slot_bytes,
         sizeof out->slot_bytes);
  return 1;
}

static int join_samples(const tws_sample_pieces *head, int head_alike, const tws_sample_pieces *tail, int tail_alike,
                        int between, tws_composed_chunk *chunk) {
  const int end = tail == head && tail_alike > head_alike ? tail_alike + SAMPLED - 1 : head_alike + SAMPLED - 1;
  if (!repeats(head, head_alike + 1, end) || !repeats(tail, tail_alike + 1, tail_alike + SAMPLED - 1)) return 0;
  if (!put_together(head, head_alike, tail, tail_alike, between, &chunk->pieces)) return 0;
  chunk->exact = head->exact && tail->exact;
  chunk->closed = head->closed && tail->closed;
  chunk->in_order = head->in_order && tail->in_order;
  chunk->input_bytes = head->input_bytes;
  chunk->head = head;
  chunk->head_end = head_alike + 1;
  chunk->between = between;
  chunk->tail = tail;
  chunk->tail_first = tail_alike + SAMPLED - 1;
  return 1;
}

/* From samples of few layers; 0: it is not regular enough. */
static int from_samples(const tws_chunk_source *from_where, tws_composed_chunk *chunk) {
  const tws_tail_pieces *t = from_where->layers;
  const tws_fewer_layers *fewer = from_where->fewer;
  const int first = chunk->of.first, end = chunk->of.end;
  const int from = first > t->alike_first ? first : t->alike_first, to = end < t->alike_end ? end : t->alike_end;
  const int prefix = first<t->alike_first, suffix = end> t->alike_end, alike = to - from;
  if (alike < 2 || t->alike_end - t->alike_first < SAMPLED + 2) return 0;
  const tws_sample_pieces *head = NULL, *tail = NULL;
  tws_error why = {0};
  if (prefix && suffix && fewer->least) { /* all of it but what is left out */
    const range all = {.first = first, .end = end - (alike - SAMPLED), .in_least = 1};
    return find_sample(from_where, all, &head, &why) == TWS_OK &&
           join_samples(head, t->alike_first, head, t->alike_first, alike - 2, chunk);
  }
  /* a chunk in the middle stands anywhere but at the first alike layer */
  const int middle = first > t->alike_first ? t->alike_first + 1 : t->alike_first;
  const int head_alike = prefix ? t->alike_first : suffix ? t->alike_end - SAMPLED : middle;
  const int tail_alike = suffix ? t->alike_end - SAMPLED : head_alike;
  const range whole_head = {.first = prefix ? first : head_alike,
                            .end = prefix || !suffix ? head_alike + SAMPLED : end,
                            .goes_on = prefix && suffix};
  if (find_sample(from_where, whole_head, &head, &why) != TWS_OK) return 0;
  tail = head;
  if (prefix && suffix && find_sample(from_where, (range){.first = tail_alike, .end = end}, &tail, &why) != TWS_OK)
    return 0;
  return join_samples(head, head_alike, tail, tail_alike, alike - 2, chunk);
}

static tws_code compose(const tws_chunk_source *from, tws_composed_chunk *chunk, tws_error *err) {
  const tws_sample_pieces *whole = NULL;
  if (from_samples(from, chunk)) return TWS_OK;
  TWS_TRY(find_sample(from, chunk->of, &whole, err));
  chunk->pieces = whole->whole;
  chunk->exact = whole->exact;
  chunk->closed = whole->closed;
  chunk->in_order = whole->in_order;
  chunk->input_bytes = whole->input_bytes;
  chunk->head = whole;
  chunk->head_end = whole->first_layer + whole->layers;
  chunk->between = 0;
  chunk->tail = NULL;
  return TWS_OK;
}

tws_code tws_chunk_compose(const tws_chunk_source *from, tws_composed_chunk *chunk, tws_error *err) {
  TWS_TRY(compose(from, chunk, err));
  const tws_sample_pieces *tail = chunk->tail ? chunk->tail : chunk->head;
  chunk->exchanges = chunk->in_order && (chunk->head->exchanges || tail->exchanges);
  chunk->pending = chunk->head->pending || tail->pending;
  chunk->far = chunk->head->far || tail->far;
  return TWS_OK;
}

int tws_chunk_layers(const tws_composed_chunk *c) {
  const int tail = c->tail ? c->tail->first_layer + c->tail->layers - c->tail_first : 0;
  return c->head_end - c->head->first_layer + c->between + tail;
}

const tws_sample_pieces *tws_composed_layer(const tws_composed_chunk *chunk, int at, int *layer) {
  const int head = chunk->head_end - chunk->head->first_layer;
  *layer = at < head ? at : at < head + chunk->between ? head : -1;
  if (*layer >= 0) return chunk->head;
  *layer = at - head - chunk->between + chunk->tail_first - chunk->tail->first_layer;
  return chunk->tail;
}
