/* GLM-4 9B and GLM-Edge (Team GLM, 2024; keys as in Hugging Face's GlmConfig): Llama with biases of queries, keys and
 * values, rotary positions on adjacent elements of half of each head, gate and up in one tensor. GLM-4 of April 2025,
 * 9B and 32B, and GLM-Z1 (Glm4Config) have norms before and after both branches in addition. */
#include "models/network/decoder.h"

static tws_code build(tws_network_builder *b, const tws_decoder_names *names, tws_decoder_order order, tws_error *err) {
  static const char *const known[] = {"attention_bias", "partial_rotary_factor", NULL};
  tws_decoder d = {.names = names,
                   .positions = 131072,
                   .kv_heads = 2,
                   .head_size = 128,
                   .order = order,
                   .gate_up_whole = 1,
                   .epsilon = 1.5625e-7,
                   .rope = {.interleaved = 1}};
  TWS_TRY(tws_json_bool(b->json, b->json->root, "attention_bias", 0, 1, &d.qkv_bias, err));
  TWS_TRY(tws_json_number(b->json, b->json->root, "partial_rotary_factor", 0, 1e-6, 1, 0.5, &d.rope.share, err));
  TWS_TRY(tws_decoder_read(b, known, &d, err));
  return tws_decoder_build(b, &d, err);
}

tws_code tws_build_glm(tws_network_builder *b, tws_error *err) {
  return build(b, NULL, TWS_ORDER_BEFORE, err);
}

tws_code tws_build_glm4(tws_network_builder *b, tws_error *err) {
  tws_decoder_names names = tws_llama_names;
  names.norm[1] = "post_self_attn_layernorm";
  names.norm[2] = "post_attention_layernorm";
  names.norm[3] = "post_mlp_layernorm";
  return build(b, &names, TWS_ORDER_BOTH, err);
}
