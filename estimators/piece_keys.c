#include "estimators/piece_keys.h"

#include <string.h>

#include "base/memory.h"

enum { WORDS = sizeof(tws_piece_key) / sizeof(uint64_t) };
_Static_assert(sizeof(tws_piece_key) % sizeof(uint64_t) == 0, "keys are words");

/* What it has that the table's first key has not. */
static size_t list_words(const tws_piece_table *t, const tws_piece_key *k, tws_piece_word *words) {
  const unsigned char *own = (const unsigned char *)k, *first = (const unsigned char *)t->first;
  size_t count = 0;
  for (size_t i = 0; i < WORDS; i++) {
    uint64_t a, b;
    memcpy(&a, own + i * sizeof a, sizeof a);
    memcpy(&b, first + i * sizeof b, sizeof b);
    words[count] = (tws_piece_word){i, a};
    count += a != b;
  }
  return count;
}

static uint64_t hash_of(const tws_piece_word *words, size_t count) {
  uint64_t hash = 0x9e3779b97f4a7c15u;
  for (size_t i = 0; i < count; i++) {
    hash = (hash ^ words[i].value ^ words[i].at << 56) * 0xff51afd7ed558ccdu;
    hash ^= hash >> 29;
  }
  return hash ^ hash >> 32;
}

static tws_piece_entry *find(const tws_piece_table *t, const tws_piece_word *words, size_t count, uint64_t hash) {
  if (!t->size) return NULL;
  for (size_t i = hash & (t->size - 1); t->slots[i]; i = (i + 1) & (t->size - 1)) {
    tws_piece_entry *e = t->slots[i];
    if (e->hash == hash && e->count == count && memcmp(e->words, words, count * sizeof *words) == 0) return e;
  }
  return NULL;
}

static int grow(tws_piece_table *t) {
  const size_t size = t->size ? 2 * t->size : 256;
  tws_piece_entry **slots = tws_calloc(size, sizeof *slots);
  if (!slots) return 0;
  for (size_t i = 0; i < t->size; i++) {
    if (!t->slots[i]) continue;
    size_t at = t->slots[i]->hash & (size - 1);
    while (slots[at]) at = (at + 1) & (size - 1);
    slots[at] = t->slots[i];
  }
  tws_free(t->slots);
  t->slots = slots;
  t->size = size;
  return 1;
}

/* What no piece depends on. */
static void begin_key(const tws_plan_request *request, tws_piece_key *k) {
  const size_t behind = offsetof(tws_piece_key, config) + sizeof k->config;
  memset((char *)k + behind, 0, sizeof *k - behind);
  k->network = request->network;
  k->backend = (int)request->backend;
  k->threads = request->threads;
  memcpy(&k->config, request->config, sizeof k->config);
  tws_config *config = &k->config;
  config->store = NULL;
  config->train_batch_size = config->accumulation_steps = config->ranks = config->steps_per_print = 0;
  config->pipeline_schedule = 0;
  if (config->zero.stage != 3) config->linear_tile_size = 0;
}

static int replicas_of(const tws_plan_request *request) {
  const tws_axes replicas = tws_axes_that_divide(TWS_DIVIDES_SAMPLES) | tws_axes_that_divide(TWS_DIVIDES_TOKENS);
  return tws_topology_size(&request->topology, replicas);
}

/* Of stages 2 and 3, with replicas or without. */
static int is_alone(const tws_plan_request *request) {
  return tws_config_offloads_in_step(request->config) && replicas_of(request) == 1;
}

int tws_offloads_behind(const tws_plan_request *request) {
  if (tws_config_offloads_behind(request->config)) return 1;
  const int whole = tws_topology_size(&request->topology, 1u << TWS_AXIS_MODEL) > 1 || request->config->zenflow.on;
  return is_alone(request) && !tws_config_fetches(request->config) && whole; /* gradients are, until the step ends */
}

int tws_offloads_in_step(const tws_plan_request *request) {
  return tws_config_offloads_in_step(request->config) && !tws_offloads_behind(request);
}

/* Gradients that are whole until the end of the step, so that micro-batches move none. */
static int is_flat(const tws_plan_request *request) {
  const tws_zero_config *z = &request->config->zero;
  if (z->stage >= 2 && tws_config_offloads(request->config)) return tws_offloads_behind(request);
  return z->stage <= 1 || replicas_of(request) == 1;
}

