#include "autotune/space_axes.h"

#include <stdio.h>
#include <string.h>

#include "job/features.h"
#include "plan/sequence_rules.h"
#include "plan/shard.h"

enum { LONG_SEQUENCE = 8192 };

/* ---- lists ---- */

static int copy_degrees(int *to, const int *from, int count) {
  for (int i = 0; i < count; i++) to[i] = from[i];
  return count;
}

static int divisors_up_to(int number, int limit, int *list) {
  int count = 0;
  for (int d = 1; d <= number && d <= limit && count < TWS_TUNE_LIST; d++)
    if (number % d == 0) list[count++] = d;
  return count;
}

static int largest_of(const tws_tune_request *request) {
  const tws_tune_space *space = &request->space;
  int most = space->ranks_count ? 0 : request->job->cluster.devices_per_node * request->job->cluster.nodes;
  for (int i = 0; i < space->ranks_count; i++)
    if (space->ranks[i] > most) most = space->ranks[i];
  return most;
}

/* Sets each list of axis values to the configuration's value alone. */
static void fill_given(const tws_config *config, tws_axes_space *axes) {
  tws_variant given = tws_variant_given(config);
  axes->pipeline[0] = given.pipeline;
  axes->tensor[0] = given.tensor;
  axes->sequence[0] = given.sequence;
  axes->schedules[0] = given.schedule;
  axes->sequence_parallel[0] = given.sequence_parallel;
  axes->expert[0] = tws_network_has_experts(axes->network) ? given.expert : 0; /* 0: the model has no experts */
  axes->pipeline_count = axes->tensor_count = axes->sequence_count = axes->schedule_count =
      axes->sequence_parallel_count = axes->expert_count = axes->capacity_count = 1;
  for (int i = 0; i < TWS_EXCHANGE_COUNT; i++) axes->exchange_count[i] = 1;
}

/* Fills the lists of group sizes for exchanges within a node: none, and each divisor of a node's devices, if the
 * cluster has several nodes and the configuration has no value. */
static void fill_neighbours(const tws_config *config, tws_axes_space *axes, int nodes) {
  const int given = config->zero.secondary_ranks > 1 || config->zero.shard_ranks > 0 || config->expert_node_ranks > 0;
  const int alone = config->zero.quantized_gradients || config->zero.offload_optimizer || config->zero.offload_param;
  if (nodes < 2 || given || alone) return;
  for (int i = TWS_EXCHANGE_HPZ; i <= TWS_EXCHANGE_EXPERT_NODES - (config->expert_dispatch_fp8 != 0); i++)
    for (int ranks = 2; ranks <= axes->devices && axes->exchange_count[i] < TWS_TUNE_LIST; ranks++)
      if (axes->devices % ranks == 0) axes->exchange[i][axes->exchange_count[i]++] = 1 + ranks;
}

/* Returns 1 if the user gives lists of ZeRO knobs. The space is then large, so sequence ranks, exchanges and experts
 * take only values that the user lists. */
static int names_knobs(const tws_tune_space *space) {
  int named =
      space->overlap_count + space->reduce_bucket_count + (space->offload_is_default ? 0 : space->offload_count);
  for (int i = 0; i < TWS_ZERO3_LIMIT_COUNT; i++) named += space->zero3_count[i];
  return named > 0;
}

/* Fills the lists of axes for which the user gave no values with the defaults of a search over all axes. */
static void fill_thorough(const tws_tune_request *request, tws_axes_space *axes) {
  int layers = request->job->network->layers < 1 << 20 ? (int)request->job->network->layers : 1 << 20;
  axes->pipeline_count = divisors_up_to(largest_of(request), layers, axes->pipeline);
  axes->tensor_count = divisors_up_to(axes->devices, axes->devices, axes->tensor);
  const int named = names_knobs(&request->space);
  if (axes->sequence_length >= LONG_SEQUENCE && !named)
    axes->sequence_count = divisors_up_to(axes->devices, axes->devices, axes->sequence);
  axes->schedules[0] = (tws_variant_schedule){TWS_PIPELINE_1F1B, 1};
  axes->schedules[1] = (tws_variant_schedule){TWS_PIPELINE_INTERLEAVED, 2};
  axes->schedules[2] = (tws_variant_schedule){TWS_PIPELINE_ZB_H1, 1};
  axes->schedule_count = 3;
  axes->sequence_parallel[0] = 1;
  axes->sequence_parallel[1] = 0;
  axes->sequence_parallel_count = 2;
  if (!named) fill_neighbours(request->job->config, axes, request->job->cluster.nodes);
  if (!tws_network_has_experts(axes->network) || named || axes->expert[0] > 1) return;
  axes->expert_count = 0;
  for (int degree = 1; degree <= axes->devices && axes->expert_count < TWS_TUNE_LIST; degree++)
    if (axes->devices % degree == 0 && tws_expert_parallel_check(axes->network, degree, NULL) == TWS_OK)
      axes->expert[axes->expert_count++] = degree;
}

