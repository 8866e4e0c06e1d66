/* Prints the effective configuration and reports keys without effect. */
#include <float.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/fingerprint.h"
#include "base/number.h"
#include "config/builder.h"
#include "config/store.h"

/* Creates a JSON integer. Integers beyond 2^53 are written as text, because cJSON stores doubles. */
static cJSON *integer_item(int64_t value) {
  char text[32];
  if (value > -(INT64_C(1) << 53) && value < INT64_C(1) << 53) return cJSON_CreateNumber((double)value);
  snprintf(text, sizeof text, "%lld", (long long)value);
  return cJSON_CreateRaw(text);
}

/* Makes a JSON number from the shortest text that reads back as the same double; cJSON's own text may differ in the
 * last bits. */
static cJSON *number_item(double value) {
  char text[40];
  for (int digits = 15; digits <= 17; digits++) {
    snprintf(text, sizeof text, "%.*g", digits, value);
    double back;
    if (tws_text_number(text, NULL, -HUGE_VAL, HUGE_VAL, &back) && back == value) break;
  }
  return cJSON_CreateRaw(text);
}

/* ---- the effective configuration ---- */

static cJSON *field_value(const tws_config *config, const tws_key *key) {
  const char *field = (const char *)config + key->offset;
  int64_t wide;
  int narrow;
  double real;
  switch ((tws_key_store)key->store) {
    case TWS_STORE_I64:
      memcpy(&wide, field, sizeof wide);
      return key->bounded && (double)wide < key->low ? NULL : integer_item(wide);
    case TWS_STORE_I32:
      memcpy(&narrow, field, sizeof narrow);
      if (key->type != TWS_KEY_BOOL) return cJSON_CreateNumber(narrow);
      return narrow < 0 ? NULL : cJSON_CreateBool(narrow);
    case TWS_STORE_F64:
      memcpy(&real, field, sizeof real);
      return key->bounded && real < key->low ? NULL : number_item(real);
    case TWS_STORE_ENUM: {
      char word[64] = "";
      const char *at = key->values;
      memcpy(&narrow, field, sizeof narrow);
      for (int i = 0; i < narrow && at; i++) {
        at = strchr(at, '|');
        if (at) at++;
      }
      if (at) snprintf(word, sizeof word, "%.*s", (int)strcspn(at, "|"), at);
      return cJSON_CreateString(word);
    }
    case TWS_STORE_NOWHERE:
    case TWS_STORE_SPECIAL:
      break;
  }
  return NULL;
}

/* Returns 1 if the field of a key has a value to print, 0 if the field is unset. */
static int is_set(const tws_config *config, const tws_key *key) {
  if (key->store == TWS_STORE_SPECIAL || key->store == TWS_STORE_NOWHERE) return 0;
  cJSON *value = field_value(config, key);
  cJSON_Delete(value);
  return value != NULL;
}

static const char *scheduler_name(tws_scheduler scheduler) {
  static const char *const names[] = {"", "LRRangeTest", "OneCycle", "WarmupLR", "WarmupDecayLR", "WarmupCosineLR"};
  return names[scheduler];
}

/* Adds the name of a type at a path; given: 1 + a tws_dtype; 0: adds nothing. */
static void put_type(builder *b, const char *path, int given) {
  if (given)
    put_at(b, path, cJSON_CreateString(tws_dtype_name((tws_dtype)(given - 1))));
  else
    drop_at(b, path);
}

static void put_pair(builder *b, const char *path, double first, double second) {
  cJSON *pair = cJSON_CreateArray();
  const double value[2] = {first, second};
  for (int i = 0; i < 2; i++) {
    cJSON *item = number_item(value[i]);
    if (item && cJSON_AddItemToArray(pair, item)) continue;
    cJSON_Delete(item);
    b->failed = 1;
  }
  put_at(b, path, pair);
}

