#include "models/network/onnx.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "models/network/onnx_import.h"

enum { FILE_BYTES = INT32_MAX }; /* protocol buffers have at most 2 GiB */
enum { CONSTANTS = 1 << 24 };    /* elements of computed constants, in addition to twice those of the initializers */

struct tws_onnx_model {
  tws_json json;
  tws_onnx_import x;
};

int tws_onnx_is_path(const char *path) {
  const size_t length = strlen(path);
  return length > 5 && strcasecmp(path + length - 5, ".onnx") == 0;
}

/* ---- values ---- */

static int compare_names(const void *a, const void *b, void *values) {
  const int i = *(const int *)a, k = *(const int *)b;
  const tws_onnx_value *all = values;
  const int order = strcmp(all[i].name, all[k].name);
  return order != 0 ? order : (i > k) - (i < k);
}

static int find_value(const tws_onnx_import *x, const char *name) {
  int low = 0, high = x->value_count;
  while (low < high) {
    const int middle = (low + high) / 2;
    if (strcmp(x->values[x->by_name[middle]].name, name) < 0)
      low = middle + 1;
    else
      high = middle;
  }
  return low < x->value_count && strcmp(x->values[x->by_name[low]].name, name) == 0 ? x->by_name[low] : -1;
}

static void add_value(tws_onnx_import *x, const char *name, int producer, const tws_onnx_tensor *constant) {
  x->values[x->value_count++] = (tws_onnx_value){.name = name,
                                                 .producer = producer,
                                                 .first_reader = -1,
                                                 .module = -1,
                                                 .kind = constant ? TWS_ONNX_CONSTANT : TWS_ONNX_UNKNOWN,
                                                 .constant = constant};
}

/* Sorts the values by name. An input that is also an initializer (its default, in old files) is the initializer, which
 * was added first. */
static tws_code sort_values(tws_onnx_import *x, tws_error *err) {
  for (int i = 0; i < x->value_count; i++) x->by_name[i] = i;
  qsort_r(x->by_name, (size_t)x->value_count, sizeof *x->by_name, compare_names, x->values);
  for (int i = 1; i < x->value_count; i++) {
    const tws_onnx_value *a = &x->values[x->by_name[i - 1]], *b = &x->values[x->by_name[i]];
    if (strcmp(a->name, b->name) == 0 && (a->producer >= 0 || b->producer >= 0 || (a->constant && b->constant)))
      return tws_fail(err, TWS_INVALID, "check the file with onnx.checker", "%s: two values have the name %.200s",
                      x->graph->path, a->name);
  }
  return TWS_OK;
}

static tws_code collect_values(tws_onnx_import *x, tws_error *err) {
  const tws_onnx_graph *g = x->graph;
  size_t count = (size_t)g->tensor_count + (size_t)g->input_count + 1;
  for (int n = 0; n < g->node_count; n++) count += (size_t)g->nodes[n].outs;
  x->values = tws_arena_alloc(x->arena, count, sizeof *x->values);
  x->by_name = tws_arena_alloc(x->arena, count, sizeof *x->by_name);
  x->in = tws_arena_alloc(x->arena, (size_t)g->node_count, sizeof *x->in);
  x->out = tws_arena_alloc(x->arena, (size_t)g->node_count, sizeof *x->out);
  x->done = tws_arena_alloc(x->arena, (size_t)g->node_count, 1);
  if (!x->values || !x->by_name || !x->in || !x->out || !x->done) return tws_onnx_no_memory(x, err);
  for (int i = 0; i < g->tensor_count; i++) {
    add_value(x, g->tensors[i].name, -1, &g->tensors[i]);
    x->folder.left += 2 * g->tensors[i].count;
  }
  for (int i = 0; i < g->input_count; i++) add_value(x, g->inputs[i].name, -1, NULL);
  for (int n = 0; n < g->node_count; n++)
    for (int i = 0; i < g->nodes[n].outs; i++)
      if (*g->nodes[n].out[i]) add_value(x, g->nodes[n].out[i], n, NULL);
  return sort_values(x, err);
}

