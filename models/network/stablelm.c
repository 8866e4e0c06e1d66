/* StableLM (Bellagente et al., 2024; keys as in Hugging Face's StableLmConfig): Llama with LayerNorm and rotary
 * positions on a part of each head, or with parallel branches. */
#include "models/network/decoder.h"

tws_code tws_build_stablelm(tws_network_builder *b, tws_error *err) {
  static const char *const known[] = {"partial_rotary_factor",
                                      "rope_pct",
                                      "use_qkv_bias",
                                      "qk_layernorm",
                                      "use_parallel_residual",
                                      "num_heads",
                                      "norm_eps",
                                      "rotary_scaling_factor",
                                      NULL};
  const tws_json *json = b->json;
  tws_decoder_keys keys = tws_llama_keys;
  static const tws_decoder_drops drops = {.attention = "attention_dropout", .inner = "hidden_dropout"};
  tws_decoder d = {.drops = &drops,
                   .keys = &keys,
                   .positions = 4096,
                   .kv_heads = 32,
                   .layer_norm = 1,
                   .norm_bias = 1,
                   .epsilon = 1e-5};
  int side_by_side = 0;
  double stretched; /* unused: keys of the class's first version repeat others */
  keys.epsilon = "layer_norm_eps";
  TWS_TRY(tws_json_number(json, json->root, "rotary_scaling_factor", 0, 1, 1, 1, &stretched, err));
  TWS_TRY(tws_build_expect_bool(b, "qk_layernorm", 0, "set it to false", err));
  TWS_TRY(tws_json_bool(json, json->root, "use_parallel_residual", 0, 0, &side_by_side, err));
  if (side_by_side) d.order = TWS_ORDER_SIDE_BY_SIDE;
  TWS_TRY(tws_json_bool(json, json->root, "use_qkv_bias", 0, 0, &d.qkv_bias, err));
  TWS_TRY(tws_json_number(json, json->root, "rope_pct", 0, 1e-6, 1, 0.25, &d.rope.share, err));
  TWS_TRY(tws_json_number(json, json->root, "partial_rotary_factor", 0, 1e-6, 1, d.rope.share, &d.rope.share, err));
  TWS_TRY(tws_decoder_read(b, known, &d, err));
  return tws_decoder_build(b, &d, err);
}
