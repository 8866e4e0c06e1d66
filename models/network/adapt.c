#include "models/network/adapt.h"

#include <fnmatch.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/json.h"
#include "models/network/huggingface.h"
#include "models/quantized.h"

int64_t tws_network_trained(const tws_network *network) {
  int64_t count = 0;
  for (uint32_t p = 0; p < network->param_count; p++)
    count += network->params[p].frozen ? 0 : tws_param_numel(&network->params[p]);
  return count;
}

static tws_code no_memory(tws_error *err) {
  return tws_fail(err, TWS_MEMORY, NULL, "no memory for the parts of a model that are trained");
}

/* ---- configuration keys that are lists of texts ---- */

enum { MOST_TEXTS = 256 };
typedef struct texts {
  const char *item[MOST_TEXTS];
  uint8_t fitted[MOST_TEXTS];
  int count;
} texts;

static tws_code read_texts(const cJSON *from, const char *key, texts *out, tws_error *err) {
  const cJSON *item = from;
  out->count = 0;
  memset(out->fitted, 0, sizeof out->fitted);
  if (!from || cJSON_IsNull(from)) return TWS_OK;
  for (item = cJSON_IsArray(from) ? from->child : from; item; item = cJSON_IsArray(from) ? item->next : NULL) {
    if (!cJSON_IsString(item)) continue; /* cannot happen: config/ refuses lists with other items */
    if (out->count == MOST_TEXTS)
      return tws_fail(err, TWS_INVALID, "use patterns that fit more", "%s has more than %d names", key, MOST_TEXTS);
    out->item[out->count++] = item->valuestring;
  }
  return TWS_OK;
}

static tws_code check_fitted(const texts *list, const char *key, const char *hint, tws_error *err) {
  for (int i = 0; i < list->count; i++)
    if (!list->fitted[i])
      return tws_fail(err, TWS_INVALID, hint, "%s: nothing of the model is called \"%.120s\"", key, list->item[i]);
  return TWS_OK;
}

/* Lists the tensors that one parameter has in the model's files. */
static tws_code tensors_of(const tws_network *network, const tws_param *param, tws_arena *arena,
                           tws_hf_tensor **tensors, uint32_t *count, tws_error *err) {
  const tws_hf_request one = {.architecture = network->architecture ? network->architecture : "",
                              .params = param,
                              .param_count = 1,
                              .vocabulary = network->vocabulary,
                              .padded_vocabulary = network->padded_vocabulary};
  return tws_hf_tensors(&one, arena, tensors, count, err);
}

/* ---- frozen parameters ---- */

static int is_frozen(texts *patterns, const char *name) {
  int frozen = 0;
  for (int i = 0; i < patterns->count; i++) {
    const int takes_out = patterns->item[i][0] == '!';
    if (fnmatch(patterns->item[i] + takes_out, name, 0) != 0) continue;
    patterns->fitted[i] = 1;
    frozen = !takes_out;
  }
  return frozen;
}

static tws_code freeze_by_name(tws_network *network, texts *patterns, tws_arena *arena, tws_error *err) {
  for (uint32_t p = 0; p < network->param_count; p++) {
    tws_param *param = &network->params[p];
    tws_hf_tensor *tensors;
    uint32_t count, frozen = 0;
    TWS_TRY(tensors_of(network, param, arena, &tensors, &count, err));
    for (uint32_t i = 0; i < count; i++) frozen += is_frozen(patterns, tensors[i].name) != 0;
    if (frozen > 0 && frozen < count)
      return tws_fail(err, TWS_INVALID, "freeze all of them or none",
                      "twinspeed.frozen_parameters: %.200s and adjacent ones are one parameter here", tensors[0].name);
    param->frozen = count > 0 && frozen == count;
  }
  return TWS_OK;
}

/* Fails if a module's weight and bias are not both frozen or both trained, because one kernel computes both
 * gradients. */
