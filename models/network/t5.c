/* T5 and mT5 (Raffel et al., 2020; Xue et al., 2021; keys as in Hugging Face's T5Config): an encoder, and a decoder
 * that reads the encoder's output of another text. Encoder and decoder each have one table of relative biases, which
 * all of their layers share; scores have no scale. */
#include <math.h>
#include <string.h>

#include "models/kernel.h"
#include "models/network/build.h"

static const tws_dim samples_alone[] = {{.kind = TWS_DIM_SAMPLES}};
static const tws_dim source_rows[] = {{.kind = TWS_DIM_SAMPLES}, {.kind = TWS_DIM_SEQUENCE}};
static const tws_dim target_rows[] = {{.kind = TWS_DIM_SAMPLES}, {.kind = TWS_DIM_TARGET}};

typedef struct t5 {
  tws_network_builder *b;
  double epsilon, dropout, factor;
  tws_module_type activation;
  int gated;
  int64_t encoder_layers, decoder_layers, buckets, max_distance;
  uint32_t source, lengths, words; /* source, lengths: indices of inputs; words: parameter of the embedding */
  /* The following members describe the half of the network that is being built, encoder or decoder. */
  const char *half;
  const tws_dim *rows;
  int decodes, layer; /* decodes: 1: the decoder is built; layer: index among the layers of both halves */
  uint32_t table;     /* value of the bias table; TWS_NONE before the first layer */
} t5;

static tws_code read_activation(t5 *t, tws_error *err) {
  static const struct {
    const char *name;
    int gated;
    tws_module_type type;
  } known[] = {{"relu", 0, TWS_MODULE_RELU},
               {"gelu", 0, TWS_MODULE_GELU_EXACT},
               {"gelu_new", 0, TWS_MODULE_GELU},
               {"gated-gelu", 1, TWS_MODULE_GEGLU},
               {"gated-gelu_new", 1, TWS_MODULE_GEGLU},
               {"gated-silu", 1, TWS_MODULE_SWIGLU}};
  const tws_json *json = t->b->json;
  const char *name = NULL;
  TWS_TRY(tws_json_string(json, json->root, "feed_forward_proj", 0,
                          strcmp(t->b->net->architecture, "mt5") == 0 ? "gated-gelu" : "relu", &name, err));
  for (size_t i = 0; i < sizeof known / sizeof *known; i++)
    if (strcmp(name, known[i].name) == 0) {
      t->activation = known[i].type;
      t->gated = known[i].gated;
      return TWS_OK;
    }
  tws_json_fail(json, cJSON_GetObjectItemCaseSensitive(json->root, "feed_forward_proj"), err,
                "known here: relu, gelu, gelu_new, gated-gelu, gated-silu",
                "feed_forward_proj \"%.60s\" is not supported", name);
  if (err != NULL) err->code = TWS_UNSUPPORTED;
  return TWS_UNSUPPORTED;
}

static tws_code read_heads(t5 *t, tws_error *err) {
  tws_network *net = t->b->net;
  TWS_TRY(tws_build_size(t->b, "num_heads", NULL, 0, TWS_MAX_HEADS, 8, &net->heads, err));
  TWS_TRY(tws_build_size(t->b, "d_kv", NULL, 0, TWS_MAX_HEADS, 64, &net->head_size, err));
  net->kv_heads = net->heads;
  if (3 * net->heads * net->head_size <= TWS_MAX_WIDTH) return TWS_OK;
  return tws_json_fail(t->b->json, cJSON_GetObjectItemCaseSensitive(t->b->json->root, "d_kv"), err, NULL,
                       "query, key and value rows together exceed %d elements", TWS_MAX_WIDTH);
}

/* Reads the size of the bias table. Tables with fewer than 8 rows are refused, since they have no rows for single
 * distances. */
