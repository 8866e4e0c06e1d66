/* ViT (Dosovitskiy et al., 2021; keys as in Hugging Face's ViTConfig): a picture is a class token followed by patches,
 * and the last layer's output at the class token is classified. The network's input has one row per patch, so that the
 * patch embedding, a convolution whose windows do not overlap, becomes a convolution with 1 x 1 windows and the same
 * weights. */
#include <string.h>

#include "models/kernel.h"
#include "models/network/encoder.h"

static const tws_dim samples_alone[] = {{.kind = TWS_DIM_SAMPLES}};

typedef struct vit {
  tws_encoder e;
  int64_t image, patch, channels;
  int qkv_bias;
} vit;

static tws_code read_keys(tws_network_builder *b, vit *v, tws_error *err) {
  static const char *const known[] = {"num_hidden_layers", "hidden_size", "num_attention_heads", "intermediate_size",
                                      "image_size", "patch_size", "num_channels", "num_labels", "qkv_bias",
                                      "hidden_act", "hidden_dropout_prob", "attention_probs_dropout_prob",
                                      "layer_norm_eps", "initializer_range",
                                      /* keys without effect, which only other heads than the classifier use */
                                      "encoder_stride", "pooler_output_size", "pooler_act", NULL};
  tws_network *net = b->net;
  const tws_json *json = b->json;
  TWS_TRY(tws_build_size(b, "num_hidden_layers", NULL, 0, TWS_MAX_LAYERS, 12, &net->layers, err));
  TWS_TRY(tws_build_size(b, "hidden_size", NULL, 0, TWS_MAX_WIDTH, 768, &net->hidden, err));
  TWS_TRY(tws_encoder_read_heads(b, "num_attention_heads", err));
  TWS_TRY(tws_build_size(b, "intermediate_size", NULL, 0, TWS_MAX_WIDTH, 3072, &net->intermediate, err));
  TWS_TRY(tws_build_size(b, "image_size", NULL, 0, 1 << 14, 224, &v->image, err));
  TWS_TRY(tws_build_size(b, "patch_size", NULL, 0, 1 << 14, 16, &v->patch, err));
  TWS_TRY(tws_build_size(b, "num_channels", NULL, 0, 1 << 10, 3, &v->channels, err));
  TWS_TRY(tws_json_bool(json, json->root, "qkv_bias", 0, 1, &v->qkv_bias, err));
  TWS_TRY(tws_json_number(json, json->root, "layer_norm_eps", 0, 1e-20, 1, 1e-12, &v->e.epsilon, err));
  TWS_TRY(tws_json_number(json, json->root, "initializer_range", 0, 0, 100, 0.02, &v->e.range, err));
  TWS_TRY(tws_encoder_read_activation(b, "hidden_act", "gelu", &v->e.activation, err));
  TWS_TRY(tws_build_dropout_share(b, "hidden_dropout_prob", &v->e.dropout, err));
  TWS_TRY(tws_build_dropout_share(b, "attention_probs_dropout_prob", &v->e.attention_dropout, err));
  tws_build_unknown_keys(b, known, NULL);
  if (v->image % v->patch == 0 && v->image / v->patch <= 1 << 10) return TWS_OK;
  return tws_json_fail(json, cJSON_GetObjectItemCaseSensitive(json->root, "patch_size"), err, "224 and 16 are usual",
                       "patches of %lld pixels do not divide pictures of %lld", (long long)v->patch,
                       (long long)v->image);
}

/* Builds the input of the first layer: the sum of tokens (the class token, then the patches) and positions. */
static uint32_t add_embeddings(tws_network_builder *b, const vit *v, int64_t tokens) {
  tws_network *net = b->net;
  const int64_t side = v->image / v->patch;
  const tws_dim rows[] = {{.kind = TWS_DIM_SAMPLES}, {.kind = TWS_DIM_SEQUENCE, .size = tokens}};
  const tws_init init = {(float)v->e.range, 0};
  const uint32_t pictures = tws_build_pictures(b, "pictures", side, side, v->channels * v->patch * v->patch);
  const uint32_t places = tws_build_input(b, "rows of patches", TWS_INPUT_ROWS, rows, 2);
  const uint32_t classes = tws_build_input(b, "tokens of classes", TWS_INPUT_TYPES, rows, 2);
  const tws_convolution convolution = {
      .out = net->hidden, .side = 1, .stride = 1, .groups = 1, .std = (float)v->e.range, .bias = 1};
  uint32_t x =
      tws_build_convolution(b, -1, "vit.embeddings.patch_embeddings.projection", TWS_NONE, pictures, &convolution);
  const int64_t patch[4] = {net->hidden, v->channels, v->patch, v->patch}, token[4] = {1, 1, net->hidden},
                table[4] = {1, tokens, net->hidden};
  memcpy(net->params[0].shape, patch, sizeof patch);
  x = tws_build_gather(b, -1, "vit.embeddings.patches", x, places);
  const uint32_t at = tws_build_module(b, TWS_MODULE_EMBEDDING, -1, "vit.embeddings");
  net->modules[at].out_features = net->hidden;
  net->modules[at].input[0] = classes;
  tws_build_param(b, at, 0, "vit.embeddings.cls_token", 1, net->hidden, init);
  tws_build_param(b, at, 1, "vit.embeddings.position_embeddings", tokens, net->hidden, init);
  memcpy(net->params[net->modules[at].param[0]].shape, token, sizeof token);
  memcpy(net->params[net->modules[at].param[1]].shape, table, sizeof table);
  const uint32_t positions = tws_build_value(b, at, 0, "x", rows, 2, net->hidden, TWS_VALUE_ACTIVATION);
  x = tws_build_add(b, -1, "vit.embeddings.add", positions, x);
  return tws_build_dropout(b, -1, "vit.embeddings.dropout", x, v->e.dropout);
}

