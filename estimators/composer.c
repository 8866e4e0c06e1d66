#include "estimators/composer_step.h"

#include <math.h>
#include <string.h>

#include "estimators/chunks.h"
#include "models/hardware/runtime.h"
#include "plan/pipeline_grid.h"

typedef tws_composed_step step;

/* ---- what is kept ---- */

static tws_code no_memory(tws_error *err) {
  return tws_fail(err, TWS_MEMORY, NULL, "no memory for composed steps");
}

static double work_seconds(void *user, const tws_plan *plan, uint32_t work) {
  return tws_plan_work_seconds(plan, work, user, 1);
}

static double message_seconds(void *user, const tws_topology *topology, int rank, int peer, uint64_t bytes) {
  return tws_message_seconds(topology, rank, peer, bytes, user);
}

static double host_launches(void *user, const tws_work *work) {
  return tws_profile_host_launches(((const tws_machine *)user)->profile, work);
}

tws_code tws_composer_create(const tws_machine *machine, const tws_costs *others, tws_composer **out, tws_error *err) {
  tws_composer *c = tws_calloc(1, sizeof *c);
  *out = c;
  if (c) c->arena = tws_arena_create();
  if (c) c->program_arena = tws_arena_create();
  if (c) c->memory = tws_sample_memory_create();
  if (c) c->orders = tws_rhythm_orders_create();
  if (c) c->beside = tws_beside_memory_create();
  if (!c || !c->beside || !c->arena || !c->program_arena || !c->memory || !c->orders) {
    tws_composer_destroy(c);
    *out = NULL;
    return no_memory(err);
  }
  c->machine = machine;
  c->costs = others ? *others
                    : (tws_costs){.work = work_seconds,
                                  .message = message_seconds,
                                  .launches = host_launches,
                                  .host_op_s = tws_profile_host_op_s(machine->profile),
                                  .in_turns = tws_profile_issues_in_turns(machine->profile),
                                  .serial = tws_profile_serial_streams(machine->profile),
                                  .user = (void *)(uintptr_t)machine};
  c->ends = (tws_ends){.costs = &c->costs,
                       .arena = c->arena,
                       .memory = c->memory,
                       .moves = {.costs = &c->costs, .arena = c->arena, .memory = c->memory}};
  return TWS_OK;
}

void tws_composer_destroy(tws_composer *c) {
  if (!c) return;
  tws_piece_table_free(&c->bodies);
  tws_piece_table_free(&c->repeats);
  tws_piece_table_free(&c->between);
  tws_ends_free(&c->ends);
  tws_arena_destroy(c->last.arena);
  tws_arena_destroy(c->last.ends_arena);
  tws_free(c->legs);
  tws_free(c->ended);
  tws_free(c->met_s);
  tws_free(c->joined.stage);
  tws_free(c->joined_steps);
  tws_free(c->line_stretch);
  tws_arena_destroy(c->arena);
  tws_arena_destroy(c->program_arena);
  tws_sample_memory_destroy(c->memory);
  tws_rhythm_orders_destroy(c->orders);
  tws_beside_memory_destroy(c->beside);
  tws_free(c);
}

tws_composer_counts tws_composer_count(const tws_composer *c) {
  tws_composer_counts counts = c->counts;
  counts.tails = c->ends.lowered + c->ends.moves.count;
  return counts;
}

size_t tws_composer_bytes(const tws_composer *c) {
  return tws_arena_bytes(c->arena) + tws_arena_bytes(c->program_arena) + c->ends.run_bytes;
}

/* ---- a step ---- */

/* NULL: no memory. */
static const tws_fewer_layers *find_fewer(tws_composer *c, const tws_network *network, const tws_tail_pieces *t) {
  tws_kept_fewer *f = c->fewer;
  while (f && (f->network != network || f->alike_first != t->alike_first || f->alike_end != t->alike_end)) f = f->next;
  if (f) return &f->layers;
  f = tws_arena_alloc(c->arena, 1, sizeof *f);
  if (!f) return NULL;
  *f = (tws_kept_fewer){network, t->alike_first, t->alike_end, tws_fewer_layers_of(network, t, c->arena), c->fewer};
  c->fewer = f;
  return &f->layers;
}

/* What a rank of each stage is sampled for. */
typedef struct stage_source {
  tws_plan_request request;
  tws_body *body;
  tws_axes apart;
  int zero_stage; /* see tws_chunk_source */
} stage_source;

