/* Computes the fields of tws_config from the keys that were given. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/number.h"
#include "config/store.h"

/* Returns the default of a key as text without quotes, in `buffer`. */
static const char *fallback_word(const tws_key *key, char *buffer, size_t size) {
  const char *text = key->fallback ? key->fallback : "";
  size_t length = strlen(text);
  if (length >= 2 && text[0] == '"') {
    text++;
    length -= 2;
  }
  snprintf(buffer, size, "%.*s", (int)length, text);
  return buffer;
}

/* Returns the number that stands for "not given" in the field of a key without default: 0 if the key allows only
 * positive numbers, otherwise -1. */
static int unset_value(const tws_key *key) {
  return key->bounded && key->low > 0 ? 0 : -1;
}

static int64_t integer_of(const tws_key *key, tws_given given) {
  int64_t value;
  if (given.item && tws_given_integer(key, given, &value)) return value;
  if (cJSON_IsBool(given.item)) return cJSON_IsTrue(given.item);
  if (!key->fallback) return unset_value(key);
  if (key->type == TWS_KEY_BOOL) return strcmp(key->fallback, "true") == 0;
  value = 0;
  tws_text_integer(key->fallback, NULL, INT64_MIN, INT64_MAX, &value);
  return value;
}

static double number_of(const tws_key *key, tws_given given) {
  const cJSON *item = cJSON_IsArray(given.item) ? given.item->child : given.item; /* list: parameter groups */
  if (cJSON_IsNumber(item)) return item->valuedouble;
  double value = unset_value(key);
  if (key->fallback) tws_text_number(key->fallback, NULL, -HUGE_VAL, HUGE_VAL, &value);
  return value;
}

static int word_of(const tws_key *key, tws_given given) {
  char word[64];
  int index = -1;
  const char *text = tws_given_text(given);
  if (text) index = tws_key_word(key->values, text, key->any_case);
  if (index < 0) index = tws_key_word(key->values, fallback_word(key, word, sizeof word), 0);
  return index < 0 ? 0 : index;
}

static void apply_key(tws_config *config, const tws_key *key) {
  char *field = (char *)config + key->offset;
  tws_given given = tws_store_get(config->store, key);
  int64_t wide;
  int narrow;
  double number;
  switch ((tws_key_store)key->store) {
    case TWS_STORE_I64:
      wide = integer_of(key, given);
      memcpy(field, &wide, sizeof wide);
      return;
    case TWS_STORE_I32:
      narrow = (int)integer_of(key, given);
      memcpy(field, &narrow, sizeof narrow);
      return;
    case TWS_STORE_F64:
      number = number_of(key, given);
      memcpy(field, &number, sizeof number);
      return;
    case TWS_STORE_ENUM:
      narrow = word_of(key, given);
      memcpy(field, &narrow, sizeof narrow);
      return;
    case TWS_STORE_NOWHERE:
    case TWS_STORE_SPECIAL:
      return;
  }
}

/* ---- fields that follow from several keys ---- */

static const tws_dtype types[] = {TWS_F32, TWS_F16, TWS_BF16};

/* Returns 1 + the tws_dtype that a key gives, or 0 if the key is not given. */
static int communication_type(const struct tws_config_store *store, const char *path) {
  const char *text = tws_given_text(tws_store_at(store, path));
  const int index = text ? tws_key_word("fp32|fp16|bf16", text, 1) : -1;
  return index < 0 ? 0 : 1 + (int)types[index];
}

static void apply_communication(tws_config *config) {
  config->communication_dtype = communication_type(config->store, "communication_data_type");
  config->sequence_communication = communication_type(config->store, "seq_parallel_communication_data_type");
}

static void apply_dtype(tws_config *config) {
  const struct tws_config_store *store = config->store;
  config->dtype = tws_given_true(tws_store_at(store, "fp16.enabled"))   ? TWS_F16
                  : tws_given_true(tws_store_at(store, "bf16.enabled")) ? TWS_BF16
                                                                        : TWS_F32;
  const char *text = tws_given_text(tws_store_at(store, "data_types.grad_accum_dtype"));
  int index = text ? tws_key_word("fp32|fp16|bf16", text, 0) : -1;
  config->accumulation_dtype = index < 0 ? config->dtype : types[index];
}

int tws_config_has_key(const tws_config *config, const char *path) {
  return tws_store_at(config->store, path).item != NULL;
}

int tws_config_states_dtype(const tws_config *config, tws_dtype dtype) {
  const struct tws_config_store *store = config->store;
  const tws_given half = tws_store_at(store, "fp16.enabled"), brain = tws_store_at(store, "bf16.enabled");
  const tws_given type = tws_store_at(store, "data_types.param_dtype");
  if (tws_given_true(half) || tws_given_true(brain) || (type.item && !tws_given_auto(type))) return 1;
  if (dtype == TWS_F32) return cJSON_IsFalse(half.item) && cJSON_IsFalse(brain.item);
  return cJSON_IsFalse(dtype == TWS_BF16 ? brain.item : half.item);
}

