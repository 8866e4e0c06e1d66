/* Defines the tables of Megatron-LM's arguments (megatron/training/arguments.py of 000c4ac), of those that
 * Megatron-DeepSpeed adds to them, and of Megatron-Bridge's configuration. */
#include <stdio.h>
#include <string.h>

#include "base/number.h"
#include "config/format_rows.h"

#define OPTIMIZERS "AdamW=adam|SGD=sgd"
#define ALGORITHMS "ring=p2p|ulysses=a2a"
/* Names of Megatron-Bridge's mixed precision with "_" and with "-"; the first of a type is the one that is written. */
#define NAMED(type, underscores, hyphens) type "=" underscores "|" type "=" hyphens "|"
#define MIXED(type)                                                                                 \
  NAMED(type, type "_mixed", type "-mixed")                                                         \
  NAMED(type, type "_with_fp8_delayed_scaling_mixed", type "-with-fp8-delayed-scaling-mixed")       \
  NAMED(type, type "_with_fp8_current_scaling_mixed", type "-with-fp8-current-scaling-mixed")       \
  NAMED(type, type "_with_fp8_subchannel_scaling_mixed", type "-with-fp8-subchannel-scaling-mixed") \
  NAMED(type, type "_with_mxfp8_mixed", type "-with-mxfp8-mixed")
#define MIXED_WORDS                                                                                                 \
  MIXED("bf16")                                                                                                     \
  MIXED("fp16")                                                                                                     \
  NAMED("bf16", "nemotron_h_bf16_with_fp8_current_scaling_mixed", "nemotron-h-bf16-with-fp8-current-scaling-mixed") \
  NAMED("bf16", "nanov2_bf16_with_fp8_current_scaling_mixed", "nanov2-bf16-with-fp8-current-scaling-mixed")

static const tws_format_row arguments[] = {
    {TWS_SETTING_TENSOR, "tensor_model_parallel_size", NULL},
    {TWS_SETTING_PIPELINE, "pipeline_model_parallel_size", NULL},
    {TWS_SETTING_CHUNKS, "num_virtual_stages_per_pipeline_rank", NULL},
    {TWS_SETTING_SHARERS, "context_parallel_size", NULL},
    {TWS_SETTING_ALGORITHM, "cp_comm_type", ALGORITHMS},
    {TWS_SETTING_EXPERTS, "expert_model_parallel_size", NULL},
    {TWS_SETTING_TOKENS, "sequence_parallel", NULL},
    {TWS_SETTING_TENSOR_OVERLAP, "tp_comm_overlap", NULL},
    {TWS_SETTING_MICRO, "micro_batch_size", NULL},
    {TWS_SETTING_BATCH, "global_batch_size", NULL},
    {TWS_SETTING_SEQUENCE, "seq_length", NULL},
    {TWS_SETTING_OVERLAP, "overlap_grad_reduce", NULL},
    {TWS_SETTING_OPTIMIZER, "optimizer", OPTIMIZERS},
    {TWS_SETTING_RATE, "lr", NULL},
    {TWS_SETTING_EPSILON, "adam_eps", NULL},
    {TWS_SETTING_DECAY, "weight_decay", NULL},
    {TWS_SETTING_CLIPPING, "clip_grad", NULL},
    {TWS_SETTING_RECOMPUTE, "recompute_granularity", "full=full|selective=selective"},
    {TWS_SETTING_OPTIMIZER_PLACE, "optimizer_cpu_offload", "cpu=true|none=false"},
};

static const tws_format_row bridge[] = {
    {TWS_SETTING_TENSOR, "model.tensor_model_parallel_size", NULL},
    {TWS_SETTING_PIPELINE, "model.pipeline_model_parallel_size", NULL},
    {TWS_SETTING_CHUNKS, "model.virtual_pipeline_model_parallel_size", NULL},
    {TWS_SETTING_SHARERS, "model.context_parallel_size", NULL},
    {TWS_SETTING_ALGORITHM, "model.cp_comm_type", ALGORITHMS},
    {TWS_SETTING_EXPERTS, "model.expert_model_parallel_size", NULL},
    {TWS_SETTING_TOKENS, "model.sequence_parallel", NULL},
    {TWS_SETTING_TENSOR_OVERLAP, "comm_overlap.tp_comm_overlap", NULL},
    {TWS_SETTING_MICRO, "train.micro_batch_size", NULL},
    {TWS_SETTING_BATCH, "train.global_batch_size", NULL},
    {TWS_SETTING_SEQUENCE, "model.seq_length", NULL},
    {TWS_SETTING_OVERLAP, "ddp.overlap_grad_reduce", NULL},
    {TWS_SETTING_OPTIMIZER, "optimizer.optimizer", OPTIMIZERS},
    {TWS_SETTING_RATE, "optimizer.lr", NULL},
    {TWS_SETTING_EPSILON, "optimizer.adam_eps", NULL},
    {TWS_SETTING_DECAY, "optimizer.weight_decay", NULL},
    {TWS_SETTING_CLIPPING, "optimizer.clip_grad", NULL},
    {TWS_SETTING_RECOMPUTE, "model.recompute_granularity", "full=full|selective=selective"},
    {TWS_SETTING_OPTIMIZER_PLACE, "optimizer.optimizer_cpu_offload", "cpu=true|none=false"},
    {TWS_SETTING_TYPE, "mixed_precision", MIXED_WORDS},
};