void tws_body_key(const tws_plan_request *request, const int *spread, int split, tws_piece_key *k) {
  begin_key(request, k);
  tws_config *config = &k->config;
  const int stage = is_flat(request) ? 0 : 2; /* stage 3 computes the same: what it gathers and reduces is left out */
  memset(&config->zero, 0, sizeof config->zero);
  config->zero.stage = stage;
  config->pipeline_stages = config->virtual_stages = 0;
  config->pipeline_partition = NULL;
  k->bounded = stage > 0;
  const int one = tws_topology_world(&request->topology) == 1 && request->config->zero.offload_optimizer;
  if (is_alone(request) && tws_config_fetches(request->config) && !one)
    k->bounded = 2; /* gradients are whole, and parameters are not */
  k->split = split;
  for (int axis = 0; axis < TWS_AXIS_COUNT; axis++) {
    if (axis == TWS_AXIS_PIPE || axis == TWS_AXIS_DATA) continue;
    k->spread[axis] = (spread[axis] << 16) + tws_topology_size(&request->topology, 1u << axis);
  }
}

/* What is visited when, unless which layers are alike depends on it: by rules that count them. */
static void forget_visits(tws_config *config) {
  if (config->recompute_every > 1 || config->recompute == TWS_RECOMPUTE_OPERATIONS) return;
  config->recompute = (tws_recompute)0;
  config->recompute_operations = NULL;
  config->recompute_budget = 0;
  config->recompute_every = 0;
  config->recompute_whole = 0;
  config->loss_tiles = config->mlp_tiles = config->attention_chunks = 0;
}

static void forget_gathers(tws_config *config) {
  forget_visits(config);
  config->zero.prefetch_bucket_size = 0;
  config->zero.max_live_parameters = config->zero.max_reuse_distance = 0;
}

void tws_end_key(const tws_piece_key *tail, tws_piece_key *k) {
  *k = *tail;
  tws_zero_config *z = &k->config.zero;
  k->config.virtual_stages = 0;
  if (z->stage != 1 || z->overlap_comm) z->reduce_bucket_size = 0;        /* only here reductions wait for the end */
  if (z->stage == 3 && z->offload_param != 2) forget_gathers(&k->config); /* what a disk is read for follows them */
}

void tws_gathers_key(const tws_piece_key *tail, tws_piece_key *k) {
  *k = *tail;
  k->config.zero.reduce_bucket_size = 0;
}

void tws_reductions_key(const tws_piece_key *tail, tws_piece_key *k) {
  *k = *tail;
  k->config.virtual_stages = 0; /* layers say which they are, and reductions go through them in their order */
  forget_gathers(&k->config);
}

void tws_tail_key(const tws_plan_request *request, tws_piece_key *k) {
  begin_key(request, k);
  tws_config *config = &k->config;
  config->micro_batch_size = 0;
  /* neighbours keep what is gathered again, be it in another micro-batch */
  if (tws_config_secondary_ranks(config)) config->accumulation_steps = 1 + (request->config->accumulation_steps > 1);
  if (config->zero.stage != 3) forget_visits(config); /* gathers of stage 3 follow what is visited */
  k->topology.axes = request->topology.axes;
  for (int i = 0; i < request->topology.axes; i++) {
    k->topology.axis[i] = request->topology.axis[i];
    k->topology.dim[i] = request->topology.dim[i];
  }
  if (tws_topology_size(&request->topology, TWS_AXES_PIPE) > 1) config->zero.overlap_comm = 0;
}

tws_piece_entry *tws_piece_look_up(tws_piece_table *t, const tws_piece_key *k, int *is_new) {
  tws_piece_word words[WORDS + 1]; /* one behind the last is written */
  *is_new = 0;
  if (!t->first) {
    t->first = tws_calloc(1, sizeof *t->first);
    if (!t->first) return NULL;
    memcpy(t->first, k, sizeof *k);
  }
  const size_t count = list_words(t, k, words);
  const uint64_t hash = hash_of(words, count);
  tws_piece_entry *e = find(t, words, count, hash);
  *is_new = !e;
  if (e) return e;
  if (2 * t->count + 2 > t->size && !grow(t)) return NULL;
  e = tws_calloc(1, sizeof *e + count * sizeof *words);
  if (!e) return NULL;
  e->hash = hash;
  e->count = count;
  memcpy(e->words, words, count * sizeof *words);
  size_t at = hash & (t->size - 1);
  while (t->slots[at]) at = (at + 1) & (t->size - 1);
  t->slots[at] = e;
  t->count++;
  return e;
}

void tws_piece_table_free(tws_piece_table *t) {
  for (size_t i = 0; i < t->size; i++) tws_free(t->slots[i]);
  tws_free(t->slots);
  tws_free(t->first);
}
