/* Solar Open (Upstage, 2026; keys as in Hugging Face's SolarOpenConfig): Llama's attention, and in all layers experts
 * with a sigmoid router and a shared expert. */
#include "models/network/decoder.h"

tws_code tws_build_solar_open(tws_network_builder *b, tws_error *err) {
  static const char *const known[] = {TWS_SCORED_KEYS, "attention_bias", "use_qk_norm", "intermediate_size", NULL};
  static const tws_decoder_scored usual = {.experts_key = "n_routed_experts",
                                           .shared_key = "n_shared_experts",
                                           .experts = 128,
                                           .choices = 8,
                                           .inner = 1280,
                                           .shared = 1,
                                           .renormalizes = 1,
                                           .scale = 1};
  const tws_json *json = b->json;
  tws_decoder_keys keys = tws_llama_keys;
  tws_decoder d = {.keys = &keys,
                   .inner = 1,
                   .positions = 131072,
                   .kv_heads = 8,
                   .head_size = 128,
                   .epsilon = 1e-5,
                   .rope = {.parameters = {1e6}}};
  int64_t none;
  keys.inner = NULL; /* all layers have experts */
  TWS_TRY(tws_json_int(json, json->root, "first_k_dense_replace", 0, 0, 0, 0, &none, err));
  TWS_TRY(tws_build_expect_bool(b, "use_qk_norm", 0, "set it to false", err));
  TWS_TRY(tws_json_bool(json, json->root, "attention_bias", 0, 0, &d.qkv_bias, err));
  TWS_TRY(tws_decoder_read_scored(b, &usual, &d, err));
  TWS_TRY(tws_decoder_read(b, known, &d, err));
  return tws_decoder_build(b, &d, err);
}
