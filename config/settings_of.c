/* Writes the settings of a resolved configuration (tws_settings_of()). */
#include "config/optimizer.h"
#include "config/settings.h"

static void put_integer(tws_settings *s, tws_setting setting, int64_t value) {
  tws_setting_put(s, setting, "%lld", (long long)value);
}

static void put_flag(tws_settings *s, tws_setting setting, int value) {
  tws_setting_put(s, setting, "%s", value ? "true" : "false");
}

static void put_number(tws_settings *s, tws_setting setting, double value) {
  tws_setting_put(s, setting, "%.15g", value);
}

static void put_axes(const tws_config *c, tws_settings *s) {
  static const char *const schedules[] = {"gpipe", "1f1b", "interleaved", "zb-h1"};
  const tws_division d = tws_config_division(c);
  put_integer(s, TWS_SETTING_PIPELINE, d.pipeline);
  put_integer(s, TWS_SETTING_TENSOR, d.tensor);
  put_integer(s, TWS_SETTING_SHARERS, d.sequence);
  put_integer(s, TWS_SETTING_EXPERTS, c->expert_ranks > 1 ? c->expert_ranks : 1);
  if (d.pipeline > 1) {
    tws_setting_put(s, TWS_SETTING_SCHEDULE, "%s", schedules[c->pipeline_schedule]);
    put_integer(s, TWS_SETTING_CHUNKS, d.virtual_stages);
  }
  if (d.tensor > 1) {
    put_flag(s, TWS_SETTING_TOKENS, c->tensor_sequence_parallel);
    put_flag(s, TWS_SETTING_TENSOR_OVERLAP, c->tensor_overlap);
  }
  if (d.sequence > 1)
    tws_setting_put(s, TWS_SETTING_ALGORITHM, "%s", c->sequence_algorithm == TWS_SEQUENCE_RING ? "ring" : "ulysses");
  if (c->attention_chunks > 1) put_integer(s, TWS_SETTING_ATTENTION_CHUNKS, c->attention_chunks);
  if (c->mlp_tiles > 1) put_integer(s, TWS_SETTING_MLP_TILES, c->mlp_tiles);
  /* a runtime that computes its loss in chunks sets tiles of the loss without the key */
  if (c->loss_tiles > 1 && tws_config_has_key(c, "twinspeed.loss_tiles"))
    put_integer(s, TWS_SETTING_LOSS_TILES, c->loss_tiles);
}

static void put_zero(const tws_config *c, tws_settings *s) {
  static const char *const places[] = {"none", "cpu", "nvme"};
  const tws_zero_config *z = &c->zero;
  put_integer(s, TWS_SETTING_STAGE, z->stage);
  tws_setting_put(s, TWS_SETTING_OPTIMIZER_PLACE, "%s", places[z->stage > 0 ? z->offload_optimizer : 0]);
  tws_setting_put(s, TWS_SETTING_PARAMETER_PLACE, "%s", places[z->stage == 3 ? z->offload_param : 0]);
  if (z->stage > 0 && tws_config_division(c).pipeline < 2) put_flag(s, TWS_SETTING_OVERLAP, z->overlap_comm);
  if (z->stage > 0) put_integer(s, TWS_SETTING_REDUCE_BUCKET, z->reduce_bucket_size);
  if (z->stage < 3) return;
  if (tws_config_secondary_ranks(c) > 1) put_integer(s, TWS_SETTING_HPZ, tws_config_secondary_ranks(c));
  if (tws_config_shard_ranks(c) > 0) put_integer(s, TWS_SETTING_MICS, tws_config_shard_ranks(c));
  put_flag(s, TWS_SETTING_QUANTIZED_WEIGHTS, z->quantized_weights);
  put_flag(s, TWS_SETTING_QUANTIZED_GRADIENTS, z->quantized_gradients);
  put_integer(s, TWS_SETTING_PREFETCH, z->prefetch_bucket_size);
  put_integer(s, TWS_SETTING_PERSISTENCE, z->param_persistence_threshold);
  put_integer(s, TWS_SETTING_LIVE, z->max_live_parameters);
}

static void put_optimizer(const tws_config *c, tws_settings *s) {
  const tws_optimizer_row *row = tws_optimizer_of(c->optimizer);
  tws_setting_put(s, TWS_SETTING_OPTIMIZER, "%s", row->type);
  put_number(s, TWS_SETTING_RATE, c->lr);
  if (tws_optimizer_has_argument(row, "betas"))
    tws_setting_put(s, TWS_SETTING_BETAS, "[%.9g,%.9g]", c->beta1, c->beta2);
  if (tws_optimizer_has_argument(row, "eps")) put_number(s, TWS_SETTING_EPSILON, c->epsilon);
  put_number(s, TWS_SETTING_DECAY, c->weight_decay);
  put_number(s, TWS_SETTING_CLIPPING, c->gradient_clipping);
}

static void put_matmul(const tws_config *c, tws_settings *s) {
  tws_setting_put(s, TWS_SETTING_MATMUL, "%s", tws_matmul_dtype_name(c->matmul_dtype));
  if (c->matmul_dtype != TWS_MATMUL_FP8) return;
  const int delayed = c->fp8_recipe == TWS_FP8_DELAYED;
  tws_setting_put(s, TWS_SETTING_FP8_RECIPE, "%s", delayed ? "delayed" : "tensorwise");
  if (!delayed) return;
  put_integer(s, TWS_SETTING_FP8_HISTORY, c->fp8_amax_history_len);
  put_integer(s, TWS_SETTING_FP8_MARGIN, c->fp8_margin);
}

void tws_settings_of(const tws_config *c, tws_settings *s) {
  static const char *const frozen[] = {"none", "int8", "nf4"};
  *s = (tws_settings){0};
  put_integer(s, TWS_SETTING_BATCH, c->train_batch_size);
  put_integer(s, TWS_SETTING_MICRO, c->micro_batch_size);
  put_integer(s, TWS_SETTING_STEPS, c->accumulation_steps);
  put_integer(s, TWS_SETTING_SEQUENCE, c->sequence_length);
  tws_setting_put(s, TWS_SETTING_TYPE, "%s", c->dtype == TWS_BF16 ? "bf16" : c->dtype == TWS_F16 ? "fp16" : "fp32");
  tws_setting_put(s, TWS_SETTING_RECOMPUTE, "%s", tws_recompute_name(c->recompute));
  put_matmul(c, s);
  put_axes(c, s);
  put_zero(c, s);
  put_optimizer(c, s);
  put_integer(s, TWS_SETTING_LORA_R, c->lora.r);
  if (c->lora.r > 0) put_number(s, TWS_SETTING_LORA_ALPHA, c->lora.alpha);
  tws_setting_put(s, TWS_SETTING_FROZEN, "%s", frozen[tws_config_frozen_type(c)]);
}
