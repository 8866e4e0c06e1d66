#include "models/network/build.h"

#include <stdio.h>
#include <string.h>
#include "models/kernel.h"

const char *tws_build_name(tws_network_builder *b, const char *format, ...) {
  char text[256];
  va_list args;
  va_start(args, format);
  vsnprintf(text, sizeof text, format, args);
  va_end(args);
  char *copy = tws_arena_strdup(b->net->arena, text);
  if (copy == NULL) b->failed = 1;
  return copy != NULL ? copy : "";
}

tws_code tws_build_reserve(tws_network_builder *b, int64_t modules, tws_error *err) {
  tws_network *net = b->net;
  size_t count = (size_t)modules;
  net->modules = tws_arena_alloc_unset(net->arena, count, sizeof *net->modules);
  net->values = tws_arena_alloc_unset(net->arena, TWS_MODULE_OUTS * count, sizeof *net->values);
  net->params = tws_arena_alloc_unset(net->arena, TWS_MODULE_PARAMS * count, sizeof *net->params);
  net->running = tws_arena_alloc_unset(net->arena, count, sizeof *net->running);
  if (net->modules == NULL || net->values == NULL || net->params == NULL || net->running == NULL) {
    return tws_fail(err, TWS_MEMORY, NULL, "out of memory for the graph of %lld modules", (long long)modules);
  }
  return TWS_OK;
}

uint32_t tws_build_module(tws_network_builder *b, tws_module_type type, int layer, const char *name) {
  tws_network *net = b->net;
  uint32_t index = net->module_count++;
  tws_module_clear(&net->modules[index], type, name, layer);
  return index;
}

/* Adds a value to a module. Values are named after the module, without Hugging Face's outermost prefix:
 * "h.3.ln_1.y". */
uint32_t tws_build_value(tws_network_builder *b, uint32_t module, int slot, const char *suffix, const tws_dim *row,
                         int row_dims, int64_t per_row, tws_value_kind kind) {
  tws_network *net = b->net;
  const char *name = net->modules[module].name;
  if (strncmp(name, "transformer.", 12) == 0)
    name += 12;
  else if (strncmp(name, "model.", 6) == 0)
    name += 6;
  uint32_t index = net->value_count++;
  tws_value *value = &net->values[index];
  *value = (tws_value){.name = tws_build_name(b, "%s.%s", name, suffix),
                       .producer = module,
                       .per_row = (uint32_t)per_row,
                       .kind = kind,
                       .row_dims = (uint8_t)row_dims};
  memcpy(value->row, row, (size_t)row_dims * sizeof *row);
  net->modules[module].out[slot] = index;
  return index;
}

static const tws_dim token_rows[2] = {{.kind = TWS_DIM_SAMPLES}, {.kind = TWS_DIM_SEQUENCE}};

/* Adds a value whose rows are those of the module's first input, or tokens if the module has no input. */
static uint32_t add_value(tws_network_builder *b, uint32_t module, int slot, const char *suffix, int64_t per_row,
                          tws_value_kind kind) {
  const uint32_t in = b->net->modules[module].in[0];
  const tws_value *like = in != TWS_NONE ? &b->net->values[in] : NULL;
  return tws_build_value(b, module, slot, suffix, like ? like->row : token_rows, like ? like->row_dims : 2, per_row,
                         kind);
}

uint32_t tws_build_param(tws_network_builder *b, uint32_t module, int slot, const char *name, int64_t rows,
                         int64_t columns, tws_init init) {
  tws_network *net = b->net;
  for (uint32_t p = 0; b->again && p < net->param_count; p++)
    if (strcmp(net->params[p].name, name) == 0) return net->modules[module].param[slot] = p;
  int64_t elements = rows * columns; /* cannot overflow: see TWS_MAX_WIDTH */
  if (elements > TWS_MAX_PARAMS - b->params)
    b->too_large = 1;
  else
    b->params += elements;
  uint32_t index = net->param_count++;
  net->params[index] = (tws_param){
      .name = name, .rows = rows, .columns = columns, .init_std = init.std, .init_value = init.value, .module = module};
  net->modules[module].param[slot] = index;
  return index;
}