static tws_code find_chunks(const step *s, const stage_source *sources, int split, tws_chunk_set *set, tws_error *err) {
  const int stages = s->shape.stages, v = s->tails->stage[0].chunk_count;
  *set = (tws_chunk_set){.chunks = tws_arena_alloc_unset(s->arena, (size_t)(stages * v), sizeof *set->chunks),
                         .body_of = tws_arena_alloc(s->arena, (size_t)(stages * v), sizeof *set->body_of),
                         .chunk_at = tws_arena_alloc(s->arena, (size_t)(stages * v), sizeof *set->chunk_at),
                         .exact = 1,
                         .closed = 1,
                         .in_order = 1};
  const tws_fewer_layers *less = find_fewer(s->c, s->request->network, &s->tails->stage[0]);
  if (!set->chunks || !set->body_of || !set->chunk_at || !less) return no_memory(err);
  for (int i = 0; i < stages * v; i++) {
    const stage_source *source = &sources[i / v];
    const tws_tail_pieces *t = &s->tails->stage[i / v];
    const tws_sample_chunk *wanted = &t->chunks[i % v];
    tws_layer_range of = {.first = wanted->first_layer, .end = wanted->end_layer};
    const int inside = of.first > t->alike_first && of.end <= t->alike_end;
    if (inside)
      of = (tws_layer_range){.first = t->alike_first + 1,
                             .end = t->alike_first + 1 + of.end - of.first}; /* stands anywhere */
    int at = 0;
    while (at < set->chunk_count && (set->chunks[at].of.first != of.first || set->chunks[at].of.end != of.end ||
                                     set->body_of[at] != source->body))
      at++;
    if (inside && of.end > t->alike_end) return tws_fail(err, TWS_INTERNAL, NULL, "a chunk is longer than its layers");
    if (at == set->chunk_count) {
      set->chunks[at].of = of;
      set->body_of[at] = source->body;
      const tws_chunk_source from = {.request = &source->request,
                                     .costs = &s->c->costs,
                                     .arena = s->c->arena,
                                     .body = source->body,
                                     .memory = s->c->memory,
                                     .fewer = less,
                                     .layers = t,
                                     .apart = source->apart,
                                     .zero_stage = source->zero_stage,
                                     .split = split,
                                     .bounded = s->bounded,
                                     .lowered = &s->c->counts.bodies};
      TWS_TRY(tws_chunk_compose(&from, &set->chunks[at], err));
      set->exact &= set->chunks[at].exact;
      set->closed &= set->chunks[at].closed;
      set->in_order &= set->chunks[at].in_order;
      set->chunk_count++;
    }
    set->chunk_at[i] = at;
  }
  return TWS_OK;
}

static void add_piece(const tws_piece *p, double times, double *kernel, double *launches) {
  *kernel += times * p->time.kernel;
  *launches += times * p->launches;
}

double tws_step_stretch(const step *s, const tws_chunk_set *of, const tws_tail_pieces *t, int stage) {
  const int v = s->tails->stage[stage].chunk_count;
  double kernel = t->counted.kernel, launches = t->launches;
  if (!(s->c->costs.host_op_s > 0)) return 1;
  for (int i = 0; i < v; i++) {
    const tws_chunk_pieces *p = &of->chunks[of->chunk_at[stage * v + i]].pieces;
    for (int e = 0; e < TWS_CONTEXT_EVENTS; e++) {
      if (!p->has[e]) continue;
      add_piece(&p->event[0][e], 1, &kernel, &launches);
      add_piece(&p->event[1][e], s->shape.micro_batches - 1, &kernel, &launches);
    }
  }
  for (int later = 0; later < 2 && (s->moves_exact || s->beside || s->together); later++) {
    const double times = later ? s->shape.micro_batches - 1 : 1;
    kernel += times * t->moves[later].kernel;
    launches += times * t->move_launches[later];
  }
  const double host = launches * s->c->costs.host_op_s;
  return tws_host_stretch(kernel, host, s->c->costs.in_turns);
}

/* ---- the end of a step ---- */

static tws_beside_source beside_source(const step *s) {
  return (tws_beside_source){.memory = s->c->beside,
                             .moves = s->bounded ? s->joined->stage[0].beside : tws_beside_nothing(),
                             .chunk = &s->chunks[0],
                             .body = s->body_of_chunks,
                             .arena = s->c->arena};
}

/* Of the last micro-batch, for exchanges. */
static int find_waits(const step *s, tws_beside_waits *out) {
  const tws_beside_source from = beside_source(s);
  return tws_beside_waits_of(&from, s->shape.micro_batches > 1, s->stretch[0], out);
}

/* By how much what runs beside the end of a step changes it; at least, where it is not known when gradients are there.
 */
static double beside_tail(const step *s, int exact) {
  const tws_tail_pieces *t = &s->joined->stage[0];
  const int later = s->shape.micro_batches > 1;
  if (t->in_step) return tws_overlap_gathered(t, s->stretch[0]);
  if (!t->overlapped) return 0;
  const double gathered_s = tws_overlap_gathered(t, s->stretch[0]);
  tws_beside_waits waits;
  const int waiting = exact && s->beside;
  if (waiting && !find_waits(s, &waits)) return -INFINITY;
  if (!exact) return gathered_s;
  return gathered_s + tws_overlap_waited(t, s->overlap, waiting ? &waits : NULL, later, s->stretch[0], s->c->ended);
}

