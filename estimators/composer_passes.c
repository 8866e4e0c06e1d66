/* Composed passes of pipelines: stages meet in the rhythm of few micro-batches, and the rest repeats. */
#include <string.h>

#include "estimators/composer_step.h"
#include "plan/fold.h"
#include "plan/pipeline_grid.h"

static tws_code no_memory(tws_error *err) {
  return tws_fail(err, TWS_MEMORY, NULL, "no memory for composed steps");
}

static tws_code find_programs(tws_composer *c, const tws_pipeline_shape *shape, const tws_pipeline_program **out,
                              tws_error *err) {
  enum { KEPT_BYTES = 48 << 20 };
  for (tws_kept_programs *p = c->programs; p; p = p->next)
    if (p->shape.kind == shape->kind && p->shape.stages == shape->stages &&
        p->shape.virtual_stages == shape->virtual_stages && p->shape.micro_batches == shape->micro_batches) {
      *out = p->stage;
      return TWS_OK;
    }
  if (c->program_bytes > KEPT_BYTES) {
    tws_arena_destroy(c->program_arena);
    c->program_arena = tws_arena_create();
    c->programs = NULL;
    c->program_bytes = 0;
    if (!c->program_arena) return no_memory(err);
  }
  tws_kept_programs *p = tws_arena_alloc(c->program_arena, 1, sizeof *p);
  tws_pipeline_program *stage = tws_arena_alloc(c->program_arena, (size_t)shape->stages, sizeof *stage);
  if (!p || !stage) return no_memory(err);
  TWS_TRY(tws_pipeline_programs_make(shape, c->program_arena, stage, err));
  for (int s = 0; s < shape->stages; s++) c->program_bytes += stage[s].count * sizeof *stage[s].events;
  *p = (tws_kept_programs){*shape, stage, c->programs};
  c->programs = p;
  *out = stage;
  return TWS_OK;
}

static double message_of_lines(void *user, int line, int stage, int peer, uint64_t bytes) {
  const tws_composed_step *s = user;
  const tws_topology *t = &s->request->topology;
  const int rank = s->lines[line].rank;
  return s->c->costs.message(s->c->costs.user, t, tws_pipeline_grid_stage(t, rank, stage),
                             tws_pipeline_grid_stage(t, rank, peer), bytes);
}

static double message_of(void *user, int line, int stage, int peer, uint64_t bytes) {
  const tws_composed_step *s = user;
  const tws_topology *t = &s->request->topology;
  (void)line;
  tws_leg *known = s->c->legs + (size_t)stage * TWS_LEGS;
  int at = 0;
  for (; at < TWS_LEGS && known[at].bytes; at++)
    if (known[at].peer == peer && known[at].bytes == bytes) return known[at].seconds;
  const double seconds = s->c->costs.message(s->c->costs.user, t, tws_pipeline_grid_stage(t, s->rank, stage),
                                             tws_pipeline_grid_stage(t, s->rank, peer), bytes);
  if (at < TWS_LEGS) known[at] = (tws_leg){peer, bytes, seconds};
  return seconds;
}

tws_code tws_step_make_stages(tws_composed_step *s, const tws_chunk_set *set, const double *stretch, int apart,
                              tws_rhythm_stage *stages, tws_error *err) {
  const int v = s->tails->stage[0].chunk_count;
  for (int stage = 0; stage < s->shape.stages; stage++) {
    const tws_chunk_times **list = tws_arena_alloc(s->arena, (size_t)v, sizeof *list);
    if (!list) return no_memory(err);
    for (int i = 0; i < v; i++) {
      const int at = stage * v + i;
      for (int before = 0; before < at && !list[i]; before++) /* most are as others are */
        if (set->chunk_at[before] == set->chunk_at[at] && stretch[before / v] == stretch[stage])
          list[i] = before / v == stage ? list[before % v] : stages[before / v].chunks[before % v];
      if (list[i]) continue;
      tws_chunk_times *times = tws_arena_alloc_unset(s->arena, 1, sizeof *times);
      if (!times) return no_memory(err);
      if (!tws_chunk_times_of(&set->chunks[set->chunk_at[at]], stretch[stage], apart, s->arena, times))
        return no_memory(err);
      list[i] = times;
    }
    stages[stage].chunks = list;
    stages[stage].gradient_bytes = (int64_t)s->tails->stage[stage].gradient_bytes;
  }
  return TWS_OK;
}

tws_code tws_step_make_times(tws_composed_step *s, tws_error *err) {
  const tws_chunk_set own = {.chunks = s->chunks, .chunk_at = s->chunk_at};
  return tws_step_make_stages(s, &own, s->stretch, 0, s->stages, err);
}

tws_code tws_step_rhythm(tws_composed_step *s, int64_t micro_batches, tws_pipeline_shape *shape, tws_rhythm *r,
                         tws_error *err) {
  *shape = s->shape;
  shape->micro_batches = (int)micro_batches;
  if (s->c->legs_of != s->rank) memset(s->c->legs, 0, (size_t)s->shape.stages * TWS_LEGS * sizeof *s->c->legs);
  s->c->legs_of = s->rank;
  *r = (tws_rhythm){.shape = shape,
                    .stages = tws_step_passing(s) ? s->of_lines : s->stages,
                    .lines = tws_step_passing(s),
                    .groups = &s->groups,
                    .serial = s->c->costs.serial,
                    .message = tws_step_passing(s) ? message_of_lines : message_of,
                    .user = s,
                    .orders = s->c->orders};
  return find_programs(s->c, shape, &r->programs, err);
}

