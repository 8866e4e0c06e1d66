#include "estimators/overlap.h"

#include <math.h>

static uint32_t find(const tws_overlapped *o, int layer, uint32_t which) {
  if (layer < 0 || layer >= o->layers) return TWS_NONE;
  for (uint32_t i = o->layer_first[layer]; i < o->layer_first[layer + 1]; i++)
    if (o->gradients->items[o->by_layer[i]].which == which) return o->by_layer[i];
  return TWS_NONE;
}

typedef struct walk { /* against the order of time */
  const tws_overlapped *of;
  const tws_composed_chunk *chunk;
  int later;
  uint32_t found;
  tws_piece_time since; /* what has been gone through */
  tws_piece_time *behind;
} walk;

static int add_layer(walk *w, int event, int at) {
  int layer;
  const tws_sample_pieces *s = tws_composed_layer(w->chunk, at, &layer);
  const tws_completions *all = s->completions[w->later][event];
  if (!all || !s->layer[w->later][event]) return 0;
  for (uint32_t i = 0; i < all[layer].count; i++) {
    const tws_completion *c = &all[layer].items[i];
    const uint32_t gradient = find(w->of, w->chunk->of.first + at - c->behind_by, c->which);
    if (gradient == TWS_NONE) return 0;
    if (w->behind[gradient].kernel >= 0) continue; /* it is written again */
    w->behind[gradient].kernel = w->since.kernel + c->behind.kernel;
    w->behind[gradient].other = w->since.other + c->behind.other;
    w->found++;
  }
  w->since.kernel += s->layer[w->later][event][layer].time.kernel;
  w->since.other += s->layer[w->later][event][layer].time.other;
  return 1;
}

/* Few gradients are written in a forward pass alone: those of a loss in tiles. 0: the chunk does not tell. */
static int find_behind(const tws_overlapped *overlapped, const tws_composed_chunk *chunk, int later,
                       tws_piece_time *behind) {
  const uint32_t count = overlapped->gradients->count;
  walk w = {.of = overlapped, .chunk = chunk, .later = later, .behind = behind};
  if (!chunk->head) return 0;
  const int layers = tws_chunk_layers(chunk);
  for (uint32_t i = 0; i < count; i++) behind[i].kernel = -1;
  for (int at = 0; at < layers; at++)
    if (!add_layer(&w, TWS_CONTEXT_BACKWARD, at)) return 0;
  for (int at = layers; at-- > 0 && w.found < count;)
    if (!add_layer(&w, TWS_CONTEXT_FORWARD, at)) return 0;
  return w.found == count;
}

tws_code tws_overlap_find(const tws_overlapped *overlapped, const tws_composed_chunk *chunk, tws_body *body,
                          tws_arena *arena, tws_body_overlap **out, tws_error *err) {
  tws_body_overlap *b = body->overlaps;
  const uint32_t count = overlapped->of_all ? 1 : overlapped->gradients->count;
  while (b && b->of != overlapped->gradients) b = b->next;
  *out = b;
  if (b) return TWS_OK;
  b = tws_arena_alloc(arena, 1, sizeof *b);
  for (int later = 0; later < 2 && b; later++) {
    b->behind[later] = tws_arena_alloc_unset(arena, count + 1u, sizeof *b->behind[later]);
    if (!b->behind[later]) b = NULL;
  }
  if (!b) return tws_fail(err, TWS_MEMORY, NULL, "no memory for what runs beside a backward pass");
  b->of = overlapped->gradients;
  b->known = 1;
  for (int later = 0; later < 2 && b->known; later++)
    if (overlapped->of_all)
      *b->behind[later] = (tws_piece_time){0, 0};
    else
      b->known = find_behind(overlapped, chunk, later, b->behind[later]);
  b->next = body->overlaps;
  *out = body->overlaps = b;
  return TWS_OK;
}

double tws_beside_still_waits(const tws_beside_waits *w, double behind_s) {
  const double computed_s = w->computed_s - behind_s, near = 1e-12 * w->computed_s;
  size_t low = 0, high = w->count;
  while (low < high) {
    const size_t middle = low + (high - low) / 2;
    if (w->items[middle].computed_s < computed_s - near)
      low = middle + 1;
    else
      high = middle;
  }
  return w->waited_s - (low ? w->items[low - 1].waited_s : 0);
}

double tws_overlap_behind(const tws_overlapped *o, const tws_piece_time *behind, uint32_t reduction, double stretch) {
  tws_piece_time last = {INFINITY, INFINITY}; /* of one stream: what is behind the last is least in both */
  for (uint32_t k = o->first[reduction]; k < o->first[reduction + 1]; k++) {
    const tws_piece_time *b = &behind[o->of[k]];
    if (b->kernel < last.kernel) last.kernel = b->kernel;
    if (b->other < last.other) last.other = b->other;
  }
  return tws_stretched_seconds(last, stretch);
}

