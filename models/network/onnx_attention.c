/* Recognizes self-attention in the nodes that exporters write for it: softmax(q k^T s + mask) v, where q, k and v are
 * linear layers of one activation, whose elements reshapes, transpositions, slices and splits bring into the order
 * [samples, heads, tokens, width of a head], and a linear layer of the result. To be independent of how exporters do
 * that, the same nodes are computed for the indices of the elements, and the indices are compared at the products. */
#include <math.h>
#include <string.h>

#include "models/network/onnx_import.h"

enum { MOST_ELEMENTS = 1 << 25 }; /* of indices, for one module */

static const char form[] =
    "self-attention is softmax(q k^T / sqrt(width of a head) + mask) v with a linear layer after "
    "it, where q, k and v are linear layers of one activation of equal widths";

int tws_onnx_is_stage(const tws_onnx_value *value) {
  return value && value->kind >= TWS_ONNX_PROJECTION;
}

static int is_op(const tws_onnx_import *x, int node, const char *op) {
  return strcmp(x->graph->nodes[node].op, op) == 0;
}

static int orders_elements(const char *op) {
  static const char *const ops[] = {"Reshape", "Transpose", "Flatten",   "Split",
                                    "Slice",   "Squeeze",   "Unsqueeze", "Gather"};
  for (size_t i = 0; i < sizeof ops / sizeof *ops; i++)
    if (strcmp(ops[i], op) == 0) return 1;
  return 0;
}

/* Returns 1 if a value is an initializer, or one in another order. */
static int is_weight(const tws_onnx_import *x, const tws_onnx_value *value) {
  for (int steps = 0; value && steps < 4; steps++) {
    if (value->kind == TWS_ONNX_CONSTANT) return 1;
    if (value->producer < 0 ||
        (!orders_elements(x->graph->nodes[value->producer].op) && !is_op(x, value->producer, "Constant")))
      return 0;
    if (x->graph->nodes[value->producer].ins == 0) return 1;
    value = tws_onnx_in(x, value->producer, 0);
  }
  return 0;
}

int tws_onnx_leads_to_attention(const tws_onnx_import *x, const tws_onnx_value *value) {
  enum { LONGEST = 16 };
  for (int steps = 0; value && value->first_reader >= 0 && steps < LONGEST; steps++) {
    const int node = value->first_reader;
    const char *op = x->graph->nodes[node].op;
    if (strcmp(op, "Attention") == 0) return 1;
    if (strcmp(op, "MatMul") == 0)
      return !is_weight(x, tws_onnx_in(x, node, 0)) && !is_weight(x, tws_onnx_in(x, node, 1));
    const int scales = strcmp(op, "Mul") == 0 || strcmp(op, "Div") == 0;
    if (scales && tws_onnx_in(x, node, 0) != value) return 0;
    if (!orders_elements(op) && !scales && strcmp(op, "Identity") != 0 && strcmp(op, "Cast") != 0) return 0;
    value = tws_onnx_out(x, node, 0);
    for (int i = 1; i < x->graph->nodes[node].outs && (!value || value->readers == 0); i++)
      value = tws_onnx_out(x, node, i);
  }
  return 0;
}

/* Returns a folder for indices, which are freed with the module that they are of. */
static tws_onnx_folder scratch_of(tws_onnx_import *x) {
  return (tws_onnx_folder){.arena = x->scratch, .path = x->graph->path, .left = MOST_ELEMENTS};
}

static tws_code too_large(const tws_onnx_import *x, int node, const tws_onnx_folder *f, tws_error *err) {
  if (f->failed) return tws_onnx_no_memory(x, err);
  return tws_onnx_refuse(x, node, err, "export the model with a batch of one and shorter texts",
                         "attention is over too many elements to be followed");
}

