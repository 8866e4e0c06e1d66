/* Models of experts in measured runs. */
#include <string.h>

#include "validation/case_fields.h"

/* What rows do not say of models that they name: the public configurations' widths of an expert's inner part and of a
 * head. Their norms of queries and keys, biases and attention sinks are left out: they are no products. */
static const struct {
  const char *name;
  int inner, head;
} models[] = {{"GPT OSS 120B", 2880, 64}, {"Qwen3_30B", 768, 128}, {"Qwen3-30B", 768, 128}, {"Qwen3_235B", 1536, 128}};

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

static int find(const cJSON *row) {
  int at = (int)(sizeof models / sizeof *models) - 1;
  while (at >= 0 && !strstr(tws_case_text(row, "model", "name"), models[at].name)) at--;
  return at;
}

int tws_case_has_experts(const cJSON *row) {
  return tws_case_number(row, "model", "num_experts") > 1 || tws_case_number(row, "parallel", "ep") > 1;
}

int tws_case_knows_experts(const cJSON *row) {
  return find(row) >= 0 || is_deepseek(row) || tws_case_is_gpt_with_experts(row);
}

void tws_case_write_experts(const cJSON *row, tws_text *text) {
  const int at = find(row);
  if (tws_case_is_gpt_with_experts(row)) {
    write_gpt(row, text);
    return;
  }
  if (is_deepseek(row)) {
    write_deepseek(row, text);
    return;
  }
  tws_text_add(text,
               "{\"model_type\":\"mixtral\",\"num_hidden_layers\":%lld,\"hidden_size\":%lld,"
               "\"num_attention_heads\":%lld,\"num_key_value_heads\":%lld,\"head_dim\":%d,\"intermediate_size\":%d,"
               "\"num_local_experts\":%lld,\"num_experts_per_tok\":%lld,\"max_position_embeddings\":%lld,"
               "\"vocab_size\":%lld,\"tie_word_embeddings\":false}",
               (long long)tws_case_number(row, "model", "layers"), (long long)tws_case_number(row, "model", "hidden"),
               (long long)tws_case_number(row, "model", "heads"), (long long)tws_case_number(row, "model", "kv_heads"),
               models[at].head, models[at].inner, (long long)tws_case_number(row, "model", "num_experts"),
               (long long)tws_case_number(row, "model", "moe_topk"),
               (long long)tws_case_number(row, "model", "seq_len"), (long long)tws_case_number(row, "model", "vocab"));
}
