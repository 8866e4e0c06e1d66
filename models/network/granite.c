/* Granite (Granite Team, 2024; keys as in Hugging Face's GraniteConfig): Llama with factors of embeddings, scores,
 * branches and logits. */
#include "models/network/decoder.h"

tws_code tws_build_granite(tws_network_builder *b, tws_error *err) {
  static const char *const known[] = {
      "attention_bias", "mlp_bias", "embedding_multiplier", "attention_multiplier", "residual_multiplier",
      "logits_scaling", NULL};
  const tws_json *json = b->json;
  tws_decoder d = {.positions = 2048};
  double divisor;
  TWS_TRY(tws_json_bool(json, json->root, "attention_bias", 0, 0, &d.qkv_bias, err));
  TWS_TRY(tws_json_bool(json, json->root, "mlp_bias", 0, 0, &d.mlp_bias, err));
  d.output_bias = d.qkv_bias;
  TWS_TRY(tws_json_number(json, json->root, "embedding_multiplier", 0, 1e-9, 1e9, 1, &d.embedding_scale, err));
  TWS_TRY(tws_json_number(json, json->root, "attention_multiplier", 0, 1e-9, 1e9, 1, &d.attention_scale, err));
  TWS_TRY(tws_json_number(json, json->root, "residual_multiplier", 0, 1e-9, 1e9, 1, &d.residual_scale, err));
  TWS_TRY(tws_json_number(json, json->root, "logits_scaling", 0, 1e-9, 1e9, 1, &divisor, err));
  d.logit_scale = 1 / divisor;
  TWS_TRY(tws_decoder_read(b, known, &d, err));
  return tws_decoder_build(b, &d, err);
}
