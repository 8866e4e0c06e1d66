#include "models/network/decoder.h"

#include <math.h>
#include <stdio.h>
#include <string.h>
#include "models/kernel.h"

const tws_decoder_names tws_llama_names = {
    .embedding = "model.embed_tokens",
    .layer = "model.layers.",
    .norm = {"input_layernorm", "post_attention_layernorm", "post_attention_layernorm", "post_feedforward_layernorm"},
    .qkv = "self_attn.qkv_proj",
    .rope = "self_attn.rope",
    .attention = "self_attn",
    .output = "self_attn.o_proj",
    .up = "mlp.gate_up_proj",
    .act = "mlp.act",
    .down = "mlp.down_proj",
    .final_norm = "model.norm",
    .head = "lm_head"};
const tws_decoder_keys tws_llama_keys = {.layers = "num_hidden_layers",
                                         .hidden = "hidden_size",
                                         .heads = "num_attention_heads",
                                         .kv_heads = "num_key_value_heads",
                                         .inner = "intermediate_size",
                                         .positions = "max_position_embeddings",
                                         .epsilon = "rms_norm_eps",
                                         .activation = "hidden_act"};

const tws_decoder_keys tws_gpt2_keys = {.layers = "n_layer|num_hidden_layers",
                                        .hidden = "n_embd|hidden_size",
                                        .heads = "n_head|num_attention_heads",
                                        .inner = "n_inner",
                                        .positions = "n_positions|max_position_embeddings",
                                        .epsilon = "layer_norm_epsilon",
                                        .activation = "activation_function"};

static const tws_decoder_names *names_of(const tws_decoder *d) {
  return d->names != NULL ? d->names : &tws_llama_names;
}
static const tws_decoder_keys *keys_of(const tws_decoder *d) {
  return d->keys != NULL ? d->keys : &tws_llama_keys;
}

/* ---- reading ---- */

/* Returns 1 if `word` is one of the spellings, which are separated by "|". */
static int is_spelling(const char *spellings, const char *word) {
  const size_t length = strlen(word);
  const char *at = spellings;
  while (at != NULL && (strncmp(at, word, length) != 0 || (at[length] != 0 && at[length] != '|'))) {
    at = strchr(at, '|');
    if (at != NULL) at++;
  }
  return at != NULL;
}

static tws_code read_size(tws_network_builder *b, const char *spellings, int required, int64_t high, int64_t fallback,
                          int64_t *value, tws_error *err) {
  char first[64], *second = NULL;
  snprintf(first, sizeof first, "%s", spellings);
  if ((second = strchr(first, '|')) != NULL) *second++ = 0;
  return tws_build_size(b, first, second, required, high, fallback, value, err);
}

static const cJSON *key_item(const tws_network_builder *b, const char *spellings) {
  const cJSON *item = NULL;
  cJSON_ArrayForEach(item, b->json->root) {
    if (item->string != NULL && is_spelling(spellings, item->string)) return item;
  }
  return NULL;
}

static tws_code read_head_size(tws_network_builder *b, const tws_decoder *d, tws_error *err) {
  tws_network *net = b->net;
  const cJSON *item = cJSON_GetObjectItemCaseSensitive(b->json->root, "head_dim");
  if ((item == NULL || cJSON_IsNull(item)) && d->head_size == 0) {
    item = key_item(b, keys_of(d)->heads);
    if (net->hidden % net->heads != 0) {
      return tws_json_fail(b->json, item, err, "give head_dim, or a number of heads that divides hidden_size",
                           "%lld attention heads do not divide hidden_size %lld", (long long)net->heads,
                           (long long)net->hidden);
    }
  }
  TWS_TRY(tws_build_size(b, "head_dim", NULL, 0, TWS_MAX_HEADS,
                         d->head_size > 0 ? d->head_size : net->hidden / net->heads, &net->head_size, err));
  if ((net->heads + 2 * net->kv_heads) * net->head_size > TWS_MAX_WIDTH) {
    return tws_json_fail(b->json, item, err, NULL, "query, key and value rows together exceed %d elements",
                         TWS_MAX_WIDTH);
  }
  return TWS_OK;
}

