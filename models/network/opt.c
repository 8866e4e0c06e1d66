/* OPT (Zhang et al., 2022; keys as in Hugging Face's OPTConfig): learned positions, whose table has two unused rows
 * first, LayerNorm, ReLU, biases. OPT-350m has its norms after the residual sums, and an embedding that is narrower
 * than the layers. */
#include "models/network/decoder.h"

tws_code tws_build_opt(tws_network_builder *b, tws_error *err) {
  static const char *const known[] = {"do_layer_norm_before",
                                      "_remove_final_layer_norm",
                                      "word_embed_proj_dim",
                                      "enable_bias",
                                      "layer_norm_elementwise_affine",
                                      "layerdrop",
                                      "activation_dropout",
                                      "init_std",
                                      NULL};
  static const char *const dropouts[] = {"layerdrop", "activation_dropout", NULL};
  tws_decoder_names names = {.embedding = "model.decoder.embed_tokens",
                             .positions = "model.decoder.embed_positions",
                             .project_in = "model.decoder.project_in",
                             .project_out = "model.decoder.project_out",
                             .layer = "model.decoder.layers.",
                             .norm = {"self_attn_layer_norm", NULL, "final_layer_norm"},
                             .qkv = "self_attn.qkv_proj",
                             .attention = "self_attn",
                             .output = "self_attn.out_proj",
                             .up = "fc1",
                             .act = "act",
                             .down = "fc2",
                             .final_norm = "model.decoder.final_layer_norm",
                             .head = "lm_head"};
  static const tws_decoder_keys keys = {.layers = "num_hidden_layers",
                                        .hidden = "hidden_size",
                                        .heads = "num_attention_heads",
                                        .inner = "ffn_dim",
                                        .positions = "max_position_embeddings",
                                        .activation = "activation_function"};
  const tws_json *json = b->json;
  static const tws_decoder_drops drops = {.attention = "attention_dropout", .attended = "dropout", .inner = "dropout"};
  tws_decoder d = {.drops = &drops,
                   .names = &names,
                   .keys = &keys,
                   .positions = 2048,
                   .activation = "relu",
                   .ungated = 1,
                   .layer_norm = 1,
                   .norm_bias = 1,
                   .position = TWS_POSITIONS_LEARNED,
                   .first_position = 2,
                   .qkv_bias = 1,
                   .output_bias = 1,
                   .mlp_bias = 1,
                   .epsilon = 1e-5,
                   .tied = 1};
  int before, removed;
  TWS_TRY(tws_json_bool(json, json->root, "do_layer_norm_before", 0, 1, &before, err));
  TWS_TRY(tws_json_bool(json, json->root, "_remove_final_layer_norm", 0, 0, &removed, err));
  TWS_TRY(tws_build_expect_bool(b, "enable_bias", 1, "set it to true", err));
  TWS_TRY(tws_build_expect_bool(b, "layer_norm_elementwise_affine", 1, "set it to true", err));
  TWS_TRY(tws_build_dropouts(b, dropouts, err));
  TWS_TRY(tws_json_number(json, json->root, "init_std", 0, 0, 100, 0.02, &d.range, err));
  TWS_TRY(tws_decoder_read(b, known, &d, err));
  TWS_TRY(tws_build_size(b, "word_embed_proj_dim", NULL, 0, TWS_MAX_WIDTH, b->net->hidden, &d.embedding_width, err));
  if (d.embedding_width == b->net->hidden) d.embedding_width = 0;
  if (!before || removed) names.final_norm = NULL;
  if (!before) d.order = TWS_ORDER_AFTER;
  return tws_decoder_build(b, &d, err);
}
