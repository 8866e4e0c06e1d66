#include "job/software_memory.h"

#include <math.h>

#include "job/software_step.h"
#include "models/network/adapt.h"
#include "plan/pipeline_schedule.h"

/* Returns the tokens of a micro-batch on one rank. */
static double tokens_of(const tws_job *job) {
  const tws_config *c = job->config;
  return (double)c->micro_batch_size * (double)c->sequence_length / tws_job_ranks_along(job, TWS_AXIS_SEQUENCE);
}

static double in_flight(const tws_job *job, int stage) {
  const int stages = tws_job_stages(job);
  if (stages < 2) return 1;
  const tws_pipeline_shape shape = tws_pipeline_shape_of(job->config, stages, job->config->accumulation_steps);
  return tws_pipeline_in_flight(&shape, stage) / (double)shape.virtual_stages;
}

/* Returns the bytes of unfused attention's scores: two copies of the softmax's output and a dropout mask, 5 bytes a
 * score in 16 bits, 9 in float32. */
static double score_bytes(const tws_job *job, const tws_runtime *runtime, const tws_stage_estimate *stage) {
  const tws_config *c = job->config;
  const double tensor = tws_job_ranks_along(job, TWS_AXIS_MODEL), s = (double)c->sequence_length;
  const double score = 2 * (double)tws_dtype_bytes(c->dtype) + 1;
  const double layer = score * (double)job->network->heads * s * tokens_of(job) / tensor;
  if (runtime->attention != TWS_ATTENTION_UNFUSED) return 0;
  if (c->recompute == TWS_RECOMPUTE_FULL || tws_profile_recomputes_scores(job->profile)) return layer;
  return stage->layers * in_flight(job, stage->stage) * layer;
}

/* Returns the bytes of the dropout masks after attention and after the feed-forward layer, one byte an element. */
static double mask_bytes(const tws_job *job, const tws_stage_estimate *stage) {
  const tws_config *c = job->config;
  const double split = c->tensor_sequence_parallel ? tws_job_ranks_along(job, TWS_AXIS_MODEL) : 1;
  const double layer = 2 * tokens_of(job) * (double)job->network->hidden / split;
  if (!tws_profile_keeps_masks(job->profile)) return 0;
  return c->recompute == TWS_RECOMPUTE_FULL ? layer : stage->layers * in_flight(job, stage->stage) * layer;
}

/* Returns the bytes of results that selective recomputation keeps although the backward pass does not read them, since
 * PyTorch's policy selects operations and not tensors. */
static double unread_bytes(const tws_job *job, const tws_runtime *runtime, const tws_stage_estimate *stage) {
  const tws_config *c = job->config;
  if (!runtime->unread_outputs || c->recompute != TWS_RECOMPUTE_OPERATIONS || !(c->recompute_budget > 0)) return 0;
  return 2 * tokens_of(job) * (double)job->network->hidden * stage->layers * in_flight(job, stage->stage) /
         tws_job_ranks_along(job, TWS_AXIS_MODEL);
}

/* Returns 1 if the module's input is kept for backward anyway: attention keeps its output, and linear modules with the
 * same quantized input keep it once. */
static int is_kept_anyway(const tws_network *network, const tws_module *m) {
  if (network->modules[network->values[m->in[0]].producer].type == TWS_MODULE_ATTENTION) return 1;
  for (const tws_module *other = m; other-- > network->modules && other->layer == m->layer;)
    if (other->type == TWS_MODULE_LINEAR && other->in[0] == m->in[0] && network->params[other->param[0]].code_type > 0)
      return 1;
  return 0;
}