/* Checks the parameters of the rotary positions of one kind of layer (with or without a window). */
static tws_code check_rope(const tws_network_builder *b, const tws_decoder_rope *rope, tws_error *err) {
  const int64_t head = b->net->head_size;
  const int64_t turned = rope->share > 0    ? (int64_t)(rope->share * (double)head)
                         : rope->rotary > 0 ? rope->rotary
                                            : head;
  const cJSON *item = cJSON_GetObjectItemCaseSensitive(b->json->root, "head_dim");
  if (turned > 0 && turned % 2 == 0 && turned <= head) return TWS_OK;
  return tws_json_fail(b->json, item, err, "rotary positions turn pairs of elements: use an even number",
                       "%lld elements of a head of %lld are turned", (long long)turned, (long long)head);
}

static tws_code read_heads(tws_network_builder *b, const tws_decoder *d, tws_error *err) {
  tws_network *net = b->net;
  const tws_decoder_keys *keys = keys_of(d);
  TWS_TRY(read_size(b, keys->heads, 1, TWS_MAX_HEADS, 0, &net->heads, err));
  net->kv_heads = d->kv_heads ? d->kv_heads : net->heads;
  if (keys->kv_heads != NULL)
    TWS_TRY(read_size(b, keys->kv_heads, 0, TWS_MAX_HEADS, net->kv_heads, &net->kv_heads, err));
  if (net->heads % net->kv_heads != 0) {
    return tws_json_fail(b->json, keys->kv_heads != NULL ? key_item(b, keys->kv_heads) : NULL, err,
                         "choose a number of key-value heads that divides num_attention_heads",
                         "%lld key-value heads do not divide %lld attention heads", (long long)net->kv_heads,
                         (long long)net->heads);
  }
  return read_head_size(b, d, err);
}

/* Maps the names of activation functions in Hugging Face's configurations to module types. */
static const struct {
  const char *name;
  tws_module_type gated, plain;
} activations[] = {
    {"silu", TWS_MODULE_SWIGLU, TWS_MODULE_TYPE_COUNT}, {"swish", TWS_MODULE_SWIGLU, TWS_MODULE_TYPE_COUNT},
    {"gelu_new", TWS_MODULE_GEGLU, TWS_MODULE_GELU},    {"gelu_pytorch_tanh", TWS_MODULE_GEGLU, TWS_MODULE_GELU},
    {"gelu_fast", TWS_MODULE_GEGLU, TWS_MODULE_GELU},   {"gelu", TWS_MODULE_TYPE_COUNT, TWS_MODULE_GELU_EXACT},
    {"relu", TWS_MODULE_TYPE_COUNT, TWS_MODULE_RELU},   {"relu2", TWS_MODULE_TYPE_COUNT, TWS_MODULE_SQUARED_RELU}};

static tws_code find_activation(tws_network_builder *b, const tws_decoder *d, tws_module_type *type, tws_error *err) {
  const char *word = d->activation != NULL ? d->activation : "silu", *key = keys_of(d)->activation;
  char known[160] = "known here:";
  if (key != NULL) TWS_TRY(tws_json_string(b->json, b->json->root, key, 0, word, &word, err));
  for (size_t i = 0; i < sizeof activations / sizeof *activations; i++) {
    const tws_module_type found = d->ungated ? activations[i].plain : activations[i].gated;
    const size_t used = strlen(known);
    if (found == TWS_MODULE_TYPE_COUNT) continue;
    snprintf(known + used, sizeof known - used, " %s", activations[i].name);
    if (strcmp(word, activations[i].name) != 0) continue;
    *type = found;
    return TWS_OK;
  }
  tws_json_fail(b->json, key != NULL ? cJSON_GetObjectItemCaseSensitive(b->json->root, key) : NULL, err, known,
                "%s \"%.60s\" is not supported", key != NULL ? key : "activation", word);
  if (err != NULL) err->code = TWS_UNSUPPORTED;
  return TWS_UNSUPPORTED;
}

