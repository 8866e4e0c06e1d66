/* The plan against its specification: golden vectors of ZeRO partitioning; random jobs through every stage, checked by
 * the verifier; and a verifier that has to notice plans that are broken on purpose. */
#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "base/random.h"
#include "estimators/estimators.h"
#include "plan/pipeline_schedule.h"
#include "plan/plan.h"
#include "plan/zero_partition.h"
#include "tests/members.h"
#include "tests/rounding_plan.h"
#include "tests/suite.h"

/* ---- ZeRO arithmetic ---- */

START_TEST(partition_golden) {
  tws_json *json = golden_file("zero_partition.json");
  const cJSON *c, *item;
  cJSON_ArrayForEach(c, member(json->root, "stage12")) {
    int count = 0, order[64], dp = integer(c, "dp");
    int64_t sizes[64], total = 0;
    cJSON_ArrayForEach(item, member(c, "sizes")) total += sizes[count++] = (int64_t)item->valuedouble;
    tws_zero_flatten_order(count, dp, is_true(c, "round_robin"), order);
    same_list(member(c, "order"), order, count, "order");
    ck_assert_int_eq(tws_zero_aligned_numel(total, dp), integer(c, "aligned"));
    int64_t part = tws_zero_aligned_numel(total, dp) / dp;
    ck_assert_int_eq(part, integer(c, "partition_size"));
    cJSON_ArrayForEach(item, member(c, "partitions")) {
      int rank = integer(item, "rank"), in = 0, inside[64];
      ck_assert_int_eq(tws_zero_padding(total, part, rank), integer(item, "padding"));
      int64_t at = 0, first_offset = 0;
      for (int i = 0; i < count; i++) { /* finds the parameters in a rank's partition, and its offset in the first of
                                         * them */
        int64_t end = at + sizes[order[i]];
        if (at < part * (rank + 1) && end > part * rank) {
          if (at < part * rank) first_offset = part * rank - at;
          inside[in++] = order[i];
        }
        at = end;
      }
      same_list(member(item, "params_in_partition"), inside, in, "params_in_partition");
      ck_assert_int_eq(first_offset, integer(item, "first_offset"));
    }
  }
  cJSON_ArrayForEach(c, member(json->root, "stage3_subgroups")) {
    int count = 0, group_of[64], groups;
    int64_t parts[64];
    cJSON_ArrayForEach(item, member(c, "partition_numels")) parts[count++] = (int64_t)item->valuedouble;
    const cJSON *size = member(c, "sub_group_size"); /* null: no limit */
    groups = tws_zero3_sub_groups(count, parts, cJSON_IsNull(size) ? INT64_MAX : (int64_t)size->valuedouble, group_of);
    ck_assert_int_eq(groups, cJSON_GetArraySize(member(c, "groups")));
    int p = 0, group = 0;
    const cJSON *list, *entry;
    cJSON_ArrayForEach(list, member(c, "groups")) {
      cJSON_ArrayForEach(entry, list) {
        ck_assert_int_eq((int)entry->valuedouble, p);
        ck_assert_int_eq(group_of[p++], group);
      }
      group++;
    }
  }
  cJSON_ArrayForEach(c, member(json->root, "stage3_partition")) {
    int world = integer(c, "world");
    int64_t part = tws_zero3_part(integer(c, "numel"), world);
    ck_assert_int_eq(part, integer(c, "partition_numel"));
    ck_assert_int_eq(part * world, integer(c, "aligned"));
  }
  tws_json_destroy(json);
}
END_TEST

/* ---- whole plans ---- */

static tws_config small_config(void) {
  tws_config c;
  memset(&c, 0, sizeof c);
  c.micro_batch_size = 2;
  c.accumulation_steps = 1;
  c.gradient_clipping = 1;
  c.dtype = c.accumulation_dtype = TWS_F32;
  c.zero = (tws_zero_config){.stage = 0,
                             .reduce_bucket_size = 500000000,
                             .reduce_scatter = 1,
                             .multi_rank_bucket_allreduce = 1,
                             .prefetch_bucket_size = 50000000,
                             .param_persistence_threshold = 100000,
                             .model_persistence_threshold = INT64_MAX / 2,
                             .max_live_parameters = 1000000000,
                             .max_reuse_distance = 1000000000,
                             .sub_group_size = 1000000000};
  c.optimizer = TWS_OPTIMIZER_ADAMW;
  c.lr = 1e-3;
  c.beta1 = 0.9;
  c.beta2 = 0.999;
  c.epsilon = 1e-8;
  c.adam_w_mode = c.bias_correction = 1;
  tws_axis_order_parse(TWS_AXIS_ORDER_DEFAULT, &c.axis_order);
  c.sequence_length = 8;
  return c;
}

static tws_topology data_topology(int ranks) {
  const tws_axis axis = TWS_AXIS_DATA;
  tws_topology t;
  ck_assert(tws_topology_make(&t, 1, &axis, &ranks, NULL) == TWS_OK);
  return t;
}

static tws_plan *build(const tws_network *network, const tws_config *config, int ranks, int rank) {
  tws_plan_request request = {.network = network,
                              .config = config,
                              .topology = data_topology(ranks),
                              .rank = rank,
                              .backend = TWS_BACKEND_HOST,
                              .threads = 1};
  tws_error err = {0};
  tws_plan *plan = NULL;
  ck_assert_msg(tws_plan_build(&request, &plan, &err) == TWS_OK, "%s", err.message);
  return plan;
}