static tws_code read_biases(t5 *t, tws_error *err) {
  enum { LEAST = 8 };
  const tws_json *json = t->b->json;
  TWS_TRY(
      tws_json_int(json, json->root, "relative_attention_num_buckets", 0, LEAST, TWS_MAX_HEADS, 32, &t->buckets, err));
  TWS_TRY(tws_json_int(json, json->root, "relative_attention_max_distance", 0, 1, TWS_MAX_WIDTH, 128, &t->max_distance,
                       err));
  if (t->buckets % 2 == 0 && t->max_distance > t->buckets / 2) return TWS_OK;
  return tws_json_fail(json, json->root, err, "32 and 128 are usual",
                       "%lld buckets cannot be dealt to distances up to %lld", (long long)t->buckets,
                       (long long)t->max_distance);
}

/* Determines the ids of special tokens: the file's, or those of the published vocabularies. */
static tws_code read_tokens(t5 *t, tws_error *err) {
  const tws_json *json = t->b->json;
  tws_network *net = t->b->net;
  const int64_t last = net->vocabulary - 1, sentinel = net->vocabulary == 32128    ? 32099
                                                       : net->vocabulary == 250112 ? 250099
                                                                                   : last;
  TWS_TRY(tws_json_int(json, json->root, "pad_token_id", 0, 0, last, 0, &net->pad_token, err));
  TWS_TRY(tws_json_int(json, json->root, "eos_token_id", 0, 0, last, last > 0, &net->end_token, err));
  TWS_TRY(tws_json_int(json, json->root, "decoder_start_token_id", 0, 0, last, net->pad_token, &net->start_token, err));
  return tws_json_int(json, json->root, "sentinel_token_id", 0, 0, last, sentinel, &net->mask_token, err);
}

static tws_code read_keys(t5 *t, tws_error *err) {
  static const char *const known[] = {
      "d_model", "d_kv", "d_ff", "num_layers", "num_decoder_layers", "num_heads", "vocab_size",
      "relative_attention_num_buckets", "relative_attention_max_distance", "dropout_rate", "layer_norm_epsilon",
      "initializer_factor", "feed_forward_proj", "is_encoder_decoder", "tie_word_embeddings", "sentinel_token_id",
      /* keys without effect: they repeat others, or only other heads use them */
      "n_positions", "dense_act_fn", "is_gated_act", "classifier_dropout", "scale_decoder_outputs", NULL};
  const tws_json *json = t->b->json;
  tws_network *net = t->b->net;
  TWS_TRY(tws_build_size(t->b, "d_model", NULL, 1, TWS_MAX_WIDTH, 0, &net->hidden, err));
  TWS_TRY(tws_build_size(t->b, "d_ff", NULL, 1, TWS_MAX_WIDTH / 2, 0, &net->intermediate, err));
  TWS_TRY(tws_build_size(t->b, "num_layers", NULL, 1, TWS_MAX_LAYERS / 2, 0, &t->encoder_layers, err));
  TWS_TRY(tws_build_size(t->b, "num_decoder_layers", NULL, 0, TWS_MAX_LAYERS / 2, t->encoder_layers, &t->decoder_layers,
                         err));
  TWS_TRY(read_heads(t, err));
  TWS_TRY(read_biases(t, err));
  TWS_TRY(tws_json_number(json, json->root, "layer_norm_epsilon", 0, 1e-20, 1, 1e-6, &t->epsilon, err));
  TWS_TRY(tws_json_number(json, json->root, "initializer_factor", 0, 1e-9, 1e9, 1, &t->factor, err));
  TWS_TRY(tws_build_expect_bool(t->b, "is_encoder_decoder", 1, "leave it out, or set it to true", err));
  TWS_TRY(tws_json_bool(json, json->root, "tie_word_embeddings", 0, strcmp(net->architecture, "mt5") != 0, &net->tied,
                        err));
  TWS_TRY(read_activation(t, err));
  TWS_TRY(read_tokens(t, err));
  net->layers = t->encoder_layers + t->decoder_layers;
  tws_build_unknown_keys(t->b, known, NULL);
  return tws_build_dropout_share(t->b, "dropout_rate", &t->dropout, err);
}

static float deviation(const t5 *t, int64_t width) {
  return (float)(t->factor / sqrt((double)width));
}

/* Returns the name of a part of sublayer `sub` of the present layer: "encoder.block.3.layer.0.SelfAttention.q". */
static const char *named(const t5 *t, int sub, const char *part) {
  const int layer = t->layer - (t->decodes ? (int)t->encoder_layers : 0);
  return tws_build_name(t->b, "%s.block.%d.layer.%d.%s", t->half, layer, sub, part);
}

