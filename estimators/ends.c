#include "estimators/ends.h"

#include <string.h>

#include "plan/pipeline_grid.h"

/* Which layers a stage has; stages that have equal ones end their steps alike. */
typedef struct stage_class {
  int alike;                  /* how many of those that are */
  int other_count, others[8]; /* where the rest begins and ends, in layers */
} stage_class;

typedef struct stage_end { /* of a configuration, but for its virtual stages */
  stage_class of;
  tws_tail_pieces pieces;
  struct stage_end *next;
} stage_end;

typedef struct partition { /* of layers into blocks */
  int *bounds, blocks;
  int alike_first, alike_end;
  uint32_t *layer_modules; /* see tws_tail_pieces */
} partition;

static tws_code no_memory(tws_error *err) {
  return tws_fail(err, TWS_MEMORY, NULL, "no memory for the ends of steps");
}

/* What is moved does not depend on streams that run beside, nor on what goes to the host. */
static void move_alone(const tws_ends *c, tws_config *config) {
  if (!c->costs->serial) config->zero.overlap_comm = 0;
  config->zero.offload_optimizer = config->zero.offload_param = 0;
}

/* From a body of all layers. */
static tws_code sample_moves(tws_ends *c, const tws_plan_request *request, int layers, const tws_move_pieces **out,
                             tws_error *err) {
  tws_config config = *request->config;
  tws_plan_request r = *request;
  tws_plan_sample sample;
  tws_move_pieces *made = tws_arena_alloc(c->arena, 1, sizeof *made);
  if (!made) return no_memory(err);
  r.config = &config;
  move_alone(c, &config);
  const tws_sample_request wanted = {.plan = &r, .end_layer = layers, .alike_known = 1, .memory = c->memory};
  TWS_TRY(tws_plan_sample_make(&wanted, &sample, err));
  const tws_code code = tws_pieces_of_moves(&sample, c->costs, c->arena, made, err);
  tws_plan_sample_free(&sample);
  c->lowered++;
  *out = made;
  return code;
}

/* What stages 2 and 3 do in every micro-batch: gathers and reductions depend on knobs of their own, and a sample tells
 * of both. With copies to the host, which have streams of their own, only the least of it is known. */
static tws_code find_moves(tws_ends *c, const tws_plan_request *request, const tws_piece_key *tail, tws_tail_pieces *t,
                           tws_error *err) {
  const tws_zero_config *z = &request->config->zero;
  const int known = !tws_config_offloads(request->config) && (!z->overlap_comm || c->costs->serial);
  tws_piece_key k;
  int is_new;
  if (z->stage < 2) return TWS_OK;
  /* plans tell: nothing is a bound that always holds */
  if (tws_config_secondary_ranks(request->config) || tws_config_quantizes_weights(request->config)) return TWS_OK;
  tws_gathers_key(tail, &k);
  move_alone(c, &k.config);
  tws_piece_entry *gathers = tws_piece_look_up(&c->gathers, &k, &is_new), *rest = NULL;
  tws_reductions_key(tail, &k);
  if (known) rest = tws_piece_look_up(&c->reductions, &k, &is_new);
  if (!gathers || (known && !rest)) return no_memory(err);
  if (!gathers->value || (known && !rest->value)) {
    const tws_move_pieces *made = NULL;
    TWS_TRY(sample_moves(c, request, t->layer_count, &made, err));
    if (!gathers->value) gathers->value = (void *)(uintptr_t)made;
    if (known && !rest->value) rest->value = (void *)(uintptr_t)made;
  }
  const tws_move_pieces *g = gathers->value, *other = known ? rest->value : NULL;
  t->moves_s = g->least_s;
  t->moves_exact = known && g->in_order && other->in_order;
  for (int later = 0; later < 2 && t->moves_exact; later++) {
    t->moves[later].kernel = g->gathers[later].kernel + other->rest[later].kernel;
    t->moves[later].other = g->gathers[later].other + other->rest[later].other;
    t->move_launches[later] = other->launches[later];
  }
  return TWS_OK;
}