static uint32_t add_layer(tws_network_builder *b, const vit *v, int layer, uint32_t x) {
  const tws_network *net = b->net;
  const int64_t hidden = net->hidden, qkv[3] = {hidden, hidden, hidden};
  const float std = (float)v->e.range;
#define NAME(part) tws_build_name(b, "vit.encoder.layer.%d." part, layer)
  uint32_t y = tws_build_norm(b, layer, NAME("layernorm_before"), x, 0, v->e.epsilon);
  y = tws_build_linear(b, layer, NAME("attention.attention.qkv"), y, hidden, 3 * hidden, std, v->qkv_bias, qkv,
                       TWS_NONE);
  y = tws_build_attention(b, layer, NAME("attention.attention"), y);
  tws_module *attention = &net->modules[net->module_count - 1];
  attention->flags = TWS_BIDIRECTIONAL;
  attention->dropout = v->e.attention_dropout;
  y = tws_build_linear(b, layer, NAME("attention.output.dense"), y, hidden, hidden, std, 1, NULL, TWS_NONE);
  y = tws_build_dropout(b, layer, NAME("attention.output.dropout"), y, v->e.dropout);
  x = tws_build_add(b, layer, NAME("add_1"), x, y);
  y = tws_build_norm(b, layer, NAME("layernorm_after"), x, 0, v->e.epsilon);
  y = tws_build_linear(b, layer, NAME("intermediate.dense"), y, hidden, net->intermediate, std, 1, NULL, TWS_NONE);
  y = tws_build_pointwise(b, layer, NAME("activation"), v->e.activation, y, net->intermediate);
  y = tws_build_linear(b, layer, NAME("output.dense"), y, net->intermediate, hidden, std, 1, NULL, TWS_NONE);
  y = tws_build_dropout(b, layer, NAME("output.dropout"), y, v->e.dropout);
  return tws_build_add(b, layer, NAME("add_2"), x, y);
#undef NAME
}

tws_code tws_build_vit(tws_network_builder *b, tws_error *err) {
  enum { LONGEST_LAYER = 12, AROUND = 16 };
  tws_network *net = b->net;
  vit v = {.image = 0};
  TWS_TRY(read_keys(b, &v, err));
  TWS_TRY(tws_build_reserve(b, LONGEST_LAYER * net->layers + AROUND, err));
  const int64_t side = v.image / v.patch;
  uint32_t x = add_embeddings(b, &v, side * side + 1);
  net->layer_first = net->module_count;
  for (int layer = 0; layer < net->layers; layer++) x = add_layer(b, &v, layer, x);
  net->layer_stride = (net->module_count - net->layer_first) / (uint32_t)net->layers;
  x = tws_build_norm(b, -2, "vit.layernorm", x, 0, v.e.epsilon);
  x = tws_build_gather(b, -2, "vit.class", x, tws_build_input(b, "rows of classes", TWS_INPUT_ROWS, samples_alone, 1));
  x = tws_build_linear(b, -2, "classifier", x, net->hidden, net->padded_vocabulary, (float)v.e.range, 1, NULL,
                       TWS_NONE);
  tws_build_input(b, "targets", TWS_INPUT_TARGETS, samples_alone, 1);
  tws_build_loss(b, x);
  net->positions = 1; /* a sample is a picture, which counts as one position */
  net->picture = (tws_picture){.side = v.image, .patch = v.patch, .channels = v.channels};
  net->objective = TWS_OBJECTIVE_PICTURES;
  return TWS_OK;
}