static void put_special(builder *b, const tws_config *config) {
  char order[TWS_AXIS_ORDER_TEXT];
  const tws_optimizer_row *optimizer = tws_optimizer_of(config->optimizer);
  put_at(b, "fp16.enabled", cJSON_CreateBool(config->dtype == TWS_F16));
  put_at(b, "bf16.enabled", cJSON_CreateBool(config->dtype == TWS_BF16));
  put_at(b, "data_types.grad_accum_dtype", cJSON_CreateString(tws_dtype_name(config->accumulation_dtype)));
  put_type(b, "communication_data_type", config->communication_dtype);
  put_type(b, "seq_parallel_communication_data_type", config->sequence_communication);
  put_at(b, "optimizer.type", cJSON_CreateString(optimizer->type));
  if (tws_optimizer_has_argument(optimizer, "betas"))
    put_pair(b, "optimizer.params.betas", config->beta1, config->beta2);
  if (optimizer->factored) put_pair(b, "optimizer.params.eps", config->epsilon, config->scale_epsilon);
  if (config->narrow_moments) put_at(b, "optimizer.params.fp32_optimizer_states", cJSON_CreateBool(0));
  if (cJSON_GetArraySize(config->param_groups) > 0)
    put_at(b, "optimizer.param_groups", cJSON_Duplicate(config->param_groups, 1));
  /* lists are printed as given, since the fields have only the values of the first group */
  for (size_t i = 0; i < tws_key_count; i++) {
    const tws_given given = tws_store_get(config->store, &tws_keys[i]);
    if (tws_keys[i].type == TWS_KEY_NUMBER_OR_LIST && cJSON_GetArraySize(given.item) > 1)
      put_at(b, tws_keys[i].path, cJSON_Duplicate(given.item, 1));
  }
  put_at(b, "twinspeed.axis_order", cJSON_CreateString(tws_axis_order_text(&config->axis_order, order)));
  drop_at(b, "tensor_parallel.tensor_parallel.tp_size"); /* printed as autotp_size, into which the value was read */
  cJSON *inner = find_at(b, "tensor_parallel.tensor_parallel");
  if (inner && !inner->child) drop_at(b, "tensor_parallel.tensor_parallel");
  if (config->scheduler == TWS_SCHEDULER_NONE) return;
  put_at(b, "scheduler.type", cJSON_CreateString(scheduler_name(config->scheduler)));
  if (config->scheduler >= TWS_SCHEDULER_WARMUP)
    put_at(b, "scheduler.params.warmup_type", cJSON_CreateString(config->schedule.warmup_linear ? "linear" : "log"));
  if (config->schedule.max_lr < 0 && tws_given_auto(tws_store_at(config->store, "scheduler.params.warmup_max_lr")))
    put_at(b, "scheduler.params.warmup_max_lr", number_item(config->lr));
}

/* Returns 1 if a key applies to this configuration and is printed: arguments only of the optimizer and the schedule in
 * use, keys of loss scaling only with fp16. */
static int applies_here(const tws_config *config, const tws_key *key) {
  if (strncmp(key->path, "fp16.", 5) == 0) return config->dtype == TWS_F16 || key->store == TWS_STORE_SPECIAL;
  const char *argument = tws_key_optimizer_argument(key->path);
  if (argument) return tws_optimizer_has_argument(tws_optimizer_of(config->optimizer), argument);
  if (strncmp(key->path, "zero_optimization.zenflow.", 26) == 0) return config->zenflow.on;
  if (strncmp(key->path, "scheduler.", 10) != 0) return 1;
  if (config->scheduler == TWS_SCHEDULER_NONE) return 0;
  return !key->owners || tws_key_word(key->owners, scheduler_name(config->scheduler), 0) >= 0;
}

/* Renames a member of an object, such as an alias to the key's preferred name. */
static void rename_member(builder *b, cJSON *object, const char *from, const char *to) {
  cJSON *item = cJSON_IsObject(object) ? cJSON_GetObjectItemCaseSensitive(object, from) : NULL;
  if (item) put_item(b, object, to, cJSON_DetachItemViaPointer(object, item));
}

