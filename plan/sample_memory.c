#include "plan/lower.h"

/* All that a part of a network depends on. */
typedef struct part_key {
  const tws_network *whole;
  tws_placed between;
  int splits_experts, ring, sequence, tensor, tensor_index, expert, expert_index;
} part_key;

typedef struct kept_part {
  part_key key;
  tws_local local;
  tws_layer_list layers;
  struct kept_part *next;
} kept_part;

typedef struct kept_ranks {
  part_key key; /* of any of them */
  tws_alike_ranks ranks;
  struct kept_ranks *next;
} kept_ranks;

struct tws_sample_memory {
  tws_arena *arena;
  kept_part *parts;
  kept_ranks *ranks;
};

tws_sample_memory *tws_sample_memory_create(void) {
  tws_sample_memory *m = tws_calloc(1, sizeof *m);
  if (m) m->arena = tws_arena_create();
  if (m && m->arena) return m;
  tws_free(m);
  return NULL;
}

void tws_sample_memory_destroy(tws_sample_memory *m) {
  if (!m) return;
  tws_arena_destroy(m->arena);
  tws_free(m);
}

static int is_same(const part_key *a, const part_key *b) {
  return a->whole == b->whole && a->between == b->between && a->splits_experts == b->splits_experts &&
         a->ring == b->ring && a->sequence == b->sequence && a->tensor == b->tensor &&
         a->tensor_index == b->tensor_index && a->expert == b->expert && a->expert_index == b->expert_index;
}

static part_key key_of(const tws_network *whole, const tws_sharding *sharding) {
  const tws_position *p = &sharding->position;
  return (part_key){.whole = whole,
                    .between = sharding->between,
                    .splits_experts = sharding->splits_experts,
                    .ring = sharding->ring,
                    .sequence = p->ranks[TWS_AXIS_SEQUENCE],
                    .tensor = p->ranks[TWS_AXIS_MODEL],
                    .tensor_index = p->index[TWS_AXIS_MODEL],
                    .expert = p->ranks[TWS_AXIS_EXPERT],
                    .expert_index = p->index[TWS_AXIS_EXPERT]};
}

tws_alike_ranks *tws_sample_memory_ranks(tws_sample_memory *m, const tws_network *whole, const tws_sharding *sharding) {
  part_key key = key_of(whole, sharding);
  key.tensor_index = 0;
  kept_ranks *r = m->ranks;
  while (r && !is_same(&r->key, &key)) r = r->next;
  if (r) return &r->ranks;
  r = tws_arena_alloc(m->arena, 1, sizeof *r);
  if (!r) return NULL;
  *r = (kept_ranks){.key = key, .next = m->ranks};
  r->ranks.like_before = tws_arena_alloc(m->arena, (size_t)key.tensor, 1);
  if (!r->ranks.like_before) return NULL;
  m->ranks = r;
  return &r->ranks;
}

tws_code tws_sample_memory_shard(tws_sample_memory *m, const tws_network *whole, const tws_sharding *sharding,
                                 tws_local *local, tws_error *err) {
  const part_key key = key_of(whole, sharding);
  kept_part *part = m->parts;
  while (part && !is_same(&part->key, &key)) part = part->next;
  if (!part) {
    part = tws_arena_alloc(m->arena, 1, sizeof *part);
    if (!part) return tws_fail(err, TWS_MEMORY, NULL, "no memory for a sample");
    TWS_TRY(tws_shard_network(whole, sharding, m->arena, m->arena, &part->local, err));
    TWS_TRY(tws_pipeline_layers(part->local.network, m->arena, &part->layers, err));
    part->local.layers = &part->layers;
    part->key = key;
    part->next = m->parts;
    m->parts = part;
  }
  *local = part->local;
  return TWS_OK;
}
