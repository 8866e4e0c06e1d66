/* ctest: sampled */
/* Every kind of parallelism together: thousands of random legal jobs are planned, verified and estimated; random
 * illegal ones are refused with a reason. */
#include <check.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/random.h"
#include "config/cluster.h"
#include "estimators/estimators.h"
#include "models/network/adapt.h"
#include "models/hardware/profile.h"
#include "models/operator.h"
#include "plan/pipeline_grid.h"
#include "plan/pipeline_schedule.h"
#include "plan/plan.h"
#include "tests/legal_job.h"
#include "tests/rounding_plan.h"
#include "tests/sample.h"
#include "tests/sanitized.h"
#include "tests/suite.h"

enum { PARTS = TWS_SANITIZED ? 5 : 10, JOBS = TWS_SANITIZED ? 50 : 100 }; /* of each part */

static void check_ledger(const tws_plan *plan, uint64_t seed) {
  tws_ledger ledger;
  tws_error err = {0};
  ck_assert(tws_ledger_read(plan, &ledger, &err) == TWS_OK);
  const tws_ledger_tier *tier = &ledger.tier[TWS_TIER_DEVICE];
  uint64_t sum = 0;
  for (int c = 0; c < TWS_CATEGORY_COUNT; c++) sum += tier->category[c];
  ck_assert_msg(sum == tier->live_bytes && tier->arena_bytes >= tier->live_bytes, "seed %d", (int)seed);
}

/* Slices of the ranks that share the layers tile every parameter: each element is updated by as many ranks as hold a
 * copy, and no element of a split parameter by two of them. */
static void check_ownership(tws_plan *const *plans, int world, const tws_network *network, uint64_t seed) {
  for (uint32_t p = 0; p < network->param_count; p++) {
    uint64_t n = (uint64_t)tws_param_numel(&network->params[p]), run;
    int *owners = calloc(n, sizeof *owners), wrong = 0; /* one assertion per parameter, because each is a message to the
                                                         * runner */
    for (int r = 0; r < world; r++) {
      for (uint32_t i = 0; i < plans[r]->state->shard_count; i++) {
        const tws_shard *s = &plans[r]->state->shards[i];
        if (s->param != p || s->owned_offset == TWS_NO_OFFSET) continue;
        for (uint64_t e = s->param_first; e < s->param_first + s->count; e++) {
          uint64_t at = plans[r]->slices ? tws_param_slice_whole(&plans[r]->slices[p], e, &run) : e;
          if (at < n) owners[at]++;
          wrong += at >= n;
        }
      }
    }
    for (uint64_t i = 0; i < n; i++) wrong += owners[i] != owners[0] || owners[0] == 0;
    free(owners);
    ck_assert_msg(wrong == 0, "seed %d: %s", (int)seed, network->params[p].name);
  }
}

static void check_time(tws_plan *const *plans, const tws_topology *topology, int world, const tws_machine *machine,
                       uint64_t seed) {
  tws_error err = {0};
  tws_path_result path;
  const tws_plan *stages[8];
  const int count = tws_topology_size(topology, TWS_AXES_PIPE);
  for (int s = 0; s < count; s++) stages[s] = plans[tws_pipeline_grid_stage(topology, 0, s)];
  double step_s = 0, alone_s = 0;
  ck_assert_msg(tws_job_path(stages, count, machine, NULL, &step_s, &err) == TWS_OK, "seed %d: %s", (int)seed,
                err.message);
  for (int s = 0; s < count; s++) {
    ck_assert(tws_longest_path(stages[s], machine, &path, &err) == TWS_OK);
    if (path.step_s > alone_s) alone_s = path.step_s;
  }
  ck_assert_msg(step_s > 0 && step_s >= alone_s * (1 - 1e-9), "seed %d of %d ranks: %g s, a stage alone %g s",
                (int)seed, world, step_s, alone_s);
}

/* Asserts that the estimate, from few representative ranks, has the memory and the time of all ranks, also on nodes
 * over which groups lie unevenly. Small models as these show two simplifications: replicas of ZeRO-1 and 2 hold
 * different parts of a bucket at different times, and tensor-parallel ranks of a pipeline's first stage differ in the
 * work of the embedding. */
