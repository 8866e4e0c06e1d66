/* Convolutions, pooling, norms, embeddings, and nodes that only change the form of a value. */
#include <string.h>

#include "base/json.h"
#include "models/network/onnx_import.h"

static const char windows_hint[] = "square windows, equal strides, equal padding on all sides, and dilations of 1";

/* The windows of a convolution or pooling. */
typedef struct windows {
  int64_t side, stride, padding;
} windows;

/* Reads an attribute of one number for each dimension; fails (0) if they differ. */
static int same_ints(const tws_onnx_node *n, const char *name, int count, int64_t fallback, int64_t *value) {
  const tws_onnx_attribute *a = tws_onnx_attribute_of(n, name);
  *value = a && a->int_count > 0 ? a->ints[0] : fallback;
  if (!a) return 1;
  for (int64_t i = 1; i < a->int_count; i++)
    if (a->ints[i] != *value) return 0;
  return a->int_count == count;
}

static tws_code read_windows(const tws_onnx_import *x, int node, int64_t side, windows *w, tws_error *err) {
  const tws_onnx_node *n = &x->graph->nodes[node];
  const char *automatic = tws_onnx_string(n, "auto_pad", "NOTSET");
  int64_t dilation;
  const int equal = same_ints(n, "kernel_shape", 2, side, &w->side) & same_ints(n, "strides", 2, 1, &w->stride) &
                    same_ints(n, "pads", 4, 0, &w->padding) & same_ints(n, "dilations", 2, 1, &dilation);
  const int padded = *automatic && strcmp(automatic, "NOTSET") != 0 && strcmp(automatic, "VALID") != 0 && w->side > 1;
  if (!equal || padded || (dilation != 1 && w->side > 1) || w->side < 1 || w->stride < 1 || w->padding < 0 ||
      w->side > 1 << 14 || w->stride > 1 << 14 || w->padding > 1 << 14)
    return tws_onnx_refuse(x, node, err, windows_hint,
                           "its kernel_shape, strides, pads, dilations or auto_pad are not those of a network file");
  return TWS_OK;
}

/* Gets the input of a node that reads pictures. */
static tws_code take_pixels(tws_onnx_import *x, int node, tws_onnx_value **in, tws_error *err) {
  *in = tws_onnx_in(x, node, 0);
  TWS_TRY(tws_onnx_settle(x, node, *in, err));
  if ((*in)->layout == TWS_ONNX_PIXELS) return TWS_OK;
  return tws_onnx_refuse(x, node, err, "it reads [samples, channels, height, width], before pictures are flattened",
                         "%.100s is no picture", (*in)->name);
}

/* Sets the output of windows over a picture. Fails if a window does not fit, or the last one would be cut off. */
static tws_code set_pixels(tws_onnx_import *x, int node, const tws_onnx_value *in, int index, int64_t channels,
                           const windows *w, tws_error *err) {
  const int rounds_up = tws_onnx_int(&x->graph->nodes[node], "ceil_mode", 0) != 0;
  tws_onnx_value *out = tws_onnx_out(x, node, 0);
  int64_t size[2];
  for (int i = 0; i < 2; i++) {
    const int64_t room = in->shape[2 + i] + 2 * w->padding - w->side;
    if (room < 0 || (rounds_up && room % w->stride != 0))
      return tws_onnx_refuse(x, node, err, "sizes that windows divide, or ceil_mode 0",
                             "windows of side %lld over %lld x %lld pixels", (long long)w->side,
                             (long long)in->shape[2], (long long)in->shape[3]);
    size[i] = room / w->stride + 1;
  }
  tws_onnx_set(out, in, index);
  out->shape[1] = channels;
  out->shape[2] = size[0];
  out->shape[3] = size[1];
  return TWS_OK;
}

static int add_windows(cJSON *item, const windows *w) {
  return item && cJSON_AddNumberToObject(item, "side", (double)w->side) &&
         cJSON_AddNumberToObject(item, "stride", (double)w->stride) &&
         cJSON_AddNumberToObject(item, "padding", (double)w->padding);
}

/* ---- convolutions ---- */