/* Resolves the names that nodes read and write. */
static tws_code link_nodes(tws_onnx_import *x, tws_error *err) {
  for (int n = 0; n < x->graph->node_count; n++) {
    const tws_onnx_node *node = &x->graph->nodes[n];
    x->in[n] = tws_arena_alloc(x->arena, (size_t)node->ins + 1, sizeof **x->in);
    x->out[n] = tws_arena_alloc(x->arena, (size_t)node->outs + 1, sizeof **x->out);
    if (!x->in[n] || !x->out[n]) return tws_onnx_no_memory(x, err);
    for (int i = 0; i < node->outs; i++) x->out[n][i] = *node->out[i] ? find_value(x, node->out[i]) : -1;
    for (int i = 0; i < node->ins; i++) {
      x->in[n][i] = *node->in[i] ? find_value(x, node->in[i]) : -1;
      if (!*node->in[i]) continue;
      tws_onnx_value *value = tws_onnx_in(x, n, i);
      if (!value || value->producer >= n)
        return tws_fail(err, TWS_INVALID, "the nodes of a graph without cycles follow those that they read",
                        "%s: node %.200s (%.100s): it reads %.200s, which no earlier node computes", x->graph->path,
                        node->name, node->op, node->in[i]);
      if (value->readers++ == 0 || strcmp(x->graph->nodes[value->first_reader].op, "Shape") == 0)
        value->first_reader = n; /* one that reads elements, if there is one */
    }
  }
  return TWS_OK;
}

/* ---- the input and the output ---- */

static tws_code wrong_input(const tws_onnx_import *x, const tws_onnx_port *port, tws_error *err) {
  char shape[160] = "";
  for (int i = 0; i < port->dims; i++) {
    const size_t length = strlen(shape);
    if (port->shape[i] < 0)
      snprintf(shape + length, sizeof shape - length, "%s?", i ? ", " : "");
    else
      snprintf(shape + length, sizeof shape - length, "%s%lld", i ? ", " : "", (long long)port->shape[i]);
  }
  return tws_fail(
      err, TWS_UNSUPPORTED,
      "pictures: floats [samples, channels, side, side]; numbers: floats [samples, width]; tokens: integers "
      "[samples, tokens]; all lengths but that of the samples are fixed",
      "%s: the input %.200s is of type %d of onnx.proto and of shape [%s]", x->graph->path, port->name, port->type,
      shape);
}

/* Sets the network's input, with one sample where the file leaves their number open, and writes "input". */
static tws_code set_input(tws_onnx_import *x, const tws_onnx_port *port, tws_error *err) {
  tws_onnx_value *value = &x->values[find_value(x, port->name)];
  cJSON *input = cJSON_AddObjectToObject(x->root, "input");
  const int is_float =
                port->type == TWS_ONNX_FLOAT || port->type == TWS_ONNX_FLOAT16 || port->type == TWS_ONNX_BFLOAT16,
            is_integer = port->type == TWS_ONNX_INT64 || port->type == TWS_ONNX_INT32;
  if ((!is_float && !is_integer) || (is_float && port->dims != 4 && port->dims != 2) || (is_integer && port->dims != 2))
    return wrong_input(x, port, err);
  x->batch = port->shape[0] > 0 ? port->shape[0] : 1;
  for (int i = 1; i < port->dims; i++)
    if (port->shape[i] < 1 || port->shape[i] > 1 << 26) return wrong_input(x, port, err);
  if (x->batch > 1 << 20 || (port->dims == 4 && (port->shape[2] != port->shape[3] || port->shape[2] > 1 << 14)))
    return wrong_input(x, port, err);
  value->kind = TWS_ONNX_ACTIVATION;
  value->dims = port->dims;
  memcpy(value->shape, port->shape, sizeof value->shape);
  value->shape[0] = x->batch;
  value->layout = is_integer ? TWS_ONNX_IDS : port->dims == 4 ? TWS_ONNX_PIXELS : TWS_ONNX_ROWS;
  if (is_integer) {
    x->tokens = port->shape[1];
    return input && cJSON_AddObjectToObject(input, "tokens") ? TWS_OK : tws_onnx_no_memory(x, err);
  }
  cJSON *pictures = cJSON_AddObjectToObject(input, "pictures");
  if (!pictures || !cJSON_AddNumberToObject(pictures, "side", port->dims == 4 ? (double)port->shape[2] : 1) ||
      !cJSON_AddNumberToObject(pictures, "channels", (double)port->shape[1]))
    return tws_onnx_no_memory(x, err);
  if (port->type != TWS_ONNX_FLOAT &&
      !cJSON_AddStringToObject(x->root, "dtype", port->type == TWS_ONNX_FLOAT16 ? "float16" : "bfloat16"))
    return tws_onnx_no_memory(x, err);
  return TWS_OK;
}