tws_code tws_onnx_project(tws_onnx_import *x, int node, const tws_onnx_value *from, const tws_onnx_linear *linear,
                          tws_onnx_value *to, tws_error *err) {
  tws_onnx_folder f = scratch_of(x);
  int64_t shape[TWS_ONNX_DIMS];
  tws_onnx_tensor *view;
  if (from->layout != TWS_ONNX_TOKENS) return tws_onnx_refuse(x, node, err, form, "attention is not over tokens");
  memcpy(shape, from->shape, sizeof shape);
  shape[from->dims - 1] = linear->out;
  int64_t *index = tws_onnx_new_integers(&f, from->dims, shape, &view);
  if (!index || (int64_t)tws_arena_bytes(x->scratch) > (int64_t)MOST_ELEMENTS * 8) return too_large(x, node, &f, err);
  for (int64_t i = 0; i < view->count; i++) index[i] = i;
  tws_onnx_alias(to, from);
  to->kind = TWS_ONNX_PROJECTION;
  to->linear = linear;
  to->scale = 1;
  to->view = view;
  to->epoch = x->epoch;
  return TWS_OK;
}

/* ---- the products ---- */

/* Finds out which rows of its linear layer a projection has, in the order [samples x heads, tokens, width of a head],
 * or with `turned` with the last two exchanged. Returns 0 if it has another order. */
static int find_part(const tws_onnx_import *x, const tws_onnx_value *value, int turned, tws_onnx_part *part,
                     int64_t *heads, int64_t *head) {
  const tws_onnx_tensor *v = value->view;
  if (value->kind != TWS_ONNX_PROJECTION || v->dims < 3 || v->count == 0) return 0;
  const int64_t tokens = v->shape[v->dims - 1 - !turned], width = v->shape[v->dims - 1 - turned],
                lead = v->count / (tokens * width), out = value->linear->out;
  if (tokens != x->tokens || lead % x->batch != 0) return 0;
  *heads = lead / x->batch;
  *head = width;
  *part = (tws_onnx_part){.linear = value->linear, .first = v->integers[0], .width = *heads * width};
  if (part->first < 0 || part->first + part->width > out) return 0;
  for (int64_t i = 0; i < v->count; i++) {
    const int64_t column = i % (tokens * width), l = i / (tokens * width);
    const int64_t s = turned ? column % tokens : column / width, d = turned ? column / tokens : column % width;
    const int64_t row = l / *heads * tokens + s;
    if (v->integers[i] != row * out + part->first + l % *heads * width + d) return 0;
  }
  return 1;
}

static tws_code begin_scores(tws_onnx_import *x, int node, const tws_onnx_value *q, const tws_onnx_value *k, int turned,
                             tws_onnx_value *to, tws_error *err) {
  tws_onnx_attention *a = tws_arena_alloc(x->arena, 1, sizeof *a);
  int64_t heads, head;
  if (!a) return tws_onnx_no_memory(x, err);
  if (!find_part(x, q, 0, &a->part[0], &a->heads, &a->head) || !find_part(x, k, turned, &a->part[1], &heads, &head) ||
      heads != a->heads || head != a->head || q->module != k->module || a->part[0].width != a->part[1].width)
    return tws_onnx_refuse(x, node, err, form, "its operands are no queries and keys of one activation");
  a->module = q->module;
  a->tokens = x->tokens;
  a->scale = q->scale * k->scale;
  tws_onnx_alias(to, q);
  to->kind = TWS_ONNX_SCORES;
  to->attention = a;
  return TWS_OK;
}

static tws_code begin_context(tws_onnx_import *x, int node, const tws_onnx_value *p, const tws_onnx_value *v,
                              tws_onnx_value *to, tws_error *err) {
  tws_onnx_attention *a = tws_arena_alloc(x->arena, 1, sizeof *a);
  tws_onnx_folder f = scratch_of(x);
  tws_onnx_tensor *view;
  int64_t heads, head;
  if (!a) return tws_onnx_no_memory(x, err);
  *a = *p->attention;
  if (!find_part(x, v, 0, &a->part[2], &heads, &head) || heads != a->heads || head != a->head ||
      v->module != a->module || fabs(v->scale - 1) > 1e-5)
    return tws_onnx_refuse(x, node, err, form, "its second operand is no values of the activation that queries are of");
  int64_t *index = tws_onnx_new_integers(&f, v->view->dims, v->view->shape, &view);
  if (!index) return too_large(x, node, &f, err);
  for (int64_t i = 0; i < view->count; i++) {
    const int64_t l = i / (a->tokens * head), s = i / head % a->tokens;
    index[i] = ((l / heads * a->tokens + s) * heads + l % heads) * head + i % head;
  }
  tws_onnx_alias(to, p);
  to->kind = TWS_ONNX_CONTEXT;
  to->attention = a;
  to->view = view;
  to->epoch = x->epoch;
  return TWS_OK;
}

