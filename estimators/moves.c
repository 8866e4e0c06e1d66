#include "estimators/moves.h"

#include <string.h>

#include "estimators/beside.h"
#include "estimators/overlap.h"

typedef struct gathers {
  double least_s; /* of gathers and reductions of a micro-batch, where they are not in few bits or among few */
  /* Of the first micro-batch, whose gathers neighbours keep, with those for the whole step; and of a later one. */
  tws_piece_time time[2];
  double launches[2], axis_s[2][TWS_PIECE_AXES];
  int in_order;                        /* all of it is on the stream that computes; else only least_s is known */
  tws_beside_gathers begin, beside[2]; /* where they run beside the layers; begin: those for the whole step */
} gathers;

typedef struct beside_both { /* what both kinds of moves do beside the layers */
  const gathers *gathers;
  tws_beside_moves moves;
  struct beside_both *next;
} beside_both;

typedef struct reductions { /* of a stage, with one size of buckets, or several that make the same buckets */
  tws_piece_time time[2];   /* of the first micro-batch and of a later one; stage 1: of the last, nothing */
  double launches[2], axis_s[2][TWS_PIECE_AXES];
  int in_order;
  struct tws_overlapped beside; /* stage 1: what is known of them where they run beside a backward pass */
  tws_beside_reductions in_step[TWS_BESIDE_KINDS]; /* stages 2 and 3, in the same way */
  int kinds;
  struct beside_both *both;
  uint32_t *reduced; /* per gradient: so many reductions, and it is reduced; NULL: nothing is known */
} reductions;

typedef struct kept_reductions { /* with one size */
  tws_stage_layers layers;
  reductions *reductions;
  struct kept_reductions *next;
} kept_reductions;

typedef struct cut_reductions { /* of a lowering: with these counts of gradients in buckets */
  reductions *reductions;
  uint32_t *counts, buckets;
  struct cut_reductions *next;
} cut_reductions;

typedef struct tws_lowered_moves {
  tws_piece_key gathers, reductions; /* that it tells of, in any size of buckets */
  tws_stage_layers layers;
  int known; /* layers are */
  tws_moves *moves;
  double *seconds; /* per work, less than 0: not asked yet */
  size_t count, capacity;
  uint32_t *kind; /* per work, of the range at hand */
  size_t kind_capacity;
  tws_gradient_list *gradients;     /* stage 1; NULL: not asked for yet */
  uint32_t *by_layer, *layer_first; /* see tws_overlapped */
  int layer_count;
  cut_reductions *cut;
} lowered;

static tws_code no_memory(tws_error *err) {
  return tws_fail(err, TWS_MEMORY, NULL, "no memory for what steps move");
}

static void drop(lowered *l) {
  if (!l) return;
  tws_moves_destroy(l->moves);
  tws_free(l->seconds);
  tws_free(l->kind);
  for (cut_reductions *c = l->cut, *next; c; c = next) {
    next = c->next;
    tws_free(c->counts);
    tws_free(c);
  }
  tws_free(l);
}

void tws_kept_moves_free(tws_kept_moves *kept) {
  for (int i = 0; i < TWS_LOWERED_MOVES; i++) drop(kept->lowered[i]);
  tws_piece_table_free(&kept->gathers);
  tws_piece_table_free(&kept->reductions);
}

/* What is moved does not depend on streams that run beside, nor on what goes to the host and comes from there, but in
 * step with that: gathers on parameters, reductions on all. */
static void move_alone(tws_config *config, int reduces) {
  const int in_step = tws_config_offloads_in_step(config);
  config->zero.overlap_comm = 0;
  if (!in_step) config->zero.offload_param = 0;
  if (!in_step || !reduces) config->zero.offload_optimizer = 0;
}

/* In any size of buckets. */
static tws_piece_key key_of_reductions(const tws_piece_key *tail) {
  tws_piece_key k;
  tws_reductions_key(tail, &k);
  k.config.zero.reduce_bucket_size = 0;
  move_alone(&k.config, 1);
  return k;
}

static tws_piece_key key_of_gathers(const tws_piece_key *tail) {
  tws_piece_key k;
  tws_gathers_key(tail, &k);
  move_alone(&k.config, 0);
  return k;
}

