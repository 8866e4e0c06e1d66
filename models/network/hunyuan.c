/* Hunyuan, dense (Tencent, 2025; keys as in Hugging Face's HunYuanDenseV1Config): norms of each query and key head,
 * applied after rotary positions; the key `alpha` increases the theta of the latter. Published files also have keys
 * that Hugging Face's class does not use (for experts, pictures and lists of widths). */
#include "models/network/decoder.h"

tws_code tws_build_hunyuan(tws_network_builder *b, tws_error *err) {
  static const char *const known[] = {"attention_bias",   "mlp_bias",           "use_qk_norm",    "use_rotary_pos_emb",
                                      "cla_share_factor", "attention_head_dim", "norm_type",      "dense_list",
                                      "class_num",        "pretraining_tp",     "org_vocab_size", "eod_token_id",
                                      "pad_id",           "im_end_id",          "im_start_id",    "im_newline_id",
                                      "text_end_id",      "text_start_id",      "mask_init_id",   NULL};
  tws_decoder_names names = tws_llama_names;
  names.head_norm[0] = "query_layernorm";
  names.head_norm[1] = "key_layernorm";
  tws_decoder d = {.names = &names,
                   .positions = 2048,
                   .head_norms = TWS_HEADS_APART,
                   .norms_turned = 1,
                   .epsilon = 1e-5,
                   .rope = {.alpha = 1}};
  TWS_TRY(tws_build_expect_bool(b, "mlp_bias", 0, "set it to false", err));
  TWS_TRY(tws_build_expect_bool(b, "use_qk_norm", 1, "set it to true", err));
  TWS_TRY(tws_build_expect_bool(b, "use_rotary_pos_emb", 1, "set it to true", err));
  TWS_TRY(tws_json_bool(b->json, b->json->root, "attention_bias", 0, 0, &d.qkv_bias, err));
  d.output_bias = d.qkv_bias;
  TWS_TRY(tws_decoder_read(b, known, &d, err));
  return tws_decoder_build(b, &d, err);
}