/* Restricts the list of sequence_parallel to one value if the job's runtime supports only this value: tokens are always
 * split among tensor ranks, or never. */
static void fill_tokens(const tws_job *job, tws_axes_space *axes) {
  const tws_features has = tws_runtime_features(tws_profile_runtime(job->profile), job->backend);
  const int whole = tws_features_have(has, TWS_FEATURE_WHOLE_TOKENS);
  if (whole == tws_features_have(has, TWS_FEATURE_SPLIT_TOKENS)) return;
  axes->sequence_parallel[0] = !whole;
  axes->sequence_parallel_count = 1;
}

void tws_axes_fill(const tws_tune_request *request, tws_axes_space *axes) {
  const tws_tune_space *space = &request->space;
  const tws_config *config = request->job->config;
  *axes = (tws_axes_space){.network = request->job->network,
                           .sequence_length = tws_job_sequence(request->job),
                           .devices = request->job->cluster.devices_per_node,
                           .thorough = space->axes,
                           .every_stage = space->stage_count > 0,
                           .every_batch = space->accumulation_count > 0,
                           .tensor_named = space->tensor_count > 0,
                           .schedules_named = space->schedule_count > 0};
  fill_given(config, axes);
  if (space->axes) fill_thorough(request, axes);
  if (space->pipeline_count)
    axes->pipeline_count = copy_degrees(axes->pipeline, space->pipeline, space->pipeline_count);
  if (space->tensor_count) axes->tensor_count = copy_degrees(axes->tensor, space->tensor, space->tensor_count);
  if (space->sequence_count)
    axes->sequence_count = copy_degrees(axes->sequence, space->sequence, space->sequence_count);
  if (space->sequence_parallel_count)
    axes->sequence_parallel_count =
        copy_degrees(axes->sequence_parallel, space->sequence_parallel, space->sequence_parallel_count);
  else
    fill_tokens(request->job, axes);
  if (space->expert_count) axes->expert_count = copy_degrees(axes->expert, space->expert, space->expert_count);
  if (space->capacity_count) {
    axes->capacity_count = space->capacity_count;
    memcpy(axes->capacity, space->capacity, (size_t)space->capacity_count * sizeof *space->capacity);
  }
  for (int i = 0; i < TWS_EXCHANGE_COUNT; i++) {
    axes->exchange_named[i] = space->exchange_count[i] > 0;
    if (axes->exchange_named[i]) axes->exchange_count[i] = space->exchange_count[i];
    for (int k = 0; k < space->exchange_count[i]; k++) axes->exchange[i][k] = 1 + space->exchange[i][k];
  }
  if (space->schedule_count) {
    axes->schedule_count = space->schedule_count;
    memcpy(axes->schedules, space->schedules, (size_t)space->schedule_count * sizeof *space->schedules);
  }
}

/* ---- points ---- */

/* Returns 1 if the model's heads and widths are divisible by the point's number of tensor ranks. */
static int axes_tensor_legal(const tws_axes_space *axes, const tws_variant *point) {
  const tws_network *n = axes->network;
  int tensor = point->tensor;
  if (tensor > 1 && (n->heads % tensor || n->kv_heads % tensor || n->intermediate % tensor)) return 0;
  if (point->sequence < 2) return 1;
  tws_ulysses_part part;
  return tws_ulysses_part_of(n->heads / tensor, n->kv_heads / tensor, axes->sequence_length, point->sequence, 0, &part,
                             NULL) == TWS_OK;
}

/* Returns 1 if the point's replicas and the model's experts are divisible by the point's expert-parallel degree. */
static int axes_experts_legal(const tws_axes_space *axes, const tws_variant *point) {
  if (point->expert < 2) return 1;
  return tws_variant_replicas(point) % point->expert == 0 &&
         tws_expert_parallel_check(axes->network, point->expert, NULL) == TWS_OK;
}

/* Returns 1 if `ranks` can be divided into groups of `value` adjacent ranks, each of whole groups of `unit` ranks;
 * `node`: the number of these ranks in a node, the only legal value if the user listed none; 0: any. */
static int neighbours_legal(int value, int ranks, int unit, int node) {
  return value < ranks && ranks % value == 0 && value % unit == 0 && (node == 0 || value == node);
}

/* Returns 1 if the group sizes and the types of the payload are legal for the point. */
static int exchanges_legal(const tws_axes_space *axes, const tws_variant *point) {
  const int sequence = point->sequence > 1 ? point->sequence : 1, tensor = point->tensor > 1 ? point->tensor : 1;
  const int sharers = tws_variant_replicas(point) * sequence, node = axes->devices / tensor;
  int value[TWS_EXCHANGE_COUNT];
  for (int i = 0; i < TWS_EXCHANGE_COUNT; i++) {
    value[i] = point->exchange[i] > 1 ? point->exchange[i] - 1 : 0;
    if (!value[i]) continue;
    if (i == TWS_EXCHANGE_EXPERT_NODES) {
      if (!neighbours_legal(value[i], point->expert, 1, axes->exchange_named[i] ? 0 : node / sequence)) return 0;
      continue;
    }
    if (point->stage != 3 || sharers < 2) return 0;
    if (i <= TWS_EXCHANGE_MICS &&
        (value[i] < 2 || !neighbours_legal(value[i], sharers, sequence, axes->exchange_named[i] ? 0 : node)))
      return 0;
  }
  if (point->expert > 1 && (value[TWS_EXCHANGE_HPZ] || value[TWS_EXCHANGE_MICS] || value[TWS_EXCHANGE_GRADIENTS]))
    return 0;
  return !value[TWS_EXCHANGE_MICS] || (!value[TWS_EXCHANGE_HPZ] && !value[TWS_EXCHANGE_GRADIENTS]);
}

