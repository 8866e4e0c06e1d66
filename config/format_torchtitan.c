/* Defines the table of torchtitan's configuration (torchtitan/config/job_config.py of 000204a). */
#include <stdio.h>
#include <string.h>

#include "config/format_rows.h"

#define MODES "none=none|full=full|operations=selective"
static const tws_format_row rows[] = {
    {TWS_SETTING_BATCH, "training.global_batch_size", NULL},
    {TWS_SETTING_SEQUENCE, "training.seq_len", NULL},
    {TWS_SETTING_TYPE, "training.mixed_precision_param", "bf16=bfloat16|fp32=float32"},
    {TWS_SETTING_CLIPPING, "training.max_norm", NULL},
    {TWS_SETTING_PIPELINE, "parallelism.pipeline_parallel_degree", NULL},
    {TWS_SETTING_SCHEDULE, "parallelism.pipeline_parallel_schedule",
     "1f1b=1F1B|gpipe=GPipe|interleaved=Interleaved1F1B"},
    {TWS_SETTING_TENSOR, "parallelism.tensor_parallel_degree", NULL},
    {TWS_SETTING_TENSOR_OVERLAP, "parallelism.enable_async_tensor_parallel", NULL},
    {TWS_SETTING_SHARERS, "parallelism.context_parallel_degree", NULL},
    {TWS_SETTING_EXPERTS, "parallelism.expert_parallel_degree", NULL},
    {TWS_SETTING_RECOMPUTE, "activation_checkpoint.mode", MODES},
    {TWS_SETTING_OPTIMIZER, "optimizer.name", "AdamW=AdamW|Adam=Adam"},
    {TWS_SETTING_RATE, "optimizer.lr", NULL},
    {TWS_SETTING_EPSILON, "optimizer.eps", NULL},
    {TWS_SETTING_DECAY, "optimizer.weight_decay", NULL},
};

static void put_integer(cJSON *root, const char *path, int64_t value) {
  char text[32];
  snprintf(text, sizeof text, "%lld", (long long)value);
  tws_tree_put_text(root, path, text);
}

/* Writes the converter of linear layers to products in 8 bits, whose scales are always those of current values. */
static void write_converters(const tws_settings *s, cJSON *root) {
  const int whole =
      tws_setting_is(s, TWS_SETTING_MATMUL, "fp8") && tws_setting_is(s, TWS_SETTING_FP8_RECIPE, "tensorwise");
  const int rows_too = tws_setting_is(s, TWS_SETTING_MATMUL, "fp8-rowwise");
  if (whole || rows_too) {
    tws_tree_put_text(root, "model.converters", "[\"float8\"]");
    tws_tree_put_text(root, "float8.recipe_name", whole ? "tensorwise" : "rowwise");
  }
  if (tws_setting_is(s, TWS_SETTING_MATMUL, "mxfp8")) tws_tree_put_text(root, "model.converters", "[\"mx\"]");
}

static void write_rules(const tws_settings *s, const tws_format_shape *shape, cJSON *root) {
  const int64_t stage = tws_setting_integer(s, TWS_SETTING_STAGE, 0);
  const int64_t group = tws_setting_integer(s, TWS_SETTING_MICS, 0);
  const int64_t micro = tws_setting_integer(s, TWS_SETTING_MICRO, 1),
                steps = tws_setting_integer(s, TWS_SETTING_STEPS, 1);
  const int64_t pipeline = tws_setting_integer(s, TWS_SETTING_PIPELINE, 1);
  const int64_t chunks = tws_setting_integer(s, TWS_SETTING_CHUNKS, 1);
  double betas[2];
  put_integer(root, "training.local_batch_size", pipeline > 1 ? micro * steps : micro);
  if (pipeline > 1) put_integer(root, "parallelism.pipeline_parallel_microbatch_size", micro);
  if (chunks > 1)
    put_integer(root, "parallelism.pipeline_parallel_layers_per_stage", shape->layers / (pipeline * chunks));
  const int whole = stage < 2, grouped = stage == 3 && group > 0;
  put_integer(root, "parallelism.data_parallel_replicate_degree",
              whole     ? shape->replicas
              : grouped ? shape->replicas / group
                        : 1);
  put_integer(root, "parallelism.data_parallel_shard_degree", whole ? 1 : grouped ? group : -1);
  if (!whole) tws_tree_put_text(root, "parallelism.fsdp_reshard_after_forward", stage == 3 ? "always" : "never");
  if (tws_setting_is(s, TWS_SETTING_PARAMETER_PLACE, "cpu"))
    tws_tree_put_text(root, "training.enable_cpu_offload", "true");
  if (tws_setting_is(s, TWS_SETTING_RECOMPUTE, "operations"))
    tws_tree_put_text(root, "activation_checkpoint.selective_ac_option", "op");
  write_converters(s, root);
  if (!tws_setting_pair(s, TWS_SETTING_BETAS, betas)) return;
  for (int i = 0; i < 2; i++) {
    char text[40];
    snprintf(text, sizeof text, "%.9g", betas[i]);
    tws_tree_put_text(root, i ? "optimizer.beta2" : "optimizer.beta1", text);
  }
}

