/* FlexOlmo (Shi et al., 2025; keys as in Hugging Face's FlexOlmoConfig): norms after both branches and over all queries
 * and all keys, as in OLMo 2, and experts as in OLMoE. */
#include "models/network/decoder.h"

tws_code tws_build_flex_olmo(tws_network_builder *b, tws_error *err) {
  static const char *const known[] = {"attention_bias",      "num_experts",          "num_local_experts",
                                      "num_experts_per_tok", "norm_topk_prob",       "router_aux_loss_coef",
                                      "router_z_loss_coef",  "output_router_logits", NULL};
  const tws_json *json = b->json;
  tws_decoder d = {.positions = 4096,
                   .order = TWS_ORDER_BEHIND,
                   .head_norms = TWS_HEADS_TOGETHER,
                   .rope = {.parameters = {500000}},
                   .expert_block = "mlp"};
  TWS_TRY(tws_json_bool(json, json->root, "attention_bias", 0, 0, &d.qkv_bias, err));
  d.output_bias = d.qkv_bias;
  TWS_TRY(tws_decoder_read_routing(b, "num_experts", 7, 5, 0.01, &d, err));
  TWS_TRY(tws_json_bool(json, json->root, "norm_topk_prob", 0, 0, &d.routing.renormalizes, err));
  TWS_TRY(tws_decoder_read(b, known, &d, err));
  d.expert_inner = b->net->intermediate;
  return tws_decoder_build(b, &d, err);
}
