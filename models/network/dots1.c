/* dots.llm1 (rednote-hilab, 2025; keys as in Hugging Face's Dots1Config): norms of each query and key head, a few
 * layers without experts first, then experts with a sigmoid router and a shared expert. A sliding window, which
 * published files do not have, applies to the layers that `layer_types` or `max_window_layers` selects. */
#include "models/network/decoder.h"

static tws_code read_window(tws_network_builder *b, tws_decoder *d, tws_error *err) {
  const tws_json *json = b->json;
  const cJSON *window = cJSON_GetObjectItemCaseSensitive(json->root, "sliding_window");
  const cJSON *types = cJSON_GetObjectItemCaseSensitive(json->root, "layer_types");
  if (window == NULL || !cJSON_IsNull(window)) /* null means no window; without the key the class's default is 4096 */
    TWS_TRY(tws_build_size(b, "sliding_window", NULL, 0, TWS_MAX_WIDTH, 4096, &d->window, err));
  TWS_TRY(tws_json_int(json, json->root, "max_window_layers", 0, 0, TWS_MAX_LAYERS, 62, &d->window_layer, err));
  if (types == NULL || cJSON_IsNull(types)) return TWS_OK;
  return tws_decoder_read_layer_types(b, 0, d, err);
}

tws_code tws_build_dots1(tws_network_builder *b, tws_error *err) {
  static const char *const known[] = {TWS_SCORED_KEYS,     "attention_bias", "sliding_window",
                                      "max_window_layers", "layer_types",    "moe_layer_freq",
                                      "topk_method",       "scoring_func",   NULL};
  static const tws_decoder_scored usual = {.experts_key = "n_routed_experts",
                                           .shared_key = "n_shared_experts",
                                           .experts = 128,
                                           .choices = 6,
                                           .inner = 1408,
                                           .shared = 2,
                                           .scale = 1};
  tws_decoder d = {.positions = 2048, .kv_heads = 32, .head_norms = TWS_HEADS_APART};
  int64_t each;
  TWS_TRY(tws_json_int(b->json, b->json->root, "moe_layer_freq", 0, 1, 1, 1, &each, err)); /* published models have 1 */
  TWS_TRY(tws_json_bool(b->json, b->json->root, "attention_bias", 0, 0, &d.qkv_bias, err));
  d.output_bias = d.qkv_bias;
  TWS_TRY(read_window(b, &d, err));
  TWS_TRY(tws_decoder_read_scored(b, &usual, &d, err));
  TWS_TRY(tws_decoder_read(b, known, &d, err));
  return tws_decoder_build(b, &d, err);
}