static tws_code lower_moves(tws_kept_moves *kept, const tws_plan_request *request, const tws_piece_key *tail,
                            const tws_stage_layers *layers, const int *bounds, lowered **out, tws_error *err) {
  tws_config config = *request->config;
  tws_plan_request r = *request;
  lowered *l = tws_calloc(1, sizeof *l);
  if (!l) return no_memory(err);
  r.config = &config;
  move_alone(&config, 1);
  const tws_code code = tws_moves_create(&r, bounds, bounds || layers, kept->memory, &l->moves, err);
  kept->count++;
  if (code != TWS_OK) {
    drop(l);
    return code;
  }
  l->gathers = key_of_gathers(tail);
  l->reductions = key_of_reductions(tail);
  if (layers) l->layers = *layers;
  l->known = layers != NULL;
  drop(kept->lowered[kept->next]);
  kept->lowered[kept->next] = *out = l;
  kept->next = (kept->next + 1) % TWS_LOWERED_MOVES;
  return TWS_OK;
}

/* COMPUTES: none of its own. */
static tws_beside_stream beside_stream(const tws_op *o) {
  return o->stream == TWS_STREAM_COPY_OUT  ? TWS_BESIDE_COPIES
         : o->stream == TWS_STREAM_COPY_IN ? TWS_BESIDE_BRINGS
         : o->stream == TWS_STREAM_DISK    ? TWS_BESIDE_READS
         : o->stream == TWS_STREAM_HOST    ? TWS_BESIDE_HOSTS
                                           : TWS_BESIDE_COMPUTES;
}

static tws_code add_range(const tws_kept_moves *kept, lowered *l, tws_op_range range, tws_piece_time *time,
                          double *launches, double *axis_s, int *in_order, tws_error *err) {
  const tws_plan *plan = tws_moves_plan(l->moves);
  const tws_costs *costs = kept->costs;
  if (tws_reserve(&l->seconds, &l->capacity, plan->work_count + 1u, sizeof *l->seconds)) return no_memory(err);
  for (; l->count < plan->work_count; l->count++) l->seconds[l->count] = -1;
  int axis = 0;
  uint32_t group = TWS_NONE; /* that it is of: most have one */
  for (uint32_t op = range.first; op < range.end; op++) {
    const tws_op *o = &plan->ops[op];
    const tws_work *work = &plan->works[o->work];
    double *seconds = &l->seconds[o->work];
    if (*seconds < 0) *seconds = costs->work(costs->user, plan, o->work);
    *in_order &= costs->serial || o->stream == TWS_STREAM_COMPUTE || beside_stream(o) != TWS_BESIDE_COMPUTES;
    *time = tws_sum_of_times(*time, tws_time_of_work(work, *seconds));
    if (!tws_op_computes(o) && (o->kind != TWS_OP_COLLECTIVE || work->group != group)) {
      axis = tws_piece_axis(tws_report_of_op(plan, o));
      group = o->kind == TWS_OP_COLLECTIVE ? work->group : TWS_NONE;
    }
    if (!tws_op_computes(o)) axis_s[axis] += *seconds;
    if (tws_is_launched(work)) *launches += costs->launches ? costs->launches(costs->user, work) : 1;
  }
  return TWS_OK;
}

/* Of a range whose time is known, what each operation costs where it runs beside the layers: one kind for each work.
 * As many kinds follow, of the same where it does not. */
