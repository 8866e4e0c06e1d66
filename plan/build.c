#include <stdio.h>
#include <string.h>

#include "plan/cache.h"
#include "plan/attention_parts.h"
#include "plan/checkpoints.h"
#include "plan/compressed.h"
#include "plan/offload.h"
#include "plan/onebit_lamb.h"
#include "plan/turns.h"
#include "plan/zenflow.h"
#include "plan/zero.h"

static tws_code check_request(const tws_plan_request *r, tws_error *err) {
  const tws_config *c = r->config;
  int world = tws_topology_world(&r->topology);
  if (!tws_plan_has_program(c, r->program) && tws_program_serves(r->program))
    return tws_fail(err, TWS_INTERNAL, NULL, "a program of inference needs a request of tws_serving_make()");
  if (!tws_plan_has_program(c, r->program))
    return tws_fail(err, TWS_INVALID,
                    r->program >= TWS_PROGRAM_COMPRESSED && r->program <= TWS_PROGRAM_FREEZE
                        ? "set optimizer.type to OneBitAdam or ZeroOneAdam"
                        : "set zero_optimization.zenflow (for overlap also its overlap_step), or for apply "
                          "twinspeed.delayed_update",
                    "the configuration has no program %s", tws_program_name(r->program));
  if (r->rank < 0 || r->rank >= world) {
    return tws_fail(err, TWS_INVALID, NULL, "rank %d is not in a topology of %d ranks", r->rank, world);
  }
  if (c->micro_batch_size < 1 || c->accumulation_steps < 1) {
    return tws_fail(err, TWS_INVALID, "give train_micro_batch_size_per_gpu and gradient_accumulation_steps",
                    "the batch triple is not resolved");
  }
  if (c->sequence_length < 1) {
    return tws_fail(err, TWS_INVALID, "set twinspeed.sequence_length or --seq", "the sequence length is %lld",
                    (long long)c->sequence_length);
  }
  if (r->network->positions > 0 && !r->network->open_positions && c->sequence_length > r->network->positions) {
    return tws_fail(err, TWS_INVALID, "use a shorter sequence, or a model with more positions",
                    "sequence length %lld exceeds the model's %lld positions", (long long)c->sequence_length,
                    (long long)r->network->positions);
  }
  const int64_t longer = c->target_length > c->sequence_length ? c->target_length : c->sequence_length;
  double tokens = (double)c->micro_batch_size * (double)longer;
  if (tokens > 1e9 || tokens * (double)c->accumulation_steps > 4e9) {
    return tws_fail(err, TWS_INVALID, "use a smaller micro batch (generate: --batch)",
                    "a micro-batch of %lld x %lld tokens is beyond 10^9 tokens, or a step beyond 4 x 10^9",
                    (long long)c->micro_batch_size, (long long)c->sequence_length);
  }
  return TWS_OK;
}

/* Returns 1 if ranks along this axis exchange expert slots: the expert axis if the all-to-all has one level, its node
 * axes if it has two. */
static int exchanges_slots(const tws_plan *plan, const tws_config *config, tws_axis axis) {
  const int step = axis == TWS_AXIS_NODE_EXPERT || axis == TWS_AXIS_EXPERT_NODES;
  return tws_network_has_experts(plan->network) && (tws_config_two_steps(config) ? step : axis == TWS_AXIS_EXPERT);
}

/* Makes the communicators. Group 0 has the ranks that hold the same parameters and process different samples or tokens.
 * The next groups consist of the ranks that share a replica's layers; the groups of a pipeline are made when its stages
 * are. */
static tws_code make_groups(tws_lower *l, tws_error *err) {
  tws_plan *plan = l->b.plan;
  const tws_axes replicas = tws_axes_that_divide(TWS_DIVIDES_SAMPLES) | tws_axes_that_divide(TWS_DIVIDES_TOKENS);
  plan->position = tws_topology_position(&plan->topology, plan->rank);
  plan->groups = tws_arena_alloc(plan->arena, TWS_AXIS_COUNT + TWS_ZERO_CLASSES, sizeof *plan->groups);
  if (!plan->groups) return tws_fail(err, TWS_MEMORY, NULL, "no memory for the plan");
  tws_zero_choose_ranks(l, replicas);
  for (int axis = 0; axis < TWS_AXIS_COUNT; axis++) {
    const tws_divides divides = tws_axis_divides((tws_axis)axis);
    const int inside = divides == TWS_DIVIDES_TOKENS || divides == TWS_DIVIDES_WEIGHTS;
    const int exchanges =
        plan->position.ranks[axis] > 1 && (inside || exchanges_slots(plan, l->config, (tws_axis)axis));
    l->group[axis] = exchanges ? tws_lower_group(l, 1u << axis) : TWS_NONE;
  }
  return l->b.failed;
}

