/* DeBERTa (He et al., 2021; keys as in Hugging Face's DebertaConfig and DebertaV2Config): BERT's layers with
 * disentangled attention: scores of contents with contents, of contents with relative positions, and of relative
 * positions with contents. All layers share one table of relative positions, from which each layer projects keys and
 * queries, with separate projections, or with those of the tokens. The first version has no bias of keys. Large models
 * of the second version add a convolution of the first layer's input to its output. */
#include <math.h>
#include <string.h>
#include <strings.h>

#include "models/network/encoder.h"

typedef struct deberta {
  tws_encoder encoder; /* must be the first member, because layer builders receive a pointer to it */
  int64_t segments, rows, max_distance;
  int first_version, has_positions, relative, shares, kinds, scores, norms_positions;
  int64_t convolved; /* width of the convolution in tokens; 0: no convolution */
  tws_module_type convolved_by;
  double before, behind; /* dropout probabilities in the text classifier, before and after its dense layer */
  tws_module_type pooled;
  uint32_t positions; /* index of the value that is the table of relative positions */
} deberta;

enum { CONTENT_TO_POSITION = 1, POSITION_TO_CONTENT = 2 };

static tws_code unsupported(const tws_network_builder *b, const char *key, const char *hint, const char *what,
                            tws_error *err) {
  const cJSON *item = cJSON_GetObjectItemCaseSensitive(b->json->root, key);
  tws_json_fail(b->json, item ? item : b->json->root, err, hint, "%s", what);
  if (err != NULL) err->code = TWS_UNSUPPORTED;
  return TWS_UNSUPPORTED;
}

static tws_code add_kind(const tws_network_builder *b, const char *word, size_t length, int *kinds, tws_error *err) {
  const int before = *kinds;
  while (length > 0 && word[0] == ' ') word++, length--;
  while (length > 0 && word[length - 1] == ' ') length--;
  if (length == 3 && strncasecmp(word, "c2p", length) == 0)
    *kinds |= CONTENT_TO_POSITION;
  else if (length == 3 && strncasecmp(word, "p2c", length) == 0)
    *kinds |= POSITION_TO_CONTENT;
  else
    return unsupported(b, "pos_att_type", "known are c2p and p2c", "pos_att_type has a kind that is not known", err);
  if (*kinds == before)
    return unsupported(b, "pos_att_type", "name it once", "pos_att_type has the same kind twice", err);
  return TWS_OK;
}

/* Reads the kinds of scores, which are "p2c|c2p" or a list of such words. */
static tws_code read_kinds(const tws_network_builder *b, int *kinds, tws_error *err) {
  const cJSON *item = cJSON_GetObjectItemCaseSensitive(b->json->root, "pos_att_type"), *word;
  *kinds = 0;
  if (cJSON_IsString(item)) {
    for (const char *at = item->valuestring; *at; at += *at == '|') {
      const size_t length = strcspn(at, "|");
      TWS_TRY(add_kind(b, at, length, kinds, err));
      at += length;
    }
    return TWS_OK;
  }
  cJSON_ArrayForEach(word, item) {
    const char *text = cJSON_IsString(word) ? word->valuestring : "";
    TWS_TRY(add_kind(b, text, strlen(text), kinds, err));
  }
  return TWS_OK;
}

static tws_code read_positions(tws_network_builder *b, deberta *m, tws_error *err) {
  const tws_json *json = b->json;
  int64_t buckets = -1, farthest = -1;
  TWS_TRY(tws_json_bool(json, json->root, "relative_attention", 0, 0, &m->relative, err));
  if (!m->first_version) TWS_TRY(tws_json_bool(json, json->root, "share_att_key", 0, 0, &m->shares, err));
  TWS_TRY(tws_json_bool(json, json->root, "position_biased_input", 0, 1, &m->has_positions, err));
  TWS_TRY(read_kinds(b, &m->kinds, err));
  m->scores = 1 + (m->kinds & CONTENT_TO_POSITION ? 1 : 0) + (m->kinds & POSITION_TO_CONTENT ? 1 : 0);
  if (!m->first_version)
    TWS_TRY(tws_json_int(json, json->root, "position_buckets", 0, -1, TWS_MAX_WIDTH / 2, -1, &buckets, err));
  TWS_TRY(tws_json_int(json, json->root, "max_relative_positions", 0, -1, TWS_MAX_WIDTH / 2, -1, &farthest, err));
  if (farthest < 1) farthest = b->net->positions;
  m->rows = 2 * (buckets > 0 ? buckets : farthest);
  m->max_distance = buckets > 0 ? farthest : 0;
  if (!m->relative) return TWS_OK;
  if (m->kinds == 0)
    return unsupported(b, "pos_att_type", "give c2p, p2c or \"p2c|c2p\", or set relative_attention to false",
                       "relative_attention without a pos_att_type: the table of positions would have no use", err);
  if (buckets > 0 && (buckets < 2 || farthest - 1 <= buckets / 2))
    return unsupported(b, "position_buckets", "256 buckets of 512 positions are usual",
                       "position_buckets cannot be dealt to distances up to max_relative_positions", err);
  return TWS_OK;
}

