/* Qwen2-MoE and Qwen3-MoE (Qwen Team, 2024 and 2025; keys as in Hugging Face's Qwen2MoeConfig and Qwen3MoeConfig):
 * experts in most layers; Qwen2-MoE also has a shared expert with a gate. */
#include "models/network/decoder.h"

#include <stdio.h>

/* Reads which layers have no experts: those of mlp_only_layers, and all layers except every decoder_sparse_step-th. */
static tws_code read_dense_layers(tws_network_builder *b, tws_decoder *d, tws_error *err) {
  const tws_json *json = b->json;
  int64_t step = 1, layers = 0;
  const cJSON *list = cJSON_GetObjectItemCaseSensitive(json->root, "mlp_only_layers"), *item;
  TWS_TRY(tws_build_size(b, "num_hidden_layers", NULL, 1, TWS_MAX_LAYERS, 0, &layers, err));
  TWS_TRY(tws_json_int(json, json->root, "decoder_sparse_step", 0, 1, TWS_MAX_LAYERS, 1, &step, err));
  uint8_t *dense = tws_arena_alloc(b->net->arena, (size_t)layers, 1);
  if (!dense) return tws_fail(err, TWS_MEMORY, NULL, "out of memory for the model's graph");
  for (int64_t layer = 0; layer < layers; layer++) dense[layer] = (layer + 1) % step != 0;
  d->dense = dense;
  if (list == NULL || cJSON_IsNull(list)) return TWS_OK;
  cJSON_ArrayForEach(item, list) {
    int64_t layer;
    if (!tws_json_integer(json, item, &layer, NULL) || layer < 0 || layer >= layers)
      return tws_json_fail(json, item, err, "layers count from 0", "mlp_only_layers names a layer that is not there");
    dense[layer] = 1;
  }
  return TWS_OK;
}

static tws_code read_experts(tws_network_builder *b, const char *count, int64_t experts, int64_t choices, int64_t inner,
                             tws_decoder *d, tws_error *err) {
  const tws_json *json = b->json;
  TWS_TRY(tws_decoder_read_routing(b, count, experts, choices, 0.001, d, err));
  TWS_TRY(tws_json_bool(json, json->root, "norm_topk_prob", 0, 0, &d->routing.renormalizes, err));
  TWS_TRY(tws_build_size(b, "moe_intermediate_size", NULL, 0, TWS_MAX_WIDTH / 2, inner, &d->expert_inner, err));
  d->expert_block = "mlp";
  return read_dense_layers(b, d, err);
}

static tws_code read_window(tws_network_builder *b, tws_decoder *d, tws_error *err) {
  const tws_json *json = b->json;
  int slides = 0;
  TWS_TRY(tws_json_bool(json, json->root, "use_sliding_window", 0, 0, &slides, err));
  if (!slides) return TWS_OK;
  TWS_TRY(tws_build_size(b, "sliding_window", NULL, 0, TWS_MAX_WIDTH, 4096, &d->window, err));
  return tws_json_int(json, json->root, "max_window_layers", 0, 0, TWS_MAX_LAYERS, 28, &d->window_layer, err);
}

#define MOE_KEYS                                                                                                  \
  "use_sliding_window", "sliding_window", "max_window_layers", "layer_types", "num_experts", "num_local_experts", \
      "num_experts_per_tok", "norm_topk_prob", "moe_intermediate_size", "mlp_only_layers", "decoder_sparse_step", \
      "router_aux_loss_coef", "router_z_loss_coef", "output_router_logits"

tws_code tws_build_qwen2_moe(tws_network_builder *b, tws_error *err) {
  static const char *const known[] = {MOE_KEYS, "shared_expert_intermediate_size", "qkv_bias", NULL};
  const tws_json *json = b->json;
  tws_decoder d = {.positions = 32768, .kv_heads = 16, .shared_name = "shared_expert", .shared_gate = 1};
  TWS_TRY(tws_json_bool(json, json->root, "qkv_bias", 0, 1, &d.qkv_bias, err));
  TWS_TRY(read_window(b, &d, err));
  TWS_TRY(read_experts(b, "num_experts", 60, 4, 1408, &d, err));
  TWS_TRY(tws_build_size(b, "shared_expert_intermediate_size", NULL, 0, TWS_MAX_WIDTH / 2, 5632, &d.shared_inner, err));
  TWS_TRY(tws_decoder_read(b, known, &d, err));
  return tws_decoder_build(b, &d, err);
}

/* Builds Qwen3-MoE: queries and keys have norms, the file gives the head size, and there is no shared expert. */
tws_code tws_build_qwen3_moe(tws_network_builder *b, tws_error *err) {
  static const char *const known[] = {MOE_KEYS, "attention_bias", NULL};
  tws_decoder d = {.positions = 32768, .kv_heads = 4, .head_norms = TWS_HEADS_APART};
  TWS_TRY(tws_json_bool(b->json, b->json->root, "attention_bias", 0, 0, &d.qkv_bias, err));
  d.output_bias = d.qkv_bias;
  TWS_TRY(read_window(b, &d, err));
  if (d.window > 0) d.window_layer = 0; /* Transformers applies the window to all layers */
  TWS_TRY(read_experts(b, "num_experts", 128, 8, 768, &d, err));
  TWS_TRY(tws_decoder_read(b, known, &d, err));
  return tws_decoder_build(b, &d, err);
}
