#include "job/variant.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "compat/deepspeed_autotuner.h"

tws_variant tws_variant_given(const tws_config *config) {
  tws_division given = tws_config_division(config);
  return (tws_variant){.pipeline = given.pipeline,
                       .tensor = given.tensor,
                       .sequence = given.sequence,
                       .schedule = {(tws_pipeline_kind)config->pipeline_schedule, given.virtual_stages},
                       .sequence_parallel = config->tensor_sequence_parallel != 0,
                       .elastic = tws_config_is_elastic(config),
                       .expert = config->expert_ranks > 1 ? (int)config->expert_ranks : 1};
}

int tws_variant_replicas(const tws_variant *variant) {
  const int along[] = {variant->pipeline, variant->tensor, variant->sequence};
  int replicas = variant->ranks;
  for (int i = 0; i < 3; i++)
    if (along[i] > 1) replicas /= along[i];
  return replicas;
}

const char *const tws_offload_words[TWS_OFFLOAD_WORDS] = {
#define X(word, optimizer, parameters, text) word,
    TWS_OFFLOAD_PLACES(X)
#undef X
};
static const struct {
  const char *optimizer, *parameters, *text;
} offload_places[TWS_OFFLOAD_WORDS] = {
#define X(word, optimizer, parameters, text) {optimizer, parameters, text},
    TWS_OFFLOAD_PLACES(X)
#undef X
};

static const struct {
  const char *key, *word;
} zero3_limits[TWS_ZERO3_LIMIT_COUNT] = {
#define X(key, field, word, flag) {key, word},
    TWS_ZERO3_LIMITS(X)
#undef X
};

static const struct {
  const char *key, *word, *flag;
  int most;
  const char *what;
} exchange[TWS_EXCHANGE_COUNT] = {
#define X(key, word, flag, most, what) {key, word, flag, most, what},
    TWS_EXCHANGE_KEYS(X)
#undef X
};

const char *tws_exchange_flag(tws_exchange_key key) {
  return exchange[key].flag;
}

const char *tws_exchange_name(tws_exchange_key key) {
  return exchange[key].what;
}

int tws_exchange_most(tws_exchange_key key) {
  return exchange[key].most;
}

/* Returns the variant's value as the configuration key takes it. */
static const char *exchange_value(const tws_variant *variant, int key, char *text, size_t size) {
  const int value = variant->exchange[key] - 1;
  snprintf(text, size, "%d", value);
  return exchange[key].most > 1 ? text : value ? "true" : "false";
}

void tws_variant_name(const tws_variant *variant, char *buffer, int size) {
  tws_ds_setting settings[20 + TWS_EXCHANGE_COUNT] = {
      {"gradient_accumulation_steps", TWS_DS_NUMBER, (double)variant->accumulation, 0},
      {"train_micro_batch_size_per_gpu", TWS_DS_NUMBER, (double)variant->micro, 0},
      {"recompute", TWS_DS_WORD, 0, tws_recompute_name(variant->recompute)},
      {"n", TWS_DS_NUMBER, variant->ranks, 0}};
  int count = 4;
  if (variant->threads > 0) settings[count++] = (tws_ds_setting){"threads", TWS_DS_NUMBER, variant->threads, 0};
  if (variant->pipeline > 1) {
    settings[count++] = (tws_ds_setting){"pipeline_parallel", TWS_DS_NUMBER, variant->pipeline, 0};
    settings[count++] = (tws_ds_setting){"schedule", TWS_DS_WORD, 0, tws_pipeline_kind_name(variant->schedule.kind)};
    if (variant->schedule.virtual_stages > 1)
      settings[count++] = (tws_ds_setting){"virtual_stages", TWS_DS_NUMBER, variant->schedule.virtual_stages, 0};
  }
  if (variant->tensor > 1) {
    settings[count++] = (tws_ds_setting){"tensor_parallel", TWS_DS_NUMBER, variant->tensor, 0};
    settings[count++] = (tws_ds_setting){"sequence_parallel", TWS_DS_BOOL, variant->sequence_parallel, 0};
  }
  if (variant->sequence > 1)
    settings[count++] = (tws_ds_setting){"sequence_parallel", TWS_DS_NUMBER, variant->sequence, 0};
  if (variant->expert > 1) settings[count++] = (tws_ds_setting){"expert_parallel", TWS_DS_NUMBER, variant->expert, 0};
  if (variant->capacity > 0)
    settings[count++] = (tws_ds_setting){"capacity_factor", TWS_DS_NUMBER, variant->capacity, 0};
  for (int i = 0; i < TWS_EXCHANGE_COUNT; i++)
    if (variant->exchange[i] > 1)
      settings[count++] = (tws_ds_setting){exchange[i].word, TWS_DS_NUMBER, (double)(variant->exchange[i] - 1), 0};
  if (variant->overlap) settings[count++] = (tws_ds_setting){"overlap_comm", TWS_DS_BOOL, variant->overlap == 2, 0};
  if (variant->offload)
    settings[count++] = (tws_ds_setting){"offload_optimizer", TWS_DS_WORD, 0, tws_offload_words[variant->offload - 1]};
  if (variant->reduce_bucket)
    settings[count++] = (tws_ds_setting){"reduce_bucket_size", TWS_DS_NUMBER, (double)variant->reduce_bucket, 0};
  for (int i = 0; i < TWS_ZERO3_LIMIT_COUNT; i++)
    if (variant->zero3[i])
      settings[count++] = (tws_ds_setting){zero3_limits[i].key, TWS_DS_NUMBER, (double)(variant->zero3[i] - 1), 0};
  tws_text text = {0};
  tws_ds_experiment_name(variant->stage, settings, count, &text);
  snprintf(buffer, (size_t)size, "%s", text.data ? text.data : "");
  tws_text_free(&text);
}