uint32_t tws_build_input(tws_network_builder *b, const char *name, tws_input_content content, const tws_dim *dim,
                         int dims) {
  tws_network *net = b->net;
  if (net->input_count == TWS_NETWORK_INPUTS) {
    b->failed = 1;
    return 0;
  }
  tws_network_input *input = &net->input[net->input_count];
  *input = (tws_network_input){.name = name, .content = content, .dims = (uint8_t)dims};
  memcpy(input->dim, dim, (size_t)dims * sizeof *dim);
  return net->input_count++;
}

/* Returns the network's input with this content, with one element per token; adds it if there is none. */
static uint32_t token_input(tws_network_builder *b, const char *name, tws_input_content content) {
  const uint32_t found = tws_network_input_of(b->net, content);
  return found != TWS_NONE ? found : tws_build_input(b, name, content, token_rows, 2);
}

uint32_t tws_build_embedding(tws_network_builder *b, const char *name, const char *wte, const char *wpe, float std) {
  tws_network *net = b->net;
  uint32_t module = tws_build_module(b, TWS_MODULE_EMBEDDING, -1, name);
  net->modules[module].out_features = net->hidden;
  net->modules[module].input[0] = token_input(b, "input ids", TWS_INPUT_TOKENS);
  tws_build_param(b, module, 0, wte, net->padded_vocabulary, net->hidden, (tws_init){std, 0});
  if (wpe != NULL) tws_build_param(b, module, 1, wpe, net->positions, net->hidden, (tws_init){std, 0});
  return add_value(b, module, 0, "x", net->hidden, TWS_VALUE_ACTIVATION);
}

uint32_t tws_build_rows(tws_network_builder *b, const char *name, const char *table, tws_input_content content,
                        int64_t rows, int64_t width, float std) {
  const uint32_t module = tws_build_module(b, TWS_MODULE_EMBEDDING, -1, name);
  const char *const input = content == TWS_INPUT_TOKENS ? "input ids" : "positions";
  b->net->modules[module].out_features = width;
  b->net->modules[module].input[0] = token_input(b, input, content);
  tws_build_param(b, module, 0, table, rows, width, (tws_init){std, 0});
  return add_value(b, module, 0, "x", width, TWS_VALUE_ACTIVATION);
}

void tws_build_segments(tws_network_builder *b, const char *table, int64_t rows, float std) {
  const uint32_t module = b->net->module_count - 1;
  b->net->modules[module].input[1] = token_input(b, "token types", TWS_INPUT_TYPES);
  tws_build_param(b, module, 2, table, rows, b->net->hidden, (tws_init){std, 0});
}

uint32_t tws_build_norm_of(tws_network_builder *b, int layer, const char *name, uint32_t x, const tws_norm_kind *kind) {
  tws_network *net = b->net;
  uint32_t module = tws_build_module(b, TWS_MODULE_NORM, layer, name);
  tws_module *m = &net->modules[module];
  const int64_t width = net->values[x].per_row;
  m->in[0] = x;
  m->out_features = width;
  m->rms = kind->rms;
  m->epsilon = kind->epsilon;
  m->offset = kind->offset;
  m->flags = kind->plain ? TWS_PLAIN : 0;
  if (!kind->plain)
    tws_build_param(b, module, 0, tws_build_name(b, "%s.weight", name), 1, width,
                    (tws_init){0, (float)(1 - kind->offset)});
  if (kind->bias) tws_build_param(b, module, 1, tws_build_name(b, "%s.bias", name), 1, width, (tws_init){0, 0});
  uint32_t y = add_value(b, module, 0, "y", width, TWS_VALUE_ACTIVATION);
  add_value(b, module, 1, "stats", kind->rms ? 1 : 2, TWS_VALUE_STATISTIC);
  return y;
}

uint32_t tws_build_norm(tws_network_builder *b, int layer, const char *name, uint32_t x, int rms, double epsilon) {
  return tws_build_norm_of(b, layer, name, x, &(tws_norm_kind){.rms = rms, .bias = !rms, .epsilon = epsilon});
}

