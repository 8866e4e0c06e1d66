#include "models/network/encoder.h"

#include <string.h>

#include "models/kernel.h"

static const tws_dim samples_alone[] = {{.kind = TWS_DIM_SAMPLES}};

uint32_t tws_encoder_add_lengths(tws_network_builder *b) {
  return tws_build_input(b, "lengths", TWS_INPUT_LENGTHS, samples_alone, 1);
}

tws_code tws_encoder_read_activation(tws_network_builder *b, const char *key, const char *fallback,
                                     tws_module_type *activation, tws_error *err) {
  static const struct {
    const char *name;
    tws_module_type type;
  } known[] = {{"gelu", TWS_MODULE_GELU_EXACT},
               {"gelu_new", TWS_MODULE_GELU},
               {"gelu_pytorch_tanh", TWS_MODULE_GELU},
               {"relu", TWS_MODULE_RELU}};
  const char *name = NULL;
  TWS_TRY(tws_json_string(b->json, b->json->root, key, 0, fallback, &name, err));
  for (size_t i = 0; i < sizeof known / sizeof *known; i++)
    if (strcmp(name, known[i].name) == 0) {
      *activation = known[i].type;
      return TWS_OK;
    }
  tws_json_fail(b->json, cJSON_GetObjectItemCaseSensitive(b->json->root, key), err,
                "known here: gelu, gelu_new, gelu_pytorch_tanh, relu", "%s \"%.60s\" is not supported", key, name);
  if (err != NULL) err->code = TWS_UNSUPPORTED;
  return TWS_UNSUPPORTED;
}

uint32_t tws_encoder_stride(const tws_encoder *e) {
  const uint32_t attends = e->attend ? e->attention_modules : 2;
  return 8 + attends + (e->dropout > 0 ? 2 - (uint32_t)e->keeps_attended : 0);
}

/* Adds a branch to the residual stream and returns the norm of the sum. */
static uint32_t join(tws_network_builder *b, const tws_encoder *e, int layer, const char *name, const char *norm,
                     uint32_t x, uint32_t branch, double dropout) {
  branch = tws_build_dropout(b, layer, tws_build_name(b, "%s.dropout", name), branch, dropout);
  x = tws_build_add(b, layer, name, x, branch);
  return tws_build_norm(b, layer, norm, x, 0, e->epsilon);
}

static uint32_t self_attention(tws_network_builder *b, const tws_encoder *e, int layer, const char *prefix,
                               uint32_t x) {
  const int64_t hidden = b->net->hidden, qkv[3] = {hidden, hidden, hidden};
  x = tws_build_linear(b, layer, tws_build_name(b, "%s.%s", prefix, e->names->qkv), x, hidden, 3 * hidden,
                       (float)e->range, 1, qkv, TWS_NONE);
  x = tws_build_attention(b, layer, tws_build_name(b, "%s.attention", prefix), x);
  tws_encoder_set_attention(b, e);
  return x;
}

void tws_encoder_set_attention(tws_network_builder *b, const tws_encoder *e) {
  tws_module *attention = &b->net->modules[b->net->module_count - 1];
  attention->flags = TWS_BIDIRECTIONAL;
  attention->input[0] = e->lengths;
  attention->dropout = e->attention_dropout;
}

static uint32_t add_layer(tws_network_builder *b, const tws_encoder *e, int layer, uint32_t x) {
  const tws_network *net = b->net;
  const int64_t hidden = net->hidden;
  const float std = (float)e->range;
  const char *prefix = tws_build_name(b, "%s.%d", e->names->layer, layer);
#define NAME(part) tws_build_name(b, "%s.%s", prefix, part)
  uint32_t y = e->attend ? e->attend(b, e, layer, prefix, x) : self_attention(b, e, layer, prefix, x);
  y = tws_build_linear(b, layer, NAME(e->names->out), y, hidden, hidden, std, 1, NULL, TWS_NONE);
  x = join(b, e, layer, NAME("add_1"), NAME(e->names->norm_1), x, y, e->keeps_attended ? 0 : e->dropout);
  y = tws_build_linear(b, layer, NAME(e->names->up), x, hidden, net->intermediate, std, 1, NULL, TWS_NONE);
  y = tws_build_pointwise(b, layer, NAME("activation"), e->activation, y, net->intermediate);
  y = tws_build_linear(b, layer, NAME(e->names->down), y, net->intermediate, hidden, std, 1, NULL, TWS_NONE);
  return join(b, e, layer, NAME("add_2"), NAME(e->names->norm_2), x, y, e->dropout);
#undef NAME
}

uint32_t tws_encoder_add_layers(tws_network_builder *b, const tws_encoder *e, uint32_t x) {
  b->net->layer_first = b->net->module_count;
  b->net->layer_stride = tws_encoder_stride(e);
  for (int layer = 0; layer < b->net->layers; layer++) {
    const uint32_t before = x;
    x = add_layer(b, e, layer, x);
    if (e->joins) x = e->joins(b, e, layer, before, x);
  }
  return x;
}