static tws_code check_modules(const tws_network *network, tws_error *err) {
  for (uint32_t i = 0; i < network->module_count; i++) {
    const tws_module *m = &network->modules[i];
    int frozen = 0, params = 0;
    for (int k = 0; k < TWS_MODULE_PARAMS && m->type != TWS_MODULE_EMBEDDING; k++) {
      if (m->param[k] == TWS_NONE) continue;
      params++;
      frozen += network->params[m->param[k]].frozen != 0;
    }
    if (frozen > 0 && frozen < params)
      return tws_fail(err, TWS_UNSUPPORTED, "freeze all of a module's parameters or none",
                      "twinspeed.frozen_parameters: a part of %.200s would be trained", m->name);
  }
  return TWS_OK;
}

static tws_code freeze(tws_network *network, const cJSON *list, tws_arena *arena, tws_error *err) {
  static const char key[] = "twinspeed.frozen_parameters";
  texts patterns;
  TWS_TRY(read_texts(list, key, &patterns, err));
  if (patterns.count == 0) return TWS_OK;
  TWS_TRY(freeze_by_name(network, &patterns, arena, err));
  TWS_TRY(check_fitted(&patterns, key, "patterns are of whole names: \"model.layers.0.*\"", err));
  return check_modules(network, err);
}

/* ---- parameter groups ---- */

/* Returns 1 if a parameter has one dimension, as biases and the weights of norms have. */
static int is_vector(const tws_param *param) {
  return param->rows == 1 || (param->experts > 0 && param->rows == param->experts);
}

/* Returns 1 if a parameter is a table of an embedding, which a head may use as well. */
static int is_embedding(const tws_network *network, const tws_param *param) {
  return network->modules[param->module].type == TWS_MODULE_EMBEDDING;
}

/* Returns 1 if a parameter fits a pattern: a word for a kind of parameters, or a pattern of names. */
static int fits_pattern(const tws_network *network, const tws_param *param, const char *pattern, const char *name) {
  if (strcmp(pattern, "vectors") == 0) return is_vector(param);
  if (strcmp(pattern, "embeddings") == 0) return is_embedding(network, param);
  return fnmatch(pattern, name, 0) == 0;
}

static int is_in_group(const tws_network *network, texts *patterns, const tws_param *param, const char *name) {
  int found = 0;
  for (int i = 0; i < patterns->count; i++) {
    if (!fits_pattern(network, param, patterns->item[i], name)) continue;
    patterns->fitted[i] = 1;
    found = 1;
  }
  return found;
}

/* Assigns the parameters whose names match a pattern of entry number `entry` of optimizer.param_groups to this entry,
 * even if an earlier entry matches too. */
static tws_code fill_param_group(tws_network *network, int entry, texts *patterns, tws_arena *arena, tws_error *err) {
  for (uint32_t p = 0; p < network->param_count; p++) {
    tws_param *param = &network->params[p];
    tws_hf_tensor *tensors;
    uint32_t count, found = 0;
    TWS_TRY(tensors_of(network, param, arena, &tensors, &count, err));
    for (uint32_t i = 0; i < count; i++) found += is_in_group(network, patterns, param, tensors[i].name) != 0;
    if (found > 0 && found < count)
      return tws_fail(err, TWS_INVALID, "name all of them or none",
                      "optimizer.param_groups: %.200s and adjacent ones are one parameter here", tensors[0].name);
    if (count > 0 ? found == count : is_in_group(network, patterns, param, param->name))
      param->param_group = (uint8_t)entry;
  }
  return check_fitted(patterns, "optimizer.param_groups",
                      "patterns are of whole names: \"*.bias\", or the words vectors and embeddings", err);
}

/* Returns 1 if Muon updates a parameter: these are the matrices inside layers, not embeddings and heads. */
static int is_layer_matrix(const tws_network *network, const tws_param *param) {
  const int32_t layer = network->modules[param->module].layer;
  return !is_vector(param) && layer >= 0 && layer < network->layers;
}