uint32_t tws_build_linear(tws_network_builder *b, int layer, const char *name, uint32_t x, int64_t in, int64_t out,
                          float std, int bias, const int64_t *fused, uint32_t tied) {
  tws_network *net = b->net;
  uint32_t module = tws_build_module(b, TWS_MODULE_LINEAR, layer, name);
  tws_module *m = &net->modules[module];
  m->in[0] = x;
  m->in_features = in;
  m->out_features = out;
  if (tied != TWS_NONE)
    m->param[0] = tied;
  else
    tws_build_param(b, module, 0, tws_build_name(b, "%s.weight", name), out, in, (tws_init){std, 0});
  if (bias) tws_build_param(b, module, 1, tws_build_name(b, "%s.bias", name), 1, out, (tws_init){0, 0});
  if (fused != NULL) {
    memcpy(net->params[m->param[0]].fused, fused, sizeof net->params[0].fused);
    if (bias) memcpy(net->params[m->param[1]].fused, fused, sizeof net->params[0].fused);
  }
  return add_value(b, module, 0, "y", out, TWS_VALUE_ACTIVATION);
}

static tws_module *set_heads(tws_network_builder *b, uint32_t module, uint32_t qkv) {
  tws_module *m = &b->net->modules[module];
  m->in[0] = qkv;
  m->heads = (int32_t)b->net->heads;
  m->kv_heads = (int32_t)b->net->kv_heads;
  m->head_size = (int32_t)b->net->head_size;
  return m;
}

void tws_build_group(tws_network_builder *b, int64_t groups) {
  const tws_module *m = &b->net->modules[b->net->module_count - 1];
  for (int i = 0; i < 2; i++)
    if (m->param[i] != TWS_NONE) b->net->params[m->param[i]].groups = groups;
}

void tws_build_first_position(tws_network_builder *b, int64_t rows) {
  tws_module *m = &b->net->modules[b->net->module_count - 1];
  tws_param *table = &b->net->params[m->param[1] != TWS_NONE ? m->param[1] : m->param[0]];
  m->first_position = rows;
  table->rows += rows;
  b->params += rows * table->columns;
}

uint32_t tws_build_heads_norm(tws_network_builder *b, int layer, const char *name, const char *const part[2],
                              uint32_t qkv, const tws_norm_kind *kind, int together) {
  uint32_t module = tws_build_module(b, TWS_MODULE_HEADS_NORM, layer, tws_build_name(b, "%s.norm", name));
  tws_module *m = set_heads(b, module, qkv);
  const int64_t heads = m->heads, kv_heads = m->kv_heads, head = m->head_size;
  const tws_init init = {0, (float)(1 - kind->offset)};
  m->out_features = b->net->values[qkv].per_row;
  m->epsilon = kind->epsilon;
  m->offset = kind->offset;
  m->flags = together ? TWS_TOGETHER : 0;
  tws_build_param(b, module, 0, tws_build_name(b, "%s.%s.weight", name, part[0]), 1, together ? heads * head : head,
                  init);
  tws_build_param(b, module, 1, tws_build_name(b, "%s.%s.weight", name, part[1]), 1, together ? kv_heads * head : head,
                  init);
  uint32_t y = add_value(b, module, 0, "y", m->out_features, TWS_VALUE_ACTIVATION);
  add_value(b, module, 1, "stats", together ? 2 : heads + kv_heads, TWS_VALUE_STATISTIC);
  return y;
}

uint32_t tws_build_rope(tws_network_builder *b, int layer, const char *name, uint32_t qkv,
                        const double rope[TWS_ROPE_PARAMETERS]) {
  uint32_t module = tws_build_module(b, TWS_MODULE_ROPE, layer, name);
  tws_module *m = set_heads(b, module, qkv);
  memcpy(m->rope, rope, sizeof m->rope);
  m->out_features = b->net->values[qkv].per_row;
  return add_value(b, module, 0, "qkv", m->out_features, TWS_VALUE_ACTIVATION);
}

uint32_t tws_build_constants(tws_network_builder *b, const float *values, int64_t rows, int64_t columns) {
  tws_network *net = b->net;
  for (uint32_t r = 0; r < net->running_count; r++)
    if (net->running[r].fixed == values) return r;
  net->running[net->running_count] = (tws_running){
      .name = tws_build_name(b, "table%u", net->running_count), .rows = rows, .columns = columns, .fixed = values};
  return net->running_count++;
}