/* Returns the number of target tokens of a micro-batch, which a decoder processes; 0: targets are not a sequence of
 * their own. */
static int64_t target_tokens(const tws_lower *l) {
  return l->b.plan->network->objective == TWS_OBJECTIVE_PAIRS ? l->config->micro_batch_size * l->config->target_length
                                                              : 0;
}

static tws_code indivisible(tws_lower *l, int64_t tokens, int64_t parts, const char *what, const char *hint) {
  return tws_fail(l->b.err, TWS_INVALID, hint, "%s: %lld tokens of a micro-batch are no multiple of %lld", what,
                  (long long)tokens, (long long)parts);
}

/* Builds the local network, and checks that its tokens can be divided as the configuration specifies. */
static tws_code make_local(tws_lower *l, tws_error *err) {
  tws_plan *plan = l->b.plan;
  const tws_config *c = l->config;
  const int tensor = plan->position.ranks[TWS_AXIS_MODEL], sequence = plan->position.ranks[TWS_AXIS_SEQUENCE];
  const int splits_tokens = tensor > 1 && c->tensor_sequence_parallel;
  l->sharding =
      (tws_sharding){.position = plan->position, .between = splits_tokens ? TWS_PLACED_TOKENS : TWS_PLACED_REPLICATED};
  if (tensor > 1) TWS_TRY(tws_tensor_parallel_check(plan->network, tensor, err));
  l->sharding.splits_experts = tensor > 1 && c->expert_tensor_parallel && tws_network_has_experts(plan->network);
  if (l->sharding.splits_experts) TWS_TRY(tws_expert_tensor_check(plan->network, tensor, err));
  if (splits_tokens && (plan->network->classes > 0 || plan->network->objective == TWS_OBJECTIVE_SENTENCES))
    return tws_fail(err, TWS_UNSUPPORTED, "set twinspeed.tensor_sequence_parallel to false",
                    "tensor parallelism does not divide the tokens that a classifier reads");
  for (uint32_t m = 0; m < plan->network->module_count && splits_tokens; m++)
    if (plan->network->modules[m].type == TWS_MODULE_TOKEN_UNFOLD)
      return tws_fail(err, TWS_UNSUPPORTED, "set twinspeed.tensor_sequence_parallel to false",
                      "%s: tensor parallelism does not divide adjacent tokens that a convolution reads",
                      plan->network->modules[m].name);
  if (splits_tokens && plan->network->objective == TWS_OBJECTIVE_PICTURES)
    return tws_fail(err, TWS_UNSUPPORTED, "set twinspeed.tensor_sequence_parallel to false",
                    "tensor parallelism does not divide the tokens of pictures between split layers");
  l->sharding.ring = sequence > 1 && tws_config_is_ring(c);
  if (l->sharding.ring)
    TWS_TRY(tws_ring_check(plan->network, sequence, c->sequence_length, c->dropout, err));
  else if (sequence > 1)
    TWS_TRY(tws_sequence_parallel_check(plan->network, &plan->position, c->sequence_length, err));
  if (c->expert_ranks > 1) TWS_TRY(tws_expert_parallel_check(plan->network, (int)c->expert_ranks, err));
  if (c->expert_bias_rate > 0) TWS_TRY(tws_expert_bias_check(plan->network, err));
  if (c->expert_load) TWS_TRY(tws_expert_load_check(plan->network, c->expert_load, err));
  l->extent.tokens = c->micro_batch_size * c->sequence_length / sequence;
  l->streams.slices = tensor > 1 && c->tensor_overlap && c->tensor_chunks > 1 ? (int)c->tensor_chunks : 1;
  int64_t parts = (int64_t)l->streams.slices * (splits_tokens ? tensor : 1);
  const int64_t targets = target_tokens(l);
  if (l->extent.tokens % parts || targets % parts) {
    return indivisible(l, l->extent.tokens % parts ? l->extent.tokens : targets, parts, "tensor parallelism",
                       "change the micro batch or the sequence length, twinspeed.tensor_overlap_chunks, or turn "
                       "twinspeed.tensor_sequence_parallel off");
  }
  if (c->loss_tiles > 1 && (l->extent.tokens % c->loss_tiles || targets % c->loss_tiles)) {
    return indivisible(l, l->extent.tokens % c->loss_tiles ? l->extent.tokens : targets, c->loss_tiles,
                       "twinspeed.loss_tiles", "use a number that divides them");
  }
  if (c->mlp_tiles > 1 && (l->extent.tokens % c->mlp_tiles || targets % c->mlp_tiles)) {
    return indivisible(l, l->extent.tokens % c->mlp_tiles ? l->extent.tokens : targets, c->mlp_tiles,
                       "twinspeed.mlp_tiles", "use a number that divides them");
  }
  TWS_TRY(tws_shard_network(plan->network, &l->sharding, l->scratch, plan->arena, &l->local, err));
  l->network = l->local.network;
  plan->slices = l->local.slices;
  TWS_TRY(tws_chunked_begin(l, err));
  return tws_weight_tiles_begin(l);
}

