/* SmolLM3 (Bakouch et al., 2025; keys as in Hugging Face's SmolLM3Config): Llama without rotary positions in one of
 * four layers. */
#include "models/network/decoder.h"

tws_code tws_build_smollm3(tws_network_builder *b, tws_error *err) {
  static const char *const known[] = {
      "attention_bias", "mlp_bias",           "no_rope_layers",    "no_rope_layer_interval", "layer_types",
      "sliding_window", "use_sliding_window", "max_window_layers", "pretraining_tp",         NULL};
  const tws_json *json = b->json;
  const cJSON *types = cJSON_GetObjectItemCaseSensitive(json->root, "layer_types");
  enum { INTERVAL = 4 };
  tws_decoder d = {.positions = 32768, .kv_heads = 4, .rope = {.parameters = {2e6}}, .tied = 1};
  int slides = 0;
  TWS_TRY(tws_json_bool(json, json->root, "attention_bias", 0, 0, &d.qkv_bias, err));
  TWS_TRY(tws_json_bool(json, json->root, "mlp_bias", 0, 0, &d.mlp_bias, err));
  TWS_TRY(tws_json_bool(json, json->root, "use_sliding_window", 0, 0, &slides, err));
  d.output_bias = d.qkv_bias;
  if (slides) TWS_TRY(tws_build_size(b, "sliding_window", NULL, 0, TWS_MAX_WIDTH, 0, &d.window, err));
  TWS_TRY(tws_decoder_read_turned(b, INTERVAL, &d, err));
  TWS_TRY(tws_decoder_read_layer_types(b, 0, &d, err));
  TWS_TRY(tws_decoder_read(b, known, &d, err));
  if (d.window > 0 && !cJSON_IsArray(types)) /* the layers without rotary positions have the sliding window */
    for (int64_t i = 0; i < b->net->layers; i++) d.slides[i] = !d.turned[i];
  return tws_decoder_build(b, &d, err);
}