void tws_variant_label(const tws_variant *variant, char *buffer, int size) {
  tws_text text = {0};
  tws_text_add(&text, "ZeRO-%d, %lld x %lld", variant->stage, (long long)variant->micro,
               (long long)variant->accumulation);
  if (variant->recompute != TWS_RECOMPUTE_NONE)
    tws_text_add(&text, ", recompute %s", tws_recompute_name(variant->recompute));
  if (variant->pipeline > 1) {
    tws_text_add(&text, ", pp %d (%s", variant->pipeline, tws_pipeline_kind_name(variant->schedule.kind));
    if (variant->schedule.virtual_stages > 1) tws_text_add(&text, ":%d", variant->schedule.virtual_stages);
    tws_text_add(&text, ")");
  }
  if (variant->tensor > 1) tws_text_add(&text, ", tp %d%s", variant->tensor, variant->sequence_parallel ? "+seq" : "");
  if (variant->sequence > 1) tws_text_add(&text, ", sp %d", variant->sequence);
  if (variant->expert > 1) tws_text_add(&text, ", ep %d", variant->expert);
  if (variant->capacity > 0) tws_text_add(&text, ", capacity %g", variant->capacity);
  char neighbours[96];
  tws_variant_exchanges(variant, neighbours, sizeof neighbours);
  if (*neighbours) tws_text_add(&text, ", %s", neighbours);
  if (variant->overlap) tws_text_add(&text, ", overlap %s", variant->overlap == 2 ? "on" : "off");
  if (variant->offload) tws_text_add(&text, "%s", offload_places[variant->offload - 1].text);
  if (variant->reduce_bucket) tws_text_add(&text, ", buckets of %g", (double)variant->reduce_bucket);
  for (int i = 0; i < TWS_ZERO3_LIMIT_COUNT; i++)
    if (variant->zero3[i]) tws_text_add(&text, ", %s %g", zero3_limits[i].word, (double)(variant->zero3[i] - 1));
  snprintf(buffer, (size_t)size, "%s", text.data ? text.data : "");
  tws_text_free(&text);
}

void tws_variant_exchanges(const tws_variant *variant, char *buffer, int size) {
  int used = 0;
  buffer[0] = '\0';
  for (int i = 0; i < TWS_EXCHANGE_COUNT && used < size; i++) {
    if (variant->exchange[i] < 2) continue;
    used += snprintf(buffer + used, (size_t)(size - used), "%s%s", used ? ", " : "", exchange[i].word);
    if (exchange[i].most > 1 && used < size)
      used += snprintf(buffer + used, (size_t)(size - used), " %d", variant->exchange[i] - 1);
  }
}