/* ---- masks ---- */

/* Finds out what a mask allows. kept 1: an element that is not 0 allows a key; 0: the elements are added, and 0 allows
 * it. Returns 0: all keys, 1: the token's own and earlier ones, -1: others. */
static int mask_of(const tws_onnx_attention *a, const tws_onnx_tensor *t, int kept) {
  const int64_t columns = t->dims > 0 ? t->shape[t->dims - 1] : 1, rows = t->dims > 1 ? t->shape[t->dims - 2] : 1;
  int all = 1, causal = rows == a->tokens && columns == a->tokens;
  if ((columns != 1 && columns != a->tokens) || (rows != 1 && rows != a->tokens)) return -1;
  for (int64_t i = 0; i < t->count; i++) {
    const double v = tws_onnx_element(t, i);
    const int allows = kept ? v < 0 || v > 0 : fabs(v) < 1e-30, forbids = kept ? !allows : v < -1e4;
    all &= allows;
    causal &= i % columns <= i / columns % rows ? allows : forbids;
  }
  return all ? 0 : causal ? 1 : -1;
}

static tws_code set_mask(tws_onnx_import *x, int node, const tws_onnx_value *scores, const tws_onnx_tensor *t, int kept,
                         tws_onnx_value *to, tws_error *err) {
  const int mask = t ? mask_of(scores->attention, t, kept) : -1;
  tws_onnx_attention *a = tws_arena_alloc(x->arena, 1, sizeof *a);
  if (!a) return tws_onnx_no_memory(x, err);
  if (mask < 0)
    return tws_onnx_refuse(x, node, err, "a mask is constant, and allows all tokens, or a token's own and earlier ones",
                           "this mask is neither of none nor of later tokens");
  *a = *scores->attention;
  a->masked |= mask;
  tws_onnx_alias(to, scores);
  to->attention = a;
  return TWS_OK;
}

/* ---- nodes ---- */

static tws_code scale_stage(tws_onnx_import *x, int node, tws_onnx_value *in, int which, tws_onnx_value *to,
                            tws_error *err) {
  double factor;
  if (!tws_onnx_scalar(tws_onnx_constant_in(x, node, !which), &factor) ||
      (in->kind != TWS_ONNX_PROJECTION && in->kind != TWS_ONNX_SCORES) || (which == 1 && !is_op(x, node, "Mul")))
    return tws_onnx_refuse(x, node, err, form, "its operand is no constant factor of queries, keys or scores");
  if (is_op(x, node, "Div")) factor = 1 / factor;
  tws_onnx_alias(to, in);
  to->scale *= factor;
  if (in->kind == TWS_ONNX_PROJECTION) return TWS_OK;
  tws_onnx_attention *a = tws_arena_alloc(x->arena, 1, sizeof *a);
  if (!a) return tws_onnx_no_memory(x, err);
  *a = *in->attention;
  a->scale *= factor;
  to->attention = a;
  return TWS_OK;
}

