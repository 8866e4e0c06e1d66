/* Phi-3 (Abdin et al., 2024; keys as in Hugging Face's Phi3Config): Llama whose files have joined projections. */
#include "models/network/decoder.h"

tws_code tws_build_phi3(tws_network_builder *b, tws_error *err) {
  static const char *const known[] = {"partial_rotary_factor",
                                      "sliding_window",
                                      "original_max_position_embeddings",
                                      "attention_bias",
                                      "mlp_bias",
                                      "full_attn_mod",
                                      "interpolate_factor",
                                      NULL};
  const tws_json *json = b->json;
  const cJSON *window = cJSON_GetObjectItemCaseSensitive(json->root, "sliding_window");
  static const tws_decoder_drops drops = {
      .attention = "attention_dropout", .attended = "resid_pdrop", .inner = "resid_pdrop"};
  tws_decoder d = {.drops = &drops, .positions = 4096, .qkv_groups = 1, .gate_up_whole = 1, .epsilon = 1e-5};
  int64_t one;
  d.rope.original = 4096;
  if (window != NULL && !cJSON_IsNull(window))
    TWS_TRY(tws_build_size(b, "sliding_window", NULL, 0, TWS_MAX_WIDTH, 2047, &d.window, err));
  TWS_TRY(tws_build_expect_bool(b, "attention_bias", 0, "set it to false", err));
  TWS_TRY(tws_build_expect_bool(b, "mlp_bias", 0, "set it to false", err));
  TWS_TRY(tws_json_int(json, json->root, "full_attn_mod", 0, 1, 1, 1, &one, err)); /* a key of Phi-4-mini's file */
  TWS_TRY(tws_json_int(json, json->root, "interpolate_factor", 0, 1, 1, 1, &one, err));
  TWS_TRY(tws_build_optional_number(b, "partial_rotary_factor", 0, &d.rope.share, err));
  TWS_TRY(tws_decoder_read(b, known, &d, err));
  return tws_decoder_build(b, &d, err);
}