static double run_tails(step *s, tws_composed_account *account) {
  const tws_tails_run run = {.stages = s->stages,
                             .stretch = s->stretch,
                             .end_s = {s->end_s[0], s->end_s[1]},
                             .at = s->at,
                             .met = s->met,
                             .met_s = s->c->met_s,
                             .account = account};
  return tws_tails_go(s->joined, &run);
}

/* ---- bounds of seconds ---- */

/* Gathers and reductions of every micro-batch, which share a channel: beside what computes, or between. That a
 * collective of all parts is no slower than several of some is what this rests on. */
static double with_moves(const step *s, double seconds) {
  const tws_tail_pieces *t = &s->joined->stage[0];
  const double moves = s->bounded ? s->shape.micro_batches * t->moves_s : 0;
  if (s->moves_exact) {
    for (int later = 0; later < 2; later++)
      seconds +=
          (later ? s->shape.micro_batches - 1 : 1) * (s->stretch[0] * t->moves[later].kernel + t->moves[later].other);
    return seconds;
  }
  const int beside = s->request->config->zero.overlap_comm && !s->c->costs.serial;
  return !beside ? seconds + moves : moves > seconds ? moves : seconds;
}

/* From the first of these points on, or until the last: what a pass does that others wait for; all of it where there is
 * none. */
static double seconds_from(const tws_piece *p, double stretch, tws_point_kind kind) {
  int i = 0;
  while (i < p->point_count && p->points[i].kind != kind) i++;
  const double all = stretch * p->time.kernel + p->time.other;
  return i < p->point_count ? all - stretch * p->points[i].at.kernel - p->points[i].at.other : all;
}

static double seconds_until(const tws_piece *p, double stretch, tws_point_kind kind) {
  int i = p->point_count - 1;
  while (i >= 0 && p->points[i].kind != kind) i--;
  const tws_piece_time *at = i >= 0 ? &p->points[i].at : &p->time;
  return stretch * at->kernel + at->other;
}

/* No stage begins before the first micro-batch has come to it, nor ends before the last has gone back to the first. */
static double bound_seconds(const step *s) {
  const int v = s->tails->stage[0].chunk_count;
  double before = 0, behind = 0, longest = 0;
  for (int i = 0; i < s->shape.stages; i++) {
    double busy = 0;
    for (int k = 0; k < v; k++) {
      const tws_chunk_pieces *p = &s->chunks[s->chunk_at[i * v + k]].pieces;
      for (int e = 0; e < TWS_CONTEXT_EVENTS; e++) {
        if (!p->has[e]) continue;
        const tws_piece_time *first = &p->event[0][e].time, *other = &p->event[1][e].time;
        busy += s->stretch[i] * first->kernel + first->other +
                (s->shape.micro_batches - 1) * (s->stretch[i] * other->kernel + other->other);
      }
    }
    const double all = before + busy + behind;
    const tws_tail_pieces *t = &s->joined->stage[i];
    double end = 0;
    for (int k = 0; k < t->step_count; k++) end += s->stretch[i] * t->steps[k].time.kernel + t->steps[k].time.other;
    if (before + busy + end > longest) longest = before + busy + end;
    if (all > longest) longest = all;
    const tws_chunk_pieces *p = &s->chunks[s->chunk_at[i * v]].pieces;
    before += seconds_until(&p->event[0][TWS_CONTEXT_FORWARD], s->stretch[i], TWS_POINT_WRITTEN);
    if (s->shape.kind == TWS_PIPELINE_ZB_H1) continue; /* weights' gradients may come later */
    const tws_piece *g = &p->event[s->shape.micro_batches > 1][TWS_CONTEXT_BACKWARD];
    behind += seconds_from(g, s->stretch[i], TWS_POINT_WAIT);
  }
  return with_moves(s, longest) + beside_tail(s, 0);
}

static int same_chunks(const tws_step_ends *a, const tws_step_ends *b) {
  if (a == b) return 1;
  if (a->stages != b->stages) return 0;
  for (int i = 0; i < a->stages; i++) {
    const tws_tail_pieces *x = &a->stage[i], *y = &b->stage[i];
    if (x->chunk_count != y->chunk_count || x->gradient_bytes != y->gradient_bytes ||
        memcmp(x->chunks, y->chunks, (size_t)x->chunk_count * sizeof *x->chunks) != 0)
      return 0;
  }
  return 1;
}

/* Whether a step is like the last but for its number of micro-batches. */
static int same_stages(const step *s, const tws_plan_request *request, const tws_pipeline_shape *shape) {
  return s->shape.kind == shape->kind && s->shape.stages == shape->stages &&
         s->shape.virtual_stages == shape->virtual_stages && tws_topology_is_same(&s->topology, &request->topology);
}