static int64_t integer_at(const cJSON *root, const char *path, int64_t otherwise) {
  const cJSON *item = tws_tree_at(root, path);
  return cJSON_IsNumber(item) && item->valuedouble > -1e15 && item->valuedouble < 1e15 ? (int64_t)item->valuedouble
                                                                                       : otherwise;
}

/* Returns 1 if the model's converters include one of this name, which later versions write as quantize.linear.NAME. */
static int converts(const cJSON *root, const char *name) {
  const cJSON *item;
  cJSON_ArrayForEach(item, tws_tree_at(root, "model.converters")) {
    const char *word = cJSON_IsString(item) ? item->valuestring : "";
    const char *last = strrchr(word, '.');
    if (strcmp(last ? last + 1 : word, name) == 0) return 1;
  }
  return 0;
}

/* Reads the recipe of scales in 8 bits from either of the places where versions have it. */
static int read_recipe(const cJSON *root, char *text, size_t size) {
  return tws_tree_text(root, "float8.recipe_name", text, size) ||
         tws_tree_text(root, "quantize.linear.float8.recipe_name", text, size);
}

static void read_converters(const cJSON *root, tws_settings *s) {
  char recipe[64];
  if (converts(root, "mx")) tws_setting_put(s, TWS_SETTING_MATMUL, "mxfp8");
  if (!converts(root, "float8")) return;
  const int by_rows = read_recipe(root, recipe, sizeof recipe) && strncmp(recipe, "rowwise", 7) == 0;
  tws_setting_put(s, TWS_SETTING_MATMUL, "%s", by_rows ? "fp8-rowwise" : "fp8");
  if (!by_rows) tws_setting_put(s, TWS_SETTING_FP8_RECIPE, "tensorwise");
}

static void explain(const cJSON *root, tws_text *out) {
  char recipe[64];
  if (converts(root, "float8") && read_recipe(root, recipe, sizeof recipe) && strcmp(recipe, "rowwise_with_gw_hp") == 0)
    tws_text_add(out,
                 "recipe_name rowwise_with_gw_hp is taken as rowwise: gradients of weights are products in 8 bits");
}

