/* Functions of one number that nodes compute element by element. Exporters write activations as several nodes (GELU
 * is x (1 + erf(x / sqrt 2)) / 2). Such a function is represented by its values at some numbers, whatever nodes it is
 * made of, and becomes the module that has the same values there. */
#include <math.h>
#include <string.h>

#include "models/network/onnx_import.h"

/* ---- functions ---- */

static double relu(double x) {
  return x > 0 ? x : 0;
}
static double sigmoid(double x) {
  return 1 / (1 + exp(-x));
}
static double gelu(double x) {
  return x * (1 + erf(x / sqrt(2))) / 2;
}
static double gelu_tanh(double x) {
  return x * (1 + tanh(sqrt(2 / 3.14159265358979324) * (x + 0.044715 * x * x * x))) / 2;
}

/* Functions that are modules without keys. */
static double silu(double x) {
  return x * sigmoid(x);
}

static const struct {
  const char *type;
  double (*f)(double x);
} functions[] = {{"relu", relu}, {"gelu", gelu},       {"gelu_tanh", gelu_tanh},
                 {"tanh", tanh}, {"sigmoid", sigmoid}, {"silu", silu}};
enum { FUNCTIONS = sizeof functions / sizeof *functions };

/* The constants of exporters are rounded to float32. */
static int is_equal(double a, double b) {
  return fabs(a - b) <= 2e-6 * (1 + fabs(b));
}

static int computes(const tws_onnx_value *value, double (*f)(double x)) {
  for (int i = 0; i < TWS_ONNX_SAMPLES; i++)
    if (!is_equal(value->at[i], f(tws_onnx_sample_points[i]))) return 0;
  return 1;
}

/* Returns the factor if the function is a multiple of x, else 0. */
static double factor_of(const tws_onnx_value *value) {
  const double factor = value->at[0] / tws_onnx_sample_points[0];
  for (int i = 0; i < TWS_ONNX_SAMPLES; i++)
    if (!is_equal(value->at[i], factor * tws_onnx_sample_points[i])) return 0;
  return factor;
}

static int is_function(const tws_onnx_value *value) {
  return value && (value->kind == TWS_ONNX_ACTIVATION || value->kind == TWS_ONNX_FUNCTION);
}

static double at(const tws_onnx_value *value, int i) {
  return value->kind == TWS_ONNX_FUNCTION ? value->at[i] : tws_onnx_sample_points[i];
}

static void begin_function(tws_onnx_value *to, const tws_onnx_value *of) {
  tws_onnx_alias(to, of);
  to->kind = TWS_ONNX_FUNCTION;
}

/* Returns the type of the module that computes the function: "" if it is the activation itself, NULL if no module of a
 * network file computes it. *factor: of a module "scale". */
static const char *module_type(const tws_onnx_value *value, double *factor) {
  *factor = value->kind == TWS_ONNX_ACTIVATION ? 1 : factor_of(value);
  if (is_equal(*factor, 1)) return "";
  if (*factor < 0 || *factor > 0) return "scale";
  for (int i = 0; i < FUNCTIONS; i++)
    if (computes(value, functions[i].f)) return functions[i].type;
  return NULL;
}

tws_code tws_onnx_settle(tws_onnx_import *x, int node, tws_onnx_value *value, tws_error *err) {
  double factor;
  int index;
  if (!is_function(value))
    return tws_onnx_refuse(x, node, err, "modules read outputs of modules: docs/networks.md lists what they compute",
                           "its input %.100s is no output of a layer", value ? value->name : "(absent)");
  const char *type = module_type(value, &factor);
  if (!type)
    return tws_onnx_refuse(x, value->producer, err,
                           "networks have relu, leaky_relu, clamp, gelu, gelu_tanh, sigmoid, silu, tanh and scale",
                           "the function that ends here is no activation of a network file");
  if (!*type) {
    value->kind = TWS_ONNX_ACTIVATION;
    return TWS_OK;
  }
  if (value->module < 0)
    return tws_onnx_refuse(x, node, err, "begin with a convolution, a linear layer or an embedding",
                           "the network's input is not read by a layer");
  cJSON *item = tws_onnx_add(x, value->producer, type, NULL, value, &index);
  if (!item || (strcmp(type, "scale") == 0 && !cJSON_AddNumberToObject(item, "factor", factor)))
    return tws_onnx_no_memory(x, err);
  tws_onnx_set(value, value, index);
  return TWS_OK;
}

