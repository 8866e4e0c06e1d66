/* Ranks of one stage that differ: parts of a sequence look up other rows of a table of positions, and update other
 * parameters. They meet in every layer. So one line of them, whose every piece of the passes takes as long as any
 * other's or longer, is what all wait for. At the end of a step they meet between the pieces that differ, and each of
 * these takes as long as the longest. */
#include <math.h>
#include <string.h>

#include "estimators/chunks.h"
#include "estimators/composer_step.h"
#include "plan/pipeline_grid.h"

typedef tws_composed_step step;

static const tws_chunk_set *set_of(const step *s, const tws_rank_kind *ranks, int line) {
  return &s->lines[ranks->pass_apart ? line : 0];
}

void tws_step_take_line(step *s, const tws_rank_kind *ranks, int line) {
  const tws_chunk_set *of = set_of(s, ranks, line);
  s->line = line;
  s->rank = ranks->lines[line];
  if (s->chunks == of->chunks) return;
  s->chunks = of->chunks;
  s->chunk_count = of->chunk_count;
  s->chunk_at = of->chunk_at;
  s->body_of_chunks = of->body_of[0];
  s->chunks_exact = of->exact;
  s->chunks_closed = of->closed;
  s->chunks_in_order = of->in_order;
  s->has_times = 0;
}

/* ---- passes ---- */

/* A layer's piece of one pass, in a sample of one line. */
typedef struct layer_pass {
  const tws_piece *piece;
  const tws_cut *cuts;
  uint32_t count;         /* of cuts */
  const tws_marks *marks; /* NULL: nothing runs beside it */
  double stretch;
} layer_pass;

/* 0: it is not known. */
static int pass_of(const tws_composed_chunk *chunk, int layer, int later, int event, double stretch, layer_pass *out) {
  int at;
  const tws_sample_pieces *s = tws_composed_layer(chunk, layer, &at);
  const tws_cuts *cuts = &s->cuts[later][event];
  uint32_t first = 0, end;
  if (!s->layer[later][event] || !cuts->items) return 0;
  const int down = event != TWS_CONTEXT_FORWARD; /* the order of layers */
  while (first < cuts->count && (down ? cuts->items[first].layer > at : cuts->items[first].layer < at)) first++;
  for (end = first; end < cuts->count && cuts->items[end].layer == at;) end++;
  const tws_marks *marks = s->marks[later][event] ? &s->marks[later][event][at] : NULL;
  *out = (layer_pass){&s->layer[later][event][at], cuts->items + first, end - first, marks, stretch};
  return 1;
}

/* The next place where a line meets others or what runs beside it, or the end: how long after the last. */
typedef struct pass_walk {
  const layer_pass *of;
  uint32_t cut, mark;
  tws_piece_time at;
  const tws_mark *is; /* NULL: a cut, or the end */
} pass_walk;

static tws_piece_time next_place(pass_walk *w) {
  const layer_pass *p = w->of;
  const tws_mark *mark = p->marks && w->mark < p->marks->count ? &p->marks->items[w->mark] : NULL;
  const tws_piece_time *cut = w->cut < p->count ? &p->cuts[w->cut].at : &p->piece->time, before = w->at;
  w->is = mark && mark->at.kernel <= cut->kernel && mark->at.other <= cut->other ? mark : NULL;
  w->at = w->is ? mark->at : *cut;
  w->mark += w->is != NULL;
  w->cut += w->is == NULL;
  return (tws_piece_time){w->at.kernel - before.kernel, w->at.other - before.other};
}

static int same_marks(const tws_mark *a, const tws_mark *b) {
  if (!a || !b) return a == b;
  return a->kind == b->kind && a->layer == b->layer && a->which == b->which;
}

/* All that happens there is that what computes may wait: for a parameter that others need not read, as who adds a bias
 * for them, or for room for its gradient. */
static int may_wait(const tws_mark *mark) {
  return mark && (mark->kind == TWS_MARK_READS || mark->kind == TWS_MARK_WRITES);
}

/* Whether one line is nowhere longer than another between two places where lines or stages meet. */
static int is_shorter_pass(const layer_pass *a, const layer_pass *b) {
  pass_walk of_a = {.of = a}, of_b = {.of = b};
  const double near = 1e-15 * tws_stretched_seconds(b->piece->time, b->stretch); /* differences of sums */
  if (a->count != b->count || a->piece->point_count != b->piece->point_count || !a->marks != !b->marks) return 0;
  for (int i = 0; i < a->piece->point_count; i++) {
    const tws_point *x = &a->piece->points[i], *y = &b->piece->points[i];
    if (x->kind != y->kind || x->buffer != y->buffer) return 0;
  }
  while (of_a.cut <= a->count) {
    const tws_piece_time time_a = next_place(&of_a);
    tws_piece_time time_b = next_place(&of_b);
    while (!same_marks(of_a.is, of_b.is) && may_wait(of_b.is)) time_b = tws_sum_of_times(time_b, next_place(&of_b));
    if (!same_marks(of_a.is, of_b.is)) return 0;
    if (tws_same_times(time_a, time_b)) continue;
    if (tws_stretched_seconds(time_a, a->stretch) > tws_stretched_seconds(time_b, b->stretch) + near) return 0;
  }
  return 1;
}

