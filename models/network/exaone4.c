/* EXAONE 4.0 (LG AI Research, 2025; keys as in Hugging Face's Exaone4Config): norms behind both branches and of each
 * query and key head; where layers with a window and without take turns, those without have no positions. */
#include "models/network/decoder.h"

/* null, which is none; a number, or beside layer_types a word like "LLLG", which they say in full. */
static tws_code read_period(tws_network_builder *b, int64_t *period, tws_error *err) {
  const cJSON *types = cJSON_GetObjectItemCaseSensitive(b->json->root, "layer_types");
  const cJSON *pattern = cJSON_GetObjectItemCaseSensitive(b->json->root, "sliding_window_pattern");
  *period = 4;
  if (pattern != NULL && cJSON_IsNull(pattern)) *period = 0;
  if (pattern == NULL || cJSON_IsNull(pattern) || (cJSON_IsString(pattern) && cJSON_IsArray(types))) return TWS_OK;
  return tws_build_size(b, "sliding_window_pattern", NULL, 0, TWS_MAX_LAYERS, *period, period, err);
}

tws_code tws_build_exaone4(tws_network_builder *b, tws_error *err) {
  static const char *const known[] = {"sliding_window", "sliding_window_pattern", "layer_types", NULL};
  const cJSON *window = cJSON_GetObjectItemCaseSensitive(b->json->root, "sliding_window");
  tws_decoder d = {
      .positions = 2048, .kv_heads = 32, .order = TWS_ORDER_BEHIND, .head_norms = TWS_HEADS_APART, .epsilon = 1e-5};
  int64_t period;
  if (window == NULL || !cJSON_IsNull(window)) /* null is none; a file without the key has the class's 4096 */
    TWS_TRY(tws_build_size(b, "sliding_window", NULL, 0, TWS_MAX_WIDTH, 4096, &d.window, err));
  TWS_TRY(read_period(b, &period, err));
  TWS_TRY(tws_decoder_read_layer_types(b, period, &d, err));
  if (d.window > 0) d.turned = d.slides;
  TWS_TRY(tws_decoder_read(b, known, &d, err));
  return tws_decoder_build(b, &d, err);
}