static void check_estimate(tws_plan *const *plans, const tws_config *c, int world, const tws_machine *machine,
                           uint64_t seed) {
  tws_cluster cluster = *machine->cluster;
  const tws_machine odd = {&cluster, machine->profile};
  tws_plan_request request = {.network = plans[0]->network,
                              .config = c,
                              .topology = plans[0]->topology,
                              .backend = TWS_BACKEND_HOST,
                              .threads = 1};
  tws_estimate estimate;
  tws_error err = {0};
  double step_s;
  uint64_t most = 0;
  cluster.devices_per_node = 1 + (int)(seed % 7);
  cluster.nics_per_node = 1 + (int)(seed % 3);
  cluster.nodes = (world + cluster.devices_per_node - 1) / cluster.devices_per_node;
  for (int r = 0; r < world; r++)
    if (tws_plan_bytes(plans[r], TWS_TIER_DEVICE) > most) most = tws_plan_bytes(plans[r], TWS_TIER_DEVICE);
  ck_assert_msg(tws_estimate_step(&request, &odd, &estimate, &err) == TWS_OK, "seed %d: %s", (int)seed, err.message);
  ck_assert(tws_job_path((const tws_plan *const *)plans, world, &odd, NULL, &step_s, &err) == TWS_OK);
  const int parts = (c->zero.stage == 1 || c->zero.stage == 2) && plans[0]->groups[0].size > 1;
  const int embeddings = plans[0]->stages > 1 && plans[0]->position.ranks[TWS_AXIS_MODEL] > 1;
  ck_assert_msg(fabs(estimate.step_s - step_s) <= (parts        ? 0.1
                                                   : embeddings ? 0.02
                                                                : 1e-9) *
                                                      step_s,
                "seed %d: %d ranks on nodes of %d (ZeRO-%d, pp %d, tp %d, sp %d): %.9g s, of all ranks %.9g s",
                (int)seed, world, cluster.devices_per_node, c->zero.stage, plans[0]->stages,
                plans[0]->position.ranks[TWS_AXIS_MODEL], plans[0]->position.ranks[TWS_AXIS_SEQUENCE], estimate.step_s,
                step_s);
  ck_assert_msg(estimate.ledger.tier[TWS_TIER_DEVICE].arena_bytes == most,
                "seed %d (ZeRO-%d, pp %d, tp %d, sp %d): %llu bytes, the fullest rank %llu", (int)seed, c->zero.stage,
                plans[0]->stages, plans[0]->position.ranks[TWS_AXIS_MODEL], plans[0]->position.ranks[TWS_AXIS_SEQUENCE],
                (unsigned long long)estimate.ledger.tier[TWS_TIER_DEVICE].arena_bytes, (unsigned long long)most);
}

/* Asserts that the same ranks' evaluation over the state of training has forward passes only, and needs no more memory
 * than the state and the larger of both programs. */
static void check_evaluation(tws_plan *const *plans, const tws_config *c, int world, const tws_machine *machine,
                             uint64_t seed) {
  tws_plan *evaluations[MOST_RANKS];
  tws_error err = {0};
  for (int r = 0; r < world; r++) {
    tws_plan_request request = {.network = plans[r]->network,
                                .config = c,
                                .topology = plans[r]->topology,
                                .rank = r,
                                .backend = TWS_BACKEND_HOST,
                                .threads = 1,
                                .program = TWS_PROGRAM_EVALUATE,
                                .state = plans[r]->state};
    tws_ledger job, evaluation;
    ck_assert_msg(tws_plan_build(&request, &evaluations[r], &err) == TWS_OK, "seed %d: %s", (int)seed, err.message);
    const tws_plan *plan = evaluations[r], *both[] = {plans[r], plan};
    ck_assert_msg(tws_plan_verify(plan, &err) == TWS_OK, "seed %d: %s", (int)seed, err.message);
    ck_assert_ptr_eq(plan->state, plans[r]->state);
    for (uint32_t op = 0; op < plan->op_count; op++)
      ck_assert(plan->ops[op].phase == TWS_PHASE_FORWARD || plan->ops[op].phase == TWS_PHASE_STEP);
    ck_assert(tws_ledger_read(plan, &evaluation, &err) == TWS_OK);
    ck_assert(tws_ledger_of_programs(both, 2, &job, &err) == TWS_OK);
    for (int t = 0; t < TWS_TIER_COUNT; t++) {
      const uint64_t a = plans[r]->arena_bytes[t], b = plan->arena_bytes[t], state = plan->state->arena_bytes[t];
      ck_assert_uint_eq(job.tier[t].arena_bytes, state + (a > b ? a : b));
      ck_assert_uint_eq(evaluation.tier[t].arena_bytes, state + b);
      ck_assert_uint_le(evaluation.tier[t].live_bytes, state + b);
    }
  }
  ck_assert_msg(tws_plans_verify((const tws_plan *const *)evaluations, world, &err) == TWS_OK, "seed %d: %s", (int)seed,
                err.message);
  check_time(evaluations, &plans[0]->topology, world, machine, seed);
  for (int r = 0; r < world; r++) tws_plan_destroy(evaluations[r]);
}