static tws_code reorder_stage(tws_onnx_import *x, int node, const tws_onnx_value *in, tws_error *err) {
  const tws_onnx_node *n = &x->graph->nodes[node];
  const tws_onnx_tensor *operands[8] = {in->view}, *results[8] = {NULL};
  tws_onnx_folder f = scratch_of(x);
  if ((in->kind != TWS_ONNX_PROJECTION && in->kind != TWS_ONNX_CONTEXT) || n->ins > 8 || n->outs > 8)
    return tws_onnx_refuse(x, node, err, form, "scores of attention are not brought into another order");
  if (in->epoch != x->epoch)
    return tws_onnx_refuse(x, node, err, form, "its operand is of an attention that already ended");
  for (int i = 1; i < n->ins; i++) {
    operands[i] = tws_onnx_constant_in(x, node, i);
    if (!operands[i] && tws_onnx_in(x, node, i))
      return tws_onnx_refuse(x, node, err, "export the model with constant shapes", "its operand %d is no constant",
                             i + 1);
  }
  TWS_TRY(tws_onnx_fold(&f, n, operands, results, err));
  if ((int64_t)tws_arena_bytes(x->scratch) > (int64_t)MOST_ELEMENTS * 8) return too_large(x, node, &f, err);
  for (int i = 0; i < n->outs; i++) {
    tws_onnx_value *to = tws_onnx_out(x, node, i);
    if (!to) continue;
    tws_onnx_alias(to, in);
    to->view = results[i];
  }
  return TWS_OK;
}

static tws_code multiply_stages(tws_onnx_import *x, int node, tws_error *err) {
  const tws_onnx_value *a = tws_onnx_in(x, node, 0), *b = tws_onnx_in(x, node, 1);
  tws_onnx_value *to = tws_onnx_out(x, node, 0);
  if (a && b && b->kind == TWS_ONNX_PROJECTION && b->epoch == x->epoch) {
    if (a->kind == TWS_ONNX_PROJECTION && a->epoch == x->epoch) return begin_scores(x, node, a, b, 1, to, err);
    if (a->kind == TWS_ONNX_PROBABILITIES) return begin_context(x, node, a, b, to, err);
  }
  return tws_onnx_refuse(x, node, err, form, "it multiplies values that are no stages of one attention");
}

/* The operator Attention, which has all stages in one node, of operands [samples, heads, tokens, width of a head] or
 * [samples, tokens, width]. */
static tws_code attend_at_once(tws_onnx_import *x, int node, tws_error *err) {
  const tws_onnx_node *n = &x->graph->nodes[node];
  tws_onnx_value *operand[3], *to = tws_onnx_out(x, node, 0), scores = *to, masked;
  const tws_onnx_tensor *mask = tws_onnx_constant_in(x, node, 3);
  for (int i = 0; i < 3; i++) {
    operand[i] = tws_onnx_in(x, node, i);
    if (!operand[i] || operand[i]->kind != TWS_ONNX_PROJECTION || operand[i]->epoch != x->epoch ||
        operand[i]->view->dims != 4)
      return tws_onnx_refuse(x, node, err, form, "its operands are no queries, keys and values by heads");
  }
  for (int i = 3; i < n->ins; i++)
    if (tws_onnx_in(x, node, i) && (i > 3 || !mask))
      return tws_onnx_refuse(x, node, err, "export the model without a cache of keys", "its operand %d is not known",
                             i + 1);
  TWS_TRY(begin_scores(x, node, operand[0], operand[1], 0, &scores, err));
  tws_onnx_attention *a = tws_arena_alloc(x->arena, 1, sizeof *a);
  if (!a) return tws_onnx_no_memory(x, err);
  *a = *scores.attention;
  a->scale *= tws_onnx_float(n, "scale", 1 / sqrt((double)a->head));
  a->masked = tws_onnx_int(n, "is_causal", 0) != 0;
  scores.attention = a;
  masked = scores;
  if (mask) TWS_TRY(set_mask(x, node, &scores, mask, mask->integers != NULL, &masked, err));
  if (tws_onnx_float(n, "softcap", 0) > 0 || tws_onnx_int(n, "qk_matmul_output_mode", 0) != 0)
    return tws_onnx_refuse(x, node, err, "export the model without them", "it has attributes that are not known");
  return begin_context(x, node, &masked, operand[2], to, err);
}