static tws_code prepare(tws_lower *l, tws_error *err) {
  tws_plan *plan = l->b.plan;
  const tws_config *c = l->config;
  TWS_TRY(make_groups(l, err));
  TWS_TRY(tws_turns_check(l, err));
  TWS_TRY(make_local(l, err));
  l->extent.accumulation = c->accumulation_steps;
  if (l->request->max_accumulation > 0 && l->extent.accumulation > l->request->max_accumulation) {
    l->extent.accumulation = l->request->max_accumulation;
  }
  plan->accumulation_steps = l->extent.accumulation;
  l->streams.overlap = c->zero.overlap_comm && plan->position.ranks[TWS_AXIS_PIPE] == 1;
  /* Without overlap_comm, and always at stage 0, DeepSpeed issues gathers and reductions on the compute stream. */
  l->streams.gather = l->streams.overlap ? TWS_STREAM_GATHER : TWS_STREAM_COMPUTE;
  l->streams.reduce = l->streams.overlap && c->zero.stage > 0 ? TWS_STREAM_REDUCE : TWS_STREAM_COMPUTE;
  l->streams.exchange =
      plan->position.ranks[TWS_AXIS_MODEL] > 1 && c->tensor_overlap ? TWS_STREAM_EXCHANGE : TWS_STREAM_COMPUTE;
  l->streams.exchanges_overlap = l->streams.exchange != TWS_STREAM_COMPUTE || l->sharding.ring;
  for (int type = 0; type < TWS_MODULE_TYPE_COUNT; type++)
    l->memory[type] = tws_module_memory_of((tws_module_type)type);
  TWS_TRY(tws_values_begin(l));
  TWS_TRY(tws_recompute_begin(l));
  TWS_TRY(tws_backward_begin(l));
  const tws_lifetime whole = TWS_LIFETIME_PROGRAM;
  plan->hyper = tws_builder_buffer(&l->b, "hyperparameters", TWS_CATEGORY_INPUT, TWS_F32, tws_hyper_count(c), whole);
  uint64_t experts;
  tws_routers(plan->network, TWS_NONE, &experts);
  plan->metrics = tws_builder_buffer(&l->b, "metrics", TWS_CATEGORY_INPUT, TWS_F64, TWS_METRIC_COUNT + experts, whole);
  for (uint32_t i = 0; i < l->network->input_count; i++) {
    const tws_network_input *in = &l->network->input[i];
    plan->input[i] = tws_builder_buffer(&l->b, in->name, TWS_CATEGORY_INPUT, tws_input_dtype(l, i),
                                        tws_input_elements(l, i) * (uint64_t)l->extent.accumulation, whole);
  }
  TWS_TRY(tws_frozen_begin(l));
  TWS_TRY(tws_quantized_begin(l));
  TWS_TRY(tws_float8_begin(l));
  TWS_TRY(tws_pipeline_begin(l));
  TWS_TRY(tws_float8_histories(l));
  tws_checkpoints_begin(l);
  TWS_TRY(tws_zero_begin(l));
  TWS_TRY(tws_cache_begin(l));
  return tws_running_begin(l);
}

tws_code tws_plans_check_length(uint64_t operations, tws_error *err) {
  if (operations <= TWS_PLAN_MOST_VISITS) return TWS_OK;
  return tws_fail(err, TWS_UNSUPPORTED,
                  "use fewer accumulation steps, with a larger micro batch instead, or fewer chunks of attention",
                  "the plans of the job's stages are longer together than 2^23 operations");
}