/* Adds the scores of masked tokens after the last layer: a dense layer, activation and norm, then the product with the
 * scores' weights, which are the token embedding's if they are tied; and the loss. */
static void encoder_add_masked_head(tws_network_builder *b, const tws_encoder *e, const tws_masked_head_names *names,
                                    tws_module_type activation, uint32_t x) {
  tws_network *net = b->net;
  const float std = (float)e->range;
  const uint32_t tied = net->tied ? net->modules[0].param[0] : TWS_NONE;
  x = tws_build_linear(b, -2, names->dense, x, net->hidden, net->hidden, std, 1, NULL, TWS_NONE);
  x = tws_build_pointwise(b, -2, names->activation, activation, x, net->hidden);
  x = tws_build_norm(b, -2, names->norm, x, 0, e->epsilon);
  x = tws_build_linear(b, -2, net->tied ? names->tied_scores : names->scores, x, net->hidden, net->padded_vocabulary,
                       std, 1, NULL, tied);
  if (net->objective != TWS_OBJECTIVE_SENTENCES) net->objective = TWS_OBJECTIVE_MASKED;
  tws_build_loss(b, x);
}

/* Builds the pooled output of the first token, which the class scores read. */
static uint32_t pooled(tws_network_builder *b, const tws_encoder *e, const tws_class_head *head, uint32_t x) {
  const int64_t hidden = b->net->hidden;
  x = tws_build_sample_rows(b, "first_token", x);
  x = tws_build_dropout(b, -2, "first_token.dropout", x, head->before);
  x = tws_build_linear(b, -2, head->dense, x, hidden, hidden, (float)e->range, 1, NULL, TWS_NONE);
  const char *name = tws_build_name(b, "%s.activation", head->dense);
  return head->activation == TWS_MODULE_SOFTCAP ? tws_build_softcap(b, -2, name, x, 1)
                                                : tws_build_pointwise(b, -2, name, head->activation, x, hidden);
}

static void add_next_sentence(tws_network_builder *b, const tws_encoder *e, const tws_class_head *head, uint32_t x) {
  enum { FOLLOWS_OR_NOT = 2 };
  const uint32_t classes = tws_build_input(b, "classes", TWS_INPUT_CLASSES, samples_alone, 1);
  x = tws_build_linear(b, -2, head->next, pooled(b, e, head, x), b->net->hidden, FOLLOWS_OR_NOT, (float)e->range, 1,
                       NULL, TWS_NONE);
  tws_build_loss_of(b, "next sentence", x, classes, FOLLOWS_OR_NOT);
}

void tws_encoder_add_head(tws_network_builder *b, const tws_encoder *e, const tws_masked_head_names *masked,
                          tws_module_type masked_activation, const tws_class_head *head, uint32_t x) {
  const tws_network *net = b->net;
  if (net->objective == TWS_OBJECTIVE_TAGS) {
    x = tws_build_dropout(b, -2, "dropout", x, head->tokens);
    tws_build_class_scores(b, head->tags, x, e->range, 1);
    return;
  }
  if (net->objective == TWS_OBJECTIVE_SPANS) {
    tws_build_spans(b, "qa_outputs", tws_build_dropout(b, -2, "dropout", x, head->spans), e->range, e->lengths);
    return;
  }
  if (net->objective != TWS_OBJECTIVE_CLASSES) {
    if (net->objective == TWS_OBJECTIVE_SENTENCES) add_next_sentence(b, e, head, x);
    encoder_add_masked_head(b, e, masked, masked_activation, x);
    return;
  }
  x = tws_build_dropout(b, -2, "dropout", pooled(b, e, head, x), head->behind);
  tws_build_class_scores(b, head->scores, x, e->range, 1);
}

tws_code tws_encoder_read_classifier_dropout(tws_network_builder *b, const tws_encoder *e, double *share,
                                             tws_error *err) {
  const cJSON *item = cJSON_GetObjectItemCaseSensitive(b->json->root, "classifier_dropout");
  *share = e->dropout;
  return item && !cJSON_IsNull(item) ? tws_build_dropout_share(b, "classifier_dropout", share, err) : TWS_OK;
}

tws_code tws_encoder_read_mask_token(tws_network_builder *b, tws_error *err) {
  enum { MASK = 103, SMALL = 1000 };
  const int64_t usual = b->net->vocabulary > SMALL ? MASK : b->net->vocabulary - 1;
  return tws_json_int(b->json, b->json->root, "mask_token_id", 0, 0, b->net->vocabulary - 1, usual, &b->net->mask_token,
                      err);
}