/* Returns the bytes per token that a module of a layer keeps for backward. */
static double kept_bytes(const tws_network *network, const tws_module *m, const tws_runtime_keeps *keeps,
                         double number) {
  switch (m->type) {
    case TWS_MODULE_NORM:
      return m->rms ? keeps->norm_input * (double)m->out_features : 0;
    case TWS_MODULE_ROPE:
      return keeps->rotated * (double)(m->heads + m->kv_heads) * m->head_size;
    case TWS_MODULE_SWIGLU:
    case TWS_MODULE_GEGLU:
      return keeps->gate_output * (double)m->out_features;
    case TWS_MODULE_GELU:
      return keeps->gelu_tensors[0] * number * (double)m->out_features;
    case TWS_MODULE_GELU_EXACT:
      return keeps->gelu_tensors[1] * number * (double)m->out_features;
    case TWS_MODULE_LINEAR:
      if (network->params[m->param[0]].code_type == 0 || is_kept_anyway(network, m)) return 0;
      return keeps->quantized_input * (double)m->in_features;
    case TWS_MODULE_LOW_RANK:
      return keeps->adapter_output * (double)network->params[m->param[0]].rows;
    case TWS_MODULE_DROPPED:
    case TWS_MODULE_DROPOUT:
      return keeps->dropout_mask * (double)m->out_features;
    default:
      return 0;
  }
}

/* Returns the bytes that modules run operation by operation keep in addition to the plan: of all layers in flight or,
 * where layers are recomputed, of one layer. */
static double operation_bytes(const tws_job *job, const tws_runtime *runtime, const tws_stage_estimate *stage) {
  const tws_config *c = job->config;
  const tws_network *network = job->network;
  const double tokens = tokens_of(job), number = (double)tws_dtype_bytes(c->dtype);
  double layer = 0;
  for (uint32_t i = 0; i < network->layer_stride; i++)
    layer += kept_bytes(network, &network->modules[network->layer_first + i], &runtime->keeps, number);
  layer *= tokens / tws_job_ranks_along(job, TWS_AXIS_MODEL);
  return c->recompute == TWS_RECOMPUTE_FULL ? layer : stage->layers * in_flight(job, stage->stage) * layer;
}

/* Nine of ten public messages of jobs that ran out of memory state less than 4 % of the allocated bytes as reserved
 * and of no use. */
static const double MOST_GAPS = 0.04;

/* Returns the bytes that a plan holds at its peak. Where an allocator finds room for each buffer, gaps between those
 * that the plan placed count up to what allocators lose. */
static double held_bytes(const tws_job *job, double arena, double live) {
  return tws_profile_runtime(job->profile)->places_ahead ? arena : fmin(arena, (1 + MOST_GAPS) * live);
}

static double planned_bytes(const tws_job *job, const tws_stage_estimate *stage) {
  return held_bytes(job, (double)stage->arena_bytes[TWS_TIER_DEVICE], (double)stage->live_bytes);
}

static int has_narrow_products(const tws_config *c) {
  const int narrow = c->matmul_dtype == TWS_MATMUL_FP8 || c->matmul_dtype == TWS_MATMUL_MXFP8;
  return (narrow || c->matmul_dtype == TWS_MATMUL_NVFP4) && !c->matmul_keeps_wide;
}

/* Returns 1 if backward recomputes the outputs of activation functions. */
static int recomputes_activations(const tws_config *c) {
  if (c->recompute == TWS_RECOMPUTE_SELECTIVE) return 1;
  if (c->recompute != TWS_RECOMPUTE_OPERATIONS || !c->recompute_operations) return 0;
  return (tws_recompute_list(c->recompute_operations) >> TWS_RECOMPUTED_ACTIVATION) & 1;
}

/* Returns the bytes per token that a plan keeps for backward at a module of experts and that the software does not
 * keep: the experts' outputs, and, with 8-bit products, half of the inputs of the products. The software multiplies by
 * the routing weights before the last product: after a gate in the gate's kernel, after another activation function in
 * a separate operation, which keeps its input. */