static tws_network *network_of(const char *name) {
  tws_error err = {0};
  tws_network *network = NULL;
  ck_assert_msg(tws_network_load(name, 1, &network, &err) == TWS_OK, "%s", err.message);
  return network;
}

static uint64_t draw(uint64_t seed, uint64_t index, uint64_t n) {
  uint32_t out[4];
  tws_philox(seed, 7, index, out);
  return out[0] % n;
}

static tws_config random_config(uint64_t seed, int64_t params) {
  tws_config c = small_config();
  c.zero.stage = (int)draw(seed, 0, 4);
  c.micro_batch_size = 1 + (int64_t)draw(seed, 1, 3);
  c.accumulation_steps = 1 + (int64_t)draw(seed, 2, 4);
  c.recompute = (tws_recompute)draw(seed, 3, 3);
  c.zero.overlap_comm = (int)draw(seed, 4, 2);
  c.zero.reduce_scatter = draw(seed, 5, 4) != 0;
  c.zero.multi_rank_bucket_allreduce = draw(seed, 6, 2) != 0;
  c.zero.round_robin_gradients = (int)draw(seed, 7, 2);
  c.zero.allgather_sequential = draw(seed, 20, 4) == 0;
  c.zero.reduce_bucket_size = 1 + (int64_t)draw(seed, 8, (uint64_t)params);
  c.zero.prefetch_bucket_size = (int64_t)draw(seed, 9, (uint64_t)params);
  c.zero.param_persistence_threshold = (int64_t)draw(seed, 10, 5000);
  c.zero.max_live_parameters = 1 + (int64_t)draw(seed, 11, (uint64_t)params);
  c.zero.max_reuse_distance = (int64_t)draw(seed, 12, (uint64_t)params);
  c.zero.sub_group_size = 1 + (int64_t)draw(seed, 13, (uint64_t)params);
  c.zero.offload_optimizer = draw(seed, 21, 3) == 0;
  c.zero.offload_optimizer_pinned = (int)draw(seed, 22, 2);
  c.dtype = (const tws_dtype[]){TWS_F32, TWS_BF16, TWS_F16}[draw(seed, 14, 3)];
  c.accumulation_dtype = draw(seed, 15, 2) ? TWS_F32 : c.dtype;
  c.bf16_masters = c.dtype == TWS_BF16 && c.accumulation_dtype == TWS_BF16 && c.zero.stage > 0;
  c.communication_dtype = (int)draw(seed, 23, 4);
  c.bf16_moments = (int)draw(seed, 18, 2);
  c.stochastic_rounding = draw(seed, 19, 4) != 0;
  c.sequence_length = 1 + (int64_t)draw(seed, 16, 16);
  c.gradient_clipping = (double)draw(seed, 17, 2);
  if (c.zero.offload_optimizer || c.bf16_masters) return c;
  c.optimizer = (const tws_optimizer[]){TWS_OPTIMIZER_ADAMW, TWS_OPTIMIZER_MUON, TWS_OPTIMIZER_LAMB}[draw(seed, 24, 3)];
  c.muon_method = (int)draw(seed, 25, 2);
  const int whole = c.tensor_ranks <= 1 && c.pipeline_stages <= 1 && c.expert_ranks <= 1 && !c.linear_tile_size;
  if (whole && !c.zero.offload_param && draw(seed, 26, 3) == 0) c.optimizer = TWS_OPTIMIZER_ADAFACTOR;
  if (whole && !c.zero.offload_param && draw(seed, 27, 4) == 0)
    c.optimizer = TWS_OPTIMIZER_ADAMW_8BIT, c.optim_bits = 8;
  return c;
}

/* Assigns matrices of layers to Muon's first group, and other parameters to its second one. */
static void assign_muon_groups(tws_network *network) {
  for (uint32_t p = 0; p < network->param_count; p++) {
    tws_param *param = &network->params[p];
    param->param_group = param->rows == 1 || network->modules[param->module].layer < 0;
  }
}

/* Asserts that each element of every parameter is updated exactly once (stage 0: once on every rank). */
static void check_ownership(tws_plan *const *plans, int ranks, const tws_network *network) {
  for (uint32_t p = 0; p < network->param_count; p++) {
    uint64_t n = (uint64_t)tws_param_numel(&network->params[p]), owned = 0;
    unsigned char *seen = calloc(n, 1);
    for (int r = 0; r < ranks; r++) {
      for (uint32_t i = 0; i < plans[r]->state->shard_count; i++) {
        const tws_shard *s = &plans[r]->state->shards[i];
        if (s->param != p || s->owned_offset == TWS_NO_OFFSET) continue;
        ck_assert_uint_le(s->param_first + s->count, n);
        owned += s->count;
        memset(seen + s->param_first, 1, s->count);
      }
    }
    uint64_t unseen = 0;
    for (uint64_t i = 0; i < n; i++) unseen += !seen[i];
    ck_assert_uint_eq(unseen, 0);
    ck_assert_uint_eq(owned, plans[0]->zero.stage == 0 ? n * (uint64_t)ranks : n);
    free(seen);
  }
}