static void adapt_job(tws_network *network, tws_config *c, int quantization) {
  tws_error err = {0};
  cJSON *all = cJSON_CreateString("all-linear");
  c->attention_chunks = 1; /* adapters stand between the projection and attention, which excludes attention in chunks */
  c->lora.r = 2;
  c->lora.alpha = 4;
  c->lora_targets = all;
  c->quantization.type = quantization;
  c->quantization.block = 2;
  ck_assert_msg(tws_network_adapt(network, c, &err) == TWS_OK, "%s", err.message);
  cJSON_Delete(all);
  c->lora_targets = NULL;
}

/* Quantizes the scales of weights in few bits, too, in the largest groups of up to six blocks that are legal. */
static void group_scales(const tws_network *network, tws_config *c, tws_topology topology) {
  tws_plan_request request = {
      .network = network, .config = c, .topology = topology, .backend = TWS_BACKEND_HOST, .threads = 1};
  tws_plan *plan = NULL;
  for (c->quantization.scale_block = 6; !plan && c->quantization.scale_block > 0; c->quantization.scale_block--) {
    tws_error err = {0};
    if (tws_plan_build(&request, &plan, &err) == TWS_OK) break;
    ck_assert_msg(strstr(err.message, "scale_block_size") && strstr(err.hint, "nearest"), "%s", err.message);
  }
  ck_assert_int_gt(c->quantization.scale_block, 0);
  if (plan->quantized.type > 0) ck_assert_int_eq(plan->quantized.group, c->quantization.scale_block);
  tws_plan_destroy(plan);
}

/* Asserts that no operation writes frozen parameters. */
static void check_frozen(const tws_plan *plan, uint64_t seed) {
  const tws_quantized *q = &plan->quantized;
  for (uint32_t i = 0; i < plan->operand_count && q->type > 0; i++) {
    const tws_operand *o = &plan->operands[i];
    ck_assert_msg((o->buffer != q->codes && o->buffer != q->scales && o->buffer != q->means) || o->access == TWS_READ,
                  "seed %d: %s is written", (int)seed, plan->buffers[o->buffer].name);
  }
}

static int casting_kernels; /* number of casts by kernels that compute what they cast */

/* Asserts that delayed scaling reads no tensor before its cast: each cast has a scale of earlier steps, some cast with
 * the same scale finds the largest value for later ones, in the same place, and one operation after all casts moves
 * these values into the history. A rank has histories of the tensors that it casts, and of no others, as of other
 * pipeline stages. (Unused ones are allowed for gradients of jobs with frozen parameters, and for products in tiles
 * whose sizes 8 bits do not allow.) Current scaling has no such operation. Returns the number of casts. */
