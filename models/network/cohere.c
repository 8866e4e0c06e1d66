/* Command R and Aya 23 (keys as in Hugging Face's CohereConfig): branches side by side behind one LayerNorm without a
 * bias, neighbours of a head turned, logits times a factor, the embedding's weights as the head. Command R+ has norms
 * of queries and keys (use_qk_norm), which are not modelled. */
#include "models/network/decoder.h"

tws_code tws_build_cohere(tws_network_builder *b, tws_error *err) {
  static const char *const known[] = {"attention_bias", "logit_scale", "use_qk_norm", NULL};
  tws_decoder_keys keys = tws_llama_keys;
  keys.epsilon = "layer_norm_eps";
  tws_decoder d = {.keys = &keys,
                   .positions = 8192,
                   .layer_norm = 1,
                   .order = TWS_ORDER_SIDE_BY_SIDE,
                   .epsilon = 1e-5,
                   .rope = {.interleaved = 1, .parameters = {500000}},
                   .tied = 1};
  TWS_TRY(tws_build_expect_bool(b, "use_qk_norm", 0, "models without norms of queries and keys are supported", err));
  TWS_TRY(tws_json_bool(b->json, b->json->root, "attention_bias", 0, 0, &d.qkv_bias, err));
  TWS_TRY(tws_json_number(b->json, b->json->root, "logit_scale", 0, 1e-9, 1e9, 0.0625, &d.logit_scale, err));
  d.output_bias = d.qkv_bias;
  TWS_TRY(tws_decoder_read(b, known, &d, err));
  return tws_decoder_build(b, &d, err);
}
