/* Random jobs that are legal by construction, with every kind of parallelism. */
#ifndef TWS_TESTS_LEGAL_JOB_H
#define TWS_TESTS_LEGAL_JOB_H

#include <check.h>
#include <stdio.h>
#include <string.h>

#include "base/random.h"
#include "plan/pipeline_schedule.h"
#include "plan/plan.h"

enum { MOST_RANKS = 24 };

static uint64_t draw(uint64_t seed, uint64_t index, uint64_t n) {
  uint32_t out[4];
  tws_philox(seed, 11, index, out);
  return out[0] % n;
}

static int64_t pick(uint64_t seed, uint64_t index, const int64_t *from, uint64_t n) {
  return from[draw(seed, index, n)];
}

typedef struct shape {
  int llama, tied;
  int64_t layers, heads, kv_heads, head_size, inner, vocabulary, experts; /* 0: dense */
} shape;

static tws_network *network_of(const shape *s, int64_t multiple) {
  char text[640], experts[64] = "";
  long long hidden = (long long)(s->heads * s->head_size);
  if (s->experts)
    snprintf(experts, sizeof experts, "\"%s\":%lld,",
             s->llama ? "num_local_experts" : "expert_interval\":2,\"num_experts", (long long)s->experts);
  if (s->llama) {
    snprintf(text, sizeof text,
             "{\"model_type\":\"%s\",%s\"num_hidden_layers\":%lld,\"hidden_size\":%lld,\"num_attention_heads\":%lld,"
             "\"num_key_value_heads\":%lld,\"intermediate_size\":%lld,\"vocab_size\":%lld,\"rms_norm_eps\":1e-5,"
             "\"max_position_embeddings\":64,\"tie_word_embeddings\":%s}",
             s->experts ? "mixtral" : "llama", experts, (long long)s->layers, hidden, (long long)s->heads,
             (long long)s->kv_heads, (long long)s->inner, (long long)s->vocabulary, s->tied ? "true" : "false");
  } else {
    snprintf(text, sizeof text,
             "{\"model_type\":\"gpt2\",%s\"n_layer\":%lld,\"n_embd\":%lld,\"n_head\":%lld,\"n_inner\":%lld,"
             "\"n_positions\":64,\"vocab_size\":%lld,\"tie_word_embeddings\":%s}",
             experts, (long long)s->layers, hidden, (long long)s->heads, (long long)s->inner, (long long)s->vocabulary,
             s->tied ? "true" : "false");
  }
  tws_error err = {0};
  tws_json *json;
  tws_network *network;
  ck_assert(tws_json_parse(text, strlen(text), "test", &json, &err) == TWS_OK);
  ck_assert_msg(tws_network_from_json(json, multiple, &network, &err) == TWS_OK, "%s: %s", text, err.message);
  tws_json_destroy(json);
  return network;
}

/* Draws groups of ranks that each hold all partitions (MiCS), within nodes or across them; returns the number of
 * replicas, as many as MOST_RANKS allows. */
static int64_t draw_groups(uint64_t seed, tws_config *c, int64_t replicas) {
  const int64_t inside = c->tensor_ranks * c->sequence_ranks, near = 1 + (int64_t)draw(seed, 71, 3);
  int64_t nodes = 1 + (int64_t)draw(seed, 77, 3);
  c->zero.quantized_gradients = 0;
  if (near * nodes * c->sequence_ranks < 2) nodes = 2;
  c->zero.shard_ranks = near * nodes * c->sequence_ranks;
  c->zero.hierarchical_gather = draw(seed, 78, 3) > 0;
  if (c->zero.hierarchical_gather) c->zero.node_ranks = near * c->sequence_ranks;
  for (int64_t groups = 1 + (int64_t)draw(seed, 79, 3); groups > 0; groups--)
    if (inside * near * nodes * groups <= MOST_RANKS) return near * nodes * groups;
  while (replicas % (near * nodes)) replicas--; /* 0: a group is more */
  return replicas > 0 ? replicas : 1;
}

/* Draws which ranks ZeRO takes for one node, for secondary partitions or quantized gradients; returns the number of
 * replicas, which grows where MOST_RANKS allows it. */