/* Where chooses scores or a large negative number by a constant mask, or probabilities where they are numbers. */
static tws_code choose_stage(tws_onnx_import *x, int node, tws_error *err) {
  tws_onnx_value *a = tws_onnx_in(x, node, 1), *b = tws_onnx_in(x, node, 2), *to = tws_onnx_out(x, node, 0);
  const tws_onnx_tensor *mask = tws_onnx_constant_in(x, node, 0);
  const tws_onnx_value *condition = tws_onnx_in(x, node, 0);
  double other;
  for (int i = 0; i < 2 && condition; i++) {
    const tws_onnx_value *stage = i ? b : a;
    if (!stage || !tws_onnx_scalar(tws_onnx_constant_in(x, node, i ? 1 : 2), &other)) continue;
    if (stage->kind == TWS_ONNX_PROBABILITIES && condition->kind == TWS_ONNX_PROBABILITIES && i == 1) {
      tws_onnx_alias(to, stage);
      return TWS_OK;
    }
    if (stage->kind != TWS_ONNX_SCORES || !mask || !(other < -1e4)) continue;
    if (i == 0) return set_mask(x, node, stage, mask, 1, to, err);
    tws_onnx_tensor inverse = *mask;
    float *kept = tws_arena_alloc(x->arena, (size_t)mask->count + 1, sizeof *kept);
    if (!kept) return tws_onnx_no_memory(x, err);
    for (int64_t k = 0; k < mask->count; k++)
      kept[k] = tws_onnx_element(mask, k) < 0 || tws_onnx_element(mask, k) > 0 ? 0 : 1;
    inverse.numbers = kept;
    inverse.integers = NULL;
    return set_mask(x, node, stage, &inverse, 1, to, err);
  }
  return tws_onnx_refuse(x, node, err, form, "it chooses by what is no mask of scores");
}

tws_code tws_onnx_stage(tws_onnx_import *x, int node, tws_error *err) {
  const tws_onnx_node *n = &x->graph->nodes[node];
  const int which = !tws_onnx_is_stage(tws_onnx_in(x, node, 0));
  tws_onnx_value *in = tws_onnx_in(x, node, which), *to = tws_onnx_out(x, node, 0);
  if (is_op(x, node, "Where")) return choose_stage(x, node, err);
  if (which > 1 || !tws_onnx_is_stage(in))
    return tws_onnx_refuse(x, node, err, form, "a node that is no part of attention reads a stage of it");
  if (is_op(x, node, "MatMul")) return multiply_stages(x, node, err);
  if (is_op(x, node, "Attention")) return attend_at_once(x, node, err);
  if (which == 0 && orders_elements(n->op)) return reorder_stage(x, node, in, err);
  if (is_op(x, node, "Mul") || is_op(x, node, "Div")) return scale_stage(x, node, in, which, to, err);
  if (is_op(x, node, "Add") && in->kind == TWS_ONNX_SCORES)
    return set_mask(x, node, in, tws_onnx_constant_in(x, node, !which), 0, to, err);
  const int64_t axis = tws_onnx_int(n, "axis", -1);
  const int softmax = is_op(x, node, "Softmax") && in->kind == TWS_ONNX_SCORES && (axis == -1 || axis == 3);
  const int passes = is_op(x, node, "Identity") || is_op(x, node, "Cast") || is_op(x, node, "Dropout") ||
                     (is_op(x, node, "IsNaN") && in->kind == TWS_ONNX_PROBABILITIES);
  if (!softmax && !passes)
    return tws_onnx_refuse(x, node, err, form, "a node that is no part of attention reads a stage of it");
  if (is_op(x, node, "Dropout")) tws_text_add(&x->notes, "node %.80s: there is no dropout within attention\n", n->name);
  tws_onnx_alias(to, in);
  if (softmax) to->kind = TWS_ONNX_PROBABILITIES;
  return TWS_OK;
}

/* ---- the module ---- */

/* Returns the name of the module that a projection is a part of: that of the linear layer without its last word. */
static const char *attention_name(tws_onnx_import *x, const char *linear) {
  const char *dot = strrchr(linear, '.');
  return dot ? tws_arena_printf(x->arena, "%.*s", (int)(dot - linear), linear) : linear;
}