static tws_code assign_param_groups(tws_network *network, const tws_config *config, tws_arena *arena, tws_error *err) {
  const int groups = tws_config_param_groups(config);
  int seen = 0; /* the entry whose parameters have been assigned */
  texts patterns;
  for (int group = 0; group < groups; group++) {
    const int entry = tws_config_param_group_entry(config, group);
    if (entry == seen) continue;
    TWS_TRY(read_texts(tws_config_param_group_names(config, group), "optimizer.param_groups", &patterns, err));
    TWS_TRY(fill_param_group(network, entry, &patterns, arena, err));
    seen = entry;
  }
  for (uint32_t p = 0; p < network->param_count && tws_optimizer_of(config->optimizer)->matrices; p++) {
    tws_param *param = &network->params[p];
    param->param_group = (uint8_t)(2 * param->param_group + !is_layer_matrix(network, param));
  }
  return TWS_OK;
}

/* ---- adapters ---- */

typedef struct adapter {
  tws_network *net; /* the network; its arrays have room for the adapters */
  const tws_config *config;
  texts targets;
  int all_linear;
  tws_arena *scratch;
  uint32_t *stands_for;       /* [value]: the value that readers of this value read instead */
  const tws_low_rank *shapes; /* the shapes that were created last, which equal layers share */
  int count;                  /* number of layers with adapters */
  tws_error *err;
} adapter;

/* Returns 1 if a target of the configuration names the tensor: "q_proj" matches a module that is called "q_proj" or
 * whose name ends with ".q_proj". */
static int fits(adapter *a, const char *tensor) {
  static const char weight[] = ".weight";
  const size_t length = strlen(tensor) - (sizeof weight - 1);
  int found = a->all_linear;
  for (int i = 0; i < a->targets.count && !a->all_linear; i++) {
    const size_t n = strlen(a->targets.item[i]);
    if (n > length || strncmp(tensor + length - n, a->targets.item[i], n) != 0) continue;
    if (n < length && tensor[length - n - 1] != '.') continue;
    found = a->targets.fitted[i] = 1;
  }
  return found;
}

/* Determines the width of each part of a layer's output and whether it has an adapter; returns the number of parts that
 * have one. */
static int parts_of(adapter *a, const tws_module *m, tws_low_rank *shape, tws_code *code) {
  const tws_param *weight = &a->net->params[m->param[0]];
  tws_hf_tensor *tensors;
  uint32_t count = 0;
  int used = 0;
  *shape = (tws_low_rank){.rank = a->config->lora.r, .out = m->out_features};
  if (m->layer < 0) return 0;
  *code = tensors_of(a->net, weight, a->scratch, &tensors, &count, a->err);
  for (uint32_t i = 0; *code == TWS_OK && i < count && count <= 3; i++) {
    shape->width[i] = tensors[i].rows;
    shape->skip[i] = !fits(a, tensors[i].name);
    used += !shape->skip[i];
  }
  return used;
}

static const tws_low_rank *keep_shape(adapter *a, const tws_low_rank *shape) {
  if (a->shapes && memcmp(a->shapes, shape, sizeof *shape) == 0) return a->shapes;
  tws_low_rank *kept = tws_arena_alloc(a->net->arena, 1, sizeof *kept);
  if (kept) *kept = *shape;
  return a->shapes = kept;
}

static const char *name_of(adapter *a, const tws_module *m, const char *suffix) {
  const char *name = tws_arena_printf(a->net->arena, "%s.%s", m->name, suffix);
  return name ? name : "";
}

static uint32_t add_module(adapter *a, tws_module_type type, const tws_module *of, const char *suffix, uint32_t x,
                           int64_t width) {
  tws_network *net = a->net;
  const uint32_t index = net->module_count++, value = net->value_count++;
  tws_module *m = &net->modules[index];
  tws_module_clear(m, type, name_of(a, of, suffix), of->layer);
  m->in[0] = x;
  m->out[0] = value;
  m->out_features = width;
  net->values[value] = net->values[x];
  net->values[value].name = name_of(a, of, suffix);
  net->values[value].producer = index;
  net->values[value].per_row = (uint32_t)width;
  return value;
}