static int check_delayed_scales(const tws_plan *plan, const tws_config *c, uint64_t seed) {
  enum { MOST_TENSORS = 1 << 12 };
  static uint8_t reads[MOST_TENSORS], finds[MOST_TENSORS];
  const int delayed = c->matmul_dtype == TWS_MATMUL_FP8 && c->fp8_recipe == TWS_FP8_DELAYED;
  int casts = 0, histories = 0, unused = c->mlp_tiles > 1 || c->attention_chunks > 1;
  uint64_t tensors = 0;
  memset(reads, 0, sizeof reads), memset(finds, 0, sizeof finds);
  for (uint32_t i = 0; i < plan->op_count; i++) {
    const tws_op *op = &plan->ops[i];
    const tws_work *work = &plan->works[op->work];
    const tws_operand *operands = &plan->operands[op->operand_first];
    if (op->kind != TWS_OP_COMPUTE) continue;
    ck_assert(!delayed || work->code != TWS_KERNEL_AMAX);
    histories += work->code == TWS_KERNEL_AMAX_HISTORY;
    tws_kernel_operand named[TWS_OPERATOR_OPERANDS];
    const int count = delayed && work->code != TWS_KERNEL_AMAX_HISTORY ? tws_work_operands(work, NULL, named) : 0;
    int amax = -1, raised = -1;
    for (int k = 0; k < count; k++) {
      if (strcmp(named[k].name, "amax") == 0) amax = k;
      if (strcmp(named[k].name, "largest") == 0 || strcmp(named[k].name, "raised") == 0) raised = k;
    }
    if (amax < 0) continue;
    ck_assert_msg(histories == 0 && operands[amax].offset < MOST_TENSORS, "seed %d", (int)seed);
    ck_assert_str_eq(plan->buffers[operands[amax].buffer].name, "amax");
    reads[operands[amax].offset] = 1;
    casts++;
    casting_kernels += work->code != TWS_KERNEL_QUANTIZE && work->code != TWS_KERNEL_QUANTIZE_SUM;
    if (raised < 0) continue;
    ck_assert_uint_eq(operands[raised].offset, operands[amax].offset);
    finds[operands[amax].offset] = 1;
  }
  ck_assert_int_eq(histories, delayed);
  ck_assert_msg(memcmp(reads, finds, sizeof reads) == 0, "seed %d: a cast's scale has no history", (int)seed);
  const uint32_t entry = tws_state_find(plan->state, "amax");
  const uint64_t kept = entry == TWS_NONE ? 0 : plan->state->entries[entry].elements;
  for (int i = 0; i < MOST_TENSORS; i++) tensors += reads[i];
  for (uint32_t p = 0; p < plan->network->param_count; p++) unused |= plan->network->params[p].frozen;
  ck_assert_msg((unused && tensors < kept) || tensors == kept || (tensors == 0 && kept == 1),
                "seed %d: %d histories of %d tensors", (int)seed, (int)kept, (int)tensors);
  return casts;
}

/* Asserts that casts compute the gradients of the biases of layers whose products have 8 bits: there is a cast that
 * sums for each kernel that computes the gradient of such a layer's weight. Returns the number of these casts. */
static int check_summing_casts(const tws_plan *plan, uint64_t seed) {
  int casts = 0, biased = 0;
  for (uint32_t i = 0; i < plan->op_count; i++) {
    const tws_op *op = &plan->ops[i];
    const tws_work *work = &plan->works[op->work];
    if (op->kind != TWS_OP_COMPUTE) continue;
    casts += work->code == TWS_KERNEL_QUANTIZE_SUM;
    if (work->code != TWS_KERNEL_LINEAR_GRAD_WEIGHT || !(work->flags & TWS_FP8)) continue;
    const uint32_t bias = plan->network->modules[op->module].param[1];
    biased += bias != TWS_NONE && !plan->network->params[bias].frozen;
  }
  ck_assert_msg(casts == biased, "seed %d: %d casts sum for %d biases", (int)seed, casts, biased);
  return casts;
}

static int delayed_casts, summing_casts;

