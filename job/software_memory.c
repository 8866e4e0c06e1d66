#include "job/software_memory.h"

#include <math.h>

#include "job/software_kept.h"
#include "job/software_narrow.h"
#include "job/software_step.h"
#include "models/network/adapt.h"

/* Returns the bytes of unfused attention's scores: those that the runtime states, or two copies of the softmax's output
 * and a dropout mask, 5 bytes a score in 16 bits, 9 in float32; and those that exist while the softmax of one layer is
 * differentiated. */
static double score_bytes(const tws_job *job, const tws_runtime *runtime, const tws_stage_estimate *stage) {
  const tws_config *c = job->config;
  const double tensor = tws_job_ranks_along(job, TWS_AXIS_MODEL), s = (double)c->sequence_length;
  const double stated = runtime->kept_score_bytes[0];
  const double score = stated > 0 ? stated : 2 * (double)tws_dtype_bytes(c->dtype) + 1;
  const double scores = (double)job->network->heads * s * tws_software_tokens(job) / tensor;
  const double layer = score * scores, differentiated = runtime->kept_score_bytes[1] * scores;
  if (runtime->attention != TWS_ATTENTION_UNFUSED) return 0;
  if (c->recompute == TWS_RECOMPUTE_FULL || tws_profile_recomputes_scores(job->profile)) return layer + differentiated;
  return stage->layers * tws_software_in_flight(job, stage->stage) * layer + differentiated;
}

/* Returns the bytes of the dropout masks after attention and after the feed-forward layer, one byte an element. */
static double mask_bytes(const tws_job *job, const tws_stage_estimate *stage) {
  const tws_config *c = job->config;
  const double split = c->tensor_sequence_parallel ? tws_job_ranks_along(job, TWS_AXIS_MODEL) : 1;
  const double layer = 2 * tws_software_tokens(job) * (double)job->network->hidden / split;
  if (!tws_profile_keeps_masks(job->profile)) return 0;
  return c->recompute == TWS_RECOMPUTE_FULL ? layer : stage->layers * tws_software_in_flight(job, stage->stage) * layer;
}

/* Returns the bytes of results that selective recomputation keeps although the backward pass does not read them, since
 * PyTorch's policy selects operations and not tensors. */
static double unread_bytes(const tws_job *job, const tws_runtime *runtime, const tws_stage_estimate *stage) {
  const tws_config *c = job->config;
  if (!runtime->unread_outputs || c->recompute != TWS_RECOMPUTE_OPERATIONS || !(c->recompute_budget > 0)) return 0;
  return 2 * tws_software_tokens(job) * (double)job->network->hidden * stage->layers *
         tws_software_in_flight(job, stage->stage) / tws_job_ranks_along(job, TWS_AXIS_MODEL);
}

/* Ten public messages of jobs that ran out of memory state these shares of the allocated bytes as reserved and of no
 * use: the median, and the share that nine of them do not reach (0, 0.6, 0.6, 0.8, 0.9, 2.2, 2.6, 2.7, 3.9, 16 %). */
static const double USUAL_GAPS = 0.015, MOST_GAPS = 0.04;

/* Returns the bytes that a plan holds at its peak: the whole arena if the runtime places buffers ahead; otherwise what
 * a caching allocator holds for the plan (`held`), or, if the plan's allocations were not replayed (0), the live
 * buffers and gaps of at most MOST_GAPS of their bytes. The gaps are at least USUAL_GAPS of the live buffers and of the
 * `more` bytes of the software's own, whose allocations are not known one by one. */
static double held_bytes(const tws_job *job, double arena, double live, double held, double more) {
  if (tws_profile_allocator(job->profile) == TWS_ALLOCATOR_AHEAD) return arena;
  const double placed = held > 0 ? held : fmin(arena, (1 + MOST_GAPS) * live);
  return live > 0 ? fmax(placed, live + USUAL_GAPS * (live + fmax(more, 0))) : placed;
}

/* Returns the bytes that an allocator has to have for a plan. It is never short of memory on a device that has all that
 * it reserves with memory enough, and so returns no segments, whose places later ones may not fit. */