static void apply_optimizer(tws_config *config) {
  const struct tws_config_store *store = config->store;
  const char *type = tws_given_text(tws_store_at(store, "optimizer.type"));
  const tws_optimizer_row *row = type ? tws_optimizer_find(type) : NULL;
  if (!row || row->optimizer < 0) row = tws_optimizer_of(TWS_OPTIMIZER_ADAMW); /* other types: refused later */
  config->optimizer = (tws_optimizer)row->optimizer;
  if (row->decoupled) config->adam_w_mode = 1;
  if (row->phases != TWS_PHASES_ONE) config->bias_correction = 0;
  config->beta1 = row->beta1;
  config->beta2 = row->beta2;
  const tws_given epsilon = tws_store_at(store, "optimizer.params.eps");
  if (!epsilon.item || tws_given_auto(epsilon)) config->epsilon = row->epsilon;
  config->scale_epsilon = 1e-3;
  if (cJSON_IsArray(epsilon.item)) {
    const cJSON *second = epsilon.item->child->next;
    if (!cJSON_IsNumber(epsilon.item->child)) config->epsilon = row->epsilon;
    if (cJSON_IsNumber(second)) config->scale_epsilon = second->valuedouble;
  }
  config->narrow_moments = cJSON_IsFalse(tws_store_at(store, "optimizer.params.fp32_optimizer_states").item);
  config->param_groups = tws_store_at(store, "optimizer.param_groups").item;
  if (!tws_store_has(store, "optimizer.params.momentum")) config->momentum = row->momentum;
  tws_given betas = tws_store_at(store, "optimizer.params.betas");
  if (cJSON_IsArray(betas.item)) {
    config->beta1 = betas.item->child->valuedouble;
    config->beta2 = betas.item->child->next->valuedouble;
  }
}

static const char schedulers[] = "LRRangeTest|OneCycle|WarmupLR|WarmupDecayLR|WarmupCosineLR";

/* Reads the arguments of the chosen schedule only, because schedules share fields of tws_config. */
static void apply_scheduler(tws_config *config) {
  const struct tws_config_store *store = config->store;
  const char *type = tws_given_text(tws_store_at(store, "scheduler.type"));
  config->scheduler = (tws_scheduler)(type ? tws_key_word(schedulers, type, 0) + 1 : 0);
  memset(&config->schedule, 0, sizeof config->schedule);
  config->schedule.max_lr = -1;
  if (config->scheduler == TWS_SCHEDULER_NONE) return;
  for (size_t i = 0; i < tws_key_count; i++)
    if (tws_keys[i].owners && strncmp(tws_keys[i].path, "scheduler.", 10) == 0 &&
        tws_key_word(tws_keys[i].owners, type, 0) >= 0)
      apply_key(config, &tws_keys[i]);
  const char *shape = tws_given_text(tws_store_at(store, "scheduler.params.warmup_type"));
  /* In DeepSpeed, every word except "linear" means logarithmic warm-up. */
  config->schedule.warmup_linear = shape && strcmp(shape, "linear") == 0;
  if (config->scheduler == TWS_SCHEDULER_WARMUP_DECAY && !tws_store_has(store, "scheduler.params.warmup_max_lr"))
    config->schedule.max_lr = 1e-3;
}

static void apply_zero(tws_config *config) {
  const struct tws_config_store *store = config->store;
  config->optimizer_path = tws_given_text(tws_store_at(store, "zero_optimization.offload_optimizer.nvme_path"));
  config->param_path = tws_given_text(tws_store_at(store, "zero_optimization.offload_param.nvme_path"));
  config->zenflow.on = tws_store_has(store, "zero_optimization.zenflow");
  if (tws_given_true(tws_store_at(store, "zero_optimization"))) config->zero.stage = 1; /* deprecated: a boolean */
  if (tws_given_true(tws_store_at(store, "zero_optimization.cpu_offload"))) config->zero.offload_optimizer = 1;
  if (tws_given_true(tws_store_at(store, "zero_optimization.cpu_offload_param"))) config->zero.offload_param = 1;
}

/* Reads the tensor-parallel size from either of its two keys. If both are given and differ, tws_config_resolve()
 * refuses them. */