static void canonical_names(builder *b) {
  rename_member(b, b->root, "bfloat16", "bf16");
  rename_member(b, cJSON_GetObjectItemCaseSensitive(b->root, "tensor_parallel"), "tp", "tensor_parallel");
  for (size_t i = 0; i < tws_key_count; i++) {
    const tws_key *key = &tws_keys[i];
    const char *dot = strrchr(key->path, '.');
    char section[96];
    if (!key->alias || !dot) continue;
    snprintf(section, sizeof section, "%.*s", (int)(dot - key->path), key->path);
    rename_member(b, find_at(b, section), key->alias, dot + 1);
  }
}

/* Replaces fractions of counts by the integers to which they are truncated. */
static void round_counts(builder *b) {
  for (size_t i = 0; i < tws_key_count; i++) {
    const tws_given given = {tws_keys[i].rounded ? find_at(b, tws_keys[i].path) : NULL, NULL};
    int64_t whole;
    if (!tws_given_fraction(&tws_keys[i], given)) continue;
    tws_given_integer(&tws_keys[i], given, &whole);
    put_at(b, tws_keys[i].path, integer_item(whole));
  }
}

/* Replaces "auto" of keys without effect by the defaults, because DeepSpeed does not accept "auto" for them. */
static void settle_idle(builder *b) {
  for (size_t i = 0; i < tws_key_count; i++) {
    const tws_key *key = &tws_keys[i];
    if (!key->automatic || !key->reason || !tws_given_auto((tws_given){find_at(b, key->path), NULL})) continue;
    if (key->fallback)
      put_at(b, key->path, cJSON_Parse(key->fallback));
    else
      drop_at(b, key->path);
  }
}

/* Removes deprecated keys that have an effect; their values were read into the keys that replaced them. */
static void drop_old(builder *b) {
  for (size_t i = 0; i < tws_key_count; i++)
    if (tws_keys[i].moved_to && tws_keys[i].parts) drop_at(b, tws_keys[i].path);
  cJSON *zero = cJSON_GetObjectItemCaseSensitive(b->root, "zero_optimization");
  if (zero && !cJSON_IsObject(zero)) cJSON_Delete(cJSON_DetachItemViaPointer(b->root, zero));
}

static void put_overrides(builder *b, const struct tws_config_store *store) {
  for (size_t i = 0; i < store->count; i++) {
    const tws_override *o = &store->overrides[i];
    if (cJSON_IsNull(o->item))
      drop_at(b, o->path);
    else
      put_at(b, o->path, cJSON_Duplicate(o->item, 1));
  }
}

/* Returns 1 if the presence of the section enables a feature, so that the defaults of its keys must not be printed. */
static int presence_matters(const char *path) {
  static const char *const sections[] = {"zero_optimization.zenflow", "comms_logger",    "checkpoint.writer",
                                         "sparse_attention",          "tensor_parallel", "compression_training",
                                         "autotuning.model_info",     "pipeline"};
  for (size_t i = 0; i < sizeof sections / sizeof *sections; i++) {
    size_t length = strlen(sections[i]);
    if (strncmp(path, sections[i], length) == 0 && (!path[length] || path[length] == '.')) return 1;
  }
  return 0;
}

/* Returns 1 for a default that is not printed, because printing it would add a section whose mere presence has an
 * effect. */
static int leave_out(builder *b, const tws_config *config, const tws_key *key) {
  if (!key->fallback || !presence_matters(key->path) || find_at(b, key->path)) return 0;
  cJSON *value = field_value(config, key), *fallback = cJSON_Parse(key->fallback);
  if (!fallback) b->failed = 1;
  int same = cJSON_Compare(value, fallback, 1);
  cJSON_Delete(value);
  cJSON_Delete(fallback);
  return same;
}

static void put_defaults(builder *b) {
  for (size_t i = 0; i < tws_key_count; i++) {
    const tws_key *key = &tws_keys[i];
    if (key->parts || !key->fallback || key->owners || key->moved_to || tws_key_optimizer_argument(key->path) ||
        strpbrk(key->path, "<["))
      continue;
    if (!presence_matters(key->path) && !find_at(b, key->path)) put_at(b, key->path, cJSON_Parse(key->fallback));
  }
}

