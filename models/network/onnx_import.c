#include "models/network/onnx_import.h"

#include <ctype.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "models/network/described.h"

const double tws_onnx_sample_points[TWS_ONNX_SAMPLES] = {-3, -1.7, -0.9, -0.3, -0.1, 0.2, 0.6, 1.4, 2.5, 7};

tws_code tws_onnx_refuse(const tws_onnx_import *x, int node, tws_error *err, const char *hint, const char *format,
                         ...) {
  char message[512];
  va_list arguments;
  va_start(arguments, format);
  if (vsnprintf(message, sizeof message, format, arguments) < 0) message[0] = 0;
  va_end(arguments);
  const tws_onnx_node *n = &x->graph->nodes[node];
  return tws_fail(err, TWS_UNSUPPORTED, hint, "%s: node %.200s (%.100s): %s", x->graph->path, n->name, n->op, message);
}

tws_code tws_onnx_no_memory(const tws_onnx_import *x, tws_error *err) {
  return tws_fail(err, TWS_MEMORY, NULL, "%s: no memory for the file's network", x->graph->path);
}

/* ---- values ---- */

tws_onnx_value *tws_onnx_in(const tws_onnx_import *x, int node, int i) {
  if (i >= x->graph->nodes[node].ins || x->in[node][i] < 0) return NULL;
  return &x->values[x->in[node][i]];
}

tws_onnx_value *tws_onnx_out(const tws_onnx_import *x, int node, int i) {
  if (i >= x->graph->nodes[node].outs || x->out[node][i] < 0) return NULL;
  return &x->values[x->out[node][i]];
}

const tws_onnx_tensor *tws_onnx_constant_in(const tws_onnx_import *x, int node, int i) {
  const tws_onnx_value *value = tws_onnx_in(x, node, i);
  return value && value->kind == TWS_ONNX_CONSTANT ? value->constant : NULL;
}

int tws_onnx_scalar(const tws_onnx_tensor *t, double *value) {
  if (!t || t->count != 1) return 0;
  *value = tws_onnx_element(t, 0);
  return 1;
}

int tws_onnx_is_output(const tws_onnx_import *x, const tws_onnx_value *value) {
  return strcmp(x->graph->outputs[0].name, value->name) == 0;
}

int tws_onnx_only_reader(const tws_onnx_import *x, const tws_onnx_value *value) {
  return value->readers == 1 && !tws_onnx_is_output(x, value) ? value->first_reader : -1;
}

void tws_onnx_alias(tws_onnx_value *to, const tws_onnx_value *from) {
  const tws_onnx_value own = *to;
  *to = *from;
  to->name = own.name;
  to->producer = own.producer;
  to->readers = own.readers;
  to->first_reader = own.first_reader;
}

void tws_onnx_set(tws_onnx_value *to, const tws_onnx_value *like, int index) {
  tws_onnx_alias(to, like);
  to->kind = TWS_ONNX_ACTIVATION;
  to->module = index;
}

/* ---- modules ---- */

static int is_taken(const tws_onnx_import *x, const char *name) {
  if (!*name || strcmp(name, "input") == 0) return 1;
  for (int i = 0; i < x->module_count; i++)
    if (strcmp(x->module_names[i], name) == 0) return 1;
  return 0;
}

/* Returns a name that no other module has: the wanted one, where slashes become dots, or with a number after it. */
static const char *free_name(tws_onnx_import *x, const char *type, const char *wanted) {
  enum { LONGEST = 72 };
  char name[128], start[LONGEST + 1];
  size_t length = 0;
  while (*wanted == '/') wanted++;
  if (strlen(wanted) > LONGEST) wanted = type;
  for (; wanted[length]; length++) start[length] = wanted[length] == '/' ? '.' : wanted[length];
  start[length] = 0;
  snprintf(name, sizeof name, "%s", start);
  for (int i = 2; is_taken(x, name); i++) snprintf(name, sizeof name, "%s_%d", *start ? start : type, i);
  return tws_arena_strdup(x->arena, name);
}