static uint32_t add_param(adapter *a, const tws_module *of, const char *suffix, int64_t rows, int64_t columns,
                          double std) {
  tws_network *net = a->net;
  const uint32_t index = net->param_count++;
  net->params[index] = (tws_param){.name = name_of(a, of, suffix),
                                   .rows = rows,
                                   .columns = columns,
                                   .init_std = (float)std,
                                   .module = net->module_count - 1};
  net->modules[net->module_count - 1].param[0] = index;
  return index;
}

/* Sets the fused rows of an adapter's parameter to those of the layer's weight, except parts that have no adapter. */
static void join_parts(tws_param *param, const tws_param *weight, const tws_low_rank *shape, int of_a) {
  const int apart = shape->width[1] > 0;
  for (int i = 0; i < 3 && apart; i++)
    param->fused[i] = shape->skip[i] || shape->width[i] == 0 ? 0 : of_a ? shape->rank : shape->width[i];
  if (apart || of_a || weight->groups == 0) return;
  memcpy(param->fused, weight->fused, sizeof param->fused);
  param->groups = weight->groups;
}

double tws_lora_scale(const tws_config *config) {
  const double r = (double)config->lora.r;
  if (config->lora.r == 0) return 1;
  return config->lora.alpha / (config->lora.rslora ? sqrt(r) : r);
}

/* Adds an adapter after the linear layer `base`, the module added last. */
static tws_code add_adapter(adapter *a, uint32_t base, const tws_low_rank *shape, int parts) {
  tws_network *net = a->net;
  const tws_module linear = net->modules[base];
  const tws_param weight = net->params[linear.param[0]];
  const int64_t few = parts * shape->rank;
  const double scale = tws_lora_scale(a->config);
  uint32_t x = linear.in[0];
  int64_t rows = 0;
  for (int i = 0; i < 3; i++) rows += shape->skip[i] ? 0 : shape->width[i];
  if (a->config->lora.dropout > 0 && a->config->dropout) {
    x = add_module(a, TWS_MODULE_DROPPED, &linear, "lora_dropout", x, linear.in_features);
    net->modules[net->module_count - 1].dropout = a->config->lora.dropout;
  }
  x = add_module(a, TWS_MODULE_LINEAR, &linear, "lora_A", x, few);
  net->modules[net->module_count - 1].in_features = linear.in_features;
  uint32_t p =
      add_param(a, &linear, "lora_A.weight", few, linear.in_features, 1 / sqrt(3 * (double)linear.in_features));
  join_parts(&net->params[p], &weight, shape, 1);
  if (scale != 1) {
    x = add_module(a, TWS_MODULE_MULTIPLY, &linear, "lora_scale", x, few);
    net->modules[net->module_count - 1].scale = scale;
  }
  const uint32_t z = add_module(a, TWS_MODULE_LOW_RANK, &linear, "lora_B", linear.out[0], shape->out);
  tws_module *m = &net->modules[net->module_count - 1];
  m->in[1] = x;
  m->low_rank = keep_shape(a, shape);
  if (!m->low_rank) return no_memory(a->err);
  p = add_param(a, &linear, "lora_B.weight", rows, shape->rank, 0);
  join_parts(&net->params[p], &weight, shape, 0);
  a->stands_for[linear.out[0]] = z;
  a->count++;
  return TWS_OK;
}