static void put_monitor(builder *b, const char *section, const tws_monitor_section *values) {
  char path[64];
  if (!values->enabled) return;
  snprintf(path, sizeof path, "%s.output_path", section);
  put_at(b, path, cJSON_CreateString(values->output_path));
  snprintf(path, sizeof path, "%s.job_name", section);
  put_at(b, path, cJSON_CreateString(values->job_name));
}

tws_code tws_config_print(const tws_config *config, int all_keys, tws_text *out, tws_error *err) {
  const struct tws_config_store *store = config->store;
  builder b = {.root = cJSON_Duplicate(store->origin->json->root, 1)};
  if (!b.root) return tws_fail(err, TWS_MEMORY, NULL, "configuration: out of memory");
  canonical_names(&b);
  put_overrides(&b, store);
  round_counts(&b);
  settle_idle(&b);
  drop_old(&b);
  for (size_t i = 0; i < tws_key_count && !b.failed; i++) {
    const tws_key *key = &tws_keys[i];
    if (key->parts && !applies_here(config, key)) continue;
    if (leave_out(&b, config, key)) continue;
    if (is_set(config, key))
      put_at(&b, key->path, field_value(config, key));
    else if (key->store != TWS_STORE_NOWHERE && key->store != TWS_STORE_SPECIAL &&
             !tws_given_auto(tws_store_get(store, key)))
      drop_at(&b, key->path);
  }
  put_special(&b, config);
  put_monitor(&b, "tensorboard", &config->tensorboard);
  put_monitor(&b, "csv_monitor", &config->csv_monitor);
  static const char *const batch[] = {"train_batch_size", "train_micro_batch_size_per_gpu",
                                      "gradient_accumulation_steps"};
  for (int i = 0; i < 3 && tws_config_is_elastic(config); i++) drop_at(&b, batch[i]); /* derived again by its reader */
  if (all_keys) put_defaults(&b);
  return finish_text(&b, out, err);
}

/* Replaces keys that DeepSpeed's classes refuse (0.19.8, runtime/config.py): the section elasticity by the batch that
 * it chose for the configuration's ranks. Removes train_batch_size if several ranks share a model, since DeepSpeed then
 * counts all ranks as replicas and asserts that the batch is that of all ranks. */
static void settle_for_deepspeed(builder *b, const tws_config *config) {
  if (tws_config_is_elastic(config)) {
    put_at(b, "train_batch_size", integer_item(config->train_batch_size));
    put_at(b, "train_micro_batch_size_per_gpu", integer_item(config->micro_batch_size));
    put_at(b, "gradient_accumulation_steps", integer_item(config->accumulation_steps));
  }
  drop_at(b, "elasticity");
  if (tws_config_model_ranks(config) > 1) drop_at(b, "train_batch_size");
}

tws_code tws_config_print_given(const tws_config *config, int for_deepspeed, tws_text *out, tws_error *err) {
  builder b = {.root = cJSON_Duplicate(config->store->origin->json->root, 1)};
  if (!b.root) return tws_fail(err, TWS_MEMORY, NULL, "configuration: out of memory");
  canonical_names(&b);
  put_overrides(&b, config->store);
  round_counts(&b);
  if (for_deepspeed) settle_for_deepspeed(&b, config);
  return finish_text(&b, out, err);
}

tws_code tws_config_fingerprint(const tws_config *config, uint64_t *out, tws_error *err) {
  builder b = {.root = cJSON_CreateObject()};
  tws_text text = {0};
  if (!b.root) return tws_fail(err, TWS_MEMORY, NULL, "configuration: out of memory");
  for (size_t i = 0; i < tws_key_count && !b.failed; i++)
    if (tws_keys[i].parts & ~TWS_KEY_REPORT && applies_here(config, &tws_keys[i]) && is_set(config, &tws_keys[i]))
      put_at(&b, tws_keys[i].path, field_value(config, &tws_keys[i]));
  put_special(&b, config);
  tws_code code = finish_text(&b, &text, err);
  if (code == TWS_OK) *out = tws_fingerprint_text(TWS_FINGERPRINT_START, text.data);
  tws_text_free(&text);
  return code;
}