START_TEST(random_jobs_are_sound) {
  int stochastic = 0;
  tws_network *networks[4];
  for (int i = 0; i < 4; i++) networks[i] = network_of(i % 2 ? "tiny-llama" : "tiny-gpt2");
  for (int i = 2; i < 4; i++) assign_muon_groups(networks[i]);
  for (uint64_t seed = 1; seed <= 300; seed++) {
    const int ranks = 1 + (int)draw(seed, 30, 5);
    const tws_config config = random_config(seed, tws_network_params(networks[seed & 1], 0));
    const tws_network *network = networks[(seed & 1) + (config.optimizer == TWS_OPTIMIZER_MUON ? 2 : 0)];
    tws_plan *plans[8];
    tws_error err = {0};
    for (int r = 0; r < ranks; r++) {
      plans[r] = build(network, &config, ranks, r);
      ck_assert_msg(tws_plan_verify(plans[r], &err) == TWS_OK, "seed %d: %s", (int)seed, err.message);
      tws_ledger ledger;
      ck_assert(tws_ledger_read(plans[r], &ledger, &err) == TWS_OK);
      const tws_ledger_tier *tier = &ledger.tier[TWS_TIER_DEVICE];
      uint64_t sum = 0;
      for (int c = 0; c < TWS_CATEGORY_COUNT; c++) sum += tier->category[c];
      ck_assert_uint_eq(sum, tier->live_bytes);
      ck_assert_uint_ge(tier->arena_bytes, tier->live_bytes);
    }
    ck_assert_msg(tws_plans_verify((const tws_plan *const *)plans, ranks, &err) == TWS_OK, "seed %d: %s", (int)seed,
                  err.message);
    if (seed <= 60) check_ownership(plans, ranks, network);
    if (tws_config_bf16_masters(&config) && config.stochastic_rounding) {
      check_random_numbers(plans, ranks, network, seed);
      stochastic++;
    }
    for (int r = 0; r < ranks; r++) tws_plan_destroy(plans[r]);
  }
  ck_assert_int_ge(stochastic, 20);
  for (int i = 0; i < 4; i++) tws_network_destroy(networks[i]);
}
END_TEST

/* The plan's buffers take the expected bytes per parameter. */
START_TEST(bytes_of_a_parameter) {
  static const struct {
    tws_dtype dtype;
    int masters, moments, bytes[4]; /* bytes of a parameter, its gradient, its master weight and its moments */
  } cases[] = {{TWS_F32, 0, 0, {4, 4, 0, 8}},
               {TWS_BF16, 0, 0, {2, 2, 4, 8}},
               {TWS_BF16, 1, 0, {2, 2, 0, 8}},
               {TWS_BF16, 1, 1, {2, 2, 0, 4}}};
  static const tws_category categories[] = {TWS_CATEGORY_PARAMETER, TWS_CATEGORY_GRADIENT, TWS_CATEGORY_MASTER,
                                            TWS_CATEGORY_MOMENT};
  tws_network *network = network_of("tiny-gpt2");
  const uint64_t params = (uint64_t)tws_network_params(network, 0);
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
    for (int stage = 1; stage <= 3; stage++)
      for (int ranks = 1; ranks <= 4; ranks *= 4) {
        tws_config c = small_config();
        c.dtype = c.accumulation_dtype = cases[i].dtype;
        c.bf16_masters = cases[i].masters;
        c.bf16_moments = cases[i].moments;
        c.zero.stage = stage;
        tws_plan *plan = build(network, &c, ranks, 0);
        ck_assert_uint_eq(params % 8, 0);
        for (int k = 0; k < 4; k++) {
          uint64_t bytes = 0, kept = params / (uint64_t)(k >= 2 || stage > 2 - k ? ranks : 1);
          for (uint32_t b = 0; b < plan->buffer_count; b++)
            bytes += plan->buffers[b].category == categories[k] ? plan->buffers[b].bytes : 0;
          ck_assert_msg(bytes == kept * (uint64_t)cases[i].bytes[k], "case %d, stage %d, %d ranks: %s", (int)i, stage,
                        ranks, tws_category_name(categories[k]));
        }
        tws_plan_destroy(plan);
      }
  tws_network_destroy(network);
}
END_TEST

/* ---- pipelines ---- */

static tws_network *deep_network(int llama) {
  static const char *const text[] = {
      "{\"model_type\":\"gpt2\",\"n_layer\":8,\"n_embd\":32,\"n_head\":2,\"n_positions\":32,\"vocab_size\":64}",
      "{\"model_type\":\"llama\",\"num_hidden_layers\":8,\"hidden_size\":32,\"num_attention_heads\":2,"
      "\"intermediate_size\":64,\"vocab_size\":64,\"max_position_embeddings\":32,\"rms_norm_eps\":1e-5}"};
  tws_error err = {0};
  tws_json *json;
  tws_network *network;
  ck_assert(tws_json_parse(text[llama], strlen(text[llama]), "test", &json, &err) == TWS_OK);
  ck_assert_msg(tws_network_from_json(json, 1, &network, &err) == TWS_OK, "%s", err.message);
  tws_json_destroy(json);
  return network;
}