uint32_t tws_build_attention(tws_network_builder *b, int layer, const char *name, uint32_t qkv) {
  uint32_t module = tws_build_module(b, TWS_MODULE_ATTENTION, layer, name);
  tws_module *m = set_heads(b, module, qkv);
  m->in_features = b->net->values[qkv].per_row;
  m->out_features = b->net->heads * b->net->head_size;
  uint32_t o = add_value(b, module, 0, "o", m->out_features, TWS_VALUE_ACTIVATION);
  add_value(b, module, 1, "lse", b->net->heads, TWS_VALUE_STATISTIC);
  return o;
}

uint32_t tws_build_table(tws_network_builder *b, int layer, const char *name, int64_t rows, float std) {
  const tws_dim row = {.kind = TWS_DIM_FIXED, .size = rows};
  const uint32_t module = tws_build_module(b, TWS_MODULE_TABLE, layer, name);
  tws_module *m = &b->net->modules[module];
  m->buckets = (int32_t)rows;
  m->out_features = b->net->hidden;
  tws_build_param(b, module, 0, tws_build_name(b, "%s.weight", name), rows, b->net->hidden, (tws_init){std, 0});
  return tws_build_value(b, module, 0, "rows", &row, 1, b->net->hidden, TWS_VALUE_ACTIVATION);
}

uint32_t tws_build_disentangled(tws_network_builder *b, int layer, const char *name, uint32_t qkv, uint32_t positions,
                                int parts, int kinds) {
  const uint32_t o = tws_build_attention(b, layer, name, qkv);
  tws_module *m = &b->net->modules[b->net->module_count - 1];
  m->type = TWS_MODULE_DISENTANGLED;
  m->in[1] = positions;
  m->buckets = (int32_t)b->net->values[positions].row[0].size;
  m->parts = parts;
  m->kinds = kinds;
  return o;
}

uint32_t tws_build_part_bias(tws_network_builder *b, int layer, const char *name, const char *bias, uint32_t x,
                             int parts) {
  const uint32_t y = tws_build_pointwise(b, layer, name, TWS_MODULE_PART_BIAS, x, b->net->values[x].per_row);
  const uint32_t module = b->net->module_count - 1;
  const int64_t width = (int64_t)b->net->values[x].per_row / parts, biased = (parts + 1) / 2;
  b->net->modules[module].parts = parts;
  const uint32_t param = tws_build_param(b, module, 0, bias, 1, biased * width, (tws_init){0, 0});
  for (int i = 0; i < biased && biased > 1; i++) b->net->params[param].fused[i] = width;
  return y;
}

uint32_t tws_build_token_convolution(tws_network_builder *b, int layer, const char *name, uint32_t x, int64_t side,
                                     uint32_t lengths) {
  const int64_t width = b->net->values[x].per_row;
  const uint32_t y = tws_build_pointwise(b, layer, name, TWS_MODULE_TOKEN_UNFOLD, x, side * width);
  tws_module *m = &b->net->modules[b->net->module_count - 1];
  m->in_features = width;
  m->input[0] = lengths;
  return y;
}

uint32_t tws_build_gather(tws_network_builder *b, int layer, const char *name, uint32_t x, uint32_t input) {
  const uint32_t module = tws_build_module(b, TWS_MODULE_GATHER, layer, name);
  const tws_network_input *rows = &b->net->input[input];
  tws_module *m = &b->net->modules[module];
  m->in[0] = x;
  m->input[0] = input;
  m->out_features = b->net->values[x].per_row;
  return tws_build_value(b, module, 0, "y", rows->dim, rows->dims, m->out_features, TWS_VALUE_ACTIVATION);
}

uint32_t tws_build_cross_attention(tws_network_builder *b, int layer, const char *name, uint32_t q, uint32_t kv) {
  const uint32_t module = tws_build_module(b, TWS_MODULE_CROSS_ATTENTION, layer, name);
  tws_module *m = set_heads(b, module, q);
  m->in[1] = kv;
  m->in_features = m->out_features = b->net->values[q].per_row;
  const uint32_t o = add_value(b, module, 0, "o", m->out_features, TWS_VALUE_ACTIVATION);
  add_value(b, module, 1, "lse", b->net->heads, TWS_VALUE_STATISTIC);
  return o;
}