/* ---- keys without effect ---- */

typedef struct report {
  const tws_config *config;
  tws_text *out;
  int count;
} report;

/* Returns the reason why a key of stage 3, of two-level gathers or of frozen weights has no effect at this ZeRO stage,
 * or NULL. */
static const char *idle_at_stage(const tws_config *c, const char *path) {
  const struct {
    const char *path;
    int given;
  } rows[] = {{"twinspeed.linear_tile_size", c->linear_tile_size > 0},
              {"zero_optimization.zero_quantized_gradients", c->zero.quantized_gradients},
              {"zero_optimization.zero_quantized_weights", c->zero.quantized_weights},
              {"zero_optimization.zero_hpz_partition_size", c->zero.secondary_ranks > 1},
              {"zero_optimization.mics_shard_size", c->zero.shard_ranks > 0}};
  for (size_t i = 0; i < sizeof rows / sizeof *rows && c->zero.stage != 3; i++)
    if (rows[i].given && strcmp(rows[i].path, path) == 0) return "it needs ZeRO stage 3";
  if (c->zero.quantized_frozen && !tws_config_freezes(c) &&
      strcmp(path, "zero_optimization.zero_quantized_nontrainable_weights") == 0)
    return "it needs twinspeed.lora or twinspeed.frozen_parameters";
  if (c->zero.hierarchical_gather && !tws_config_gather_ranks(c) &&
      strcmp(path, "zero_optimization.mics_hierarchical_params_gather") == 0)
    return "it needs zero_optimization.mics_shard_size, and twinspeed.zero_node_ranks from 2 to less than that";
  return NULL;
}

/* Returns the reason why a key of a communication type, or of figures for a monitor, has no effect: the type or the
 * monitor is not in use; else NULL. */
static const char *idle_type(const tws_config *c, const char *path) {
  if (c->tensorboard_images && !c->tensorboard.enabled && strcmp(path, "twinspeed.tensorboard_images") == 0)
    return "it needs tensorboard.enabled";
  if (c->sequence_ranks < 2 && c->sequence_communication && strcmp(path, "seq_parallel_communication_data_type") == 0)
    return "it needs sequence_parallel_size above 1";
  if (c->sequence_ranks > 1 && c->sequence_communication && strcmp(path, "communication_data_type") == 0)
    return "seq_parallel_communication_data_type replaces it where sequence_parallel_size is above 1";
  return idle_at_stage(c, path);
}

/* Returns 1 if a part of the optimizer may be offloaded: not if the states and the parameters are on one disk. */
static int may_offload_a_part(const tws_zero_config *z) {
  return z->stage == 3 && z->offload_optimizer && !(z->offload_optimizer == 2 && z->offload_param == 2);
}

/* Returns the reason why a key has no effect: the feature that it configures is not in use; NULL: the key has an
 * effect. Called only for values other than the default. */