static tws_code give_weights(tws_onnx_import *x, const char *name, const tws_onnx_attention *a,
                             const tws_onnx_linear *out, tws_error *err) {
  const int64_t width = out->in;
  const int biased = out->bias != NULL;
  float *weight = tws_onnx_give(x, name, ".qkv.weight", 3 * width * width);
  float *last = tws_onnx_give(x, name, ".out.weight", width * width);
  float *bias = biased ? tws_onnx_give(x, name, ".qkv.bias", 3 * width) : NULL;
  float *last_bias = biased ? tws_onnx_give(x, name, ".out.bias", width) : NULL;
  if (!weight || !last || (biased && (!bias || !last_bias))) return tws_onnx_no_memory(x, err);
  for (int i = 0; i < 3; i++) {
    const tws_onnx_part *p = &a->part[i];
    memcpy(weight + i * width * width, p->linear->weight + p->first * width, (size_t)(width * width) * sizeof *weight);
    if (biased) memcpy(bias + i * width, p->linear->bias + p->first, (size_t)width * sizeof *bias);
  }
  memcpy(last, out->weight, (size_t)(width * width) * sizeof *last);
  if (biased) memcpy(last_bias, out->bias, (size_t)width * sizeof *last_bias);
  return TWS_OK;
}

static tws_code check_attention(const tws_onnx_import *x, int node, const tws_onnx_value *context,
                                const tws_onnx_linear *linear, tws_error *err) {
  const tws_onnx_attention *a = context->attention;
  const int64_t width = a->heads * a->head;
  int equal = linear->in == width && linear->out == width;
  for (int i = 0; i < 3; i++) equal &= a->part[i].width == width && a->part[i].linear->in == width;
  if (context->epoch != x->epoch || context->view->shape[context->view->dims - 1] != width)
    return tws_onnx_refuse(x, node, err, form, "the heads are not joined before it");
  for (int64_t i = 0; i < context->view->count; i++)
    if (context->view->integers[i] != i)
      return tws_onnx_refuse(x, node, err, form, "the heads are not joined in their order before it");
  if (!equal) return tws_onnx_refuse(x, node, err, form, "queries, keys, values and the result have different widths");
  for (int i = 0; i < 3; i++)
    if (!a->part[i].linear->bias != !linear->bias)
      return tws_onnx_refuse(x, node, err, "give all four a bias, or none",
                             "only some of attention's layers have biases");
  if (fabs(a->scale * sqrt((double)a->head) - 1) < 1e-5) return TWS_OK;
  return tws_onnx_refuse(x, node, err, form, "scores are multiplied by %g, and not by 1 / sqrt(%lld)", a->scale,
                         (long long)a->head);
}

tws_code tws_onnx_attend(tws_onnx_import *x, int node, const tws_onnx_value *context, const tws_onnx_linear *linear,
                         tws_onnx_value *to, tws_error *err) {
  const tws_onnx_attention *a = context->attention;
  tws_onnx_value from = *context;
  int index;
  TWS_TRY(check_attention(x, node, context, linear, err));
  from.module = a->module;
  from.layout = TWS_ONNX_TOKENS;
  from.dims = context->view->dims;
  memcpy(from.shape, context->view->shape, sizeof from.shape);
  const char *name = attention_name(x, a->part[0].linear->name);
  if (!name) return tws_onnx_no_memory(x, err);
  cJSON *item = tws_onnx_add(x, node, "self_attention", name, &from, &index);
  if (!item || !cJSON_AddNumberToObject(item, "heads", (double)a->heads) ||
      !cJSON_AddBoolToObject(item, "causal", a->masked) || !cJSON_AddBoolToObject(item, "bias", linear->bias != NULL))
    return tws_onnx_no_memory(x, err);
  TWS_TRY(give_weights(x, x->module_names[index], a, linear, err));
  tws_onnx_set(to, &from, index);
  tws_arena_destroy(x->scratch); /* indices of later modules are in a new arena */
  x->scratch = tws_arena_create();
  x->epoch++;
  return x->scratch ? TWS_OK : tws_onnx_no_memory(x, err);
}