/* Whether a layer is sampled as the one before it is: so are all but a few of a chunk. */
static int is_repeated(const tws_composed_chunk *chunk, int layer) {
  int at, before;
  if (layer == 0) return 0;
  const tws_sample_pieces *of = tws_composed_layer(chunk, layer, &at);
  return of == tws_composed_layer(chunk, layer - 1, &before) && at == before;
}

static int is_shorter_layer(const tws_composed_chunk *a, double stretch_a, const tws_composed_chunk *b,
                            double stretch_b, int layer) {
  for (int later = 0; later < 2; later++)
    for (int e = 0; e < TWS_CONTEXT_EVENTS; e++) {
      layer_pass of_a, of_b;
      if (!a->pieces.has[e] || !tws_context_acts(e)) continue;
      if (!pass_of(a, layer, later, e, stretch_a, &of_a) || !pass_of(b, layer, later, e, stretch_b, &of_b)) return 0;
      if (!is_shorter_pass(&of_a, &of_b)) return 0;
    }
  return 1;
}

/* Of lines, the first with no more stretch. */
static int is_shorter_chunk(const tws_composed_chunk *a, double stretch_a, const tws_composed_chunk *b,
                            double stretch_b) {
  const int layers = a->of.end - a->of.first;
  for (int e = 0; e < TWS_CONTEXT_EVENTS; e++) {
    if (a->pieces.has[e] != b->pieces.has[e]) return 0;
    if (a->pieces.has[e] && a->pieces.message_bytes[e] != b->pieces.message_bytes[e]) return 0;
  }
  for (int i = 0; i < layers; i++)
    if (!(is_repeated(a, i) && is_repeated(b, i)) && !is_shorter_layer(a, stretch_a, b, stretch_b, i)) return 0;
  return 1;
}

/* Of a stage, to and from those before and behind it. */
static int has_shorter_messages(const step *s, int stage, const tws_chunk_pieces *p, int rank, int than) {
  const tws_topology *t = &s->request->topology;
  const tws_costs *costs = &s->c->costs;
  for (int e = 0; e < TWS_CONTEXT_EVENTS; e++)
    for (int side = -1; side < 2 && p->has[e] && p->message_bytes[e]; side += 2) {
      double seconds[2];
      for (int k = 0; k < 2; k++)
        seconds[k] = costs->message(costs->user, t, tws_pipeline_grid_stage(t, k ? than : rank, stage),
                                    tws_pipeline_grid_stage(t, k ? than : rank, stage + side), p->message_bytes[e]);
      if (seconds[0] > seconds[1]) return 0;
    }
  return 1;
}

static const double *stretch_of(const step *s, int line) {
  return s->c->line_stretch + (size_t)line * (size_t)s->shape.stages;
}

/* Whether nobody of a line comes later to where all meet than another's. */
static int is_shorter(const step *s, const tws_rank_kind *ranks, int line, int than) {
  const tws_chunk_set *a = set_of(s, ranks, line), *b = set_of(s, ranks, than);
  const double *stretch_a = stretch_of(s, line), *stretch_b = stretch_of(s, than);
  const int v = s->tails->stage[0].chunk_count;
  for (int i = 0; i < s->shape.stages; i++)
    if (stretch_a[i] > stretch_b[i]) return 0;
  for (int i = 0; i < s->shape.stages * v && a != b; i++) {
    const tws_composed_chunk *of_a = &a->chunks[a->chunk_at[i]], *of_b = &b->chunks[b->chunk_at[i]];
    if (!is_shorter_chunk(of_a, stretch_a[i / v], of_b, stretch_b[i / v])) return 0;
    if (ranks->uneven && !has_shorter_messages(s, i / v, &of_a->pieces, ranks->lines[line], ranks->lines[than]))
      return 0;
  }
  return a->in_order && b->in_order;
}

/* -1: none is. */
static int longest_line(const step *s, const tws_rank_kind *ranks) {
  for (int than = 0; than < ranks->line_count; than++) {
    int others = 0;
    while (others < ranks->line_count && is_shorter(s, ranks, others, than)) others++;
    if (others == ranks->line_count) return than;
  }
  return -1;
}

/* ---- ends ---- */

static const tws_tail_pieces *tail_of(const step *s, int stage, int line) {
  const tws_tail_pieces *t = &s->tails->stage[stage];
  return line ? &t->others[line - 1] : t;
}

