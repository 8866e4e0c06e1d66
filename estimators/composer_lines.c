/* Ranks of one stage that differ, where none of their lines is what all others wait for: as in a ring of sequence
 * ranks, which do other pieces of equal work. All lines go through the step at once. In the passes each rank goes from
 * one collective that it shares with ranks of other lines to the next, and all of these go on from when the last has
 * come; likewise behind the passes. */
#include <string.h>

#include "estimators/composer_step.h"
#include "plan/pipeline_grid.h"

typedef tws_composed_step step;

/* ---- what is known ---- */

int tws_step_add_groups(step *s, const tws_rank_kind *ranks, tws_axes axes) {
  const tws_topology *t = &s->request->topology;
  tws_line_groups *g = &s->groups;
  for (int i = 0; i < g->count; i++)
    if (g->along[i].axes == axes) return 1;
  if (g->count == TWS_LINE_AXES || (axes != TWS_MEETS_ALL && axes & (TWS_AXES_PIPE | TWS_AXES_TIED))) return 0;
  uint8_t *of = g->along[g->count].of;
  g->along[g->count++].axes = axes;
  for (int i = 0; i < ranks->line_count; i++) {
    int first = 0;
    while (axes != TWS_MEETS_ALL &&
           tws_topology_member(t, ranks->lines[first], axes, 0) != tws_topology_member(t, ranks->lines[i], axes, 0))
      first++;
    of[i] = (uint8_t)first;
  }
  return 1;
}

/* Of an action of some of a sample's layers. */
static int add_groups_of_marks(step *s, const tws_rank_kind *ranks, const tws_sample_pieces *of, int later, int event) {
  if (!of->joins || !of->layer[later][event] || !of->marks[later][event]) return 0;
  for (int layer = 0; layer < of->layers; layer++)
    for (uint32_t i = 0; i < of->marks[later][event][layer].count; i++) {
      const tws_beside_op *op = of->marks[later][event][layer].items[i].op;
      if (op && op->meets && !tws_step_add_groups(s, ranks, op->meets)) return 0;
    }
  return 1;
}

static int is_known_chunk(step *s, const tws_rank_kind *ranks, const tws_composed_chunk *c) {
  if (!c->exact || !c->in_order || c->far) return 0;
  for (int e = 0; e < TWS_CONTEXT_EVENTS; e++)
    for (int later = 0; later < 2 && c->pieces.has[e] && tws_context_acts(e); later++) {
      if (!add_groups_of_marks(s, ranks, c->head, later, e)) return 0;
      if (c->tail && c->tail != c->head && !add_groups_of_marks(s, ranks, c->tail, later, e)) return 0;
    }
  return 1;
}

/* Whether slots of messages are dealt out alike, so that lines have one order. */
static int same_messages(const tws_chunk_pieces *a, const tws_chunk_pieces *b) {
  if (a->buffers != b->buffers || memcmp(a->has, b->has, sizeof a->has) != 0) return 0;
  for (int i = 0; i < a->buffers; i++)
    if (a->slot_bytes[i] != b->slot_bytes[i]) return 0;
  for (int e = 0; e < TWS_CONTEXT_EVENTS; e++) {
    if (!a->has[e]) continue;
    if (a->message_bytes[e] != b->message_bytes[e] || a->message_buffer[e] != b->message_buffer[e]) return 0;
    for (int later = 0; later < 2; later++) {
      const tws_piece *x = &a->event[later][e], *y = &b->event[later][e];
      if (x->point_count != y->point_count) return 0;
      for (int i = 0; i < x->point_count; i++)
        if (x->points[i].kind != y->points[i].kind || x->points[i].buffer != y->points[i].buffer) return 0;
    }
  }
  return 1;
}

static int is_known_line(step *s, const tws_rank_kind *ranks, int line) {
  const tws_chunk_set *first = tws_step_line_chunks(s, ranks, 0), *own = tws_step_line_chunks(s, ranks, line);
  const int chunks = s->shape.stages * s->tails->stage[0].chunk_count;
  for (int i = 0; i < own->chunk_count; i++)
    if (!is_known_chunk(s, ranks, &own->chunks[i])) return 0;
  for (int i = 0; i < chunks; i++)
    if (!same_messages(&first->chunks[first->chunk_at[i]].pieces, &own->chunks[own->chunk_at[i]].pieces)) return 0;
  return 1;
}