/* Where each layer begins in the network; NULL: its modules do not follow one another. */
static uint32_t *layer_modules_of(const tws_plan_sample *sample, tws_arena *arena) {
  const uint32_t modules = sample->plan->network->module_count;
  uint32_t *first = tws_arena_alloc(arena, (size_t)sample->layer_count + 1, sizeof *first);
  int layer = -1;
  for (uint32_t m = 0; m < modules && first; m++) {
    const int own = sample->layer_of[m];
    if (own != layer && own != layer + 1) return NULL;
    if (own != layer) first[own] = m;
    layer = own;
  }
  if (first) first[sample->layer_count] = modules;
  return layer + 1 == sample->layer_count ? first : NULL;
}

static tws_code keep_partition(tws_ends *c, const tws_plan_sample *sample, partition *cut, tws_error *err) {
  const size_t count = (size_t)sample->block_count + 1;
  cut->bounds = tws_arena_alloc(c->arena, count, sizeof *cut->bounds);
  if (!cut->bounds) return no_memory(err);
  memcpy(cut->bounds, sample->bounds, count * sizeof *cut->bounds);
  cut->blocks = sample->block_count;
  cut->alike_first = sample->alike_first;
  cut->alike_end = sample->alike_end;
  cut->layer_modules = layer_modules_of(sample, c->arena);
  return TWS_OK;
}

static tws_code sample_tail(tws_ends *c, const tws_plan_request *request, int stage, partition *cut,
                            tws_tail_pieces *out, tws_error *err) {
  tws_plan_request r = *request;
  tws_plan_sample sample;
  r.rank = tws_pipeline_grid_stage(&r.topology, 0, stage);
  const tws_sample_request wanted = {.plan = &r, .tail = 1, .alike_known = cut->bounds != NULL, .memory = c->memory};
  TWS_TRY(tws_plan_sample_make(&wanted, &sample, err));
  tws_code code = tws_pieces_of_tail(&sample, c->costs, c->arena, out, err);
  if (!cut->bounds && code == TWS_OK) code = keep_partition(c, &sample, cut, err);
  out->alike_first = cut->alike_first;
  out->alike_end = cut->alike_end;
  out->layer_modules = cut->layer_modules;
  tws_plan_sample_free(&sample);
  c->lowered++;
  return code;
}

static void add_layers(stage_class *k, int first, int end) {
  if (first >= end) return;
  if (k->other_count && k->others[k->other_count - 1] == first) {
    k->others[k->other_count - 1] = end;
    return;
  }
  k->others[k->other_count++] = first;
  k->others[k->other_count++] = end;
}

/* 0: its layers lie in too many places. */
static int class_of(const partition *cut, int stage, int stages, stage_class *k) {
  memset(k, 0, sizeof *k);
  for (int b = stage; b < cut->blocks; b += stages) {
    const int first = cut->bounds[b], end = cut->bounds[b + 1];
    const int from = first > cut->alike_first ? first : cut->alike_first;
    const int to = end < cut->alike_end ? end : cut->alike_end;
    if (k->other_count > (int)(sizeof k->others / sizeof *k->others) - 4) return 0;
    if (to > from) k->alike += to - from;
    add_layers(k, first, end < cut->alike_first ? end : cut->alike_first);
    add_layers(k, first > cut->alike_end ? first : cut->alike_end, end);
  }
  return 1;
}

/* The chunks are the stage's own. */
static tws_code give_chunks(tws_ends *c, const partition *cut, int stage, int stages, tws_tail_pieces *t,
                            tws_error *err) {
  t->chunk_count = cut->blocks / stages;
  t->chunks = tws_arena_alloc(c->arena, (size_t)t->chunk_count, sizeof *t->chunks);
  if (!t->chunks) return no_memory(err);
  for (int i = 0; i < t->chunk_count; i++)
    t->chunks[i] = (tws_sample_chunk){cut->bounds[i * stages + stage], cut->bounds[i * stages + stage + 1]};
  return TWS_OK;
}