static int states_capacity(const tws_network *network) {
  for (uint32_t m = 0; m < network->module_count; m++)
    if (network->modules[m].type == TWS_MODULE_ROUTER && network->modules[m].routing->slots.factor < 0) return 0;
  return 1;
}

tws_code tws_axes_check_experts(const tws_tune_request *request, tws_error *err) {
  const tws_tune_space *space = &request->space;
  const tws_network *network = request->job->network;
  tws_code code = TWS_OK;
  if (space->capacity_count && !tws_network_has_experts(network))
    return tws_fail(err, TWS_UNSUPPORTED, "leave --capacities out, or choose a model of experts",
                    "expert capacities: the model has no experts");
  if (space->capacity_count && request->job->config->expert_dropless)
    return tws_fail(err, TWS_UNSUPPORTED, "leave one of them out",
                    "expert capacities: they have no effect with twinspeed.expert_dropless");
  if (space->capacity_count && states_capacity(network))
    return tws_fail(err, TWS_UNSUPPORTED, "leave moe_train_capacity_factor out of the model's file",
                    "expert capacities: the model's file states its own");
  for (int i = 0; i < space->expert_count; i++) {
    code = space->expert[i] > 1 ? tws_expert_parallel_check(network, space->expert[i], err) : TWS_OK;
    if (code == TWS_OK) break; /* one legal value of the list is enough, since illegal ones are skipped */
  }
  return code;
}

int tws_axes_division_legal(const tws_axes_space *axes, const tws_variant *point) {
  if (!axes_tensor_legal(axes, point) || !axes_experts_legal(axes, point)) return 0;
  const int64_t blocks = (int64_t)point->pipeline * point->schedule.virtual_stages;
  if (!axes->schedules_named && point->pipeline > 1 && axes->network->layers < blocks) return 0;
  if (axes->thorough && !axes->tensor_named && point->tensor * point->sequence > axes->devices) return 0;
  const int64_t tokens = point->micro * axes->sequence_length / point->sequence;
  if (point->tensor > 1 && point->sequence_parallel && tokens % point->tensor) return 0;
  if (point->pipeline < 2) return 1;
  if (point->schedule.kind == TWS_PIPELINE_INTERLEAVED && point->accumulation % point->pipeline) return 0;
  return !axes->thorough || axes->every_batch || point->accumulation >= point->pipeline;
}

int tws_axes_knobs_legal(const tws_axes_space *axes, const tws_variant *point) {
  if (!exchanges_legal(axes, point)) return 0;
  /* 1: there are several ranks among which ZeRO can partition */
  const int divided = point->ranks / (point->pipeline * point->tensor) > 1;
  return !axes->thorough || axes->every_stage || !divided || point->stage > 0;
}

/* Explains why the smallest division is impossible: with the model's reason if there is one, else with the number of
 * ranks. */
int tws_axes_explain(const tws_axes_space *axes, const int *ranks, int count, char *text, size_t size) {
  const tws_network *n = axes->network;
  const tws_axes_space *a = axes;
  int least = 0, tensors = 0;
  for (int p = 0; p < a->pipeline_count; p++)
    for (int t = 0; t < a->tensor_count; t++)
      for (int s = 0; s < a->sequence_count; s++) {
        const int model = a->pipeline[p] * a->tensor[t] * a->sequence[s];
        if (!least || model < least) least = model;
        for (int i = 0; i < count; i++)
          if (ranks[i] % model == 0 &&
              axes_tensor_legal(a, &(tws_variant){.tensor = a->tensor[t], .sequence = a->sequence[s]}))
            return 0;
      }
  for (int t = 0; t < a->tensor_count; t++) tensors += n->heads % a->tensor[t] == 0 && n->kv_heads % a->tensor[t] == 0;
  if (!tensors && n->kv_heads != n->heads)
    snprintf(text, size, "%d tensor ranks do not divide the %lld attention heads and %lld key/value heads of the model",
             a->tensor[0], (long long)n->heads, (long long)n->kv_heads);
  else if (!tensors)
    snprintf(text, size, "%d tensor ranks do not divide the %lld attention heads of the model", a->tensor[0],
             (long long)n->heads);
  else
    snprintf(text, size, "%d ranks of a replica (pipeline x tensor x sequence) do not divide %d rank%s", least,
             count ? ranks[count - 1] : 0, count && ranks[count - 1] == 1 ? "" : "s");
  return 1;
}