static void check_job(uint64_t seed, const tws_machine *machine, int *plans_built, int *stochastic) {
  shape s;
  int world;
  tws_config c = legal_job(seed, &s, &world);
  const int draws = tws_config_bf16_masters(&c) && c.stochastic_rounding;
  const int adapts = seed % 5 == 1 && !draws; /* 1: the job trains adapters, on weights of 16, 8 or 4 bits */
  if (adapts) s.inner += s.inner / c.tensor_ranks % 2 * c.tensor_ranks;
  tws_network *network = network_of(&s, c.tensor_ranks);
  tws_plan *plans[MOST_RANKS];
  tws_topology topology;
  tws_error err = {0};
  if (adapts) adapt_job(network, &c, (int)(seed / 5 % 3));
  ck_assert_msg(tws_plan_topology(&c, world, &topology, &err) == TWS_OK, "seed %d: %s", (int)seed, err.message);
  if (adapts && seed / 15 % 2) group_scales(network, &c, topology);
  for (int r = 0; r < world; r++) {
    tws_plan_request request = {
        .network = network, .config = &c, .topology = topology, .rank = r, .backend = TWS_BACKEND_HOST, .threads = 1};
    ck_assert_msg(tws_plan_build(&request, &plans[r], &err) == TWS_OK, "seed %d: %s", (int)seed, err.message);
    ck_assert_msg(tws_plan_verify(plans[r], &err) == TWS_OK, "seed %d: %s", (int)seed, err.message);
    check_ledger(plans[r], seed);
    check_frozen(plans[r], seed);
    delayed_casts += check_delayed_scales(plans[r], &c, seed);
    summing_casts += check_summing_casts(plans[r], seed);
    ++*plans_built;
  }
  ck_assert_msg(tws_plans_verify((const tws_plan *const *)plans, world, &err) == TWS_OK, "seed %d: %s", (int)seed,
                err.message);
  if (seed % 5 == 0) check_ownership(plans, world, network, seed);
  if (draws) {
    check_random_numbers(plans, world, network, seed);
    ++*stochastic;
  }
  check_time(plans, &topology, world, machine, seed);
  if (c.accumulation_steps <= 3 || plans[0]->stages > 1) check_estimate(plans, &c, world, machine, seed);
  if (seed % 3 == 0) check_evaluation(plans, &c, world, machine, seed);
  for (int r = 0; r < world; r++) tws_plan_destroy(plans[r]);
  tws_network_destroy(network);
}

START_TEST(random_jobs_are_sound) {
  tws_cluster cluster;
  tws_profile *profile;
  tws_error err = {0};
  int jobs = 0, plans = 0, stochastic = 0;
  ck_assert_msg(tws_cluster_load("dgx-a100:8", &cluster, &err) == TWS_OK, "%s", err.message);
  ck_assert_msg(tws_profile_load("a100-80gb", &profile, &err) == TWS_OK, "%s", err.message);
  tws_machine machine = {.cluster = &cluster, .profile = profile};
  for (uint64_t seed = (uint64_t)_i * JOBS; seed < (uint64_t)(_i + 1) * JOBS; seed++) {
    if (!takes(seed, 4)) continue;
    check_job(seed, &machine, &plans, &stochastic);
    jobs++;
  }
  ck_assert(jobs >= JOBS / 4 && plans >= jobs);
  printf("%d of %d casts with delayed scaling are part of another kernel\n", casting_kernels, delayed_casts);
  if (takes_all()) ck_assert_int_gt(delayed_casts, casting_kernels);
  if (takes_all()) ck_assert_int_gt(summing_casts, 0);
  if (takes_all()) ck_assert_int_ge(stochastic, JOBS / 30);
  tws_profile_destroy(profile);
}
END_TEST

/* In each case one property of a job is made illegal: the job is refused with a reason and a remedy, and never
 * planned. */
