/* Models of experts in measured runs. */
#include <string.h>

#include "validation/case_fields.h"

/* What rows do not say of models that they name: the public configurations' widths of an expert's inner part and of a
 * head. Their norms of queries and keys, biases and attention sinks are left out: they are no products. */
static const struct {
  const char *name;
  int inner, head;
} models[] = {{"GPT OSS 120B", 2880, 64}, {"Qwen3_30B", 768, 128}, {"Qwen3-30B", 768, 128}, {"Qwen3_235B", 1536, 128}};

static int find(const cJSON *row) {
  int at = (int)(sizeof models / sizeof *models) - 1;
  while (at >= 0 && !strstr(tws_case_text(row, "model", "name"), models[at].name)) at--;
  return at;
}

int tws_case_has_experts(const cJSON *row) {
  return tws_case_number(row, "model", "num_experts") > 1 || tws_case_number(row, "parallel", "ep") > 1;
}

int tws_case_knows_experts(const cJSON *row) {
  return find(row) >= 0;
}

void tws_case_write_experts(const cJSON *row, tws_text *text) {
  const int at = find(row);
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