/* ---- one input ---- */

static int limit_of(const tws_onnx_import *x, int node, int i, const char *attribute, double *limit) {
  const tws_onnx_attribute *a = tws_onnx_attribute_of(&x->graph->nodes[node], attribute);
  if (a) *limit = a->f;
  return a || !tws_onnx_in(x, node, i) || tws_onnx_scalar(tws_onnx_constant_in(x, node, i), limit);
}

static double compute(const tws_onnx_node *n, double low, double high, double v) {
  if (strcmp(n->op, "Relu") == 0) return relu(v);
  if (strcmp(n->op, "LeakyRelu") == 0) return v > 0 ? v : tws_onnx_float(n, "alpha", 0.01) * v;
  if (strcmp(n->op, "Sigmoid") == 0) return sigmoid(v);
  if (strcmp(n->op, "Tanh") == 0) return tanh(v);
  if (strcmp(n->op, "Erf") == 0) return erf(v);
  if (strcmp(n->op, "Neg") == 0) return -v;
  if (strcmp(n->op, "Sqrt") == 0) return sqrt(v);
  if (strcmp(n->op, "Clip") == 0) return v < low ? low : v > high ? high : v;
  return strcmp(tws_onnx_string(n, "approximate", "none"), "tanh") == 0 ? gelu_tanh(v) : gelu(v);
}

/* Adds a module with keys: a leaky ReLU or limits. Returns 0 if memory is exhausted. */
static int add_keys(cJSON *item, const tws_onnx_node *n, double low, double high) {
  if (strcmp(n->op, "LeakyRelu") == 0)
    return cJSON_AddNumberToObject(item, "slope", tws_onnx_float(n, "alpha", 0.01)) != NULL;
  if (low > -INFINITY && !cJSON_AddNumberToObject(item, "low", low)) return 0;
  return !(high < INFINITY) || cJSON_AddNumberToObject(item, "high", high);
}

/* The largest magnitude below which limits are those of float32. */
#define LARGEST 3.4e38

tws_code tws_onnx_activation(tws_onnx_import *x, int node, tws_error *err) {
  const tws_onnx_node *n = &x->graph->nodes[node];
  tws_onnx_value *in = tws_onnx_in(x, node, 0), *out = tws_onnx_out(x, node, 0);
  double low = -INFINITY, high = INFINITY;
  const int clips = strcmp(n->op, "Clip") == 0;
  int index;
  if (clips && (!limit_of(x, node, 1, "min", &low) || !limit_of(x, node, 2, "max", &high) || !(low < high)))
    return tws_onnx_refuse(x, node, err, "give constant limits", "its limits are no constants");
  if (low < -LARGEST) low = -INFINITY;
  if (high > LARGEST) high = INFINITY;
  if (!is_function(in)) return tws_onnx_settle(x, node, in, err);
  if (strcmp(n->op, "Sigmoid") == 0 && tws_onnx_is_output(x, out) && in->layout == TWS_ONNX_ROWS)
    return tws_onnx_last(x, node, err);
  const tws_onnx_value base = *in; /* `out` is another value, whose fields are set from this one's */
  begin_function(out, &base);
  for (int i = 0; i < TWS_ONNX_SAMPLES; i++) out->at[i] = compute(n, low, high, at(&base, i));
  const int keyed = (clips && !computes(out, relu)) || strcmp(n->op, "LeakyRelu") == 0;
  if (base.kind == TWS_ONNX_FUNCTION || strcmp(n->op, "Erf") == 0 || strcmp(n->op, "Neg") == 0 ||
      strcmp(n->op, "Sqrt") == 0 || strcmp(n->op, "Sigmoid") == 0)
    return TWS_OK;
  if (!keyed || (clips && !(low > -INFINITY) && !(high < INFINITY))) return tws_onnx_settle(x, node, out, err);
  if (base.module < 0) return tws_onnx_settle(x, node, out, err); /* refused there */
  cJSON *item = tws_onnx_add(x, node, clips ? "clamp" : "leaky_relu", NULL, &base, &index);
  if (!item || !add_keys(item, n, low, high)) return tws_onnx_no_memory(x, err);
  tws_onnx_set(out, &base, index);
  return TWS_OK;
}