/* Whether the same ranks count, and differ in as much. */
static int same_lines(const tws_rank_kind *a, const tws_rank_kind *b) {
  return a == b ||
         (a->line_count == b->line_count && a->apart == b->apart && a->pass_apart == b->pass_apart &&
          a->uneven == b->uneven && memcmp(a->lines, b->lines, (size_t)a->line_count * sizeof *a->lines) == 0);
}

/* NULL: no memory. Where gradients are in buckets, and nothing but what ZeRO moves runs beside, only that may tell
 * micro-batches apart. */
static tws_body *new_body(tws_composer *c, const tws_plan_request *request, const tws_piece_key *key) {
  const tws_axes replicas = tws_axes_that_divide(TWS_DIVIDES_SAMPLES) | tws_axes_that_divide(TWS_DIVIDES_TOKENS);
  const tws_config *config = request->config;
  tws_body *b = tws_arena_alloc(c->arena, 1, sizeof *b);
  if (!b || config->zero.stage < 2 || tws_topology_size(&request->topology, replicas) == 1) return b;
  if (config->tensor_overlap || tws_config_is_ring(config)) return b;
  tws_piece_key k = *key;
  int is_new;
  k.config.micro_batch_size = 0;
  tws_piece_entry *e = tws_piece_look_up(&c->repeats, &k, &is_new);
  if (e && is_new) e->value = tws_arena_alloc(c->arena, 1, sizeof *b->repeats);
  b->repeats = e ? e->value : NULL;
  return b->repeats ? b : NULL;
}

/* Stage 2 has the layers of the first tensor rank of stage 3, with what tells that from others. What only stage 3 might
 * refuse is left to it. */
static int shares_stage_3(const tws_plan_request *request, const tws_rank_kind *ranks) {
  const tws_config *c = request->config;
  if (tws_topology_size(&request->topology, 1u << TWS_AXIS_MODEL) == 1 || ranks->uneven) return 0;
  if (c->linear_tile_size || c->zero.offload_param) return 0;
  if (ranks->every && c->expert_ranks > 1) return 0; /* those that share experts meet in layers, too */
  return c->zero.stage == 3 || (c->zero.stage == 2 && !ranks->pass_apart);
}

/* What is sampled for the rank of a stage that is in this line. */
static tws_code find_source(tws_composer *c, const tws_plan_request *request, const tws_rank_kind *ranks, int line,
                            int stage, stage_source *out, int *bounded, tws_error *err) {
  static const tws_axis places[] = {TWS_AXIS_SEQUENCE, TWS_AXIS_MODEL, TWS_AXIS_EXPERT};
  const tws_topology *t = &request->topology;
  const int pipeline = tws_topology_size(t, TWS_AXES_PIPE) > 1;
  int is_new, spread[TWS_AXIS_COUNT];
  tws_piece_key k;
  const int apart = ranks->pass_apart || (ranks->line_count > 1 && request->config->zero.stage >= 2);
  *out = (stage_source){.request = *request, .apart = apart ? ranks->apart : 0};
  out->request.rank = ranks->uneven ? tws_pipeline_grid_stage(t, ranks->lines[line], stage) : ranks->lines[line];
  if (ranks->uneven) tws_rank_spread(c->machine, t, out->request.rank, spread);
  tws_body_key(request, ranks->uneven ? spread : ranks->spread,
               pipeline && request->config->pipeline_schedule == TWS_PIPELINE_ZB_H1, &k);
  for (size_t i = 0; i < sizeof places / sizeof *places && ranks->pass_apart; i++)
    k.place = (k.place << 8) + tws_topology_index(t, out->request.rank, 1u << places[i]);
  const int shared = k.bounded && k.place == 0 && shares_stage_3(request, ranks);
  const int tensor_apart = apart && (ranks->apart >> TWS_AXIS_MODEL & 1); /* marks tell where these meet, too */
  k.place = 16 * k.place + 8 * ranks->every + 4 * tensor_apart + apart + ranks->pass_apart + ranks->uneven;
  if (shared) k.place = 0;
  if (shared) out->apart = 1u << TWS_AXIS_SEQUENCE | 1u << TWS_AXIS_MODEL;
  if (shared) out->zero_stage = 3;
  tws_piece_entry *e = tws_piece_look_up(&c->bodies, &k, &is_new);
  if (e && is_new) e->value = new_body(c, request, &k);
  if (!e || !e->value) return no_memory(err);
  out->body = e->value;
  *bounded = k.bounded;
  return TWS_OK;
}

static int lines_of(const tws_rank_kind *ranks) {
  return ranks->pass_apart ? ranks->line_count : 1;
}