static int64_t draw_nodes(uint64_t seed, tws_config *c, int64_t replicas) {
  const int64_t inside = c->tensor_ranks * c->sequence_ranks, nodes = 2 + (int64_t)draw(seed, 70, 2);
  const int64_t near = 1 + (int64_t)draw(seed, 71, 3);
  c->zero.quantized_gradients = draw(seed, 74, 3) == 0;
  if (c->zero.stage == 3 && draw(seed, 76, 3) == 0) return draw_groups(seed, c, replicas);
  if (c->zero.stage != 3 || draw(seed, 72, 2)) return replicas;
  if (inside * nodes * near <= MOST_RANKS) replicas = nodes * near;
  while (replicas % near) replicas--; /* 0: near is more */
  if (c->zero.quantized_gradients && draw(seed, 75, 2))
    c->zero.node_ranks = near * c->sequence_ranks;
  else
    c->zero.secondary_ranks = near * c->sequence_ranks;
  return replicas > 0 ? replicas : 1;
}

/* Least common multiple. */
static int64_t common(int64_t a, int64_t b) {
  int64_t multiple = a;
  while (multiple % b) multiple += a;
  return multiple;
}

static tws_config legal_job(uint64_t seed, shape *s, int *world) {
  tws_config *base, c;
  ck_assert(tws_config_default(&base, NULL) == TWS_OK);
  c = *base;
  c.store = NULL;
  tws_config_destroy(base);
  const int64_t tensors[] = {1, 1, 2, 2, 3, 4}, sequences[] = {1, 1, 2, 3, 4}, stages[] = {1, 1, 2, 3, 4};
  if (pick(seed, 1, (const int64_t[]){0, 0, 1}, 3)) tws_axis_order_parse("model,sequence,data,pipe", &c.axis_order);
  c.tensor_ranks = pick(seed, 2, tensors, 6);
  c.sequence_ranks = pick(seed, 3, sequences, 5);
  c.pipeline_stages = pick(seed, 4, stages, 5);
  int64_t replicas = 1 + (int64_t)draw(seed, 5, 3), inside = c.tensor_ranks * c.sequence_ranks;
  while (inside * c.pipeline_stages * replicas > MOST_RANKS) {
    if (replicas > 1) {
      replicas--;
    } else {
      c.pipeline_stages--;
    }
  }
  c.zero.stage = (int)draw(seed, 6, c.pipeline_stages > 1 ? 2 : 4);
  replicas = draw_nodes(seed, &c, replicas);
  *world = (int)(inside * c.pipeline_stages * replicas);
  c.pipeline_schedule = (int)draw(seed, 7, TWS_PIPELINE_KIND_COUNT);
  c.virtual_stages = c.pipeline_schedule == TWS_PIPELINE_INTERLEAVED && c.pipeline_stages > 1 ? 2 : 1;
  c.accumulation_steps = 1 + (int64_t)draw(seed, 8, 6);
  if (c.pipeline_stages > 1) c.accumulation_steps = c.pipeline_stages * (1 + (int64_t)draw(seed, 8, 3));
  c.micro_batch_size = 1 + (int64_t)draw(seed, 9, 3);
  c.tensor_overlap = (int)draw(seed, 10, 2);
  c.tensor_chunks = 1 + (int64_t)draw(seed, 11, 3);
  c.tensor_sequence_parallel = (int)draw(seed, 12, 2);
  c.loss_tiles = 1 + (int64_t)draw(seed, 13, 3);
  c.mlp_tiles = 1 + (int64_t)draw(seed, 14, 3);
  c.recompute = (tws_recompute)draw(seed, 15, TWS_RECOMPUTE_COUNT);
  c.recompute_operations = (const char *[]){NULL, "norm,product", "attention,sum"}[draw(seed, 43, 3)];
  c.recompute_budget = (double)draw(seed, 44, 5) / 4;
  c.recompute_every = 1 + (int64_t)draw(seed, 45, 2);
  c.recompute_whole = (int)draw(seed, 48, 2);
  c.zero.by_block = draw(seed, 46, 3) == 0;
  if (c.zero.stage == 3 && !c.zero.by_block && draw(seed, 60, 2))
    c.linear_tile_size = 130 + (int64_t)draw(seed, 61, 900);
  int64_t parts = common(common(c.tensor_chunks * c.tensor_ranks, c.loss_tiles), c.mlp_tiles);
  int64_t share = 1 + (int64_t)draw(seed, 16, 8); /* number of tokens of a sequence per rank */
  c.sequence_length = c.sequence_ranks * share;
  if (c.sequence_ranks > 1 && share % 2 == 0) c.sequence_algorithm = (int)draw(seed, 47, 2);
  c.micro_batch_size *= common(parts, share) / share;
  c.dtype = (const tws_dtype[]){TWS_F32, TWS_BF16, TWS_F16}[draw(seed, 17, 3)];
  c.accumulation_dtype = draw(seed, 18, 2) && c.zero.stage > 0 ? TWS_F32 : c.dtype;
  c.bf16_masters = c.dtype == TWS_BF16 && c.accumulation_dtype == TWS_BF16 && c.zero.stage > 0;
  c.communication_dtype = (int)draw(seed, 80, 4); /* none, or one of three */
  c.sequence_communication = (int)draw(seed, 81, 4);
  c.sparse_gradients = c.zero.stage == 0 && draw(seed, 82, 4) == 0;
  c.prescales = draw(seed, 83, 4) == 0;
  c.predivide = draw(seed, 84, 2) ? 1 : 3;
  c.bf16_moments = (int)draw(seed, 27, 2);
  c.stochastic_rounding = draw(seed, 28, 4) != 0;
  c.zero.quantized_weights = draw(seed, 73, 3) == 0;
  c.zero.round_robin_gradients = (int)draw(seed, 29, 2);
  c.zero.overlap_comm = (int)draw(seed, 19, 2);
  c.zero.reduce_bucket_size = 1 + (int64_t)draw(seed, 20, 20000);
  c.zero.prefetch_bucket_size = (int64_t)draw(seed, 21, 20000);
  c.zero.param_persistence_threshold = (int64_t)draw(seed, 22, 200);
  c.zero.max_live_parameters = 1 + (int64_t)draw(seed, 23, 20000);
  c.zero.max_reuse_distance = (int64_t)draw(seed, 24, 20000);
  c.zero.sub_group_size = 1 + (int64_t)draw(seed, 25, 20000);
  c.gradient_clipping = (double)draw(seed, 26, 2);
  *s = (shape){.llama = (int)draw(seed, 30, 2),
               .tied = (int)draw(seed, 31, 2),
               .layers = c.pipeline_stages * c.virtual_stages + (int64_t)draw(seed, 32, 3),
               .heads = inside * (1 + (int64_t)draw(seed, 33, 2)),
               .head_size = 2 * (1 + (int64_t)draw(seed, 34, 2)),
               .inner = c.tensor_ranks * (4 + (int64_t)draw(seed, 35, 9)),
               .vocabulary = 20 + (int64_t)draw(seed, 36, 30)};
  if (draw(seed, 48, 4) == 0 && s->layers > 1) { /* the number of experts is a multiple of the ranks that divide them */
    c.expert_ranks =
        draw(seed, 49, 3) && c.zero.secondary_ranks < 2 && !c.zero.quantized_gradients && c.zero.shard_ranks < 2
            ? replicas
            : 1;
    s->experts = c.expert_ranks * (1 + (int64_t)draw(seed, 50, 2)) + (c.expert_ranks == 1);
    c.expert_dispatch_fp8 = (int)draw(seed, 51, 2);
    c.expert_capacity_factor = draw(seed, 52, 2) ? 1.25 : 0;
    c.expert_dropless = (int)draw(seed, 53, 2);
    c.expert_tensor_parallel = (int)draw(seed, 54, 2);
    c.data_before_experts = (int)draw(seed, 55, 2);
  }
  if (c.dtype != TWS_F32 && draw(seed, 63, 3) == 0) { /* products in 8 bits need multiples of 16 */
    c.matmul_dtype = TWS_MATMUL_FP8;
    c.fp8_recipe = draw(seed, 90, 2) ? TWS_FP8_DELAYED : TWS_FP8_TENSORWISE;
    s->head_size = 16;
    s->inner *= 16;
    c.micro_batch_size *= 16;
    c.linear_tile_size = 0;
  }
  s->kv_heads = s->heads;
  if (s->llama && draw(seed, 37, 2)) s->kv_heads = draw(seed, 38, 2) ? c.tensor_ranks : inside;
  const int whole_tokens = c.tensor_ranks == 1 || !c.tensor_sequence_parallel;
  const int64_t chunks = 2 + (int64_t)draw(seed, 65, 4);
  if (c.pipeline_stages == 1 && c.sequence_algorithm == TWS_SEQUENCE_ULYSSES && whole_tokens &&
      c.sequence_length * chunks <= 64 && draw(seed, 64, 8) == 0) {
    c.attention_chunks = chunks;
    c.sequence_length *= chunks;
  }
  return c;
}

#endif