tws_code tws_onnx_dropout(tws_onnx_import *x, int node, tws_error *err) {
  const tws_onnx_tensor *training = tws_onnx_constant_in(x, node, 2);
  tws_onnx_value *in = tws_onnx_in(x, node, 0), *out = tws_onnx_out(x, node, 0);
  double ratio = tws_onnx_float(&x->graph->nodes[node], "ratio", 0.5), on = 0;
  int index;
  TWS_TRY(tws_onnx_settle(x, node, in, err));
  tws_onnx_scalar(tws_onnx_constant_in(x, node, 1), &ratio);
  tws_onnx_scalar(training, &on);
  if (on == 0 || ratio == 0) {
    tws_onnx_alias(out, in);
    return TWS_OK;
  }
  cJSON *item = tws_onnx_add(x, node, "dropout", NULL, in, &index);
  if (!item || !cJSON_AddNumberToObject(item, "probability", ratio)) return tws_onnx_no_memory(x, err);
  tws_onnx_set(out, in, index);
  return TWS_OK;
}

/* Translates the function of the scores that a model ends with, which is a part of the loss here. */
tws_code tws_onnx_last(tws_onnx_import *x, int node, tws_error *err) {
  const tws_onnx_node *n = &x->graph->nodes[node];
  tws_onnx_value *in = tws_onnx_in(x, node, 0), *out = tws_onnx_out(x, node, 0);
  const int sigmoids = strcmp(n->op, "Sigmoid") == 0;
  TWS_TRY(tws_onnx_settle(x, node, in, err));
  const int64_t axis = tws_onnx_int(n, "axis", x->graph->opset < 13 ? 1 : -1);
  if (!tws_onnx_is_output(x, out) || out->readers > 1 || (!sigmoids && tws_onnx_axis(axis, in->dims) != in->dims - 1))
    return tws_onnx_refuse(x, node, err,
                           "it may be the last node of the graph, over the last dimension, or a part of "
                           "self-attention: softmax(q k^T / sqrt(width of a head) + mask) v",
                           "a network file has no such module");
  if (sigmoids && x->tokens == 0) x->loss = "binary_cross_entropy";
  tws_text_add(&x->notes, "node %.80s (%s) is left to the loss: outputs are those before it\n", n->name, n->op);
  tws_onnx_alias(out, in);
  x->ended = 1;
  return TWS_OK;
}

/* ---- two inputs ---- */

static double combine(const char *op, double a, double b) {
  if (strcmp(op, "Add") == 0) return a + b;
  if (strcmp(op, "Sub") == 0) return a - b;
  if (strcmp(op, "Mul") == 0) return a * b;
  return strcmp(op, "Div") == 0 ? a / b : pow(a, b);
}

/* Adds constants to the embedding: its table of positions, or for a constant row a part of it. */
static tws_code add_positions(tws_onnx_import *x, int node, const tws_onnx_value *given, tws_error *err) {
  const tws_onnx_tensor *t = given->constant, *table = given->rows_of ? given->rows_of : NULL;
  const int64_t width = x->width, rows = t->count / width;
  const int64_t all = table && !x->positions ? table->count / width : x->tokens;
  if (t->shape[t->dims - 1] != width || (rows != 1 && rows != x->tokens) || !t->numbers || all > (1 << 26) / width)
    return tws_onnx_refuse(x, node, err, "add a row for each position: [1, tokens, width]",
                           "its constant has no row of %lld elements for each of %lld tokens", (long long)width,
                           (long long)x->tokens);
  if (x->positions || rows == 1)
    tws_text_add(&x->notes, "node %.80s: its constants, such as a row of segments, are a part of the positions\n",
                 x->graph->nodes[node].name);
  if (!x->positions) {
    x->positions = tws_onnx_give(x, x->module_names[x->embedding], ".positions", all * width);
    if (!x->positions) return tws_onnx_no_memory(x, err);
    x->position_rows = all;
    if (table) memcpy(x->positions, table->numbers, (size_t)table->count * sizeof *x->positions);
    if (!cJSON_AddTrueToObject(cJSON_GetArrayItem(x->modules, x->embedding), "positions"))
      return tws_onnx_no_memory(x, err);
    if (table) return TWS_OK;
  }
  for (int64_t r = 0; r < x->position_rows; r++)
    for (int64_t i = 0; i < width && (rows == 1 || r < rows); i++)
      x->positions[r * width + i] += t->numbers[(rows == 1 ? 0 : r) * width + i];
  return TWS_OK;
}