static tws_code list_ops(const tws_kept_moves *kept, lowered *l, tws_op_range range, int stream, tws_beside_ops *out,
                         uint32_t *kinds, tws_error *err) {
  const tws_plan *plan = tws_moves_plan(l->moves);
  const uint32_t ops = range.end - range.first;
  uint32_t *first = tws_calloc(ops + 1u, sizeof *first); /* operation of each kind */
  out->first = range.first;
  out->kind_of = tws_arena_alloc_unset(kept->arena, ops + 1u, sizeof *out->kind_of);
  *kinds = 0;
  if (!first || !out->kind_of || tws_reserve(&l->kind, &l->kind_capacity, l->capacity, sizeof *l->kind)) {
    tws_free(first);
    return no_memory(err);
  }
  for (uint32_t op = range.first; op < range.end; op++) l->kind[plan->ops[op].work] = TWS_NONE;
  for (uint32_t op = range.first; op < range.end; op++) {
    uint32_t *kind = &l->kind[plan->ops[op].work];
    if (*kind == TWS_NONE) {
      *kind = (*kinds)++;
      first[*kind] = op;
    }
    out->kind_of[op - range.first] = *kind;
  }
  tws_beside_op *of = tws_arena_alloc_unset(kept->arena, 2 * (size_t)*kinds + 1, sizeof *of);
  for (uint32_t i = 0; i < *kinds && of; i++) {
    const tws_op *o = &plan->ops[first[i]];
    const double seconds = l->seconds[o->work];
    of[i] = (tws_beside_op){.time = tws_time_of_work(&plan->works[o->work], seconds),
                            .axis = (uint8_t)tws_piece_axis(tws_report_of_op(plan, o)),
                            .channel = o->channel,
                            .meets = o->kind == TWS_OP_COLLECTIVE ? plan->groups[plan->works[o->work].group].axes : 0,
                            .stream = (uint8_t)stream};
    const tws_beside_stream own = beside_stream(o);
    if (own != TWS_BESIDE_COMPUTES) of[i].axis = TWS_PIECE_AXES;
    if (own != TWS_BESIDE_COMPUTES && !kept->costs->serial) of[i].stream = (uint8_t)own;
    of[*kinds + i] = of[i];
    of[*kinds + i].stream = TWS_BESIDE_COMPUTES;
  }
  tws_free(first);
  out->kinds = of;
  return of ? TWS_OK : no_memory(err);
}

/* Of one micro-batch; begin: of what stays whole for the step, before the first. */
static tws_code add_gathers(const tws_kept_moves *kept, lowered *l, int begin, int later, tws_beside_gathers *b,
                            gathers *g, tws_error *err) {
  tws_op_range range = {tws_moves_plan(l->moves)->op_count, 0};
  uint32_t kinds;
  TWS_TRY(begin ? tws_moves_of_begin(l->moves, kept->arena, &b->params, err)
                : tws_moves_of_params(l->moves, kept->arena, &b->params, err));
  range.end = tws_moves_plan(l->moves)->op_count;
  TWS_TRY(add_range(kept, l, range, &g->time[later], &g->launches[later], g->axis_s[later], &g->in_order, err));
  return list_ops(kept, l, range, TWS_BESIDE_GATHERS, &b->ops, &kinds, err);
}

/* They are those of the first micro-batch again, unless neighbours have kept some since. */
static tws_code add_later_gathers(const tws_kept_moves *kept, const tws_plan_request *request, lowered *l, gathers *g,
                                  tws_error *err) {
  const tws_beside_gathers *b = &g->beside[0];
  tws_op_range range = {b->ops.first, b->ops.first};
  if (tws_config_secondary_ranks(request->config)) return add_gathers(kept, l, 0, 1, &g->beside[1], g, err);
  g->beside[1] = *b;
  if (b->params.visit_count) range.end = b->params.visits[b->params.visit_count - 1].gathered.end;
  return add_range(kept, l, range, &g->time[1], &g->launches[1], g->axis_s[1], &g->in_order, err);
}

static tws_code find_gathers(tws_kept_moves *kept, const tws_plan_request *request, const tws_piece_key *tail,
                             const gathers **out, tws_error *err) {
  static const tws_stage_layers all;
  const tws_piece_key k = key_of_gathers(tail);
  double launches = 0, least_s[TWS_PIECE_AXES] = {0};
  int is_new;
  tws_op_range range;
  lowered *l = NULL;
  tws_piece_entry *e = tws_piece_look_up(&kept->gathers, &k, &is_new);
  if (!e) return no_memory(err);
  *out = e->value;
  if (e->value) return TWS_OK;
  gathers *g = tws_arena_alloc(kept->arena, 1, sizeof *g);
  if (!g) return no_memory(err);
  TWS_TRY(lower_moves(kept, request, tail, &all, NULL, &l, err));
  tws_piece_time least = {0, 0};
  g->in_order = 1;
  if (!tws_config_offloads(request->config) || tws_offloads_in_step(request))
    TWS_TRY(add_gathers(kept, l, 1, 0, &g->begin, g, err));
  TWS_TRY(add_gathers(kept, l, 0, 0, &g->beside[0], g, err));
  TWS_TRY(add_later_gathers(kept, request, l, g, err));
  TWS_TRY(tws_moves_at_least(l->moves, &range, err));
  TWS_TRY(add_range(kept, l, range, &least, &launches, least_s, &g->in_order, err));
  g->least_s = least.other;
  e->value = g;
  *out = g;
  return TWS_OK;
}

