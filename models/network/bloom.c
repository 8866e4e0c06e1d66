/* BLOOM (Scao et al., 2022; keys as in Hugging Face's BloomConfig): ALiBi, a norm after the embedding, biases, files
 * with queries, keys and values interleaved by head. */
#include "models/network/decoder.h"

tws_code tws_build_bloom(tws_network_builder *b, tws_error *err) {
  static const char *const known[] = {"apply_residual_connection_post_layernorm",
                                      "pretraining_tp",
                                      "slow_but_exact",
                                      "seq_length",
                                      "offset_alibi",
                                      "n_inner",
                                      "unk_token_id",
                                      "skip_bias_add",
                                      "skip_bias_add_qkv",
                                      "attention_softmax_in_fp32",
                                      "masked_softmax_fusion",
                                      "bias_dropout_fusion",
                                      NULL};
  static const tws_decoder_names names = {.embedding = "transformer.word_embeddings",
                                          .embedding_norm = "transformer.word_embeddings_layernorm",
                                          .layer = "transformer.h.",
                                          .norm = {"input_layernorm", NULL, "post_attention_layernorm"},
                                          .qkv = "self_attention.query_key_value",
                                          .attention = "self_attention",
                                          .output = "self_attention.dense",
                                          .up = "mlp.dense_h_to_4h",
                                          .act = "mlp.act",
                                          .down = "mlp.dense_4h_to_h",
                                          .final_norm = "transformer.ln_f",
                                          .head = "lm_head"};
  static const tws_decoder_keys keys = {.layers = "n_layer|num_hidden_layers",
                                        .hidden = "hidden_size|n_embed",
                                        .heads = "n_head|num_attention_heads",
                                        .epsilon = "layer_norm_epsilon"};
  static const tws_decoder_drops drops = {
      .attention = "attention_dropout", .attended = "hidden_dropout", .inner = "hidden_dropout"};
  tws_decoder d = {.drops = &drops,
                   .names = &names,
                   .keys = &keys,
                   .positions = TWS_MAX_WIDTH, /* no limit, because ALiBi has no table of positions */
                   .inner = 4,
                   .activation = "gelu_new",
                   .ungated = 1,
                   .layer_norm = 1,
                   .norm_bias = 1,
                   .position = TWS_POSITIONS_LINEAR,
                   .qkv_bias = 1,
                   .output_bias = 1,
                   .mlp_bias = 1,
                   .qkv_groups = -1,
                   .epsilon = 1e-5,
                   .tied = 1};
  TWS_TRY(tws_build_expect_bool(b, "apply_residual_connection_post_layernorm", 0, "set it to false", err));
  TWS_TRY(tws_decoder_read(b, known, &d, err));
  return tws_decoder_build(b, &d, err);
}