static tws_code read_sizes(tws_network_builder *b, const tws_decoder *d, tws_error *err) {
  const tws_decoder_keys *keys = keys_of(d);
  tws_network *net = b->net;
  TWS_TRY(read_size(b, keys->layers, 1, TWS_MAX_LAYERS, 0, &net->layers, err));
  TWS_TRY(read_size(b, keys->hidden, 1, TWS_MAX_WIDTH, 0, &net->hidden, err));
  net->intermediate = d->inner * net->hidden;
  if (keys->inner != NULL)
    TWS_TRY(read_size(b, keys->inner, d->inner == 0, TWS_MAX_WIDTH / 2, net->intermediate, &net->intermediate, err));
  net->positions = d->positions;
  if (keys->positions != NULL)
    TWS_TRY(read_size(b, keys->positions, d->positions == 0, TWS_MAX_WIDTH, d->positions, &net->positions, err));
  return TWS_OK;
}

static const tws_decoder_drops attention_alone = {.attention = "attention_dropout"};

/* Reads the dropout keys that the model family has, and notes that the other `keys` have no effect. */
static tws_code read_drops(tws_network_builder *b, const char *const *keys, tws_decoder *d, tws_error *err) {
  const tws_decoder_drops *drops = d->drops ? d->drops : &attention_alone;
  const struct {
    const char *key;
    double *share;
  } own[] = {{drops->attention, &d->attention_dropout},
             {drops->attended, &d->attended_dropout},
             {drops->inner, &d->inner_dropout},
             {drops->embedding, &d->embedding_dropout}};
  enum { OWN = sizeof own / sizeof *own };
  for (int i = 0; i < OWN; i++) {
    if (own[i].key == NULL) continue;
    TWS_TRY(tws_build_dropout_share(b, own[i].key, own[i].share, err));
    tws_build_known_keys(b, own[i].key);
  }
  for (; *keys != NULL; keys++) {
    const char *const one[] = {*keys, NULL};
    int known = 0;
    for (int i = 0; i < OWN; i++) known |= own[i].key != NULL && strcmp(own[i].key, *keys) == 0;
    if (!known) TWS_TRY(tws_build_dropouts(b, one, err));
  }
  return TWS_OK;
}

tws_code tws_decoder_read(tws_network_builder *b, const char *const *also_known, tws_decoder *d, tws_error *err) {
  static const char *const dropouts[] = {"attention_dropout", "hidden_dropout", "resid_pdrop",  "embd_pdrop",
                                         "attn_pdrop",        "embed_dropout",  "embd_dropout", NULL};
  static const char *const known[] = {"head_dim",
                                      "vocab_size",
                                      "initializer_range",
                                      "tie_word_embeddings",
                                      "attention_dropout",
                                      "hidden_dropout",
                                      "is_encoder_decoder",
                                      "resid_pdrop",
                                      "embd_pdrop",
                                      "attn_pdrop",
                                      "embed_dropout",
                                      "embd_dropout",
                                      NULL};
  static const char *const rope_keys[] = {"rope_theta", "rope_scaling", "rope_parameters", NULL};
  const tws_json *json = b->json;
  const tws_decoder_keys *keys = keys_of(d);
  const double range = d->range > 0 ? d->range : 0.02;
  tws_module_type unused;
  TWS_TRY(read_sizes(b, d, err));
  TWS_TRY(read_heads(b, d, err));
  if (keys->epsilon != NULL)
    TWS_TRY(tws_json_number(json, json->root, keys->epsilon, 0, 1e-20, 1, d->epsilon > 0 ? d->epsilon : 1e-6,
                            &d->epsilon, err));
  TWS_TRY(tws_json_number(json, json->root, "initializer_range", 0, 0, 100, range, &d->range, err));
  TWS_TRY(tws_json_bool(json, json->root, "tie_word_embeddings", 0, d->tied, &b->net->tied, err));
  TWS_TRY(find_activation(b, d, &unused, err));
  if (d->position == TWS_POSITIONS_ROTARY) {
    TWS_TRY(tws_decoder_read_rope(b, d, err));
    TWS_TRY(check_rope(b, &d->rope, err));
    TWS_TRY(check_rope(b, &d->sliding_rope, err));
  }
  TWS_TRY(tws_build_expect_bool(b, "is_encoder_decoder", 0, "only decoders are supported", err));
  TWS_TRY(read_drops(b, dropouts, d, err));
  const char *const sizes[] = {keys->layers, keys->hidden,    keys->heads,   keys->kv_heads,
                               keys->inner,  keys->positions, keys->epsilon, keys->activation};
  for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
    if (sizes[i] != NULL) tws_build_known_keys(b, sizes[i]);
  for (int i = 0; rope_keys[i] != NULL && d->position == TWS_POSITIONS_ROTARY; i++)
    tws_build_known_keys(b, rope_keys[i]);
  TWS_TRY(tws_build_read_classes(b, err));
  tws_build_unknown_keys(b, known, also_known);
  return TWS_OK;
}