/* Fails if the plan would be too long. A visit is about one operation, and an operation with its operands and buffers
 * takes about 300 bytes while a plan is built. */
static tws_code check_length(const tws_lower *l, tws_error *err) {
  int64_t visits = 0;
  for (int i = 0; i < l->pipeline.chunk_count; i++) visits += l->pipeline.chunks[i].visits.count;
  if (visits * l->extent.accumulation <= TWS_PLAN_MOST_VISITS) return TWS_OK;
  char hint[160];
  snprintf(hint, sizeof hint, "use at most %lld accumulation steps, with a larger micro batch instead",
           (long long)(TWS_PLAN_MOST_VISITS / (visits > 0 ? visits : 1)));
  return tws_fail(err, TWS_UNSUPPORTED, hint,
                  "a plan of %lld micro-batches of %lld operations each is longer than 2^23 operations",
                  (long long)l->extent.accumulation, (long long)visits);
}

/* Reserves room for operations: most visits of a module are one operation. The arrays of long plans are reallocated,
 * since large memory that is freed returns to the system, and allocating it again costs more than moving the array. */
static void expect(tws_lower *l) {
  enum { MOST = 1 << 14 };
  size_t visits = 0;
  for (int i = 0; i < l->pipeline.chunk_count; i++) visits += l->pipeline.chunks[i].visits.count;
  visits = (visits + visits / 4) * (size_t)l->extent.accumulation + 64;
  tws_builder_expect(&l->b, visits < MOST ? visits : MOST);
}

/* Lowers the programs that run between steps; returns 0 if the plan's program is not one of these. */
static int lower_between(tws_lower *l) {
  if (l->config->zenflow.on && !l->columns.on && l->b.plan->program > TWS_PROGRAM_EVALUATE &&
      !tws_program_serves(l->b.plan->program) && !tws_program_is_step(l->b.plan->program))
    return 1; /* the device has no columns, so the program has no operations */
  switch (l->b.plan->program) {
    case TWS_PROGRAM_APPLY:
      if (l->columns.on)
        tws_zenflow_apply(l);
      else
        tws_lower_apply(l);
      return 1;
    case TWS_PROGRAM_SELECT:
      tws_zenflow_select(l);
      return 1;
    case TWS_PROGRAM_SYNC:
      tws_zenflow_sync(l);
      return 1;
    case TWS_PROGRAM_FREEZE:
      if (l->lamb.on)
        tws_onebit_lamb_freeze(l);
      else
        tws_compressed_freeze(l);
      return 1;
    default:
      return 0;
  }
}

/* Counts the bytes that the kernels of a micro-batch of a program of inference read and write. */
static void count_reread(tws_lower *l) {
  tws_plan *plan = l->b.plan;
  double sum = 0, *bytes = tws_lower_memory(l, plan->work_count + 1u, sizeof *bytes);
  if (!tws_program_serves(plan->program)) return;
  for (uint32_t w = 0; bytes && w < plan->work_count; w++)
    bytes[w] = plan->works[w].kind == TWS_OP_COMPUTE ? tws_work_bytes(&plan->works[w]) : 0;
  for (uint32_t i = 0; bytes && i < plan->op_count; i++) sum += bytes[plan->ops[i].work];
  plan->reread_bytes = sum / (double)(l->extent.accumulation > 0 ? l->extent.accumulation : 1);
}

typedef enum completeness { LOWERED, DEPENDENT, FINISHED } completeness;

/* Derives the dependencies of the plan's operations and the offsets of its buffers, as far as `wanted` requests
 * them. */
static tws_code complete(tws_lower *l, completeness wanted) {
  if (wanted == LOWERED) return l->b.failed;
  return wanted == DEPENDENT ? tws_builder_depend(&l->b) : tws_builder_finish(&l->b);
}