static double spared_bytes(const tws_job *job, const tws_module *m) {
  const tws_config *c = job->config;
  const double number = (double)tws_dtype_bytes(c->dtype), narrow = has_narrow_products(c) ? number - 1 : 0;
  if (m->type == TWS_MODULE_COMBINE) return number * m->routing->choices * (double)m->out_features;
  if (m->type != TWS_MODULE_EXPERT_LINEAR) return 0;
  const tws_module_type before = job->network->modules[job->network->values[m->in[0]].producer].type;
  const double inputs = m->routing->choices * (double)m->in_features;
  if (before == TWS_MODULE_DISPATCH) return narrow * inputs;
  const double applied = before == TWS_MODULE_SWIGLU || before == TWS_MODULE_GEGLU ? 0 : number;
  return ((recomputes_activations(c) ? 0 : narrow) - applied) * inputs;
}

/* Returns the bytes of activations of experts that a plan keeps and the software does not; 0 where whole layers are
 * recomputed. */
static double spared_activation_bytes(const tws_job *job, const tws_runtime *runtime, const tws_stage_estimate *stage) {
  const tws_config *c = job->config;
  double bytes = 0;
  if (!runtime->weighs_early || c->dtype == TWS_F32 || tws_config_recomputes_blocks(c)) return 0;
  for (uint32_t i = 0; i < job->network->module_count; i++) bytes += spared_bytes(job, &job->network->modules[i]);
  return bytes / (double)job->network->layers * stage->layers * in_flight(job, stage->stage) * tokens_of(job) /
         tws_job_ranks_along(job, TWS_AXIS_MODEL);
}

/* Returns the bytes of gradients in addition to the plan's, which have 16 bits unless ZeRO accumulates them in float32.
 * With bf16 there are float32 copies for all parameters (4 bytes each); Megatron accumulates in float32 only (2 bytes
 * more than 16 bits). */
static double gradient_bytes(const tws_job *job, const tws_runtime *runtime, const tws_stage_estimate *stage) {
  const tws_config *c = job->config;
  if (c->dtype == TWS_F32 || c->zero.stage > 1) return 0;
  if (runtime->float_gradients && c->zero.stage == 0) return 2 * tws_software_trained(job, stage);
  return runtime->gradient_copies && c->dtype == TWS_BF16 ? 4 * tws_software_trained(job, stage) : 0;
}

/* Returns the bytes that the optimizer step needs for the gradients of its shard, flattened in 16 bits and then in
 * float32 (2 + 4 bytes a parameter), as in Megatron with fp16; DeepSpeed's by the rows of step_buffers.def. */
static double step_bytes(const tws_job *job, const tws_runtime *runtime, const tws_stage_estimate *stage) {
  const tws_config *c = job->config;
  if (runtime->gradient_copies && c->dtype == TWS_F16 && c->zero.stage < 2)
    return 6 * tws_software_trained(job, stage) / tws_software_shards(job);
  return tws_software_step_most(job, stage);
}

/* Returns the bytes of the buffer that a bucket is copied to: ZeRO-3 interleaves a bucket, which is never larger than
 * all gradients. ZeRO-2 flattens the gradients that it reduces, fills a second bucket meanwhile where reductions
 * overlap, and reduces a gradient larger than a bucket in place. Buckets have their full
 * size, however small a model is. */
static double bucket_copy_bytes(const tws_job *job, const tws_runtime *runtime, const tws_stage_estimate *stage) {
  const tws_config *c = job->config;
  if (!runtime->copies_buckets || c->zero.stage < 2 || tws_software_shards(job) < 2) return 0;
  const double full = (double)c->zero.reduce_bucket_size;
  const double filled = fmin(full, tws_software_trained(job, stage));
  double numbers = full;
  if (c->zero.stage == 2) {
    const double largest = tws_software_largest_parameter(job), apart = largest > full ? largest : 0;
    numbers = (c->zero.overlap_comm ? full : 0) + fmax(filled, apart) + apart + full - filled;
  }
  return (double)tws_dtype_bytes(tws_config_communication_dtype(c)) * numbers;
}

/* Returns 1 for Lightning's FSDP with accumulation: it accumulates gradients without reducing them (no_backward_sync),
 * so each rank has whole gradients. A layer is one flat parameter, whose gradient includes frozen parameters. */