static tws_config random_pipeline(uint64_t seed) {
  tws_config c = random_config(seed, 100000);
  c.zero.stage = (int)draw(seed, 50, 2);
  c.pipeline_schedule = (int)draw(seed, 51, TWS_PIPELINE_KIND_COUNT);
  c.pipeline_stages = 2 + (int64_t)draw(seed, 52, 3);
  c.virtual_stages = c.pipeline_schedule == TWS_PIPELINE_INTERLEAVED ? 2 : 1;
  c.accumulation_steps = c.pipeline_stages * (1 + (int64_t)draw(seed, 53, 3));
  if (c.virtual_stages == 1) c.accumulation_steps += (int64_t)draw(seed, 54, 3);
  c.pipeline_partition = draw(seed, 55, 2) ? "uniform" : NULL;
  if (c.zero.stage == 0) c.accumulation_dtype = c.dtype;
  c.bf16_masters = c.bf16_masters && c.zero.stage > 0;
  return c;
}

START_TEST(random_pipelines_are_sound) {
  tws_network *networks[2] = {deep_network(0), deep_network(1)};
  int built = 0;
  for (uint64_t seed = 1000; seed < 1160; seed++) {
    const tws_network *network = networks[seed & 1];
    tws_config config = random_pipeline(seed);
    int replicas = 1 + (int)draw(seed, 60, 3), world = replicas * (int)config.pipeline_stages;
    tws_plan *plans[16];
    tws_error err = {0};
    tws_topology topology;
    ck_assert(tws_plan_topology(&config, world, &topology, &err) == TWS_OK);
    uint64_t owned = 0;
    for (int r = 0; r < world; r++) {
      tws_plan_request request = {.network = network,
                                  .config = &config,
                                  .topology = topology,
                                  .rank = r,
                                  .backend = TWS_BACKEND_HOST,
                                  .threads = 1};
      ck_assert_msg(tws_plan_build(&request, &plans[r], &err) == TWS_OK, "seed %d: %s", (int)seed, err.message);
      ck_assert_msg(tws_plan_verify(plans[r], &err) == TWS_OK, "seed %d: %s", (int)seed, err.message);
      for (uint32_t i = 0; i < plans[r]->state->shard_count; i++) {
        if (plans[r]->state->shards[i].owned_offset != TWS_NO_OFFSET) owned += plans[r]->state->shards[i].count;
      }
    }
    ck_assert_msg(tws_plans_verify((const tws_plan *const *)plans, world, &err) == TWS_OK, "seed %d: %s", (int)seed,
                  err.message);
    /* every parameter is updated once per replica (ZeRO-0) or once; a tied one on both of its stages */
    uint64_t params = (uint64_t)tws_network_params(network, 0);
    if (network->tied) params += (uint64_t)tws_param_numel(&network->params[0]);
    ck_assert_uint_eq(owned, config.zero.stage == 0 ? params * (uint64_t)replicas : params);
    for (int r = 0; r < world; r++) tws_plan_destroy(plans[r]);
    built++;
  }
  ck_assert_int_eq(built, 160);
  tws_network_destroy(networks[0]);
  tws_network_destroy(networks[1]);
}
END_TEST

static uint64_t collective_bytes(const tws_plan *plan, tws_collective collective) {
  uint64_t bytes = 0;
  for (uint32_t i = 0; i < plan->op_count; i++) {
    const tws_work *work = &plan->works[plan->ops[i].work];
    if (plan->ops[i].kind == TWS_OP_COLLECTIVE && work->code == collective && work->dtype != TWS_F64) {
      bytes += (uint64_t)work->d[0];
    }
  }
  return bytes;
}

/* A step with two micro-batches on four ranks communicates the elements that the specification of the ZeRO schedules
 * states. */
START_TEST(communication_volumes) {
  tws_network *network = network_of("tiny-gpt2");
  uint64_t p = (uint64_t)tws_network_params(network, 0);
  tws_config c = small_config();
  c.accumulation_steps = 2;
  for (int stage = 0; stage <= 3; stage++) {
    c.zero.stage = stage;
    c.zero.overlap_comm = stage == 3;
    c.zero.param_persistence_threshold = 0;
    c.zero.max_reuse_distance = 0;
    c.zero.prefetch_bucket_size = 0;
    tws_plan *plan = build(network, &c, 4, 1);
    uint64_t aligned = stage == 0 ? p : (uint64_t)tws_zero_aligned_numel((int64_t)p, 4);
    uint64_t reduced = collective_bytes(plan, TWS_COLLECTIVE_ALL_REDUCE) / 4;
    uint64_t gathered = collective_bytes(plan, TWS_COLLECTIVE_ALL_GATHER) / 4;
    uint64_t scattered = collective_bytes(plan, TWS_COLLECTIVE_REDUCE_SCATTER) / 4;
    if (stage <= 2) ck_assert_uint_eq(reduced, stage == 2 ? 2 * p : p);
    if (stage == 1 || stage == 2) ck_assert_uint_eq(gathered, aligned);
    if (stage == 3) {
      ck_assert_uint_eq(reduced, 0);
      ck_assert_uint_ge(scattered, 2 * p);
      /* the forward and the backward pass gather all parameters; each of them needs the embedding twice */
      uint64_t wte = (uint64_t)tws_param_numel(&network->params[0]);
      ck_assert_uint_ge(gathered, 2 * 2 * p);
      ck_assert_uint_le(gathered, 2 * (2 * (p + wte) + 64 * network->param_count));
    }
    tws_plan_destroy(plan);
  }
  tws_network_destroy(network);
}
END_TEST