/* Emits the operations of the prepared plan and completes it. */
static tws_code lower(tws_lower *l, completeness wanted, tws_error *err) {
  TWS_TRY(check_length(l, err));
  expect(l);
  l->b.phase = TWS_PHASE_FORWARD;
  l->b.module = TWS_NONE;
  if (lower_between(l)) return complete(l, wanted);
  for (int turn = 0; turn < tws_turns(l); turn++) {
    l->b.phase = TWS_PHASE_FORWARD;
    l->b.module = TWS_NONE;
    tws_zero_step_begin(l, turn);
    if (turn == 0) {
      tws_delayed_update(l);
      tws_zenflow_late(l);
      tws_lower_count_targets(l);
    }
    tws_pipeline_run(l, turn);
    if (l->extent.evaluates) continue;
    tws_lower_step(l);
    tws_float8_step(l);
  }
  if (l->extent.evaluates && !tws_program_serves(l->b.plan->program)) tws_lower_score(l);
  count_reread(l);
  return complete(l, wanted);
}

/* Adds the axes among whose ranks the experts are divided: one axis, or the ranks of a node and the nodes. Returns the
 * number of axes. */
static int add_experts(const tws_config *config, int ranks, tws_axis *axes, int *dims) {
  if (!tws_config_two_steps(config)) {
    axes[0] = TWS_AXIS_EXPERT;
    dims[0] = ranks;
    return 1;
  }
  axes[0] = TWS_AXIS_EXPERT_NODES;
  dims[0] = ranks / (int)config->expert_node_ranks;
  axes[1] = TWS_AXIS_NODE_EXPERT;
  dims[1] = (int)config->expert_node_ranks;
  return 2;
}

/* Adds the axes of groups of ranks that each have all partitions (MiCS): the ranks of a group, on a node and between
 * nodes if groups gather in two levels, and the replicas of a partition. Returns the number of axes. */
static int add_groups(const tws_config *config, int groups, int replicas, tws_axis *axes, int *dims) {
  const int near = tws_config_group_node_replicas(config);
  int count = 0;
  axes[count] = TWS_AXIS_DATA_COPIES;
  dims[count++] = groups;
  if (near > 0) {
    axes[count] = TWS_AXIS_SHARD_NODES;
    dims[count++] = replicas / near;
  }
  if (near == 1 || replicas == 1) return count; /* an axis of one rank is omitted */
  axes[count] = near > 0 ? TWS_AXIS_NODE_SHARDS : TWS_AXIS_DATA_SHARDS;
  dims[count++] = near > 0 ? near : replicas;
  return count;
}

/* Divides the data-parallel axis into sub-axes. With experts: expert-parallel ranks have successive numbers, or the
 * ranks that have the same experts do. Without experts: ranks of a node, if ZeRO distinguishes them. */
static int add_replicas(const tws_config *config, int replicas, tws_axis *axes, int *dims) {
  const int experts = tws_config_axis_ranks(config, TWS_AXIS_EXPERT), near = tws_config_node_replicas(config, replicas);
  const int group = tws_config_group_replicas(config, replicas);
  int count = 0;
  if (group > 0) return add_groups(config, replicas / group, group, axes, dims);
  if (near > 0) {
    axes[0] = TWS_AXIS_DATA_NODES;
    dims[0] = replicas / near;
    axes[1] = TWS_AXIS_NODE_DATA;
    dims[1] = near;
    return 2;
  }
  if (experts < 2) {
    axes[0] = TWS_AXIS_DATA;
    dims[0] = replicas;
    return 1;
  }
  if (config->data_before_experts) count = add_experts(config, experts, axes, dims);
  axes[count] = TWS_AXIS_EXPERT_DATA;
  dims[count++] = replicas / experts;
  return config->data_before_experts ? count : count + add_experts(config, experts, axes + count, dims + count);
}

tws_code tws_plan_topology(const tws_config *config, int ranks, tws_topology *topology, tws_error *err) {
  int64_t replicas;
  TWS_TRY(tws_config_replicas(config, ranks, &replicas, err));
  tws_axis axes[TWS_ORDERED_AXES + 2];
  int dims[TWS_ORDERED_AXES + 2], count = 0;
  for (int i = 0; i < TWS_ORDERED_AXES; i++) {
    const tws_axis axis = (tws_axis)config->axis_order.axis[i];
    if (axis == TWS_AXIS_DATA) {
      count += add_replicas(config, (int)replicas, axes + count, dims + count);
      continue;
    }
    const int along = tws_config_axis_ranks(config, axis);
    if (along < 2) continue;
    axes[count] = axis;
    dims[count++] = along;
  }
  return tws_topology_make(topology, count, axes, dims, err);
}