/* Returns 1 if a bias stands for none: exporters compute zeros where a convolution has no bias. */
static int is_no_bias(const tws_onnx_value *bias) {
  if (bias->producer < 0 || !bias->constant || !bias->constant->numbers) return 0;
  for (int64_t i = 0; i < bias->constant->count; i++)
    if (bias->constant->numbers[i] < 0 || bias->constant->numbers[i] > 0) return 0;
  return 1;
}

/* Gives a convolution its weight with channels last: [rows, channels, side, side] in the file. */
static tws_code give_kernel(tws_onnx_import *x, const char *module, const tws_onnx_tensor *w, tws_error *err) {
  const int64_t channels = w->shape[1], pixels = w->shape[2] * w->shape[3];
  float *to = tws_onnx_give(x, module, ".weight", w->count);
  if (!to) return tws_onnx_no_memory(x, err);
  for (int64_t o = 0; o < w->shape[0]; o++)
    for (int64_t c = 0; c < channels; c++)
      for (int64_t p = 0; p < pixels; p++)
        to[(o * pixels + p) * channels + c] = w->numbers[(o * channels + c) * pixels + p];
  return TWS_OK;
}

static tws_code on_convolution(tws_onnx_import *x, int node, tws_error *err) {
  const tws_onnx_node *n = &x->graph->nodes[node];
  const int turned = strcmp(n->op, "ConvTranspose") == 0;
  const tws_onnx_tensor *w = tws_onnx_constant_in(x, node, 1), *bias = tws_onnx_constant_in(x, node, 2);
  const int64_t groups = tws_onnx_int(n, "group", 1);
  int64_t more = 0;
  tws_onnx_value *in;
  windows win;
  int index;
  TWS_TRY(take_pixels(x, node, &in, err));
  if (!w || !w->numbers || w->dims != 4 || w->count == 0 || w->shape[2] != w->shape[3] || groups < 1 ||
      groups > in->shape[1] ||
      (turned ? in->shape[1] != w->shape[0] || in->shape[1] % groups != 0
              : in->shape[1] != w->shape[1] * groups || w->shape[0] % groups != 0))
    return tws_onnx_refuse(x, node, err, "square windows over channels that groups divide",
                           "its weight fits no input of %lld channels", (long long)in->shape[1]);
  TWS_TRY(read_windows(x, node, w->shape[2], &win, err));
  if (win.side != w->shape[2] || (tws_onnx_in(x, node, 2) && !bias) ||
      (turned && (!same_ints(n, "output_padding", 2, 0, &more) || more < 0 || more >= win.stride ||
                  tws_onnx_attribute_of(n, "output_shape"))))
    return tws_onnx_refuse(x, node, err, windows_hint, "its weight, bias and attributes do not fit each other");
  if (bias && is_no_bias(tws_onnx_in(x, node, 2))) bias = NULL;
  const char *name = tws_onnx_layer_name(x, node, w, bias);
  if (tws_onnx_use(x, w, NULL))
    return tws_onnx_refuse(x, node, err, "give each convolution a weight of its own",
                           "its weight %.100s is also that of another module", w->name);
  cJSON *item = tws_onnx_add(x, node, turned ? "transposed_convolution" : "convolution", name, in, &index);
  const int64_t out = turned ? w->shape[1] * groups : w->shape[0];
  if (!add_windows(item, &win) || !cJSON_AddNumberToObject(item, "out", (double)out) ||
      !cJSON_AddNumberToObject(item, "groups", (double)groups) || !cJSON_AddBoolToObject(item, "bias", bias != NULL) ||
      (turned && !cJSON_AddNumberToObject(item, "output_padding", (double)more)))
    return tws_onnx_no_memory(x, err);
  TWS_TRY(give_kernel(x, x->module_names[index], w, err));
  if (turned) {
    tws_onnx_value *to = tws_onnx_out(x, node, 0);
    tws_onnx_set(to, in, index);
    to->shape[1] = out;
    for (int i = 2; i < 4; i++) to->shape[i] = (in->shape[i] - 1) * win.stride - 2 * win.padding + win.side + more;
    if (to->shape[2] < 1 || to->shape[3] < 1 || to->shape[2] > 1 << 14 || to->shape[3] > 1 << 14)
      return tws_onnx_refuse(x, node, err, windows_hint, "its output has no pixels, or too many");
  } else {
    TWS_TRY(set_pixels(x, node, in, index, out, &win, err));
  }
  return bias ? tws_onnx_give_vector(x, node, x->module_names[index], ".bias", bias, tws_onnx_out(x, node, 0), err)
              : TWS_OK;
}