static tws_code read_ports(tws_onnx_import *x, tws_error *err) {
  const tws_onnx_graph *g = x->graph;
  const tws_onnx_port *input = NULL;
  int inputs = 0;
  for (int i = 0; i < g->input_count; i++) {
    const int at = find_value(x, g->inputs[i].name);
    if (at < 0 || x->values[at].constant) continue;
    input = &g->inputs[i];
    inputs++;
  }
  if (inputs != 1 || g->output_count != 1)
    return tws_fail(err, TWS_UNSUPPORTED, "export a model with one input, pictures or tokens, and its scores as output",
                    "%s: the graph has %d inputs and %d outputs, and a network file has one of each", g->path, inputs,
                    g->output_count);
  return set_input(x, input, err);
}

/* Writes what the output's form determines: the number of classes, or the vocabulary. */
static tws_code end_graph(tws_onnx_import *x, tws_error *err) {
  const int at = find_value(x, x->graph->outputs[0].name);
  if (at < 0)
    return tws_fail(err, TWS_INVALID, "check the file with onnx.checker", "%s: no node computes the output %.200s",
                    x->graph->path, x->graph->outputs[0].name);
  tws_onnx_value *out = &x->values[at];
  const int node = out->producer >= 0 ? out->producer : 0;
  TWS_TRY(tws_onnx_settle(x, node, out, err));
  if (out->module != x->module_count - 1 || out->order[0] * out->order[1] * out->order[2] > 1 || out->module < 0 ||
      (out->layout != TWS_ONNX_ROWS && out->layout != TWS_ONNX_TOKENS))
    return tws_onnx_refuse(x, node, err, "the last layer scores classes of pictures or tokens of the vocabulary",
                           "the output of the graph is not that of its last layer, by classes or tokens");
  const int64_t width = out->layout == TWS_ONNX_ROWS ? out->shape[1] : out->shape[out->dims - 1];
  if (x->tokens > 0) {
    cJSON *tokens = cJSON_GetObjectItemCaseSensitive(cJSON_GetObjectItemCaseSensitive(x->root, "input"), "tokens");
    if (x->embedding < 0 || width != x->table->shape[0])
      return tws_onnx_refuse(x, node, err, "export a language model: scores of the next, or of a masked, token",
                             "the output has %lld scores, and the vocabulary %lld tokens", (long long)width,
                             x->table ? (long long)x->table->shape[0] : 0);
    const int64_t positions = x->positions ? x->position_rows : x->tokens;
    return cJSON_AddNumberToObject(tokens, "vocabulary", (double)width) &&
                   cJSON_AddNumberToObject(tokens, "positions", (double)positions)
               ? TWS_OK
               : tws_onnx_no_memory(x, err);
  }
  if (width == 1 && !x->loss) x->loss = "mean_squared_error";
  if (!cJSON_AddNumberToObject(x->root, "classes", width > 1 ? (double)width : 2) ||
      (x->loss && !cJSON_AddStringToObject(x->root, "loss", x->loss)))
    return tws_onnx_no_memory(x, err);
  return TWS_OK;
}