/* ---- beside a backward pass ---- */

static tws_code find_gradients(tws_kept_moves *kept, lowered *l, tws_error *err) {
  if (l->gradients) return TWS_OK;
  tws_gradient_list *g = tws_arena_alloc(kept->arena, 1, sizeof *g);
  if (!g) return no_memory(err);
  TWS_TRY(tws_moves_gradients(l->moves, kept->arena, g, err));
  for (uint32_t i = 0; i < g->count; i++)
    if (g->items[i].layer >= l->layer_count) l->layer_count = g->items[i].layer + 1;
  uint32_t *first = tws_arena_alloc(kept->arena, (size_t)l->layer_count + 2, sizeof *first);
  l->by_layer = tws_arena_alloc(kept->arena, g->count + 1u, sizeof *l->by_layer);
  if (!first || !l->by_layer) return no_memory(err);
  for (uint32_t i = 0; i < g->count; i++) first[g->items[i].layer + 2]++; /* two further on, which filling makes good */
  for (int layer = 0; layer < l->layer_count; layer++) first[layer + 2] += first[layer + 1];
  for (uint32_t i = 0; i < g->count; i++) l->by_layer[first[g->items[i].layer + 1]++] = i;
  l->layer_first = first;
  l->gradients = g;
  return TWS_OK;
}

/* Of which gradients each reduction is; those that are in several parts are of several. */
static tws_code sample_beside(tws_kept_moves *kept, lowered *l, tws_op_range range, reductions *out, tws_error *err) {
  const tws_plan *plan = tws_moves_plan(l->moves);
  const uint32_t count = range.end - range.first;
  uint32_t most = 0, used = 0, at = 0;
  TWS_TRY(find_gradients(kept, l, err));
  const tws_gradient_list *g = l->gradients;
  for (uint32_t op = range.first; op < range.end; op++) most += plan->ops[op].operand_count;
  double *seconds = tws_arena_alloc_unset(kept->arena, count + 1u, sizeof *seconds);
  uint8_t *axis = tws_arena_alloc_unset(kept->arena, count + 1u, sizeof *axis);
  tws_axes *meets = tws_arena_alloc_unset(kept->arena, count + 1u, sizeof *meets);
  uint32_t *first = tws_arena_alloc_unset(kept->arena, count + 1u, sizeof *first);
  uint32_t *of = tws_arena_alloc_unset(kept->arena, most + count + g->count + 1u, sizeof *of);
  uint32_t *reduced = tws_arena_alloc(kept->arena, g->count + 1u, sizeof *reduced);
  if (!seconds || !axis || !meets || !first || !of || !reduced) return no_memory(err);
  first[0] = 0;
  for (uint32_t i = 0; i < count; i++) {
    const tws_op *op = &plan->ops[range.first + i];
    seconds[i] = l->seconds[op->work];
    axis[i] = (uint8_t)tws_piece_axis(tws_report_of_op(plan, op));
    meets[i] = op->kind == TWS_OP_COLLECTIVE ? plan->groups[plan->works[op->work].group].axes : 0;
    for (int k = 0; k < op->operand_count; k++) {
      const tws_operand *r = &plan->operands[op->operand_first + (uint32_t)k];
      if (r->buffer != plan->gradients) return TWS_OK;
      if (at >= g->count || g->items[at].first != r->offset) at = tws_gradient_at(g, r->offset); /* most follow */
      for (; at < g->count && g->items[at].first < r->offset + r->count; at++) {
        reduced[at] = i + 1;
        of[used++] = at;
      }
    }
    first[i + 1] = used;
  }
  out->beside = (tws_overlapped){.gradients = g,
                                 .by_layer = l->by_layer,
                                 .layer_first = l->layer_first,
                                 .layers = l->layer_count,
                                 .seconds = seconds,
                                 .axis = axis,
                                 .meets = meets,
                                 .first = first,
                                 .of = of,
                                 .count = count};
  out->reduced = reduced;
  return TWS_OK;
}

