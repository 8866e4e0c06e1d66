#include "models/network/huggingface.h"

#include <stdio.h>
#include <string.h>

/* Words in the name of a fused parameter (joined), and the words that replace them in the names of the fused tensors
 * (parts). */
static const struct {
  const char *joined, *parts[3];
} joined_names[] = {
    {"self.qkv_proj", {"self.query_proj", "self.key_proj", "self.value_proj"}},
    {"self.qv_bias", {"self.q_bias", "self.v_bias", NULL}},
    {"self.pos_q_k", {"self.pos_q_proj", "self.pos_proj", NULL}},
    {"self.pos_qk_proj", {"self.pos_query_proj", "self.pos_key_proj", NULL}},
    {"qkv_proj", {"q_proj", "k_proj", "v_proj"}},
    {"gate_up_proj", {"gate_proj", "up_proj", NULL}},
    {"self.qkv", {"self.query", "self.key", "self.value"}},
    {"qkv_lin", {"q_lin", "k_lin", "v_lin"}},
    {"SelfAttention.qkv", {"SelfAttention.q", "SelfAttention.k", "SelfAttention.v"}},
    {"EncDecAttention.kv", {"EncDecAttention.k", "EncDecAttention.v", NULL}},
    {"attention.attention.qkv", {"attention.attention.query", "attention.attention.key", "attention.attention.value"}},
    {"wi_01", {"wi_0", "wi_1", NULL}},
    {".qkv.", {".query.", ".key.", ".value."}}}; /* self_attention of network files */

/* Names of the experts' tensors: files have one tensor per expert and part, and Mixtral's files use other words. */
static const struct {
  const char *joined, *parts[3], *mixtral[3];
} expert_names[] = {{".experts.gate_up_proj", {"gate_proj", "up_proj", NULL}, {"w1", "w3", NULL}},
                    {".experts.down_proj", {"down_proj", NULL, NULL}, {"w2", NULL, NULL}},
                    {".experts.c_fc", {"c_fc", NULL, NULL}, {NULL}},
                    {".experts.c_proj", {"c_proj", NULL, NULL}, {NULL}},
                    {".experts.fc", {"fc", NULL, NULL}, {NULL}}}; /* of network files; also fc1 and fc2 */

static const char *expert_part_name(tws_arena *arena, const char *architecture, const char *name, int expert,
                                    int part) {
  const int is_mixtral = strcmp(architecture, "mixtral") == 0;
  for (size_t i = 0; i < sizeof expert_names / sizeof *expert_names; i++) {
    const char *at = strstr(name, expert_names[i].joined);
    const char *word = is_mixtral ? expert_names[i].mixtral[part] : expert_names[i].parts[part];
    if (at && word)
      return tws_arena_printf(arena, "%.*s.experts.%d.%s%s", (int)(at - name), name, expert, word,
                              at + strlen(expert_names[i].joined));
  }
  return NULL;
}

static const char *part_name(tws_arena *arena, const char *name, int part) {
  for (size_t i = 0; i < sizeof joined_names / sizeof *joined_names; i++) {
    const char *at = strstr(name, joined_names[i].joined), *word = joined_names[i].parts[part];
    if (at && word)
      return tws_arena_printf(arena, "%.*s%s%s", (int)(at - name), name, word, at + strlen(joined_names[i].joined));
  }
  return NULL;
}

/* Returns 1 for the weights that GPT-2's files store transposed: those of its linear layers except the head. */
static int is_transposed(const tws_hf_request *r, const tws_param *param) {
  static const char *const layers[] = {".c_attn.weight", ".c_proj.weight", ".c_fc.weight"};
  for (size_t i = 0; i < sizeof layers / sizeof *layers && strcmp(r->architecture, "gpt2") == 0; i++)
    if (strstr(param->name, layers[i])) return 1;
  return 0;
}

/* Returns 1 if files store a parameter as a vector: those with one row, except gates, tables of segments and adapters,
 * which are matrices in files. */
static int is_vector(const tws_param *param) {
  return param->rows == 1 && !strstr(param->name, ".shared_expert_gate.weight") &&
         !strstr(param->name, ".token_type_embeddings.weight") && !strstr(param->name, ".lora_");
}

static tws_code name_unknown(const tws_param *param, tws_error *err) {
  return tws_fail(err, TWS_UNSUPPORTED, NULL, "it is not known what the parts of %.200s are called", param->name);
}