/* The keys of products in 8 bits, and the recipe if none of them states it. Megatron-Core's defaults of the others are
 * a history of one step, the algorithm most_recent and no margin. */
enum { EIGHT_FORMAT, EIGHT_RECIPE, EIGHT_HISTORY, EIGHT_ALGORITHM, EIGHT_MARGIN, EIGHT_KEYS };
typedef struct eight_keys {
  const char *path[EIGHT_KEYS], *recipe;
} eight_keys;
#define EIGHT(section, format)                                                                             \
  {                                                                                                        \
    section format, section "fp8_recipe", section "fp8_amax_history_len", section "fp8_amax_compute_algo", \
        section "fp8_margin"                                                                               \
  }
static const eight_keys eight_arguments = {EIGHT("", "fp8_format"), "delayed"};
static const eight_keys eight_model = {EIGHT("model.", "fp8"), "delayed"};
static const eight_keys eight_mixed = {EIGHT("mixed_precision.", "fp8"), "tensorwise"};

/* Paths of keys that write() and read() use; they differ between the two formats (arguments, Megatron-Bridge). */
typedef struct paths {
  const char *distributed, *fsdp, *strategy, *format, *beta[2], *method, *layers, *aware, *fp4;
  const eight_keys *eight;
} paths;
static const paths of_arguments = {"use_distributed_optimizer",
                                   "use_megatron_fsdp",
                                   "data_parallel_sharding_strategy",
                                   "ckpt_format",
                                   {"adam_beta1", "adam_beta2"},
                                   "recompute_method",
                                   "recompute_num_layers",
                                   "use_precision_aware_optimizer",
                                   "fp4_format",
                                   &eight_arguments};
static const paths of_bridge = {"ddp.use_distributed_optimizer",
                                "ddp.use_megatron_fsdp",
                                "ddp.data_parallel_sharding_strategy",
                                "checkpoint.ckpt_format",
                                {"optimizer.adam_beta1", "optimizer.adam_beta2"},
                                "model.recompute_method",
                                "model.recompute_num_layers",
                                "optimizer.use_precision_aware_optimizer",
                                "model.fp4",
                                &eight_model};

static const char *const strategies[] = {"no_shard", "optim", "optim_grads", "optim_grads_params"};

/* Writes products in 8 bits. A delayed scale follows from the largest value of its whole history, which the algorithm
 * "max" means. */
static void write_eight(const tws_settings *s, const eight_keys *keys, cJSON *root) {
  const int micro = tws_setting_is(s, TWS_SETTING_MATMUL, "mxfp8");
  const int delayed = tws_setting_is(s, TWS_SETTING_FP8_RECIPE, "delayed");
  if (!micro && !tws_setting_is(s, TWS_SETTING_MATMUL, "fp8")) return;
  tws_tree_put_text(root, keys->path[EIGHT_FORMAT], "hybrid");
  tws_tree_put_text(root, keys->path[EIGHT_RECIPE], micro ? "mxfp8" : delayed ? "delayed" : "tensorwise");
  if (micro || !delayed) return;
  tws_tree_put_text(root, keys->path[EIGHT_HISTORY], s->text[TWS_SETTING_FP8_HISTORY]);
  tws_tree_put_text(root, keys->path[EIGHT_ALGORITHM], "max");
  tws_tree_put_text(root, keys->path[EIGHT_MARGIN], s->text[TWS_SETTING_FP8_MARGIN]);
}