/* ---- pooling ---- */

static tws_code on_pool(tws_onnx_import *x, int node, tws_error *err) {
  const tws_onnx_node *n = &x->graph->nodes[node];
  const int takes_most = strcmp(n->op, "MaxPool") == 0;
  tws_onnx_value *in;
  windows w;
  int index;
  TWS_TRY(take_pixels(x, node, &in, err));
  TWS_TRY(read_windows(x, node, 0, &w, err));
  if (!takes_most && w.padding > 0 && tws_onnx_int(n, "count_include_pad", 0) != 0)
    return tws_onnx_refuse(x, node, err, "count_include_pad=False, or no padding",
                           "its means count padding, and those of a network file do not");
  if (w.padding > w.side / 2)
    return tws_onnx_refuse(x, node, err, windows_hint, "its padding is more than half of its windows");
  if (w.side == 1 && w.stride == 1) {
    tws_onnx_alias(tws_onnx_out(x, node, 0), in);
    return TWS_OK;
  }
  if (in->module < 0)
    return tws_onnx_refuse(x, node, err, "begin with a convolution", "pooling reads the network's input");
  cJSON *item = tws_onnx_add(x, node, takes_most ? "max_pool" : "average_pool", NULL, in, &index);
  if (!add_windows(item, &w)) return tws_onnx_no_memory(x, err);
  return set_pixels(x, node, in, index, in->shape[1], &w, err);
}

static tws_code pool_globally(tws_onnx_import *x, int node, const tws_onnx_value *in, int keeps, tws_error *err) {
  tws_onnx_value *out = tws_onnx_out(x, node, 0);
  const int64_t channels = in->layout == TWS_ONNX_PIXELS ? in->shape[1] : in->shape[3];
  int index;
  if (in->module < 0)
    return tws_onnx_refuse(x, node, err, "begin with a convolution", "pooling reads the network's input");
  if (!tws_onnx_add(x, node, "global_average_pool", NULL, in, &index)) return tws_onnx_no_memory(x, err);
  tws_onnx_set(out, in, index);
  out->layout = TWS_ONNX_ROWS;
  out->dims = keeps ? 4 : 2;
  out->shape[1] = channels;
  out->shape[2] = out->shape[3] = 1;
  return TWS_OK;
}

static tws_code on_global_pool(tws_onnx_import *x, int node, tws_error *err) {
  tws_onnx_value *in;
  TWS_TRY(take_pixels(x, node, &in, err));
  return pool_globally(x, node, in, 1, err);
}

/* A mean over height and width. */
static tws_code on_mean(tws_onnx_import *x, int node, tws_error *err) {
  const tws_onnx_node *n = &x->graph->nodes[node];
  const tws_onnx_attribute *a = tws_onnx_attribute_of(n, "axes");
  const tws_onnx_tensor *given = tws_onnx_constant_in(x, node, 1);
  const int64_t *axes = given ? given->integers
                        : a   ? a->ints
                              : NULL,
                count = given ? given->count
                        : a   ? a->int_count
                              : 0;
  const int keeps = tws_onnx_int(n, "keepdims", 1) != 0;
  tws_onnx_value *in = tws_onnx_in(x, node, 0);
  int marked[TWS_ONNX_DIMS] = {0};
  TWS_TRY(tws_onnx_settle(x, node, in, err));
  for (int64_t i = 0; i < count && axes; i++) {
    const int axis = tws_onnx_axis(axes[i], in->dims);
    if (axis >= 0) marked[axis] = 1;
  }
  const int first = in->layout == TWS_ONNX_PIXELS ? 2 : 1;
  if ((in->layout != TWS_ONNX_PIXELS && (in->layout != TWS_ONNX_PIXELS_LAST || keeps)) || count != 2 ||
      !marked[first] || !marked[first + 1])
    return tws_onnx_refuse(x, node, err, "means over height and width are a global average pooling",
                           "it is no mean over the pixels of a picture");
  return pool_globally(x, node, in, keeps, err);
}