static int keeps_flat_gradients(const tws_job *job) {
  const tws_config *c = job->config;
  return tws_profile_runtime(job->profile)->flat_gradients && c->zero.stage > 2 && c->accumulation_steps > 1 &&
         tws_software_shards(job) > 1 && tws_job_stages(job) == 1;
}

/* Numbers of parameters: in layers that have trained ones, in the largest layer, and outside of layers. */
typedef struct flat_parameters {
  double trained, layer, outside;
} flat_parameters;

static flat_parameters flat_parameters_of(const tws_network *network) {
  flat_parameters flat = {0};
  for (int64_t layer = 0; layer < network->layers; layer++) {
    double size = 0;
    int trains = 0;
    for (uint32_t p = 0; p < network->param_count; p++) {
      const tws_param *param = &network->params[p];
      if (network->modules[param->module].layer != layer) continue;
      size += (double)tws_param_numel(param);
      trains |= !param->frozen;
    }
    flat.trained += trains ? size : 0;
    flat.layer = fmax(flat.layer, size);
    flat.outside -= size;
  }
  flat.outside += (double)tws_network_params(network, 0);
  return flat;
}

/* Returns the bytes of unpartitioned gradients, in addition to the plan's, which are partitioned. */
static double flat_gradient_bytes(const tws_job *job, const tws_stage_estimate *stage) {
  if (!keeps_flat_gradients(job)) return 0;
  return (double)tws_dtype_bytes(job->config->dtype) *
         (flat_parameters_of(job->network).trained - tws_software_trained(job, stage) / tws_software_shards(job));
}

/* Returns the bytes at the moment at which FSDP joins the gradients of a flat parameter (the derivative of split),
 * after a layer's activations are freed: the layer's gradients, with zeros for frozen parameters, and the joined copy;
 * the layer's parameters and those of the prefetched one; parameters outside of layers, which stay gathered; each
 * layer's kept input, tokens x hidden. */
static double joined_bytes(const tws_job *job, const tws_stage_estimate *stage) {
  const tws_config *c = job->config;
  if (!keeps_flat_gradients(job) || c->recompute != TWS_RECOMPUTE_FULL) return 0;
  const flat_parameters flat = flat_parameters_of(job->network);
  const double rows = (double)c->micro_batch_size * (double)c->sequence_length * stage->layers;
  return (double)tws_dtype_bytes(c->dtype) * (stage->parameters / tws_software_shards(job) + flat.trained +
                                              flat.outside + 4 * flat.layer + rows * (double)job->network->hidden);
}

/* Returns the bytes while a model is loaded, if each rank builds it whole before ZeRO-3 partitions it. */
static double loaded_bytes(const tws_job *job, const tws_stage_estimate *stage) {
  const tws_config *c = job->config;
  const int loads = tws_profile_runtime(job->profile)->loads_whole;
  if (!loads || c->zero.stage < 3) return 0;
  return (double)tws_dtype_bytes(c->dtype) * stage->parameters * (loads > 1 ? 1 + 1 / tws_software_shards(job) : 1);
}

static double logit_bytes(const tws_job *job, const tws_runtime *runtime, const tws_stage_estimate *stage) {
  const double tokens = tokens_of(job);
  if (stage->stage < tws_job_stages(job) - 1) return 0;
  const tws_objective objective = job->network->objective;
  const int masked = objective == TWS_OBJECTIVE_MASKED || objective == TWS_OBJECTIVE_SENTENCES;
  const double scored = masked && runtime->scored_share > 0 ? runtime->scored_share : 1;
  return runtime->logit_bytes * scored * tokens * (double)job->network->padded_vocabulary /
         tws_job_ranks_along(job, TWS_AXIS_MODEL);
}