START_TEST(illegal_jobs_are_refused) {
  static const char *const reasons[] = {
      "heads",  "key and value heads", "intermediate", "vocabulary", "ZeRO", "multiple", "multiple", "multiple",
      "layers", "virtual stages"};
  for (uint64_t seed = 0; seed < 400; seed++) {
    shape s;
    int world;
    tws_config c = legal_job(seed, &s, &world);
    c.tensor_ranks = 2;
    c.matmul_dtype = TWS_MATMUL_AUTO;
    c.sequence_ranks = c.virtual_stages = 1;
    c.pipeline_schedule = TWS_PIPELINE_1F1B;
    s.layers = 4;
    s.experts = c.expert_ranks = 0;
    s.heads = s.kv_heads = 4;
    s.inner = 8;
    int64_t multiple = 2;
    int kind = (int)(seed % 10);
    c.pipeline_stages = kind == 4 || kind == 8 ? 2 : 1;
    c.zero.stage = 0;
    c.sequence_length = 24;
    c.micro_batch_size = 1;
    c.loss_tiles = c.mlp_tiles = c.attention_chunks = 1;
    c.tensor_overlap = c.tensor_sequence_parallel = 0;
    if (kind == 0) s.heads = s.kv_heads = 3;
    if (kind == 1) s.llama = 1, s.kv_heads = 1;
    if (kind == 2) s.inner = 7;
    if (kind == 3) s.vocabulary = 21, multiple = 1;
    if (kind == 4) c.zero.stage = 2 + (int)(seed / 10 % 2);
    if (kind == 5) c.tensor_sequence_parallel = 1, c.sequence_length = 23;
    if (kind == 6) c.loss_tiles = 5;
    if (kind == 7) c.mlp_tiles = 7;
    if (kind == 8) c.pipeline_stages = 9, c.accumulation_steps = 9;
    if (kind == 9) c.virtual_stages = 2;
    tws_network *network = network_of(&s, multiple);
    tws_error err = {0};
    tws_plan_request request = {.network = network, .config = &c, .backend = TWS_BACKEND_HOST, .threads = 1, .rank = 0};
    ck_assert(tws_plan_topology(&c, (int)(c.tensor_ranks * c.pipeline_stages), &request.topology, &err) == TWS_OK);
    tws_plan *plan = NULL;
    tws_code code = tws_plan_build(&request, &plan, &err);
    ck_assert_msg(code == TWS_INVALID && plan == NULL, "kind %d was not refused", kind);
    ck_assert_msg(strstr(err.message, reasons[kind]) != NULL, "kind %d: %s", kind, err.message);
    ck_assert_msg(err.hint[0] != 0, "kind %d: no remedy", kind);
    tws_network_destroy(network);
  }
}
END_TEST

/* Returns the plan of rank `rank` of `ranks` that share sequences of `length` tokens in a ring; NULL with the reason in
 * *err where that is refused. */
static tws_plan *ring_plan(const tws_network *network, int ranks, int rank, int64_t length, tws_error *err) {
  tws_config *base, c;
  tws_plan *plan = NULL;
  ck_assert(tws_config_default(&base, NULL) == TWS_OK);
  c = *base;
  c.store = NULL;
  tws_config_destroy(base);
  c.micro_batch_size = 2;
  c.accumulation_steps = 1;
  c.sequence_ranks = ranks;
  c.sequence_algorithm = TWS_SEQUENCE_RING;
  c.sequence_length = length;
  tws_plan_request request = {
      .network = network, .config = &c, .backend = TWS_BACKEND_HOST, .threads = 1, .rank = rank};
  ck_assert(tws_plan_topology(&c, ranks, &request.topology, err) == TWS_OK);
  tws_plan_build(&request, &plan, err);
  return plan;
}

static tws_network *network_from(const char *text) {
  tws_error err = {0};
  tws_json *json;
  tws_network *network;
  ck_assert(tws_json_parse(text, strlen(text), "test", &json, &err) == TWS_OK);
  ck_assert_msg(tws_network_from_json(json, 1, &network, &err) == TWS_OK, "%s: %s", text, err.message);
  tws_json_destroy(json);
  return network;
}

/* Returns the FLOPs of attention, forward and backward. */
static double attention_flops(const tws_plan *plan) {
  double flops = 0;
  for (uint32_t op = 0; op < plan->op_count; op++) {
    const tws_work *work = &plan->works[plan->ops[op].work];
    if (plan->ops[op].kind != TWS_OP_COMPUTE) continue;
    if (work->code == TWS_KERNEL_ATTENTION || work->code == TWS_KERNEL_ATTENTION_GRAD) flops += tws_work_flops(work);
  }
  return flops;
}

