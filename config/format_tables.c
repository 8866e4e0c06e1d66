/* Defines the tables of Hugging Face's formats (accelerate, Trainer), of programs that build on them (axolotl,
 * LLaMA-Factory), and of DeepSpeed's own format. */
#include <stdio.h>
#include <string.h>

#include "config/format_rows.h"

static int is_true(const cJSON *root, const char *path) {
  return cJSON_IsTrue(tws_tree_at(root, path));
}

static void put_integer(cJSON *root, const char *path, int64_t value) {
  char text[32];
  snprintf(text, sizeof text, "%lld", (long long)value);
  tws_tree_put_text(root, path, text);
}

/* ---- accelerate ---- */

static const tws_format_row accelerate_rows[] = {
    {TWS_SETTING_STAGE, "deepspeed_config.zero_stage", NULL},
    {TWS_SETTING_STEPS, "deepspeed_config.gradient_accumulation_steps", NULL},
    {TWS_SETTING_CLIPPING, "deepspeed_config.gradient_clipping", NULL},
    {TWS_SETTING_OPTIMIZER_PLACE, "deepspeed_config.offload_optimizer_device", NULL},
    {TWS_SETTING_PARAMETER_PLACE, "deepspeed_config.offload_param_device", NULL},
    {TWS_SETTING_TYPE, "mixed_precision", "bf16=bf16|fp16=fp16|fp32=no"},
    {TWS_SETTING_RANKS, "num_processes", NULL},
};

static void write_processes(const tws_format_shape *shape, cJSON *root) {
  tws_tree_put_text(root, "compute_environment", "LOCAL_MACHINE");
  put_integer(root, "num_processes", shape->ranks);
  put_integer(root, "num_machines", shape->nodes);
  put_integer(root, "machine_rank", 0);
  tws_tree_put_text(root, "main_training_function", "main");
}

static void write_accelerate(const tws_settings *s, const tws_format_shape *shape, cJSON *root) {
  tws_tree_put_text(root, "distributed_type", "DEEPSPEED");
  tws_tree_put_text(root, "deepspeed_config.zero3_init_flag",
                    tws_setting_is(s, TWS_SETTING_STAGE, "3") ? "true" : "false");
  write_processes(shape, root);
}

static void read_accelerate(const cJSON *root, tws_settings *s) {
  (void)root;
  /* sets accelerate's default type, float32 (the rows refuse "fp8", since no runtime of accelerate's has products in
   * 8 bits) */
  if (!s->text[TWS_SETTING_TYPE][0]) tws_setting_put(s, TWS_SETTING_TYPE, "fp32");
  /* this is accelerate's default stage */
  if (!s->text[TWS_SETTING_STAGE][0]) tws_setting_put(s, TWS_SETTING_STAGE, "2");
}

static int holds_accelerate(const tws_settings *s, tws_setting setting) {
  (void)s;
  return setting == TWS_SETTING_RANKS ? 0 : -1;
}

static const char *const accelerate_known[] = {"compute_environment",
                                               "distributed_type",
                                               "num_machines",
                                               "machine_rank",
                                               "main_training_function",
                                               "deepspeed_config.zero3_init_flag",
                                               NULL};
const tws_format_table tws_format_accelerate = {accelerate_rows,
                                                sizeof accelerate_rows / sizeof *accelerate_rows,
                                                write_accelerate,
                                                read_accelerate,
                                                holds_accelerate,
                                                accelerate_known,
                                                NULL,
                                                NULL};

static const tws_format_row fsdp_rows[] = {
    {TWS_SETTING_TYPE, "mixed_precision", "bf16=bf16|fp16=fp16|fp32=no"},
    {TWS_SETTING_RANKS, "num_processes", NULL},
};