void tws_variant_buckets(const tws_variant *variant, char *buffer, int size) {
  tws_text text = {0};
  if (variant->reduce_bucket) tws_text_add(&text, "%g", (double)variant->reduce_bucket);
  for (int i = 0; i < TWS_ZERO3_LIMIT_COUNT; i++)
    if (variant->zero3[i])
      tws_text_add(&text, "%s%s %g", text.length ? ", " : "", zero3_limits[i].word, (double)(variant->zero3[i] - 1));
  snprintf(buffer, (size_t)size, "%s", text.data ? text.data : "");
  tws_text_free(&text);
}

/* ---- configurations ---- */

static tws_code set_number(tws_config *config, const char *key, int64_t value, tws_error *err) {
  char text[32];
  snprintf(text, sizeof text, "%lld", (long long)value);
  return tws_config_set(config, key, text, err);
}

static tws_code set_schedule(tws_config *config, const tws_variant_schedule *schedule, tws_error *err) {
  char text[48];
  if ((int)schedule->kind != config->pipeline_schedule) {
    snprintf(text, sizeof text, "\"%s\"", tws_pipeline_kind_name(schedule->kind));
    TWS_TRY(tws_config_set(config, "twinspeed.pipeline_schedule", text, err));
  }
  if (schedule->virtual_stages == tws_config_division(config).virtual_stages) return TWS_OK;
  return set_number(config, "twinspeed.virtual_stages", schedule->virtual_stages, err);
}

/* Sets the keys of axes whose value differs from the configuration's. */
static tws_code set_axes(tws_config *config, const tws_variant *variant, tws_error *err) {
  tws_division given = tws_config_division(config);
  if (variant->pipeline > 0 && variant->pipeline != given.pipeline)
    TWS_TRY(set_number(config, "pipeline.stages", variant->pipeline, err));
  if (variant->pipeline > 0) TWS_TRY(set_schedule(config, &variant->schedule, err));
  if (variant->tensor > 0 && variant->tensor != given.tensor) {
    if (given.tensor > 1) /* the configuration states tensor ranks by either of two keys */
      TWS_TRY(tws_config_set(config, "tensor_parallel.tensor_parallel.tp_size", "null", err));
    TWS_TRY(set_number(config, "tensor_parallel.autotp_size", variant->tensor, err));
  }
  if (variant->tensor > 0 && variant->sequence_parallel != (config->tensor_sequence_parallel != 0))
    TWS_TRY(tws_config_set(config, "twinspeed.tensor_sequence_parallel", variant->sequence_parallel ? "true" : "false",
                           err));
  if (variant->sequence > 0 && variant->sequence != given.sequence)
    TWS_TRY(set_number(config, "sequence_parallel_size", variant->sequence, err));
  if (variant->expert > 0 && variant->expert != (config->expert_ranks > 1 ? config->expert_ranks : 1))
    TWS_TRY(set_number(config, "twinspeed.expert_parallel_size", variant->expert, err));
  if (variant->capacity > 0) {
    char text[32];
    snprintf(text, sizeof text, "%.17g", variant->capacity);
    TWS_TRY(tws_config_set(config, "twinspeed.expert_capacity_factor", text, err));
  }
  return TWS_OK;
}

static tws_code set_batch(tws_config *config, const tws_variant *variant, tws_error *err) {
  const int64_t replicas = variant->ranks / tws_config_model_ranks(config);
  if (tws_config_is_elastic(config)) return TWS_OK;
  TWS_TRY(set_number(config, "train_batch_size", variant->micro * variant->accumulation * replicas, err));
  TWS_TRY(set_number(config, "train_micro_batch_size_per_gpu", variant->micro, err));
  return set_number(config, "gradient_accumulation_steps", variant->accumulation, err);
}

static tws_code check_batch(const tws_config *config, const tws_variant *variant, tws_error *err) {
  if (config->micro_batch_size == variant->micro && config->accumulation_steps == variant->accumulation) return TWS_OK;
  return tws_fail(err, TWS_INVALID, "leave the batch to it, or set elasticity.enabled to false",
                  "elasticity chooses the batch of its ranks");
}

