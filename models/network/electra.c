/* ELECTRA (Clark et al., 2020; keys as in Hugging Face's ElectraConfig): BERT's layers; classifies texts and tokens,
 * finds answers, or predicts masked tokens as the generator does. The discriminator of replaced tokens
 * (ElectraForPreTraining) and embeddings of another width than the layers' are not modelled. */
#include "models/network/encoder.h"

static tws_code read_keys(tws_network_builder *b, tws_encoder *e, int64_t *segments, double *dropout, tws_error *err) {
  static const char *const also[] = {"embedding_size", "summary_last_dropout", NULL};
  enum { USUAL = 128 };
  int64_t embedding = 0;
  TWS_TRY(tws_encoder_read_shared(b, e, segments, err));
  TWS_TRY(tws_build_size(b, "embedding_size", NULL, 0, TWS_MAX_WIDTH, USUAL, &embedding, err));
  if (embedding != b->net->hidden) {
    tws_json_fail(b->json, cJSON_GetObjectItemCaseSensitive(b->json->root, "embedding_size"), err,
                  "base and large models have the same size",
                  "embeddings of %lld elements before layers of %lld are not supported", (long long)embedding,
                  (long long)b->net->hidden);
    if (err != NULL) err->code = TWS_UNSUPPORTED;
    return TWS_UNSUPPORTED;
  }
  TWS_TRY(tws_build_size(b, "max_position_embeddings", NULL, 1, TWS_MAX_WIDTH, 0, &b->net->positions, err));
  TWS_TRY(tws_encoder_read_mask_token(b, err));
  TWS_TRY(tws_encoder_read_classifier_dropout(b, e, dropout, err));
  TWS_TRY(tws_build_read_classes(b, err));
  tws_build_unknown_keys(b, tws_encoder_shared_keys, also);
  return TWS_OK;
}

tws_code tws_build_electra(tws_network_builder *b, tws_error *err) {
  const tws_encoder_names names = tws_encoder_shared_names("electra.encoder.layer");
  static const tws_masked_head_names head = {.dense = "generator_predictions.dense",
                                             .activation = "generator_predictions.activation",
                                             .norm = "generator_predictions.LayerNorm",
                                             .scores = "generator_lm_head",
                                             .tied_scores = "generator_lm_head"};
  tws_encoder e = {.names = &names};
  int64_t segments = 0;
  double dropout = 0;
  TWS_TRY(read_keys(b, &e, &segments, &dropout, err));
  const tws_class_head classes = {.dense = "classifier.dense",
                                  .scores = "classifier.out_proj",
                                  .tags = "classifier",
                                  .activation = TWS_MODULE_GELU_EXACT,
                                  .before = dropout,
                                  .behind = dropout,
                                  .tokens = dropout};
  TWS_TRY(tws_build_reserve(b, tws_encoder_stride(&e) * b->net->layers + 16, err));
  uint32_t x = tws_encoder_add_embeddings(b, &e, "electra", 0, segments);
  x = tws_encoder_add_layers(b, &e, x);
  tws_encoder_add_head(b, &e, &head, TWS_MODULE_GELU_EXACT, &classes, x);
  return TWS_OK;
}
