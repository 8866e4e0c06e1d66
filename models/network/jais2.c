/* Jais 2 (Inception and MBZUAI, 2025; keys as in Hugging Face's Jais2Config): Llama with LayerNorm, biases everywhere
 * and squared ReLU without a gate. */
#include "models/network/decoder.h"

tws_code tws_build_jais2(tws_network_builder *b, tws_error *err) {
  static const char *const known[] = {"attention_bias", "mlp_bias", NULL};
  const tws_json *json = b->json;
  tws_decoder_names names = tws_llama_names;
  tws_decoder_keys keys = tws_llama_keys;
  names.up = "mlp.up_proj";
  keys.epsilon = "layer_norm_eps";
  tws_decoder d = {.names = &names,
                   .keys = &keys,
                   .positions = 8192,
                   .activation = "relu2",
                   .ungated = 1,
                   .layer_norm = 1,
                   .norm_bias = 1,
                   .epsilon = 1e-5};
  TWS_TRY(tws_json_bool(json, json->root, "attention_bias", 0, 1, &d.qkv_bias, err));
  TWS_TRY(tws_json_bool(json, json->root, "mlp_bias", 0, 1, &d.mlp_bias, err));
  d.output_bias = d.qkv_bias;
  TWS_TRY(tws_decoder_read(b, known, &d, err));
  return tws_decoder_build(b, &d, err);
}
