/* Finds keys that have no effect because a condition is not met, and sections that enable features which Twinspeed does
 * not have. */
#include <string.h>

#include "config/store.h"

typedef struct unmet {
  const char *path;
  int idle;
  const char *reason;
} unmet;

static int starts_with(const char *path, const char *section) {
  return strncmp(path, section, strlen(section)) == 0;
}

static const char *find(const unmet *rows, size_t count, const char *path) {
  for (size_t i = 0; i < count; i++)
    if (rows[i].idle && strcmp(rows[i].path, path) == 0) return rows[i].reason;
  return NULL;
}
#define FIND(rows, path) find(rows, sizeof(rows) / sizeof *(rows), path)

/* Returns the unmet condition for which a ZeRO key has no effect (plan/zero.c, plan/optimizer.c); NULL: the key has an
 * effect. */
static const char *of_zero(const tws_config *c, const char *path) {
  static const char stage3[] = "it needs ZeRO stage 3", stages[] = "it needs ZeRO stage 1, 2 or 3";
  static const char blocks[] = "twinspeed.shard_by_block, or the runtime, gathers and reduces whole layers";
  const int stage = c->zero.stage, apart = stage != 3, flat = stage == 1 || stage == 2, pipe = c->pipeline_stages > 1;
  const unmet rows[] = {
      {"stage3_prefetch_bucket_size", apart, stage3},
      {"stage3_param_persistence_threshold", apart, stage3},
      {"stage3_model_persistence_threshold", apart, stage3},
      {"stage3_max_live_parameters", apart, stage3},
      {"stage3_max_reuse_distance", apart, stage3},
      {"stage3_allgather_sequential", apart, stage3},
      {"stage3_prefetch_bucket_size", c->zero.by_block, blocks},
      {"stage3_param_persistence_threshold", c->zero.by_block, blocks},
      {"stage3_model_persistence_threshold", c->zero.by_block, blocks},
      {"stage3_max_live_parameters", c->zero.by_block, blocks},
      {"stage3_max_reuse_distance", c->zero.by_block, blocks},
      {"reduce_bucket_size", stage == 0, stages},
      {"reduce_bucket_size", c->zero.by_block && stage > 1, blocks},
      {"sub_group_size", apart && !(stage > 0 && c->zero.offload_optimizer),
       "it needs ZeRO stage 3, or an optimizer that is offloaded"},
      {"round_robin_gradients", !flat, "it needs ZeRO stage 1 or 2"},
      {"overlap_comm", stage == 0 && c->zero.overlap_comm > 0, stages},
      {"overlap_comm", pipe && c->zero.overlap_comm > 0, "gradients of a pipeline are reduced after its micro-batches"},
      {"overlap_comm", 1, NULL},
      {"reduce_scatter", stage == 0, stages},
      {"reduce_scatter", flat && c->zero.multi_rank_bucket_allreduce && !c->prescales && c->predivide == 1,
       "at ZeRO stages 1 and 2 buckets are all-reduced anyway, unless use_multi_rank_bucket_allreduce is false"},
      {"use_multi_rank_bucket_allreduce", !flat || !c->zero.reduce_scatter,
       "it needs ZeRO stage 1 or 2, and zero_optimization.reduce_scatter"},
  };
  return starts_with(path, "zero_optimization.") ? FIND(rows, path + strlen("zero_optimization.")) : NULL;
}

/* Returns the unmet condition for which a key of number formats, optimizers or schedules has no effect; NULL: it has
 * one. */
static const char *of_training(const tws_config *c, const char *path) {
  static const char fixed[] = "fp16.loss_scale is fixed", decay[] = "it needs scheduler.params.decay_step_size";
  static const char momentum[] = "it needs scheduler.params.cycle_momentum";
  static const char divided[] =
      "with zero_optimization.reduce_scatter gradients are divided before their reduction anyway";
  static const char experts[] = "with twinspeed.expert_parallel_size above 1 the weight of the loss divides gradients";
  const int scatters = c->zero.stage > 0 && c->zero.reduce_scatter;
  const int phased = tws_optimizer_of(c->optimizer)->phases != TWS_PHASES_ONE;
  const int given = c->fp16.loss_scale > 0, still = c->schedule.cycle_decay_size == 0;
  const unmet rows[] = {
      {"fp16.enabled", 1, NULL},
      {path, starts_with(path, "fp16.") && c->dtype != TWS_F16, "it needs fp16.enabled"},
      {"prescale_gradients", scatters, divided},
      {"prescale_gradients", c->expert_ranks > 1, experts},
      {"gradient_predivide_factor", scatters, divided},
      {"gradient_predivide_factor", c->prescales, "prescale_gradients has the whole division before the reduction"},
      {"gradient_predivide_factor", c->expert_ranks > 1, experts},
      {"fp16.initial_scale_power", given, fixed},
      {"fp16.loss_scale_window", given, fixed},
      {"fp16.hysteresis", given, fixed},
      {"fp16.consecutive_hysteresis", given, fixed},
      {"fp16.min_loss_scale", given, fixed},
      {"optimizer.params.adam_w_mode", tws_optimizer_of(c->optimizer)->decoupled,
       "this optimizer always decouples weight decay; optimizer.type Adam reads it"},
      {"optimizer.params.bias_correction", phased,
       "this optimizer never corrects its moments, as in DeepSpeed, whose optimizer accepts the argument and ignores "
       "it"},
      {"twinspeed.error_feedback", !phased, "it needs an optimizer that communicates signs, such as OneBitAdam"},
      {"twinspeed.momentum_mask", !phased, "it needs an optimizer that communicates signs, such as OneBitAdam"},
      {"twinspeed.split_master_weights", !tws_config_split_masters(c), "it needs bf16.enabled, and float32 masters"},
      {"optimizer.params.fp32_optimizer_states", !tws_config_bf16_masters(c),
       "it needs bf16.bf16_master_weights_and_grads: the moments of float32 masters are float32"},
      {"scheduler.params.cycle_min_mom", !c->schedule.cycle_momentum, momentum},
      {"scheduler.params.cycle_max_mom", !c->schedule.cycle_momentum, momentum},
      {"scheduler.params.decay_mom_rate", !c->schedule.cycle_momentum, momentum},
      {"scheduler.params.decay_mom_rate", still, decay},
      {"scheduler.params.decay_lr_rate", still, decay},
      {"flops_profiler.profile_step", !c->flops_profiler.enabled, "it needs flops_profiler.enabled"},
      {"comet.online", c->comet.online == 1, "nothing is sent from here: comet upload sends the archive"},
      {"flops_profiler.output_file", !c->flops_profiler.enabled, "it needs flops_profiler.enabled"},
  };
  return FIND(rows, path);
}

