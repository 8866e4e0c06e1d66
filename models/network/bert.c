/* BERT (Devlin et al., 2019; keys as in Hugging Face's BertConfig): learned positions, segments, norms of the residual
 * sums, GELU. It predicts masked tokens with the token embedding's weights, to which the first BERT added next-sentence
 * prediction, or classifies texts or tokens. */
#include "models/network/encoder.h"

typedef struct bert {
  tws_encoder encoder;
  int64_t segments;
  double dropout; /* probability of dropout of the classifier's input */
} bert;

/* Reads the ids of the tokens that separate two texts in one sample. Defaults are those of Google's vocabularies or,
 * for a small vocabulary, the last ids before the mask token. */
static tws_code read_sentences(tws_network_builder *b, int64_t segments, tws_error *err) {
  enum { CLASS = 101, SEPARATOR = 102, SMALL = 1000 };
  tws_network *net = b->net;
  const cJSON *root = b->json->root;
  const int64_t words = net->vocabulary, small = words <= SMALL;
  net->objective = TWS_OBJECTIVE_SENTENCES;
  if (segments < 2)
    return tws_json_fail(b->json, cJSON_GetObjectItemCaseSensitive(root, "type_vocab_size"), err, "2 are usual",
                         "two texts in one have two segments, and type_vocab_size is %lld", (long long)segments);
  if (words < 4)
    return tws_json_fail(b->json, cJSON_GetObjectItemCaseSensitive(root, "vocab_size"), err, NULL,
                         "a vocabulary of %lld has no room for the marks of two texts", (long long)words);
  tws_build_known_keys(b, "cls_token_id");
  TWS_TRY(
      tws_json_int(b->json, root, "cls_token_id", 0, 0, words - 1, small ? words - 3 : CLASS, &net->class_token, err));
  TWS_TRY(tws_json_int(b->json, root, "sep_token_id", 0, 0, words - 1, small ? words - 2 : SEPARATOR,
                       &net->separator_token, err));
  return tws_json_int(b->json, root, "pad_token_id", 0, 0, words - 1, 0, &net->pad_token, err);
}

static tws_code read_keys(tws_network_builder *b, bert *m, tws_error *err) {
  /* Keys of Google's Chinese and multilingual files that Google's own program wrote. They are accepted, since they
   * describe the pooler that Hugging Face's class has. */
  static const char *const also[] = {
      "max_predictions_per_seq", "directionality",       "pooler_fc_size", "pooler_num_attention_heads",
      "pooler_num_fc_layers",    "pooler_size_per_head", "pooler_type",    NULL};
  TWS_TRY(tws_encoder_read_shared(b, &m->encoder, &m->segments, err));
  TWS_TRY(tws_build_size(b, "max_predictions_per_seq", NULL, 0, TWS_MAX_WIDTH, 0, &b->net->predictions, err));
  TWS_TRY(tws_build_size(b, "max_position_embeddings", NULL, 1, TWS_MAX_WIDTH, 0, &b->net->positions, err));
  TWS_TRY(tws_encoder_read_mask_token(b, err));
  TWS_TRY(tws_encoder_read_classifier_dropout(b, &m->encoder, &m->dropout, err));
  TWS_TRY(tws_build_read_classes(b, err));
  if (tws_build_is_class(b, "ForPreTraining")) TWS_TRY(read_sentences(b, m->segments, err));
  tws_build_unknown_keys(b, tws_encoder_shared_keys, also);
  return TWS_OK;
}

tws_code tws_build_bert(tws_network_builder *b, tws_error *err) {
  const tws_encoder_names names = tws_encoder_shared_names("bert.encoder.layer");
  static const tws_masked_head_names head = {.dense = "cls.predictions.transform.dense",
                                             .activation = "cls.predictions.transform.activation",
                                             .norm = "cls.predictions.transform.LayerNorm",
                                             .scores = "cls.predictions.decoder",
                                             .tied_scores = "cls.predictions"};
  tws_network *net = b->net;
  bert m = {.encoder = {.names = &names}};
  TWS_TRY(read_keys(b, &m, err));
  TWS_TRY(tws_build_reserve(b, tws_encoder_stride(&m.encoder) * net->layers + 16, err));
  uint32_t x = tws_encoder_add_embeddings(b, &m.encoder, "bert", 0, m.segments);
  x = tws_encoder_add_layers(b, &m.encoder, x);
  const tws_class_head classes = {.dense = "bert.pooler.dense",
                                  .scores = "classifier",
                                  .tags = "classifier",
                                  .next = "cls.seq_relationship",
                                  .activation = TWS_MODULE_SOFTCAP,
                                  .behind = m.dropout,
                                  .tokens = m.dropout};
  tws_encoder_add_head(b, &m.encoder, &head, m.encoder.activation, &classes, x);
  return TWS_OK;
}
