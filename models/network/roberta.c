/* RoBERTa and XLM-RoBERTa (Liu et al., 2019; keys as in Hugging Face's RobertaConfig): BERT's layers; the first rows of
 * the table of positions are not of tokens; the transform of masked tokens is by GELU always. */
#include <string.h>
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
  const char *positions = NULL;
  TWS_TRY(tws_build_size(b, "num_hidden_layers", NULL, 1, TWS_MAX_LAYERS, 0, &net->layers, err));
  TWS_TRY(tws_build_size(b, "hidden_size", NULL, 1, TWS_MAX_WIDTH, 0, &net->hidden, err));
  TWS_TRY(tws_encoder_read_heads(b, "num_attention_heads", err));
  TWS_TRY(tws_build_size(b, "intermediate_size", NULL, 1, TWS_MAX_WIDTH, 0, &net->intermediate, err));
  TWS_TRY(tws_build_size(b, "type_vocab_size", NULL, 0, TWS_MAX_WIDTH, 2, segments, err));
  TWS_TRY(tws_json_int(json, json->root, "pad_token_id", 0, 0, net->vocabulary - 1, 1, padding, err));
  TWS_TRY(tws_json_int(json, json->root, "max_position_embeddings", 1, *padding + 2, TWS_MAX_WIDTH, 0, &net->positions,
                       err));
  net->positions -= *padding + 1;
  TWS_TRY(tws_json_number(json, json->root, "layer_norm_eps", 0, 1e-20, 1, 1e-12, &e->epsilon, err));
  TWS_TRY(tws_json_number(json, json->root, "initializer_range", 0, 0, 100, 0.02, &e->range, err));
  TWS_TRY(tws_json_bool(json, json->root, "tie_word_embeddings", 0, 1, &net->tied, err));
  TWS_TRY(tws_encoder_read_activation(b, "hidden_act", "gelu", &e->activation, err));
  TWS_TRY(tws_json_string(json, json->root, "position_embedding_type", 0, "absolute", &positions, err));
  if (strcmp(positions, "absolute") != 0)
    return tws_json_fail(json, cJSON_GetObjectItemCaseSensitive(json->root, "position_embedding_type"), err,
                         "known here: absolute", "position_embedding_type \"%.60s\" is not supported", positions);
  TWS_TRY(tws_build_expect_bool(b, "is_decoder", 0, "only encoders are supported", err));
  TWS_TRY(tws_build_expect_bool(b, "add_cross_attention", 0, "only encoders are supported", err));
  TWS_TRY(tws_build_expect_bool(b, "is_encoder_decoder", 0, "only encoders are supported", err));
  TWS_TRY(tws_json_int(json, json->root, "mask_token_id", 0, 0, net->vocabulary - 1, net->vocabulary - 1,
                       &net->mask_token, err));
  TWS_TRY(tws_build_dropout_share(b, "hidden_dropout_prob", &e->dropout, err));
  TWS_TRY(tws_build_dropout_share(b, "attention_probs_dropout_prob", &e->attention_dropout, err));
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
