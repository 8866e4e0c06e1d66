#include "models/network/encoder.h"

#include <string.h>

#include "models/kernel.h"

static const tws_dim samples_alone[] = {{.kind = TWS_DIM_SAMPLES}};

uint32_t tws_encoder_add_lengths(tws_network_builder *b) {
  return tws_build_input(b, "lengths", TWS_INPUT_LENGTHS, samples_alone, 1);
}

int tws_build_is_class(const tws_network_builder *b, const char *ending) {
  const char *name = b->net->class_name;
  const size_t length = name ? strlen(name) : 0, end = strlen(ending);
  return length >= end && strcmp(name + length - end, ending) == 0;
}

tws_code tws_encoder_read_activation(tws_network_builder *b, const char *key, const char *fallback,
                                     tws_module_type *activation, tws_error *err) {
  static const struct {
    const char *name;
    tws_module_type type;
  } known[] = {{"gelu", TWS_MODULE_GELU},
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
  return e->dropout > 0 ? 12 : 10;
}

/* A branch joins the residual stream. */
static uint32_t join(tws_network_builder *b, const tws_encoder *e, int layer, const char *name, uint32_t x,
                     uint32_t branch) {
  branch = tws_build_dropout(b, layer, tws_build_name(b, "%s.dropout", name), branch, e->dropout);
  return tws_build_add(b, layer, name, x, branch);
}

static uint32_t add_layer(tws_network_builder *b, const tws_encoder *e, int layer, uint32_t x) {
  const tws_network *net = b->net;
  const int64_t hidden = net->hidden, width = net->heads * net->head_size, qkv[3] = {width, width, width};
  const float std = (float)e->range;
  const char *prefix = tws_build_name(b, e->names->layer, layer);
#define NAME(part) tws_build_name(b, "%s.%s", prefix, part)
  uint32_t y = e->norm_first ? tws_build_norm(b, layer, NAME(e->names->norm_1), x, 0, e->epsilon) : x;
  y = tws_build_linear(b, layer, NAME(e->names->qkv), y, hidden, 3 * width, std, e->qkv_bias, qkv, TWS_NONE);
  y = tws_build_attention(b, layer, NAME("attention"), y);
  tws_module *attention = &net->modules[net->module_count - 1];
  attention->flags = TWS_BIDIRECTIONAL;
  attention->input[0] = e->lengths;
  attention->dropout = e->attention_dropout;
  y = tws_build_linear(b, layer, NAME(e->names->out), y, width, hidden, std, 1, NULL, TWS_NONE);
  x = join(b, e, layer, NAME("add_1"), x, y);
  if (!e->norm_first) x = tws_build_norm(b, layer, NAME(e->names->norm_1), x, 0, e->epsilon);
  y = e->norm_first ? tws_build_norm(b, layer, NAME(e->names->norm_2), x, 0, e->epsilon) : x;
  y = tws_build_linear(b, layer, NAME(e->names->up), y, hidden, net->intermediate, std, 1, NULL, TWS_NONE);
  y = tws_build_pointwise(b, layer, NAME("activation"), e->activation, y, net->intermediate);
  y = tws_build_linear(b, layer, NAME(e->names->down), y, net->intermediate, hidden, std, 1, NULL, TWS_NONE);
  x = join(b, e, layer, NAME("add_2"), x, y);
  return e->norm_first ? x : tws_build_norm(b, layer, NAME(e->names->norm_2), x, 0, e->epsilon);
#undef NAME
}

uint32_t tws_encoder_add_layers(tws_network_builder *b, const tws_encoder *e, uint32_t x) {
  b->net->layer_first = b->net->module_count;
  b->net->layer_stride = tws_encoder_stride(e);
  for (int layer = 0; layer < b->net->layers; layer++) x = add_layer(b, e, layer, x);
  return x;
}
