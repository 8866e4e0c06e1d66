/* Arcee's foundation models (AFM-4.5B; keys as in Hugging Face's ArceeConfig): Llama with an MLP that has squared ReLU
 * and no gate. */
#include "models/network/decoder.h"

tws_code tws_build_arcee(tws_network_builder *b, tws_error *err) {
  static const char *const known[] = {"attention_bias", "mlp_bias", NULL};
  const tws_json *json = b->json;
  tws_decoder_names names = tws_llama_names;
  names.up = "mlp.up_proj";
  tws_decoder d = {.names = &names, .positions = 4096, .activation = "relu2", .ungated = 1, .epsilon = 1e-5};
  TWS_TRY(tws_json_bool(json, json->root, "attention_bias", 0, 0, &d.qkv_bias, err));
  TWS_TRY(tws_json_bool(json, json->root, "mlp_bias", 0, 0, &d.mlp_bias, err));
  d.output_bias = d.qkv_bias;
  TWS_TRY(tws_decoder_read(b, known, &d, err));
  return tws_decoder_build(b, &d, err);
}
