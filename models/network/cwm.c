/* Code World Model (Meta, 2025; keys as in Hugging Face's CwmConfig): Llama with a sliding window in all layers except
 * the first of every four. */
#include "models/network/decoder.h"

static tws_code read_windows(tws_network_builder *b, tws_decoder *d, tws_error *err) {
  const cJSON *types = cJSON_GetObjectItemCaseSensitive(b->json->root, "layer_types");
  int64_t layers = 0;
  TWS_TRY(tws_build_size(b, "num_hidden_layers", NULL, 1, TWS_MAX_LAYERS, 0, &layers, err));
  TWS_TRY(tws_build_size(b, "sliding_window", NULL, 0, TWS_MAX_WIDTH, 8192, &d->window, err));
  TWS_TRY(tws_decoder_read_layer_types(b, 0, d, err));
  for (int64_t i = 0; i < layers && (types == NULL || cJSON_IsNull(types)); i++) d->slides[i] = i % 4 != 0;
  return TWS_OK;
}

tws_code tws_build_cwm(tws_network_builder *b, tws_error *err) {
  static const char *const known[] = {"sliding_window", "layer_types", "mlp_bias", "pretraining_tp", NULL};
  tws_decoder d = {.positions = 131072, .kv_heads = 8, .head_size = 128, .epsilon = 1e-5};
  d.rope.parameters[0] = 1e6;
  TWS_TRY(tws_build_expect_bool(b, "mlp_bias", 0, "set it to false", err));
  TWS_TRY(read_windows(b, &d, err));
  TWS_TRY(tws_decoder_read(b, known, &d, err));
  return tws_decoder_build(b, &d, err);
}
