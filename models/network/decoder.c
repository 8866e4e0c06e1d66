#include "models/network/decoder.h"

#include <string.h>

static tws_code read_heads(tws_network_builder *b, const tws_decoder *d, tws_error *err) {
  tws_network *net = b->net;
  const tws_json *json = b->json;
  const cJSON *root = json->root;
  TWS_TRY(tws_build_size(b, "num_attention_heads", NULL, 1, TWS_MAX_HEADS, 0, &net->heads, err));
  TWS_TRY(tws_build_size(b, "num_key_value_heads", NULL, 0, TWS_MAX_HEADS, d->kv_heads ? d->kv_heads : net->heads,
                         &net->kv_heads, err));
  if (net->heads % net->kv_heads != 0) {
    return tws_json_fail(json, cJSON_GetObjectItemCaseSensitive(root, "num_key_value_heads"), err,
                         "choose a number of key-value heads that divides num_attention_heads",
                         "%lld key-value heads do not divide %lld attention heads", (long long)net->kv_heads,
                         (long long)net->heads);
  }
  const cJSON *item = cJSON_GetObjectItemCaseSensitive(root, "head_dim");
  if (item == NULL || cJSON_IsNull(item)) {
    item = cJSON_GetObjectItemCaseSensitive(root, "num_attention_heads");
    if (net->hidden % net->heads != 0) {
      return tws_json_fail(json, item, err, "give head_dim, or a number of heads that divides hidden_size",
                           "%lld attention heads do not divide hidden_size %lld", (long long)net->heads,
                           (long long)net->hidden);
    }
  }
  TWS_TRY(tws_build_size(b, "head_dim", NULL, 0, TWS_MAX_HEADS, net->hidden / net->heads, &net->head_size, err));
  if (net->head_size % 2 != 0) {
    return tws_json_fail(json, item, err, "rotary positions turn pairs of elements: use an even head size",
                         "head size %lld is odd", (long long)net->head_size);
  }
  if ((net->heads + 2 * net->kv_heads) * net->head_size > TWS_MAX_WIDTH) {
    return tws_json_fail(json, item, err, NULL, "query, key and value rows together exceed %d elements", TWS_MAX_WIDTH);
  }
  return TWS_OK;
}

static tws_code read_llama3_scaling(tws_network_builder *b, const cJSON *object, tws_decoder *d, tws_error *err) {
  const tws_json *json = b->json;
  TWS_TRY(tws_json_number(json, object, "factor", 1, 1, 1e6, 0, &d->rope[1], err));
  TWS_TRY(tws_json_number(json, object, "low_freq_factor", 1, 1e-6, 1e6, 0, &d->rope[2], err));
  TWS_TRY(tws_json_number(json, object, "high_freq_factor", 1, 1e-6, 1e6, 0, &d->rope[3], err));
  TWS_TRY(tws_json_number(json, object, "original_max_position_embeddings", 1, 1, 1e9, 0, &d->rope[4], err));
  if (d->rope[3] > d->rope[2]) return TWS_OK;
  return tws_json_fail(json, cJSON_GetObjectItemCaseSensitive(object, "high_freq_factor"), err, NULL,
                       "high_freq_factor %g must be larger than low_freq_factor %g", d->rope[3], d->rope[2]);
}

/* rope_theta and rope_scaling, or newer files' rope_parameters with both inside. */
static tws_code read_rope(tws_network_builder *b, tws_decoder *d, tws_error *err) {
  const tws_json *json = b->json;
  const cJSON *parameters = cJSON_GetObjectItemCaseSensitive(json->root, "rope_parameters");
  const cJSON *scaling = cJSON_GetObjectItemCaseSensitive(json->root, "rope_scaling");
  TWS_TRY(tws_json_number(json, json->root, "rope_theta", 0, 1, 1e12, 10000, &d->rope[0], err));
  if (parameters != NULL && !cJSON_IsNull(parameters)) scaling = parameters;
  if (scaling == NULL || cJSON_IsNull(scaling)) return TWS_OK;
  if (!cJSON_IsObject(scaling)) {
    return tws_json_fail(json, scaling, err, "leave it out, or give an object with rope_type",
                         "\"%s\" must be an object or null", scaling->string);
  }
  TWS_TRY(tws_json_number(json, scaling, "rope_theta", 0, 1, 1e12, d->rope[0], &d->rope[0], err));
  const char *type = NULL;
  TWS_TRY(tws_json_string(json, scaling, "type", 0, "default", &type, err));
  TWS_TRY(tws_json_string(json, scaling, "rope_type", 0, type, &type, err));
  if (strcmp(type, "llama3") == 0) return read_llama3_scaling(b, scaling, d, err);
  if (strcmp(type, "default") == 0) return TWS_OK;
  tws_json_fail(json, scaling, err, "known: default and llama3", "rope scaling type \"%.60s\" is not supported", type);
  if (err != NULL) err->code = TWS_UNSUPPORTED;
  return TWS_UNSUPPORTED;
}