static int same_tails(const tws_tail_pieces *a, const tws_tail_pieces *b) {
  int same = a->step_count == b->step_count && a->exact && b->exact && a->moves_exact == b->moves_exact;
  for (int later = 0; later < 2; later++)
    same &= tws_same_times(a->moves[later], b->moves[later]) && a->move_launches[later] == b->move_launches[later];
  for (int i = 0; i < a->step_count && same; i++) {
    const tws_tail_step *x = &a->steps[i], *y = &b->steps[i];
    same = x->sync == y->sync && x->meets == y->meets && x->ends.count == y->ends.count;
    for (int k = 0; k < x->ends.count && same; k++)
      same = x->ends.items[k].after == y->ends.items[k].after &&
             tws_same_times(x->ends.items[k].time, y->ends.items[k].time);
  }
  return same;
}

/* One stage's, each step as long as the longest; 0: who of them waits for whom depends on more. */
static int join_tails(const step *s, const tws_rank_kind *ranks, int stage, tws_tail_step *steps) {
  const tws_tail_pieces *own = tail_of(s, stage, s->line);
  const int lines = ranks->line_count;
  int met = 0, tangled = ranks->every, waits = 0;
  if (s->request->config->zero.stage == 2) return 0; /* each keeps another part of every bucket */
  for (int line = 0; line < lines; line++)
    if (!same_tails(own, tail_of(s, stage, line))) return 0;
  for (int i = 0; i < own->step_count; i++) {
    double least = INFINITY, most = 0;
    for (int line = 0; line < lines; line++) {
      const double seconds = tws_stretched_seconds(tail_of(s, stage, line)->steps[i].time, stretch_of(s, line)[stage]);
      least = fmin(least, seconds);
      most = fmax(most, seconds);
    }
    const double waits_s = most - tws_stretched_seconds(own->steps[i].time, stretch_of(s, s->line)[stage]);
    const int next = i + 1 == own->step_count || own->steps[i + 1].meets;
    met |= own->steps[i].meets != 0;
    tangled |= least < most && (own->steps[i].sync || !next || (!met && waits_s > 0));
    waits |= waits_s > 0;
    steps[i] = own->steps[i];
    steps[i].time = (tws_piece_time){0, most};
    steps[i].waits_s = waits_s;
  }
  return !(tangled && waits);
}

/* How much the kernels of each line's stages are stretched; whether that is as it was when the longest line was looked
 * for, which depends on nothing else. */
int tws_step_find_stretch(step *s, const tws_rank_kind *ranks) {
  const int stages = s->shape.stages;
  int same = s->longest_of != NULL;
  for (int i = 0; i < stages * ranks->line_count; i++) {
    const int line = i / stages, stage = i % stages;
    const double stretch = tws_step_stretch(s, set_of(s, ranks, line), tail_of(s, stage, line), stage);
    same = same && stretch == s->c->line_stretch[i];
    s->c->line_stretch[i] = stretch;
  }
  return same;
}

static int has_all_ends(const step *s, const tws_rank_kind *ranks) {
  int all = 1;
  for (int i = 0; i < s->shape.stages; i++) all &= s->tails->stage[i].other_count == ranks->line_count - 1;
  return all;
}

tws_code tws_step_meet(step *s, const tws_rank_kind *ranks, int known, int *met, tws_error *err) {
  tws_composer *c = s->c;
  const size_t count = (size_t)s->shape.stages * (size_t)ranks->line_count;
  *met = 0;
  if (!has_all_ends(s, ranks)) return TWS_OK;
  if (tws_reserve(&c->line_stretch, &c->line_stretch_capacity, count, sizeof *c->line_stretch))
    return tws_fail(err, TWS_MEMORY, NULL, "no memory for composed steps");
  const int same = tws_step_find_stretch(s, ranks);
  if (!known) return TWS_OK;
  if (!same) s->longest = longest_line(s, ranks);
  s->longest_of = s->tails;
  *met = s->longest >= 0;
  if (*met) tws_step_take_line(s, ranks, s->longest);
  return TWS_OK;
}

/* What a pass exchanges beside what it computes. */
static double exchanged_by(const tws_composed_chunk *chunk, int later, int event) {
  double seconds = 0;
  for (int i = 0; i < tws_chunk_layers(chunk) && chunk->exchanges; i++) {
    int at;
    const tws_sample_pieces *s = tws_composed_layer(chunk, i, &at);
    const tws_marks *marks = s->marks[later][event] ? &s->marks[later][event][at] : NULL;
    for (uint32_t k = 0; marks && k < marks->count; k++)
      if (marks->items[k].kind == TWS_MARK_EXCHANGES || marks->items[k].kind == TWS_MARK_LATE)
        seconds += tws_stretched_seconds(marks->items[k].op->time, 1);
  }
  return seconds;
}