tws_code tws_encoder_read_heads(tws_network_builder *b, const char *key, tws_error *err) {
  tws_network *net = b->net;
  TWS_TRY(tws_build_size(b, key, NULL, 1, TWS_MAX_HEADS, 0, &net->heads, err));
  if (net->hidden % net->heads != 0)
    return tws_json_fail(b->json, cJSON_GetObjectItemCaseSensitive(b->json->root, key), err,
                         "choose a number of heads that divides the hidden size",
                         "%lld heads do not divide the hidden size %lld", (long long)net->heads,
                         (long long)net->hidden);
  net->kv_heads = net->heads;
  net->head_size = net->hidden / net->heads;
  return TWS_OK;
}

const char *const tws_encoder_shared_keys[] = {"num_hidden_layers",
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

tws_encoder_names tws_encoder_shared_names(const char *layer) {
  return (tws_encoder_names){.layer = layer,
                             .qkv = "attention.self.qkv",
                             .out = "attention.output.dense",
                             .norm_1 = "attention.output.LayerNorm",
                             .up = "intermediate.dense",
                             .down = "output.dense",
                             .norm_2 = "output.LayerNorm"};
}

uint32_t tws_encoder_add_embeddings(tws_network_builder *b, tws_encoder *e, const char *prefix, int64_t first,
                                    int64_t segments) {
  const char *name = tws_build_name(b, "%s.embeddings", prefix);
  const char *positions = first >= 0 ? tws_build_name(b, "%s.position_embeddings.weight", name) : NULL;
  uint32_t x =
      tws_build_embedding(b, name, tws_build_name(b, "%s.word_embeddings.weight", name), positions, (float)e->range);
  if (first >= 0) tws_build_first_position(b, first);
  if (segments > 0)
    tws_build_segments(b, tws_build_name(b, "%s.token_type_embeddings.weight", name), segments, (float)e->range);
  e->lengths = tws_encoder_add_lengths(b);
  x = tws_build_norm(b, -1, tws_build_name(b, "%s.LayerNorm", name), x, 0, e->epsilon);
  return tws_build_dropout(b, -1, tws_build_name(b, "%s.dropout", name), x, e->dropout);
}

static tws_code read_expected(tws_network_builder *b, tws_error *err) {
  static const char *const decoders[] = {"is_decoder", "add_cross_attention", "is_encoder_decoder"};
  const char *positions = NULL;
  TWS_TRY(tws_json_string(b->json, b->json->root, "position_embedding_type", 0, "absolute", &positions, err));
  if (strcmp(positions, "absolute") != 0) {
    tws_json_fail(b->json, cJSON_GetObjectItemCaseSensitive(b->json->root, "position_embedding_type"), err,
                  "known here: absolute", "position_embedding_type \"%.60s\" is not supported", positions);
    if (err != NULL) err->code = TWS_UNSUPPORTED;
    return TWS_UNSUPPORTED;
  }
  for (size_t i = 0; i < sizeof decoders / sizeof *decoders; i++)
    TWS_TRY(tws_build_expect_bool(b, decoders[i], 0, "only encoders are supported", err));
  return TWS_OK;
}

tws_code tws_encoder_read_shared(tws_network_builder *b, tws_encoder *e, int64_t *segments, tws_error *err) {
  tws_network *net = b->net;
  const cJSON *root = b->json->root;
  TWS_TRY(tws_build_size(b, "num_hidden_layers", NULL, 1, TWS_MAX_LAYERS, 0, &net->layers, err));
  TWS_TRY(tws_build_size(b, "hidden_size", NULL, 1, TWS_MAX_WIDTH, 0, &net->hidden, err));
  TWS_TRY(tws_encoder_read_heads(b, "num_attention_heads", err));
  TWS_TRY(tws_build_size(b, "intermediate_size", NULL, 1, TWS_MAX_WIDTH, 0, &net->intermediate, err));
  const int optional = strncmp(net->architecture, "deberta", 7) == 0;
  TWS_TRY(tws_json_int(b->json, root, "type_vocab_size", 0, optional ? 0 : 1, TWS_MAX_WIDTH, optional ? 0 : 2, segments,
                       err));
  TWS_TRY(tws_json_number(b->json, root, "layer_norm_eps", 0, 1e-20, 1, 1e-12, &e->epsilon, err));
  TWS_TRY(tws_json_number(b->json, root, "initializer_range", 0, 0, 100, 0.02, &e->range, err));
  TWS_TRY(tws_json_bool(b->json, root, "tie_word_embeddings", 0, 1, &net->tied, err));
  TWS_TRY(tws_encoder_read_activation(b, "hidden_act", "gelu", &e->activation, err));
  TWS_TRY(read_expected(b, err));
  TWS_TRY(tws_build_dropout_share(b, "hidden_dropout_prob", &e->dropout, err));
  return tws_build_dropout_share(b, "attention_probs_dropout_prob", &e->attention_dropout, err);
}
