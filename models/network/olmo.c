/* OLMo 1 (Groeneveld et al., 2024; keys as in Hugging Face's OlmoConfig): Llama with LayerNorm that has no parameters.
 */
#include "models/network/decoder.h"

tws_code tws_build_olmo(tws_network_builder *b, tws_error *err) {
  static const char *const known[] = {"attention_bias", "clip_qkv", NULL};
  static const tws_decoder_keys keys = {.layers = "num_hidden_layers",
                                        .hidden = "hidden_size",
                                        .heads = "num_attention_heads",
                                        .kv_heads = "num_key_value_heads",
                                        .inner = "intermediate_size",
                                        .positions = "max_position_embeddings",
                                        .activation = "hidden_act"};
  tws_decoder d = {.keys = &keys, .positions = 2048, .layer_norm = 1, .plain_norms = 1, .epsilon = 1e-5};
  double clip = 0;
  TWS_TRY(tws_build_optional_number(b, "clip_qkv", 0, &clip, err));
  if (clip > 0) {
    tws_json_fail(b->json, cJSON_GetObjectItemCaseSensitive(b->json->root, "clip_qkv"), err,
                  "models with null are supported", "queries, keys and values that are clipped are not supported");
    if (err != NULL) err->code = TWS_UNSUPPORTED;
    return TWS_UNSUPPORTED;
  }
  TWS_TRY(tws_json_bool(b->json, b->json->root, "attention_bias", 0, 0, &d.qkv_bias, err));
  d.output_bias = d.qkv_bias;
  TWS_TRY(tws_decoder_read(b, known, &d, err));
  return tws_decoder_build(b, &d, err);
}