tws_code tws_decoder_read(tws_network_builder *b, const char *const *also_known, tws_decoder *d, tws_error *err) {
  static const char *const dropouts[] = {"attention_dropout", "hidden_dropout", NULL};
  static const char *const known[] = {"num_hidden_layers",
                                      "hidden_size",
                                      "intermediate_size",
                                      "num_attention_heads",
                                      "num_key_value_heads",
                                      "head_dim",
                                      "max_position_embeddings",
                                      "vocab_size",
                                      "hidden_act",
                                      "rms_norm_eps",
                                      "initializer_range",
                                      "tie_word_embeddings",
                                      "rope_theta",
                                      "rope_scaling",
                                      "rope_parameters",
                                      "attention_dropout",
                                      "hidden_dropout",
                                      "is_encoder_decoder",
                                      NULL};
  const tws_json *json = b->json;
  const cJSON *root = json->root;
  tws_network *net = b->net;
  TWS_TRY(tws_build_size(b, "num_hidden_layers", NULL, 1, TWS_MAX_LAYERS, 0, &net->layers, err));
  TWS_TRY(tws_build_size(b, "hidden_size", NULL, 1, TWS_MAX_WIDTH, 0, &net->hidden, err));
  TWS_TRY(tws_build_size(b, "intermediate_size", NULL, 1, TWS_MAX_WIDTH / 2, 0, &net->intermediate, err));
  TWS_TRY(tws_build_size(b, "max_position_embeddings", NULL, 0, TWS_MAX_WIDTH, d->positions, &net->positions, err));
  TWS_TRY(read_heads(b, d, err));
  TWS_TRY(tws_json_number(json, root, "rms_norm_eps", 0, 1e-20, 1, 1e-6, &d->epsilon, err));
  TWS_TRY(tws_json_number(json, root, "initializer_range", 0, 0, 100, 0.02, &d->range, err));
  TWS_TRY(tws_json_bool(json, root, "tie_word_embeddings", 0, 0, &net->tied, err));
  const char *activation = NULL;
  TWS_TRY(tws_json_string(json, root, "hidden_act", 0, "silu", &activation, err));
  if (strcmp(activation, "silu") != 0) {
    tws_json_fail(json, cJSON_GetObjectItemCaseSensitive(root, "hidden_act"), err, "known here: silu",
                  "hidden_act \"%.60s\" is not supported", activation);
    if (err != NULL) err->code = TWS_UNSUPPORTED;
    return TWS_UNSUPPORTED;
  }
  TWS_TRY(read_rope(b, d, err));
  TWS_TRY(tws_build_expect_bool(b, "is_encoder_decoder", 0, "only decoders are supported", err));
  TWS_TRY(tws_build_dropouts(b, dropouts, err));
  tws_build_unknown_keys(b, known, also_known);
  return TWS_OK;
}

static uint32_t add_layer(tws_network_builder *b, const tws_decoder *d, int layer, uint32_t x) {
  const tws_network *net = b->net;
  int64_t hidden = net->hidden, q = net->heads * net->head_size, kv = net->kv_heads * net->head_size;
  int64_t qkv_rows[3] = {q, kv, kv}, mlp_rows[3] = {net->intermediate, net->intermediate, 0};
  float std = (float)d->range;
#define NAME(suffix) tws_build_name(b, "model.layers.%d." suffix, layer)
  uint32_t y = tws_build_norm(b, layer, NAME("input_layernorm"), x, 1, d->epsilon);
  y = tws_build_linear(b, layer, NAME("self_attn.qkv_proj"), y, hidden, q + 2 * kv, std, d->qkv_bias, qkv_rows,
                       TWS_NONE);
  y = tws_build_rope(b, layer, NAME("self_attn.rope"), y, d->rope);
  y = tws_build_attention(b, layer, NAME("self_attn"), y);
  net->modules[net->module_count - 1].window = layer >= d->window_layer ? d->window : 0;
  y = tws_build_linear(b, layer, NAME("self_attn.o_proj"), y, q, hidden, std, d->output_bias, NULL, TWS_NONE);
  x = tws_build_add(b, layer, NAME("add_1"), x, y);
  y = tws_build_norm(b, layer, NAME("post_attention_layernorm"), x, 1, d->epsilon);
  if (d->routing.experts > 0 && !(d->dense && d->dense[layer]))
    return tws_build_add(b, layer, NAME("add_2"), x, tws_decoder_add_experts(b, d, layer, y));
  y = tws_build_linear(b, layer, NAME("mlp.gate_up_proj"), y, hidden, 2 * net->intermediate, std, d->mlp_bias, mlp_rows,
                       TWS_NONE);
  y = tws_build_pointwise(b, layer, NAME("mlp.act"), TWS_MODULE_SWIGLU, y, net->intermediate);
  y = tws_build_linear(b, layer, NAME("mlp.down_proj"), y, net->intermediate, hidden, std, d->mlp_bias, NULL, TWS_NONE);
  return tws_build_add(b, layer, NAME("add_2"), x, y);
#undef NAME
}

tws_code tws_decoder_build(tws_network_builder *b, const tws_decoder *d, tws_error *err) {
  tws_network *net = b->net;
  const uint32_t stride = d->routing.experts > 0 ? 8 + TWS_EXPERT_MODULES : 11;
  TWS_TRY(tws_build_reserve(b, stride * net->layers + 4, err));
  uint32_t x = tws_build_embedding(b, "model.embed_tokens", "model.embed_tokens.weight", NULL, (float)d->range);
  net->layer_first = net->module_count;
  for (int layer = 0; layer < net->layers; layer++) x = add_layer(b, d, layer, x);
  net->layer_stride = (net->module_count - net->layer_first) / (uint32_t)net->layers;
  x = tws_build_norm(b, -2, "model.norm", x, 1, d->epsilon);
  uint32_t tied = net->tied ? net->modules[0].param[0] : TWS_NONE;
  x = tws_build_linear(b, -2, "lm_head", x, net->hidden, net->padded_vocabulary, (float)d->range, 0, NULL, tied);
  tws_build_loss(b, x);
  return TWS_OK;
}