/* ---- norms ---- */

static tws_code on_batch_norm(tws_onnx_import *x, int node, tws_error *err) {
  const tws_onnx_node *n = &x->graph->nodes[node];
  const tws_onnx_tensor *t[4];
  tws_onnx_value *in, *out = tws_onnx_out(x, node, 0);
  int index;
  TWS_TRY(take_pixels(x, node, &in, err));
  const int64_t width = in->shape[1];
  for (int i = 0; i < 4; i++) {
    t[i] = tws_onnx_constant_in(x, node, 1 + i);
    if (!t[i] || !t[i]->numbers || t[i]->count != width)
      return tws_onnx_refuse(x, node, err, "export the model with its weights as initializers",
                             "its weight, bias, mean and variance are no vectors of %lld constants", (long long)width);
  }
  if (in->module < 0)
    return tws_onnx_refuse(x, node, err, "begin with a convolution", "a norm reads the network's input");
  cJSON *item = tws_onnx_add(x, node, "batch_norm", tws_onnx_layer_name(x, node, t[0], t[1]), in, &index);
  if (!item || !cJSON_AddNumberToObject(item, "epsilon", tws_onnx_float(n, "epsilon", 1e-5)) ||
      !cJSON_AddNumberToObject(item, "momentum", 1 - tws_onnx_float(n, "momentum", 0.9)))
    return tws_onnx_no_memory(x, err);
  const char *name = x->module_names[index];
  TWS_TRY(tws_onnx_give_vector(x, node, name, ".weight", t[0], in, err));
  TWS_TRY(tws_onnx_give_vector(x, node, name, ".bias", t[1], in, err));
  float *running = tws_onnx_give(x, name, ".running", 2 * width);
  if (!running) return tws_onnx_no_memory(x, err);
  memcpy(running, t[2]->numbers, (size_t)width * sizeof *running);
  memcpy(running + width, t[3]->numbers, (size_t)width * sizeof *running);
  tws_onnx_set(out, in, index);
  return TWS_OK;
}

static tws_code on_layer_norm(tws_onnx_import *x, int node, tws_error *err) {
  const tws_onnx_node *n = &x->graph->nodes[node];
  const tws_onnx_tensor *weight = tws_onnx_constant_in(x, node, 1), *bias = tws_onnx_constant_in(x, node, 2);
  tws_onnx_value *in = tws_onnx_in(x, node, 0);
  int index;
  TWS_TRY(tws_onnx_settle(x, node, in, err));
  const int rms = strcmp(n->op, "RMSNormalization") == 0;
  if (in->layout == TWS_ONNX_PIXELS || in->layout == TWS_ONNX_IDS || in->module < 0 ||
      tws_onnx_axis(tws_onnx_int(n, "axis", -1), in->dims) != in->dims - 1 || (!rms && !bias))
    return tws_onnx_refuse(x, node, err, "norms are over the last dimension, with a weight and a bias",
                           "it is another norm than a network file has");
  cJSON *item =
      tws_onnx_add(x, node, rms ? "rms_norm" : "layer_norm", tws_onnx_layer_name(x, node, weight, bias), in, &index);
  if (!item || !cJSON_AddNumberToObject(item, "epsilon", tws_onnx_float(n, "epsilon", 1e-5)))
    return tws_onnx_no_memory(x, err);
  TWS_TRY(tws_onnx_give_vector(x, node, x->module_names[index], ".weight", weight, in, err));
  if (!rms) TWS_TRY(tws_onnx_give_vector(x, node, x->module_names[index], ".bias", bias, in, err));
  tws_onnx_set(tws_onnx_out(x, node, 0), in, index);
  return TWS_OK;
}

/* ---- tokens ---- */