static void apply_tensor_ranks(tws_config *config) {
  const struct tws_config_store *store = config->store;
  tws_given outer = tws_store_at(store, "tensor_parallel.autotp_size");
  const tws_key *inner = tws_key_at("tensor_parallel.tensor_parallel.tp_size");
  if (!cJSON_IsNumber(outer.item) && cJSON_IsNumber(tws_store_get(store, inner).item))
    config->tensor_ranks = integer_of(inner, tws_store_get(store, inner));
}

static void apply_axis_order(tws_config *config) {
  const char *text = tws_given_text(tws_store_at(config->store, "twinspeed.axis_order"));
  if (!text || !tws_axis_order_parse(text, &config->axis_order))
    tws_axis_order_parse(TWS_AXIS_ORDER_DEFAULT, &config->axis_order);
}

static const char *text_or(const tws_config *config, const char *path, const char *fallback) {
  const char *text = tws_given_text(tws_store_at(config->store, path));
  return text ? text : fallback;
}

static void apply_monitors(tws_config *config) {
  static const char job_name[] = "DeepSpeedJobName";
  config->tensorboard.output_path = text_or(config, "tensorboard.output_path", "");
  config->tensorboard.job_name = text_or(config, "tensorboard.job_name", job_name);
  config->csv_monitor.output_path = text_or(config, "csv_monitor.output_path", "");
  config->csv_monitor.job_name = text_or(config, "csv_monitor.job_name", job_name);
  config->wandb.group = text_or(config, "wandb.group", NULL);
  config->wandb.team = text_or(config, "wandb.team", NULL);
  config->wandb.project = text_or(config, "wandb.project", "deepspeed");
  config->comet.project = text_or(config, "comet.project", NULL);
  config->comet.workspace = text_or(config, "comet.workspace", NULL);
  config->comet.experiment_name = text_or(config, "comet.experiment_name", NULL);
  config->comet.experiment_key = text_or(config, "comet.experiment_key", NULL);
  config->comet.mode = text_or(config, "comet.mode", NULL);
}

/* Sets the fields of the section "comms_logger". As in DeepSpeed, the section enables the log even without the key
 * "enabled". */
static void apply_comms_logger(tws_config *config) {
  const tws_given given = tws_store_at(config->store, "comms_logger.enabled");
  const int present = tws_store_has(config->store, "comms_logger");
  config->comms_logger.enabled = given.item ? tws_given_true(given) : present;
  config->comms_logger.prof_ops = tws_store_at(config->store, "comms_logger.prof_ops").item;
}

void tws_config_apply(tws_config *config, const char *section) {
  size_t length = section ? strlen(section) : 0;
  for (size_t i = 0; i < tws_key_count; i++) {
    const tws_key *key = &tws_keys[i];
    if (key->store == TWS_STORE_NOWHERE || strncmp(key->path, "scheduler.", 10) == 0) continue;
    if (section && (key->path[0] != section[0] || strncmp(key->path, section, length) != 0 ||
                    (key->path[length] && key->path[length] != '.')))
      continue;
    apply_key(config, key);
  }
  if (!section || tws_key_word("fp16|bf16|data_types", section, 0) >= 0) apply_dtype(config);
  if (!section || strstr(section, "communication_data_type")) apply_communication(config);
  if (!section || strcmp(section, "pipeline") == 0)
    config->pipeline_partition = tws_given_text(tws_store_at(config->store, "pipeline.partition"));
  if (!section || strcmp(section, "flops_profiler") == 0)
    config->flops_profiler.output_file = tws_given_text(tws_store_at(config->store, "flops_profiler.output_file"));
  if (!section || tws_key_word("tensorboard|csv_monitor|wandb|comet", section, 0) >= 0) apply_monitors(config);
  if (!section || strcmp(section, "comms_logger") == 0) apply_comms_logger(config);
  if (!section || strcmp(section, "tensor_parallel") == 0) apply_tensor_ranks(config);
  if (!section || strcmp(section, "twinspeed") == 0) {
    apply_axis_order(config);
    config->recompute_operations = tws_given_text(tws_store_at(config->store, "twinspeed.recompute_operations"));
    config->lora_targets = tws_store_at(config->store, "twinspeed.lora.target_modules").item;
    config->quantization_skips = tws_store_at(config->store, "twinspeed.frozen_quantization.skip_modules").item;
    config->frozen_parameters = tws_store_at(config->store, "twinspeed.frozen_parameters").item;
    config->expert_load = tws_given_text(tws_store_at(config->store, "twinspeed.expert_load"));
    if (config->expert_load && strcmp(config->expert_load, "uniform") == 0) config->expert_load = NULL;
  }
  if (!section || strcmp(section, "optimizer") == 0) apply_optimizer(config);
  if (!section || strcmp(section, "scheduler") == 0) apply_scheduler(config);
  if (!section || tws_key_word("zero_optimization|allgather_size", section, 0) >= 0) apply_zero(config);
}