static void write_rules(const tws_settings *s, const paths *p, cJSON *root) {
  const int64_t stage = tws_setting_integer(s, TWS_SETTING_STAGE, 0);
  double betas[2];
  if (stage == 1) tws_tree_put_text(root, p->distributed, "true");
  if (stage > 1) {
    tws_tree_put_text(root, p->fsdp, "true");
    tws_tree_put_text(root, p->strategy, strategies[stage]);
    tws_tree_put_text(root, p->format, "fsdp_dtensor");
  }
  if (tws_setting_pair(s, TWS_SETTING_BETAS, betas))
    for (int i = 0; i < 2; i++) {
      char text[40];
      snprintf(text, sizeof text, "%.9g", betas[i]);
      tws_tree_put_text(root, p->beta[i], text);
    }
  if (tws_setting_is(s, TWS_SETTING_RECOMPUTE, "full")) {
    tws_tree_put_text(root, p->method, "uniform");
    tws_tree_put_text(root, p->layers, "1");
  }
  if (tws_setting_is(s, TWS_SETTING_OPTIMIZER_PLACE, "cpu")) tws_tree_put_text(root, p->aware, "true");
  write_eight(s, p->eight, root);
  if (tws_setting_is(s, TWS_SETTING_MATMUL, "nvfp4")) tws_tree_put_text(root, p->fp4, "e2m1");
}

static void put_shape(const tws_format_shape *shape, const char *before, int described, cJSON *root) {
  const struct {
    const char *key;
    int64_t value;
  } numbers[] = {{"num_layers", shape->layers},         {"hidden_size", shape->hidden},
                 {"num_attention_heads", shape->heads}, {"ffn_hidden_size", shape->intermediate},
                 {"num_query_groups", shape->kv_heads}, {"max_position_embeddings", shape->positions},
                 {"num_experts", shape->experts}};
  for (size_t i = 0; described && i < sizeof numbers / sizeof *numbers; i++) {
    char path[96], value[32];
    snprintf(path, sizeof path, "%s%s", before, numbers[i].key);
    snprintf(value, sizeof value, "%lld", (long long)numbers[i].value);
    if (numbers[i].value > 0) tws_tree_put_text(root, path, value);
  }
  if (described && shape->kv_heads != shape->heads) tws_tree_put_text(root, "group_query_attention", "true");
  if (described && shape->gated) tws_tree_put_text(root, "swiglu", "true");
}

static void write_arguments(const tws_settings *s, const tws_format_shape *shape, cJSON *root) {
  if (tws_setting_is(s, TWS_SETTING_TYPE, "bf16")) tws_tree_put_text(root, "bf16", "true");
  if (tws_setting_is(s, TWS_SETTING_TYPE, "fp16")) tws_tree_put_text(root, "fp16", "true");
  write_rules(s, &of_arguments, root);
  put_shape(shape, "", 1, root);
}

static void write_bridge(const tws_settings *s, const tws_format_shape *shape, cJSON *root) {
  write_rules(s, &of_bridge, root);
  put_shape(shape, "", 0, root);
}

static int is_true(const cJSON *root, const char *path) {
  return cJSON_IsTrue(tws_tree_at(root, path));
}

/* Sets products in 8 bits by the texts of their keys. A history of which the most recent step alone counts is one of a
 * single step. */
static void put_eight(char text[EIGHT_KEYS][64], tws_settings *s) {
  const char *recipe = text[EIGHT_RECIPE];
  const int micro = strcmp(recipe, "mxfp8") == 0, delayed = strcmp(recipe, "delayed") == 0;
  tws_setting_put(s, TWS_SETTING_MATMUL, "%s", micro ? "mxfp8" : "fp8");
  for (int i = TWS_SETTING_FP8_RECIPE; i <= TWS_SETTING_FP8_MARGIN; i++) s->text[i][0] = '\0';
  if (!micro) tws_setting_put(s, TWS_SETTING_FP8_RECIPE, "%s", delayed ? "delayed" : "tensorwise");
  if (!delayed) return;
  const int longest = strcmp(text[EIGHT_ALGORITHM], "max") == 0 && *text[EIGHT_HISTORY];
  tws_setting_put(s, TWS_SETTING_FP8_HISTORY, "%s", longest ? text[EIGHT_HISTORY] : "1");
  tws_setting_put(s, TWS_SETTING_FP8_MARGIN, "%s", *text[EIGHT_MARGIN] ? text[EIGHT_MARGIN] : "0");
}

/* Reads the texts of the keys of products in 8 bits, the recipe with its default, and returns 1 if there are such
 * products. */
