/* GLM-4.5 and 4.6 (GLM-4.5 Team, 2025; keys as in Hugging Face's Glm4MoeConfig): a few layers without experts first,
 * then experts with a sigmoid router and a shared expert. The biases that balance experts stay 0 in this program, and
 * the modules of multi-token prediction are left out. */
#include "models/network/decoder.h"

tws_code tws_build_glm4_moe(tws_network_builder *b, tws_error *err) {
  static const char *const known[] = {TWS_SCORED_KEYS, "attention_bias", "partial_rotary_factor", "use_qk_norm", NULL};
  static const tws_decoder_scored usual = {.experts_key = "n_routed_experts",
                                           .shared_key = "n_shared_experts",
                                           .experts = 128,
                                           .choices = 8,
                                           .inner = 1408,
                                           .shared = 1,
                                           .dense_layers = 1,
                                           .renormalizes = 1,
                                           .scale = 1};
  const tws_json *json = b->json;
  tws_decoder d = {.positions = 131072, .kv_heads = 8, .epsilon = 1e-5};
  int norms = 0;
  TWS_TRY(tws_json_bool(json, json->root, "attention_bias", 0, 0, &d.qkv_bias, err));
  TWS_TRY(tws_json_bool(json, json->root, "use_qk_norm", 0, 0, &norms, err));
  TWS_TRY(tws_json_number(json, json->root, "partial_rotary_factor", 0, 1e-6, 1, 0.5, &d.rope.share, err));
  if (norms) d.head_norms = TWS_HEADS_APART;
  TWS_TRY(tws_decoder_read_scored(b, &usual, &d, err));
  TWS_TRY(tws_decoder_read(b, known, &d, err));
  return tws_decoder_build(b, &d, err);
}