static const char *idle_reason(const tws_config *c, const char *path) {
  const int pipe = c->pipeline_stages > 1, tensor = c->tensor_ranks > 1, alone = tws_config_model_ranks(c) == 1;
  char order[TWS_AXIS_ORDER_TEXT];
  const tws_key *schedule = tws_key_at("twinspeed.pipeline_schedule");
  int usual = tws_key_word(schedule->values, "1f1b", 0);
  const char *partition = c->pipeline_partition ? c->pipeline_partition : "best";
  const tws_optimizer_row *optimizer = tws_optimizer_of(c->optimizer);
  const int cycles = c->scheduler == TWS_SCHEDULER_ONE_CYCLE && c->schedule.cycle_momentum;
  const tws_aio *aio = &c->aio;
  const int parameters = c->zero.stage == 3 ? c->zero.offload_param : 0; /* tier to which parameters are offloaded */
  const int memory_optimizer = c->zero.offload_optimizer != 2 || c->zero.stage == 0;
  const int memory = memory_optimizer && parameters != 2;
  static const char no_disk[] = "nothing is offloaded to a disk";
  const struct {
    const char *path;
    int idle;
    const char *reason;
  } rows[] = {
      {"zero_optimization.offload_optimizer.nvme_path", memory_optimizer && c->optimizer_path != NULL, no_disk},
      {"zero_optimization.offload_optimizer.pipeline_read", memory_optimizer && c->zero.pipeline_read, no_disk},
      {"zero_optimization.offload_optimizer.pipeline_write", memory_optimizer && c->zero.pipeline_write, no_disk},
      {"activation_checkpointing.cpu_checkpointing", c->cpu_checkpointing && c->recompute != TWS_RECOMPUTE_FULL,
       "it needs twinspeed.recompute full"},
      {"twinspeed.recompute_whole", c->recompute_whole && !tws_config_recomputes_blocks(c),
       "it needs twinspeed.recompute full, or operations with mlp"},
      {"activation_checkpointing.partition_activations",
       c->partition_activations && (c->recompute != TWS_RECOMPUTE_FULL || !tensor),
       "it needs twinspeed.recompute full, and tensor_parallel.autotp_size above 1"},
      {"zero_optimization.offload_optimizer.ratio",
       c->zero.offload_optimizer_ratio < 1 && !may_offload_a_part(&c->zero),
       "a part of the optimizer is offloaded at stage 3, and not if parameters are on a disk with it"},
      {"zero_optimization.zenflow.steps_per_epoch", c->zenflow.strategy == TWS_ZENFLOW_STEP, "steps are counted"},
      {"twinspeed.delayed_update_warm_up", !c->delayed_update && c->delayed_warm_up > 0,
       "it needs twinspeed.delayed_update"},
      {"zero_optimization.offload_param.nvme_path", parameters != 2 && c->param_path != NULL, no_disk},
      {"zero_optimization.offload_param.buffer_count", parameters != 2 && c->zero.param_buffer_count != 5, no_disk},
      {"zero_optimization.offload_param.buffer_size", parameters != 2 && c->zero.param_buffer_size != 100000000,
       no_disk},
      {"zero_optimization.offload_param.max_in_cpu", parameters != 2 && c->zero.max_in_cpu != 1000000000, no_disk},
      {"zero_optimization.offload_param.pin_memory", parameters == 0 && !c->zero.offload_param_pinned,
       "parameters are not offloaded"},
      {"aio.block_size", memory && aio->block_size != 1 << 20, no_disk},
      {"aio.queue_depth", memory && aio->queue_depth != 8, no_disk},
      {"aio.intra_op_parallelism", memory && aio->threads != 1, no_disk},
      {"aio.single_submit", memory && aio->single_submit, no_disk},
      {"aio.overlap_events", memory && !aio->overlap_events, no_disk},
      {"pipeline.partition", !pipe && strcmp(partition, "best") != 0, "it needs pipeline.stages above 1"},
      {"twinspeed.pipeline_schedule", !pipe && c->pipeline_schedule != usual, "it needs pipeline.stages above 1"},
      {"twinspeed.virtual_stages", !pipe && c->virtual_stages > 1, "it needs pipeline.stages above 1"},
      {"tensor_parallel.tp_overlap_comm", !tensor && c->tensor_overlap, "it needs tensor_parallel.autotp_size above 1"},
      {"twinspeed.tensor_sequence_parallel", !tensor && c->tensor_sequence_parallel,
       "it needs tensor_parallel.autotp_size above 1"},
      {"twinspeed.expert_node_ranks", c->expert_node_ranks > 0 && !tws_config_two_steps(c),
       "it needs from 2 ranks to less than twinspeed.expert_parallel_size has"},
      {"twinspeed.expert_dispatch_fp8", c->expert_dispatch_fp8 && c->expert_ranks < 2,
       "it needs twinspeed.expert_parallel_size above 1"},
      {"twinspeed.sequence_algorithm", c->sequence_ranks < 2 && c->sequence_algorithm != TWS_SEQUENCE_ULYSSES,
       "it needs sequence_parallel_size above 1"},
      {"twinspeed.tensor_overlap_chunks", !(tensor && c->tensor_overlap) && c->tensor_chunks != 2,
       "it needs tensor_parallel.tp_overlap_comm, and tensor_parallel.autotp_size above 1"},
      {"bf16.bf16_master_weights_and_grads", c->bf16_masters && c->dtype != TWS_BF16, "it needs bf16.enabled"},
      {"bf16.bf16_optimizer_states", c->bf16_moments && !tws_config_bf16_moments(c),
       "it needs bf16.enabled and bf16.bf16_master_weights_and_grads"},
      {"twinspeed.stochastic_rounding", !c->stochastic_rounding && !tws_config_bf16_masters(c),
       "it needs bf16.bf16_master_weights_and_grads: masters in float32 are rounded to nearest"},
      {"optimizer.params.betas", cycles && (c->beta1 != optimizer->beta1 || c->beta2 != optimizer->beta2),
       "OneCycle sets them, unless scheduler.params.cycle_momentum is false"},
      {"zero_optimization.offload_param.device", c->zero.offload_param && c->zero.stage != 3,
       "parameters are offloaded at stage 3 alone"},
      {"zero_optimization.offload_optimizer.device", c->zero.offload_optimizer && c->zero.stage == 0,
       "the optimizer is offloaded at stages 1 to 3"},
      {"zero_optimization.offload_optimizer.pin_memory",
       !c->zero.offload_optimizer_pinned && !(c->zero.offload_optimizer && c->zero.stage > 0),
       "the optimizer is not offloaded"},
      {"twinspeed.axis_order", alone && strcmp(tws_axis_order_text(&c->axis_order, order), TWS_AXIS_ORDER_DEFAULT) != 0,
       "all ranks are data-parallel"},
  };
  for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
    if (rows[i].idle && strcmp(rows[i].path, path) == 0) return rows[i].reason;
  return idle_type(c, path);
}

