/* Phi-1.5 and Phi-2 (Li et al., 2023; keys as in Hugging Face's PhiConfig): attention and MLP in parallel after one
 * LayerNorm, biases everywhere, rotary positions on a part of each head. */
#include "models/network/decoder.h"

tws_code tws_build_phi(tws_network_builder *b, tws_error *err) {
  static const char *const known[] = {"partial_rotary_factor", "qk_layernorm", NULL};
  static const tws_decoder_names names = {.embedding = "model.embed_tokens",
                                          .layer = "model.layers.",
                                          .norm = {"input_layernorm"},
                                          .qkv = "self_attn.qkv_proj",
                                          .rope = "self_attn.rope",
                                          .attention = "self_attn",
                                          .output = "self_attn.dense",
                                          .up = "mlp.fc1",
                                          .act = "mlp.act",
                                          .down = "mlp.fc2",
                                          .final_norm = "model.final_layernorm",
                                          .head = "lm_head"};
  tws_decoder_keys keys = tws_llama_keys;
  static const tws_decoder_drops drops = {
      .attention = "attention_dropout", .attended = "resid_pdrop", .inner = "resid_pdrop", .embedding = "embd_pdrop"};
  tws_decoder d = {.drops = &drops,
                   .names = &names,
                   .keys = &keys,
                   .positions = 2048,
                   .activation = "gelu_new",
                   .ungated = 1,
                   .layer_norm = 1,
                   .norm_bias = 1,
                   .order = TWS_ORDER_SIDE_BY_SIDE,
                   .qkv_bias = 1,
                   .output_bias = 1,
                   .mlp_bias = 1,
                   .head_bias = 1,
                   .epsilon = 1e-5};
  keys.epsilon = "layer_norm_eps";
  TWS_TRY(tws_build_expect_bool(b, "qk_layernorm", 0, "set it to false", err));
  TWS_TRY(tws_json_number(b->json, b->json->root, "partial_rotary_factor", 0, 1e-6, 1, 0.5, &d.rope.share, err));
  TWS_TRY(tws_decoder_read(b, known, &d, err));
  return tws_decoder_build(b, &d, err);
}
