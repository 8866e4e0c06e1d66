/* Ranks of one stage that differ, where none of their lines is what all others wait for: as in a ring of sequence
 * ranks, which do other pieces of equal work. All lines go through the step at once. In the passes each rank goes from
 * one collective that it shares with ranks of other lines to the next, and all of these go on from when the last has
 * come; likewise behind the passes. */
#include <math.h>
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

/* Gathers beside the update stand behind all else, each met by others, and wait for that alone since these were last
 * met. */
static int knows_gathers(step *s, const tws_rank_kind *ranks, const tws_tail_pieces *own) {
  const tws_tail_pieces *first = tws_step_line_tail(s, 0, 0);
  const int count = tws_gathers_beside(own), from = own->step_count - count;
  if (count != tws_gathers_beside(first) || from < 0) return 0;
  for (int i = 0; i < count; i++) {
    const tws_tail_gather *g = &own->gathers[i];
    const tws_piece_time *update = from ? &own->steps[from - 1].time : NULL;
    const double behind = g->behind.kernel + g->behind.other;
    if (own->steps[from + i].sync || !own->steps[from + i].meets || g->meets != first->gathers[i].meets) return 0;
    if (behind > 0 && (!update || behind > (update->kernel + update->other) * (1 + 1e-12))) return 0;
    if (!tws_step_add_groups(s, ranks, g->meets)) return 0;
  }
  return 1;
}

/* Reductions beside the last pass: the end computes nothing before its step, and waits at places in that. */
static int knows_reductions(step *s, const tws_rank_kind *ranks, int line) {
  const tws_tail_pieces *own = tws_step_line_tail(s, 0, line), *first = tws_step_line_tail(s, 0, 0);
  double seconds = 0;
  if (!own->overlaps) return 1;
  if (s->shape.stages > 1 || !own->overlapped || own->overlapped->count != first->overlapped->count) return 0;
  for (int i = 0; i < own->step_count - own->gather_count; i++)
    seconds += own->steps[i].time.kernel + own->steps[i].time.other;
  const double step_s = own->step_time.kernel + own->step_time.other;
  if (seconds > step_s * (1 + 1e-12) || seconds < step_s * (1 - 1e-12)) return 0;
  for (uint32_t i = 0; i < own->overlapped->count; i++) {
    const tws_axes meets = own->overlapped->meets[i];
    if (meets != first->overlapped->meets[i] || (meets && !tws_step_add_groups(s, ranks, meets))) return 0;
  }
  return 1;
}

/* Likewise where all operations are run. */
static int is_known_run(const step *s, int stage, int line) {
  const tws_end_run *run = s->run;
  const tws_overlapped *o = tws_step_line_tail(s, stage, line)->overlapped;
  return run->run && run->ranks[line * s->shape.stages + stage].reductions == (o ? o->count : 0);
}

/* Lines may do other things between the same meetings. */
static int is_known_end(step *s, const tws_rank_kind *ranks, int stage, int line) {
  const tws_tail_pieces *own = tws_step_line_tail(s, stage, line);
  if (s->run) return is_known_run(s, stage, line);
  if (!own->exact || (own->in_step && s->shape.stages > 1)) return 0;
  if (!knows_reductions(s, ranks, line) || !knows_gathers(s, ranks, own)) return 0;
  for (int i = 0; i < own->step_count; i++) {
    const int skipped = own->overlaps && i == own->reduced_step;
    if (own->steps[i].ends.count) return 0;
    if (!own->steps[i].meets || own->steps[i].sync || skipped) continue;
    if (!tws_step_add_groups(s, ranks, own->steps[i].meets)) return 0;
  }
  return 1;
}

/* Whether the passes of one line are known, and are those of all. */
static int pass_alike(const step *s) {
  for (int i = 0; i < s->chunk_count; i++)
    if (!s->chunks[i].exact || (s->chunks[i].exchanges && s->chunks[i].far)) return 0;
  for (int i = s->shape.stages; i < s->shape.stages * s->ranks->line_count; i++) {
    const double first = tws_step_line_stretch(s, 0)[i % s->shape.stages];
    if (fabs(tws_step_line_stretch(s, i / s->shape.stages)[i % s->shape.stages] - first) > 0) return 0;
  }
  return 1;
}

int tws_step_can_go_together(step *s, const tws_rank_kind *ranks) {
  if (s->together_of == s->tails) return s->can_together;
  s->together_of = s->tails;
  s->can_together = 0;
  s->groups.count = 0;
  if (ranks->line_count > TWS_MOST_LINES || (s->shape.stages > 1 && s->bounded)) return 0;
  for (int i = 0; i < s->shape.stages; i++)
    if (s->tails->stage[i].other_count != ranks->line_count - 1) return 0;
  if (s->shape.stages == 1 && !tws_step_knows_lines(s, ranks)) return 0;
  if (s->shape.stages > 1 && !ranks->pass_apart && !pass_alike(s)) return 0;
  for (int line = 0; line < ranks->line_count; line++) {
    if (s->shape.stages > 1 && ranks->pass_apart && !is_known_line(s, ranks, line)) return 0;
    for (int i = 0; i < s->shape.stages; i++)
      if (!is_known_end(s, ranks, i, line)) return 0;
  }
  return s->can_together = 1;
}

/* ---- passes ---- */

tws_code tws_step_make_lines(step *s, const tws_rank_kind *ranks, tws_error *err) {
  const size_t stages = (size_t)s->shape.stages, all = stages * (size_t)ranks->line_count;
  int same = s->of_lines != NULL;
  if (!s->of_lines) {
    s->of_lines = tws_arena_alloc(s->arena, all, sizeof *s->of_lines);
    s->stretched_lines = tws_arena_alloc(s->arena, all, sizeof *s->stretched_lines);
    s->line_at = tws_arena_alloc(s->arena, all, sizeof *s->line_at);
    s->line_joined = tws_arena_alloc(s->arena, all, sizeof *s->line_joined);
    s->ended_lines = tws_arena_alloc(s->arena, all, sizeof *s->ended_lines);
    s->end_starts = tws_arena_alloc(s->arena, all, sizeof *s->end_starts);
    s->line_ended_s = tws_arena_alloc(s->arena, all, sizeof *s->line_ended_s);
    if (!s->end_starts || !s->line_ended_s) return tws_fail(err, TWS_MEMORY, NULL, "no memory for composed steps");
    if (!s->of_lines || !s->stretched_lines || !s->line_at || !s->line_joined || !s->ended_lines)
      return tws_fail(err, TWS_MEMORY, NULL, "no memory for composed steps");
  }
  for (int line = 0; line < ranks->line_count; line++) {
    const double *stretch = tws_step_line_stretch(s, line);
    double *made = s->stretched_lines + (size_t)line * stages;
    if (*made > 0 && memcmp(made, stretch, stages * sizeof *made) == 0) continue;
    same = 0;
    if (stages > 1 && ranks->pass_apart)
      TWS_TRY(tws_step_make_stages(s, tws_step_line_chunks(s, ranks, line), stretch, 1,
                                   s->of_lines + (size_t)line * stages, err));
    memcpy(made, stretch, stages * sizeof *made);
  }
  if (stages == 1) same &= s->walked == s->tails;
  if (!same) s->ran = 0;
  if (!same) s->times_of = 0;
  s->walked = s->tails;
  return TWS_OK;
}