static tws_code on_gather(tws_onnx_import *x, int node, tws_error *err) {
  const tws_onnx_tensor *table = tws_onnx_constant_in(x, node, 0);
  tws_onnx_value *ids = tws_onnx_in(x, node, 1), *out = tws_onnx_out(x, node, 0);
  int index;
  if (!table || !table->numbers || table->dims != 2 || table->count == 0 || !ids || ids->kind != TWS_ONNX_ACTIVATION ||
      ids->layout != TWS_ONNX_IDS || tws_onnx_int(&x->graph->nodes[node], "axis", 0) != 0 || x->embedding >= 0)
    return tws_onnx_refuse(
        x, node, err, "one embedding reads the network's input of tokens; a choice of rows or parts is not expressed",
        "it is not the embedding of the network's tokens");
  tws_onnx_use(x, table, NULL);
  cJSON *item = tws_onnx_add(x, node, "embedding", tws_onnx_layer_name(x, node, table, NULL), ids, &index);
  if (!item || !cJSON_AddNumberToObject(item, "width", (double)table->shape[1])) return tws_onnx_no_memory(x, err);
  float *to = tws_onnx_give(x, x->module_names[index], ".weight", table->count);
  if (!to) return tws_onnx_no_memory(x, err);
  memcpy(to, table->numbers, (size_t)table->count * sizeof *to);
  x->embedding = index;
  x->table = table;
  x->width = table->shape[1];
  tws_onnx_set(out, ids, index);
  out->layout = TWS_ONNX_TOKENS;
  out->shape[out->dims++] = table->shape[1];
  return TWS_OK;
}

/* ---- form ---- */

static tws_code on_same(tws_onnx_import *x, int node, tws_error *err) {
  const tws_onnx_value *in = tws_onnx_in(x, node, 0);
  if (!in) return tws_onnx_settle(x, node, NULL, err);
  tws_onnx_alias(tws_onnx_out(x, node, 0), in);
  return TWS_OK;
}

static int64_t product(const int64_t *shape, int dims) {
  int64_t count = 1;
  for (int i = 0; i < dims; i++) count *= shape[i];
  return count;
}

/* Flattens pictures: their channels are last here, so that what reads the rows has to reorder its weights. */
static tws_code flatten(tws_onnx_import *x, int node, const tws_onnx_value *in, tws_onnx_value *out, tws_error *err) {
  int index = -1;
  if (in->module >= 0 && !tws_onnx_add(x, node, "flatten", NULL, in, &index)) return tws_onnx_no_memory(x, err);
  const int64_t order[] = {in->shape[1], in->shape[2], in->shape[3]};
  tws_onnx_set(out, in, index);
  out->layout = TWS_ONNX_ROWS;
  if (order[1] * order[2] > 1 || in->module < 0) memcpy(out->order, order, sizeof order);
  return TWS_OK;
}

static tws_code on_reshape(tws_onnx_import *x, int node, tws_error *err) {
  const tws_onnx_node *n = &x->graph->nodes[node];
  tws_onnx_value *in = tws_onnx_in(x, node, 0), *out = tws_onnx_out(x, node, 0);
  int64_t shape[2 * TWS_ONNX_DIMS];
  int dims, fits = 0;
  TWS_TRY(tws_onnx_settle(x, node, in, err));
  if (tws_onnx_in(x, node, 1) && !tws_onnx_constant_in(x, node, 1))
    return tws_onnx_refuse(x, node, err, "export the model with constant shapes", "its second operand is no constant");
  TWS_TRY(tws_onnx_reshaped(&x->folder, n, in->dims, in->shape, tws_onnx_constant_in(x, node, 1), &dims, shape, err));
  const int same = dims == in->dims && memcmp(shape, in->shape, (size_t)dims * sizeof *shape) == 0;
  const tws_onnx_value before = *in;
  tws_onnx_alias(out, in);
  if (same) return TWS_OK;
  if (before.layout == TWS_ONNX_PIXELS && dims == 2 && shape[0] == x->batch) {
    TWS_TRY(flatten(x, node, &before, out, err));
    fits = 1;
  } else if (before.layout == TWS_ONNX_ROWS && dims >= 2) {
    fits = shape[0] == x->batch && product(shape + 2, dims - 2) == 1;
  } else if (before.layout == TWS_ONNX_TOKENS && dims >= 2) {
    fits = shape[dims - 1] == before.shape[before.dims - 1] &&
           (dims == 2 || (dims == 3 && shape[0] == x->batch && shape[1] == x->tokens));
  } else if (before.layout == TWS_ONNX_IDS) {
    fits = dims == 2 && shape[0] == x->batch && shape[1] == x->tokens;
  }
  out->dims = dims;
  if (dims <= TWS_ONNX_DIMS) memcpy(out->shape, shape, (size_t)dims * sizeof *shape);
  if (fits && dims <= TWS_ONNX_DIMS) return TWS_OK;
  return tws_onnx_refuse(x, node, err,
                         "pictures are flattened, [samples, channels, height, width] to [samples, all]; other "
                         "forms are a part of self-attention",
                         "no module of a network file changes the form in this way");
}

