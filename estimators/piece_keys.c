#include "estimators/piece_keys.h"

#include <string.h>

#include "base/memory.h"

/* Four words at a time, so that none waits for the one before. */
static uint64_t hash_of(const void *data, size_t bytes) {
  enum { LANES = 4 };
  const unsigned char *at = data;
  uint64_t lane[LANES] = {0x9e3779b97f4a7c15u, 0xc2b2ae3d27d4eb4fu, 0x165667b19e3779f9u, 0x87c37b91114253d5u};
  uint64_t words[LANES] = {0};
  for (; bytes > 0; at += sizeof words) {
    const size_t now = bytes < sizeof words ? bytes : sizeof words;
    if (now < sizeof words) memset(words, 0, sizeof words);
    memcpy(words, at, now);
    for (int i = 0; i < LANES; i++) {
      lane[i] = (lane[i] ^ words[i]) * 0xff51afd7ed558ccdu;
      lane[i] ^= lane[i] >> 29;
    }
    bytes -= now;
  }
  uint64_t hash = lane[0];
  for (int i = 1; i < LANES; i++) hash = (hash ^ lane[i]) * 0xc4ceb9fe1a85ec53u;
  return hash ^ hash >> 32;
}

static tws_piece_entry *find(const tws_piece_table *t, const tws_piece_key *k, uint64_t hash) {
  if (!t->size) return NULL;
  for (size_t i = hash & (t->size - 1); t->slots[i]; i = (i + 1) & (t->size - 1))
    if (t->slots[i]->hash == hash && memcmp(&t->slots[i]->key, k, sizeof *k) == 0) return t->slots[i];
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
  memset(k, 0, sizeof *k);
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

/* Gradients that are whole until the end of the step, so that micro-batches move none. */
static int is_flat(const tws_plan_request *request) {
  const tws_axes replicas = tws_axes_that_divide(TWS_DIVIDES_SAMPLES) | tws_axes_that_divide(TWS_DIVIDES_TOKENS);
  const tws_zero_config *z = &request->config->zero;
  if (z->stage >= 2 && tws_config_offloads(request->config)) return 0;
  return z->stage <= 1 || tws_topology_size(&request->topology, replicas) == 1;
}

void tws_body_key(const tws_plan_request *request, const int *spread, int split, tws_piece_key *k) {
  begin_key(request, k);
  tws_config *config = &k->config;
  const int stage = is_flat(request) ? 0 : 2; /* stage 3 computes the same: what it gathers and reduces is left out */
  memset(&config->zero, 0, sizeof config->zero);
  config->zero.stage = stage;
  config->pipeline_stages = config->virtual_stages = 0;
  config->pipeline_partition = NULL;
  k->bounded = stage > 0 || tws_config_checkpoints_on_host(config); /* copies run beside */
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
  *is_new = 0;
  if (t->last && memcmp(&t->last->key, k, sizeof *k) == 0) return t->last;
  const uint64_t hash = hash_of(k, sizeof *k);
  tws_piece_entry *e = find(t, k, hash);
  *is_new = !e;
  if (e) return t->last = e;
  if (2 * t->count + 2 > t->size && !grow(t)) return NULL;
  e = tws_calloc(1, sizeof *e);
  if (!e) return NULL;
  e->hash = hash;
  memcpy(&e->key, k, sizeof *k);
  size_t at = hash & (t->size - 1);
  while (t->slots[at]) at = (at + 1) & (t->size - 1);
  t->slots[at] = e;
  t->count++;
  return t->last = e;
}

void tws_piece_table_free(tws_piece_table *t) {
  for (size_t i = 0; i < t->size; i++) tws_free(t->slots[i]);
  tws_free(t->slots);
}