static tws_code read_norm_of_positions(tws_network_builder *b, deberta *m, tws_error *err) {
  const char *norm = NULL;
  TWS_TRY(tws_json_string(b->json, b->json->root, "norm_rel_ebd", 0, "none", &norm, err));
  m->norms_positions = m->relative && strcasecmp(norm, "layer_norm") == 0;
  if (strcasecmp(norm, "layer_norm") == 0 && !m->relative)
    return unsupported(b, "norm_rel_ebd", "leave it out", "norm_rel_ebd without relative_attention", err);
  if (m->norms_positions || strcasecmp(norm, "none") == 0) return TWS_OK;
  return unsupported(b, "norm_rel_ebd", "known are none and layer_norm", "norm_rel_ebd is not known", err);
}

static tws_code expect_width(tws_network_builder *b, const char *key, int64_t width, tws_error *err) {
  int64_t size = 0;
  TWS_TRY(tws_build_size(b, key, NULL, 0, TWS_MAX_WIDTH, width, &size, err));
  if (size == width) return TWS_OK;
  return unsupported(
      b, key, "leave it out",
      "embeddings or a pooled text of another width than hidden_size, or heads that do not share it, are not supported",
      err);
}

static tws_code read_head(tws_network_builder *b, deberta *m, tws_error *err) {
  const cJSON *dropout = cJSON_GetObjectItemCaseSensitive(b->json->root, "cls_dropout");
  TWS_TRY(tws_encoder_read_activation(b, "pooler_hidden_act", "gelu", &m->pooled, err));
  TWS_TRY(tws_build_dropout_share(b, "pooler_dropout", &m->before, err));
  m->behind = m->encoder.dropout;
  if (dropout && !cJSON_IsNull(dropout)) TWS_TRY(tws_build_dropout_share(b, "cls_dropout", &m->behind, err));
  return tws_build_read_classes(b, err);
}

/* Reads the keys of the convolution that is added after the first layer. */
static tws_code read_convolution(tws_network_builder *b, deberta *m, tws_error *err) {
  const tws_json *json = b->json;
  const char *activation = NULL;
  int64_t groups = 1;
  const int64_t most = TWS_MAX_WIDTH / b->net->hidden; /* largest kernel: its product has TWS_MAX_WIDTH columns */
  TWS_TRY(tws_json_int(json, json->root, "conv_kernel_size", 0, 0, most, 0, &m->convolved, err));
  TWS_TRY(tws_json_int(json, json->root, "conv_groups", 0, 1, TWS_MAX_WIDTH, 1, &groups, err));
  TWS_TRY(tws_json_string(json, json->root, "conv_act", 0, "tanh", &activation, err));
  if (m->convolved == 0) return TWS_OK;
  if (m->convolved % 2 == 0)
    return unsupported(b, "conv_kernel_size", "3 is usual",
                       "a convolution of an even number of tokens has no middle one", err);
  if (groups > 1)
    return unsupported(b, "conv_groups", "leave it out", "a convolution of groups of features is not supported", err);
  m->convolved_by = TWS_MODULE_SOFTCAP;
  return strcmp(activation, "tanh") == 0 ? TWS_OK
                                         : tws_encoder_read_activation(b, "conv_act", "tanh", &m->convolved_by, err);
}

/* Reads the keys that only the second version has. */
static tws_code read_second_version(tws_network_builder *b, deberta *m, tws_error *err) {
  static const char *const keys[] = {
      "share_att_key", "position_buckets", "norm_rel_ebd", "conv_kernel_size", "conv_groups", "conv_act", NULL};
  for (const char *const *key = keys; *key; key++) tws_build_known_keys(b, *key);
  TWS_TRY(read_norm_of_positions(b, m, err));
  return read_convolution(b, m, err);
}