/* ---- nodes ---- */

/* Records that a computed constant is the first rows of an initializer, such as a table of positions. */
static void trace_rows(tws_onnx_import *x, int node, tws_onnx_value *out) {
  const char *op = x->graph->nodes[node].op;
  const tws_onnx_value *from = tws_onnx_in(x, node, 0);
  const tws_onnx_tensor *t = from ? from->constant : NULL, *c = out->constant;
  if (!t || !t->numbers || !c->numbers || c->dims < 1) return;
  if ((strcmp(op, "Gather") == 0 || strcmp(op, "Slice") == 0) && t->dims == 2 && from->producer < 0 &&
      c->count <= t->count && c->shape[c->dims - 1] == t->shape[1] &&
      memcmp(c->numbers, t->numbers, (size_t)c->count * sizeof *c->numbers) == 0)
    out->rows_of = t;
  else if (from->rows_of && c->count == t->count &&
           memcmp(c->numbers, t->numbers, (size_t)c->count * sizeof *c->numbers) == 0)
    out->rows_of = from->rows_of;
}

static tws_code fold_node(tws_onnx_import *x, int node, tws_error *err) {
  const tws_onnx_node *n = &x->graph->nodes[node];
  const tws_onnx_tensor **in = tws_arena_alloc(x->arena, (size_t)n->ins + 1, sizeof *in),
                        **out = tws_arena_alloc(x->arena, (size_t)n->outs + 1, sizeof *out);
  if (!in || !out) return tws_onnx_no_memory(x, err);
  for (int i = 0; i < n->ins; i++) in[i] = tws_onnx_constant_in(x, node, i);
  TWS_TRY(tws_onnx_fold(&x->folder, n, in, out, err));
  for (int i = 0; i < n->outs; i++) {
    tws_onnx_value *value = tws_onnx_out(x, node, i);
    if (!value || !out[i]) continue;
    value->kind = TWS_ONNX_CONSTANT;
    value->constant = out[i];
    trace_rows(x, node, value);
  }
  return TWS_OK;
}

static tws_code shape_node(tws_onnx_import *x, int node, tws_error *err) {
  const tws_onnx_value *in = tws_onnx_in(x, node, 0);
  tws_onnx_value *out = tws_onnx_out(x, node, 0);
  const int is_constant = in && in->kind == TWS_ONNX_CONSTANT;
  const int is_projection = in && in->kind == TWS_ONNX_PROJECTION && in->epoch == x->epoch;
  if (!in || !out ||
      (!is_constant && !is_projection && in->kind != TWS_ONNX_ACTIVATION && in->kind != TWS_ONNX_FUNCTION))
    return tws_onnx_refuse(x, node, err, "export the model with constant shapes",
                           "the shape of its input is not known");
  const tws_onnx_tensor *t = is_constant ? in->constant : is_projection ? in->view : NULL;
  const int dims = t ? t->dims : in->dims;
  const int64_t *shape = t ? t->shape : in->shape;
  const tws_onnx_node *n = &x->graph->nodes[node];
  int64_t first = tws_onnx_int(n, "start", 0), last = tws_onnx_int(n, "end", dims);
  if (first < 0) first = first < -dims ? 0 : first + dims;
  if (last < 0) last = last < -dims ? 0 : last + dims;
  if (last > dims) last = dims;
  const int64_t count = last > first ? last - first : 0;
  tws_onnx_tensor *result;
  int64_t *to = tws_onnx_new_integers(&x->folder, 1, &count, &result);
  if (!to) return tws_onnx_no_memory(x, err);
  for (int64_t i = 0; i < count; i++) to[i] = shape[first + i];
  out->kind = TWS_ONNX_CONSTANT;
  out->constant = result;
  return TWS_OK;
}