/* What the ranks of a line do in a step, on all streams, and the messages between them. */
static double work_of(const step *s, const tws_rank_kind *ranks, int line) {
  const tws_chunk_set *set = set_of(s, ranks, line);
  const tws_costs *costs = &s->c->costs;
  const tws_topology *t = &s->request->topology;
  const int stages = s->shape.stages, v = s->tails->stage[0].chunk_count;
  double seconds = 0;
  for (int i = 0; i < stages * v; i++) {
    const tws_composed_chunk *chunk = &set->chunks[set->chunk_at[i]];
    const tws_chunk_pieces *p = &chunk->pieces;
    const int rank = tws_pipeline_grid_stage(t, ranks->lines[line], i / v);
    for (int e = 0; e < TWS_CONTEXT_EVENTS; e++) {
      if (!p->has[e]) continue;
      seconds += tws_stretched_seconds(p->event[0][e].time, 1) + exchanged_by(chunk, 0, e);
      seconds +=
          (s->shape.micro_batches - 1) * (tws_stretched_seconds(p->event[1][e].time, 1) + exchanged_by(chunk, 1, e));
      if (p->message_bytes[e])
        seconds +=
            s->shape.micro_batches *
            costs->message(costs->user, t, rank, tws_pipeline_grid_stage(t, rank, i / v + 1), p->message_bytes[e]);
    }
  }
  for (int i = 0; i < stages; i++) {
    const tws_tail_pieces *tail = tail_of(s, i, line);
    for (int k = 0; k < tail->step_count; k++) seconds += tws_stretched_seconds(tail->steps[k].time, 1);
    seconds += tws_stretched_seconds(tail->moves[0], 1) +
               (s->shape.micro_batches - 1) * tws_stretched_seconds(tail->moves[1], 1);
  }
  return seconds;
}

static int busiest_line(const step *s, const tws_rank_kind *ranks) {
  double most = 0;
  int busiest = 0;
  for (int i = 0; i < ranks->line_count && has_all_ends(s, ranks); i++) {
    const double seconds = work_of(s, ranks, i);
    if (seconds > most) busiest = i;
    if (seconds > most) most = seconds;
  }
  return busiest;
}

tws_code tws_step_bound(step *s, const tws_rank_kind *ranks, tws_error *err) {
  tws_composer *c = s->c;
  const size_t stages = (size_t)s->shape.stages;
  if (s->busiest_of != s->tails) s->busiest = busiest_line(s, ranks);
  s->busiest_of = s->tails;
  const int line = s->busiest;
  tws_step_take_line(s, ranks, line);
  s->joined = s->tails;
  if (line == 0) return TWS_OK;
  if (tws_reserve(&c->joined.stage, &c->joined_capacity, stages, sizeof *c->joined.stage))
    return tws_fail(err, TWS_MEMORY, NULL, "no memory for composed steps");
  c->joined.stages = s->tails->stages;
  c->joined.most_met = s->tails->most_met;
  for (size_t i = 0; i < stages; i++) c->joined.stage[i] = *tail_of(s, (int)i, line);
  s->joined = &c->joined;
  return TWS_OK;
}

int tws_step_join(step *s, const tws_rank_kind *ranks) {
  tws_composer *c = s->c;
  const int stages = s->shape.stages;
  size_t steps = 0;
  int joins = 1;
  for (int i = 0; i < stages; i++) steps += (size_t)s->tails->stage[i].step_count + 1;
  if (tws_reserve(&c->joined.stage, &c->joined_capacity, (size_t)stages, sizeof *c->joined.stage) ||
      tws_reserve(&c->joined_steps, &c->joined_step_capacity, steps, sizeof *c->joined_steps))
    return 0;
  if (!tws_step_find_stretch(s, ranks)) s->longest_of = NULL; /* with what runs beside */
  c->joined.stages = stages;
  c->joined.most_met = s->tails->most_met;
  tws_tail_step *at = c->joined_steps;
  for (int i = 0; i < stages && joins; i++) {
    joins = join_tails(s, ranks, i, at);
    c->joined.stage[i] = *tail_of(s, i, s->line);
    c->joined.stage[i].steps = at;
    at += c->joined.stage[i].step_count;
  }
  if (joins) s->joined = &c->joined;
  return joins;
}

const tws_chunk_set *tws_step_line_chunks(const step *s, const tws_rank_kind *ranks, int line) {
  return set_of(s, ranks, line);
}

const tws_tail_pieces *tws_step_line_tail(const step *s, int stage, int line) {
  return tail_of(s, stage, line);
}

const double *tws_step_line_stretch(const step *s, int line) {
  return stretch_of(s, line);
}