static int eight_texts(const cJSON *root, const eight_keys *keys, char text[EIGHT_KEYS][64]) {
  for (int i = 0; i < EIGHT_KEYS; i++) tws_tree_text(root, keys->path[i], text[i], sizeof text[i]);
  if (!*text[EIGHT_RECIPE]) snprintf(text[EIGHT_RECIPE], sizeof text[EIGHT_RECIPE], "%s", keys->recipe);
  return *text[EIGHT_FORMAT] != '\0';
}

static void read_eight(const cJSON *root, const eight_keys *keys, tws_settings *s) {
  char text[EIGHT_KEYS][64];
  if (eight_texts(root, keys, text)) put_eight(text, s);
}

/* Adds to a note what this program computes in place of a format or recipe that it lacks. */
static void explain_eight(const cJSON *root, const eight_keys *keys, tws_text *out) {
  static const char *const known[] = {"delayed", "tensorwise", "mxfp8"};
  char text[EIGHT_KEYS][64];
  int has = 0;
  if (!eight_texts(root, keys, text)) return;
  for (size_t i = 0; i < sizeof known / sizeof *known; i++) has |= strcmp(text[EIGHT_RECIPE], known[i]) == 0;
  if (!has)
    tws_text_add(out, "%s%s is taken as tensorwise: a tensor has one scale", out->length ? "; " : "",
                 keys->path[EIGHT_RECIPE]);
  if (strcmp(text[EIGHT_FORMAT], "hybrid") != 0 && strcmp(text[EIGHT_RECIPE], "mxfp8") != 0)
    tws_text_add(out, "%s%s is taken as hybrid: gradients are e5m2", out->length ? "; " : "", keys->path[EIGHT_FORMAT]);
}

static void read_rules(const cJSON *root, const paths *p, tws_settings *s) {
  char text[64], beta[2][64];
  int stage = is_true(root, p->distributed);
  for (int i = 0; i < 4 && tws_tree_text(root, p->strategy, text, sizeof text) && is_true(root, p->fsdp); i++)
    if (strcmp(text, strategies[i]) == 0) stage = i;
  tws_setting_put(s, TWS_SETTING_STAGE, "%d", stage);
  if (tws_tree_text(root, p->beta[0], beta[0], sizeof beta[0]) &&
      tws_tree_text(root, p->beta[1], beta[1], sizeof beta[1]))
    tws_setting_put(s, TWS_SETTING_BETAS, "[%s,%s]", beta[0], beta[1]);
  read_eight(root, p->eight, s);
  if (tws_tree_text(root, p->fp4, text, sizeof text)) tws_setting_put(s, TWS_SETTING_MATMUL, "nvfp4");
  if (tws_setting_integer(s, TWS_SETTING_PIPELINE, 1) > 1) {
    const int chunks = tws_setting_integer(s, TWS_SETTING_CHUNKS, 1) > 1;
    tws_setting_put(s, TWS_SETTING_SCHEDULE, "%s", chunks ? "interleaved" : "1f1b");
    if (!chunks) s->text[TWS_SETTING_CHUNKS][0] = '\0';
  } else {
    s->text[TWS_SETTING_CHUNKS][0] = '\0';
  }
  /* Megatron's context parallelism is a ring (cp_comm_type p2p) unless the arguments state another kind */
  const int shared = tws_setting_integer(s, TWS_SETTING_SHARERS, 1) > 1;
  if (shared && !s->text[TWS_SETTING_ALGORITHM][0]) tws_setting_put(s, TWS_SETTING_ALGORITHM, "ring");
  /* at stage 0 gradients are not partitioned, so there are no reductions of ZeRO buckets that could overlap */
  if (stage == 0)
    s->text[TWS_SETTING_OVERLAP][0] = '\0';
  else if (!s->text[TWS_SETTING_OVERLAP][0])
    tws_setting_put(s, TWS_SETTING_OVERLAP, "false");
}

/* ---- Megatron-DeepSpeed ---- */

static const char sharers_key[] = "ds_sequence_parallel_size", chunked_key[] = "ds_sequence_parallel_fpdt",
                  chunk_key[] = "ds_sequence_parallel_fpdt_chunk_size",
                  place_key[] = "ds_sequence_parallel_fpdt_offloading";

static int is_deepspeeds(const cJSON *root, const char *path) {
  (void)root; /* the arguments' values do not matter */
  return strcmp(path, sharers_key) == 0 || strcmp(path, chunked_key) == 0 || strcmp(path, chunk_key) == 0 ||
         strcmp(path, place_key) == 0;
}