tws_code tws_decoder_read_layer_types(tws_network_builder *b, int64_t period, tws_decoder *d, tws_error *err) {
  const cJSON *types = cJSON_GetObjectItemCaseSensitive(b->json->root, "layer_types"), *type;
  int64_t layers = 0;
  TWS_TRY(read_size(b, keys_of(d)->layers, 1, TWS_MAX_LAYERS, 0, &layers, err));
  d->slides = tws_arena_alloc(b->net->arena, (size_t)layers, 1);
  if (d->slides == NULL) return tws_fail(err, TWS_MEMORY, NULL, "out of memory for the model's graph");
  for (int64_t i = 0; i < layers; i++) d->slides[i] = d->window > 0 && period > 0 && (i + 1) % period != 0;
  if (types == NULL || cJSON_IsNull(types)) return TWS_OK;
  if (!cJSON_IsArray(types) || cJSON_GetArraySize(types) != layers)
    return tws_json_fail(b->json, types, err, NULL, "\"layer_types\" must be a list of %lld words", (long long)layers);
  int64_t layer = 0;
  cJSON_ArrayForEach(type, types) {
    const char *word = cJSON_IsString(type) ? type->valuestring : "";
    const int slides = strcmp(word, "sliding_attention") == 0;
    if (!slides && strcmp(word, "full_attention") != 0)
      return tws_json_fail(b->json, type, err, "known: full_attention and sliding_attention",
                           "layer %lld of \"layer_types\" is not supported", (long long)layer);
    if (slides && d->window == 0)
      return tws_json_fail(b->json, type, err, "give sliding_window", "a layer slides, and there is no window");
    d->slides[layer++] = (uint8_t)slides;
  }
  return TWS_OK;
}

tws_code tws_decoder_read_turned(tws_network_builder *b, int64_t interval, tws_decoder *d, tws_error *err) {
  const cJSON *list = cJSON_GetObjectItemCaseSensitive(b->json->root, "no_rope_layers");
  int64_t layers = 0;
  TWS_TRY(read_size(b, keys_of(d)->layers, 1, TWS_MAX_LAYERS, 0, &layers, err));
  TWS_TRY(
      tws_json_int(b->json, b->json->root, "no_rope_layer_interval", 0, 1, TWS_MAX_LAYERS, interval, &interval, err));
  uint8_t *turned = tws_arena_alloc(b->net->arena, (size_t)layers, 1);
  if (turned == NULL) return tws_fail(err, TWS_MEMORY, NULL, "out of memory for the model's graph");
  d->turned = turned;
  for (int64_t i = 0; i < layers; i++) turned[i] = (i + 1) % interval != 0;
  if (list == NULL || cJSON_IsNull(list)) return TWS_OK;
  if (!cJSON_IsArray(list) || cJSON_GetArraySize(list) != layers)
    return tws_json_fail(b->json, list, err, NULL, "\"no_rope_layers\" must be a list of %lld numbers",
                         (long long)layers);
  int64_t layer = 0;
  for (const cJSON *one = list->child; one != NULL; one = one->next) {
    if (!cJSON_IsNumber(one) || (one->valuedouble != 0 && one->valuedouble != 1))
      return tws_json_fail(b->json, one, err, "1: the layer has rotary positions, 0: it has none",
                           "layer %lld of \"no_rope_layers\" must be 0 or 1", (long long)layer);
    turned[layer++] = one->valuedouble == 1;
  }
  return TWS_OK;
}