static tws_code read_keys(tws_network_builder *b, deberta *m, tws_error *err) {
  static const char *const also[] = {"relative_attention",     "position_biased_input",
                                     "pos_att_type",           "pooler_dropout",
                                     "pooler_hidden_act",      "cls_dropout",
                                     "pooler_hidden_size",     "embedding_size",
                                     "attention_head_size",    "legacy",
                                     "max_relative_positions", NULL};
  tws_network *net = b->net;
  const int64_t masks[2] = {128000, 50264}; /* mask token of the published vocabularies, by version */
  TWS_TRY(tws_encoder_read_shared(b, &m->encoder, &m->segments, err));
  if (!cJSON_HasObjectItem(b->json->root, "layer_norm_eps")) m->encoder.epsilon = 1e-7;
  TWS_TRY(tws_build_size(b, "max_position_embeddings", NULL, 0, TWS_MAX_WIDTH, 512, &net->positions, err));
  TWS_TRY(read_positions(b, m, err));
  if (!m->first_version) TWS_TRY(read_second_version(b, m, err));
  TWS_TRY(expect_width(b, "pooler_hidden_size", net->hidden, err));
  TWS_TRY(expect_width(b, "embedding_size", net->hidden, err));
  TWS_TRY(expect_width(b, "attention_head_size", net->head_size, err));
  TWS_TRY(tws_build_expect_bool(b, "legacy", 1, "the other head is not supported: leave it out", err));
  const int64_t usual = masks[m->first_version];
  TWS_TRY(tws_json_int(b->json, b->json->root, "mask_token_id", 0, 0, net->vocabulary - 1,
                       net->vocabulary > usual ? usual : net->vocabulary - 1, &net->mask_token, err));
  TWS_TRY(read_head(b, m, err));
  tws_build_unknown_keys(b, tws_encoder_shared_keys, also);
  return TWS_OK;
}

/* Projects the table of positions to queries with a bias and to keys without one, as DeBERTa's first version does. Sets
 * *parts to the number of projections. */
static uint32_t project_unevenly(tws_network_builder *b, const deberta *m, int layer, const char *self, uint32_t x,
                                 int *parts) {
  const int64_t hidden = b->net->hidden, both[3] = {hidden, hidden, 0};
  const int queries = (m->kinds & POSITION_TO_CONTENT) != 0;
  const float std = (float)m->encoder.range;
  *parts = m->scores - 1;
  if (*parts == 1)
    return tws_build_linear(b, layer, tws_build_name(b, "%s.%s", self, queries ? "pos_q_proj" : "pos_proj"), x, hidden,
                            hidden, std, queries, NULL, TWS_NONE);
  x = tws_build_linear(b, layer, tws_build_name(b, "%s.pos_q_k", self), x, hidden, 2 * hidden, std, 0, both, TWS_NONE);
  return tws_build_part_bias(b, layer, tws_build_name(b, "%s.pos_bias", self),
                             tws_build_name(b, "%s.pos_q_proj.bias", self), x, 2);
}

/* Projects the table of positions as a layer needs it: to queries and keys by separate projections, or to queries, keys
 * and values by the projections of tokens. Sets *parts to the number of projections. */
static uint32_t project_positions(tws_network_builder *b, const deberta *m, int layer, const char *self, int *parts) {
  tws_network *net = b->net;
  const int64_t hidden = net->hidden, both[3] = {hidden, hidden, 0};
  const tws_module tokens = net->modules[net->module_count - 1];
  uint32_t x = tws_build_dropped(b, layer, tws_build_name(b, "%s.pos_dropout", self), m->positions, m->encoder.dropout);
  if (m->first_version) return project_unevenly(b, m, layer, self, x, parts);
  if (m->shares) {
    *parts = 3;
    x = tws_build_linear(b, layer, tws_build_name(b, "%s.positions", self), x, hidden, 3 * hidden, 0, 0, NULL,
                         tokens.param[0]);
    net->modules[net->module_count - 1].param[1] = tokens.param[1];
    return x;
  }
  *parts = m->scores - 1;
  const char *name = *parts > 1 ? "pos_qk_proj" : m->kinds == CONTENT_TO_POSITION ? "pos_key_proj" : "pos_query_proj";
  return tws_build_linear(b, layer, tws_build_name(b, "%s.%s", self, name), x, hidden, *parts * hidden,
                          (float)m->encoder.range, 1, *parts > 1 ? both : NULL, TWS_NONE);
}

