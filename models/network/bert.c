/* BERT (Devlin et al., 2019; keys as in Hugging Face's BertConfig): learned positions, segments, norms of the residual
 * sums, GELU; masked tokens are predicted with the token embedding's weights. */
#include <string.h>
#include "models/network/encoder.h"

typedef struct bert {
  tws_encoder encoder;
  int64_t segments;
} bert;

static tws_code read_sizes(tws_network_builder *b, bert *m, tws_error *err) {
  tws_network *net = b->net;
  TWS_TRY(tws_build_size(b, "num_hidden_layers", NULL, 1, TWS_MAX_LAYERS, 0, &net->layers, err));
  TWS_TRY(tws_build_size(b, "hidden_size", NULL, 1, TWS_MAX_WIDTH, 0, &net->hidden, err));
  TWS_TRY(tws_build_size(b, "num_attention_heads", NULL, 1, TWS_MAX_HEADS, 0, &net->heads, err));
  TWS_TRY(tws_build_size(b, "intermediate_size", NULL, 1, TWS_MAX_WIDTH, 0, &net->intermediate, err));
  TWS_TRY(tws_build_size(b, "max_position_embeddings", NULL, 1, TWS_MAX_WIDTH, 0, &net->positions, err));
  TWS_TRY(tws_build_size(b, "type_vocab_size", NULL, 0, TWS_MAX_WIDTH, 2, &m->segments, err));
  TWS_TRY(tws_build_size(b, "max_predictions_per_seq", NULL, 0, TWS_MAX_WIDTH, 0, &net->predictions, err));
  if (net->hidden % net->heads != 0)
    return tws_json_fail(b->json, cJSON_GetObjectItemCaseSensitive(b->json->root, "num_attention_heads"), err,
                         "choose a number of heads that divides the hidden size",
                         "%lld heads do not divide the hidden size %lld", (long long)net->heads,
                         (long long)net->hidden);
  net->kv_heads = net->heads;
  net->head_size = net->hidden / net->heads;
  return TWS_OK;
}

/* [MASK] has the same place in all vocabularies that Google published; a file may say another. */
static tws_code read_mask_token(tws_network_builder *b, tws_error *err) {
  enum { MASK = 103, PUBLISHED = 1000 };
  const int64_t usual = b->net->vocabulary > PUBLISHED ? MASK : b->net->vocabulary - 1;
  return tws_json_int(b->json, b->json->root, "mask_token_id", 0, 0, b->net->vocabulary - 1, usual, &b->net->mask_token,
                      err);
}

static tws_code read_rest(tws_network_builder *b, bert *m, tws_error *err) {
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
  const cJSON *root = b->json->root;
  const char *positions = NULL;
  TWS_TRY(tws_json_number(b->json, root, "layer_norm_eps", 0, 1e-20, 1, 1e-12, &m->encoder.epsilon, err));
  TWS_TRY(tws_json_number(b->json, root, "initializer_range", 0, 0, 100, 0.02, &m->encoder.range, err));
  TWS_TRY(tws_json_bool(b->json, root, "tie_word_embeddings", 0, 1, &b->net->tied, err));
  TWS_TRY(tws_encoder_read_activation(b, "hidden_act", "gelu", &m->encoder.activation, err));
  TWS_TRY(tws_json_string(b->json, root, "position_embedding_type", 0, "absolute", &positions, err));
  if (strcmp(positions, "absolute") != 0) {
    tws_json_fail(b->json, cJSON_GetObjectItemCaseSensitive(root, "position_embedding_type"), err,
                  "known here: absolute", "position_embedding_type \"%.60s\" is not supported", positions);
    if (err != NULL) err->code = TWS_UNSUPPORTED;
    return TWS_UNSUPPORTED;
  }
  TWS_TRY(tws_build_expect_bool(b, "is_decoder", 0, "only encoders are supported", err));
  TWS_TRY(tws_build_expect_bool(b, "add_cross_attention", 0, "only encoders are supported", err));
  TWS_TRY(tws_build_expect_bool(b, "is_encoder_decoder", 0, "only encoders are supported", err));
  TWS_TRY(read_mask_token(b, err));
  TWS_TRY(tws_build_dropout_share(b, "hidden_dropout_prob", &m->encoder.dropout, err));
  TWS_TRY(tws_build_dropout_share(b, "attention_probs_dropout_prob", &m->encoder.attention_dropout, err));
  tws_build_unknown_keys(b, known, NULL);
  return TWS_OK;
}

/* Scores of the vocabulary behind the last layer, of all tokens or of those that may be predicted. */
static void add_predictions(tws_network_builder *b, const bert *m, uint32_t x) {
  tws_network *net = b->net;
  const float std = (float)m->encoder.range;
  const uint32_t tied = net->tied ? net->modules[0].param[0] : TWS_NONE;
  x = tws_build_linear(b, -2, "cls.predictions.transform.dense", x, net->hidden, net->hidden, std, 1, NULL, TWS_NONE);
  x = tws_build_pointwise(b, -2, "cls.predictions.transform.activation", m->encoder.activation, x, net->hidden);
  x = tws_build_norm(b, -2, "cls.predictions.transform.LayerNorm", x, 0, m->encoder.epsilon);
  x = tws_build_linear(b, -2, tied != TWS_NONE ? "cls.predictions" : "cls.predictions.decoder", x, net->hidden,
                       net->padded_vocabulary, std, 1, NULL, tied);
  tws_build_loss(b, x);
}

tws_code tws_build_bert(tws_network_builder *b, tws_error *err) {
  static const tws_encoder_names names = {.layer = "bert.encoder.layer.%d",
                                          .qkv = "attention.self.qkv",
                                          .out = "attention.output.dense",
                                          .norm_1 = "attention.output.LayerNorm",
                                          .up = "intermediate.dense",
                                          .down = "output.dense",
                                          .norm_2 = "output.LayerNorm"};
  tws_network *net = b->net;
  bert m = {.encoder = {.names = &names, .qkv_bias = 1}};
  TWS_TRY(read_sizes(b, &m, err));
  TWS_TRY(read_rest(b, &m, err));
  TWS_TRY(tws_build_reserve(b, tws_encoder_stride(&m.encoder) * net->layers + 16, err));
  net->objective = TWS_OBJECTIVE_MASKED;
  uint32_t x = tws_build_embedding(b, "bert.embeddings", "bert.embeddings.word_embeddings.weight",
                                   "bert.embeddings.position_embeddings.weight", (float)m.encoder.range);
  tws_build_segments(b, "bert.embeddings.token_type_embeddings.weight", m.segments, (float)m.encoder.range);
  m.encoder.lengths = tws_encoder_add_lengths(b);
  x = tws_build_norm(b, -1, "bert.embeddings.LayerNorm", x, 0, m.encoder.epsilon);
  x = tws_build_dropout(b, -1, "bert.embeddings.dropout", x, m.encoder.dropout);
  x = tws_encoder_add_layers(b, &m.encoder, x);
  add_predictions(b, &m, x);
  return TWS_OK;
}
