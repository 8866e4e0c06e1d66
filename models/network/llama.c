/* Llama (keys as in Hugging Face's LlamaConfig), whose biases are off by default. */
#include "models/network/decoder.h"

tws_code tws_build_llama(tws_network_builder *b, tws_error *err) {
  static const char *const known[] = {"attention_bias", "mlp_bias", "pretraining_tp", NULL};
  const tws_json *json = b->json;
  tws_decoder d = {.positions = 2048};
  TWS_TRY(tws_json_bool(json, json->root, "attention_bias", 0, 0, &d.qkv_bias, err));
  TWS_TRY(tws_json_bool(json, json->root, "mlp_bias", 0, 0, &d.mlp_bias, err));
  d.output_bias = d.qkv_bias;
  TWS_TRY(tws_decoder_read(b, known, &d, err));
  int64_t slices = 1;
  TWS_TRY(tws_build_size(b, "pretraining_tp", NULL, 0, TWS_MAX_HEADS, 1, &slices, err));
  if (slices != 1) tws_text_add(&b->notes, "pretraining_tp has no effect: projections are not sliced\n");
  return tws_decoder_build(b, &d, err);
}