static uint32_t enter(const t5 *t, int sub, uint32_t x) {
  return tws_build_norm(t->b, t->layer, named(t, sub, "layer_norm"), x, 1, t->epsilon);
}
static uint32_t join(const t5 *t, int sub, uint32_t x, uint32_t branch) {
  branch = tws_build_dropout(t->b, t->layer, named(t, sub, "dropout"), branch, t->dropout);
  return tws_build_add(t->b, t->layer, named(t, sub, "add"), x, branch);
}

/* Sets the standard deviation of the initial weights of queries in the joined projection that was added last; it
 * differs from that of keys and values. */
static void spread_queries(const t5 *t) {
  const tws_network *net = t->b->net;
  net->params[net->modules[net->module_count - 1].param[0]].first_std = deviation(t, net->hidden * net->head_size);
}

static uint32_t add_self_attention(t5 *t, uint32_t x) {
  tws_network *net = t->b->net;
  const int64_t all = net->heads * net->head_size, qkv[3] = {all, all, all};
  uint32_t y = enter(t, 0, x);
  y = tws_build_linear(t->b, t->layer, named(t, 0, "SelfAttention.qkv"), y, net->hidden, 3 * all,
                       deviation(t, net->hidden), 0, qkv, TWS_NONE);
  spread_queries(t);
  y = tws_build_attention(t->b, t->layer, named(t, 0, "SelfAttention"), y);
  const uint32_t at = net->module_count - 1;
  tws_module *m = &net->modules[at];
  m->flags = TWS_RELATIVE | (t->decodes ? 0 : TWS_BIDIRECTIONAL);
  m->scale = 1;
  m->dropout = t->dropout;
  m->buckets = (int32_t)t->buckets;
  m->max_distance = (int32_t)t->max_distance;
  if (!t->decodes) m->input[0] = t->lengths;
  if (t->table == TWS_NONE)
    t->table = tws_build_param(t->b, at, 0, named(t, 0, "SelfAttention.relative_attention_bias.weight"), t->buckets,
                               net->heads, (tws_init){deviation(t, net->hidden), 0});
  m->param[0] = t->table;
  y = tws_build_linear(t->b, t->layer, named(t, 0, "SelfAttention.o"), y, all, net->hidden, deviation(t, all), 0, NULL,
                       TWS_NONE);
  return join(t, 0, x, y);
}

static uint32_t add_cross_attention(t5 *t, uint32_t x, uint32_t memory) {
  tws_network *net = t->b->net;
  const int64_t all = net->heads * net->head_size, kv[3] = {all, all, 0};
  const uint32_t y = enter(t, 1, x);
  const uint32_t q = tws_build_linear(t->b, t->layer, named(t, 1, "EncDecAttention.q"), y, net->hidden, all,
                                      deviation(t, net->hidden * net->head_size), 0, NULL, TWS_NONE);
  const uint32_t keys = tws_build_linear(t->b, t->layer, named(t, 1, "EncDecAttention.kv"), memory, net->hidden,
                                         2 * all, deviation(t, net->hidden), 0, kv, TWS_NONE);
  const uint32_t o = tws_build_cross_attention(t->b, t->layer, named(t, 1, "EncDecAttention"), q, keys);
  tws_module *m = &net->modules[net->module_count - 1];
  m->scale = 1;
  m->dropout = t->dropout;
  m->input[0] = t->lengths;
  return join(t, 1, x,
              tws_build_linear(t->b, t->layer, named(t, 1, "EncDecAttention.o"), o, all, net->hidden, deviation(t, all),
                               0, NULL, TWS_NONE));
}

