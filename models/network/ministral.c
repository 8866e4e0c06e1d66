/* Ministral 8B (Mistral AI, 2024; keys as in Hugging Face's MinistralConfig): Mistral with a sliding window in the
 * layers that layer_types lists, or in all layers. */
#include "models/network/decoder.h"

tws_code tws_build_ministral(tws_network_builder *b, tws_error *err) {
  static const char *const known[] = {"sliding_window", "layer_types", NULL};
  const cJSON *window = cJSON_GetObjectItemCaseSensitive(b->json->root, "sliding_window");
  tws_decoder d = {.positions = 131072, .kv_heads = 8};
  if (window == NULL || !cJSON_IsNull(window)) /* null means no window; without the key the class's default is 4096 */
    TWS_TRY(tws_build_size(b, "sliding_window", NULL, 0, TWS_MAX_WIDTH, 4096, &d.window, err));
  TWS_TRY(tws_decoder_read_layer_types(b, TWS_MAX_LAYERS + 1, &d, err));
  TWS_TRY(tws_decoder_read(b, known, &d, err));
  return tws_decoder_build(b, &d, err);
}
