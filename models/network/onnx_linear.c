/* Linear layers: Gemm, and MatMul with the Add of a bias after it. */
#include <string.h>

#include "models/network/onnx_import.h"

/* The operands of a linear layer's nodes. */
typedef struct layer {
  int node;
  tws_onnx_value *in, *to;       /* to: the output, of the bias's node if that is another one */
  const tws_onnx_tensor *weight; /* as the file has it */
  const tws_onnx_tensor *bias;   /* NULL: there is none */
  int by_columns;                /* 1: the weight is [in, out] in the file */
  tws_onnx_linear linear;
} layer;

/* Reads the weight as [out, in]. */
static tws_code read_weight(tws_onnx_import *x, layer *l, tws_error *err) {
  const tws_onnx_tensor *w = l->weight;
  if (!w || !w->numbers || w->dims != 2 || w->count == 0)
    return tws_onnx_refuse(
        x, l->node, err, "activations are multiplied by weights; products of two of them are stages of self-attention",
        "its second operand is no matrix of constants");
  l->linear.in = w->shape[l->by_columns ? 0 : 1];
  l->linear.out = w->shape[l->by_columns ? 1 : 0];
  l->linear.weight = w->numbers;
  if (!l->by_columns) return TWS_OK;
  float *turned = tws_arena_alloc(x->arena, (size_t)w->count + 1, sizeof *turned);
  if (!turned) return tws_onnx_no_memory(x, err);
  for (int64_t i = 0; i < l->linear.in; i++)
    for (int64_t o = 0; o < l->linear.out; o++) turned[o * l->linear.in + i] = w->numbers[i * l->linear.out + o];
  l->linear.weight = turned;
  return TWS_OK;
}

/* Takes an Add of a vector that alone reads the layer's output as its bias. */
static void find_bias(tws_onnx_import *x, layer *l) {
  const int next = l->bias ? -1 : tws_onnx_only_reader(x, l->to);
  if (next < 0 || strcmp(x->graph->nodes[next].op, "Add") != 0 || x->graph->nodes[next].ins != 2) return;
  const int which = tws_onnx_in(x, next, 0) == l->to;
  const tws_onnx_tensor *t = tws_onnx_constant_in(x, next, which);
  if (!t || !t->numbers || t->dims < 1 || t->count != l->linear.out || t->shape[t->dims - 1] != l->linear.out) return;
  if (!tws_onnx_out(x, next, 0)) return;
  l->bias = t;
  l->to = tws_onnx_out(x, next, 0);
  x->done[next] = 1;
}

/* A linear layer of the network's input is a convolution over the whole picture; of numbers that are no picture, over
 * one pixel that has a channel for each number. */
static tws_code add_of_input(tws_onnx_import *x, const layer *l, tws_error *err) {
  const int64_t side = l->in->order[0] > 0 ? l->in->order[1] : 1;
  int index, flat;
  cJSON *item = tws_onnx_add(x, l->node, "convolution", l->linear.name, l->in, &index);
  if (!item || !cJSON_AddNumberToObject(item, "out", (double)l->linear.out) ||
      !cJSON_AddNumberToObject(item, "side", (double)side) || !cJSON_AddBoolToObject(item, "bias", l->bias != NULL))
    return tws_onnx_no_memory(x, err);
  float *to = tws_onnx_give(x, x->module_names[index], ".weight", l->linear.out * l->linear.in);
  if (!to) return tws_onnx_no_memory(x, err);
  for (int64_t o = 0; o < l->linear.out; o++)
    for (int64_t i = 0; i < l->linear.in; i++)
      to[o * l->linear.in + tws_onnx_place(l->in, i)] = l->linear.weight[o * l->linear.in + i];
  tws_onnx_value pixels = *l->in;
  pixels.module = index;
  const char *name = tws_arena_printf(x->arena, "%s.flatten", x->module_names[index]);
  if (!name || !tws_onnx_add(x, l->node, "flatten", name, &pixels, &flat)) return tws_onnx_no_memory(x, err);
  tws_onnx_set(l->to, l->in, flat);
  l->to->shape[l->to->dims - 1] = l->linear.out;
  memset(l->to->order, 0, sizeof l->to->order);
  return l->bias ? tws_onnx_give_vector(x, l->node, x->module_names[index], ".bias", l->bias, l->to, err) : TWS_OK;
}

/* Returns the name of the earlier layer whose weight this layer shares, or NULL. */
static const char *tied_to(tws_onnx_import *x, const layer *l) {
  const size_t bytes = (size_t)l->weight->count * sizeof(float);
  if (x->table && tws_onnx_is_output(x, l->to) && l->linear.out == x->table->shape[0] &&
      l->linear.in == x->table->shape[1] && memcmp(l->linear.weight, x->table->numbers, bytes) == 0)
    return x->module_names[x->embedding];
  return tws_onnx_use(x, l->weight, l->linear.name);
}