/* Of one stage: lowered, or known of one that has equal layers. */
static tws_code find_end(tws_ends *c, const tws_plan_request *request, int stage, int stages, partition *cut,
                         stage_end **known, tws_tail_pieces *out, tws_error *err) {
  stage_class k;
  if (!cut->bounds || !class_of(cut, stage, stages, &k)) {
    TWS_TRY(sample_tail(c, request, stage, cut, out, err));
    if (!class_of(cut, stage, stages, &k)) return TWS_OK;
  } else {
    for (const stage_end *e = *known; e; e = e->next)
      if (memcmp(&e->of, &k, sizeof k) == 0) {
        *out = e->pieces;
        return give_chunks(c, cut, stage, stages, out, err);
      }
    TWS_TRY(sample_tail(c, request, stage, cut, out, err));
  }
  stage_end *e = tws_arena_alloc(c->arena, 1, sizeof *e);
  if (!e) return no_memory(err);
  *e = (stage_end){k, *out, *known};
  *known = e;
  return TWS_OK;
}

static tws_code make_tails(tws_ends *c, const tws_plan_request *request, const tws_piece_key *key, int alone,
                           tws_step_ends *t, tws_error *err) {
  tws_piece_key of_cut = *key, of_end;
  int is_new;
  tws_end_key(key, &of_end);
  memset(&of_cut.config.zero, 0, sizeof of_cut.config.zero);
  tws_piece_entry *cuts = tws_piece_look_up(&c->partitions, &of_cut, &is_new);
  tws_piece_entry *ends = tws_piece_look_up(&c->stages, &of_end, &is_new);
  if (cuts && !cuts->value) cuts->value = tws_arena_alloc(c->arena, 1, sizeof(partition));
  t->stages = tws_topology_size(&request->topology, TWS_AXES_PIPE);
  t->stage = tws_arena_alloc(c->arena, (size_t)t->stages, sizeof *t->stage);
  if (!cuts || !ends || !cuts->value || !t->stage) return no_memory(err);
  stage_end *known = ends->value;
  for (int s = 0; s < t->stages && t->code == TWS_OK; s++) {
    if (!alone && s > 0) known = NULL; /* groups lie differently on nodes */
    t->code = find_end(c, request, s, t->stages, cuts->value, &known, &t->stage[s], &t->refusal);
    if (t->code == TWS_OK) t->code = find_moves(c, request, key, &t->stage[s], &t->refusal);
  }
  if (alone || t->stages == 1) ends->value = known;
  return TWS_OK;
}

tws_code tws_ends_find(tws_ends *c, const tws_plan_request *request, int alone, const tws_step_ends **out,
                       tws_error *err) {
  tws_piece_key k;
  int is_new;
  tws_tail_key(request, &k);
  tws_piece_entry *e = tws_piece_look_up(&c->steps, &k, &is_new);
  if (!e) return no_memory(err);
  if (is_new) {
    e->value = tws_arena_alloc(c->arena, 1, sizeof(tws_step_ends));
    if (!e->value) return no_memory(err);
    TWS_TRY(make_tails(c, request, &k, alone, e->value, err));
  }
  const tws_step_ends *t = e->value;
  if (t->code != TWS_OK) {
    if (err) *err = t->refusal;
    return t->code;
  }
  *out = t;
  return TWS_OK;
}

void tws_ends_free(tws_ends *c) {
  tws_piece_table_free(&c->steps);
  tws_piece_table_free(&c->stages);
  tws_piece_table_free(&c->partitions);
  tws_piece_table_free(&c->gathers);
  tws_piece_table_free(&c->reductions);
}
