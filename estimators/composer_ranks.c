/* Ranks of one stage that differ: parts of a sequence look up other rows of a table of positions, and update other
 * parameters. They meet in every layer. So one line of them, whose every piece of the passes takes as long as any
 * other's or longer, is what all wait for. At the end of a step they meet between the pieces that differ, and each of
 * these takes as long as the longest. */
#include <math.h>
#include <string.h>

#include "estimators/chunks.h"
#include "estimators/composer_step.h"

typedef tws_composed_step step;

void tws_step_take_line(step *s, int line) {
  const tws_chunk_set *of = &s->lines[line];
  if (s->chunks == of->chunks) return;
  s->line = line;
  s->chunks = of->chunks;
  s->chunk_count = of->chunk_count;
  s->chunk_at = of->chunk_at;
  s->chunks_exact = of->exact;
  s->chunks_closed = of->closed;
  s->chunks_in_order = of->in_order;
  s->has_times = 0;
}

/* ---- passes ---- */

static double seconds_of(tws_piece_time time, double stretch) {
  return stretch * time.kernel + time.other;
}

static int same_times(tws_piece_time a, tws_piece_time b) {
  return a.kernel == b.kernel && a.other == b.other;
}

static int same_piece(const tws_piece *a, const tws_piece *b) {
  int same = same_times(a->time, b->time) && a->point_count == b->point_count;
  for (int i = 0; i < a->point_count && same; i++) {
    const tws_point *x = &a->points[i], *y = &b->points[i];
    same = x->kind == y->kind && x->buffer == y->buffer && same_times(x->at, y->at);
  }
  return same;
}

static int is_no_longer(tws_piece_time a, double stretch_a, tws_piece_time b, double stretch_b) {
  return seconds_of(a, stretch_a) <= seconds_of(b, stretch_b);
}

static tws_piece_time between(const tws_piece *p, int point) {
  const tws_piece_time from = point > 0 ? p->points[point - 1].at : (tws_piece_time){0, 0};
  const tws_piece_time to = point < p->point_count ? p->points[point].at : p->time;
  return (tws_piece_time){to.kernel - from.kernel, to.other - from.other};
}

/* Whether a layer of one line takes no longer than that of another: they are alike, or they meet nowhere in it, and
 * the first is at no point later. */
static int is_shorter_layer(const tws_piece *a, double stretch_a, const tws_piece *b, double stretch_b) {
  const int sequence = tws_piece_axis(TWS_AXIS_SEQUENCE);
  if (same_piece(a, b)) return 1;
  if (a->point_count != b->point_count || a->axis_s[sequence] > 0 || b->axis_s[sequence] > 0) return 0;
  for (int i = 0; i <= a->point_count; i++) {
    const int last = i == a->point_count;
    if (!last && (a->points[i].kind != b->points[i].kind || a->points[i].buffer != b->points[i].buffer)) return 0;
    if (!is_no_longer(between(a, i), stretch_a, between(b, i), stretch_b)) return 0;
  }
  return 1;
}

/* Of lines, the first with no more stretch. */
static int is_shorter_chunk(const tws_composed_chunk *a, double stretch_a, const tws_composed_chunk *b,
                            double stretch_b) {
  for (int later = 0; later < 2; later++)
    for (int e = 0; e < TWS_CONTEXT_EVENTS; e++) {
      if (a->pieces.has[e] != b->pieces.has[e]) return 0;
      if (!a->pieces.has[e] || same_piece(&a->pieces.event[later][e], &b->pieces.event[later][e])) continue;
      for (int i = 0; i < a->of.end - a->of.first; i++) {
        int at_a, at_b;
        const tws_piece *of_a = tws_composed_layer(a, i, &at_a)->layer[later][e];
        const tws_piece *of_b = tws_composed_layer(b, i, &at_b)->layer[later][e];
        if (!of_a || !of_b || !is_shorter_layer(&of_a[at_a], stretch_a, &of_b[at_b], stretch_b)) return 0;
      }
    }
  return 1;
}