static tws_code set_variant(tws_config *config, const tws_network *network, const tws_variant *variant,
                            tws_error *err) {
  TWS_TRY(set_axes(config, variant, err));
  TWS_TRY(set_batch(config, variant, err));
  TWS_TRY(set_number(config, "zero_optimization.stage", variant->stage, err));
  TWS_TRY(set_number(config, "twinspeed.ranks", variant->ranks, err));
  if (variant->threads > 0) TWS_TRY(set_number(config, "twinspeed.threads", variant->threads, err));
  if (config->sequence_length == 0)
    TWS_TRY(set_number(config, "twinspeed.sequence_length", tws_network_usual_sequence(network), err));
  char text[32];
  snprintf(text, sizeof text, "\"%s\"", tws_recompute_name(variant->recompute));
  TWS_TRY(tws_config_set(config, "twinspeed.recompute", text, err));
  for (int i = 0; i < TWS_EXCHANGE_COUNT; i++)
    if (variant->exchange[i])
      TWS_TRY(tws_config_set(config, exchange[i].key, exchange_value(variant, i, text, sizeof text), err));
  if (variant->overlap)
    TWS_TRY(tws_config_set(config, "zero_optimization.overlap_comm", variant->overlap == 2 ? "true" : "false", err));
  if (variant->reduce_bucket)
    TWS_TRY(set_number(config, "zero_optimization.reduce_bucket_size", variant->reduce_bucket, err));
  for (int i = 0; i < TWS_ZERO3_LIMIT_COUNT; i++) {
    char key[96];
    snprintf(key, sizeof key, "zero_optimization.%s", zero3_limits[i].key);
    if (variant->zero3[i]) TWS_TRY(set_number(config, key, variant->zero3[i] - 1, err));
  }
  if (variant->offload) {
    snprintf(text, sizeof text, "\"%s\"", offload_places[variant->offload - 1].optimizer);
    TWS_TRY(tws_config_set(config, "zero_optimization.offload_optimizer.device", text, err));
    snprintf(text, sizeof text, "\"%s\"", offload_places[variant->offload - 1].parameters);
    TWS_TRY(tws_config_set(config, "zero_optimization.offload_param.device", text, err));
  }
  tws_auto_context context = {.hidden_size = network->hidden};
  TWS_TRY(tws_config_resolve(config, variant->ranks, &context, err));
  return tws_config_is_elastic(config) ? check_batch(config, variant, err) : TWS_OK;
}

tws_code tws_variant_config(const tws_config *base, const tws_network *network, const tws_variant *variant,
                            tws_config **out, tws_error *err) {
  tws_config *config;
  TWS_TRY(tws_config_clone(base, &config, err));
  tws_code code = set_variant(config, network, variant, err);
  if (code != TWS_OK) {
    tws_config_destroy(config);
    return code;
  }
  *out = config;
  return TWS_OK;
}

/* ---- another process ---- */

__attribute__((format(printf, 5, 6))) static void add_setting(tws_job_spec *spec, int given, char *text, size_t size,
                                                              const char *format, ...) {
  va_list values;
  if (!given || spec->set.count >= TWS_MAX_STRINGS) return;
  va_start(values, format);
  vsnprintf(text, size, format, values);
  va_end(values);
  spec->set.item[spec->set.count++] = text;
}