int tws_format_is_megatron_deepspeed(const cJSON *root) {
  const cJSON *item;
  cJSON_ArrayForEach(item, root) {
    if (is_deepspeeds(root, item->string)) return 1;
  }
  return 0;
}

/* Reads the number of ranks that share a sequence (Ulysses), and what FPDT divides: attention into chunks of tokens of
 * the whole sequence, each MLP into two tiles and the loss into 32 tiles for each chunk (megatron/model/transformer.py
 * and gpt_model.py of 4efb479). Keys and values of chunks are in host memory here with and without the argument for
 * it. A sequence that chunks do not divide becomes a text that is no number, which the configuration refuses. */
static void read_deepspeeds(const cJSON *root, tws_settings *s) {
  static const char usual_chunk[] = "65536";
  char sharers[32], chunk[32];
  double tokens = 0;
  if (tws_tree_text(root, sharers_key, sharers, sizeof sharers)) {
    tws_setting_put(s, TWS_SETTING_SHARERS, "%s", sharers);
    tws_setting_put(s, TWS_SETTING_ALGORITHM, "ulysses");
  }
  if (!is_true(root, chunked_key)) return;
  if (!tws_tree_text(root, chunk_key, chunk, sizeof chunk)) snprintf(chunk, sizeof chunk, "%s", usual_chunk);
  const int64_t sequence = tws_setting_integer(s, TWS_SETTING_SEQUENCE, 0);
  const int64_t size = tws_text_number(chunk, NULL, 1, 9e15, &tokens) ? (int64_t)tokens : 0;
  const int64_t chunks = size > 0 && sequence > 0 && sequence % size == 0 ? sequence / size : 0;
  if (chunks == 0) {
    tws_setting_put(s, TWS_SETTING_ATTENTION_CHUNKS, "%lld tokens in chunks of %s", (long long)sequence, chunk);
    return;
  }
  tws_setting_put(s, TWS_SETTING_ATTENTION_CHUNKS, "%lld", (long long)chunks);
  tws_setting_put(s, TWS_SETTING_MLP_TILES, "%lld", (long long)(2 * chunks));
  tws_setting_put(s, TWS_SETTING_LOSS_TILES, "%lld", (long long)(32 * chunks));
}

static void read_arguments(const cJSON *root, tws_settings *s) {
  char text[16];
  if (tws_tree_text(root, "recompute_activations", text, sizeof text) && strcmp(text, "true") == 0)
    tws_setting_put(s, TWS_SETTING_RECOMPUTE, "selective");
  tws_setting_put(s, TWS_SETTING_TYPE, "%s", is_true(root, "bf16") ? "bf16" : is_true(root, "fp16") ? "fp16" : "fp32");
  read_rules(root, &of_arguments, s);
}

static void read_deepspeed_arguments(const cJSON *root, tws_settings *s) {
  read_deepspeeds(root, s);
  read_arguments(root, s);
}

static void explain_arguments(const cJSON *root, tws_text *out) {
  explain_eight(root, &eight_arguments, out);
}

/* Megatron-Bridge's mixed precision (mixed_precision.py) is a section of keys or a name, a part of which says the
 * recipe of products in 8 bits; both count more than the model's own keys. Names that MIXED_WORDS lacks are refused
 * before. */
static void read_bridge(const cJSON *root, tws_settings *s) {
  static const struct {
    const char *part, *text[EIGHT_KEYS];
  } named[] = {{"fp8_delayed_scaling", {"hybrid", "delayed", "1024", "max", ""}},
               {"fp8_current_scaling", {"hybrid", "tensorwise", "", "", ""}},
               {"fp8_subchannel_scaling", {"hybrid", "blockwise", "", "", ""}},
               {"mxfp8", {"e4m3", "mxfp8", "", "", ""}}};
  char name[96], text[EIGHT_KEYS][64];
  if (is_true(root, "mixed_precision.bf16")) tws_setting_put(s, TWS_SETTING_TYPE, "bf16");
  if (is_true(root, "mixed_precision.fp16")) tws_setting_put(s, TWS_SETTING_TYPE, "fp16");
  if (!s->text[TWS_SETTING_TYPE][0]) tws_setting_put(s, TWS_SETTING_TYPE, "fp32");
  read_rules(root, &of_bridge, s);
  read_eight(root, &eight_mixed, s);
  if (!tws_tree_text(root, "mixed_precision", name, sizeof name)) return;
  for (char *c = name; *c; c++) *c = *c == '-' ? '_' : *c;
  for (size_t i = 0; i < sizeof named / sizeof *named; i++) {
    if (!strstr(name, named[i].part)) continue;
    for (int k = 0; k < EIGHT_KEYS; k++) snprintf(text[k], sizeof text[k], "%s", named[i].text[k]);
    put_eight(text, s);
  }
}

