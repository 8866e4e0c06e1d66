/* Seed-OSS (ByteDance, 2025; keys as in Hugging Face's SeedOssConfig): Llama with biases of queries, keys and values,
 * and a bias of the output projection that a separate key switches. */
#include "models/network/decoder.h"

tws_code tws_build_seed_oss(tws_network_builder *b, tws_error *err) {
  static const char *const known[] = {"attention_bias", "attention_out_bias", "mlp_bias", "pretraining_tp", NULL};
  static const tws_decoder_drops drops = {
      .attention = "attention_dropout", .attended = "residual_dropout", .inner = "residual_dropout"};
  const tws_json *json = b->json;
  tws_decoder d = {.drops = &drops, .positions = 524288, .kv_heads = 8, .head_size = 128};
  int64_t slices = 1;
  TWS_TRY(tws_json_bool(json, json->root, "attention_bias", 0, 1, &d.qkv_bias, err));
  TWS_TRY(tws_json_bool(json, json->root, "attention_out_bias", 0, 0, &d.output_bias, err));
  TWS_TRY(tws_json_bool(json, json->root, "mlp_bias", 0, 0, &d.mlp_bias, err));
  TWS_TRY(tws_build_size(b, "pretraining_tp", NULL, 0, TWS_MAX_HEADS, 1, &slices, err));
  if (slices != 1) tws_text_add(&b->notes, "pretraining_tp has no effect: projections are not sliced\n");
  TWS_TRY(tws_decoder_read(b, known, &d, err));
  return tws_decoder_build(b, &d, err);
}