/* ---- building ---- */

typedef struct layer_builder {
  tws_network_builder *b;
  const tws_decoder *d;
  const tws_decoder_names *names;
  tws_module_type activation;
  int layer;
} layer_builder;

static const char *named(const layer_builder *l, const char *suffix) {
  return tws_build_name(l->b, "%s%d.%s", l->names->layer, l->layer, suffix);
}

static tws_module *last_module(const tws_network_builder *b) {
  return &b->net->modules[b->net->module_count - 1];
}

static uint32_t add_norm(tws_network_builder *b, const tws_decoder *d, int layer, const char *name, uint32_t x) {
  const tws_norm_kind kind = {.rms = !d->layer_norm,
                              .bias = d->layer_norm && d->norm_bias,
                              .plain = d->plain_norms,
                              .epsilon = d->epsilon,
                              .offset = d->norm_offset};
  return tws_build_norm_of(b, layer, name, x, &kind);
}
static uint32_t layer_norm(const layer_builder *l, int which, uint32_t x) {
  return add_norm(l->b, l->d, l->layer, named(l, l->names->norm[which]), x);
}

static double output_range(const tws_decoder *d) {
  return d->output_range > 0 ? d->output_range : d->range;
}

static uint32_t add_rope(const layer_builder *l, uint32_t qkv, int slides) {
  const tws_decoder *d = l->d;
  const tws_decoder_rope *rope = slides && d->sliding_rope.parameters[0] > 0 ? &d->sliding_rope : &d->rope;
  const uint32_t y = tws_build_rope(l->b, l->layer, named(l, l->names->rope), qkv, rope->parameters);
  tws_module *m = last_module(l->b);
  m->rotary = rope->share > 0 ? (int32_t)(rope->share * (double)m->head_size) : (int32_t)rope->rotary;
  m->flags = rope->interleaved ? TWS_INTERLEAVED : 0;
  m->dynamic_rope = rope->dynamic;
  if (rope->factors) {
    m->flags |= TWS_RUNNING;
    m->running = tws_build_constants(l->b, rope->factors, 2, (m->rotary > 0 ? m->rotary : m->head_size) / 2);
  }
  return y;
}

static uint32_t add_head_norms(const layer_builder *l, uint32_t qkv) {
  static const char *const usual[2] = {"q_norm", "k_norm"};
  const tws_decoder *d = l->d;
  const tws_norm_kind kind = {.rms = 1, .epsilon = d->epsilon, .offset = d->norm_offset};
  const char *const *part = l->names->head_norm[0] != NULL ? l->names->head_norm : usual;
  return tws_build_heads_norm(l->b, l->layer, named(l, l->names->attention), part, qkv, &kind,
                              d->head_norms == TWS_HEADS_TOGETHER);
}

static uint32_t add_attention(const layer_builder *l, uint32_t x) {
  const tws_decoder *d = l->d;
  const tws_network *net = l->b->net;
  const int64_t q = net->heads * net->head_size, kv = net->kv_heads * net->head_size, rows[3] = {q, kv, kv};
  const int slides = d->window > 0 && (d->slides != NULL ? d->slides[l->layer] : l->layer >= d->window_layer);
  uint32_t y = tws_build_linear(l->b, l->layer, named(l, l->names->qkv), x, net->hidden, q + 2 * kv, (float)d->range,
                                d->qkv_bias, rows, TWS_NONE);
  tws_build_group(l->b, d->qkv_groups < 0 ? net->kv_heads : d->qkv_groups);
  if (d->head_norms && !d->norms_turned) y = add_head_norms(l, y);
  if (d->position == TWS_POSITIONS_ROTARY && (d->turned == NULL || d->turned[l->layer])) y = add_rope(l, y, slides);
  if (d->head_norms && d->norms_turned) y = add_head_norms(l, y);
  y = tws_build_attention(l->b, l->layer, named(l, l->names->attention), y);
  tws_module *m = last_module(l->b);
  m->window = slides ? d->window : 0;
  m->flags = d->position == TWS_POSITIONS_LINEAR ? TWS_ALIBI : 0;
  m->scale = d->attention_scale;
  m->slope = d->scaled_biases ? 1 / sqrt((double)net->head_size) : 0;
  m->cap = d->score_cap;
  m->dropout = d->attention_dropout;
  return tws_build_linear(l->b, l->layer, named(l, l->names->output), y, q, net->hidden, (float)output_range(d),
                          d->output_bias, NULL, TWS_NONE);
}