static tws_code with_constant(tws_onnx_import *x, int node, int which, tws_error *err) {
  const tws_onnx_node *n = &x->graph->nodes[node];
  tws_onnx_value *in = tws_onnx_in(x, node, !which), *given = tws_onnx_in(x, node, which),
                 *out = tws_onnx_out(x, node, 0);
  double scalar;
  if (!is_function(in)) return tws_onnx_settle(x, node, in, err);
  if (tws_onnx_scalar(given->constant, &scalar)) {
    const tws_onnx_value base = *in;
    begin_function(out, &base);
    for (int i = 0; i < TWS_ONNX_SAMPLES; i++)
      out->at[i] = which ? combine(n->op, at(&base, i), scalar) : combine(n->op, scalar, at(&base, i));
    return TWS_OK;
  }
  if (strcmp(n->op, "Add") == 0 && in->kind == TWS_ONNX_ACTIVATION && x->embedding >= 0 && in->module == x->embedding &&
      in->readers == 1 && given->constant->dims > 0) {
    TWS_TRY(add_positions(x, node, given, err));
    tws_onnx_alias(out, in);
    return TWS_OK;
  }
  return tws_onnx_refuse(x, node, err, "biases follow their linear layer or convolution, positions the embedding",
                         "a tensor of constants is combined with the output of a layer");
}

static int have_one_form(const tws_onnx_value *a, const tws_onnx_value *b) {
  return a->layout == b->layout && a->dims == b->dims &&
         memcmp(a->shape, b->shape, (size_t)a->dims * sizeof *a->shape) == 0;
}

/* Computes one function of two functions of the same activation. Returns 0 if it is a sum that no module computes while
 * a module computes each of the two, as in x + sigmoid(x): the outputs of these two modules are added then. */
static int join(const char *op, const tws_onnx_value *a, const tws_onnx_value *b, tws_onnx_value *out) {
  double factor;
  tws_onnx_value result = *a;
  result.kind = TWS_ONNX_FUNCTION;
  for (int i = 0; i < TWS_ONNX_SAMPLES; i++) result.at[i] = combine(op, at(a, i), at(b, i));
  if (a->module >= 0 && strcmp(op, "Add") == 0 && !module_type(&result, &factor) && module_type(a, &factor) &&
      module_type(b, &factor))
    return 0;
  begin_function(out, &result);
  return 1;
}

tws_code tws_onnx_arithmetic(tws_onnx_import *x, int node, tws_error *err) {
  const tws_onnx_node *n = &x->graph->nodes[node];
  tws_onnx_value *a = tws_onnx_in(x, node, 0), *b = tws_onnx_in(x, node, 1), *out = tws_onnx_out(x, node, 0);
  int index;
  if (!a || !b) return tws_onnx_settle(x, node, NULL, err);
  if (a->kind == TWS_ONNX_CONSTANT) return with_constant(x, node, 0, err);
  if (b->kind == TWS_ONNX_CONSTANT) return with_constant(x, node, 1, err);
  const int joins = is_function(a) && is_function(b) && have_one_form(a, b);
  if (joins && a->module == b->module && join(n->op, a, b, out)) return TWS_OK;
  TWS_TRY(tws_onnx_settle(x, node, a, err));
  TWS_TRY(tws_onnx_settle(x, node, b, err));
  if (strcmp(n->op, "Add") != 0)
    return tws_onnx_refuse(x, node, err, "outputs of different layers are added; products of them are not expressed",
                           "it combines the outputs of two layers");
  /* Both operands of sigmoid(x) + sigmoid(x) may be one value; then the sum is a multiple of one module's output. */
  if (joins && a->module == b->module && join(n->op, a, b, out)) return TWS_OK;
  if (!have_one_form(a, b) || a->module < 0 || b->module < 0 || memcmp(a->order, b->order, sizeof a->order) != 0)
    return tws_onnx_refuse(x, node, err, "both outputs have equal shapes", "it adds outputs of different shapes");
  cJSON *item = tws_onnx_add(x, node, "add", NULL, NULL, &index), *names;
  if (!item || !(names = cJSON_AddArrayToObject(item, "input"))) return tws_onnx_no_memory(x, err);
  const tws_onnx_value *const both[] = {a, b};
  for (int i = 0; i < 2; i++) {
    cJSON *name = cJSON_CreateString(x->module_names[both[i]->module]);
    if (!cJSON_AddItemToArray(names, name)) {
      cJSON_Delete(name);
      return tws_onnx_no_memory(x, err);
    }
  }
  tws_onnx_set(out, a, index);
  return TWS_OK;
}