static tws_code find_lines(step *s, const tws_rank_kind *ranks, tws_error *err) {
  const int count = lines_of(ranks), stages = s->shape.stages;
  const int split = s->shape.kind == TWS_PIPELINE_ZB_H1 && stages > 1;
  s->lines = tws_arena_alloc(s->arena, (size_t)count, sizeof *s->lines);
  stage_source *sources = tws_arena_alloc(s->arena, (size_t)stages, sizeof *sources);
  s->line_count = count;
  if (!s->lines || !sources) return no_memory(err);
  for (int i = 0; i < count; i++) {
    int bounded;
    for (int k = 0; k < stages; k++) TWS_TRY(find_source(s->c, s->request, ranks, i, k, &sources[k], &bounded, err));
    TWS_TRY(find_chunks(s, sources, split, &s->lines[i], err));
    s->lines[i].rank = ranks->lines[i];
  }
  tws_step_take_line(s, ranks, 0);
  return TWS_OK;
}

/* A new step of this shape; what it was made of before is gone. */
static tws_code begin_step(step *s, tws_body *b, const tws_step_ends *t, const tws_pipeline_shape *shape, int bounded,
                           const tws_rank_kind *ranks, tws_error *err) {
  const size_t n = (size_t)shape->stages, clocks = n * (size_t)ranks->line_count;
  tws_composer *c = s->c;
  const tws_plan_request *request = s->request;
  if (tws_reserve(&c->legs, &c->leg_capacity, n * TWS_LEGS, sizeof *c->legs)) return no_memory(err);
  if (!tws_topology_is_same(&s->topology, &request->topology)) memset(c->legs, 0, n * TWS_LEGS * sizeof *c->legs);
  tws_arena_destroy(s->arena);
  tws_arena_destroy(s->ends_arena);
  *s = (step){.c = c,
              .request = request,
              .tails = t,
              .shape = *shape,
              .topology = request->topology,
              .bounded = bounded,
              .ranks = ranks,
              .arena = tws_arena_create()};
  if (!s->arena) return no_memory(err);
  s->stages = tws_arena_alloc(s->arena, n, sizeof *s->stages);
  s->stretch = tws_arena_alloc(s->arena, n, sizeof *s->stretch);
  s->stretched = tws_arena_alloc(s->arena, n, sizeof *s->stretched);
  s->at = tws_arena_alloc(s->arena, n, sizeof *s->at);
  s->met = tws_arena_alloc(s->arena, n, sizeof *s->met);
  for (int i = 0; i < 2; i++) {
    s->end_s[i] = tws_arena_alloc(s->arena, clocks, sizeof *s->end_s[i]);
    s->passed_s[i] = tws_arena_alloc(s->arena, clocks, sizeof *s->passed_s[i]);
    if (!s->end_s[i] || !s->passed_s[i]) return no_memory(err);
  }
  if (!s->stages || !s->stretch || !s->stretched || !s->at || !s->met) return no_memory(err);
  TWS_TRY(find_lines(s, ranks, err));
  s->body = b;
  return TWS_OK;
}

static tws_code find_stretch(step *s, int exact, tws_error *err) {
  int same = s->has_times;
  for (int i = 0; i < s->shape.stages; i++) {
    const tws_tail_pieces *t = &s->tails->stage[i];
    const tws_chunk_set *of = &s->lines[s->line_count > 1 ? s->line : 0];
    s->stretch[i] = exact ? tws_step_stretch(s, of, s->line ? &t->others[s->line - 1] : t, i) : 1;
    same = same && s->stretch[i] == s->stretched[i];
  }
  if (same || s->shape.stages == 1) return TWS_OK;
  TWS_TRY(tws_step_make_times(s, err));
  memcpy(s->stretched, s->stretch, (size_t)s->shape.stages * sizeof *s->stretch);
  s->has_times = 1;
  s->ran = 0;
  s->times_of = 0;
  return TWS_OK;
}

/* What runs beside the last backward pass, or beside all; of ranks that differ a bound is known without it. */
static tws_code find_overlap(step *s, const tws_rank_kind *r, tws_error *err) {
  const tws_tail_pieces *t = &s->joined->stage[0];
  const tws_overlapped *o = t->overlapped;
  s->overlap = NULL;
  s->beside = NULL;
  if (!r->alone) return TWS_OK;
  const int exchanges = s->shape.stages == 1 && s->chunks[0].exchanges;
  if (s->chunks_in_order && (s->bounded ? t->beside && (t->in_step || exchanges) : exchanges)) {
    const tws_beside_source from = beside_source(s);
    TWS_TRY(tws_beside_find(&from, &s->beside, err));
    if (!s->beside->known) s->beside = NULL;
  }
  if (!o) return TWS_OK;
  if (tws_reserve(&s->c->ended, &s->c->ended_capacity, o->count + 1u, sizeof *s->c->ended)) return no_memory(err);
  return tws_overlap_find(o, &s->chunks[0], s->body_of_chunks, s->c->arena, &s->overlap, err);
}