/* Adds to the list the tensors of a parameter that stacks experts: expert by expert, and for each expert its fused
 * parts, whose rows follow each other. */
static tws_code add_experts(const tws_hf_request *r, uint32_t p, tws_arena *arena, tws_hf_tensor *to, uint32_t *count,
                            tws_error *err) {
  const tws_param *param = &r->params[p];
  const int64_t rows = param->rows / param->experts;
  tws_hf_tensor part = {.param = p, .columns = param->columns, .dims = 2};
  for (int e = 0; e < param->experts; e++)
    for (int i = 0; i < 3 && (i == 0 || param->fused[i] > 0); i++) {
      part.name = expert_part_name(arena, r->architecture, param->name, e, i);
      part.rows = param->fused[i] > 0 ? param->fused[i] : rows;
      if (!part.name) return name_unknown(param, err);
      if (param->rows == param->experts) { /* one vector per expert */
        part.rows = param->columns;
        part.columns = part.dims = 1;
      }
      to[(*count)++] = part;
      part.first_row += part.rows;
    }
  return TWS_OK;
}

static tws_code add_param(const tws_hf_request *r, uint32_t p, tws_arena *arena, tws_hf_tensor *to, uint32_t *count,
                          tws_error *err) {
  const tws_param *param = &r->params[p];
  const int vector = is_vector(param);
  tws_hf_tensor whole = {.name = param->name,
                         .param = p,
                         .rows = vector ? param->columns : param->rows,
                         .columns = vector ? 1 : param->columns,
                         .dims = vector ? 1 : 2,
                         .transposed = is_transposed(r, param)};
  memcpy(whole.shape, param->shape, sizeof whole.shape);
  if (param->experts > 0) return add_experts(r, p, arena, to, count, err);
  if (param->fused[0] + param->fused[1] + param->fused[2] == 0 || param->groups > 0) {
    /* the output head's bias has padded rows, too */
    if (r->padded_vocabulary > r->vocabulary && whole.rows == r->padded_vocabulary) whole.rows = r->vocabulary;
    if (param->groups > 1) {
      whole.groups = param->groups;
      memcpy(whole.fused, param->fused, sizeof whole.fused);
    }
    to[(*count)++] = whole;
    return TWS_OK;
  }
  for (int i = 0; i < 3; i++) {
    if (param->fused[i] == 0) continue; /* a part without an adapter */
    whole.name = part_name(arena, param->name, i);
    whole.rows = param->fused[i];
    if (!whole.name) return name_unknown(param, err);
    to[(*count)++] = whole;
    whole.first_row += whole.rows;
  }
  return TWS_OK;
}

tws_code tws_hf_tensors(const tws_hf_request *r, tws_arena *arena, tws_hf_tensor **tensors, uint32_t *count,
                        tws_error *err) {
  size_t most = 1;
  *count = 0;
  for (uint32_t p = 0; p < r->param_count; p++)
    most += 3 * (size_t)(r->params[p].experts > 0 ? r->params[p].experts : 1);
  *tensors = tws_arena_alloc(arena, most, sizeof **tensors);
  if (!*tensors) return tws_fail(err, TWS_MEMORY, NULL, "no memory for the names of a model's tensors");
  for (uint32_t p = 0; p < r->param_count; p++) TWS_TRY(add_param(r, p, arena, *tensors, count, err));
  return TWS_OK;
}

int tws_hf_shape(const tws_hf_tensor *tensor, int64_t shape[4]) {
  int dims = 0;
  memcpy(shape, tensor->shape, sizeof tensor->shape);
  while (dims < 4 && shape[dims] > 0) dims++;
  if (dims > 0) return dims;
  shape[0] = tensor->transposed ? tensor->columns : tensor->rows;
  shape[1] = tensor->transposed ? tensor->rows : tensor->columns;
  return tensor->dims;
}

int64_t tws_hf_row(const tws_hf_tensor *tensor, int64_t row) {
  int64_t group = 0, before = 0;
  if (tensor->groups <= 1) return row;
  for (int i = 0; i < 3; i++) group += tensor->fused[i] / tensor->groups;
  for (int i = 0; i < 3; i++) {
    const int64_t share = tensor->fused[i] / tensor->groups;
    if (row < tensor->fused[i]) return row / share * group + before + row % share;
    row -= tensor->fused[i];
    before += share;
  }
  return row;
}