/* All times are those before the end of a tail that waits for nothing and gathers nothing. `ended`: per reduction. */
static double waited_for(const tws_tail_pieces *tail, const tws_piece_time *behind, const tws_beside_waits *waits,
                         double stretch, double *ended) {
  const tws_overlapped *o = tail->overlapped;
  const double step_s = tws_stretched_seconds(tail->step_time, stretch);
  double at = -INFINITY, waited = 0;
  for (uint32_t i = 0; i < o->count; i++) {
    const double behind_s = tws_overlap_behind(o, behind, i, stretch);
    const double ready = -step_s - behind_s - (waits ? tws_beside_still_waits(waits, behind_s) : 0);
    at = (ready > at ? ready : at) + o->seconds[i];
    ended[i] = at;
  }
  for (int i = 0; i < tail->wait_count; i++) {
    if (!o->needed[i]) continue;
    const double end = ended[o->needed[i] - 1] + tws_stretched_seconds(tail->waits[i].to_the_end, stretch);
    if (end > waited) waited = end;
  }
  return waited;
}

double tws_overlap_gathered(const tws_tail_pieces *tail, double stretch) {
  double gathered = -INFINITY, gathers = 0;
  for (int i = 0; i < tail->gather_count; i++) {
    const tws_tail_gather *g = &tail->gathers[i];
    const double ready = -tws_stretched_seconds(g->behind, stretch);
    gathered = (ready > gathered ? ready : gathered) + g->seconds;
    gathers += g->seconds;
  }
  return (gathered > 0 ? gathered : 0) - gathers;
}

void tws_overlap_expose(const tws_tail_pieces *tail, double stretch, double *axis_s) {
  double end = 0, to;
  for (int i = 0; i < tail->gather_count; i++) {
    const tws_tail_gather *g = &tail->gathers[i];
    const double ready = -tws_stretched_seconds(g->behind, stretch);
    end = (i == 0 || ready > end ? ready : end) + g->seconds;
    axis_s[g->axis] -= g->seconds;
  }
  to = end;
  for (int i = tail->gather_count; i-- > 0 && to > 0;) { /* one after another, for as long as nothing else is done */
    const double from = to - tail->gathers[i].seconds > 0 ? to - tail->gathers[i].seconds : 0;
    axis_s[tail->gathers[i].axis] += to - from;
    to = from;
  }
}

/* Reductions run one after another while someone waits, as their gradients are complete by then. */
static void expose_between(const tws_overlapped *o, const double *ended, uint32_t last, double from, double *axis_s) {
  double to = ended[last];
  for (uint32_t i = last + 1; i-- > 0 && to > from;) {
    const double begun = ended[i] - o->seconds[i] > from ? ended[i] - o->seconds[i] : from;
    axis_s[o->axis[i]] += to - begun;
    to = begun;
  }
}

void tws_overlap_expose_waits(const tws_tail_pieces *tail, const tws_body_overlap *body, const tws_beside_waits *waits,
                              int later, double stretch, double *ended, double *axis_s) {
  const tws_overlapped *o = tail->overlapped;
  double waited = 0;
  waited_for(tail, body->behind[later], waits, stretch, ended);
  for (int i = 0; i < tail->wait_count; i++) { /* in the order of the tail */
    if (!o->needed[i]) continue;
    const double came = waited - tws_stretched_seconds(tail->waits[i].to_the_end, stretch);
    if (ended[o->needed[i] - 1] <= came) continue;
    expose_between(o, ended, o->needed[i] - 1, came, axis_s);
    waited += ended[o->needed[i] - 1] - came;
  }
}

double tws_overlap_waited(const tws_tail_pieces *tail, tws_body_overlap *body, const tws_beside_waits *waits, int later,
                          double stretch, double *ended) {
  for (int i = 0; i < TWS_OVERLAPS_SEEN; i++) {
    const tws_overlap_seen *seen = &body->seen[i];
    if (seen->of == tail->overlapped && seen->later == later && seen->stretch == stretch) return seen->seconds;
  }
  tws_overlap_seen *seen = &body->seen[body->next_seen];
  body->next_seen = (body->next_seen + 1) % TWS_OVERLAPS_SEEN;
  *seen = (tws_overlap_seen){tail->overlapped, later, stretch,
                             waited_for(tail, body->behind[later], waits, stretch, ended)};
  return seen->seconds;
}
