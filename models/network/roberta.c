/* RoBERTa and XLM-RoBERTa (Liu et al., 2019; keys as in Hugging Face's RobertaConfig): BERT's layers; the first rows of
 * the table of positions are not of tokens; the transform of masked tokens is by GELU always. */
#include "models/network/encoder.h"

static tws_code read_keys(tws_network_builder *b, tws_encoder *e, int64_t *segments, int64_t *padding, tws_error *err) {
  static const char *const known[] = {"num_hidden_layers",
                                      "hidden_size",
                                      "num_attention_heads",
                                      "intermediate_size",
                                      "max_position_embeddings",
                                      "type_vocab_size",
                                      "mask_token_id",
                                      "vocab_size",
                                      "hidden_act",
                                      "hidden_dropout_prob",
                                      "attention_probs_dropout_prob",
                                      "layer_norm_eps",
                                      "initializer_range",
                                      "tie_word_embeddings",
                                      "position_embedding_type",
                                      "is_decoder",
                                      "add_cross_attention",
                                      "is_encoder_decoder",
                                      "classifier_dropout",
                                      NULL};
  tws_network *net = b->net;
  const tws_json *json = b->json;
  TWS_TRY(tws_encoder_read_shared(b, e, segments, err));
  TWS_TRY(tws_json_int(json, json->root, "pad_token_id", 0, 0, net->vocabulary - 1, 1, padding, err));
  TWS_TRY(tws_json_int(json, json->root, "max_position_embeddings", 1, *padding + 2, TWS_MAX_WIDTH, 0, &net->positions,
                       err));
  net->positions -= *padding + 1;
  TWS_TRY(tws_json_int(json, json->root, "mask_token_id", 0, 0, net->vocabulary - 1, net->vocabulary - 1,
                       &net->mask_token, err));
  tws_build_unknown_keys(b, known, NULL);
  return TWS_OK;
}

tws_code tws_build_roberta(tws_network_builder *b, tws_error *err) {
  static const tws_encoder_names names = {.layer = "roberta.encoder.layer",
                                          .qkv = "attention.self.qkv",
                                          .out = "attention.output.dense",
                                          .norm_1 = "attention.output.LayerNorm",
                                          .up = "intermediate.dense",
                                          .down = "output.dense",
                                          .norm_2 = "output.LayerNorm"};
  static const tws_masked_head_names head = {.dense = "lm_head.dense",
                                             .activation = "lm_head.activation",
                                             .norm = "lm_head.layer_norm",
                                             .scores = "lm_head.decoder",
                                             .tied_scores = "lm_head"};
  tws_encoder e = {.names = &names};
  int64_t segments = 0, padding = 0;
  TWS_TRY(read_keys(b, &e, &segments, &padding, err));
  TWS_TRY(tws_build_reserve(b, tws_encoder_stride(&e) * b->net->layers + 16, err));
  uint32_t x = tws_build_embedding(b, "roberta.embeddings", "roberta.embeddings.word_embeddings.weight",
                                   "roberta.embeddings.position_embeddings.weight", (float)e.range);
  tws_build_first_position(b, padding + 1);
  tws_build_segments(b, "roberta.embeddings.token_type_embeddings.weight", segments, (float)e.range);
  e.lengths = tws_encoder_add_lengths(b);
  x = tws_build_norm(b, -1, "roberta.embeddings.LayerNorm", x, 0, e.epsilon);
  x = tws_build_dropout(b, -1, "roberta.embeddings.dropout", x, e.dropout);
  x = tws_encoder_add_layers(b, &e, x);
  tws_encoder_add_masked_head(b, &e, &head, TWS_MODULE_GELU_EXACT, x);
  return TWS_OK;
}