static void write_fsdp(const tws_settings *s, const tws_format_shape *shape, cJSON *root) {
  const int64_t stage = tws_setting_integer(s, TWS_SETTING_STAGE, 3);
  tws_tree_put_text(root, "distributed_type", stage > 1 ? "FSDP" : "MULTI_GPU");
  write_processes(shape, root);
  if (stage < 2) return;
  tws_tree_put_text(root, "fsdp_config.fsdp_version", "2");
  tws_tree_put_text(root, "fsdp_config.fsdp_auto_wrap_policy", "TRANSFORMER_BASED_WRAP");
  tws_tree_put_text(root, "fsdp_config.fsdp_reshard_after_forward", stage == 3 ? "true" : "false");
  tws_tree_put_text(root, "fsdp_config.fsdp_offload_params",
                    tws_setting_is(s, TWS_SETTING_PARAMETER_PLACE, "cpu") ? "true" : "false");
  tws_tree_put_text(root, "fsdp_config.fsdp_activation_checkpointing",
                    tws_setting_is(s, TWS_SETTING_RECOMPUTE, "full") ? "true" : "false");
}

static void read_fsdp(const cJSON *root, tws_settings *s) {
  char text[64];
  int stage = 3;
  if (!s->text[TWS_SETTING_TYPE][0]) tws_setting_put(s, TWS_SETTING_TYPE, "fp32");
  if (tws_tree_text(root, "distributed_type", text, sizeof text) && strcmp(text, "FSDP") != 0) stage = 0;
  const int given = tws_tree_text(root, "fsdp_config.fsdp_reshard_after_forward", text, sizeof text) ||
                    tws_tree_text(root, "fsdp_config.fsdp_sharding_strategy", text, sizeof text);
  if (given && (!strcmp(text, "false") || !strcmp(text, "SHARD_GRAD_OP") || !strcmp(text, "2"))) stage = stage ? 2 : 0;
  if (given && (!strcmp(text, "NO_SHARD") || !strcmp(text, "3"))) stage = 0;
  tws_setting_put(s, TWS_SETTING_STAGE, "%d", stage);
  if (stage > 0) tws_setting_put(s, TWS_SETTING_OVERLAP, "true");
  if (is_true(root, "fsdp_config.fsdp_activation_checkpointing")) tws_setting_put(s, TWS_SETTING_RECOMPUTE, "full");
  if (stage < 3 || !is_true(root, "fsdp_config.fsdp_offload_params")) return;
  tws_setting_put(s, TWS_SETTING_OPTIMIZER_PLACE, "cpu");
  tws_setting_put(s, TWS_SETTING_PARAMETER_PLACE, "cpu");
}

static int holds_fsdp(const tws_settings *s, tws_setting setting) {
  const char *value = s->text[setting];
  const int offloads = tws_setting_is(s, TWS_SETTING_PARAMETER_PLACE, "cpu");
  const int shards = tws_setting_integer(s, TWS_SETTING_STAGE, 0) > 1;
  switch (setting) {
    case TWS_SETTING_STAGE:
      return strcmp(value, "1") != 0;
    case TWS_SETTING_OVERLAP:
      return strcmp(value, "true") == 0;
    case TWS_SETTING_RECOMPUTE:
      return strcmp(value, "none") == 0 || (shards && strcmp(value, "full") == 0);
    case TWS_SETTING_OPTIMIZER_PLACE:
    case TWS_SETTING_PARAMETER_PLACE:
      return strcmp(value, "none") == 0 ? !offloads : strcmp(value, "cpu") == 0 && offloads;
    case TWS_SETTING_RANKS:
      return 0;
    default:
      return -1;
  }
}

static const char *const fsdp_known[] = {"compute_environment",
                                         "distributed_type",
                                         "num_machines",
                                         "machine_rank",
                                         "main_training_function",
                                         "fsdp_config.fsdp_version",
                                         "fsdp_config.fsdp_auto_wrap_policy",
                                         "fsdp_config.fsdp_reshard_after_forward",
                                         "fsdp_config.fsdp_sharding_strategy",
                                         "fsdp_config.fsdp_offload_params",
                                         "fsdp_config.fsdp_activation_checkpointing",
                                         NULL};
const tws_format_table tws_format_accelerate_fsdp = {
    fsdp_rows, sizeof fsdp_rows / sizeof *fsdp_rows, write_fsdp, read_fsdp, holds_fsdp, fsdp_known, NULL, NULL};

/* ---- Hugging Face's Trainer, axolotl, LLaMA-Factory: files of these formats can only be read ---- */

