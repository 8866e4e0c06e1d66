/* StarCoder 2 (Lozhkov et al., 2024; keys as in Hugging Face's Starcoder2Config): rotary positions, grouped-query
 * attention, LayerNorm, biases, and an MLP without a gate. */
#include "models/network/decoder.h"

tws_code tws_build_starcoder2(tws_network_builder *b, tws_error *err) {
  /* Keys of StarCoder 1 in published files, which Hugging Face's class for StarCoder 2 does not read. */
  static const char *const known[] = {"use_bias",
                                      "sliding_window",
                                      "norm_type",
                                      "mlp_type",
                                      "layer_norm_epsilon",
                                      "scale_attn_weights",
                                      "attention_softmax_in_fp32",
                                      "scale_attention_softmax_in_fp32",
                                      NULL};
  const tws_json *json = b->json;
  const cJSON *window = cJSON_GetObjectItemCaseSensitive(json->root, "sliding_window");
  tws_decoder_names names = tws_llama_names;
  tws_decoder_keys keys = tws_llama_keys;
  static const tws_decoder_drops drops = {.attention = "attention_dropout",
                                          .attended = "residual_dropout",
                                          .inner = "residual_dropout",
                                          .embedding = "embedding_dropout"};
  tws_decoder d = {.drops = &drops,
                   .names = &names,
                   .keys = &keys,
                   .positions = 4096,
                   .kv_heads = 2,
                   .activation = "gelu_pytorch_tanh",
                   .ungated = 1,
                   .layer_norm = 1,
                   .norm_bias = 1,
                   .range = 0.018042,
                   .epsilon = 1e-5,
                   .tied = 1};
  names.up = "mlp.c_fc";
  names.down = "mlp.c_proj";
  keys.epsilon = "norm_epsilon";
  TWS_TRY(tws_json_bool(json, json->root, "use_bias", 0, 1, &d.qkv_bias, err));
  d.output_bias = d.mlp_bias = d.qkv_bias;
  if (window != NULL && !cJSON_IsNull(window))
    TWS_TRY(tws_build_size(b, "sliding_window", NULL, 0, TWS_MAX_WIDTH, 4096, &d.window, err));
  TWS_TRY(tws_decoder_read(b, known, &d, err));
  return tws_decoder_build(b, &d, err);
}