uint32_t tws_build_pointwise(tws_network_builder *b, int layer, const char *name, tws_module_type type, uint32_t x,
                             int64_t width) {
  uint32_t module = tws_build_module(b, type, layer, name);
  b->net->modules[module].in[0] = x;
  b->net->modules[module].out_features = width;
  return add_value(b, module, 0, "y", width, TWS_VALUE_ACTIVATION);
}

uint32_t tws_build_dropout(tws_network_builder *b, int layer, const char *name, uint32_t x, double probability) {
  if (probability == 0) return x;
  const uint32_t y = tws_build_pointwise(b, layer, name, TWS_MODULE_DROPOUT, x, b->net->values[x].per_row);
  b->net->modules[b->net->module_count - 1].dropout = probability;
  return y;
}

uint32_t tws_build_dropped(tws_network_builder *b, int layer, const char *name, uint32_t x, double share) {
  if (share == 0) return x;
  const uint32_t y = tws_build_pointwise(b, layer, name, TWS_MODULE_DROPPED, x, b->net->values[x].per_row);
  b->net->modules[b->net->module_count - 1].dropout = share;
  return y;
}

uint32_t tws_build_jitter(tws_network_builder *b, int layer, const char *name, uint32_t x, double jitter) {
  if (jitter == 0) return x;
  const uint32_t y = tws_build_pointwise(b, layer, name, TWS_MODULE_DROPOUT, x, b->net->values[x].per_row);
  b->net->modules[b->net->module_count - 1].jitter = jitter;
  return y;
}

uint32_t tws_build_detach(tws_network_builder *b, int layer, const char *name, uint32_t x) {
  const uint32_t module = tws_build_module(b, TWS_MODULE_DETACH, layer, name);
  const tws_value *like = &b->net->values[x];
  b->net->modules[module].in[0] = x;
  b->net->modules[module].out_features = like->per_row;
  return tws_build_value(b, module, 0, "y", like->row, like->row_dims, like->per_row, TWS_VALUE_ACTIVATION);
}

uint32_t tws_build_scale(tws_network_builder *b, int layer, const char *name, uint32_t x, double factor) {
  const uint32_t y = tws_build_pointwise(b, layer, name, TWS_MODULE_MULTIPLY, x, b->net->values[x].per_row);
  b->net->modules[b->net->module_count - 1].scale = factor;
  return y;
}

uint32_t tws_build_softcap(tws_network_builder *b, int layer, const char *name, uint32_t x, double cap) {
  const uint32_t y = tws_build_pointwise(b, layer, name, TWS_MODULE_SOFTCAP, x, b->net->values[x].per_row);
  b->net->modules[b->net->module_count - 1].cap = cap;
  return y;
}

uint32_t tws_build_add(tws_network_builder *b, int layer, const char *name, uint32_t residual, uint32_t branch) {
  uint32_t module = tws_build_module(b, TWS_MODULE_ADD, layer, name);
  tws_module *m = &b->net->modules[module];
  m->in[0] = residual;
  m->in[1] = branch;
  m->out_features = b->net->values[residual].per_row;
  return add_value(b, module, 0, "z", b->net->values[residual].per_row, TWS_VALUE_ACTIVATION);
}

void tws_build_loss_of(tws_network_builder *b, const char *name, uint32_t logits, uint32_t targets, int64_t classes) {
  tws_network *net = b->net;
  uint32_t module = tws_build_module(b, TWS_MODULE_LOSS, -2, name);
  net->modules[module].in[0] = logits;
  net->modules[module].input[0] = targets;
  net->modules[module].in_features = classes;
  net->modules[module].out_features = net->values[logits].per_row;
  net->logits = logits;
  add_value(b, module, 0, "dlogits", net->modules[module].out_features, TWS_VALUE_ACTIVATION);
}

void tws_build_loss(tws_network_builder *b, uint32_t logits) {
  const tws_network *net = b->net;
  const int64_t classes = net->classes > 0 ? net->classes : net->vocabulary;
  tws_build_loss_of(b, net->objective == TWS_OBJECTIVE_SENTENCES ? "masked tokens" : "loss", logits,
                    token_input(b, "targets", TWS_INPUT_TARGETS),
                    net->objective == TWS_OBJECTIVE_SPANS ? 0 : classes); /* 0: the tokens are the classes */
}