void tws_step_run_alone(tws_composed_step *s) {
  const tws_chunk_pieces *p = &s->chunks[0].pieces;
  const int64_t gradients = s->bounded ? 0 : (int64_t)s->tails->stage[0].gradient_bytes;
  double seconds = 0;
  int64_t peak = 0, begun = 0;
  for (int later = 0; later < 2; later++) {
    const double times = later ? s->shape.micro_batches - 1 : 1;
    if (later && times < 1) break;
    int64_t alive = 0;
    for (int e = 0; e < TWS_CONTEXT_EVENTS; e++) {
      if (!p->has[e]) continue;
      const tws_piece *piece = &p->event[later][e];
      seconds += times * (s->stretch[0] * piece->time.kernel + piece->time.other);
      if (alive + begun + piece->before > peak) peak = alive + begun + piece->before;
      if (piece->begins) begun = gradients;
      if (alive + begun + piece->after > peak) peak = alive + begun + piece->after;
      alive += piece->delta;
    }
  }
  s->stages[0].compute_s = seconds;
  s->stages[0].messages_s = 0;
  s->stages[0].peak = peak;
  s->stages[0].held = begun;
}

int64_t tws_step_few(const tws_pipeline_shape *shape) {
  enum { FEW_ALONE = 7 }; /* without a pipeline */
  if (shape->stages == 1) return FEW_ALONE;
  const int64_t every = tws_fold_step(shape);
  const int64_t in_flight = tws_pipeline_in_flight(shape, 0) / (uint32_t)shape->virtual_stages + 1;
  return (5 * in_flight / 2 + 2 * every + 4) / every * every + shape->micro_batches % every;
}

static int clocks_of(const tws_composed_step *s) {
  return s->shape.stages * (tws_step_passing(s) ? s->together : 1);
}

/* Where the rhythm ended, before what ends the step goes on from there; in one queue what computes is behind the last
 * message. */
static void keep_passes(tws_composed_step *s) {
  for (int i = 0; i < clocks_of(s); i++) {
    const tws_rhythm_stage *stage = tws_step_passing(s) ? &s->of_lines[i] : &s->stages[i];
    const int behind = s->c->costs.serial && stage->messages_s > stage->compute_s;
    s->passed_s[0][i] = behind ? stage->messages_s : stage->compute_s;
    s->passed_s[1][i] = stage->messages_s;
  }
}

/* So much later. */
static void end_passes(tws_composed_step *s, double more_s) {
  for (int k = 0; k < 2; k++)
    for (int i = 0; i < clocks_of(s); i++) s->end_s[k][i] = s->passed_s[k][i] + more_s;
}

void tws_step_passed(tws_composed_step *s) {
  keep_passes(s);
  end_passes(s, 0);
}

/* So many micro-batches of the step, and what each stage takes for all of them where these tell; *told: they do. */
static tws_code measure(tws_composed_step *s, int64_t micro_batches, int64_t round, int *told, tws_error *err) {
  const int64_t more = s->shape.micro_batches - micro_batches, step_of = tws_fold_step(&s->shape);
  tws_pipeline_shape shape;
  tws_rhythm r;
  TWS_TRY(tws_step_rhythm(s, micro_batches, &shape, &r, err));
  if (more && more % step_of == 0) r.may_repeat[0] = (int)step_of;
  if (more && more % round == 0) r.may_repeat[r.may_repeat[0] > 0] = (int)round;
  if (s->times_of == micro_batches && r.may_repeat[0] == s->repeats) { /* another step begins like this one */
    r.repeats = s->repeats;
    r.repeats_s = s->repeats_s;
  } else {
    s->times_of = 0;
    TWS_TRY(tws_rhythm_run(&r, err));
    keep_passes(s);
    s->c->counts.rhythms++;
    s->repeats = r.repeats;
    s->repeats_s = r.repeats_s;
    s->times_of = r.repeats ? micro_batches : 0;
  }
  *told = !more || r.repeats;
  const double more_s = r.repeats ? (double)(more / r.repeats) * r.repeats_s : 0;
  end_passes(s, more_s);
  return TWS_OK;
}

tws_code tws_step_run_passes(tws_composed_step *s, tws_error *err) {
  static const int further[] = {0, 2, 6, 14};
  const tws_pipeline_shape shape = s->shape;
  const int64_t wanted = shape.micro_batches, round = tws_fold_round(&shape), every = tws_fold_step(&shape);
  const int64_t few = tws_step_few(&shape);
  int told = 0;
  for (size_t i = 0; i < sizeof further / sizeof *further && shape.kind != TWS_PIPELINE_GPIPE && !told; i++) {
    const int64_t aligned = further[i] ? (few / round + further[i]) * round + wanted % round : few;
    if (aligned + (further[i] ? round : every) >= wanted) break;
    TWS_TRY(measure(s, aligned, round, &told, err));
  }
  return told ? TWS_OK : measure(s, wanted, round, &told, err);
}
