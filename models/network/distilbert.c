/* DistilBERT (Sanh et al., 2019; keys as in Hugging Face's DistilBertConfig): BERT's layers, without segments and
 * without dropout of attention's output. */
#include "models/network/encoder.h"

static tws_code read_keys(tws_network_builder *b, tws_encoder *e, tws_class_head *head, tws_error *err) {
  static const char *const known[] = {"n_layers",
                                      "dim",
                                      "n_heads",
                                      "hidden_dim",
                                      "max_position_embeddings",
                                      "vocab_size",
                                      "mask_token_id",
                                      "activation",
                                      "dropout",
                                      "attention_dropout",
                                      "initializer_range",
                                      "tie_word_embeddings",
                                      "tie_weights_",
                                      "sinusoidal_pos_embds",
                                      "qa_dropout",
                                      "seq_classif_dropout",
                                      NULL};
  tws_network *net = b->net;
  TWS_TRY(tws_build_size(b, "n_layers", NULL, 1, TWS_MAX_LAYERS, 0, &net->layers, err));
  TWS_TRY(tws_build_size(b, "dim", NULL, 1, TWS_MAX_WIDTH, 0, &net->hidden, err));
  TWS_TRY(tws_encoder_read_heads(b, "n_heads", err));
  TWS_TRY(tws_build_size(b, "hidden_dim", NULL, 1, TWS_MAX_WIDTH, 0, &net->intermediate, err));
  TWS_TRY(tws_build_size(b, "max_position_embeddings", NULL, 1, TWS_MAX_WIDTH, 0, &net->positions, err));
  TWS_TRY(tws_json_number(b->json, b->json->root, "initializer_range", 0, 0, 100, 0.02, &e->range, err));
  TWS_TRY(tws_json_bool(b->json, b->json->root, "tie_word_embeddings", 0, 1, &net->tied, err));
  TWS_TRY(tws_encoder_read_activation(b, "activation", "gelu", &e->activation, err));
  TWS_TRY(tws_build_expect_bool(b, "sinusoidal_pos_embds", 0, "positions are learned here", err));
  TWS_TRY(tws_encoder_read_mask_token(b, err));
  TWS_TRY(tws_build_dropout_share(b, "dropout", &e->dropout, err));
  TWS_TRY(tws_build_dropout_share(b, "attention_dropout", &e->attention_dropout, err));
  head->behind = 0.2; /* Transformers' default */
  head->spans = 0.1;
  head->tokens = e->dropout;
  if (cJSON_HasObjectItem(b->json->root, "seq_classif_dropout"))
    TWS_TRY(tws_build_dropout_share(b, "seq_classif_dropout", &head->behind, err));
  if (cJSON_HasObjectItem(b->json->root, "qa_dropout"))
    TWS_TRY(tws_build_dropout_share(b, "qa_dropout", &head->spans, err));
  TWS_TRY(tws_build_read_classes(b, err));
  tws_build_unknown_keys(b, known, NULL);
  return TWS_OK;
}

tws_code tws_build_distilbert(tws_network_builder *b, tws_error *err) {
  static const tws_encoder_names names = {.layer = "distilbert.transformer.layer",
                                          .qkv = "attention.qkv_lin",
                                          .out = "attention.out_lin",
                                          .norm_1 = "sa_layer_norm",
                                          .up = "ffn.lin1",
                                          .down = "ffn.lin2",
                                          .norm_2 = "output_layer_norm"};
  static const tws_masked_head_names head = {.dense = "vocab_transform",
                                             .activation = "vocab_activation",
                                             .norm = "vocab_layer_norm",
                                             .scores = "vocab_projector",
                                             .tied_scores = "vocab_projector"};
  tws_encoder e = {.names = &names, .epsilon = 1e-12, .keeps_attended = 1};
  tws_class_head classes = {
      .dense = "pre_classifier", .scores = "classifier", .tags = "classifier", .activation = TWS_MODULE_RELU};
  TWS_TRY(read_keys(b, &e, &classes, err));
  TWS_TRY(tws_build_reserve(b, tws_encoder_stride(&e) * b->net->layers + 16, err));
  uint32_t x = tws_build_embedding(b, "distilbert.embeddings", "distilbert.embeddings.word_embeddings.weight",
                                   "distilbert.embeddings.position_embeddings.weight", (float)e.range);
  e.lengths = tws_encoder_add_lengths(b);
  x = tws_build_norm(b, -1, "distilbert.embeddings.LayerNorm", x, 0, e.epsilon);
  x = tws_build_dropout(b, -1, "distilbert.embeddings.dropout", x, e.dropout);
  x = tws_encoder_add_layers(b, &e, x);
  tws_encoder_add_head(b, &e, &head, e.activation, &classes, x);
  return TWS_OK;
}
