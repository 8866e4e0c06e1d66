/* Nemotron 3 and 4, Minitron (Parmar et al., 2024; keys as in Hugging Face's NemotronConfig): LayerNorm that adds one
 * to its weights, squared ReLU without a gate, rotary positions on a part of each head. */
#include "models/network/decoder.h"

tws_code tws_build_nemotron(tws_network_builder *b, tws_error *err) {
  static const char *const known[] = {"attention_bias", "mlp_bias", "partial_rotary_factor", NULL};
  const tws_json *json = b->json;
  tws_decoder_names names = tws_llama_names;
  tws_decoder_keys keys = tws_llama_keys;
  names.up = "mlp.up_proj";
  keys.epsilon = "norm_eps";
  tws_decoder d = {.names = &names,
                   .keys = &keys,
                   .positions = 4096,
                   .activation = "relu2",
                   .ungated = 1,
                   .layer_norm = 1,
                   .norm_bias = 1,
                   .norm_offset = 1,
                   .epsilon = 1e-5,
                   .range = 0.0134};
  TWS_TRY(tws_json_bool(json, json->root, "attention_bias", 0, 0, &d.qkv_bias, err));
  TWS_TRY(tws_json_bool(json, json->root, "mlp_bias", 0, 0, &d.mlp_bias, err));
  TWS_TRY(tws_json_number(json, json->root, "partial_rotary_factor", 0, 1e-6, 1, 0.5, &d.rope.share, err));
  d.output_bias = d.qkv_bias;
  TWS_TRY(tws_decoder_read(b, known, &d, err));
  return tws_decoder_build(b, &d, err);
}
