/* OLMo 2 (OLMo Team, 2025; keys as in Hugging Face's Olmo2Config): norms after both branches, and of all queries and
 * all keys. */
#include "models/network/decoder.h"

tws_code tws_build_olmo2(tws_network_builder *b, tws_error *err) {
  static const char *const known[] = {"attention_bias", NULL};
  tws_decoder d = {.positions = 2048, .order = TWS_ORDER_BEHIND, .head_norms = TWS_HEADS_TOGETHER, .epsilon = 1e-5};
  TWS_TRY(tws_json_bool(b->json, b->json->root, "attention_bias", 0, 0, &d.qkv_bias, err));
  d.output_bias = d.qkv_bias;
  TWS_TRY(tws_decoder_read(b, known, &d, err));
  return tws_decoder_build(b, &d, err);
}