static void report_place(report *r, const tws_walk *walk, const cJSON *item) {
  int line, column;
  tws_json_place(walk->source->json, item, &line, &column);
  if (walk->source->command_line)
    tws_text_add(r->out, "command line: ");
  else
    tws_text_add(r->out, "%s:%d:%d: ", walk->source->json->name, line, column);
  r->count++;
}

static tws_code report_ignored(tws_walk *walk, const cJSON *item, const char *hint) {
  char path[400];
  tws_key_join(walk->segments, walk->n, path, sizeof path);
  report_place(walk->user, walk, item);
  tws_text_add(((report *)walk->user)->out, "unknown key \"%s\" has no effect: DeepSpeed does not read it either%s%s\n",
               path, *hint ? "; " : "", hint);
  return TWS_OK;
}

static int is_default(const tws_walk *walk, const tws_key *key, const cJSON *item) {
  if (tws_given_auto((tws_given){item, walk->source}) && (key->automatic || tws_key_lax_section(walk->segments[0])))
    return 1;
  cJSON *fallback = key->fallback ? cJSON_Parse(key->fallback) : NULL;
  const int same = fallback && cJSON_Compare(item, fallback, 1);
  cJSON_Delete(fallback);
  return same;
}

/* Returns 1 if a key without effect need not be reported: its value is the default, or its section is switched off. */
static int says_nothing(const tws_walk *walk, const tws_key *key, const cJSON *item) {
  char path[160];
  if (is_default(walk, key, item)) return 1;
  if (walk->n < 2 || tws_section_switches(key->path)) return 0;
  snprintf(path, sizeof path, "%.100s.enabled", walk->segments[0]);
  return tws_key_at(path) && !tws_given_true(tws_store_at(walk->store, path));
}

/* Returns 1 if the epsilon of an update is 0: the update divides by the root of the second moment plus epsilon, which
 * is 0/0 for elements whose gradients are all 0. */
static int divides_by_zero(const tws_config *c, const char *path) {
  const tws_optimizer_row *row = tws_optimizer_of(c->optimizer);
  return strcmp(path, "optimizer.params.eps") == 0 && tws_optimizer_has_argument(row, "eps") &&
         c->epsilon < (double)FLT_MIN;
}