double tws_software_bytes(const tws_job *job, const tws_stage_estimate *stage) {
  const tws_runtime *runtime = tws_profile_runtime(job->profile);
  const double tokens = tokens_of(job);
  double bytes = score_bytes(job, runtime, stage) + mask_bytes(job, stage) + gradient_bytes(job, runtime, stage) +
                 unread_bytes(job, runtime, stage) + operation_bytes(job, runtime, stage) +
                 bucket_copy_bytes(job, runtime, stage) + flat_gradient_bytes(job, stage) +
                 tws_software_moment(job, stage, TWS_MOMENT_BACKWARD) + tws_profile_library_bytes(job->profile) -
                 spared_activation_bytes(job, runtime, stage);
  bytes += logit_bytes(job, runtime, stage);
  if (tws_job_stages(job) > 1 && runtime->boundary_tensors)
    bytes += runtime->boundary_tensors * in_flight(job, stage->stage) * tokens * (double)job->network->hidden * 2;
  return bytes;
}

/* Returns the bytes of the plan's gradients that are not allocated yet while logits are alive: all but the head's. */
static double late_bytes(const tws_job *job, const tws_stage_estimate *stage) {
  const tws_config *c = job->config;
  const tws_network *network = job->network;
  if (!tws_profile_runtime(job->profile)->late_gradients || c->zero.stage > 1) return 0;
  const tws_module *head = &network->modules[network->module_count - 1];
  while (head > network->modules && head->type != TWS_MODULE_LINEAR) head--;
  const tws_param *scores = head->param[0] == TWS_NONE ? NULL : &network->params[head->param[0]];
  const double trains = !scores || scores->frozen ? 0 : (double)tws_param_numel(scores);
  return (double)tws_dtype_bytes(c->dtype) * fmax(tws_software_trained(job, stage) - trains, 0);
}

/* Returns the bytes of checkpointed inputs of recomputed layers that are on the device until backward. */
static double waiting_bytes(const tws_job *job, const tws_stage_estimate *stage) {
  const tws_config *c = job->config;
  if (c->cpu_checkpointing) return 0;
  return (double)tws_dtype_bytes(c->dtype) * tokens_of(job) * (double)job->network->hidden * stage->layers;
}

/* Returns the peak of the passes in bytes. Gradients that are allocated late replace activations that wait for
 * backward. Where whole layers are recomputed, the activations of one layer and the copies of logits are not alive at
 * once. */
static double passes_peak(const tws_job *job, const tws_stage_estimate *stage) {
  const tws_runtime *runtime = tws_profile_runtime(job->profile);
  const double arena = planned_bytes(job, stage), beside = tws_software_bytes(job, stage);
  const double loss = (double)stage->loss_bytes, late = late_bytes(job, stage);
  if (job->config->recompute != TWS_RECOMPUTE_FULL || !(loss > 0)) return arena + beside - late;
  const double layer = score_bytes(job, runtime, stage) + mask_bytes(job, stage) + operation_bytes(job, runtime, stage);
  const double replaced = fmin(late, waiting_bytes(job, stage));
  return fmax(arena + beside - logit_bytes(job, runtime, stage) - replaced, loss + beside - layer - late);
}

static double apart_bytes(const tws_job *job, const tws_stage_estimate *stage) {
  return fmax(loaded_bytes(job, stage), joined_bytes(job, stage));
}

/* Returns the bytes at the moment after a large gradient of the host's optimizer has been reduced: parameters, buckets
 * and checkpointed inputs. */
static double reduced_peak(const tws_job *job, const tws_stage_estimate *stage) {
  const double bytes = tws_software_moment(job, stage, TWS_MOMENT_REDUCED);
  if (!(bytes > 0)) return 0;
  const double bucket = (double)tws_dtype_bytes(tws_config_communication_dtype(job->config)) *
                        (double)job->config->zero.reduce_bucket_size;
  return 2 * stage->parameters + bucket * (job->config->zero.overlap_comm ? 2 : 1) + waiting_bytes(job, stage) + bytes +
         tws_software_moment(job, stage, TWS_MOMENT_BACKWARD);
}