/* Whether what tensor ranks exchange beside what computes is not known. */
static int exchanges_unknown(const step *s) {
  if (s->shape.stages == 1 && s->chunks[0].exchanges) return !s->beside || s->chunks[0].pending;
  for (int i = 0; i < s->chunk_count; i++)
    if (s->chunks[i].exchanges && s->chunks[i].far) return 1;
  return 0;
}

/* Whether some are under way when the passes end, which what ends the step may wait for. */
static int is_exchanging(const step *s) {
  const int passing = tws_step_passing(s);
  const int count = passing ? passing * s->shape.stages : s->shape.stages > 1 ? s->shape.stages : 0;
  for (int i = 0; i < count; i++)
    if ((passing ? s->of_lines : s->stages)[i].exchanging) return 1;
  return 0;
}

/* Whether what runs beside the passes of lines goes on for longer than the end of the step hides. */
static int is_going_on(const step *s) {
  for (int i = 0; i < s->together && s->shape.stages == 1; i++)
    if (s->end_s[0][i] + s->ended_lines[i].behind_s > s->of_lines[i].compute_s) return 1;
  return 0;
}

static int exchanges_beside(const step *s) {
  for (int i = 0; i < s->chunk_count; i++)
    if (s->chunks[i].exchanges) return 1;
  return 0;
}

/* Whether what goes to the host is beside the passes in ways that are not known. */
static int is_unknown_offload(const step *s) {
  const tws_config *c = s->request->config;
  if (!tws_config_offloads(c) || tws_offloads_behind(s->request)) return 0;
  return !tws_offloads_in_step(s->request) || (!s->run && !s->c->costs.serial);
}

/* Whether the passes of its line of ranks are known, where nobody waits for other lines. */
static int knows_passes(const step *s, const tws_rank_kind *r) {
  if (!r->alone || (s->bounded ? !s->moves_exact && !s->beside : !s->chunks_exact)) return 0;
  if (is_unknown_offload(s)) return 0;
  return !exchanges_unknown(s);
}

/* Likewise its step. */
static int knows_line(const step *s) {
  if (!s->passes_known) return 0;
  if (s->joined->stage[0].overlaps && !(s->overlap && s->overlap->known)) return 0;
  for (int i = 0; i < s->shape.stages; i++) {
    const tws_tail_pieces *t = &s->joined->stage[i];
    if (!t->exact) return 0;
  }
  return 1;
}

/* Of lines that go together no one's times are asked for, and the other way round. */
static void go_alone(step *s) {
  if (!s->together) return;
  s->together = s->ran = 0;
  s->times_of = 0;
}

/* Whether it is exact, of all lines of ranks. A line's own step is no longer than that of all: it waits less. */
static tws_code meet_ranks(step *s, const tws_rank_kind *r, int *exact, tws_error *err) {
  s->ranks = r;
  const int several = r->line_count > 1 || s->run, exchanging = r->pass_apart && exchanges_beside(s);
  const int late = several && s->c->costs.serial && s->request->config->delayed_update;
  const int known = !s->tails->stage[0].overlaps && !exchanging && !s->tails->runs && !late;
  *exact = 1;
  s->joined = s->tails;
  if (several) TWS_TRY(tws_step_meet(s, r, known, exact, err));
  if (*exact) TWS_TRY(find_overlap(s, r, err));
  s->passes_known = *exact && knows_passes(s, r);
  s->line_known = knows_line(s);
  *exact = s->line_known && (!several || tws_step_join(s, r));
  if (*exact || !several) {
    go_alone(s);
    return TWS_OK;
  }
  TWS_TRY(tws_step_bound(s, r, err));
  *exact = r->alone && !is_unknown_offload(s) && (s->run || !s->tails->runs) && tws_step_can_go_together(s, r);
  if (*exact) {
    s->passes_known = s->line_known = 1;
    s->beside = NULL;
    s->overlap = NULL;
    if (s->together != r->line_count) {
      s->ran = 0;
      s->times_of = 0;
    }
    s->together = r->line_count;
    if (!tws_step_find_stretch(s, r)) s->longest_of = NULL;
    return tws_step_make_lines(s, r, err);
  }
  go_alone(s);
  TWS_TRY(find_overlap(s, r, err));
  s->passes_known = knows_passes(s, r);
  s->line_known = knows_line(s);
  return TWS_OK;
}

static void add_passes(const step *s, int stage, tws_composed_account *account) {
  const tws_tail_pieces *t = &s->joined->stage[stage];
  const int v = t->chunk_count;
  for (int later = 0; later < 2; later++) {
    const double times = later ? s->shape.micro_batches - 1 : 1;
    for (int i = 0; i < v; i++) {
      const tws_chunk_pieces *p = &s->chunks[s->chunk_at[stage * v + i]].pieces;
      for (int e = 0; e < TWS_CONTEXT_EVENTS; e++)
        if (p->has[e]) tws_expose(account, times, p->event[later][e].axis_s);
    }
    if (s->moves_exact) tws_expose(account, times, t->move_axis_s[later]);
  }
}