static uint32_t add_inner(const layer_builder *l, uint32_t x) {
  const tws_decoder *d = l->d;
  const int64_t hidden = l->b->net->hidden, inner = l->b->net->intermediate, rows[3] = {inner, inner, 0};
  if (d->routing.experts > 0 && !(d->dense != NULL && d->dense[l->layer]))
    return tws_decoder_add_experts(l->b, d, l->layer, x);
  uint32_t y = tws_build_linear(l->b, l->layer, named(l, l->names->up), x, hidden, d->ungated ? inner : 2 * inner,
                                (float)d->range, d->mlp_bias, d->ungated ? NULL : rows, TWS_NONE);
  if (!d->ungated) tws_build_group(l->b, d->gate_up_whole);
  y = tws_build_pointwise(l->b, l->layer, named(l, l->names->act), l->activation, y, inner);
  return tws_build_linear(l->b, l->layer, named(l, l->names->down), y, inner, hidden, (float)output_range(d),
                          d->mlp_bias, NULL, TWS_NONE);
}

static uint32_t join(const layer_builder *l, const char *name, uint32_t x, uint32_t branch) {
  if (l->d->residual_scale > 0)
    branch =
        tws_build_scale(l->b, l->layer, named(l, tws_build_name(l->b, "%s.scale", name)), branch, l->d->residual_scale);
  return tws_build_add(l->b, l->layer, named(l, name), x, branch);
}

static uint32_t drop(const layer_builder *l, const char *name, uint32_t x, double share) {
  return share > 0 ? tws_build_dropout(l->b, l->layer, named(l, name), x, share) : x;
}

/* Returns 1 if the layer's parallel branches are added first and dropout is applied to their sum. */
static int is_together(const layer_builder *l) {
  return l->d->order == TWS_ORDER_SIDE_BY_SIDE && l->d->drops && l->d->drops->together;
}
static int adds_together(const layer_builder *l) {
  return is_together(l) && l->d->inner_dropout > 0;
}
static uint32_t add_together(const layer_builder *l, uint32_t entered, uint32_t normed, uint32_t attended) {
  uint32_t y = add_inner(l, l->d->two_norms ? layer_norm(l, 2, entered) : normed);
  y = join(l, "add_1", attended, y);
  return join(l, "add_2", entered, drop(l, "inner_dropout", y, l->d->inner_dropout));
}

static uint32_t add_layer(const layer_builder *l, uint32_t x) {
  const tws_decoder_order order = l->d->order;
  const int after = order == TWS_ORDER_AFTER, before = order != TWS_ORDER_BEHIND && !after,
            behind = order == TWS_ORDER_BEHIND || order == TWS_ORDER_BOTH;
  const uint32_t entered = x, normed = before ? layer_norm(l, 0, x) : x;
  uint32_t y = add_attention(l, normed);
  if (behind) y = layer_norm(l, 1, y);
  if (adds_together(l)) return add_together(l, entered, normed, y);
  if (!is_together(l)) y = drop(l, "attention_dropout", y, l->d->attended_dropout);
  x = join(l, "add_1", x, y);
  if (after) x = layer_norm(l, 0, x);
  if (order == TWS_ORDER_SIDE_BY_SIDE)
    y = l->d->two_norms ? layer_norm(l, 2, entered) : normed;
  else
    y = before ? layer_norm(l, 2, x) : x;
  y = add_inner(l, y);
  if (behind) y = layer_norm(l, 3, y);
  y = drop(l, "inner_dropout", y, l->d->inner_dropout);
  x = join(l, "add_2", x, y);
  return after ? layer_norm(l, 2, x) : x;
}