static uint32_t add_inner(const t5 *t, uint32_t x) {
  const tws_network *net = t->b->net;
  const int sub = t->decodes ? 2 : 1;
  const int64_t inner = net->intermediate, rows[3] = {inner, inner, 0};
  uint32_t y = enter(t, sub, x);
  y = tws_build_linear(t->b, t->layer, named(t, sub, t->gated ? "DenseReluDense.wi_01" : "DenseReluDense.wi"), y,
                       net->hidden, t->gated ? 2 * inner : inner, deviation(t, net->hidden), 0, t->gated ? rows : NULL,
                       TWS_NONE);
  y = tws_build_pointwise(t->b, t->layer, named(t, sub, "DenseReluDense.act"), t->activation, y, inner);
  y = tws_build_dropout(t->b, t->layer, named(t, sub, "DenseReluDense.dropout"), y, t->dropout);
  y = tws_build_linear(t->b, t->layer, named(t, sub, "DenseReluDense.wo"), y, inner, net->hidden, deviation(t, inner),
                       0, NULL, TWS_NONE);
  return join(t, sub, x, y);
}

/* Adds the embedding of the encoder or the decoder; both use one table. */
static uint32_t add_embedding(t5 *t, uint32_t input) {
  tws_network *net = t->b->net;
  const char *name = t->decodes ? "decoder.embed_tokens" : "shared";
  const uint32_t at = tws_build_module(t->b, TWS_MODULE_EMBEDDING, -1, name);
  net->modules[at].out_features = net->hidden;
  net->modules[at].input[0] = input;
  if (!t->decodes)
    t->words = tws_build_param(t->b, at, 0, "shared.weight", net->padded_vocabulary, net->hidden,
                               (tws_init){(float)t->factor, 0});
  net->modules[at].param[0] = t->words;
  const uint32_t x = tws_build_value(t->b, at, 0, "x", t->rows, 2, net->hidden, TWS_VALUE_ACTIVATION);
  return tws_build_dropout(t->b, -1, tws_build_name(t->b, "%s.dropout", t->half), x, t->dropout);
}

static uint32_t add_half(t5 *t, uint32_t input, uint32_t memory) {
  const int64_t end = t->layer + (t->decodes ? t->decoder_layers : t->encoder_layers);
  const int behind = t->decodes ? -2 : -1;
  uint32_t x = add_embedding(t, input);
  t->table = TWS_NONE;
  for (; t->layer < end; t->layer++) {
    x = add_self_attention(t, x);
    if (t->decodes) x = add_cross_attention(t, x, memory);
    x = add_inner(t, x);
  }
  x = tws_build_norm(t->b, behind, tws_build_name(t->b, "%s.final_layer_norm", t->half), x, 1, t->epsilon);
  return tws_build_dropout(t->b, behind, tws_build_name(t->b, "%s.final_dropout", t->half), x, t->dropout);
}

tws_code tws_build_t5(tws_network_builder *b, tws_error *err) {
  enum { LONGEST_LAYER = 20, AROUND = 16 };
  tws_network *net = b->net;
  t5 t = {.b = b, .half = "encoder", .rows = source_rows};
  TWS_TRY(read_keys(&t, err));
  TWS_TRY(tws_build_reserve(b, LONGEST_LAYER * net->layers + AROUND, err));
  t.source = tws_build_input(b, "source ids", TWS_INPUT_SOURCE, source_rows, 2);
  t.lengths = tws_build_input(b, "lengths", TWS_INPUT_LENGTHS, samples_alone, 1);
  const uint32_t memory = add_half(&t, t.source, TWS_NONE);
  t.half = "decoder";
  t.rows = target_rows;
  t.decodes = 1;
  uint32_t x = add_half(&t, tws_build_input(b, "input ids", TWS_INPUT_TOKENS, target_rows, 2), memory);
  if (net->tied) x = tws_build_scale(b, -2, "decoder.scale", x, 1 / sqrt((double)net->hidden));
  x = tws_build_linear(b, -2, "lm_head", x, net->hidden, net->padded_vocabulary, (float)t.factor, 0, NULL,
                       net->tied ? t.words : TWS_NONE);
  tws_build_input(b, "targets", TWS_INPUT_TARGETS, target_rows, 2);
  tws_build_loss(b, x);
  net->objective = TWS_OBJECTIVE_PAIRS;
  return TWS_OK;
}

tws_code tws_build_mt5(tws_network_builder *b, tws_error *err) {
  return tws_build_t5(b, err);
}