/* In any size of buckets. */
static tws_code find_lowered(tws_kept_moves *kept, const tws_plan_request *request, const tws_piece_key *tail,
                             const tws_stage_layers *layers, const int *bounds, lowered **out, tws_error *err) {
  const tws_piece_key k = key_of_reductions(tail);
  for (int i = 0; i < TWS_LOWERED_MOVES; i++) {
    lowered *l = *out = kept->lowered[i];
    if (l && l->known && memcmp(&l->layers, layers, sizeof *layers) == 0 && memcmp(&l->reductions, &k, sizeof k) == 0)
      return TWS_OK;
  }
  return lower_moves(kept, request, tail, layers, bounds, out, err);
}

/* ---- beside all passes ---- */

/* With buckets of the request's size. Sums of a step have the last micro-batch's in the first. */
static tws_code find_gradients_in_step(tws_kept_moves *kept, const tws_plan_request *request, lowered *l,
                                       reductions *out, tws_error *err) {
  const int groups = tws_config_shard_ranks(request->config) > 0;
  out->kinds = groups ? TWS_BESIDE_KINDS : TWS_BESIDE_LATER + 1;
  for (int kind = 0; kind < out->kinds; kind++) {
    const tws_moved_kind of = {.later = kind == TWS_BESIDE_LATER || kind == TWS_BESIDE_LAST,
                               .last = kind >= TWS_BESIDE_ONLY};
    const int later = (int)of.later;
    tws_beside_reductions *b = &out->in_step[kind];
    tws_moved_gradients *g = &b->gradients;
    tws_piece_time time = {0, 0};
    double launches = 0, axis_s[TWS_PIECE_AXES] = {0};
    TWS_TRY(tws_moves_of_gradients(l->moves, request->config->zero.reduce_bucket_size, of, kept->arena, g, err));
    const tws_op_range range = g->range;
    uint32_t kinds;
    TWS_TRY(add_range(kept, l, range, &time, &launches, axis_s, &out->in_order, err));
    TWS_TRY(list_ops(kept, l, range, TWS_BESIDE_REDUCES, &b->ops, &kinds, err));
    for (uint32_t i = 0; i < g->count; i++)
      for (uint32_t op = g->items[i].padded.first; op < g->items[i].padded.end; op++)
        b->ops.kind_of[op - range.first] += kinds;
    if (kind != TWS_BESIDE_LATER && kind != (groups ? TWS_BESIDE_ONLY : TWS_BESIDE_FIRST)) continue;
    out->time[later] = time;
    out->launches[later] = launches;
    memcpy(out->axis_s[later], axis_s, sizeof axis_s);
  }
  return TWS_OK;
}

/* Both, of which each goes with many others. */
static tws_code find_both(const tws_kept_moves *kept, const gathers *g, reductions *r, int in_line,
                          const tws_beside_moves **out, tws_error *err) {
  beside_both *b = r->both;
  while (b && (b->gathers != g || b->moves.in_line != in_line)) b = b->next;
  if (!b) {
    b = tws_arena_alloc(kept->arena, 1, sizeof *b);
    if (!b) return no_memory(err);
    *b = (beside_both){
        .gathers = g, .moves = {.kinds = r->kinds, .in_line = in_line, .begin = &g->begin}, .next = r->both};
    for (int later = 0; later < 2; later++) b->moves.gathers[later] = &g->beside[later];
    for (int kind = 0; kind < r->kinds; kind++) b->moves.reductions[kind] = &r->in_step[kind];
    r->both = b;
  }
  *out = &b->moves;
  return TWS_OK;
}

static tws_code sample_reductions(tws_kept_moves *kept, const tws_plan_request *request, lowered *l, reductions *out,
                                  tws_error *err) {
  tws_op_range range;
  out->in_order = 1;
  if (request->config->zero.stage >= 2) return find_gradients_in_step(kept, request, l, out, err);
  TWS_TRY(tws_moves_of_buckets(l->moves, request->config->zero.reduce_bucket_size, &range, err));
  TWS_TRY(add_range(kept, l, range, &out->time[0], &out->launches[0], out->axis_s[0], &out->in_order, err));
  if (request->config->zero.stage != 1 || out->time[0].kernel > 0) return TWS_OK;
  const int alone = tws_topology_size(&request->topology, TWS_AXES_PIPE) == 1; /* nothing is beside in pipelines */
  return alone ? sample_beside(kept, l, range, out, err) : TWS_OK;
}