/* What runs beside the passes and the end of a step without a pipeline. */
static tws_code account_beside(step *s, tws_composed_account *out, tws_error *err) {
  const tws_tail_pieces *t = &s->joined->stage[0];
  double axis_s[TWS_PIECE_AXES] = {0}, behind_s;
  const int later = s->shape.micro_batches > 1;
  if (!s->beside && !t->overlapped) return TWS_OK;
  if (t->in_step || t->overlapped) tws_overlap_expose(t, s->stretch[0], axis_s);
  tws_beside_waits waits;
  const int waiting = t->overlapped && s->beside;
  if (waiting && !find_waits(s, &waits)) return no_memory(err);
  if (t->overlapped)
    tws_overlap_expose_waits(t, s->overlap, waiting ? &waits : NULL, later, s->stretch[0], s->c->ended, axis_s);
  tws_expose(out, 1, axis_s);
  if (!s->beside) return TWS_OK;
  const tws_beside_source from = beside_source(s);
  const double seconds = tws_beside_seconds(&from, s->beside, s->shape.micro_batches, s->stretch[0], out, &behind_s);
  return seconds < 0 ? no_memory(err) : TWS_OK;
}

tws_code tws_compose_account(tws_composer *c, tws_composed_account *out, tws_error *err) {
  step *s = &c->last;
  tws_pipeline_shape shape;
  tws_rhythm r;
  tws_code code = TWS_OK;
  if (!s->body || !s->exact) return tws_fail(err, TWS_UNSUPPORTED, NULL, "only steps that are exact have an account");
  tws_arena *arena = tws_arena_create();
  if (!arena) return no_memory(err);
  memset(out, 0, (size_t)s->shape.stages * sizeof *out);
  if (s->shape.stages == 1 && s->together) code = tws_step_walk_lines(s, out, err);
  if (s->shape.stages > 1) {
    code = tws_step_rhythm(s, s->shape.micro_batches, &shape, &r, err);
    r.account = arena;
    s->ran = 0; /* of all micro-batches, which sums up in another order */
    s->times_of = 0;
    if (code == TWS_OK) code = tws_rhythm_run(&r, err);
    if (code == TWS_OK) tws_step_passed(s);
  }
  double last = 0;
  if (code == TWS_OK && s->together) code = tws_step_end_lines(s, out, &last, err);
  if (code == TWS_OK && !s->together) last = run_tails(s, out);
  if (code == TWS_OK && !s->together) code = account_beside(s, out, err);
  for (int i = 0; i < s->shape.stages && code == TWS_OK; i++) {
    tws_rhythm_stage *stage = s->together ? &s->of_lines[s->line * s->shape.stages + i] : &s->stages[i];
    add_passes(s, i, &out[i]);
    if (s->shape.stages == 1 && s->together) out[i].bubble_s += last - stage->compute_s;
    if (s->shape.stages == 1) continue;
    tws_rhythm_gap(stage, stage->compute_s, stage->messages_s); /* the last is a message */
    out[i].bubble_s +=
        stage->bubble_s + last - (stage->compute_s > stage->messages_s ? stage->compute_s : stage->messages_s);
    out[i].axis_exposed_s[TWS_AXIS_PIPE] += stage->exposed_s;
    tws_expose(&out[i], 1, stage->exchanged_s);
  }
  tws_arena_destroy(arena);
  return code;
}

/* What runs between training steps: no batch, schedule or bucket changes it. */
static tws_code add_between(tws_composer *c, const tws_plan_request *request, double *step_s, tws_error *err) {
  tws_piece_key tail, k;
  tws_plan_request r = *request;
  tws_estimate estimate;
  int is_new;
  if (!request->config->zenflow.on) return TWS_OK;
  tws_tail_key(request, &tail);
  tws_end_key(&tail, &k);
  tws_piece_entry *e = tws_piece_look_up(&c->between, &k, &is_new);
  if (!e) return no_memory(err);
  double *known = e->value;
  if (!known) {
    r.max_accumulation = 1;
    TWS_TRY(tws_estimate_between(&r, c->machine, &estimate, err));
    known = tws_arena_alloc(c->arena, 1, sizeof *known);
    if (!known) return no_memory(err);
    *known = estimate.step_s;
    e->value = known;
  }
  *step_s += *known;
  return TWS_OK;
}