/* stage3_allgather_sequential gathers the same bytes with one parameter per collective. */
START_TEST(gathers_one_by_one) {
  tws_network *network = network_of("tiny-llama");
  uint64_t bytes[2];
  int collectives[2] = {0}, segments[2] = {0};
  tws_config c = small_config();
  c.zero.stage = 3;
  c.zero.overlap_comm = 1;
  c.zero.param_persistence_threshold = 100;
  c.zero.prefetch_bucket_size = 1;
  for (int i = 0; i < 2; i++) {
    c.zero.allgather_sequential = i;
    tws_plan *plan = build(network, &c, 4, 1);
    bytes[i] = collective_bytes(plan, TWS_COLLECTIVE_ALL_GATHER);
    for (uint32_t op = 0; op < plan->op_count; op++) {
      const tws_work *work = &plan->works[plan->ops[op].work];
      if (plan->ops[op].kind != TWS_OP_COLLECTIVE || work->code != TWS_COLLECTIVE_ALL_GATHER) continue;
      collectives[i]++;
      segments[i] += (int)work->segments;
      if (i) ck_assert_uint_eq(work->segments, 1);
    }
    tws_plan_destroy(plan);
  }
  ck_assert_uint_eq(bytes[1], bytes[0]);
  ck_assert_int_eq(segments[1], segments[0]);
  ck_assert_int_gt(collectives[1], collectives[0]); /* without the option persistent parameters share a collective */
  tws_network_destroy(network);
}
END_TEST

/* The verifier has to notice each removed dependency of a sound plan. */
START_TEST(verifier_notices_a_lost_dependency) {
  tws_network *network = network_of("tiny-gpt2");
  tws_config c = small_config();
  c.zero.stage = 3;
  c.zero.overlap_comm = 1;
  c.zero.param_persistence_threshold = 0;
  c.zero.max_reuse_distance = 0;
  c.zero.prefetch_bucket_size = 10000;
  c.accumulation_steps = 2;
  tws_plan *plan = build(network, &c, 2, 0);
  tws_error err = {0};
  ck_assert(tws_plan_verify(plan, &err) == TWS_OK);
  ck_assert_uint_gt(plan->dep_count, 20);
  /* the plan has no dependency that others imply, so each one is needed */
  for (uint32_t op = 0; op < plan->op_count; op++) {
    uint16_t count = plan->ops[op].dep_count;
    if (!count) continue;
    plan->ops[op].dep_count = (uint16_t)(count - 1);
    ck_assert_msg(tws_plan_verify(plan, &err) == TWS_INTERNAL, "operation %u lost a dependency unnoticed", op);
    plan->ops[op].dep_count = count;
  }
  tws_plan_destroy(plan);
  tws_network_destroy(network);
}
END_TEST

START_TEST(verifier_notices_broken_memory) {
  tws_network *network = network_of("tiny-llama");
  tws_config c = small_config();
  c.zero.stage = 2;
  c.zero.overlap_comm = 1;
  tws_plan *plan = build(network, &c, 2, 1);
  tws_error err = {0};
  int noticed = 0, tried = 0;
  for (uint32_t b = 0; b < plan->buffer_count; b++) { /* moves a live buffer onto another one's memory */
    tws_buffer *buffer = &plan->buffers[b];
    if (buffer->lifetime != TWS_LIFETIME_OPS || buffer->first_op == TWS_NONE || buffer->last_op == buffer->first_op)
      continue;
    uint64_t offset = buffer->offset;
    buffer->offset = plan->buffers[plan->metrics].offset;
    tried++;
    noticed += tws_plan_verify(plan, &err) == TWS_INTERNAL;
    buffer->offset = offset;
  }
  ck_assert_int_gt(tried, 20);
  ck_assert_int_eq(noticed, tried);
  uint32_t last = plan->buffers[plan->gradients].last_op;
  plan->buffers[plan->gradients].last_op = last - 1;
  ck_assert(tws_plan_verify(plan, &err) == TWS_INTERNAL);
  plan->buffers[plan->gradients].last_op = last;
  for (uint32_t i = 0; i < plan->op_count; i++) { /* a read of what nobody wrote */
    tws_operand *out = &plan->operands[plan->ops[i].operand_first + plan->ops[i].operand_count - 1u];
    if (plan->ops[i].kind != TWS_OP_COMPUTE || plan->works[plan->ops[i].work].code != TWS_KERNEL_SWIGLU) continue;
    out->access = TWS_READ;
    ck_assert(tws_plan_verify(plan, &err) == TWS_INTERNAL);
    break;
  }
  tws_plan_destroy(plan);
  tws_network_destroy(network);
}
END_TEST