static const tws_chunk_set *set_of(const step *s, const tws_rank_kind *ranks, int line) {
  return &s->lines[ranks->pass_apart ? line : 0];
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
  for (int i = 0; i < s->shape.stages * v && a != b; i++)
    if (!is_shorter_chunk(&a->chunks[a->chunk_at[i]], stretch_a[i / v], &b->chunks[b->chunk_at[i]], stretch_b[i / v]))
      return 0;
  return a->exact && b->exact;
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
  int same = a->step_count == b->step_count && a->exact && b->exact;
  for (int i = 0; i < a->step_count && same; i++) {
    const tws_tail_step *x = &a->steps[i], *y = &b->steps[i];
    same = x->sync == y->sync && x->meets == y->meets && x->ends.count == y->ends.count;
    for (int k = 0; k < x->ends.count && same; k++)
      same =
          x->ends.items[k].after == y->ends.items[k].after && same_times(x->ends.items[k].time, y->ends.items[k].time);
  }
  return same;
}

/* One stage's, each step as long as the longest; 0: who of them waits for whom depends on more. */
static int join_tails(const step *s, int stage, int lines, tws_tail_step *steps) {
  const tws_tail_pieces *own = tail_of(s, stage, s->line);
  int met = 0, tangled = 0, waits = 0;
  for (int line = 0; line < lines; line++)
    if (!same_tails(own, tail_of(s, stage, line))) return 0;
  for (int i = 0; i < own->step_count; i++) {
    double least = INFINITY, most = 0;
    for (int line = 0; line < lines; line++) {
      const double seconds = seconds_of(tail_of(s, stage, line)->steps[i].time, stretch_of(s, line)[stage]);
      least = fmin(least, seconds);
      most = fmax(most, seconds);
    }
    const double waits_s = most - seconds_of(own->steps[i].time, stretch_of(s, s->line)[stage]);
    const int next = i + 1 < own->step_count ? own->steps[i + 1].meets : 1;
    met |= own->steps[i].meets;
    tangled |= least < most && (own->steps[i].sync || !next || (!met && waits_s > 0));
    waits |= waits_s > 0;
    steps[i] = own->steps[i];
    steps[i].time = (tws_piece_time){0, most};
    steps[i].waits_s = waits_s;
  }
  return !(tangled && waits);
}

tws_code tws_step_meet(step *s, const tws_rank_kind *ranks, int *met, tws_error *err) {
  tws_composer *c = s->c;
  const int stages = s->shape.stages, lines = ranks->line_count;
  size_t steps = 0;
  for (int i = 0; i < stages; i++) steps += (size_t)s->tails->stage[i].step_count + 1;
  if (tws_reserve(&c->line_stretch, &c->line_stretch_capacity, (size_t)(stages * lines), sizeof *c->line_stretch) ||
      tws_reserve(&c->joined.stage, &c->joined_capacity, (size_t)stages, sizeof *c->joined.stage) ||
      tws_reserve(&c->joined_steps, &c->joined_step_capacity, steps, sizeof *c->joined_steps))
    return tws_fail(err, TWS_MEMORY, NULL, "no memory for composed steps");
  *met = 1;
  for (int i = 0; i < stages && *met; i++) *met = s->tails->stage[i].other_count == lines - 1;
  for (int i = 0; i < stages * lines && *met; i++)
    c->line_stretch[i] =
        tws_step_stretch(s, set_of(s, ranks, i / stages), tail_of(s, i % stages, i / stages), i % stages);
  const int line = *met ? longest_line(s, ranks) : -1;
  *met = line >= 0;
  if (line < 0) return TWS_OK;
  tws_step_take_line(s, ranks->pass_apart ? line : 0);
  c->joined.stages = stages;
  c->joined.most_met = s->tails->most_met;
  tws_tail_step *at = c->joined_steps;
  for (int i = 0; i < stages && *met; i++) {
    *met = join_tails(s, i, lines, at);
    c->joined.stage[i] = *tail_of(s, i, s->line);
    c->joined.stage[i].steps = at;
    at += c->joined.stage[i].step_count;
  }
  if (*met) s->joined = &c->joined;
  return TWS_OK;
}
