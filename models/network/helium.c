/* Helium (Kyutai, 2025; keys as in Hugging Face's HeliumConfig): Llama with rotary positions on adjacent elements of a
 * head; its output projection has no bias. */
#include "models/network/decoder.h"

tws_code tws_build_helium(tws_network_builder *b, tws_error *err) {
  static const char *const known[] = {"attention_bias", "mlp_bias", NULL};
  const tws_json *json = b->json;
  tws_decoder d = {.positions = 4096,
                   .kv_heads = 20,
                   .head_size = 128,
                   .epsilon = 1e-8,
                   .rope = {.interleaved = 1, .parameters = {100000}}};
  TWS_TRY(tws_json_bool(json, json->root, "attention_bias", 0, 0, &d.qkv_bias, err));
  TWS_TRY(tws_json_bool(json, json->root, "mlp_bias", 0, 0, &d.mlp_bias, err));
  TWS_TRY(tws_decoder_read(b, known, &d, err));
  if (b->net->heads * b->net->head_size != b->net->hidden)
    return tws_json_fail(b->json, cJSON_GetObjectItemCaseSensitive(json->root, "head_dim"), err,
                         "give a head_dim that heads make the hidden size of",
                         "%lld heads of %lld are not the hidden size %lld, which the output projection reads",
                         (long long)b->net->heads, (long long)b->net->head_size, (long long)b->net->hidden);
  return tws_decoder_build(b, &d, err);
}