START_TEST(verifier_notices_ranks_that_disagree) {
  tws_network *network = network_of("tiny-gpt2");
  tws_config a = small_config(), b = small_config();
  a.zero.stage = b.zero.stage = 2;
  a.zero.reduce_bucket_size = 20000;
  b.zero.reduce_bucket_size = 30000;
  tws_error err = {0};
  tws_plan *plans[2] = {build(network, &a, 2, 0), build(network, &b, 2, 1)};
  ck_assert(tws_plans_verify((const tws_plan *const *)plans, 2, &err) == TWS_INTERNAL);
  ck_assert_ptr_nonnull(strstr(err.message, "rank 1 enters"));
  tws_plan_destroy(plans[1]);
  b = a; /* one rank has one more micro-batch, and no other rank joins its last collective */
  b.accumulation_steps = 2;
  plans[1] = build(network, &b, 2, 1);
  ck_assert(tws_plans_verify((const tws_plan *const *)plans, 2, &err) == TWS_INTERNAL);
  tws_plan_destroy(plans[0]);
  tws_plan_destroy(plans[1]);
  tws_network_destroy(network);
}
END_TEST

START_TEST(refusals_name_rule_and_remedy) {
  tws_network *network = network_of("tiny-gpt2");
  tws_config c = small_config();
  tws_plan_request request = {.network = network,
                              .config = &c,
                              .topology = data_topology(2),
                              .rank = 5,
                              .backend = TWS_BACKEND_HOST,
                              .threads = 1};
  tws_error err = {0};
  tws_plan *plan;
  ck_assert_int_eq(tws_plan_build(&request, &plan, &err), TWS_INVALID);
  request.rank = 0;
  c.sequence_length = 1 << 20;
  ck_assert_int_eq(tws_plan_build(&request, &plan, &err), TWS_INVALID);
  ck_assert_ptr_nonnull(strstr(err.message, "positions"));
  c.sequence_length = 8;
  c.pipeline_stages = 2;
  ck_assert_int_eq(tws_plan_topology(&c, 3, &request.topology, &err), TWS_INVALID);
  ck_assert(tws_plan_topology(&c, 4, &request.topology, &err) == TWS_OK);
  c.zero.stage = 2;
  ck_assert_int_eq(tws_plan_build(&request, &plan, &err), TWS_INVALID);
  ck_assert_ptr_nonnull(strstr(err.hint, "ZeRO stage 1"));
  c.zero.stage = 1;
  c.pipeline_stages = 8; /* pipelines count 5 layers in this model */
  ck_assert(tws_plan_topology(&c, 8, &request.topology, &err) == TWS_OK);
  ck_assert_int_eq(tws_plan_build(&request, &plan, &err), TWS_INVALID);
  ck_assert_ptr_nonnull(strstr(err.hint, "at most 5 stages"));
  tws_network_destroy(network);
}
END_TEST

static int countdown;
static void *failing_resize(void *user, void *pointer, size_t bytes) {
  (void)user;
  if (bytes == 0) {
    free(pointer);
    return NULL;
  }
  if (countdown-- == 0) return NULL;
  return realloc(pointer, bytes);
}

/* With each allocation failing once, planning returns an error and leaks nothing (which sanitizers check). */
START_TEST(survives_exhausted_memory) {
  tws_network *network = network_of("tiny-gpt2");
  tws_config c = small_config();
  c.zero.stage = 3;
  tws_plan_request request = {.network = network,
                              .config = &c,
                              .topology = data_topology(2),
                              .rank = 0,
                              .backend = TWS_BACKEND_HOST,
                              .threads = 1};
  const tws_allocator failing = {.resize = failing_resize};
  int failures = 0;
  for (int at = 0;; at++) {
    tws_error err = {0};
    tws_plan *plan = NULL;
    countdown = at;
    tws_set_allocator(&failing);
    tws_code code = tws_plan_build(&request, &plan, &err);
    if (code == TWS_OK) tws_plan_destroy(plan);
    tws_set_allocator(NULL);
    if (code == TWS_OK) break;
    ck_assert_int_eq(code, TWS_MEMORY);
    failures++;
  }
  ck_assert_int_gt(failures, 10);
  tws_network_destroy(network);
}
END_TEST

/* ---- estimates composed from two micro-batches equal the whole plan's ---- */

static uint32_t kernels_with(const tws_plan *plan, tws_kernel kernel, uint32_t flag) {
  uint32_t count = 0;
  for (uint32_t i = 0; i < plan->op_count; i++) {
    const tws_work *work = &plan->works[plan->ops[i].work];
    count += plan->ops[i].kind == TWS_OP_COMPUTE && work->code == kernel && (work->flags & flag) == flag;
  }
  return count;
}

/* Activations are fused into adjacent products, and residual sums into the following norms; only recomputation runs an
 * activation as a kernel of its own. */
