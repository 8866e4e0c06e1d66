/* GPT-2 with experts as in DeepSpeed-MoE (Rajbhandari et al. 2022; keys as the arguments of its Megatron). Each
 * expert_interval-th layer has num_experts MLPs, or a list gives the number for each such layer (a pyramid).
 * "mlp_type": "residual" adds an MLP that all tokens pass; both outputs are weighted by a softmax of two gates. */
#include "models/network/gpt2.h"

#include <string.h>

static tws_code read_counts(tws_network_builder *b, tws_gpt2 *g, int64_t interval, tws_error *err) {
  const tws_json *json = b->json;
  const cJSON *list = cJSON_GetObjectItemCaseSensitive(json->root, "num_experts"), *item = NULL;
  const int64_t layers = b->net->layers;
  g->experts = tws_arena_alloc(b->net->arena, (size_t)layers, sizeof *g->experts);
  if (!g->experts) return tws_fail(err, TWS_MEMORY, NULL, "out of memory for the model's graph");
  if (cJSON_IsArray(list) && cJSON_GetArraySize(list) != layers / interval)
    return tws_json_fail(json, list, err, "give one number, or one for each layer of experts",
                         "num_experts has %d numbers, and there are %lld layers of experts", cJSON_GetArraySize(list),
                         (long long)(layers / interval));
  int64_t count = 0;
  if (!cJSON_IsArray(list))
    TWS_TRY(tws_json_int(json, json->root, "num_experts", 1, 1, TWS_MAX_EXPERTS, 0, &count, err));
  for (int64_t layer = interval - 1; layer < layers; layer += interval) {
    if (cJSON_IsArray(list)) {
      item = item ? item->next : list->child;
      if (!tws_json_integer(json, item, &count, NULL) || count < 1 || count > TWS_MAX_EXPERTS)
        return tws_json_fail(json, item, err, NULL, "num_experts must be numbers from 1 to %d", TWS_MAX_EXPERTS);
    }
    if (count < g->choices)
      return tws_json_fail(json, list, err, "let a token choose at most as many experts as there are",
                           "a token chooses %lld of %lld experts", (long long)g->choices, (long long)count);
    g->experts[layer] = (int32_t)count;
  }
  return TWS_OK;
}

static tws_code read_word(tws_network_builder *b, const char *key, const char *first, const char *second,
                          int *is_second, tws_error *err) {
  const char *word = first;
  TWS_TRY(tws_json_string(b->json, b->json->root, key, 0, first, &word, err));
  *is_second = strcmp(word, second) == 0;
  if (*is_second || strcmp(word, first) == 0) return TWS_OK;
  return tws_json_fail(b->json, cJSON_GetObjectItemCaseSensitive(b->json->root, key), err, NULL,
                       "%s is \"%.40s\"; known here: %s, %s", key, word, first, second);
}

tws_code tws_gpt2_read_experts(tws_network_builder *b, tws_gpt2 *g, tws_error *err) {
  const tws_json *json = b->json;
  const cJSON *root = json->root;
  int64_t interval = 2;
  if (cJSON_GetObjectItemCaseSensitive(root, "num_experts") == NULL) return TWS_OK;
  TWS_TRY(tws_json_int(json, root, "expert_interval", 0, 1, TWS_MAX_LAYERS, 2, &interval, err));
  TWS_TRY(tws_json_int(json, root, "topk", 0, 1, TWS_MAX_CHOICES, 1, &g->choices, err));
  TWS_TRY(tws_json_number(json, root, "moe_loss_coeff", 0, 0, 1e6, 0.1, &g->auxiliary, err));
  TWS_TRY(tws_json_number(json, root, "moe_train_capacity_factor", 0, 0, 1e6, -1, &g->capacity, err));
  TWS_TRY(tws_json_int(json, root, "moe_min_capacity", 0, 0, TWS_MAX_WIDTH, 4, &g->least_slots, err));
  TWS_TRY(read_word(b, "mlp_type", "standard", "residual", &g->residual, err));
  TWS_TRY(read_word(b, "noisy_gate_policy", "None", "RSample", &g->samples, err));
  return read_counts(b, g, interval, err);
}

static tws_routing routing_of(const tws_gpt2 *g, int layer) {
  tws_routing r = tws_routing_like_deepspeed(g->experts[layer], (int32_t)g->choices, g->capacity, g->least_slots, 1);
  if (g->capacity < 0) r.slots.factor = -(double)g->choices; /* the configuration's factor */
  if (g->samples) r.sampled = 1;
  r.auxiliary = g->auxiliary;
  return r;
}

uint32_t tws_gpt2_add_experts(tws_network_builder *b, const tws_gpt2 *g, int layer, uint32_t x) {
  const int64_t hidden = b->net->hidden;
  const float std = (float)g->range;
  const tws_routing routing = routing_of(g, layer);
  uint32_t gates = TWS_NONE;
#define NAME(suffix) tws_build_name(b, "transformer.h.%d.mlp." suffix, layer)
  const uint32_t logits =
      tws_build_linear(b, layer, NAME("gate.wg"), x, hidden, routing.experts, std, 0, NULL, TWS_NONE);
  const tws_routes routes = tws_build_router(b, layer, NAME("router"), logits, &routing);
  uint32_t y = tws_build_dispatch(b, layer, NAME("dispatch"), x, &routes);
  y = tws_build_expert_linear(b, layer, NAME("experts.c_fc"), y, &routes, g->inner, std, 1, NULL);
  y = tws_build_pointwise(b, layer, NAME("experts.act"), g->activation, y, g->inner);
  y = tws_build_expert_linear(b, layer, NAME("experts.c_proj"), y, &routes, hidden, g->residual_std, 1, NULL);
  y = tws_build_combine(b, layer, NAME("combine"), y, &routes);
  if (!g->residual) return y;
  gates = tws_build_linear(b, layer, NAME("coefficient"), x, hidden, 2, std, 1, NULL, TWS_NONE);
  y = tws_build_gate(b, layer, NAME("experts_by_gate"), y, gates, 0);
  const uint32_t all = tws_gpt2_add_inner(b, g, layer, x);
  return tws_build_add(b, layer, NAME("add"), y, tws_build_gate(b, layer, NAME("inner_by_gate"), all, gates, 1));
#undef NAME
}