/* Returns the bytes of parameters and gradients in 16 bits, master weights and two moments in float32, and ZeRO-3's
 * bucket, which stays allocated. */
static double states_bytes(const tws_job *job, const tws_stage_estimate *stage) {
  const tws_config *c = job->config;
  const double shards = tws_software_shards(job), gradients = c->zero.stage > 1 ? 2 / shards : 2;
  const double parameters = c->zero.stage > 2 ? 2 / shards : 2;
  const double bucket = c->zero.stage > 2 ? (double)tws_dtype_bytes(tws_config_communication_dtype(c)) *
                                                (double)c->zero.reduce_bucket_size
                                          : 0;
  return stage->parameters * (parameters + gradients + 12 / shards) + bucket;
}

double tws_software_stage_peak(const tws_job *job, const tws_stage_estimate *stage) {
  const double passes = fmax(fmax(passes_peak(job, stage), reduced_peak(job, stage)), apart_bytes(job, stage));
  const double step = step_bytes(job, tws_profile_runtime(job->profile), stage);
  return step > 0 ? fmax(passes, states_bytes(job, stage) + step) : passes;
}

double tws_software_stage_reserved(const tws_job *job, const tws_stage_estimate *stage) {
  const tws_runtime *runtime = tws_profile_runtime(job->profile);
  const double passes = planned_bytes(job, stage) + tws_software_bytes(job, stage);
  return fmax(passes + step_bytes(job, runtime, stage), apart_bytes(job, stage)) * (1 + runtime->reserved_share);
}

double tws_software_peak(const tws_job *job, const tws_stage_estimate *stages, double *reserved) {
  double most = 0;
  if (reserved) *reserved = 0;
  for (int i = 0; i < tws_job_stages(job); i++) {
    most = fmax(most, tws_software_stage_peak(job, &stages[i]));
    if (reserved) *reserved = fmax(*reserved, tws_software_stage_reserved(job, &stages[i]));
  }
  return most;
}

/* Builds an estimate with layers and parameters divided evenly; stages differ in logits and in micro-batches in
 * flight. */
static tws_stage_estimate even_stage(const tws_job *job, int stage, double planned) {
  const int stages = tws_job_stages(job);
  const double parts = (double)stages * tws_job_ranks_along(job, TWS_AXIS_MODEL);
  return (tws_stage_estimate){.stage = stage,
                              .layers = (int)((job->network->layers + stages - 1) / stages),
                              .parameters = (double)tws_network_params(job->network, 0) / parts,
                              .live_bytes = (uint64_t)planned,
                              .arena_bytes = {[TWS_TIER_DEVICE] = (uint64_t)planned}};
}

double tws_job_software_bytes(const tws_job *job) {
  double most = -INFINITY;
  for (int i = 0; i < tws_job_stages(job); i++) {
    const tws_stage_estimate stage = even_stage(job, i, 0);
    most = fmax(most, tws_software_bytes(job, &stage));
  }
  return most;
}

double tws_job_planned_bytes(const tws_job *job, const tws_ledger *ledger) {
  const tws_ledger_tier *device = &ledger->tier[TWS_TIER_DEVICE];
  return held_bytes(job, (double)device->arena_bytes, (double)device->live_bytes);
}

double tws_job_software_peak(const tws_job *job, double planned, double loss_bytes) {
  double most = 0;
  for (int i = 0; i < tws_job_stages(job); i++) {
    tws_stage_estimate stage = even_stage(job, i, planned);
    stage.loss_bytes = (uint64_t)loss_bytes;
    most = fmax(most, tws_software_stage_peak(job, &stage));
  }
  return most;
}

double tws_job_context_bytes(const tws_job *job) {
  double bytes = tws_profile_overhead_bytes(job->profile);
  for (int axis = 0; axis < TWS_AXIS_COUNT; axis++)
    if (tws_job_ranks_along(job, (tws_axis)axis) > 1) bytes += tws_profile_runtime(job->profile)->communicator_bytes;
  return bytes;
}