void tws_build_loss_kind(tws_network_builder *b, tws_loss_kind kind) {
  b->net->modules[b->net->module_count - 1].loss = kind;
  if (kind != TWS_LOSS_SOFTMAX) b->net->classes = b->net->vocabulary;
}

/* ---- configuration helpers ---- */

static int has_value(const tws_json *json, const char *key) {
  const cJSON *item = key != NULL ? cJSON_GetObjectItemCaseSensitive(json->root, key) : NULL;
  return item != NULL && !cJSON_IsNull(item);
}

void tws_build_note_unused(tws_network_builder *b, const char *key, const char *why) {
  const cJSON *item = cJSON_GetObjectItemCaseSensitive(b->json->root, key);
  if (!item || cJSON_IsNull(item) || cJSON_IsFalse(item) || (cJSON_IsNumber(item) && item->valuedouble == 0)) return;
  tws_text_add(&b->notes, "%s has no effect: %s\n", key, why);
}

tws_code tws_build_size(tws_network_builder *b, const char *key, const char *alias, int required, int64_t high,
                        int64_t fallback, int64_t *value, tws_error *err) {
  const tws_json *json = b->json;
  if (!has_value(json, key) && has_value(json, alias)) {
    const char *first = alias;
    alias = key;
    key = first;
  }
  TWS_TRY(tws_json_int(json, json->root, key, required, 1, high, fallback, value, err));
  if (!has_value(json, alias)) return TWS_OK;
  int64_t other = 0;
  TWS_TRY(tws_json_int(json, json->root, alias, 1, 1, high, 0, &other, err));
  if (other == *value) return TWS_OK;
  return tws_json_fail(json, cJSON_GetObjectItemCaseSensitive(json->root, alias), err, "remove one of the two keys",
                       "\"%s\" is %lld but \"%s\", which means the same, is %lld", alias, (long long)other, key,
                       (long long)*value);
}

tws_code tws_build_optional_number(tws_network_builder *b, const char *key, double fallback, double *value,
                                   tws_error *err) {
  *value = cJSON_HasObjectItem(b->json->root, key) ? 0 : fallback;
  if (!has_value(b->json, key)) return TWS_OK;
  return tws_json_number(b->json, b->json->root, key, 1, 1e-9, 1e9, 0, value, err);
}

tws_code tws_build_expect_bool(tws_network_builder *b, const char *key, int expected, const char *hint,
                               tws_error *err) {
  int value = expected;
  TWS_TRY(tws_json_bool(b->json, b->json->root, key, 0, expected, &value, err));
  if (value == expected) return TWS_OK;
  tws_json_fail(b->json, cJSON_GetObjectItemCaseSensitive(b->json->root, key), err, hint, "\"%s\": %s is not supported",
                key, value ? "true" : "false");
  if (err != NULL) err->code = TWS_UNSUPPORTED;
  return TWS_UNSUPPORTED;
}

tws_code tws_build_dropouts(tws_network_builder *b, const char *const *keys, tws_error *err) {
  for (; *keys != NULL; keys++) {
    double value = 0;
    TWS_TRY(tws_json_number(b->json, b->json->root, *keys, 0, 0, 1, 0, &value, err));
    if (value != 0) tws_text_add(&b->notes, "%s = %g has no effect: there is no dropout here\n", *keys, value);
  }
  return TWS_OK;
}

tws_code tws_build_dropout_share(tws_network_builder *b, const char *key, double *share, tws_error *err) {
  *share = 0;
  if (!has_value(b->json, key)) return TWS_OK;
  TWS_TRY(tws_json_number(b->json, b->json->root, key, 1, 0, 1, 0, share, err));
  if (*share < 1) return TWS_OK;
  return tws_json_fail(b->json, cJSON_GetObjectItemCaseSensitive(b->json->root, key), err, "0.1 is usual",
                       "\"%s\" is 1: nothing would be left", key);
}