static tws_code copy_modules(adapter *a, const tws_module *old, uint32_t count) {
  tws_network *net = a->net;
  for (uint32_t i = 0; i < count; i++) {
    const uint32_t index = net->module_count++;
    tws_module *m = &net->modules[index];
    tws_low_rank shape;
    tws_code code = TWS_OK;
    *m = old[i];
    for (int k = 0; k < TWS_MODULE_INS; k++)
      if (m->in[k] != TWS_NONE) m->in[k] = a->stands_for[m->in[k]];
    for (int k = 0; k < TWS_MODULE_OUTS; k++)
      if (m->out[k] != TWS_NONE) net->values[m->out[k]].producer = index;
    for (int k = 0; k < TWS_MODULE_PARAMS; k++)
      if (m->param[k] != TWS_NONE && net->params[m->param[k]].module == i) net->params[m->param[k]].module = index;
    const int parts = m->type == TWS_MODULE_LINEAR ? parts_of(a, m, &shape, &code) : 0;
    TWS_TRY(code);
    if (parts > 0) TWS_TRY(add_adapter(a, index, &shape, parts));
  }
  return TWS_OK;
}

/* Allocates arrays with room for four more modules and two more parameters per linear layer. */
static tws_code make_room(adapter *a, tws_error *err) {
  tws_network *net = a->net;
  uint32_t linear = 0;
  for (uint32_t i = 0; i < net->module_count; i++) linear += net->modules[i].type == TWS_MODULE_LINEAR;
  tws_module *modules = tws_arena_alloc(net->arena, net->module_count + 4u * linear + 1, sizeof *modules);
  tws_value *values = tws_arena_alloc(net->arena, net->value_count + 4u * linear + 1, sizeof *values);
  tws_param *params = tws_arena_alloc(net->arena, net->param_count + 2u * linear + 1, sizeof *params);
  a->stands_for = tws_arena_alloc(a->scratch, net->value_count + 1u, sizeof *a->stands_for);
  if (!modules || !values || !params || !a->stands_for) return no_memory(err);
  memcpy(values, net->values, net->value_count * sizeof *values);
  memcpy(params, net->params, net->param_count * sizeof *params);
  for (uint32_t v = 0; v < net->value_count; v++) a->stands_for[v] = v;
  net->modules = modules;
  net->values = values;
  net->params = params;
  return TWS_OK;
}

static tws_code read_targets(adapter *a, tws_error *err) {
  static const char key[] = "twinspeed.lora.target_modules";
  TWS_TRY(read_texts(a->config->lora_targets, key, &a->targets, err));
  if (a->targets.count == 0)
    return tws_fail(err, TWS_INVALID, "for example [\"q_proj\", \"v_proj\"], or \"all-linear\"",
                    "twinspeed.lora has no target_modules");
  a->all_linear = a->targets.count == 1 && strcmp(a->targets.item[0], "all-linear") == 0;
  if (a->all_linear) a->targets.fitted[0] = 1;
  return TWS_OK;
}

static tws_code add_adapters(adapter *a, tws_error *err) {
  tws_network *net = a->net;
  const tws_module *old = net->modules;
  const uint32_t count = net->module_count, before = net->layer_first;
  TWS_TRY(read_targets(a, err));
  for (uint32_t p = 0; p < net->param_count; p++) net->params[p].frozen = 1;
  TWS_TRY(make_room(a, err));
  net->module_count = 0;
  TWS_TRY(copy_modules(a, old, count));
  TWS_TRY(check_fitted(&a->targets, "twinspeed.lora.target_modules",
                       "name linear layers of the model's layers, such as q_proj", err));
  net->logits = net->logits < net->value_count ? a->stands_for[net->logits] : net->logits;
  net->layer_stride = net->layers > 0 ? net->layer_stride + (net->module_count - count) / (uint32_t)net->layers : 0;
  net->layer_first = before;
  return a->count > 0 ? TWS_OK
                      : tws_fail(err, TWS_UNSUPPORTED, "experts get no adapters here",
                                 "twinspeed.lora: the model has no linear layers in its layers");
}

/* ---- quantized frozen weights ---- */