#define TRAINER_ROWS                                                                                   \
  {TWS_SETTING_STEPS, "gradient_accumulation_steps", NULL}, {TWS_SETTING_RATE, "learning_rate", NULL}, \
      {TWS_SETTING_DECAY, "weight_decay", NULL}, {TWS_SETTING_EPSILON, "adam_epsilon", NULL},          \
      {TWS_SETTING_CLIPPING, "max_grad_norm", NULL}, {                                                 \
    TWS_SETTING_RECOMPUTE, "gradient_checkpointing", "full=true|none=false"                            \
  }

static const tws_format_row trainer_rows[] = {{TWS_SETTING_MICRO, "per_device_train_batch_size", NULL}, TRAINER_ROWS};
static const tws_format_row axolotl_rows[] = {{TWS_SETTING_MICRO, "micro_batch_size", NULL},
                                              {TWS_SETTING_SEQUENCE, "sequence_len", NULL},
                                              {TWS_SETTING_TENSOR, "tensor_parallel_size", NULL},
                                              {TWS_SETTING_SHARERS, "context_parallel_size", NULL},
                                              {TWS_SETTING_LORA_R, "lora_r", NULL},
                                              {TWS_SETTING_LORA_ALPHA, "lora_alpha", NULL},
                                              TRAINER_ROWS};
static const tws_format_row factory_rows[] = {{TWS_SETTING_MICRO, "per_device_train_batch_size", NULL},
                                              {TWS_SETTING_SEQUENCE, "cutoff_len", NULL},
                                              {TWS_SETTING_LORA_R, "lora_rank", NULL},
                                              {TWS_SETTING_LORA_ALPHA, "lora_alpha", NULL},
                                              TRAINER_ROWS};

/* The Trainer's words for optimizers that this program has: its `optim`, which axolotl calls `optimizer`. The memory of
 * paged 32-bit states is not told apart from that of others. */
static const char *trainer_optimizer(const cJSON *root, const char *path) {
  static const char *const words[][2] = {
      {"adamw_torch", "AdamW"},      {"adamw_torch_fused", "AdamW"},  {"adamw_hf", "AdamW"},
      {"adamw_apex_fused", "AdamW"}, {"adamw_bnb_8bit", "AdamW8bit"}, {"adamw_8bit", "AdamW8bit"},
      {"paged_adamw", "AdamW"},      {"paged_adamw_32bit", "AdamW"},  {"paged_adamw_8bit", "PagedAdamW8bit"},
      {"lion_32bit", "Lion"},        {"paged_lion_32bit", "Lion"},    {"sgd", "SGD"},
      {"adagrad", "Adagrad"}};
  char text[64];
  if ((strcmp(path, "optim") != 0 && strcmp(path, "optimizer") != 0) || !tws_tree_text(root, path, text, sizeof text))
    return NULL;
  for (size_t i = 0; i < sizeof words / sizeof *words; i++)
    if (strcmp(words[i][0], text) == 0) return words[i][1];
  return NULL;
}

static int reads_optimizer(const cJSON *root, const char *path) {
  return trainer_optimizer(root, path) != NULL;
}

/* Reads the optimizer. Of one with 8-bit states the Trainer gives embeddings 32 bits. Only optimizers of another update
 * or memory than AdamW are set, so that the others leave what PyTorch allocates in a step to the runtime. */
static void read_optimizer(const cJSON *root, tws_settings *s) {
  const char *type = trainer_optimizer(root, "optim");
  if (!type) type = trainer_optimizer(root, "optimizer");
  if (!type || strcmp(type, "AdamW") == 0) return;
  tws_setting_put(s, TWS_SETTING_OPTIMIZER, "%s", type);
  if (strcmp(type, "SGD") == 0 || strcmp(type, "Lion") == 0) s->text[TWS_SETTING_EPSILON][0] = '\0';
  if (strstr(type, "8bit"))
    tws_setting_put(s, TWS_SETTING_GROUPS, "[{\"params\": \"embeddings\", \"optim_bits\": 32}]");
}

/* Reads the data types, which all three formats state alike, and sets the Trainer's defaults for settings that the file
 * omits. */