static double least_held(const tws_job *job, const tws_allocator_bytes *allocator) {
  const double share = tws_profile_runtime(job->profile)->reserved_share, needed = (double)allocator->needed;
  return allocator->reserved > 0 ? fmin(needed, (1 + share) * (double)allocator->reserved) : needed;
}

static double planned_bytes(const tws_job *job, const tws_stage_estimate *stage) {
  return held_bytes(job, (double)stage->arena_bytes[TWS_TIER_DEVICE], (double)stage->live_bytes,
                    (double)stage->allocator.held, tws_software_bytes(job, stage));
}

/* Returns the bytes per token that a plan keeps for backward at a module of experts and that the software does not
 * keep: the experts' outputs, and, with 8-bit products, half of the inputs of the products. The software multiplies by
 * the routing weights before the last product: after a gate in the gate's kernel, after another activation function in
 * a separate operation, which keeps its input. */
static double spared_bytes(const tws_job *job, const tws_module *m) {
  const tws_config *c = job->config;
  const double number = (double)tws_dtype_bytes(c->dtype), narrow = tws_software_keeps_narrow(c) ? number - 1 : 0;
  if (m->type == TWS_MODULE_COMBINE) return number * m->routing->choices * (double)m->out_features;
  if (m->type != TWS_MODULE_EXPERT_LINEAR) return 0;
  const tws_module_type before = job->network->modules[job->network->values[m->in[0]].producer].type;
  const double inputs = m->routing->choices * (double)m->in_features;
  if (before == TWS_MODULE_DISPATCH) return narrow * inputs;
  const double applied = before == TWS_MODULE_SWIGLU || before == TWS_MODULE_GEGLU ? 0 : number;
  return ((tws_software_recomputes_activations(c) ? 0 : narrow) - applied) * inputs;
}

/* Returns the bytes of activations of experts that a plan keeps and the software does not; 0 where whole layers are
 * recomputed. */
static double spared_activation_bytes(const tws_job *job, const tws_runtime *runtime, const tws_stage_estimate *stage) {
  const tws_config *c = job->config;
  double bytes = 0;
  if (!runtime->weighs_early || c->dtype == TWS_F32 || tws_config_recomputes_blocks(c)) return 0;
  for (uint32_t i = 0; i < job->network->module_count; i++) bytes += spared_bytes(job, &job->network->modules[i]);
  return bytes / (double)job->network->layers * stage->layers * tws_software_in_flight(job, stage->stage) *
         tws_software_tokens(job) / tws_job_ranks_along(job, TWS_AXIS_MODEL);
}

/* Returns the bytes of gradients in addition to the plan's, which have 16 bits unless ZeRO accumulates them in float32.
 * With bf16 there are float32 copies for all parameters (4 bytes each); Megatron accumulates in float32 only (2 bytes
 * more than 16 bits). */