START_TEST(adjacent_operations_are_fused) {
  for (int llama = 0; llama < 2; llama++) {
    tws_network *network = network_of(llama ? "tiny-llama" : "tiny-gpt2");
    uint32_t layers = (uint32_t)network->layers;
    for (int mode = TWS_RECOMPUTE_NONE; mode <= TWS_RECOMPUTE_FULL; mode++) {
      for (int tiles = 1; tiles <= 2; tiles++) {
        tws_config config = small_config();
        config.recompute = (tws_recompute)mode;
        config.mlp_tiles = tiles;
        tws_plan *plan = build(network, &config, 1, 0);
        uint32_t full = mode == TWS_RECOMPUTE_FULL, selective = mode == TWS_RECOMPUTE_SELECTIVE, t = (uint32_t)tiles;
        uint32_t again = tiles > 1 || full; /* an MLP's first product */
        ck_assert_uint_eq(kernels_with(plan, TWS_KERNEL_ADD, 0), 0);
        /* fused norms: both norms of each layer except the very first one, and the last norm; in full recomputation a
         * layer's second norm again */
        ck_assert_uint_eq(kernels_with(plan, TWS_KERNEL_NORM, TWS_RESIDUAL), (2 + full) * layers);
        ck_assert_uint_eq(kernels_with(plan, TWS_KERNEL_LINEAR, TWS_GELU), llama ? 0 : (1 + again) * layers * t);
        ck_assert_uint_eq(kernels_with(plan, TWS_KERNEL_GELU, 0), !llama && selective && tiles == 1 ? layers : 0);
        ck_assert_uint_eq(kernels_with(plan, TWS_KERNEL_LINEAR_GRAD_INPUT, TWS_GELU), llama ? 0 : layers * t);
        ck_assert_uint_eq(kernels_with(plan, TWS_KERNEL_GELU_GRAD, 0), 0);
        /* gradients of biases: before GELU fused with GELU's gradient; of a branch's last product with the following
         * norm's gradient; of queries, keys and values, and of a last product in tiles, with the weight's gradient */
        const uint32_t branches = t == 1 ? 2 : 1, apart = t == 1 ? 1 : 1 + t;
        ck_assert_uint_eq(kernels_with(plan, TWS_KERNEL_LINEAR_GRAD_INPUT, TWS_SUMS), llama ? 0 : layers * t);
        ck_assert_uint_eq(kernels_with(plan, TWS_KERNEL_NORM_GRAD, TWS_SUMS), llama ? 0 : branches * layers);
        ck_assert_uint_eq(kernels_with(plan, TWS_KERNEL_LINEAR_GRAD_WEIGHT, TWS_BIAS), llama ? 0 : apart * layers);
        tws_plan_destroy(plan);
      }
    }
    tws_network_destroy(network);
  }
}
END_TEST

/* With full recomputation each layer keeps one checkpoint, its input (Chen et al. 2016). */
START_TEST(one_checkpoint_a_layer) {
  for (int llama = 0; llama < 2; llama++) {
    tws_network *network = network_of(llama ? "tiny-llama" : "tiny-gpt2");
    for (int mode = TWS_RECOMPUTE_NONE; mode <= TWS_RECOMPUTE_FULL; mode++) {
      tws_config config = small_config();
      config.recompute = (tws_recompute)mode;
      tws_plan *plan = build(network, &config, 1, 0);
      uint64_t bytes = 0, tokens = 2 * 8;
      for (uint32_t i = 0; i < plan->buffer_count; i++) {
        if (plan->buffers[i].category == TWS_CATEGORY_CHECKPOINT) bytes += plan->buffers[i].bytes;
      }
      uint64_t each = tokens * (uint64_t)network->hidden * sizeof(float);
      ck_assert_uint_eq(bytes, mode == TWS_RECOMPUTE_FULL ? (uint64_t)network->layers * each : 0);
      tws_plan_destroy(plan);
    }
    tws_network_destroy(network);
  }
}
END_TEST

/* Returns the seconds of a step of four ranks. With an offloaded optimizer at stages 1 and 2 all four plans are built,
 * because these ranks wait for each other; otherwise one represents all. */
static double step_of_ranks(const tws_plan_request *request, const tws_plan *first, const tws_machine *machine) {
  const tws_zero_config *zero = &request->config->zero;
  const int count = zero->offload_optimizer && (zero->stage == 1 || zero->stage == 2) ? 4 : 1;
  const tws_plan *plans[4] = {first};
  tws_error err = {0};
  double step_s = 0;
  for (int rank = 1; rank < count; rank++) {
    tws_plan_request other = *request;
    tws_plan *plan;
    other.rank = rank;
    ck_assert_msg(tws_plan_build(&other, &plan, &err) == TWS_OK, "%s", err.message);
    plans[rank] = plan;
  }
  ck_assert_msg(tws_job_path(plans, count, machine, NULL, &step_s, &err) == TWS_OK, "%s", err.message);
  for (int rank = 1; rank < count; rank++) tws_plan_destroy((tws_plan *)(uintptr_t)plans[rank]);
  return step_s;
}