static tws_code add_layer(tws_onnx_import *x, layer *l, tws_error *err) {
  const tws_onnx_value *in = l->in;
  int index;
  if (in->module < 0) return add_of_input(x, l, err);
  const char *tied = tied_to(x, l);
  if (tied && !*tied)
    return tws_onnx_refuse(x, l->node, err,
                           "linear layers share weights with each other, or with the embedding at the end",
                           "its weight %.100s is also that of another module", l->weight->name);
  cJSON *item = tws_onnx_add(x, l->node, "linear", l->linear.name, in, &index);
  if (!item || !cJSON_AddNumberToObject(item, "out", (double)l->linear.out) ||
      !cJSON_AddBoolToObject(item, "bias", l->bias != NULL) || (tied && !cJSON_AddStringToObject(item, "tied", tied)))
    return tws_onnx_no_memory(x, err);
  float *to = tied ? NULL : tws_onnx_give(x, x->module_names[index], ".weight", l->linear.out * l->linear.in);
  if (!tied && !to) return tws_onnx_no_memory(x, err);
  for (int64_t o = 0; o < l->linear.out && to; o++)
    for (int64_t i = 0; i < l->linear.in; i++)
      to[o * l->linear.in + tws_onnx_place(in, i)] = l->linear.weight[o * l->linear.in + i];
  if (x->used_count > 0 && x->used[x->used_count - 1] == l->weight)
    x->used_by[x->used_count - 1] = x->module_names[index];
  tws_onnx_set(l->to, in, index);
  l->to->shape[in->dims - 1] = l->linear.out;
  memset(l->to->order, 0, sizeof l->to->order);
  return l->bias ? tws_onnx_give_vector(x, l->node, x->module_names[index], ".bias", l->bias, l->to, err) : TWS_OK;
}

static tws_code translate(tws_onnx_import *x, layer *l, tws_error *err) {
  const tws_onnx_value *in = l->in;
  TWS_TRY(read_weight(x, l, err));
  find_bias(x, l);
  l->linear.name = tws_onnx_layer_name(x, l->node, l->weight, l->bias);
  if (l->bias && (!l->bias->numbers || l->bias->count != l->linear.out))
    return tws_onnx_refuse(x, l->node, err, "a bias is a vector of one number for each output",
                           "its bias has %lld elements, and the layer %lld outputs", (long long)l->bias->count,
                           (long long)l->linear.out);
  l->linear.bias = l->bias ? l->bias->numbers : NULL;
  tws_onnx_linear *kept = tws_arena_alloc(x->arena, 1, sizeof *kept);
  if (!kept) return tws_onnx_no_memory(x, err);
  *kept = l->linear;
  if (in && in->kind == TWS_ONNX_CONTEXT) return tws_onnx_attend(x, l->node, in, kept, l->to, err);
  TWS_TRY(tws_onnx_settle(x, l->node, l->in, err));
  const int rows = in->layout == TWS_ONNX_TOKENS || in->layout == TWS_ONNX_PIXELS_LAST ||
                   (in->layout == TWS_ONNX_ROWS && in->dims == 2);
  if (!rows || in->shape[in->dims - 1] != l->linear.in)
    return tws_onnx_refuse(x, l->node, err, "flatten pictures before a linear layer",
                           "its weight has %lld inputs, and %.100s is no rows of that width", (long long)l->linear.in,
                           in->name);
  if (tws_onnx_leads_to_attention(x, l->to)) return tws_onnx_project(x, l->node, in, kept, l->to, err);
  return add_layer(x, l, err);
}

tws_code tws_onnx_gemm(tws_onnx_import *x, int node, tws_error *err) {
  const tws_onnx_node *n = &x->graph->nodes[node];
  layer l = {.node = node,
             .in = tws_onnx_in(x, node, 0),
             .to = tws_onnx_out(x, node, 0),
             .weight = tws_onnx_constant_in(x, node, 1),
             .bias = tws_onnx_constant_in(x, node, 2),
             .by_columns = tws_onnx_int(n, "transB", 0) == 0};
  const double alpha = tws_onnx_float(n, "alpha", 1), beta = tws_onnx_float(n, "beta", 1);
  if (tws_onnx_int(n, "transA", 0) != 0 || alpha < 1 || alpha > 1 || (l.bias && (beta < 1 || beta > 1)) ||
      (tws_onnx_in(x, node, 2) && !l.bias))
    return tws_onnx_refuse(x, node, err, "export linear layers as torch.nn.Linear: y = x weight^T + bias",
                           "its attributes transA, alpha and beta, or its third operand, are those of no linear layer");
  return translate(x, &l, err);
}

tws_code tws_onnx_matmul(tws_onnx_import *x, int node, tws_error *err) {
  layer l = {.node = node,
             .in = tws_onnx_in(x, node, 0),
             .to = tws_onnx_out(x, node, 0),
             .weight = tws_onnx_constant_in(x, node, 1),
             .by_columns = 1};
  return translate(x, &l, err);
}