/* Nothing runs beside what computes there. Lines may do other things between the same meetings. */
static int is_known_end(step *s, const tws_rank_kind *ranks, int stage, int line) {
  const tws_tail_pieces *own = tws_step_line_tail(s, stage, line);
  if (!own->exact || own->of_gradients || own->overlaps || own->in_step) return 0;
  for (int i = 0; i < own->step_count; i++) {
    if (own->steps[i].ends.count) return 0;
    if (own->steps[i].meets && !own->steps[i].sync && !tws_step_add_groups(s, ranks, own->steps[i].meets)) return 0;
  }
  return 1;
}

int tws_step_can_go_together(step *s, const tws_rank_kind *ranks) {
  if (s->together_of == s->tails) return s->can_together;
  s->together_of = s->tails;
  s->can_together = 0;
  s->groups.count = 0;
  const tws_zero_config *z = &s->request->config->zero;
  const int reduces =
      z->stage == 1 && z->overlap_comm && s->shape.stages == 1; /* in the last pass, be it in one queue */
  if (!ranks->pass_apart || ranks->line_count > TWS_MOST_LINES || s->bounded || reduces) return 0;
  for (int i = 0; i < s->shape.stages; i++)
    if (s->tails->stage[i].other_count != ranks->line_count - 1) return 0;
  for (int line = 0; line < ranks->line_count; line++) {
    if (!is_known_line(s, ranks, line)) return 0;
    for (int i = 0; i < s->shape.stages; i++)
      if (!is_known_end(s, ranks, i, line)) return 0;
  }
  return s->can_together = 1;
}

/* ---- passes ---- */

tws_code tws_step_make_lines(step *s, const tws_rank_kind *ranks, tws_error *err) {
  const size_t stages = (size_t)s->shape.stages, all = stages * (size_t)ranks->line_count;
  int same = s->of_lines && s->together == ranks->line_count;
  if (!s->of_lines) {
    s->of_lines = tws_arena_alloc(s->arena, all, sizeof *s->of_lines);
    s->stretched_lines = tws_arena_alloc(s->arena, all, sizeof *s->stretched_lines);
    s->line_at = tws_arena_alloc(s->arena, all, sizeof *s->line_at);
    s->line_joined = tws_arena_alloc(s->arena, all, sizeof *s->line_joined);
    if (!s->of_lines || !s->stretched_lines || !s->line_at || !s->line_joined)
      return tws_fail(err, TWS_MEMORY, NULL, "no memory for composed steps");
  }
  for (int line = 0; line < ranks->line_count; line++) {
    const double *stretch = tws_step_line_stretch(s, line);
    double *made = s->stretched_lines + (size_t)line * stages;
    if (s->of_lines[(size_t)line * stages].chunks && memcmp(made, stretch, stages * sizeof *made) == 0) continue;
    same = 0;
    TWS_TRY(tws_step_make_stages(s, tws_step_line_chunks(s, ranks, line), stretch, 1,
                                 s->of_lines + (size_t)line * stages, err));
    memcpy(made, stretch, stages * sizeof *made);
  }
  if (!same) s->ran = 0;
  if (!same) s->times_of = 0;
  s->together = ranks->line_count;
  return TWS_OK;
}

/* ---- ends ---- */

typedef struct ending {
  step *s;
  const tws_rank_kind *ranks;
  int stages;
  int *at, *joined; /* [line][stage]: its next step, and 1 + the one that it has met others for */
  tws_composed_account *account;
} ending;

static tws_rhythm_stage *stage_of(const ending *e, int line, int stage) {
  return &e->s->of_lines[line * e->stages + stage];
}

static tws_composed_account *account_of(const ending *e, int line, int stage) {
  return e->account && line == e->s->line ? &e->account[stage] : NULL;
}

/* NULL: it is done. */
static const tws_tail_step *next_of(const ending *e, int line, int stage) {
  const tws_tail_pieces *t = tws_step_line_tail(e->s, stage, line);
  const int at = e->at[line * e->stages + stage];
  return at < t->step_count ? &t->steps[at] : NULL;
}

/* Whether its next step is one that others have to come to first. */
static int waits_for_lines(const ending *e, int line, int stage) {
  const int i = line * e->stages + stage;
  const tws_tail_step *next = next_of(e, line, stage);
  return next && !next->sync && next->meets && e->joined[i] != e->at[i] + 1;
}

/* Up to one that others are met in; returns whether there was any. */
static int go_on(const ending *e, int line, int stage) {
  const double stretch = tws_step_line_stretch(e->s, line)[stage];
  tws_composed_account *account = account_of(e, line, stage);
  int moved = 0;
  for (const tws_tail_step *next;
       (next = next_of(e, line, stage)) && !next->sync && !waits_for_lines(e, line, stage);) {
    if (account) tws_expose(account, 1, next->axis_s);
    stage_of(e, line, stage)->compute_s += stretch * next->time.kernel + next->time.other;
    e->at[line * e->stages + stage]++;
    moved = 1;
  }
  return moved;
}

