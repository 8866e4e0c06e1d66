/* HyperCLOVA X SEED Think (NAVER, 2025; keys as in Hugging Face's HyperCLOVAXConfig): Llama with factors of embeddings,
 * scores, branches and logits, and norms before and after both branches. */
#include "models/network/decoder.h"

tws_code tws_build_hyperclovax(tws_network_builder *b, tws_error *err) {
  static const char *const known[] = {
      "attention_bias",      "mlp_bias",       "embedding_multiplier", "attention_multiplier",
      "residual_multiplier", "logits_scaling", "use_post_norm",        NULL};
  const tws_json *json = b->json;
  tws_decoder_names names = tws_llama_names;
  int behind = 1;
  names.norm[1] = "post_norm1";
  names.norm[3] = "post_norm2";
  tws_decoder d = {.names = &names, .positions = 2048};
  TWS_TRY(tws_json_bool(json, json->root, "attention_bias", 0, 0, &d.qkv_bias, err));
  TWS_TRY(tws_json_bool(json, json->root, "mlp_bias", 0, 0, &d.mlp_bias, err));
  TWS_TRY(tws_json_bool(json, json->root, "use_post_norm", 0, 1, &behind, err));
  TWS_TRY(tws_json_number(json, json->root, "embedding_multiplier", 0, 1e-9, 1e9, 1, &d.embedding_scale, err));
  TWS_TRY(tws_build_optional_number(b, "attention_multiplier", 0, &d.attention_scale, err));
  TWS_TRY(tws_json_number(json, json->root, "residual_multiplier", 0, 1e-9, 1e9, 1, &d.residual_scale, err));
  TWS_TRY(tws_json_number(json, json->root, "logits_scaling", 0, 1e-9, 1e9, 1, &d.logit_scale, err));
  d.output_bias = d.qkv_bias;
  if (behind) d.order = TWS_ORDER_BOTH;
  TWS_TRY(tws_decoder_read(b, known, &d, err));
  return tws_decoder_build(b, &d, err);
}