tws_code tws_compose(tws_composer *c, const tws_plan_request *request, const tws_compose_limits *limits,
                     tws_composed *out, tws_error *err) {
  const int stages = tws_topology_size(&request->topology, TWS_AXES_PIPE);
  const tws_pipeline_shape shape = tws_pipeline_shape_of(request->config, stages, request->config->accumulation_steps);
  const double bytes = limits ? limits->bytes : 0, seconds = limits ? limits->seconds : 0;
  int exact;
  step *s = &c->last;
  const tws_rank_kind *r = NULL;
  const tws_step_ends *t = NULL;
  stage_source source;
  int bounded;
  *out = (tws_composed){.exact = 0};
  s->exact = 0;
  TWS_TRY(tws_pipeline_check(&shape, err));
  TWS_TRY(tws_rank_kind_find(&c->ranks, request, c->machine, c->memory, c->arena, &r, err));
  TWS_TRY(tws_ends_find(&c->ends, request, r, &t, err));
  c->counts.composed++;
  if (tws_reserve(&c->met_s, &c->met_capacity, (size_t)(stages * t->most_met), sizeof *c->met_s)) return no_memory(err);
  const step ends = {.tails = t, .shape = shape};
  tws_step_bytes_of(&ends, out);
  if ((out->too_large = bytes > 0 && (double)out->live_bytes > bytes)) return TWS_OK;
  TWS_TRY(find_source(c, request, r, 0, 0, &source, &bounded, err));
  s->c = c;
  s->request = request;
  if (s->body != source.body || !same_lines(s->ranks, r) || !same_stages(s, request, &shape) ||
      !same_chunks(s->tails, t)) {
    s->body = NULL;
    TWS_TRY(begin_step(s, source.body, t, &shape, bounded, r, err));
  }
  if (s->shape.micro_batches != shape.micro_batches) s->ran = 0;
  s->shape = shape;
  s->tails = t;
  s->moves_exact = s->bounded && s->chunks_in_order && t->stage[0].moves_exact;
  const int hasty = t->runs && limits && limits->hasty;
  if (t->runs && !t->run && !hasty) TWS_TRY(tws_ends_run(&c->ends, request, r, err));
  s->run = hasty ? NULL : t->run;
  TWS_TRY(meet_ranks(s, r, &exact, err));
  out->hasty = hasty && !exact;
  out->rank = s->rank;
  TWS_TRY(find_stretch(s, s->passes_known, err));
  if (stages == 1) {
    tws_step_run_alone(s);
    if (!s->together) s->end_s[0][0] = s->stages[0].compute_s;
  }
  TWS_TRY(tws_step_find_bytes(s, bytes, out, err));
  /* what is alive at the end of updates in two parts is known as a bound */
  const int beside =
      (tws_config_offloads(request->config) && !tws_offloads_behind(request)) || request->config->zenflow.on;
  /* of a ring, whose ranks do other pieces of equal work, one's bytes are looked at */
  out->bytes_exact = s->chunks_closed && !s->bounded && !beside && !tws_config_is_ring(request->config);
  out->exact = s->exact = exact;
  if ((out->too_large = bytes > 0 && (double)out->live_bytes > bytes)) return TWS_OK;
  if (seconds > 0 && (out->step_s = bound_seconds(s)) > seconds) {
    out->too_slow = 1;
    return TWS_OK;
  }
  if (s->together && stages == 1 && !s->ran) {
    TWS_TRY(tws_step_walk_lines(s, NULL, err));
    if (!s->can_together) return tws_compose(c, request, limits, out, err); /* as a bound */
  }
  if (stages > 1 && !s->ran) TWS_TRY(tws_step_run_passes(s, err));
  s->ran = 1;
  if (is_exchanging(s)) out->exact = s->exact = 0;
  if (s->together) {
    TWS_TRY(tws_step_end_lines(s, NULL, &out->step_s, err));
    if (is_going_on(s)) out->exact = s->exact = 0;
  } else if (s->passes_known && s->beside) {
    const tws_beside_source from = beside_source(s);
    double behind_s;
    s->end_s[0][0] = tws_beside_seconds(&from, s->beside, s->shape.micro_batches, s->stretch[0], NULL, &behind_s);
    if (s->end_s[0][0] < 0) return no_memory(err);
    out->step_s = run_tails(s, NULL);
    if (s->end_s[0][0] + behind_s > out->step_s) out->exact = s->exact = 0; /* more than the end of the step hides */
  } else {
    out->step_s = with_moves(s, run_tails(s, NULL));
  }
  if (out->step_s >= 0 && !s->together) out->step_s += beside_tail(s, s->line_known);
  if (out->step_s >= 0) {
    TWS_TRY(add_between(c, request, &out->step_s, err));
    const double loading_s = tws_loading_s(request, c->machine);
    if (loading_s > out->step_s) out->step_s = loading_s;
    return TWS_OK;
  }
  return tws_fail(err, TWS_INTERNAL, NULL, "stages wait for each other at a step's end");
}
