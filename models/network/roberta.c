/* RoBERTa and XLM-RoBERTa (Liu et al., 2019; keys as in Hugging Face's RobertaConfig): BERT's layers; no token uses the
 * first rows of the table of positions; the head of masked tokens always uses GELU. */
#include "models/network/encoder.h"

static tws_code read_keys(tws_network_builder *b, tws_encoder *e, int64_t *segments, int64_t *padding, double *dropout,
                          tws_error *err) {
  tws_network *net = b->net;
  const tws_json *json = b->json;
  TWS_TRY(tws_encoder_read_shared(b, e, segments, err));
  TWS_TRY(tws_json_int(json, json->root, "pad_token_id", 0, 0, net->vocabulary - 1, 1, padding, err));
  TWS_TRY(tws_json_int(json, json->root, "max_position_embeddings", 1, *padding + 2, TWS_MAX_WIDTH, 0, &net->positions,
                       err));
  net->positions -= *padding + 1;
  TWS_TRY(tws_json_int(json, json->root, "mask_token_id", 0, 0, net->vocabulary - 1, net->vocabulary - 1,
                       &net->mask_token, err));
  TWS_TRY(tws_encoder_read_classifier_dropout(b, e, dropout, err));
  TWS_TRY(tws_build_read_classes(b, err));
  tws_build_unknown_keys(b, tws_encoder_shared_keys, NULL);
  return TWS_OK;
}

tws_code tws_build_roberta(tws_network_builder *b, tws_error *err) {
  const tws_encoder_names names = tws_encoder_shared_names("roberta.encoder.layer");
  static const tws_masked_head_names head = {.dense = "lm_head.dense",
                                             .activation = "lm_head.activation",
                                             .norm = "lm_head.layer_norm",
                                             .scores = "lm_head.decoder",
                                             .tied_scores = "lm_head"};
  tws_encoder e = {.names = &names};
  int64_t segments = 0, padding = 0;
  double dropout = 0;
  TWS_TRY(read_keys(b, &e, &segments, &padding, &dropout, err));
  const tws_class_head classes = {.dense = "classifier.dense",
                                  .scores = "classifier.out_proj",
                                  .tags = "classifier",
                                  .activation = TWS_MODULE_SOFTCAP,
                                  .before = dropout,
                                  .behind = dropout,
                                  .tokens = dropout};
  TWS_TRY(tws_build_reserve(b, tws_encoder_stride(&e) * b->net->layers + 16, err));
  uint32_t x = tws_encoder_add_embeddings(b, &e, "roberta", padding + 1, segments);
  x = tws_encoder_add_layers(b, &e, x);
  tws_encoder_add_head(b, &e, &head, TWS_MODULE_GELU_EXACT, &classes, x);
  return TWS_OK;
}