static void explain_bridge(const cJSON *root, tws_text *out) {
  char name[96];
  explain_eight(root, &eight_model, out);
  explain_eight(root, &eight_mixed, out);
  if (!tws_tree_text(root, "mixed_precision", name, sizeof name)) return;
  if (strstr(name, "subchannel") || strstr(name, "nanov2"))
    tws_text_add(out, "%smixed_precision %s is taken as tensorwise: a tensor has one scale", out->length ? "; " : "",
                 name);
  if (strstr(name, "current"))
    tws_text_add(out, "%smixed_precision %s: the first and last layers have products in 8 bits too",
                 out->length ? "; " : "", name);
}

static int holds(const tws_settings *s, tws_setting setting) {
  const char *value = s->text[setting];
  switch (setting) {
    case TWS_SETTING_STAGE:
    case TWS_SETTING_TYPE:
    case TWS_SETTING_BETAS:
    case TWS_SETTING_CHUNKS:
    case TWS_SETTING_FP8_RECIPE:
    case TWS_SETTING_FP8_HISTORY:
    case TWS_SETTING_FP8_MARGIN:
    case TWS_SETTING_STEPS: /* write() and read() hold these settings; STEPS follows from the global batch size */
      return 1;
    case TWS_SETTING_SCHEDULE:
      return strcmp(value, "1f1b") == 0 || strcmp(value, "interleaved") == 0;
    case TWS_SETTING_MATMUL:
      return strcmp(value, "fp8-rowwise") != 0;
    case TWS_SETTING_RECOMPUTE:
      return strcmp(value, "operations") != 0;
    default:
      return -1;
  }
}

static const char *const known_arguments[] = {"use_distributed_optimizer",
                                              "use_megatron_fsdp",
                                              "data_parallel_sharding_strategy",
                                              "ckpt_format",
                                              "adam_beta1",
                                              "adam_beta2",
                                              "recompute_method",
                                              "recompute_num_layers",
                                              "recompute_activations",
                                              "use_precision_aware_optimizer",
                                              "fp8_format",
                                              "fp8_recipe",
                                              "fp8_amax_history_len",
                                              "fp8_amax_compute_algo",
                                              "fp8_margin",
                                              "fp8_interval", /* Megatron ignores this argument */
                                              "fp4_format",
                                              "bf16",
                                              "fp16",
                                              NULL};
static const char *const known_bridge[] = {"ddp.use_distributed_optimizer",
                                           "ddp.use_megatron_fsdp",
                                           "ddp.data_parallel_sharding_strategy",
                                           "checkpoint.ckpt_format",
                                           "optimizer.adam_beta1",
                                           "optimizer.adam_beta2",
                                           "model.recompute_method",
                                           "model.recompute_num_layers",
                                           "optimizer.use_precision_aware_optimizer",
                                           "model.fp8",
                                           "model.fp8_recipe",
                                           "model.fp8_amax_history_len",
                                           "model.fp8_amax_compute_algo",
                                           "model.fp8_margin",
                                           "model.fp4",
                                           "mixed_precision.bf16",
                                           "mixed_precision.fp16",
                                           "mixed_precision.fp8",
                                           "mixed_precision.fp8_recipe",
                                           "mixed_precision.fp8_amax_history_len",
                                           "mixed_precision.fp8_amax_compute_algo",
                                           "mixed_precision.fp8_margin",
                                           NULL};

const tws_format_table tws_format_megatron = {arguments,
                                              sizeof arguments / sizeof *arguments,
                                              write_arguments,
                                              read_arguments,
                                              holds,
                                              known_arguments,
                                              NULL,
                                              explain_arguments};
const tws_format_table tws_format_megatron_deepspeed = {arguments,     sizeof arguments / sizeof *arguments,
                                                        NULL,          read_deepspeed_arguments,
                                                        NULL,          known_arguments,
                                                        is_deepspeeds, explain_arguments};
const tws_format_table tws_format_bridge = {
    bridge, sizeof bridge / sizeof *bridge, write_bridge, read_bridge, holds, known_bridge, NULL, explain_bridge};