/* A constant in the type of another value: numbers stay numbers here, whatever their width. */
static tws_code cast_like(tws_onnx_import *x, int node, tws_error *err) {
  const tws_onnx_value *in = tws_onnx_in(x, node, 0), *like = tws_onnx_in(x, node, 1);
  tws_onnx_value *out = tws_onnx_out(x, node, 0);
  const int integers =
      like && (like->kind == TWS_ONNX_CONSTANT ? like->constant->integers != NULL : like->layout == TWS_ONNX_IDS);
  if (!like || !out || integers != (in->constant->integers != NULL))
    return tws_onnx_refuse(x, node, err, "export the model with constant folding",
                           "it casts to another kind of numbers");
  tws_onnx_alias(out, in);
  return TWS_OK;
}

static tws_code translate_node(tws_onnx_import *x, int node, tws_error *err) {
  const tws_onnx_node *n = &x->graph->nodes[node];
  int constants = 1, stages = 0;
  char hint[sizeof err->hint];
  for (int i = 0; i < n->ins; i++) {
    const tws_onnx_value *value = tws_onnx_in(x, node, i);
    constants &= !value || value->kind == TWS_ONNX_CONSTANT;
    stages |= tws_onnx_is_stage(value);
  }
  if (strcmp(n->op, "Shape") == 0) return shape_node(x, node, err);
  if (strcmp(n->op, "CastLike") == 0 && tws_onnx_constant_in(x, node, 0)) return cast_like(x, node, err);
  if (constants && tws_onnx_folds(n->op)) return fold_node(x, node, err);
  tws_onnx_handler *handler = tws_onnx_handler_of(n->op);
  const tws_onnx_value *first = tws_onnx_in(x, node, 0);
  const int ends = stages && first && first->kind == TWS_ONNX_CONTEXT && tws_onnx_constant_in(x, node, 1) &&
                   (handler == tws_onnx_gemm || handler == tws_onnx_matmul);
  if (!tws_onnx_out(x, node, 0) || n->ins == 0 || (!handler && !stages)) {
    tws_onnx_operators_hint(n->op, hint, sizeof hint);
    return tws_onnx_refuse(x, node, err, hint, "this operator is not translated to modules of a network file");
  }
  if (x->ended)
    return tws_onnx_refuse(x, node, err, "let the graph end with the scores",
                           "a node follows the last one of the scores");
  if (constants)
    return tws_onnx_refuse(x, node, err, "export the model with constant folding",
                           "it reads constants alone, and is not computed");
  return stages && !ends ? tws_onnx_stage(x, node, err) : handler(x, node, err);
}

static tws_code translate(tws_onnx_import *x, tws_error *err) {
  TWS_TRY(collect_values(x, err));
  TWS_TRY(link_nodes(x, err));
  if (!cJSON_AddStringToObject(x->root, "model_type", "network")) return tws_onnx_no_memory(x, err);
  TWS_TRY(read_ports(x, err));
  x->modules = cJSON_AddArrayToObject(x->root, "modules");
  if (!x->modules) return tws_onnx_no_memory(x, err);
  for (int n = 0; n < x->graph->node_count; n++) {
    if (x->done[n]) continue;
    TWS_TRY(translate_node(x, n, err));
    if (x->folder.failed) return tws_onnx_no_memory(x, err);
    if (x->module_count > 4096)
      return tws_onnx_refuse(x, n, err, "import a smaller model", "the graph has more than 4096 layers");
  }
  return end_graph(x, err);
}

/* ---- the model ---- */