/* Lines of a stage that share a collective, the first of them `first`; returns whether they were all there. */
static int join_lines(const ending *e, int first, int stage) {
  if (!waits_for_lines(e, first, stage)) return 0;
  const tws_axes axes = next_of(e, first, stage)->meets;
  const uint8_t *of = tws_lines_along(&e->s->groups, axes);
  double met = 0;
  if (!of || of[first] != first) return 0;
  for (int i = first; i < e->ranks->line_count; i++) {
    if (of[i] != first) continue;
    if (!waits_for_lines(e, i, stage) || next_of(e, i, stage)->meets != axes) return 0;
    if (stage_of(e, i, stage)->compute_s > met) met = stage_of(e, i, stage)->compute_s;
  }
  for (int i = first; i < e->ranks->line_count; i++) {
    if (of[i] != first) continue;
    tws_rhythm_stage *own = stage_of(e, i, stage);
    tws_composed_account *account = account_of(e, i, stage);
    if (account) account->bubble_s += met - own->compute_s;
    own->compute_s = met;
    e->joined[i * e->stages + stage] = e->at[i * e->stages + stage] + 1;
  }
  return 1;
}

/* Stages of a line in a collective of theirs; two of them, or all (NULL). */
static void join_stages(const ending *e, int line, const int *two) {
  const int count = two ? 2 : e->stages;
  double met = 0, seconds = 0;
  for (int k = 0; k < count; k++) {
    const int i = two ? two[k] : k;
    tws_rhythm_stage *stage = stage_of(e, line, i);
    const double own = next_of(e, line, i)->time.other;
    if (!two && stage->messages_s > stage->compute_s) { /* one channel with messages */
      if (account_of(e, line, i)) tws_rhythm_gap(stage, stage->compute_s, stage->messages_s);
      stage->compute_s = stage->messages_s;
    }
    if (stage->compute_s > met) met = stage->compute_s;
    if (own > seconds) seconds = own;
  }
  for (int k = 0; k < count; k++) {
    const int i = two ? two[k] : k;
    tws_composed_account *account = account_of(e, line, i);
    if (account) account->bubble_s += met - stage_of(e, line, i)->compute_s;
    if (account) account->axis_exposed_s[TWS_AXIS_PIPE] += seconds;
    stage_of(e, line, i)->compute_s = met + seconds;
    e->at[line * e->stages + i]++;
  }
}

/* Returns whether stages of the line met. */
static int meet_stages(const ending *e, int line) {
  int all = e->stages > 1, tied[2], tied_count = 0;
  for (int i = 0; i < e->stages; i++) {
    const tws_tail_step *next = next_of(e, line, i);
    const int sync = next ? next->sync : TWS_TAIL_ALONE;
    all &= sync == TWS_TAIL_STAGES;
    if (sync == TWS_TAIL_TIED && tied_count < 2) tied[tied_count++] = i;
  }
  if (tied_count < 2 && !all) return 0;
  join_stages(e, line, tied_count == 2 ? tied : NULL);
  return 1;
}

static double last_end(const ending *e) {
  double last = 0;
  for (int line = 0; line < e->ranks->line_count; line++)
    for (int i = 0; i < e->stages; i++) {
      const tws_rhythm_stage *stage = stage_of(e, line, i);
      if (next_of(e, line, i)) return -1;
      if (stage->compute_s > last) last = stage->compute_s;
      if (stage->messages_s > last) last = stage->messages_s;
    }
  return last;
}

double tws_step_end_lines(step *s, tws_composed_account *account) {
  const tws_rank_kind *ranks = s->ranks;
  const int all = s->shape.stages * ranks->line_count;
  const ending e = {.s = s,
                    .ranks = ranks,
                    .stages = s->shape.stages,
                    .at = s->line_at,
                    .joined = s->line_joined,
                    .account = account};
  for (int i = 0; i < all; i++) {
    e.at[i] = e.joined[i] = 0;
    s->of_lines[i].compute_s = s->end_s[0][i];
    s->of_lines[i].messages_s = s->end_s[1][i];
  }
  for (int moved = 1; moved;) {
    moved = 0;
    for (int line = 0; line < ranks->line_count; line++)
      for (int i = 0; i < s->shape.stages; i++) moved |= go_on(&e, line, i) | join_lines(&e, line, i);
    for (int line = 0; line < ranks->line_count; line++) moved |= meet_stages(&e, line);
  }
  return last_end(&e);
}