/* Keys of Hugging Face configurations that describe generation, storage or the file itself, not the training step. */
static const char *const metadata[] = {"_name_or_path",
                                       "architectures",
                                       "model_type",
                                       "bos_token_id",
                                       "eos_token_id",
                                       "pad_token_id",
                                       "sep_token_id",
                                       "unk_token_id",
                                       "decoder_start_token_id",
                                       "transformers_version",
                                       "torch_dtype",
                                       "dtype",
                                       "use_cache",
                                       "cache_implementation",
                                       "task_specific_params",
                                       "output_past",
                                       "output_hidden_states",
                                       "output_attentions",
                                       "return_dict",
                                       "gradient_checkpointing",
                                       "id2label",
                                       "label2id",
                                       "summary_activation",
                                       "summary_first_dropout",
                                       "summary_proj_to_labels",
                                       "summary_type",
                                       "summary_use_proj",
                                       "chunk_size_feed_forward",
                                       "max_length",
                                       "finetuning_task",
                                       "auto_map",
                                       "tokenizer_class",
                                       "problem_type",
                                       "prefix",
                                       "license",
                                       "_attn_implementation",
                                       "_commit_hash",
                                       "unsloth_version",
                                       "unsloth_fixed",
                                       "forced_eos_token_id",
                                       "forced_bos_token_id",
                                       "bad_words_ids",
                                       "suppress_tokens",
                                       "is_decoder",
                                       "attn_implementation",
                                       "_attn_implementation_autoset",
                                       "bos_token",
                                       "eos_token",
                                       "model_name",
                                       "tokenizer_name",
                                       "use_flash_attention",
                                       "use_flash_attention_2",
                                       "_flash_attn_2_enabled",
                                       "return_dict_in_generate",
                                       "max_new_tokens",
                                       "do_sample",
                                       "temperature",
                                       "top_p",
                                       "top_k",
                                       "repetition_penalty",
                                       "use_return_dict",
                                       "torchscript",
                                       "transformers.js_config",
                                       "_comment",
                                       "model_max_length",
                                       "max_sequence_length",
                                       "is_llama_config",
                                       "pretraining_tp",
                                       "padding_idx",
                                       "_num_labels",
                                       NULL};

const char *const *tws_build_metadata(void) {
  return metadata;
}

static int listed(const char *const *list, const char *word) {
  for (; *list != NULL; list++) {
    if (strcmp(*list, word) == 0) return 1;
  }
  return 0;
}

void tws_build_known_keys(tws_network_builder *b, const char *spellings) {
  if (b->spelling_count == (int)(sizeof b->spellings / sizeof *b->spellings))
    b->failed = 1;
  else
    b->spellings[b->spelling_count++] = spellings;
}

static int is_spelling(const tws_network_builder *b, const char *word) {
  const size_t length = strlen(word);
  for (int i = 0; i < b->spelling_count; i++)
    for (const char *at = b->spellings[i]; at != NULL; at = strchr(at, '|')) {
      if (*at == '|') at++;
      if (strncmp(at, word, length) == 0 && (at[length] == 0 || at[length] == '|')) return 1;
    }
  return 0;
}

static int asks_for_nothing(const cJSON *item) {
  const int holds = cJSON_IsArray(item) || cJSON_IsObject(item);
  return cJSON_IsNull(item) || cJSON_IsFalse(item) || (holds && item->child == NULL);
}

/* Returns 1 if a key is a dropout probability with the value 0. */
static int drops_nothing(const cJSON *item) {
  const int share = strstr(item->string, "dropout") != NULL || strstr(item->string, "pdrop") != NULL;
  return share && cJSON_IsNumber(item) && !(item->valuedouble > 0) && !(item->valuedouble < 0);
}

void tws_build_unknown_keys(tws_network_builder *b, const char *const *known, const char *const *also) {
  const cJSON *item = NULL;
  cJSON_ArrayForEach(item, b->json->root) {
    if (item->string == NULL || listed(known, item->string) || (also && listed(also, item->string)) ||
        listed(metadata, item->string) || is_spelling(b, item->string) || drops_nothing(item))
      continue;
    if (!asks_for_nothing(item) && b->unknown == NULL) b->unknown = item;
    tws_text_add(&b->notes, "%.120s is not modelled and has no effect\n", item->string);
  }
}