/* Adds an embedding whose width differs from that of the layers, then its projection to the layers' width, and the rows
 * of positions. */
static uint32_t add_projected(tws_network_builder *b, const tws_decoder *d, const tws_decoder_names *names) {
  const tws_network *net = b->net;
  uint32_t x = tws_build_rows(b, names->embedding, tws_build_name(b, "%s.weight", names->embedding), TWS_INPUT_TOKENS,
                              net->padded_vocabulary, d->embedding_width, (float)d->range);
  x = tws_build_linear(b, -1, names->project_in, x, d->embedding_width, net->hidden, (float)d->range, 0, NULL,
                       TWS_NONE);
  const uint32_t places = tws_build_rows(b, names->positions, tws_build_name(b, "%s.weight", names->positions),
                                         TWS_INPUT_POSITIONS, net->positions, net->hidden, (float)d->range);
  if (d->first_position > 0) tws_build_first_position(b, d->first_position);
  x = tws_build_add(b, -1, "embedding.add", x, places);
  return tws_build_dropout(b, -1, "embedding.dropout", x, d->embedding_dropout);
}

static uint32_t add_embedding(tws_network_builder *b, const tws_decoder *d, const tws_decoder_names *names) {
  const int learned = d->position == TWS_POSITIONS_LEARNED;
  if (d->embedding_width > 0) return add_projected(b, d, names);
  uint32_t x = tws_build_embedding(b, names->embedding, tws_build_name(b, "%s.weight", names->embedding),
                                   learned ? tws_build_name(b, "%s.weight", names->positions) : NULL, (float)d->range);
  if (learned && d->first_position > 0) tws_build_first_position(b, d->first_position);
  if (d->embedding_scale > 0) x = tws_build_scale(b, -1, "embedding.scale", x, d->embedding_scale);
  if (names->embedding_norm != NULL) x = add_norm(b, d, -1, names->embedding_norm, x);
  return tws_build_dropout(b, -1, "embedding.dropout", x, d->embedding_dropout);
}

tws_code tws_decoder_build(tws_network_builder *b, const tws_decoder *d, tws_error *err) {
  enum { LONGEST_LAYER = 16 + TWS_EXPERT_MODULES, AROUND = 10 };
  tws_network *net = b->net;
  layer_builder l = {.b = b, .d = d, .names = names_of(d)};
  TWS_TRY(find_activation(b, d, &l.activation, err));
  TWS_TRY(tws_build_reserve(b, LONGEST_LAYER * net->layers + AROUND, err));
  uint32_t x = add_embedding(b, d, l.names);
  net->layer_first = net->module_count;
  for (l.layer = 0; l.layer < net->layers; l.layer++) x = add_layer(&l, x);
  net->layer_stride = (net->module_count - net->layer_first) / (uint32_t)net->layers;
  if (l.names->final_norm != NULL) x = add_norm(b, d, -2, l.names->final_norm, x);
  if (net->objective == TWS_OBJECTIVE_CLASSES) { /* class scores read the last token, which attends to all */
    x = tws_build_sample_rows(b, "last_token", x);
    tws_build_class_scores(b, "score", x, d->range, 0);
    return TWS_OK;
  }
  const uint32_t tied = net->tied ? net->modules[0].param[0] : TWS_NONE;
  const int64_t width = d->embedding_width > 0 ? d->embedding_width : net->hidden;
  if (d->embedding_width > 0)
    x = tws_build_linear(b, -2, l.names->project_out, x, net->hidden, width, (float)d->range, 0, NULL, TWS_NONE);
  x = tws_build_linear(b, -2, l.names->head, x, width, net->padded_vocabulary, (float)d->range, d->head_bias, NULL,
                       tied);
  if (d->logit_scale > 0) x = tws_build_scale(b, -2, "logits.scale", x, d->logit_scale);
  if (d->logit_cap > 0) x = tws_build_softcap(b, -2, "logits.cap", x, d->logit_cap);
  tws_build_loss(b, x);
  return TWS_OK;
}