/* Returns the unmet condition for which a key of parallelism, recomputation, experts or adapters has no effect; NULL:
 * it has one. */
static const char *of_parallelism(const tws_config *c, const char *path) {
  static const char both[] = "it needs pipeline.stages and tensor_parallel.autotp_size above 1";
  static const char operations[] = "it needs twinspeed.recompute operations", lora[] = "it needs twinspeed.lora.r";
  static const char frozen[] = "it needs twinspeed.frozen_quantization.type";
  const int tensor = c->tensor_ranks > 1, messages = c->pipeline_stages > 1 && tensor;
  const int plain = tws_config_frozen_type(c) == TWS_QUANTIZATION_NONE;
  static const char delayed[] = "it needs twinspeed.fp8_recipe delayed";
  const int by_operation = c->recompute == TWS_RECOMPUTE_OPERATIONS, now = c->fp8_recipe != TWS_FP8_DELAYED;
  const unmet rows[] = {
      {"pipeline.pipe_partitioned", !messages, both},
      {"pipeline.grad_partitioned", !messages, both},
      {"use_data_before_expert_parallelism", c->expert_ranks < 2, "it needs twinspeed.expert_parallel_size above 1"},
      {"twinspeed.fp8_recipe", c->matmul_dtype != TWS_MATMUL_FP8, "it needs twinspeed.matmul_dtype fp8"},
      {"twinspeed.fp8_amax_history_len", now, delayed},
      {"twinspeed.fp8_margin", now, delayed},
      {"twinspeed.recompute_operations", !by_operation, operations},
      {"twinspeed.recompute_budget", !by_operation, operations},
      {"twinspeed.recompute_every", c->recompute == TWS_RECOMPUTE_NONE, "it needs twinspeed.recompute"},
      {"twinspeed.expert_bound", !c->expert_dropless, "it needs twinspeed.expert_dropless"},
      {"twinspeed.expert_capacity_factor", c->expert_dropless, "twinspeed.expert_dropless drops nothing"},
      {"twinspeed.expert_tensor_parallel", !tensor, "it needs tensor_parallel.autotp_size above 1"},
      {"twinspeed.lora.lora_alpha", c->lora.r == 0, lora},
      {"twinspeed.lora.target_modules", c->lora.r == 0, lora},
      {"twinspeed.lora.lora_dropout", c->lora.r == 0, lora},
      {"twinspeed.lora.use_rslora", c->lora.r == 0, lora},
      {"twinspeed.frozen_quantization.block_size", plain, frozen},
      {"twinspeed.frozen_quantization.scale_block_size", plain, frozen},
      {"twinspeed.frozen_quantization.skip_modules", plain, frozen},
  };
  return FIND(rows, path);
}

const char *tws_key_no_effect_reason(const tws_config *config, const tws_key *key) {
  static const char elastic[] = "elasticity.";
  if (!key->parts) return NULL;
  if (starts_with(key->path, elastic))
    return tws_given_true(tws_store_at(config->store, "elasticity.enabled")) ? NULL : "it needs elasticity.enabled";
  const char *reason = of_zero(config, key->path);
  if (!reason) reason = of_training(config, key->path);
  return reason ? reason : of_parallelism(config, key->path);
}

const char *tws_section_switch(int index, const tws_key **first) {
  static const char *const sections[] = {"sparse_attention", "checkpoint.writer"};
  if (index < 0 || (size_t)index >= sizeof sections / sizeof *sections) return NULL;
  for (size_t i = 0; i < tws_key_count; i++) {
    const size_t length = strlen(sections[index]);
    *first = &tws_keys[i];
    if (starts_with(tws_keys[i].path, sections[index]) && tws_keys[i].path[length] == '.') break;
  }
  return sections[index];
}

int tws_section_switches(const char *path) {
  const tws_key *first;
  const char *section;
  for (int i = 0; (section = tws_section_switch(i, &first)); i++)
    if (starts_with(path, section) && (!path[strlen(section)] || path[strlen(section)] == '.')) return 1;
  return 0;
}
