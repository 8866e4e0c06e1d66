/* OLMoE (Muennighoff et al., 2024; keys as in Hugging Face's OlmoeConfig): experts in all layers, norms of all queries
 * and all keys. Models whose queries, keys and values are clipped (clip_qkv) are refused. */
#include "models/network/decoder.h"

tws_code tws_build_olmoe(tws_network_builder *b, tws_error *err) {
  static const char *const known[] = {"attention_bias",      "num_experts",          "num_local_experts",
                                      "num_experts_per_tok", "norm_topk_prob",       "router_aux_loss_coef",
                                      "router_z_loss_coef",  "output_router_logits", NULL};
  const tws_json *json = b->json;
  tws_decoder d = {
      .positions = 4096, .head_norms = TWS_HEADS_TOGETHER, .epsilon = 1e-5, .inner = 1, .expert_block = "mlp"};
  TWS_TRY(tws_json_bool(json, json->root, "attention_bias", 0, 0, &d.qkv_bias, err));
  d.output_bias = d.qkv_bias;
  TWS_TRY(tws_decoder_read_routing(b, "num_experts", 64, 8, 0.01, &d, err));
  TWS_TRY(tws_json_bool(json, json->root, "norm_topk_prob", 0, 0, &d.routing.renormalizes, err));
  TWS_TRY(tws_decoder_read(b, known, &d, err));
  d.expert_inner = b->net->intermediate;
  return tws_decoder_build(b, &d, err);
}