/* Returns 1 if gradients are reduced in half precision without a loss scale that would prevent underflow. */
static int reduces_unscaled(const tws_config *c, const char *path) {
  const int type = strcmp(path, "communication_data_type") == 0                ? c->communication_dtype
                   : strcmp(path, "seq_parallel_communication_data_type") == 0 ? c->sequence_communication
                                                                               : 0;
  return type == 1 + TWS_F16 && tws_config_communication_dtype(c) == TWS_F16 && c->dtype != TWS_F16;
}

static tws_code report_key(tws_walk *walk, const tws_key *key, const cJSON *item) {
  report *r = walk->user;
  if (reduces_unscaled(r->config, key->path) && !idle_reason(r->config, key->path)) {
    report_place(r, walk, item);
    tws_text_add(r->out,
                 "\"%s\" is fp16, and without fp16.enabled there is no loss scale: gradients below 6e-8 become 0, and "
                 "beyond 65504 a step is skipped; bf16 has their range\n",
                 key->path);
    return TWS_OK;
  }
  if (divides_by_zero(r->config, key->path)) {
    report_place(r, walk, item);
    tws_text_add(r->out,
                 "\"%s\" %g is 0 in float32: a weight whose gradients are all 0 becomes NaN; the usual value is 1e-8\n",
                 key->path, r->config->epsilon);
    return TWS_OK;
  }
  char path[400];
  const char *reason = key->reason;
  tws_given type = tws_store_at(walk->store, "scheduler.type");
  tws_given zero = tws_store_at(walk->store, "zero_optimization");
  if (strncmp(key->path, "scheduler.params.", 17) == 0 && !type.item) reason = "scheduler.type is not given";
  if (strcmp(key->path, "allgather_size") == 0 && !cJSON_IsBool(zero.item))
    reason = "it goes with the old boolean form of zero_optimization";
  if (strcmp(key->path, "scheduler.params.warmup_type") == 0 && cJSON_IsString(item) &&
      tws_key_word("log|linear", item->valuestring, 0) < 0)
    reason = "only log and linear are known, and log is used";
  if (!reason) reason = idle_reason(r->config, key->path);
  if (!reason && !is_default(walk, key, item)) reason = tws_key_no_effect_reason(r->config, key);
  if (!reason && !key->moved_to) return TWS_OK;
  if (reason == key->reason && says_nothing(walk, key, item)) return TWS_OK;
  tws_key_join(walk->segments, walk->n, path, sizeof path);
  report_place(r, walk, item);
  if (reason)
    tws_text_add(r->out, "\"%s\" has no effect: %s\n", path, reason);
  else
    tws_text_add(r->out, "\"%s\" is an old key: use \"%s\"\n", path, key->moved_to);
  return TWS_OK;
}

/* Reports sections whose presence enables a feature that Twinspeed does not have, unless one of their keys was
 * reported. */
static void report_sections(report *r, const tws_config *config) {
  const tws_key *first;
  const char *section;
  for (int i = 0; (section = tws_section_switch(i, &first)); i++) {
    char key[64];
    snprintf(key, sizeof key, "\"%s.", section);
    if (!tws_store_has(config->store, section) || (r->out->data && strstr(r->out->data, key))) continue;
    const tws_given given = tws_store_at(config->store, section);
    int line, column;
    tws_json_place(given.source->json, given.item, &line, &column);
    if (given.item)
      tws_text_add(r->out, "%s:%d:%d: ", given.source->json->name, line, column);
    else
      tws_text_add(r->out, "command line: ");
    tws_text_add(r->out, "\"%s\" has no effect, though the section alone switches it on: %s\n", section, first->reason);
    r->count++;
  }
}

tws_code tws_config_no_effect(const tws_config *config, tws_text *out, int *count, tws_error *err) {
  report r = {config, out, 0};
  tws_walk walk = {.store = config->store, .err = err, .visit = report_key, .ignored = report_ignored, .user = &r};
  TWS_TRY(tws_store_walk_all(&walk));
  report_sections(&r, config);
  *count = r.count;
  return out->failed ? tws_fail(err, TWS_MEMORY, NULL, "configuration: out of memory") : TWS_OK;
}
