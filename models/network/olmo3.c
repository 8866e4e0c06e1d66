/* OLMo 3 (OLMo Team, 2025; keys as in Hugging Face's Olmo3Config): OLMo 2 with a sliding window in three of four
 * layers; in these layers rotary positions are not scaled. */
#include "models/network/decoder.h"

tws_code tws_build_olmo3(tws_network_builder *b, tws_error *err) {
  static const char *const known[] = {"attention_bias", "sliding_window", "layer_types", NULL};
  const tws_json *json = b->json;
  const cJSON *parameters = cJSON_GetObjectItemCaseSensitive(json->root, "rope_parameters");
  const double theta = 500000;
  tws_decoder d = {.positions = 2048,
                   .order = TWS_ORDER_BEHIND,
                   .head_norms = TWS_HEADS_TOGETHER,
                   .epsilon = 1e-5,
                   .rope = {.parameters = {theta}}};
  enum { PERIOD = 4 };
  double *local = d.sliding_rope.parameters;
  TWS_TRY(tws_json_number(json, json->root, "rope_theta", 0, 1, 1e12, theta, local, err));
  if (cJSON_IsObject(parameters))
    TWS_TRY(tws_json_number(json, parameters, "rope_theta", 0, 1, 1e12, *local, local, err));
  TWS_TRY(tws_json_bool(json, json->root, "attention_bias", 0, 0, &d.qkv_bias, err));
  TWS_TRY(tws_build_size(b, "sliding_window", NULL, 0, TWS_MAX_WIDTH, 4096, &d.window, err));
  TWS_TRY(tws_decoder_read_layer_types(b, PERIOD, &d, err));
  d.output_bias = d.qkv_bias;
  TWS_TRY(tws_decoder_read(b, known, &d, err));
  return tws_decoder_build(b, &d, err);
}