static double gradient_bytes(const tws_job *job, const tws_runtime *runtime, const tws_stage_estimate *stage) {
  const tws_config *c = job->config;
  if (c->dtype == TWS_F32 || c->zero.stage > 1) return 0;
  if (runtime->casts_weights && tws_config_half_masters(c)) return 0; /* 16-bit weights have 16-bit gradients */
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

/* Returns the bytes of frozen parameters and of the inputs of recomputed layers in addition to the plan's 16-bit ones,
 * if the software makes float32 what is not quantized under adapters. */
static double widened_bytes(const tws_job *job, const tws_runtime *runtime, const tws_stage_estimate *stage) {
  const tws_config *c = job->config;
  const double more = 4 - (double)tws_dtype_bytes(c->dtype);
  double frozen = 0;
  if (!runtime->widens_frozen || !(c->lora.r > 0) || tws_config_frozen_type(c) == TWS_QUANTIZATION_NONE) return 0;
  for (uint32_t p = 0; p < job->network->param_count; p++) {
    const tws_param *param = &job->network->params[p];
    if (param->frozen && param->code_type == 0) frozen += (double)tws_param_numel(param);
  }
  const double inputs = c->recompute == TWS_RECOMPUTE_FULL && !c->cpu_checkpointing
                            ? tws_software_tokens(job) * (double)job->network->hidden * stage->layers
                            : 0;
  return more * (frozen / tws_job_ranks_along(job, TWS_AXIS_MODEL) / tws_job_stages(job) + inputs);
}

/* Returns the bytes while a model is loaded, if each rank builds it whole before ZeRO-3 partitions it. */
static double loaded_bytes(const tws_job *job, const tws_stage_estimate *stage) {
  const tws_config *c = job->config;
  const int loads = tws_profile_runtime(job->profile)->loads_whole;
  if (!loads || c->zero.stage < 3) return 0;
  return (double)tws_dtype_bytes(c->dtype) * stage->parameters * (loads > 1 ? 1 + 1 / tws_software_shards(job) : 1);
}

/* Returns the number of logits of a micro-batch on one rank that have copies: those of all tokens, or of the scored
 * ones of a masked language model; 0 before the last stage. */
static double copied_logits(const tws_job *job, const tws_runtime *runtime, const tws_stage_estimate *stage) {
  if (stage->stage < tws_job_stages(job) - 1) return 0;
  const tws_objective objective = job->network->objective;
  const int masked = objective == TWS_OBJECTIVE_MASKED || objective == TWS_OBJECTIVE_SENTENCES;
  const double scored = masked && runtime->scored_share > 0 ? runtime->scored_share : 1;
  return scored * tws_software_tokens(job) * (double)job->network->padded_vocabulary /
         tws_job_ranks_along(job, TWS_AXIS_MODEL);
}

/* Returns the bytes of float32 logits that the last stage keeps during all passes once as many micro-batches have run
 * as a pipeline engine has buffers for outputs, which it overwrites and does not free; 0 for other engines. Engines
 * with pipelines have ZeRO stages 0 and 1. */
static double kept_output_bytes(const tws_job *job, const tws_runtime *runtime, const tws_stage_estimate *stage) {
  const tws_config *c = job->config;
  if (c->zero.stage > 1 || c->accumulation_steps <= runtime->kept_outputs) return 0;
  return 4 * runtime->kept_outputs * copied_logits(job, runtime, stage);
}

/* Returns the bytes of copies of logits while the loss is computed, in addition to the plan's 16-bit ones. If outputs
 * are kept, one of them is the micro-batch's own; its softmax, which the gradient overwrites, and the 16-bit gradient
 * exist at the same time. */
static double logit_bytes(const tws_job *job, const tws_runtime *runtime, const tws_stage_estimate *stage) {
  const double tiles = fmax((double)job->config->loss_tiles, 1); /* of which one has logits */
  const double logits = copied_logits(job, runtime, stage), kept = kept_output_bytes(job, runtime, stage);
  if (kept > 0) return kept + 4 * logits;
  return (runtime->logit_bytes / tiles + runtime->all_logit_bytes) * logits;
}

/* Returns the bytes of DDP's buckets, which are a second copy of all gradients. */
static double bucket_gradient_bytes(const tws_job *job, const tws_runtime *runtime, const tws_stage_estimate *stage) {
  const tws_config *c = job->config;
  if (!runtime->bucket_copies || c->zero.stage > 0 || tws_job_ranks_along(job, TWS_AXIS_DATA) < 2) return 0;
  const double number = tws_config_half_masters(c) ? (double)tws_dtype_bytes(c->dtype) : 4;
  return number * tws_software_trained(job, stage);
}

/* Returns the bytes that FSDP has gathered in addition to the plan's layers: the parameters outside of layers, of which
 * a plan has gathered the largest one at its peak, and copies of the largest layer. */
static double gathered_bytes(const tws_job *job, const tws_runtime *runtime) {
  const tws_config *c = job->config;
  if (c->zero.stage < 3 || tws_software_shards(job) < 2 || !(runtime->root_stays || runtime->gather_copies)) return 0;
  const flat_parameters flat = flat_parameters_of(job->network);
  const double outside = fmax(flat.outside - tws_software_largest_parameter(job), 0);
  return (double)tws_dtype_bytes(c->dtype) *
         ((runtime->root_stays ? outside : 0) + runtime->gather_copies * flat.layer);
}

/* Returns the bytes of the plan's 16-bit parameters that do not exist in the backward pass if weights are float32 and
 * cast in each use: those of layers that are recomputed, except the largest one. */
static double uncast_bytes(const tws_job *job, const tws_runtime *runtime) {
  const tws_config *c = job->config;
  if (!tws_software_casts(job) || c->recompute != TWS_RECOMPUTE_FULL || c->zero.stage > 0) return 0;
  const flat_parameters flat = flat_parameters_of(job->network);
  const double layers = (double)tws_network_params(job->network, 0) - flat.outside - flat.layer;
  return runtime->casts_weights ? (double)tws_dtype_bytes(c->dtype) * fmax(layers, 0) : 0;
}

double tws_software_bytes(const tws_job *job, const tws_stage_estimate *stage) {
  const tws_runtime *runtime = tws_profile_runtime(job->profile);
  const double tokens = tws_software_tokens(job);
  double bytes = score_bytes(job, runtime, stage) + mask_bytes(job, stage) + gradient_bytes(job, runtime, stage) +
                 unread_bytes(job, runtime, stage) + tws_software_kept(job, stage) +
                 bucket_copy_bytes(job, runtime, stage) + flat_gradient_bytes(job, stage) +
                 bucket_gradient_bytes(job, runtime, stage) + gathered_bytes(job, runtime) +
                 widened_bytes(job, runtime, stage) -
                 uncast_bytes(job, runtime) + tws_software_moment(job, stage, TWS_MOMENT_BACKWARD) +
                 tws_profile_library_bytes(job->profile) - spared_activation_bytes(job, runtime, stage) +
                 tws_software_narrow_inputs(job, stage) + tws_software_narrow_weights(job, stage);
  bytes += logit_bytes(job, runtime, stage);
  if (tws_job_stages(job) > 1 && runtime->boundary_tensors)
    bytes += runtime->boundary_tensors * tws_software_in_flight(job, stage->stage) * tokens *
             (double)job->network->hidden * 2;
  return bytes;
}

/* Returns the bytes of the plan's gradients that are not allocated yet while logits are alive: all but the head's. */
static double late_bytes(const tws_job *job, const tws_stage_estimate *stage) {
  const tws_config *c = job->config;
  const tws_network *network = job->network;
  if (!tws_profile_runtime(job->profile)->late_gradients || c->zero.stage > 1 || c->accumulation_steps > 1) return 0;
  const tws_module *head = &network->modules[network->module_count - 1];
  while (head > network->modules && head->type != TWS_MODULE_LINEAR) head--;
  const tws_param *scores = head->param[0] == TWS_NONE ? NULL : &network->params[head->param[0]];
  const double trains = !scores || scores->frozen ? 0 : (double)tws_param_numel(scores);
  const double number = tws_software_casts(job) ? 4 : (double)tws_dtype_bytes(c->dtype);
  return number * fmax(tws_software_trained(job, stage) - trains, 0);
}

/* Returns the bytes of checkpointed inputs of recomputed layers that are on the device until backward. */
static double waiting_bytes(const tws_job *job, const tws_stage_estimate *stage) {
  const tws_config *c = job->config;
  if (c->cpu_checkpointing) return 0;
  return (double)tws_dtype_bytes(c->dtype) * tws_software_tokens(job) * (double)job->network->hidden * stage->layers;
}

/* Returns the bytes of one frozen parameter: at least half a byte if it is quantized. */
static double frozen_number(const tws_config *c) {
  return tws_config_frozen_type(c) == TWS_QUANTIZATION_NONE ? (double)tws_dtype_bytes(c->dtype) : 0.5;
}

/* Returns the bytes of a plan's parameters, gradients, master weights and two moments where ZeRO partitions none, and
 * of what DDP and autocast add to them. */
static double lasting_bytes(const tws_job *job, const tws_stage_estimate *stage) {
  const tws_config *c = job->config;
  const tws_runtime *runtime = tws_profile_runtime(job->profile);
  const double number = (double)tws_dtype_bytes(c->dtype), trained = tws_software_trained(job, stage);
  const int narrow = tws_optimizer_of(c->optimizer)->eight_bits;
  const double states = tws_config_half_masters(c) && !narrow ? 2 * number : tws_software_state_bytes(job);
  const double updated = tws_config_half_masters(c) || c->dtype == TWS_F32 ? states : 4 + states;
  return number * 2 * trained + frozen_number(c) * (stage->parameters - trained) + updated * trained +
         gradient_bytes(job, runtime, stage) + bucket_gradient_bytes(job, runtime, stage);
}

/* Returns the peak of the passes in bytes. Gradients that are allocated late replace activations that wait for
 * backward. Where whole layers are recomputed, the activations of one layer and the copies of logits are not alive at
 * once. */
static double passes_peak(const tws_job *job, const tws_stage_estimate *stage) {
  const tws_runtime *runtime = tws_profile_runtime(job->profile);
  const double arena = planned_bytes(job, stage), beside = tws_software_bytes(job, stage);
  /* gradients grow while activations are freed: the smaller of the two is not counted */
  const double late = fmin(late_bytes(job, stage), fmax(arena + beside - lasting_bytes(job, stage), 0));
  const double loss = (double)stage->loss_bytes;
  if (job->config->recompute != TWS_RECOMPUTE_FULL || !(loss > 0)) return arena + beside - late;
  const double layer = score_bytes(job, runtime, stage) + mask_bytes(job, stage) + tws_software_kept(job, stage);
  const double replaced = fmin(late, waiting_bytes(job, stage));
  return fmax(arena + beside - logit_bytes(job, runtime, stage) + kept_output_bytes(job, runtime, stage) - replaced,
              loss + beside + uncast_bytes(job, runtime) - layer - late);
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

/* Returns the bytes of the parameters, and for each trained one of its 16-bit gradient, its float32 master weight and
 * the optimizer's states (float32 weights and gradients have as many), of ZeRO-3's bucket, which stays allocated, and
 * of DDP's. */
static double states_bytes(const tws_job *job, const tws_stage_estimate *stage) {
  const tws_config *c = job->config;
  const double shards = tws_software_shards(job), trained = tws_software_trained(job, stage);
  const double gradients = c->zero.stage > 1 ? 2 / shards : 2, kept = c->zero.stage > 2 ? 1 / shards : 1;
  const tws_runtime *runtime = tws_profile_runtime(job->profile);
  const double bucket = c->zero.stage > 2 && runtime->copies_buckets
                            ? (double)tws_dtype_bytes(tws_config_communication_dtype(c)) *
                                  (double)c->zero.reduce_bucket_size
                            : 0;
  return frozen_number(c) * kept * (stage->parameters - trained) +
         trained * (2 * kept + gradients + (4 + tws_software_state_bytes(job)) / shards) + bucket +
         bucket_gradient_bytes(job, runtime, stage);
}

double tws_software_stage_peak(const tws_job *job, const tws_stage_estimate *stage) {
  const double passes = fmax(fmax(passes_peak(job, stage), reduced_peak(job, stage)), apart_bytes(job, stage));
  const double step = step_bytes(job, tws_profile_runtime(job->profile), stage);
  return (step > 0 ? fmax(passes, states_bytes(job, stage) + step) : passes) - tws_software_paged_bytes(job, stage);
}

double tws_software_stage_reserved(const tws_job *job, const tws_stage_estimate *stage) {
  const tws_runtime *runtime = tws_profile_runtime(job->profile);
  const double passes = fmax(planned_bytes(job, stage), (double)stage->allocator.reserved) +
                        tws_software_bytes(job, stage) - tws_software_paged_bytes(job, stage);
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

double tws_software_needed(const tws_job *job, const tws_stage_estimate *stages) {
  double most = 0;
  for (int i = 0; i < tws_job_stages(job); i++) {
    tws_stage_estimate stage = stages[i];
    stage.allocator.held = (uint64_t)least_held(job, &stages[i].allocator);
    most = fmax(most, tws_software_stage_peak(job, &stage));
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
                              .allocator = {.held = (uint64_t)planned},
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
  return held_bytes(job, (double)device->arena_bytes, (double)device->live_bytes, least_held(job, &device->allocator),
                    tws_job_software_bytes(job));
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