/* Of buckets that have been cut: those that were before, or new ones. */
static tws_code find_cut(tws_kept_moves *kept, const tws_plan_request *request, lowered *l, reductions **out,
                         tws_error *err) {
  tws_bucket_counts counts;
  TWS_TRY(tws_moves_bucket_counts(l->moves, request->config->zero.reduce_bucket_size, &counts, err));
  const size_t bytes = counts.count * sizeof *counts.items;
  for (const cut_reductions *c = l->cut; c; c = c->next)
    if (c->buckets == counts.count && memcmp(c->counts, counts.items, bytes) == 0) {
      *out = c->reductions;
      return TWS_OK;
    }
  cut_reductions *c = tws_calloc(1, sizeof *c);
  uint32_t *kept_counts = tws_calloc(counts.count + 1u, sizeof *kept_counts);
  *out = tws_arena_alloc(kept->arena, 1, sizeof **out);
  if (!c || !kept_counts || !*out) {
    tws_free(c);
    tws_free(kept_counts);
    return no_memory(err);
  }
  memcpy(kept_counts, counts.items, bytes);
  *c = (cut_reductions){*out, kept_counts, counts.count, l->cut};
  const tws_code code = sample_reductions(kept, request, l, *out, err);
  if (code == TWS_OK) {
    l->cut = c;
    return TWS_OK;
  }
  tws_free(kept_counts);
  tws_free(c);
  return code;
}

static tws_code find_reductions(tws_kept_moves *kept, const tws_plan_request *request, const tws_piece_key *tail,
                                const tws_stage_layers *layers, const int *bounds, reductions **out, tws_error *err) {
  tws_piece_key k = key_of_reductions(tail);
  lowered *l;
  int is_new;
  k.config.zero.reduce_bucket_size = request->config->zero.reduce_bucket_size;
  tws_piece_entry *e = tws_piece_look_up(&kept->reductions, &k, &is_new);
  if (!e) return no_memory(err);
  for (const kept_reductions *r = e->value; r; r = r->next)
    if (memcmp(&r->layers, layers, sizeof *layers) == 0) {
      *out = r->reductions;
      return TWS_OK;
    }
  kept_reductions *r = tws_arena_alloc(kept->arena, 1, sizeof *r);
  if (!r) return no_memory(err);
  TWS_TRY(find_lowered(kept, request, tail, layers, bounds, &l, err));
  TWS_TRY(find_cut(kept, request, l, out, err));
  *r = (kept_reductions){*layers, *out, e->value};
  e->value = r;
  return TWS_OK;
}

/* Gathers and reductions depend on knobs of their own. With copies to the host, which have streams of their own, only
 * the least of it is known. */
tws_code tws_moves_of_micro_batches(tws_kept_moves *kept, const tws_plan_request *request, const tws_piece_key *tail,
                                    tws_tail_pieces *t, tws_error *err) {
  static const tws_stage_layers all;
  const tws_zero_config *z = &request->config->zero;
  const gathers *g = NULL;
  reductions *r = NULL;
  if (z->stage < 2) return TWS_OK;
  /* of these nothing is a bound that always holds */
  const int coded = tws_config_secondary_ranks(request->config) || tws_config_shard_ranks(request->config) ||
                    tws_config_quantizes_weights(request->config) || tws_config_quantizes_gradients(request->config);
  const int serial = kept->costs->serial, offloads = tws_config_offloads(request->config);
  const int in_step = t->in_step || (tws_offloads_in_step(request) && (serial || t->runs));
  const int beside = (offloads && !(serial && in_step)) || (z->overlap_comm && !serial);
  if (coded && beside && !in_step) return TWS_OK;
  TWS_TRY(find_gathers(kept, request, tail, &g, err));
  if (!coded) t->moves_s = g->least_s;
  if (offloads && !in_step) return TWS_OK;
  TWS_TRY(find_reductions(kept, request, tail, &all, NULL, &r, err));
  /* targets of two losses are counted beside what is gathered for the whole step */
  const int in_line = !z->overlap_comm || serial;
  if (in_step && (!g->begin.params.count || tws_network_losses(request->network) < 2))
    TWS_TRY(find_both(kept, g, r, in_line, &t->beside, err));
  t->moves_exact = !beside && g->in_order && r->in_order;
  if (t->moves_exact) TWS_TRY(find_both(kept, g, r, 1, &t->beside, err));
  for (int later = 0; later < 2 && (t->moves_exact || t->beside); later++) {
    t->moves[later].kernel = g->time[later].kernel + r->time[later].kernel;
    t->moves[later].other = g->time[later].other + r->time[later].other;
    t->move_launches[later] = g->launches[later] + r->launches[later];
    memcpy(t->move_axis_s[later], g->axis_s[later], sizeof g->axis_s[later]);
    tws_add_axes(t->move_axis_s[later], 1, r->axis_s[later]);
  }
  return TWS_OK;
}