static tws_code on_transpose(tws_onnx_import *x, int node, tws_error *err) {
  static const int64_t to_last[] = {0, 2, 3, 1}, to_first[] = {0, 3, 1, 2};
  const tws_onnx_attribute *perm = tws_onnx_attribute_of(&x->graph->nodes[node], "perm");
  tws_onnx_value *in = tws_onnx_in(x, node, 0), *out = tws_onnx_out(x, node, 0);
  TWS_TRY(tws_onnx_settle(x, node, in, err));
  const int last = in->layout == TWS_ONNX_PIXELS, first = in->layout == TWS_ONNX_PIXELS_LAST;
  const int64_t *wanted = last ? to_last : to_first;
  if ((!last && !first) || in->module < 0 || !perm || perm->int_count != 4 ||
      memcmp(perm->ints, wanted, sizeof to_last) != 0)
    return tws_onnx_refuse(x, node, err,
                           "channels of pictures are moved to the last dimension and back; other forms are a "
                           "part of self-attention",
                           "no module of a network file changes the order in this way");
  const tws_onnx_value before = *in;
  tws_onnx_alias(out, &before);
  out->layout = last ? TWS_ONNX_PIXELS_LAST : TWS_ONNX_PIXELS;
  for (int i = 0; i < 4; i++) out->shape[i] = before.shape[wanted[i]];
  return TWS_OK;
}

/* ---- the table ---- */

static const struct {
  const char *op;
  tws_onnx_handler *handler;
} handlers[] = {{"Gemm", tws_onnx_gemm},
                {"MatMul", tws_onnx_matmul},
                {"Conv", on_convolution},
                {"ConvTranspose", on_convolution},
                {"MaxPool", on_pool},
                {"AveragePool", on_pool},
                {"GlobalAveragePool", on_global_pool},
                {"ReduceMean", on_mean},
                {"BatchNormalization", on_batch_norm},
                {"LayerNormalization", on_layer_norm},
                {"RMSNormalization", on_layer_norm},
                {"Relu", tws_onnx_activation},
                {"LeakyRelu", tws_onnx_activation},
                {"Sigmoid", tws_onnx_activation},
                {"Tanh", tws_onnx_activation},
                {"Gelu", tws_onnx_activation},
                {"Erf", tws_onnx_activation},
                {"Sqrt", tws_onnx_activation},
                {"Neg", tws_onnx_activation},
                {"Clip", tws_onnx_activation},
                {"Softmax", tws_onnx_last},
                {"LogSoftmax", tws_onnx_last},
                {"Gather", on_gather},
                {"Reshape", on_reshape},
                {"Flatten", on_reshape},
                {"Squeeze", on_reshape},
                {"Unsqueeze", on_reshape},
                {"Transpose", on_transpose},
                {"Add", tws_onnx_arithmetic},
                {"Sub", tws_onnx_arithmetic},
                {"Mul", tws_onnx_arithmetic},
                {"Div", tws_onnx_arithmetic},
                {"Pow", tws_onnx_arithmetic},
                {"Identity", on_same},
                {"Cast", on_same},
                {"CastLike", on_same},
                {"Dropout", tws_onnx_dropout}};
enum { HANDLERS = sizeof handlers / sizeof *handlers };

tws_onnx_handler *tws_onnx_handler_of(const char *op) {
  for (int i = 0; i < HANDLERS; i++)
    if (strcmp(handlers[i].op, op) == 0) return handlers[i].handler;
  return NULL;
}

void tws_onnx_operators_hint(const char *op, char *hint, size_t size) {
  const char *names[HANDLERS];
  for (int i = 0; i < HANDLERS; i++) names[i] = handlers[i].op;
  tws_names_hint(op, names, HANDLERS, "operators that are translated:", NULL, hint, size);
}