/* Creates an empty plan and the state of its lowering. */
static tws_code begin(const tws_plan_request *request, tws_lower *l, tws_error *err) {
  TWS_TRY(check_request(request, err));
  tws_plan *plan = tws_plan_blank();
  tws_arena *scratch = tws_arena_create();
  if (!plan || !scratch) {
    tws_plan_destroy(plan);
    tws_arena_destroy(scratch);
    return tws_fail(err, TWS_MEMORY, NULL, "no memory for the plan");
  }
  const tws_config *c = request->config;
  const int serves = tws_program_serves(request->program);
  plan->program = request->program;
  plan->state = request->state;
  plan->owns_state = !request->state;
  plan->network = request->network;
  plan->topology = request->topology;
  plan->rank = request->rank;
  plan->world = tws_topology_world(&request->topology);
  plan->zero = c->zero;
  plan->dtype = c->dtype;
  plan->matmul_dtype = tws_float8_is_planned(c) ? TWS_MATMUL_AUTO : c->matmul_dtype;
  plan->micro_batch_size = c->micro_batch_size;
  plan->sequence_length = c->sequence_length;
  plan->backend = request->backend;
  plan->threads = request->threads;
  *l = (tws_lower){.request = request,
                   .config = c,
                   .network = request->network,
                   .scratch = scratch,
                   .extent = {.evaluates = serves || request->program == TWS_PROGRAM_EVALUATE,
                              .parameters_only = serves || (request->program == TWS_PROGRAM_EVALUATE &&
                                                            request->parameters_only && !request->state)},
                   .at = {.tiles = 1},
                   .summed = TWS_NONE,
                   .cache = {.buffer = TWS_NONE},
                   .b = {.plan = plan, .err = err, .use = request->use}};
  if (request->state) return TWS_OK;
  TWS_TRY(tws_state_create(&plan->state, err));
  plan->state->counters = (tws_counters){.seed = c->seed, .loss_scale = tws_loss_scale_start(c)};
  return TWS_OK;
}

/* Frees everything that the lowering used, except the plan. */
static void end(tws_lower *l) {
  tws_builder_free(&l->b);
  for (int i = 0; i < l->pipeline.chunk_count; i++) tws_free(l->pipeline.chunks[i].visits.items);
  tws_arena_destroy(l->scratch);
}

static tws_code build(const tws_plan_request *request, completeness wanted, tws_plan **out, tws_error *err) {
  tws_lower l = {.request = NULL};
  *out = NULL;
  tws_code code = begin(request, &l, err);
  if (code == TWS_OK) code = prepare(&l, err);
  if (code == TWS_OK) code = lower(&l, wanted, err);
  end(&l);
  if (code != TWS_OK) {
    tws_plan_destroy(l.b.plan);
    return code;
  }
  *out = l.b.plan;
  return TWS_OK;
}

tws_code tws_plan_build(const tws_plan_request *request, tws_plan **out, tws_error *err) {
  return build(request, FINISHED, out, err);
}

tws_code tws_plan_lower(const tws_plan_request *request, tws_plan **out, tws_error *err) {
  return build(request, LOWERED, out, err);
}

tws_code tws_plan_depend(const tws_plan_request *request, tws_plan **out, tws_error *err) {
  return build(request, DEPENDENT, out, err);
}

void tws_plan_destroy(tws_plan *plan) {
  if (!plan) return;
  tws_free(plan->ops);
  tws_free(plan->operands);
  tws_free(plan->deps);
  tws_free(plan->buffers);
  tws_free(plan->works);
  tws_free(plan->arguments);
  tws_free(plan->updates);
  if (plan->owns_state) tws_state_destroy(plan->state);
  tws_arena_destroy(plan->arena);
  tws_free(plan);
}

uint32_t tws_plan_input(const tws_plan *plan, tws_input_content content) {
  const uint32_t input = plan->network ? tws_network_input_of(plan->network, content) : TWS_NONE;
  return input == TWS_NONE ? TWS_NONE : plan->input[input];
}

uint64_t tws_plan_bytes(const tws_plan *plan, tws_tier tier) {
  return plan->arena_bytes[tier] + (plan->state ? plan->state->arena_bytes[tier] : 0);
}

uint64_t tws_plan_arena_of(const tws_plan *plan, const tws_buffer *buffer) {
  if (buffer->lifetime != TWS_LIFETIME_STATE) return plan->arena_bytes[buffer->tier];
  return plan->state ? plan->state->arena_bytes[buffer->tier] : 0;
}