/* The halves of causal attention are dealt so that all ranks have the same FLOPs, which add up to those of one rank. */
START_TEST(rings_share_the_work) {
  tws_network *network = network_from(
      "{\"model_type\":\"llama\",\"num_hidden_layers\":2,\"hidden_size\":24,\"num_attention_heads\":6,"
      "\"num_key_value_heads\":2,\"intermediate_size\":8,\"vocab_size\":20,\"max_position_embeddings\":64}");
  tws_error err = {0};
  tws_plan *alone = ring_plan(network, 1, 0, 48, &err);
  ck_assert_ptr_nonnull(alone);
  for (int ranks = 2; ranks <= 4; ranks++) {
    double all = 0, first = 0;
    for (int rank = 0; rank < ranks; rank++) {
      tws_plan *plan = ring_plan(network, ranks, rank, 48, &err);
      ck_assert_msg(plan && tws_plan_verify(plan, &err) == TWS_OK, "%s", err.message);
      const double flops = attention_flops(plan);
      if (rank == 0) first = flops;
      ck_assert_double_eq(flops, first);
      all += flops;
      tws_plan_destroy(plan);
    }
    ck_assert_double_eq(all, attention_flops(alone));
  }
  tws_plan_destroy(alone);
  tws_network_destroy(network);
}
END_TEST

START_TEST(rings_refuse) {
#define SIZES "\"num_hidden_layers\":2,\"hidden_size\":24,\"num_attention_heads\":6,\"vocab_size\":20"
  static const struct {
    const char *model, *reason, *remedy;
    int64_t length;
  } cases[] = {
      {"{\"model_type\":\"mistral\"," SIZES ",\"num_key_value_heads\":2,\"intermediate_size\":8,"
       "\"max_position_embeddings\":64,\"sliding_window\":16}",
       "windows", "ulysses", 48},
      {"{\"model_type\":\"bloom\",\"n_layer\":2,\"hidden_size\":24,\"n_head\":6,\"vocab_size\":20}", "linear biases",
       "ulysses", 48},
      {"{\"model_type\":\"gpt2\",\"n_layer\":2,\"n_embd\":24,\"n_head\":6,\"vocab_size\":20,\"n_positions\":64,"
       "\"attn_pdrop\":0.1}",
       "twinspeed.dropout", "ulysses", 48},
      {"{\"model_type\":\"bert\"," SIZES ",\"intermediate_size\":8,\"max_position_embeddings\":64,"
       "\"hidden_dropout_prob\":0,\"attention_probs_dropout_prob\":0}",
       "not causal", "ulysses", 48},
      {"{\"model_type\":\"deberta-v2\"," SIZES ",\"intermediate_size\":8,\"max_position_embeddings\":64,"
       "\"hidden_dropout_prob\":0,\"attention_probs_dropout_prob\":0,\"relative_attention\":true,"
       "\"pos_att_type\":\"c2p|p2c\"}",
       "disentangled", "sequence_parallel_size to 1", 48},
      {"{\"model_type\":\"gpt2\",\"n_layer\":2,\"n_embd\":24,\"n_head\":6,\"vocab_size\":20,\"n_positions\":64}",
       "in 8 chunks", "48 tokens; the nearest smaller degree that is legal is 3", 42}};
#undef SIZES
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    tws_network *network = network_from(cases[i].model);
    tws_error err = {0};
    ck_assert_ptr_null(ring_plan(network, 4, 0, cases[i].length, &err));
    ck_assert_msg(strstr(err.message, cases[i].reason) && strstr(err.hint, cases[i].remedy), "%s: %s (%s)",
                  cases[i].reason, err.message, err.hint);
    tws_network_destroy(network);
  }
}
END_TEST

int main(void) {
  Suite *suite = suite_create("parallel plan");
  TCase *jobs = tcase_create("jobs");
  tcase_set_timeout(jobs, 300);
  tcase_add_loop_test(jobs, random_jobs_are_sound, 0, PARTS);
  tcase_add_test(jobs, illegal_jobs_are_refused);
  tcase_add_test(jobs, rings_share_the_work);
  tcase_add_test(jobs, rings_refuse);
  suite_add_tcase(suite, jobs);
  return run_suite(suite);
}