START_TEST(composition_equals_longest_path) {
  tws_network *network = network_of("tiny-llama");
  tws_error err = {0};
  tws_profile *profile = NULL;
  tws_cluster cluster;
  ck_assert_msg(tws_profile_load("a100-80gb", &profile, &err) == TWS_OK, "%s", err.message);
  ck_assert_msg(tws_cluster_load("dgx-a100", &cluster, &err) == TWS_OK, "%s", err.message);
  tws_machine machine = {.cluster = &cluster, .profile = profile};
  for (uint64_t seed = 500; seed < 560; seed++) {
    tws_config config = random_config(seed, tws_network_params(network, 0));
    config.accumulation_steps = 1 + (int64_t)draw(seed, 40, 7);
    tws_plan_request request = {.network = network,
                                .config = &config,
                                .topology = data_topology(4),
                                .rank = 0,
                                .backend = TWS_BACKEND_CUDA,
                                .threads = 1};
    tws_estimate estimate;
    tws_ledger ledger;
    tws_plan *plan;
    ck_assert_msg(tws_estimate_step(&request, &machine, &estimate, &err) == TWS_OK, "%s", err.message);
    ck_assert(tws_plan_build(&request, &plan, &err) == TWS_OK);
    ck_assert(tws_ledger_read(plan, &ledger, &err) == TWS_OK);
    const double step_s = step_of_ranks(&request, plan, &machine), error = estimate.step_s / step_s - 1;
    ck_assert_msg(error > -0.02 && error < 0.02, "seed %d: composed %g s, plan %g s", (int)seed, estimate.step_s,
                  step_s);
    ck_assert_uint_eq(estimate.ledger.tier[0].live_bytes, ledger.tier[0].live_bytes);
    ck_assert_uint_eq(estimate.ledger.tier[0].arena_bytes, ledger.tier[0].arena_bytes);
    tws_plan_destroy(plan);
  }
  tws_profile_destroy(profile);
  tws_network_destroy(network);
}
END_TEST

/* Returns the first percentage in a sentence; `what` receives its text before the verb "take". */
static double subject(const char *sentence, char what[64]) {
  const char *verb = strstr(sentence, " take");
  ck_assert_msg(verb && verb - sentence < 64, "%s", sentence);
  snprintf(what, 64, "%.*s", (int)(verb - sentence), sentence);
  return strtod(strpbrk(verb, "0123456789"), NULL);
}

/* The bottleneck is that of the whole step: between nodes the all-reduce of gradients takes most of a step with three
 * small micro-batches, and little of one with a hundred. */
START_TEST(bottleneck_is_of_the_whole_step) {
  tws_network *network = network_of("gpt2");
  tws_error err = {0};
  tws_profile *profile = NULL;
  tws_cluster cluster;
  ck_assert_msg(tws_profile_load("a100-80gb", &profile, &err) == TWS_OK, "%s", err.message);
  ck_assert_msg(tws_cluster_load("dgx-a100", &cluster, &err) == TWS_OK, "%s", err.message);
  tws_machine machine = {.cluster = &cluster, .profile = profile};
  tws_config config = small_config();
  cluster.nodes = 4;
  cluster.devices_per_node = 1;
  config.micro_batch_size = 1;
  config.dtype = TWS_BF16;
  config.communication_dtype = 1 + TWS_F32;
  char what[3][64];
  double percent[3];
  for (int i = 0; i < 3; i++) {
    config.accumulation_steps = i ? 100 : 3;
    tws_plan_request request = {
        .network = network, .config = &config, .topology = data_topology(4), .backend = TWS_BACKEND_CUDA, .threads = 1};
    tws_estimate estimate;
    tws_path_result path;
    tws_plan *plan;
    ck_assert_msg(tws_estimate_step(&request, &machine, &estimate, &err) == TWS_OK, "%s", err.message);
    ck_assert(tws_plan_build(&request, &plan, &err) == TWS_OK);
    ck_assert(tws_longest_path(plan, &machine, &path, &err) == TWS_OK);
    tws_plan_destroy(plan);
    percent[i] = subject(i == 2 ? path.text : estimate.path.bottleneck, what[i]);
  }
  ck_assert_str_ne(what[0], what[2]);
  ck_assert_str_eq(what[1], what[2]);
  ck_assert_double_le(fabs(percent[1] - percent[2]), 1);
  tws_profile_destroy(profile);
  tws_network_destroy(network);
}
END_TEST

#include "tests/plan_casts.h"

int main(void) {
  Suite *suite = suite_create("plan");
  TCase *c = tcase_create("plan");
  tcase_set_timeout(c, 120);
  tcase_add_test(c, partition_golden);
  tcase_add_test(c, random_jobs_are_sound);
  tcase_add_test(c, bytes_of_a_parameter);
  tcase_add_test(c, random_pipelines_are_sound);
  tcase_add_test(c, communication_volumes);
  tcase_add_test(c, gathers_one_by_one);
  tcase_add_test(c, verifier_notices_a_lost_dependency);
  tcase_add_test(c, verifier_notices_broken_memory);
  tcase_add_test(c, verifier_notices_ranks_that_disagree);
  tcase_add_test(c, refusals_name_rule_and_remedy);
  tcase_add_test(c, survives_exhausted_memory);
  tcase_add_test(c, adjacent_operations_are_fused);
  tcase_add_test(c, one_checkpoint_a_layer);
  tcase_add_test(c, kernels_cast_what_they_compute);
  tcase_add_test(c, gelu_casts_what_it_computes);
  tcase_add_test(c, activations_without_a_bias_cast_gradients);
  tcase_add_test(c, casting_kernels_move_fewer_bytes);
  tcase_add_test(c, casts_sum_for_biases);
  tcase_add_test(c, casts_that_sum_move_fewer_bytes);
  tcase_add_test(c, composition_equals_longest_path);
  tcase_add_test(c, bottleneck_is_of_the_whole_step);
  suite_add_tcase(suite, c);
  return run_suite(suite);
}
