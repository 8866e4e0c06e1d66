/* GPT-NeoX and Pythia (Black et al., 2022; keys as in Hugging Face's GPTNeoXConfig): rotary positions on a part of each
 * head, attention and MLP in parallel with a LayerNorm before each, files with queries, keys and values interleaved by
 * head. */
#include "models/network/decoder.h"

tws_code tws_build_gpt_neox(tws_network_builder *b, tws_error *err) {
  static const char *const known[] = {"rotary_pct",
                                      "rotary_emb_base",
                                      "partial_rotary_factor",
                                      "use_parallel_residual",
                                      "attention_bias",
                                      "classifier_dropout",
                                      NULL};
  static const tws_decoder_names names = {.embedding = "gpt_neox.embed_in",
                                          .layer = "gpt_neox.layers.",
                                          .norm = {"input_layernorm", NULL, "post_attention_layernorm"},
                                          .qkv = "attention.query_key_value",
                                          .rope = "attention.rope",
                                          .attention = "attention",
                                          .output = "attention.dense",
                                          .up = "mlp.dense_h_to_4h",
                                          .act = "mlp.act",
                                          .down = "mlp.dense_4h_to_h",
                                          .final_norm = "gpt_neox.final_layer_norm",
                                          .head = "embed_out"};
  const tws_json *json = b->json;
  tws_decoder_keys keys = tws_llama_keys;
  static const tws_decoder_drops drops = {.attention = "attention_dropout",
                                          .attended = "hidden_dropout",
                                          .inner = "hidden_dropout",
                                          .embedding = "hidden_dropout"};
  tws_decoder d = {.drops = &drops,
                   .names = &names,
                   .keys = &keys,
                   .positions = 2048,
                   .activation = "gelu",
                   .ungated = 1,
                   .layer_norm = 1,
                   .norm_bias = 1,
                   .two_norms = 1,
                   .output_bias = 1,
                   .mlp_bias = 1,
                   .qkv_groups = -1,
                   .epsilon = 1e-5};
  int side_by_side = 1;
  keys.epsilon = "layer_norm_eps";
  keys.kv_heads = NULL;
  TWS_TRY(tws_json_bool(json, json->root, "use_parallel_residual", 0, 1, &side_by_side, err));
  TWS_TRY(tws_json_bool(json, json->root, "attention_bias", 0, 1, &d.qkv_bias, err));
  if (side_by_side) d.order = TWS_ORDER_SIDE_BY_SIDE;
  d.output_bias = d.qkv_bias;
  TWS_TRY(tws_json_number(json, json->root, "rotary_pct", 0, 1e-6, 1, 0.25, &d.rope.share, err));
  TWS_TRY(tws_json_number(json, json->root, "partial_rotary_factor", 0, 1e-6, 1, d.rope.share, &d.rope.share, err));
  TWS_TRY(tws_json_number(json, json->root, "rotary_emb_base", 0, 1, 1e12, 10000, d.rope.parameters, err));
  TWS_TRY(tws_decoder_read(b, known, &d, err));
  return tws_decoder_build(b, &d, err);
}