tws_code tws_moves_tail(tws_kept_moves *kept, const tws_plan_request *request, const tws_piece_key *tail,
                        const int *bounds, tws_plan_sample *out, tws_error *err) {
  lowered *l = NULL;
  TWS_TRY(lower_moves(kept, request, tail, NULL, bounds, &l, err));
  return tws_moves_of_tail(l->moves, out, err);
}

void tws_moves_are_of(tws_kept_moves *kept, const tws_stage_layers *layers) {
  lowered *last = kept->lowered[(kept->next + TWS_LOWERED_MOVES - 1) % TWS_LOWERED_MOVES];
  if (!last || last->known) return;
  last->layers = *layers;
  last->known = 1;
}

/* Which reductions each operation of the tail waits for. */
static tws_code run_beside(const tws_kept_moves *kept, const reductions *r, tws_tail_pieces *t, tws_error *err) {
  const tws_gradient_list *g = r->beside.gradients;
  if (!r->reduced || !t->waits) return TWS_OK;
  tws_overlapped *o = tws_arena_alloc(kept->arena, 1, sizeof *o);
  uint32_t *needed = tws_arena_alloc(kept->arena, (size_t)t->wait_count + 1, sizeof *needed);
  if (!o || !needed) return no_memory(err);
  for (int i = 0; i < t->wait_count; i++) {
    const tws_tail_wait *w = &t->waits[i];
    if (!w->elements) needed[i] = r->beside.count;
    for (uint32_t at = tws_gradient_at(g, w->first); at < g->count && g->items[at].first < w->first + w->elements; at++)
      if (r->reduced[at] > needed[i]) needed[i] = r->reduced[at];
  }
  *o = r->beside;
  o->needed = needed;
  t->overlapped = o;
  return TWS_OK;
}

/* Of a tail whose steps are its own: what waits for all of them. */
static tws_code wait_for_reduced(tws_kept_moves *kept, const reductions *r, tws_tail_pieces *t, tws_error *err) {
  const tws_piece_time reduced = tws_sum_of_times(t->reduced_time, r->time[0]);
  for (int s = 0; s < t->step_count; s++) {
    tws_tail_paths *ends = &t->steps[s].ends;
    if (!ends->count) continue;
    tws_tail_path *items = tws_arena_alloc(kept->arena, (size_t)ends->count, sizeof *items);
    if (!items) return no_memory(err);
    memcpy(items, ends->items, (size_t)ends->count * sizeof *items);
    ends->items = items;
    for (int i = 0; i < ends->count; i++) {
      if (items[i].after != TWS_TAIL_AFTER_REDUCED) continue;
      items[i].after = t->reduced_after;
      items[i].time = tws_sum_of_times(items[i].time, reduced);
    }
  }
  return TWS_OK;
}

tws_code tws_moves_that_wait(tws_kept_moves *kept, const tws_plan_request *request, const tws_piece_key *tail,
                             const tws_stage_layers *layers, const int *bounds, tws_tail_pieces *t, tws_error *err) {
  reductions *r = NULL;
  TWS_TRY(find_reductions(kept, request, tail, layers, bounds, &r, err));
  if (t->runs && r->reduced) t->overlapped = &r->beside;
  if (t->runs) return TWS_OK;
  if (t->overlaps) return run_beside(kept, r, t, err);
  tws_tail_step *steps = tws_arena_alloc(kept->arena, (size_t)t->step_count + 1, sizeof *steps);
  if (!steps) return no_memory(err);
  memcpy(steps, t->steps, (size_t)t->step_count * sizeof *steps);
  t->steps = steps;
  steps[t->reduced_step].time.kernel += r->time[0].kernel;
  steps[t->reduced_step].time.other += r->time[0].other;
  tws_add_axes(steps[t->reduced_step].axis_s, 1, r->axis_s[0]);
  t->counted.kernel += r->time[0].kernel;
  t->launches += r->launches[0];
  return wait_for_reduced(kept, r, t, err);
}
