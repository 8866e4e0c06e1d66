/* Models of experts in measured runs. */
#include <string.h>

#include "validation/case_fields.h"

/* What rows do not say of models that they name: the public configurations' widths of an expert's inner part and of a
 * head. GPT OSS is planned as Mixtral: without its biases and attention sinks, and no layer sees a window alone. */
static const struct {
  const char *name;
  int inner, head, is_qwen;
} models[] = {{"GPT OSS 120B", 2880, 64, 0},
              {"Qwen3_30B", 768, 128, 1},
              {"Qwen3-30B", 768, 128, 1},
              {"Qwen3_235B", 1536, 128, 1}};

/* GPT-3's layers with experts in every other one, GPT-2's vocabulary, capacity 1, and activations that are made again,
 * as the scripts have it that DeepSpeed published with its models (Megatron-DeepSpeed, examples_deepspeed/MoE); each
 * replica runs its part of the batch at once where nothing else is stated. */
int tws_case_is_gpt_with_experts(const cJSON *row) {
  return strncmp(tws_case_text(row, "model", "name"), "GPT ", 4) == 0 &&
         strstr(tws_case_text(row, "model", "name"), "+MoE") != NULL;
}

static void write_gpt(const cJSON *row, tws_text *text) {
  tws_text_add(text,
               "{\"model_type\":\"gpt2\",\"n_layer\":%lld,\"n_embd\":%lld,\"n_head\":%lld,\"n_positions\":%lld,"
               "\"vocab_size\":50257,\"num_experts\":%lld,\"topk\":%lld}",
               (long long)tws_case_number(row, "model", "layers"), (long long)tws_case_number(row, "model", "hidden"),
               (long long)tws_case_number(row, "model", "heads"), (long long)tws_case_number(row, "model", "seq_len"),
               (long long)tws_case_number(row, "model", "num_experts"),
               (long long)tws_case_number(row, "model", "moe_topk"));
}

/* DeepSeek-V3 without its loss for the token after the next. */
static int is_deepseek(const cJSON *row) {
  return strstr(tws_case_text(row, "model", "name"), "DeepSeekV3") != NULL;
}

static void write_deepseek(const cJSON *row, tws_text *text) {
  tws_text_add(text,
               "{\"model_type\":\"deepseek_v3\",\"num_hidden_layers\":%lld,\"hidden_size\":7168,"
               "\"num_attention_heads\":128,\"num_key_value_heads\":128,\"intermediate_size\":18432,"
               "\"vocab_size\":129280,\"max_position_embeddings\":%lld}",
               (long long)tws_case_number(row, "model", "layers"), (long long)tws_case_number(row, "model", "seq_len"));
}

/* Megatron's small tests: GPT-2's layers, in each of them experts as wide as a dense layer unless the test says another
 * width (Megatron-LM, --moe-ffn-hidden-size), each token whole to --moe-router-topk of them. */
static void write_test(const cJSON *row, tws_text *text) {
  const double hidden = tws_case_number(row, "model", "hidden"), dense = tws_case_number(row, "model", "ffn");
  const double stated = tws_case_number(row, "all_args", "moe-ffn-hidden-size");
  const double inner = stated > 0 ? stated : dense > 0 ? dense : 4 * hidden;
  tws_text_add(text,
               "{\"model_type\":\"gpt2\",\"n_layer\":%lld,\"n_embd\":%lld,\"n_head\":%lld,\"n_inner\":%lld,"
               "\"n_positions\":%lld,\"vocab_size\":%lld,\"num_experts\":%lld,\"expert_interval\":1,\"topk\":%lld}",
               (long long)tws_case_number(row, "model", "layers"), (long long)hidden,
               (long long)tws_case_number(row, "model", "heads"), (long long)inner,
               (long long)tws_case_number(row, "model", "seq_len"), (long long)tws_case_vocabulary(row),
               (long long)tws_case_number(row, "model", "num_experts"),
               (long long)tws_case_number(row, "model", "moe_topk"));
}

static int find(const cJSON *row) {
  int at = (int)(sizeof models / sizeof *models) - 1;
  while (at >= 0 && !strstr(tws_case_text(row, "model", "name"), models[at].name)) at--;
  return at;
}

int tws_case_has_experts(const cJSON *row) {
  return tws_case_number(row, "model", "num_experts") > 1 || tws_case_number(row, "parallel", "ep") > 1;
}

int tws_case_knows_experts(const cJSON *row) {
  return find(row) >= 0 || is_deepseek(row) || tws_case_is_gpt_with_experts(row) || tws_case_is_small_test(row);
}

