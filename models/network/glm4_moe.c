/* GLM-4.5 and 4.6 (GLM-4.5 Team, 2025; keys as in Hugging Face's Glm4MoeConfig): a few layers without experts first,
 * then experts that sigmoids choose, beside an inner part that all tokens go through. Biases that balance experts are 0
 * here, and the loss for the token after the next is left out. */
#include "models/network/decoder.h"

static tws_code read_routing(tws_network_builder *b, tws_decoder *d, tws_error *err) {
  const tws_json *json = b->json;
  int64_t one;
  TWS_TRY(tws_decoder_read_routing(b, "n_routed_experts", 128, 8, 0, d, err));
  d->routing.auxiliary = 0;
  d->routing.sigmoid = d->routing.biased = 1;
  TWS_TRY(tws_json_bool(json, json->root, "norm_topk_prob", 0, 1, &d->routing.renormalizes, err));
  TWS_TRY(tws_json_number(json, json->root, "routed_scaling_factor", 0, 0, 1e6, 1, &d->routing.scale, err));
  TWS_TRY(tws_json_int(json, json->root, "n_group", 0, 1, 1, 1, &one, err)); /* published models have one */
  TWS_TRY(tws_json_int(json, json->root, "topk_group", 0, 1, 1, 1, &one, err));
  if (cJSON_HasObjectItem(json->root, "num_nextn_predict_layers"))
    tws_text_add(&b->notes, "num_nextn_predict_layers has no effect: the next token alone is predicted\n");
  return TWS_OK;
}

static tws_code read_layers(tws_network_builder *b, tws_decoder *d, tws_error *err) {
  const tws_json *json = b->json;
  int64_t first, shared, layers = 0;
  TWS_TRY(tws_build_size(b, "num_hidden_layers", NULL, 1, TWS_MAX_LAYERS, 0, &layers, err));
  TWS_TRY(tws_json_int(json, json->root, "first_k_dense_replace", 0, 0, TWS_MAX_LAYERS, 1, &first, err));
  TWS_TRY(tws_json_int(json, json->root, "n_shared_experts", 0, 0, 1024, 1, &shared, err));
  TWS_TRY(tws_build_size(b, "moe_intermediate_size", NULL, 0, TWS_MAX_WIDTH / 2048, 1408, &d->expert_inner, err));
  uint8_t *dense = tws_arena_alloc(b->net->arena, (size_t)layers, 1);
  if (!dense) return tws_fail(err, TWS_MEMORY, NULL, "out of memory for the model's graph");
  for (int64_t layer = 0; layer < layers; layer++) dense[layer] = layer < first;
  d->dense = dense;
  d->expert_block = "mlp";
  d->shared_name = "shared_experts";
  d->shared_inner = shared * d->expert_inner;
  return TWS_OK;
}

tws_code tws_build_glm4_moe(tws_network_builder *b, tws_error *err) {
  static const char *const known[] = {"attention_bias",
                                      "partial_rotary_factor",
                                      "use_qk_norm",
                                      "moe_intermediate_size",
                                      "n_routed_experts",
                                      "num_local_experts",
                                      "n_shared_experts",
                                      "num_experts_per_tok",
                                      "first_k_dense_replace",
                                      "n_group",
                                      "topk_group",
                                      "norm_topk_prob",
                                      "routed_scaling_factor",
                                      "output_router_logits",
                                      "num_nextn_predict_layers",
                                      NULL};
  const tws_json *json = b->json;
  tws_decoder d = {.positions = 131072, .kv_heads = 8, .epsilon = 1e-5};
  int norms = 0;
  TWS_TRY(tws_json_bool(json, json->root, "attention_bias", 0, 0, &d.qkv_bias, err));
  TWS_TRY(tws_json_bool(json, json->root, "use_qk_norm", 0, 0, &norms, err));
  TWS_TRY(tws_json_number(json, json->root, "partial_rotary_factor", 0, 1e-6, 1, 0.5, &d.rope.share, err));
  if (norms) d.head_norms = TWS_HEADS_APART;
  TWS_TRY(read_routing(b, &d, err));
  TWS_TRY(read_layers(b, &d, err));
  TWS_TRY(tws_decoder_read(b, known, &d, err));
  return tws_decoder_build(b, &d, err);
}