tws_job_spec tws_variant_spec(const tws_job_spec *base, const tws_variant *variant, tws_variant_text *text) {
  tws_job_spec spec = *base;
  snprintf(text->batch, sizeof text->batch, "train_batch_size=%lld",
           (long long)(variant->micro * variant->accumulation * tws_variant_replicas(variant)));
  if (!variant->elastic && spec.set.count < TWS_MAX_STRINGS) spec.set.item[spec.set.count++] = text->batch;
  spec.stage = variant->stage;
  spec.micro_batch = variant->elastic ? 0 : variant->micro;
  spec.accumulation = variant->elastic ? 0 : variant->accumulation;
  spec.recompute = tws_recompute_name(variant->recompute);
  spec.ranks = variant->ranks;
  spec.threads = variant->threads;
  if (variant->pipeline > 0) spec.pipeline_stages = variant->pipeline;
  if (variant->pipeline > 1) {
    spec.schedule = tws_pipeline_kind_name(variant->schedule.kind);
    spec.virtual_stages = variant->schedule.virtual_stages;
  }
  if (variant->tensor > 0) spec.tensor_ranks = variant->tensor;
  if (variant->tensor > 1) spec.sequence_parallel = variant->sequence_parallel;
  if (variant->tensor > 1 && !variant->sequence_parallel &&
      spec.set.count < TWS_MAX_STRINGS) /* the configuration file may switch sequence parallelism on, so it is switched
                                         * off here */
    spec.set.item[spec.set.count++] = "twinspeed.tensor_sequence_parallel=false";
  if (variant->sequence > 0) spec.sequence_ranks = variant->sequence;
  if (variant->expert > 0) spec.expert_ranks = variant->expert;
  add_setting(&spec, variant->capacity > 0, text->capacity, sizeof text->capacity,
              "twinspeed.expert_capacity_factor=%.17g", variant->capacity);
  for (int i = 0; i < TWS_EXCHANGE_COUNT; i++) {
    char value[16];
    add_setting(&spec, variant->exchange[i] != 0, text->exchange[i], sizeof text->exchange[i], "%s=%s", exchange[i].key,
                exchange_value(variant, i, value, sizeof value));
  }
  add_setting(&spec, variant->overlap != 0, text->overlap, sizeof text->overlap, "zero_optimization.overlap_comm=%s",
              variant->overlap == 2 ? "true" : "false");
  const int place = variant->offload > 0 ? variant->offload - 1 : 0;
  add_setting(&spec, variant->offload != 0, text->offload, sizeof text->offload,
              "zero_optimization.offload_optimizer.device=%s", offload_places[place].optimizer);
  add_setting(&spec, variant->offload != 0, text->parameters, sizeof text->parameters,
              "zero_optimization.offload_param.device=%s", offload_places[place].parameters);
  add_setting(&spec, variant->reduce_bucket != 0, text->bucket, sizeof text->bucket,
              "zero_optimization.reduce_bucket_size=%lld", (long long)variant->reduce_bucket);
  for (int i = 0; i < TWS_ZERO3_LIMIT_COUNT; i++)
    add_setting(&spec, variant->zero3[i] != 0, text->zero3[i], sizeof text->zero3[i], "zero_optimization.%s=%lld",
                zero3_limits[i].key, (long long)(variant->zero3[i] - 1));
  return spec;
}

/* ---- results ---- */

void tws_variant_axes_json(const tws_variant *variant, cJSON *json) {
  cJSON *axes = cJSON_AddObjectToObject(json, "axes");
  cJSON_AddNumberToObject(axes, "pipe", variant->pipeline > 1 ? variant->pipeline : 1);
  cJSON_AddNumberToObject(axes, "data", tws_variant_replicas(variant));
  cJSON_AddNumberToObject(axes, "sequence", variant->sequence > 1 ? variant->sequence : 1);
  cJSON_AddNumberToObject(axes, "model", variant->tensor > 1 ? variant->tensor : 1);
  if (variant->expert > 1) cJSON_AddNumberToObject(axes, "expert", variant->expert);
  if (variant->pipeline > 1) {
    cJSON_AddStringToObject(json, "pipeline_schedule", tws_pipeline_kind_name(variant->schedule.kind));
    cJSON_AddNumberToObject(json, "virtual_stages", variant->schedule.virtual_stages);
  }
  if (variant->tensor > 1) cJSON_AddBoolToObject(json, "sequence_parallel", variant->sequence_parallel);
  if (variant->capacity > 0) cJSON_AddNumberToObject(json, "expert_capacity_factor", variant->capacity);
  for (int i = 0; i < TWS_EXCHANGE_COUNT; i++) {
    const char *name = strrchr(exchange[i].key, '.') + 1;
    if (variant->exchange[i] > 0 && exchange[i].most > 1)
      cJSON_AddNumberToObject(json, name, variant->exchange[i] - 1);
    else if (variant->exchange[i] > 0)
      cJSON_AddBoolToObject(json, name, variant->exchange[i] > 1);
  }
}