void tws_case_write_experts(const cJSON *row, tws_text *text) {
  const int at = find(row);
  if (tws_case_is_gpt_with_experts(row)) {
    write_gpt(row, text);
    return;
  }
  if (tws_case_is_small_test(row)) {
    write_test(row, text);
    return;
  }
  if (is_deepseek(row)) {
    write_deepseek(row, text);
    return;
  }
  tws_text_add(text,
               "{\"model_type\":\"%s\",\"num_hidden_layers\":%lld,\"hidden_size\":%lld,"
               "\"num_attention_heads\":%lld,\"num_key_value_heads\":%lld,\"head_dim\":%d,\"intermediate_size\":%d,"
               "\"%s\":%lld,\"num_experts_per_tok\":%lld,\"max_position_embeddings\":%lld,"
               "\"vocab_size\":%lld,\"tie_word_embeddings\":false",
               models[at].is_qwen ? "qwen3_moe" : "mixtral", (long long)tws_case_number(row, "model", "layers"),
               (long long)tws_case_number(row, "model", "hidden"), (long long)tws_case_number(row, "model", "heads"),
               (long long)tws_case_number(row, "model", "kv_heads"), models[at].head, models[at].inner,
               models[at].is_qwen ? "num_experts" : "num_local_experts",
               (long long)tws_case_number(row, "model", "num_experts"),
               (long long)tws_case_number(row, "model", "moe_topk"),
               (long long)tws_case_number(row, "model", "seq_len"), (long long)tws_case_number(row, "model", "vocab"));
  if (models[at].is_qwen) tws_text_add(text, ",\"moe_intermediate_size\":%d,\"norm_topk_prob\":true", models[at].inner);
  tws_text_add(text, "}");
}

/* ---- Megatron-Bridge's recipes (its repository, scripts/performance/configs of v0.2.1 to v0.5.0) ---- */

static int is_of(const cJSON *row, const char *model, const char *gpu) {
  return strstr(tws_case_text(row, "model", "name"), model) &&
         strncmp(tws_case_text(row, "hardware", "gpu"), gpu, strlen(gpu)) == 0;
}

static int is_before(const cJSON *row, const char *release) {
  return strncmp(tws_case_text(row, "hardware", "version"), release, strlen(release)) < 0;
}

/* Recipes that take all-to-alls of slots: they name no moe_flex_dispatcher_backend, or alltoall. */
static const struct {
  const char *model, *gpu, *before;
} all_to_alls[] = {{"Qwen3_30B", "B200", "26.02.01"}, {"GPT OSS", "", "26.04"},     {"GPT OSS", "GB200", "26.06"},
                   {"GPT OSS", "B200", "26.06"},      {"GPT OSS", "H100", "26.06"}, {"Qwen3_235B", "B300", "26.04"},
                   {"Qwen3_235B", "B200", "27"},      {"Qwen3_235B", "H100", "27"}};

/* Recipes with moe_a2a_overlap whose kernels are not in CUDA graphs; pipelines have chunks then. */
static const struct {
  const char *model, *gpu, *before;
} overlapped[] = {{"Qwen3_30B", "H100", "26.02.01"}, {"Qwen3_235B", "B300", "26.04"}, {"Qwen3_235B", "H100", "27"}};

int tws_case_issues_in_turns(const cJSON *row) {
  if (!(tws_case_number(row, "parallel", "vpp") > 1)) return 0;
  for (size_t i = 0; i < sizeof overlapped / sizeof *overlapped; i++)
    if (is_of(row, overlapped[i].model, overlapped[i].gpu) && is_before(row, overlapped[i].before)) return 1;
  return 0;
}

/* Recipes with MXFP8 since 26.06 whose cuda_graph_impl is full_iteration. */
static int captures_steps(const cJSON *row) {
  const int captured = is_of(row, "", "GB") || is_of(row, "Qwen3_30B", "B300");
  return captured && strcmp(tws_case_text(row, "parallel", "precision"), "MXFP8") == 0 && !is_before(row, "26.06");
}

const char *tws_case_experts_runtime(const cJSON *row) {
  for (size_t i = 0; i < sizeof all_to_alls / sizeof *all_to_alls; i++)
    if (is_of(row, all_to_alls[i].model, all_to_alls[i].gpu) && is_before(row, all_to_alls[i].before)) return "nemo";
  return captures_steps(row) ? "nemo-graphs" : "nemo-2026";
}

int tws_case_recomputes_experts(const cJSON *row) {
  const int narrow = is_of(row, "GPT OSS", "GB200") || is_of(row, "GPT OSS", "B200") || is_of(row, "GPT OSS", "H100");
  return narrow && !captures_steps(row);
}
