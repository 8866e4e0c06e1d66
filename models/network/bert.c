/* BERT (Devlin et al., 2019; keys as in Hugging Face's BertConfig): learned positions, segments, norms of the residual
 * sums, GELU; masked tokens are predicted with the token embedding's weights. */
#include "models/network/encoder.h"

typedef struct bert {
  tws_encoder encoder;
  int64_t segments;
} bert;

static tws_code read_keys(tws_network_builder *b, bert *m, tws_error *err) {
  static const char *const known[] = {"num_hidden_layers",
                                      "hidden_size",
                                      "num_attention_heads",
                                      "intermediate_size",
                                      "max_position_embeddings",
                                      "type_vocab_size",
                                      "max_predictions_per_seq",
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
  TWS_TRY(tws_encoder_read_shared(b, &m->encoder, &m->segments, err));
  TWS_TRY(tws_build_size(b, "max_predictions_per_seq", NULL, 0, TWS_MAX_WIDTH, 0, &b->net->predictions, err));
  TWS_TRY(tws_build_size(b, "max_position_embeddings", NULL, 1, TWS_MAX_WIDTH, 0, &b->net->positions, err));
  TWS_TRY(tws_encoder_read_mask_token(b, err));
  tws_build_unknown_keys(b, known, NULL);
  return TWS_OK;
}

tws_code tws_build_bert(tws_network_builder *b, tws_error *err) {
  static const tws_encoder_names names = {.layer = "bert.encoder.layer",
                                          .qkv = "attention.self.qkv",
                                          .out = "attention.output.dense",
                                          .norm_1 = "attention.output.LayerNorm",
                                          .up = "intermediate.dense",
                                          .down = "output.dense",
                                          .norm_2 = "output.LayerNorm"};
  static const tws_masked_head_names head = {.dense = "cls.predictions.transform.dense",
                                             .activation = "cls.predictions.transform.activation",
                                             .norm = "cls.predictions.transform.LayerNorm",
                                             .scores = "cls.predictions.decoder",
                                             .tied_scores = "cls.predictions"};
  tws_network *net = b->net;
  bert m = {.encoder = {.names = &names}};
  TWS_TRY(read_keys(b, &m, err));
  TWS_TRY(tws_build_reserve(b, tws_encoder_stride(&m.encoder) * net->layers + 16, err));
  uint32_t x = tws_build_embedding(b, "bert.embeddings", "bert.embeddings.word_embeddings.weight",
                                   "bert.embeddings.position_embeddings.weight", (float)m.encoder.range);
  tws_build_segments(b, "bert.embeddings.token_type_embeddings.weight", m.segments, (float)m.encoder.range);
  m.encoder.lengths = tws_encoder_add_lengths(b);
  x = tws_build_norm(b, -1, "bert.embeddings.LayerNorm", x, 0, m.encoder.epsilon);
  x = tws_build_dropout(b, -1, "bert.embeddings.dropout", x, m.encoder.dropout);
  x = tws_encoder_add_layers(b, &m.encoder, x);
  tws_encoder_add_masked_head(b, &m.encoder, &head, m.encoder.activation, x);
  return TWS_OK;
}