static uint32_t attend(tws_network_builder *b, const tws_encoder *e, int layer, const char *prefix, uint32_t x) {
  const deberta *m = (const deberta *)e;
  tws_network *net = b->net;
  const int64_t hidden = net->hidden, qkv[3] = {hidden, hidden, hidden};
  const char *self = tws_build_name(b, "%s.attention.self", prefix);
  int parts = 0;
  x = tws_build_linear(b, layer, tws_build_name(b, "%s.%s", self, m->first_version ? "in_proj" : "qkv_proj"), x, hidden,
                       3 * hidden, (float)e->range, !m->first_version, qkv, TWS_NONE);
  if (m->first_version) {
    tws_build_group(b, net->heads);
    x = tws_build_part_bias(b, layer, tws_build_name(b, "%s.qkv_bias", self), tws_build_name(b, "%s.qv_bias", self), x,
                            3);
  }
  if (m->relative) {
    const uint32_t positions = project_positions(b, m, layer, self, &parts);
    x = tws_build_disentangled(b, layer, self, x, positions, parts, m->kinds);
  } else {
    x = tws_build_attention(b, layer, self, x);
  }
  tws_encoder_set_attention(b, e);
  tws_module *attention = &net->modules[net->module_count - 1];
  attention->scale = 1 / sqrt((double)(net->head_size * m->scores));
  if (m->relative) attention->max_distance = (int32_t)m->max_distance;
  return x;
}

static uint32_t convolve(tws_network_builder *b, const tws_encoder *e, int layer, uint32_t before, uint32_t x) {
  const deberta *m = (const deberta *)e;
  const int64_t hidden = b->net->hidden, side = m->convolved;
  if (layer != 0 || side == 0) return x;
#define NAME(part) "deberta.encoder.conv." part
  uint32_t y = tws_build_token_convolution(b, layer, NAME("token_unfold"), before, side, e->lengths);
  y = tws_build_linear(b, layer, NAME("conv"), y, side * hidden, hidden, (float)e->range, 1, NULL, TWS_NONE);
  tws_param *weight = &b->net->params[b->net->modules[b->net->module_count - 1].param[0]];
  memcpy(weight->shape, (int64_t[4]){hidden, hidden, side}, sizeof weight->shape);
  y = tws_build_dropout(b, layer, NAME("dropout"), y, e->dropout);
  y = m->convolved_by == TWS_MODULE_SOFTCAP
          ? tws_build_softcap(b, layer, NAME("activation"), y, 1)
          : tws_build_pointwise(b, layer, NAME("activation"), m->convolved_by, y, hidden);
  return tws_build_norm(b, layer, NAME("LayerNorm"), tws_build_add(b, layer, NAME("add"), x, y), 0, e->epsilon);
#undef NAME
}

/* Returns the number of modules of a layer's attention, from the layer's input to the sum. */
static uint32_t attention_modules(const deberta *m) {
  const int biases = m->first_version, joined = biases && m->scores == 3;
  return (uint32_t)(m->relative ? 3 + (m->encoder.dropout > 0) + biases + joined : 2 + biases);
}

static tws_code build(tws_network_builder *b, int first_version, tws_error *err) {
  const tws_encoder_names names = tws_encoder_shared_names("deberta.encoder.layer");
  static const tws_masked_head_names head = {.dense = "cls.predictions.transform.dense",
                                             .activation = "cls.predictions.transform.activation",
                                             .norm = "cls.predictions.transform.LayerNorm",
                                             .scores = "cls.predictions.decoder",
                                             .tied_scores = "cls.predictions"};
  enum { AROUND = 24 }; /* largest number of modules outside of the layers, with those of the convolution */
  deberta m = {.encoder = {.names = &names, .attend = attend, .joins = convolve},
               .first_version = first_version,
               .positions = TWS_NONE};
  TWS_TRY(read_keys(b, &m, err));
  m.encoder.attention_modules = attention_modules(&m);
  TWS_TRY(tws_build_reserve(b, tws_encoder_stride(&m.encoder) * b->net->layers + AROUND, err));
  uint32_t x = tws_encoder_add_embeddings(b, &m.encoder, "deberta", m.has_positions ? 0 : -1, m.segments);
  if (m.relative)
    m.positions = tws_build_table(b, -1, "deberta.encoder.rel_embeddings", m.rows, (float)m.encoder.range);
  if (m.norms_positions)
    m.positions = tws_build_norm(b, -1, "deberta.encoder.LayerNorm", m.positions, 0, m.encoder.epsilon);
  x = tws_encoder_add_layers(b, &m.encoder, x);
  const tws_class_head classes = {.dense = "pooler.dense",
                                  .scores = "classifier",
                                  .tags = "classifier",
                                  .activation = m.pooled,
                                  .before = m.before,
                                  .behind = m.behind,
                                  .tokens = m.encoder.dropout};
  tws_encoder_add_head(b, &m.encoder, &head, m.encoder.activation, &classes, x);
  return TWS_OK;
}

tws_code tws_build_deberta(tws_network_builder *b, tws_error *err) {
  return build(b, 1, err);
}
tws_code tws_build_deberta_v2(tws_network_builder *b, tws_error *err) {
  return build(b, 0, err);
}