static void read_rules(const cJSON *root, tws_settings *s) {
  char text[64], beta[2][64];
  const int64_t shard = integer_at(root, "parallelism.data_parallel_shard_degree", -1);
  const int64_t pipeline = tws_setting_integer(s, TWS_SETTING_PIPELINE, 1);
  int never =
      tws_tree_text(root, "parallelism.fsdp_reshard_after_forward", text, sizeof text) && !strcmp(text, "never");
  /* "default": with a pipeline, gathered parameters are not resharded after the forward pass */
  if (!strcmp(text, "default") || !*text) never = pipeline > 1;
  const int stage = shard == 1 ? 0 : never ? 2 : 3;
  tws_setting_put(s, TWS_SETTING_STAGE, "%d", stage);
  if (stage == 3 && shard > 1) tws_setting_put(s, TWS_SETTING_MICS, "%lld", (long long)shard);
  if (stage > 0 && pipeline < 2) tws_setting_put(s, TWS_SETTING_OVERLAP, "true");
  tws_setting_put(
      s, TWS_SETTING_MICRO, "%lld",
      (long long)integer_at(
          root, pipeline > 1 ? "parallelism.pipeline_parallel_microbatch_size" : "training.local_batch_size",
          pipeline > 1 ? 1 : 8));
  if (tws_setting_integer(s, TWS_SETTING_BATCH, -1) < 1) s->text[TWS_SETTING_BATCH][0] = '\0';
  if (!s->text[TWS_SETTING_BATCH][0] && pipeline > 1)
    tws_setting_put(
        s, TWS_SETTING_STEPS, "%lld",
        (long long)(integer_at(root, "training.local_batch_size", 8) /
                    (tws_setting_integer(s, TWS_SETTING_MICRO, 1) > 0 ? tws_setting_integer(s, TWS_SETTING_MICRO, 1)
                                                                      : 1)));
  if (pipeline < 2) s->text[TWS_SETTING_SCHEDULE][0] = '\0';
  if (tws_setting_is(s, TWS_SETTING_SCHEDULE, "interleaved")) tws_setting_put(s, TWS_SETTING_CHUNKS, "2");
  if (tws_setting_integer(s, TWS_SETTING_TENSOR, 1) > 1) tws_setting_put(s, TWS_SETTING_TOKENS, "true");
  if (tws_setting_integer(s, TWS_SETTING_SHARERS, 1) > 1) tws_setting_put(s, TWS_SETTING_ALGORITHM, "ring");
  if (!s->text[TWS_SETTING_TYPE][0]) tws_setting_put(s, TWS_SETTING_TYPE, "bf16");
  if (!s->text[TWS_SETTING_SEQUENCE][0]) tws_setting_put(s, TWS_SETTING_SEQUENCE, "2048");
  if (cJSON_IsTrue(tws_tree_at(root, "training.enable_cpu_offload")) && stage == 3) {
    tws_setting_put(s, TWS_SETTING_OPTIMIZER_PLACE, "cpu");
    tws_setting_put(s, TWS_SETTING_PARAMETER_PLACE, "cpu");
  }
  read_converters(root, s);
  if (tws_tree_text(root, "optimizer.beta1", beta[0], sizeof beta[0]) &&
      tws_tree_text(root, "optimizer.beta2", beta[1], sizeof beta[1]))
    tws_setting_put(s, TWS_SETTING_BETAS, "[%s,%s]", beta[0], beta[1]);
}

static int holds(const tws_settings *s, tws_setting setting) {
  const char *value = s->text[setting];
  const int offloads = tws_setting_is(s, TWS_SETTING_PARAMETER_PLACE, "cpu");
  switch (setting) {
    case TWS_SETTING_STAGE:
      return strcmp(value, "1") != 0;
    case TWS_SETTING_MICRO:
    case TWS_SETTING_STEPS:
    case TWS_SETTING_MICS:
    case TWS_SETTING_BETAS:
      return 1;
    case TWS_SETTING_CHUNKS:
      return strcmp(value, "2") == 0 || strcmp(value, "1") == 0;
    case TWS_SETTING_TOKENS:
    case TWS_SETTING_OVERLAP:
      return strcmp(value, "true") == 0;
    case TWS_SETTING_ALGORITHM:
      return strcmp(value, "ring") == 0;
    case TWS_SETTING_OPTIMIZER_PLACE:
    case TWS_SETTING_PARAMETER_PLACE:
      return strcmp(value, "none") == 0 ? !offloads : strcmp(value, "cpu") == 0 && offloads;
    case TWS_SETTING_TYPE:
      return strcmp(value, "fp16") != 0;
    case TWS_SETTING_MATMUL:
      return strcmp(value, "nvfp4") != 0 && !tws_setting_is(s, TWS_SETTING_FP8_RECIPE, "delayed");
    case TWS_SETTING_FP8_RECIPE:
      return strcmp(value, "tensorwise") == 0;
    default:
      return -1;
  }
}

static const char *const known[] = {"training.local_batch_size",
                                    "parallelism.pipeline_parallel_microbatch_size",
                                    "parallelism.pipeline_parallel_layers_per_stage",
                                    "parallelism.data_parallel_replicate_degree",
                                    "parallelism.data_parallel_shard_degree",
                                    "parallelism.fsdp_reshard_after_forward",
                                    "training.enable_cpu_offload",
                                    "activation_checkpoint.selective_ac_option",
                                    "optimizer.beta1",
                                    "optimizer.beta2",
                                    "model.converters",
                                    "float8.recipe_name",
                                    "quantize.linear.float8.recipe_name",
                                    NULL};

const tws_format_table tws_format_torchtitan = {
    rows, sizeof rows / sizeof *rows, write_rules, read_rules, holds, known, NULL, explain};