cJSON *tws_onnx_add(tws_onnx_import *x, int node, const char *type, const char *wanted, const tws_onnx_value *from,
                    int *index) {
  size_t capacity = (size_t)x->module_capacity;
  const char *name = free_name(x, type, wanted ? wanted : x->graph->nodes[node].name);
  if (!name || tws_reserve(&x->module_names, &capacity, (size_t)x->module_count + 1, sizeof *x->module_names) != 0)
    return NULL;
  x->module_capacity = (int)capacity;
  cJSON *item = cJSON_CreateObject();
  if (!cJSON_AddItemToArray(x->modules, item)) {
    cJSON_Delete(item);
    return NULL;
  }
  x->module_names[x->module_count] = name;
  *index = x->module_count++;
  if (!cJSON_AddStringToObject(item, "name", name) || !cJSON_AddStringToObject(item, "type", type)) return NULL;
  if (from && !cJSON_AddStringToObject(item, "input", from->module < 0 ? "input" : x->module_names[from->module]))
    return NULL;
  return item;
}

static int ends_with(const char *text, const char *end) {
  const size_t length = strlen(text), size = strlen(end);
  return length > size && strcmp(text + length - size, end) == 0;
}

const char *tws_onnx_layer_name(const tws_onnx_import *x, int node, const tws_onnx_tensor *weight,
                                const tws_onnx_tensor *bias) {
  const char *name = NULL;
  if (weight && ends_with(weight->name, ".weight"))
    name = tws_arena_printf(x->arena, "%.*s", (int)(strlen(weight->name) - strlen(".weight")), weight->name);
  else if (bias && ends_with(bias->name, ".bias"))
    name = tws_arena_printf(x->arena, "%.*s", (int)(strlen(bias->name) - strlen(".bias")), bias->name);
  return name ? name : x->graph->nodes[node].name;
}

/* ---- weights ---- */

float *tws_onnx_give(tws_onnx_import *x, const char *module, const char *suffix, int64_t count) {
  size_t capacity = (size_t)x->weight_capacity;
  if (tws_reserve(&x->weights, &capacity, (size_t)x->weight_count + 1, sizeof *x->weights) != 0) return NULL;
  x->weight_capacity = (int)capacity;
  const char *name = tws_arena_printf(x->arena, "%s%s", module, suffix);
  float *values = tws_arena_alloc(x->arena, (size_t)count + 1, sizeof *values);
  if (!name || !values) return NULL;
  x->weights[x->weight_count++] = (tws_onnx_weights){.name = name, .values = values, .count = count};
  return values;
}

int64_t tws_onnx_place(const tws_onnx_value *value, int64_t i) {
  const int64_t channels = value->order[0], pixels = value->order[1] * value->order[2];
  return channels == 0 ? i : i % pixels * channels + i / pixels;
}

tws_code tws_onnx_give_vector(tws_onnx_import *x, int node, const char *module, const char *suffix,
                              const tws_onnx_tensor *vector, const tws_onnx_value *like, tws_error *err) {
  const int64_t width =
      like->layout == TWS_ONNX_PIXELS || like->layout == TWS_ONNX_ROWS ? like->shape[1] : like->shape[like->dims - 1];
  if (!vector || !vector->numbers || vector->count != width)
    return tws_onnx_refuse(x, node, err, "export the model with its weights as initializers",
                           "its weights are no vector of %lld constants", (long long)width);
  float *to = tws_onnx_give(x, module, suffix, width);
  if (!to) return tws_onnx_no_memory(x, err);
  for (int64_t i = 0; i < width; i++) to[tws_onnx_place(like, i)] = vector->numbers[i];
  return TWS_OK;
}

const char *tws_onnx_use(tws_onnx_import *x, const tws_onnx_tensor *weight, const char *linear) {
  size_t capacity = (size_t)x->used_capacity, same = capacity;
  for (int i = 0; i < x->used_count; i++)
    if (x->used[i] == weight) return x->used_by[i] ? x->used_by[i] : "";
  if (tws_reserve(&x->used, &capacity, (size_t)x->used_count + 1, sizeof *x->used) != 0 ||
      tws_reserve(&x->used_by, &same, (size_t)x->used_count + 1, sizeof *x->used_by) != 0) {
    x->folder.failed = 1;
    return NULL;
  }
  x->used_capacity = (int)capacity;
  x->used[x->used_count] = weight;
  x->used_by[x->used_count++] = linear;
  return NULL;
}