static tws_code read_model(const char *bytes, size_t size, const char *path, int reads_beside, tws_onnx_model **model,
                           const tws_json **json, tws_error *err) {
  tws_onnx_model *m = tws_calloc(1, sizeof *m);
  tws_onnx_graph *graph = NULL;
  *model = NULL;
  if (m) m->x = (tws_onnx_import){.arena = tws_arena_create(), .scratch = tws_arena_create(), .embedding = -1};
  char *name = m && m->x.arena ? tws_arena_strdup(m->x.arena, path) : NULL;
  if (m) m->json = (tws_json){.root = cJSON_CreateObject(), .name = name};
  if (!name || !m->x.scratch || !m->json.root) {
    tws_onnx_close(m);
    return tws_fail(err, TWS_MEMORY, NULL, "%s: no memory for the file's network", path);
  }
  m->x.root = m->json.root;
  m->x.folder = (tws_onnx_folder){.arena = m->x.arena, .path = name, .left = CONSTANTS};
  tws_code code = tws_onnx_parse(bytes, size, name, reads_beside, m->x.arena, &graph, err);
  m->x.graph = graph;
  if (code == TWS_OK) code = translate(&m->x, err);
  if (code != TWS_OK) {
    tws_onnx_close(m);
    return code;
  }
  *model = m;
  *json = &m->json;
  return TWS_OK;
}

tws_code tws_onnx_read_bytes(const char *bytes, size_t size, const char *path, tws_onnx_model **model,
                             const tws_json **json, tws_error *err) {
  return read_model(bytes, size, path, 0, model, json, err);
}

tws_code tws_onnx_read(const char *path, tws_onnx_model **model, const tws_json **json, tws_error *err) {
  char *bytes;
  size_t size;
  *model = NULL;
  TWS_TRY(tws_read_file(path, FILE_BYTES, &bytes, &size, err));
  const tws_code code = read_model(bytes, size, path, 1, model, json, err);
  tws_free(bytes);
  return code;
}

static const tws_onnx_weights *find_weights(const tws_onnx_import *x, const char *name) {
  for (int i = 0; i < x->weight_count; i++)
    if (strcmp(x->weights[i].name, name) == 0) return &x->weights[i];
  return NULL;
}

/* Copies initial values to the network. A padded vocabulary has more rows than the file, which begin at 0. */
static const float *copy_values(const tws_onnx_import *x, tws_network *net, const char *name, int64_t count) {
  const tws_onnx_weights *w = find_weights(x, name);
  float *copy = w && w->count <= count ? tws_arena_alloc(net->arena, (size_t)count, sizeof *copy) : NULL;
  if (copy) memcpy(copy, w->values, (size_t)w->count * sizeof *copy);
  return copy;
}

tws_code tws_onnx_give_weights(const tws_onnx_model *model, tws_network *network, tws_error *err) {
  const tws_onnx_import *x = &model->x;
  for (uint32_t p = 0; p < network->param_count; p++) {
    tws_param *param = &network->params[p];
    param->given = copy_values(x, network, param->name, tws_param_numel(param));
    if (!param->given)
      return tws_fail(err, TWS_INTERNAL, NULL, "%s: the file has no weights for %.200s", x->graph->path, param->name);
  }
  for (uint32_t r = 0; r < network->running_count; r++) {
    tws_running *running = &network->running[r];
    running->given = copy_values(x, network, running->name, running->rows * running->columns);
    if (!running->given)
      return tws_fail(err, TWS_INTERNAL, NULL, "%s: the file has no statistics for %.200s", x->graph->path,
                      running->name);
  }
  const char *notes = x->notes.data ? tws_arena_printf(network->arena, "%s%s", x->notes.data, network->notes) : "";
  if (!notes || x->notes.failed) return tws_onnx_no_memory(x, err);
  if (*notes) network->notes = notes;
  return TWS_OK;
}

void tws_onnx_close(tws_onnx_model *model) {
  if (!model) return;
  cJSON_Delete(model->json.root);
  tws_free(model->x.module_names);
  tws_free(model->x.weights);
  tws_free(model->x.used);
  tws_free(model->x.used_by);
  tws_text_free(&model->x.notes);
  tws_arena_destroy(model->x.scratch);
  tws_arena_destroy(model->x.arena);
  tws_free(model);
}