static void read_trainer(const cJSON *root, tws_settings *s) {
  char text[160];
  const int bf16 = is_true(root, "bf16") || (tws_tree_text(root, "bf16", text, sizeof text) && !strcmp(text, "auto"));
  const int fp16 = is_true(root, "fp16") || is_true(root, "load_in_16bit");
  tws_setting_put(s, TWS_SETTING_TYPE, "%s", bf16 ? "bf16" : fp16 ? "fp16" : "fp32");
  if (!s->text[TWS_SETTING_MICRO][0]) tws_setting_put(s, TWS_SETTING_MICRO, "8");
  if (!s->text[TWS_SETTING_STEPS][0]) tws_setting_put(s, TWS_SETTING_STEPS, "1");
  read_optimizer(root, s);
  int stage = 0;
  if (tws_tree_text(root, "fsdp", text, sizeof text) && *text)
    stage = strstr(text, "shard_grad_op") ? 2 : strstr(text, "no_shard") ? 0 : 3;
  if (cJSON_IsObject(tws_tree_at(root, "fsdp_config"))) stage = stage ? stage : 3;
  tws_setting_put(s, TWS_SETTING_STAGE, "%d", stage);
  if (tws_tree_text(root, "deepspeed.zero_optimization.stage", text, sizeof text))
    tws_setting_put(s, TWS_SETTING_STAGE, "%s", text);
  static const struct {
    const char *path;
    tws_setting setting;
  } places[] = {{"deepspeed.zero_optimization.offload_optimizer.device", TWS_SETTING_OPTIMIZER_PLACE},
                {"deepspeed.zero_optimization.offload_param.device", TWS_SETTING_PARAMETER_PLACE}};
  for (size_t i = 0; i < 2; i++)
    if (tws_tree_text(root, places[i].path, text, sizeof text)) tws_setting_put(s, places[i].setting, "%s", text);
}

/* Reads the modules that get LoRA adapters, by name; "all" means all linear layers of the decoder. */
static void read_targets(const cJSON *root, const char *path, tws_settings *s) {
  const cJSON *list = tws_tree_at(root, path);
  char text[160];
  char *printed = cJSON_IsArray(list) ? cJSON_PrintUnformatted(list) : NULL;
  if (printed && strlen(printed) < TWS_SETTING_TEXT) tws_setting_put(s, TWS_SETTING_TARGETS, "%s", printed);
  cJSON_free(printed);
  if (!tws_tree_text(root, path, text, sizeof text)) return;
  if (strcmp(text, "all") == 0) {
    tws_setting_put(s, TWS_SETTING_TARGETS, "all-linear");
    return;
  }
  tws_text names = {0};
  for (char *rest = text, *name; (name = strsep(&rest, ", "));)
    if (*name) tws_text_add(&names, "%s\"%s\"", names.length ? "," : "", name);
  if (names.length + 3 < TWS_SETTING_TEXT && !strchr(text, '"'))
    tws_setting_put(s, TWS_SETTING_TARGETS, "[%s]", names.data);
  tws_text_free(&names);
}

static void drop_adapters(tws_settings *s) {
  s->text[TWS_SETTING_LORA_R][0] = s->text[TWS_SETTING_LORA_ALPHA][0] = s->text[TWS_SETTING_TARGETS][0] = '\0';
}

static void read_axolotl(const cJSON *root, tws_settings *s) {
  char adapter[32];
  if (!s->text[TWS_SETTING_MICRO][0]) tws_setting_put(s, TWS_SETTING_MICRO, "1");
  read_trainer(root, s);
  tws_tree_text(root, "adapter", adapter, sizeof adapter);
  if (is_true(root, "load_in_4bit") || strcmp(adapter, "qlora") == 0) tws_setting_put(s, TWS_SETTING_FROZEN, "nf4");
  if (is_true(root, "load_in_8bit")) tws_setting_put(s, TWS_SETTING_FROZEN, "int8");
  if (strcmp(adapter, "lora") != 0 && strcmp(adapter, "qlora") != 0) {
    drop_adapters(s);
    s->text[TWS_SETTING_FROZEN][0] = '\0';
    return;
  }
  read_targets(root, "lora_target_modules", s);
  if (is_true(root, "lora_target_linear")) tws_setting_put(s, TWS_SETTING_TARGETS, "all-linear");
}

