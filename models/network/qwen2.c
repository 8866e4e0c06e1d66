/* Qwen2 and Qwen2.5 (Yang et al., 2024; keys as in Hugging Face's Qwen2Config): Llama with biases of queries, keys and
 * values only, and an optional sliding window in the layers from max_window_layers on. */
#include "models/network/decoder.h"

tws_code tws_build_qwen2(tws_network_builder *b, tws_error *err) {
  static const char *const known[] = {"use_sliding_window", "sliding_window", "max_window_layers",
                                      "layer_types",        "use_mrope",      NULL};
  const tws_json *json = b->json;
  tws_decoder d = {.positions = 32768, .kv_heads = 32, .qkv_bias = 1};
  int slides = 0;
  TWS_TRY(tws_build_expect_bool(b, "use_mrope", 0, "only texts are modelled", err));
  TWS_TRY(tws_json_bool(json, json->root, "use_sliding_window", 0, 0, &slides, err));
  if (slides) {
    TWS_TRY(tws_build_size(b, "sliding_window", NULL, 0, TWS_MAX_WIDTH, 4096, &d.window, err));
    TWS_TRY(tws_json_int(json, json->root, "max_window_layers", 0, 0, TWS_MAX_LAYERS, 28, &d.window_layer, err));
  }
  TWS_TRY(tws_decoder_read(b, known, &d, err));
  return tws_decoder_build(b, &d, err);
}