/* Sets weights[param] to 1 for parameters that only linear layers use, and only as weights. */
static void find_weights(const tws_network *network, uint8_t *weights) {
  for (uint32_t m = 0; m < network->module_count; m++)
    if (network->modules[m].type == TWS_MODULE_LINEAR) weights[network->modules[m].param[0]] = 1;
  for (uint32_t m = 0; m < network->module_count; m++)
    for (int k = 0; k < TWS_MODULE_PARAMS; k++) {
      const uint32_t p = network->modules[m].param[k];
      if (p != TWS_NONE && (k > 0 || network->modules[m].type != TWS_MODULE_LINEAR)) weights[p] = 0;
    }
}

static tws_code is_skipped(adapter *a, const tws_param *param, int *skipped) {
  const cJSON *given = a->config->quantization_skips;
  tws_hf_tensor *tensors;
  uint32_t count;
  *skipped = (!given || cJSON_IsNull(given)) && a->net->modules[param->module].layer < 0;
  if (a->targets.count == 0) return TWS_OK;
  TWS_TRY(tensors_of(a->net, param, a->scratch, &tensors, &count, a->err));
  for (uint32_t i = 0; i < count; i++) *skipped |= fits(a, tensors[i].name);
  return TWS_OK;
}

static tws_code quantize(tws_network *network, const tws_config *config, tws_arena *scratch, tws_error *err) {
  static const char key[] = "twinspeed.frozen_quantization.skip_modules";
  adapter a = {.net = network, .config = config, .scratch = scratch, .err = err};
  const tws_quantization type = tws_config_frozen_type(config);
  const uint8_t codes = type == TWS_QUANTIZATION_NF4 ? TWS_CODES_NF4 : TWS_CODES_INT8;
  uint8_t *weights = tws_arena_alloc(scratch, network->param_count + 1u, 1);
  int count = 0, skipped;
  if (type == TWS_QUANTIZATION_NONE) return TWS_OK;
  if (!weights) return no_memory(err);
  TWS_TRY(read_texts(config->quantization_skips, key, &a.targets, err));
  find_weights(network, weights);
  for (uint32_t p = 0; p < network->param_count; p++) {
    if (!weights[p]) continue;
    TWS_TRY(is_skipped(&a, &network->params[p], &skipped));
    if (skipped || !network->params[p].frozen) continue;
    network->params[p].code_type = codes;
    count++;
  }
  TWS_TRY(check_fitted(&a.targets, key, "name linear layers, such as lm_head", err));
  return count > 0 ? TWS_OK
                   : tws_fail(err, TWS_INVALID, "ask for adapters (twinspeed.lora) or name twinspeed.frozen_parameters",
                              "twinspeed.frozen_quantization: no weight of a linear layer is frozen");
}

/* Marks the values of the network that depend on no trained parameter. */
static tws_code mark_constants(tws_network *network, tws_arena *scratch, tws_error *err) {
  uint8_t *needed = tws_arena_alloc(scratch, network->value_count + 1u, 1);
  if (!needed) return no_memory(err);
  tws_network_find_needed(network, needed);
  for (uint32_t v = 0; v < network->value_count; v++) network->values[v].constant = !needed[v];
  return TWS_OK;
}

tws_code tws_network_adapt(tws_network *network, const tws_config *config, tws_error *err) {
  adapter a = {.net = network, .config = config, .scratch = tws_arena_create(), .err = err};
  if (!a.scratch) return no_memory(err);
  tws_code code = TWS_OK;
  if (config->lora.r > 0 && config->frozen_parameters && cJSON_GetArraySize(config->frozen_parameters) > 0)
    code = tws_fail(err, TWS_INVALID, "leave one of them out",
                    "twinspeed.lora freezes what has no adapter: twinspeed.frozen_parameters is one too many");
  else if (config->lora.r > 0)
    code = add_adapters(&a, err);
  else
    code = freeze(network, config->frozen_parameters, a.scratch, err);
  if (code == TWS_OK) code = quantize(network, config, a.scratch, err);
  if (code == TWS_OK) code = assign_param_groups(network, config, a.scratch, err);
  if (code == TWS_OK) code = mark_constants(network, a.scratch, err);
  tws_arena_destroy(a.scratch);
  return code;
}
