/* Qwen3 (Yang et al., 2025; keys as in Hugging Face's Qwen3Config): Qwen2 without biases, with norms of each query and
 * key head, and with a head size that files give. */
#include "models/network/decoder.h"

tws_code tws_build_qwen3(tws_network_builder *b, tws_error *err) {
  static const char *const known[] = {"use_sliding_window", "sliding_window", "max_window_layers",
                                      "layer_types",        "attention_bias", NULL};
  const tws_json *json = b->json;
  tws_decoder d = {.positions = 32768, .kv_heads = 32, .head_size = 128, .head_norms = TWS_HEADS_APART};
  int slides = 0;
  TWS_TRY(tws_json_bool(json, json->root, "attention_bias", 0, 0, &d.qkv_bias, err));
  d.output_bias = d.qkv_bias;
  TWS_TRY(tws_json_bool(json, json->root, "use_sliding_window", 0, 0, &slides, err));
  if (slides) {
    TWS_TRY(tws_build_size(b, "sliding_window", NULL, 0, TWS_MAX_WIDTH, 4096, &d.window, err));
    TWS_TRY(tws_json_int(json, json->root, "max_window_layers", 0, 0, TWS_MAX_LAYERS, 28, &d.window_layer, err));
  }
  TWS_TRY(tws_decoder_read(b, known, &d, err));
  return tws_decoder_build(b, &d, err);
}
