/* ERNIE 4.5, dense (Baidu, 2025; keys as in Hugging Face's Ernie4_5Config): Llama with rotary positions on adjacent
 * elements of a head, and one key that switches all biases. */
#include "models/network/decoder.h"

tws_code tws_build_ernie(tws_network_builder *b, tws_error *err) {
  static const char *const known[] = {"use_bias", NULL};
  tws_decoder d = {.positions = 131072,
                   .kv_heads = 2,
                   .head_size = 128,
                   .epsilon = 1e-5,
                   .rope = {.interleaved = 1, .parameters = {500000}},
                   .tied = 1};
  TWS_TRY(tws_json_bool(b->json, b->json->root, "use_bias", 0, 0, &d.qkv_bias, err));
  d.output_bias = d.mlp_bias = d.qkv_bias;
  TWS_TRY(tws_decoder_read(b, known, &d, err));
  return tws_decoder_build(b, &d, err);
}
