/* Ranks whose groups lie unevenly on nodes gather and reduce for ZeRO 2 and 3 between the layers, some slower than
 * others, and wait for those that they do it with. All lines of them go from one of that to the next at once. Where
 * they meet in the layers, too, they may take longer. */
#include <math.h>

#include "estimators/composer_step.h"

typedef tws_composed_step step;

typedef struct lines {
  step *s;
  const tws_rank_kind *ranks;
  tws_moves_in_line (*of)[TWS_BESIDE_KINDS]; /* [line] */
  double *now;                               /* per line */
} lines;

/* The moves of all lines, kind by kind; 0: they are not known, or not the same. */
static int list_moves(lines *l, int kinds, tws_arena *arena) {
  step *s = l->s;
  for (int line = 0; line < l->ranks->line_count; line++) {
    const tws_tail_pieces *t = tws_step_line_tail(s, 0, line);
    const tws_chunk_set *set = tws_step_line_chunks(s, l->ranks, line);
    if (!t->moves_exact || !t->beside || !t->beside->in_line || t->beside->kinds != kinds) return 0;
    const tws_beside_source from = {.memory = s->c->beside,
                                    .moves = t->beside,
                                    .chunk = &set->chunks[set->chunk_at[0]],
                                    .body = set->body_of[set->chunk_at[0]],
                                    .arena = s->c->arena};
    if (from.chunk->exchanges || !from.chunk->in_order) return 0;
    for (int kind = 0; kind < kinds; kind++) {
      tws_moves_in_line *own = &l->of[line][kind];
      if (!tws_beside_list_moves(&from, kind, tws_step_line_stretch(s, line)[0], arena, own)) return 0;
      if (own->count != l->of[0][kind].count) return 0;
      for (size_t i = 0; i < own->count; i++) {
        const tws_axes meets = own->items[i].meets;
        if (meets != l->of[0][kind].items[i].meets) return 0;
        if (meets && !tws_step_add_groups(s, l->ranks, meets)) return 0;
      }
    }
  }
  return 1;
}

/* They all begin when the last of a group has come. */
static void meet(const lines *l, tws_axes axes) {
  const uint8_t *of = tws_lines_along(&l->s->groups, axes);
  const int count = l->ranks->line_count;
  for (int i = 0; i < count; i++) l->now[of[i]] = fmax(l->now[of[i]], l->now[i]);
  for (int i = 0; i < count; i++) l->now[i] = l->now[of[i]];
}

static void go_through(const lines *l, int kind) {
  const int count = l->ranks->line_count;
  for (size_t i = 0; i <= l->of[0][kind].count; i++) {
    const int ends = i == l->of[0][kind].count;
    for (int line = 0; line < count; line++) {
      const tws_moves_in_line *own = &l->of[line][kind];
      const double from = i ? own->items[i - 1].computed_s : 0;
      l->now[line] += (ends ? own->computed_s : own->items[i].computed_s) - from;
    }
    if (ends) return;
    if (l->of[0][kind].items[i].meets) meet(l, l->of[0][kind].items[i].meets);
    for (int line = 0; line < count; line++) l->now[line] += l->of[line][kind].items[i].seconds;
  }
}

/* All micro-batches: from one on that takes all lines as long as the one before, the others do. */
static void go_through_all(const lines *l, int kinds, double *before) {
  const int64_t all = l->s->shape.micro_batches, alone = kinds > 2;
  const int count = l->ranks->line_count;
  for (int64_t i = 0; i < all; i++) {
    const int is_last = alone && i + 1 == all;
    for (int line = 0; line < count; line++) before[line] = l->now[line];
    go_through(l, i > 0 ? is_last ? TWS_BESIDE_LAST : TWS_BESIDE_LATER : is_last ? TWS_BESIDE_ONLY : TWS_BESIDE_FIRST);
    double least = INFINITY, most = 0;
    for (int line = 0; line < count; line++) {
      least = fmin(least, l->now[line] - before[line]);
      most = fmax(most, l->now[line] - before[line]);
    }
    const int64_t more = all - alone - i - 1;
    if (i == 0 || more <= 0 || most - least > 1e-13 * most) continue;
    for (int line = 0; line < count; line++) l->now[line] += (double)more * least;
    i += more;
  }
}

static double end_of(const lines *l) {
  double last = 0;
  for (int line = 0; line < l->ranks->line_count; line++) {
    const tws_tail_pieces *t = tws_step_line_tail(l->s, 0, line);
    const double stretch = tws_step_line_stretch(l->s, line)[0];
    double end = l->now[line];
    for (int i = 0; i < t->step_count; i++) end += stretch * t->steps[i].time.kernel + t->steps[i].time.other;
    last = fmax(last, end);
  }
  return last;
}

double tws_step_meet_in_moves(step *s, const tws_rank_kind *ranks) {
  const int count = ranks->line_count;
  if (!s->bounded || !ranks->uneven || s->shape.stages > 1 || s->tails->stage[0].other_count != count - 1) return 0;
  s->groups.count = 0;
  tws_arena *arena = tws_arena_create();
  double *now = arena ? tws_arena_alloc(arena, 2 * (size_t)count, sizeof *now) : NULL, seconds = 0;
  lines l = {.s = s, .ranks = ranks, .now = now};
  l.of = arena ? tws_arena_alloc(arena, (size_t)count, sizeof *l.of) : NULL;
  const tws_beside_moves *moves = s->tails->stage[0].beside;
  if (now && l.of && moves && list_moves(&l, moves->kinds, arena)) {
    go_through_all(&l, moves->kinds, now + count);
    seconds = end_of(&l);
  }
  tws_arena_destroy(arena);
  return seconds;
}