static void read_factory(const cJSON *root, tws_settings *s) {
  char kind[32] = "lora", bits[16];
  read_trainer(root, s);
  const int given = tws_tree_text(root, "finetuning_type", kind, sizeof kind);
  if (given && strcmp(kind, "lora") != 0) {
    drop_adapters(s);
    return;
  }
  if (!s->text[TWS_SETTING_LORA_R][0]) tws_setting_put(s, TWS_SETTING_LORA_R, "8");
  if (!s->text[TWS_SETTING_LORA_ALPHA][0])
    tws_setting_put(s, TWS_SETTING_LORA_ALPHA, "%lld", 2 * (long long)tws_setting_integer(s, TWS_SETTING_LORA_R, 8));
  tws_setting_put(s, TWS_SETTING_TARGETS, "all-linear");
  read_targets(root, "lora_target", s);
  if (!tws_tree_text(root, "quantization_bit", bits, sizeof bits)) return;
  if (strcmp(bits, "4") == 0) tws_setting_put(s, TWS_SETTING_FROZEN, "nf4");
  if (strcmp(bits, "8") == 0) tws_setting_put(s, TWS_SETTING_FROZEN, "int8");
}

#define TRAINER_KNOWN "bf16", "fp16", "fsdp"
static const char *const trainer_known[] = {TRAINER_KNOWN, NULL};
static const char *const axolotl_known[] = {
    TRAINER_KNOWN, "adapter", "load_in_4bit", "load_in_8bit", "lora_target_modules", "lora_target_linear",
    "base_model",  NULL};
static const char *const factory_known[] = {TRAINER_KNOWN,      "finetuning_type",    "lora_target",
                                            "quantization_bit", "model_name_or_path", NULL};
#define READ_ALONE(rows, read, known) \
  { rows, sizeof rows / sizeof *rows, NULL, read, NULL, known, reads_optimizer, NULL }
const tws_format_table tws_format_trainer = READ_ALONE(trainer_rows, read_trainer, trainer_known);
const tws_format_table tws_format_axolotl = READ_ALONE(axolotl_rows, read_axolotl, axolotl_known);
const tws_format_table tws_format_llama_factory = READ_ALONE(factory_rows, read_factory, factory_known);

/* ---- DeepSpeed ---- */

/* Rows for DeepSpeed's keys. Settings whose key is in Twinspeed's own section "twinspeed" have no row. */
static const tws_format_row deepspeed_rows[] = {
#define X(name, key, words) {TWS_SETTING_##name, key, NULL},
#include "config/settings.def"
#undef X
};

static void write_deepspeed(const tws_settings *s, const tws_format_shape *shape, cJSON *root) {
  tws_tree_put_text(root, "bf16.enabled", tws_setting_is(s, TWS_SETTING_TYPE, "bf16") ? "true" : "false");
  tws_tree_put_text(root, "fp16.enabled", tws_setting_is(s, TWS_SETTING_TYPE, "fp16") ? "true" : "false");
  /* DeepSpeed counts all ranks as replicas when it checks the batch, so the key is omitted if ranks share a model */
  if (shape->replicas != shape->ranks) cJSON_DeleteItemFromObjectCaseSensitive(root, "train_batch_size");
  /* DeepSpeed asserts that states on a disk have a folder; its documentation names this one as the default */
  const char *folder = shape->disk ? shape->disk : "/local_nvme";
  if (tws_setting_is(s, TWS_SETTING_OPTIMIZER_PLACE, "nvme"))
    tws_tree_put_text(root, "zero_optimization.offload_optimizer.nvme_path", folder);
  if (tws_setting_is(s, TWS_SETTING_PARAMETER_PLACE, "nvme"))
    tws_tree_put_text(root, "zero_optimization.offload_param.nvme_path", folder);
}

static int holds_deepspeed(const tws_settings *s, tws_setting setting) {
  const char *key = tws_setting_key(setting);
  if (setting == TWS_SETTING_TYPE) return 1;
  if (setting == TWS_SETTING_GROUPS) return 0; /* DeepSpeed ignores the key */
  if (setting == TWS_SETTING_SCHEDULE) return tws_setting_is(s, setting, "1f1b");
  return strncmp(key, "twinspeed.", 10) != 0;
}

const tws_format_table tws_format_deepspeed = {deepspeed_rows,
                                               sizeof deepspeed_rows / sizeof *deepspeed_rows,
                                               write_deepspeed,
                                               NULL,
                                               holds_deepspeed,
                                               NULL,
                                               NULL,
                                               NULL};
