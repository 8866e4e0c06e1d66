/* The types of modules of a network file. */
#include <float.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "models/kernel.h"
#include "models/network/described.h"

/* ---- values and keys ---- */

/* Returns the index of the graph's value that is input `i` of the described module; TWS_NONE: an input of pictures. */
static uint32_t graph_in(const tws_described *d, const tws_described_module *m, int i) {
  return m->in[i] < 0 ? d->given : d->modules[m->in[i]].value;
}

/* Returns the index of the graph's input that the described module reads, or TWS_NONE. */
static uint32_t graph_input(const tws_described *d, const tws_described_module *m) {
  return m->in[0] < 0 ? d->inputs[-1 - m->in[0]].in_graph : TWS_NONE;
}

static const tws_value *value_in(const tws_described *d, const tws_described_module *m, int i) {
  return &d->b->net->values[graph_in(d, m, i)];
}

/* Fails with TWS_INVALID if the module reads the input of the network instead of outputs of other modules. */
static tws_code needs_value(const tws_described *d, const tws_described_module *m, tws_error *err) {
  int reads_input = 0;
  for (int i = 0; i < m->type->inputs; i++) reads_input |= m->in[i] < 0;
  if (!reads_input) return TWS_OK;
  if (d->of_pictures)
    return tws_json_fail(d->b->json, m->item, err,
                         "begin with a convolution; one of the whole side is a linear layer of the picture",
                         "%s reads the network's pictures, which only a convolution does", m->name);
  return tws_json_fail(d->b->json, m->item, err, "the first module is an \"embedding\"",
                       "%s reads tokens, which only an embedding does", m->name);
}

static tws_code needs_pixels(const tws_described *d, const tws_described_module *m, tws_error *err) {
  TWS_TRY(needs_value(d, m, err));
  if (value_in(d, m, 0)->row_dims == 3) return TWS_OK;
  return tws_json_fail(d->b->json, m->item, err, "put it before the module \"flatten\" or \"global_average_pool\"",
                       "%s reads pictures, and %s has none", m->name, d->modules[m->in[0]].name);
}

static tws_code size(const tws_described *d, const tws_described_module *m, const char *key, int64_t low, int64_t high,
                     int64_t fallback, int64_t *out, tws_error *err) {
  return tws_json_int(d->b->json, m->item, key, fallback < low, low, high, fallback, out, err);
}

/* Writes the standard deviation of initial weights: the module's "std", the network's "init_std", or 1 / sqrt(3 n), the
 * variance that PyTorch's default has for sums of n products (torch.nn.init.kaiming_uniform_ with a = sqrt(5)). */
static tws_code deviation(const tws_described *d, const tws_described_module *m, int64_t products, float *std,
                          tws_error *err) {
  double given;
  TWS_TRY(tws_json_number(d->b->json, m->item, "std", 0, 0, 100, d->std, &given, err));
  *std = (float)(given > 0 ? given : 1 / sqrt(3.0 * (double)products));
  return TWS_OK;
}

static tws_code too_wide(const tws_described *d, const tws_described_module *m, tws_error *err) {
  return tws_json_fail(d->b->json, m->item, err, "check the sizes", "%s has more than %d inputs or outputs", m->name,
                       TWS_MAX_WIDTH);
}

/* ---- pictures ---- */

/* Fails with TWS_INVALID unless windows of side x side pixels fit into a picture of height x width with its padding. */
static tws_code check_window(const tws_described *d, const tws_described_module *m, int64_t height, int64_t width,
                             int64_t side, int64_t padding, tws_error *err) {
  if (padding >= side)
    return tws_json_fail(d->b->json, m->item, err, "less padding than the side",
                         "%s pads by %lld, and its side is %lld", m->name, (long long)padding, (long long)side);
  if (height + 2 * padding >= side && width + 2 * padding >= side) return TWS_OK;
  return tws_json_fail(d->b->json, m->item, err, "smaller windows, or fewer poolings before it",
                       "%s has windows of side %lld, and its input is %lld x %lld pixels", m->name, (long long)side,
                       (long long)height, (long long)width);
}

/* Reads what convolutions and transposed ones have in common, and the extents and channels of the input. */
static tws_code read_convolution(const tws_described *d, const tws_described_module *m, tws_convolution *c,
                                 int64_t extent[2], int64_t *in, tws_error *err) {
  *c = (tws_convolution){.groups = 1};
  if (m->in[0] < 0 && d->of_pictures) {
    const tws_described_input *input = &d->inputs[-1 - m->in[0]];
    extent[0] = extent[1] = input->side, *in = input->channels;
  } else {
    TWS_TRY(needs_pixels(d, m, err));
    const tws_value *x = value_in(d, m, 0);
    extent[0] = x->row[1].size, extent[1] = x->row[2].size, *in = x->per_row;
  }
  TWS_TRY(size(d, m, "out", 1, TWS_MAX_WIDTH, 0, &c->out, err));
  TWS_TRY(size(d, m, "side", 1, TWS_DESCRIBED_SIDE, 0, &c->side, err));
  TWS_TRY(size(d, m, "stride", 1, TWS_DESCRIBED_SIDE, 1, &c->stride, err));
  TWS_TRY(size(d, m, "padding", 0, TWS_DESCRIBED_SIDE, 0, &c->padding, err));
  TWS_TRY(size(d, m, "groups", 1, TWS_MAX_WIDTH, 1, &c->groups, err));
  TWS_TRY(tws_json_bool(d->b->json, m->item, "bias", 0, 1, &c->bias, err));
  if (*in % c->groups == 0 && c->out % c->groups == 0) return TWS_OK;
  return tws_json_fail(d->b->json, m->item, err, "groups divide the channels of input and output",
                       "%s has %lld groups, %lld channels in and %lld out", m->name, (long long)c->groups,
                       (long long)*in, (long long)c->out);
}

static tws_code build_convolution(tws_described *d, tws_described_module *m, tws_error *err) {
  tws_convolution c;
  int64_t extent[2], in;
  TWS_TRY(read_convolution(d, m, &c, extent, &in, err));
  TWS_TRY(check_window(d, m, extent[0], extent[1], c.side, c.padding, err));
  if (c.side * c.side > TWS_MAX_WIDTH / (in / c.groups)) return too_wide(d, m, err);
  TWS_TRY(deviation(d, m, c.side * c.side * in / c.groups, &c.std, err));
  m->value = tws_build_convolution(d->b, m->layer, m->name, graph_in(d, m, 0), graph_input(d, m), &c);
  return TWS_OK;
}

static tws_code build_transposed_convolution(tws_described *d, tws_described_module *m, tws_error *err) {
  tws_convolution c;
  int64_t extent[2], in, more;
  TWS_TRY(read_convolution(d, m, &c, extent, &in, err));
  TWS_TRY(size(d, m, "output_padding", 0, TWS_DESCRIBED_SIDE, 0, &more, err));
  if (more >= c.stride)
    return tws_json_fail(d->b->json, m->item, err, "less output_padding than the stride",
                         "%s adds %lld pixels, and its stride is %lld", m->name, (long long)more, (long long)c.stride);
  for (int i = 0; i < 2; i++) extent[i] = (extent[i] - 1) * c.stride + c.side - 2 * c.padding + more;
  if (extent[0] < 1 || extent[1] < 1 || extent[0] > TWS_DESCRIBED_SIDE || extent[1] > TWS_DESCRIBED_SIDE)
    return tws_json_fail(d->b->json, m->item, err, "less padding, or a smaller stride",
                         "%s makes pictures of %lld x %lld pixels, and they have 1 to %d along each side", m->name,
                         (long long)extent[0], (long long)extent[1], TWS_DESCRIBED_SIDE);
  TWS_TRY(check_window(d, m, extent[0], extent[1], c.side, c.padding, err));
  if (c.side * c.side > TWS_MAX_WIDTH / (c.out / c.groups)) return too_wide(d, m, err);
  TWS_TRY(deviation(d, m, c.side * c.side * c.out / c.groups, &c.std, err));
  m->value = tws_build_transposed_convolution(d->b, m->layer, m->name, graph_in(d, m, 0), graph_input(d, m), &c, more);
  return TWS_OK;
}

static tws_code build_pool(tws_described *d, tws_described_module *m, tws_error *err) {
  int64_t side, stride, padding;
  TWS_TRY(needs_pixels(d, m, err));
  TWS_TRY(size(d, m, "side", 1, TWS_DESCRIBED_SIDE, 0, &side, err));
  TWS_TRY(size(d, m, "stride", 1, TWS_DESCRIBED_SIDE, side, &stride, err));
  TWS_TRY(size(d, m, "padding", 0, TWS_DESCRIBED_SIDE, 0, &padding, err));
  const tws_value *x = value_in(d, m, 0);
  TWS_TRY(check_window(d, m, x->row[1].size, x->row[2].size, side, padding, err));
  m->value = tws_build_pool(d->b, m->layer, m->name, m->type->in_graph, graph_in(d, m, 0), side, stride, padding);
  return TWS_OK;
}

static tws_code build_global_pool(tws_described *d, tws_described_module *m, tws_error *err) {
  TWS_TRY(needs_pixels(d, m, err));
  m->value = tws_build_pool(d->b, m->layer, m->name, TWS_MODULE_AVERAGE_POOL, graph_in(d, m, 0), 0, 1, 0);
  return TWS_OK;
}

static tws_code build_flatten(tws_described *d, tws_described_module *m, tws_error *err) {
  TWS_TRY(needs_pixels(d, m, err));
  const tws_value *x = value_in(d, m, 0);
  if (x->row[1].size * x->row[2].size > TWS_MAX_WIDTH / (int64_t)x->per_row) return too_wide(d, m, err);
  m->value = tws_build_flatten(d->b, m->layer, m->name, graph_in(d, m, 0));
  return TWS_OK;
}

static tws_code build_batch_norm(tws_described *d, tws_described_module *m, tws_error *err) {
  double epsilon, momentum;
  TWS_TRY(needs_pixels(d, m, err));
  TWS_TRY(tws_json_number(d->b->json, m->item, "epsilon", 0, 1e-20, 1, 1e-5, &epsilon, err));
  TWS_TRY(tws_json_number(d->b->json, m->item, "momentum", 0, 0, 1, 0.1, &momentum, err));
  m->value = tws_build_batch_norm(d->b, m->layer, m->name, graph_in(d, m, 0), epsilon, momentum);
  return TWS_OK;
}

/* ---- any rows ---- */

/* Finds the weight that a linear layer shares with an earlier one, or the last layer with the table of tokens: key
 * "tied". Sets *weight to TWS_NONE if it has one of its own. */
static tws_code read_tied(const tws_described *d, const tws_described_module *m, int64_t out, int64_t in,
                          uint32_t *weight, tws_error *err) {
  static const char hint[] = "the name of an earlier linear layer, or for the scores of tokens of the embedding";
  const tws_network *net = d->b->net;
  const cJSON *item = cJSON_GetObjectItemCaseSensitive(m->item, "tied");
  const char *name;
  *weight = TWS_NONE;
  TWS_TRY(tws_json_string(d->b->json, m->item, "tied", 0, NULL, &name, err));
  if (!name) return TWS_OK;
  const int at = tws_described_named(d, m->prefix, name), earlier = at >= 0 && at < (int)(m - d->modules);
  const tws_module_type type = earlier ? d->modules[at].type->in_graph : TWS_MODULE_TYPE_COUNT;
  if (type != TWS_MODULE_LINEAR && type != TWS_MODULE_EMBEDDING)
    return tws_json_fail(d->b->json, item, err, hint, "%s: there is no earlier layer \"%.80s\" with a weight to share",
                         m->name, name);
  const uint32_t shared = net->modules[net->values[d->modules[at].value].producer].param[0];
  if (net->params[shared].rows != out || net->params[shared].columns != in)
    return tws_json_fail(d->b->json, item, err, "layers of equal widths share a weight",
                         "%s has a weight of %lld x %lld, and %s of %lld x %lld", m->name, (long long)out,
                         (long long)in, d->modules[at].name, (long long)net->params[shared].rows,
                         (long long)net->params[shared].columns);
  if (type == TWS_MODULE_EMBEDDING && m->layer != -2)
    return tws_json_fail(d->b->json, item, err, "let the last layer share it",
                         "%s shares the table of %s, and is not the layer that scores tokens", m->name,
                         d->modules[at].name);
  *weight = shared;
  return TWS_OK;
}

static tws_code build_linear(tws_described *d, tws_described_module *m, tws_error *err) {
  int64_t out;
  uint32_t tied;
  int bias;
  float std;
  TWS_TRY(needs_value(d, m, err));
  const int64_t in = value_in(d, m, 0)->per_row;
  TWS_TRY(size(d, m, "out", 1, TWS_MAX_WIDTH, 0, &out, err));
  TWS_TRY(tws_json_bool(d->b->json, m->item, "bias", 0, 1, &bias, err));
  TWS_TRY(deviation(d, m, in, &std, err));
  const int scores_words = m->layer == -2 && !d->of_pictures && out == d->b->net->vocabulary;
  if (scores_words) out = d->b->net->padded_vocabulary;
  TWS_TRY(read_tied(d, m, out, in, &tied, err));
  m->value = tws_build_linear(d->b, m->layer, m->name, graph_in(d, m, 0), in, out, std, bias, NULL, tied);
  if (tied != TWS_NONE && !scores_words) d->b->net->params[tied].shared = 1;
  if (tied != TWS_NONE && scores_words) d->b->net->tied = 1;
  return TWS_OK;
}

static tws_code build_norm(tws_described *d, tws_described_module *m, tws_error *err) {
  double epsilon;
  TWS_TRY(needs_value(d, m, err));
  TWS_TRY(tws_json_number(d->b->json, m->item, "epsilon", 0, 1e-20, 1, 1e-5, &epsilon, err));
  m->value =
      tws_build_norm(d->b, m->layer, m->name, graph_in(d, m, 0), strcmp(m->type->name, "rms_norm") == 0, epsilon);
  return TWS_OK;
}

static tws_code build_activation(tws_described *d, tws_described_module *m, tws_error *err) {
  TWS_TRY(needs_value(d, m, err));
  m->value =
      tws_build_pointwise(d->b, m->layer, m->name, m->type->in_graph, graph_in(d, m, 0), value_in(d, m, 0)->per_row);
  return TWS_OK;
}

static tws_code build_leaky_relu(tws_described *d, tws_described_module *m, tws_error *err) {
  double slope;
  TWS_TRY(tws_json_number(d->b->json, m->item, "slope", 0, -100, 100, 0.01, &slope, err));
  TWS_TRY(build_activation(d, m, err));
  d->b->net->modules[d->b->net->module_count - 1].slope = slope;
  return TWS_OK;
}

static tws_code build_clamp(tws_described *d, tws_described_module *m, tws_error *err) {
  double low, high;
  TWS_TRY(tws_json_number(d->b->json, m->item, "low", 0, -FLT_MAX, FLT_MAX, -FLT_MAX, &low, err));
  TWS_TRY(tws_json_number(d->b->json, m->item, "high", 0, -FLT_MAX, FLT_MAX, FLT_MAX, &high, err));
  if (low >= high)
    return tws_json_fail(d->b->json, m->item, err, "\"low\": 0, \"high\": 6 is the ReLU6",
                         "%s has the limits %g and %g", m->name, low, high);
  TWS_TRY(build_activation(d, m, err));
  d->b->net->modules[d->b->net->module_count - 1].low = low;
  d->b->net->modules[d->b->net->module_count - 1].high = high;
  return TWS_OK;
}

static tws_code build_tanh(tws_described *d, tws_described_module *m, tws_error *err) {
  TWS_TRY(needs_value(d, m, err));
  m->value = tws_build_softcap(d->b, m->layer, m->name, graph_in(d, m, 0), 1);
  return TWS_OK;
}

/* Fails if a later module reads the value that this one replaces in memory. */
static tws_code is_last_reader(const tws_described *d, const tws_described_module *m, int input, tws_error *err) {
  const tws_described_module *from = &d->modules[m->in[input]];
  if (from->last_reader == (int)(m - d->modules)) return TWS_OK;
  return tws_json_fail(d->b->json, m->item, err, "let the later module read its result, or move it after that module",
                       "%s replaces the output of %s in memory, which %s reads later", m->name, from->name,
                       d->modules[from->last_reader].name);
}

static tws_code build_dropout(tws_described *d, tws_described_module *m, tws_error *err) {
  double probability;
  TWS_TRY(needs_value(d, m, err));
  TWS_TRY(tws_json_number(d->b->json, m->item, "probability", 1, 0, 0.999, 0, &probability, err));
  const uint32_t x = graph_in(d, m, 0);
  const int alone = d->modules[m->in[0]].last_reader == (int)(m - d->modules);
  m->value = alone ? tws_build_dropout(d->b, m->layer, m->name, x, probability)
                   : tws_build_dropped(d->b, m->layer, m->name, x, probability);
  return TWS_OK;
}

static tws_code build_scale(tws_described *d, tws_described_module *m, tws_error *err) {
  double factor;
  TWS_TRY(needs_value(d, m, err));
  TWS_TRY(tws_json_number(d->b->json, m->item, "factor", 1, -1e6, 1e6, 1, &factor, err));
  TWS_TRY(is_last_reader(d, m, 0, err));
  m->value = tws_build_scale(d->b, m->layer, m->name, graph_in(d, m, 0), factor);
  return TWS_OK;
}

/* Adds two values; the sum overwrites one of them in place, which no later module may read. */
static tws_code build_add(tws_described *d, tws_described_module *m, tws_error *err) {
  TWS_TRY(needs_value(d, m, err));
  const tws_value *a = value_in(d, m, 0), *b = value_in(d, m, 1);
  if (m->in[0] == m->in[1])
    return tws_json_fail(d->b->json, m->item, err, "use \"scale\" with the factor 2", "%s adds a value to itself",
                         m->name);
  if (a->per_row != b->per_row || a->row_dims != b->row_dims || memcmp(a->row, b->row, a->row_dims * sizeof *a->row))
    return tws_json_fail(d->b->json, m->item, err, "both have the same pixels or tokens and the same width",
                         "%s adds outputs of %s and %s, whose shapes differ", m->name, d->modules[m->in[0]].name,
                         d->modules[m->in[1]].name);
  const int self = (int)(m - d->modules);
  const int branch = d->modules[m->in[1]].last_reader == self ? 1 : 0;
  TWS_TRY(is_last_reader(d, m, branch, err));
  m->value = tws_build_add(d->b, m->layer, m->name, graph_in(d, m, !branch), graph_in(d, m, branch));
  return TWS_OK;
}

/* ---- tokens ---- */

static tws_code build_embedding(tws_described *d, tws_described_module *m, tws_error *err) {
  tws_network *net = d->b->net;
  int positions;
  double std;
  int64_t width;
  if (d->of_pictures || m->in[0] >= 0)
    return tws_json_fail(d->b->json, m->item, err, "it is the first module of a network whose input is \"tokens\"",
                         "%s reads %s, and an embedding reads tokens", m->name,
                         m->in[0] >= 0 ? d->modules[m->in[0]].name : "pictures");
  TWS_TRY(size(d, m, "width", 1, TWS_MAX_WIDTH, 0, &width, err));
  TWS_TRY(tws_json_bool(d->b->json, m->item, "positions", 0, 0, &positions, err));
  TWS_TRY(tws_json_number(d->b->json, m->item, "std", 0, 0, 100, d->std > 0 ? d->std : 1, &std, err));
  if (net->input_count > 0)
    return tws_json_fail(d->b->json, m->item, err, "let other modules read the first one", "%s is a second embedding",
                         m->name);
  net->hidden = width;
  m->value = tws_build_embedding(d->b, m->name, tws_build_name(d->b, "%s.weight", m->name),
                                 positions ? tws_build_name(d->b, "%s.positions", m->name) : NULL, (float)std);
  return TWS_OK;
}

static tws_code build_attention(tws_described *d, tws_described_module *m, tws_error *err) {
  tws_network *net = d->b->net;
  int64_t heads;
  int causal, bias;
  float std;
  TWS_TRY(needs_value(d, m, err));
  const int64_t width = value_in(d, m, 0)->per_row, parts[3] = {width, width, width};
  if (value_in(d, m, 0)->row_dims != 2)
    return tws_json_fail(d->b->json, m->item, err, "attention is among the tokens of a sample",
                         "%s reads %s, which has no tokens", m->name, d->modules[m->in[0]].name);
  TWS_TRY(size(d, m, "heads", 1, TWS_MAX_HEADS, 0, &heads, err));
  TWS_TRY(tws_json_bool(d->b->json, m->item, "causal", 0, 1, &causal, err));
  TWS_TRY(tws_json_bool(d->b->json, m->item, "bias", 0, 1, &bias, err));
  TWS_TRY(deviation(d, m, width, &std, err));
  if (width % heads != 0 || width > TWS_MAX_WIDTH / 3)
    return tws_json_fail(d->b->json, m->item, err, "heads divide the width", "%s has %lld heads and the width %lld",
                         m->name, (long long)heads, (long long)width);
  if (net->heads != 0 && net->heads != heads)
    return tws_json_fail(d->b->json, m->item, err, "equal heads in all attention modules",
                         "%s has %lld heads, and an earlier module has %lld", m->name, (long long)heads,
                         (long long)net->heads);
  net->heads = net->kv_heads = heads;
  net->head_size = width / heads;
  uint32_t x = tws_build_linear(d->b, m->layer, tws_build_name(d->b, "%s.qkv", m->name), graph_in(d, m, 0), width,
                                3 * width, std, bias, parts, TWS_NONE);
  x = tws_build_attention(d->b, m->layer, m->name, x);
  if (!causal) net->modules[net->module_count - 1].flags = TWS_BIDIRECTIONAL;
  m->value = tws_build_linear(d->b, m->layer, tws_build_name(d->b, "%s.out", m->name), x, width, width, std, bias, NULL,
                              TWS_NONE);
  return TWS_OK;
}

/* ---- experts ---- */

/* The keys of a layer of experts. inner 0: an expert is one linear layer, as in DeepSpeed's CIFAR-10 tutorial; else two
 * with an activation between them. */
typedef struct expert_keys {
  int64_t experts, choices, least_slots, inner, out;
  double factor, auxiliary;
  tws_module_type activation;
  int residual, bias, random, noisy;
  float std, inner_std;
} expert_keys;

static tws_code read_word(const tws_described *d, const tws_described_module *m, const char *key,
                          const char *const words[], int count, int *chosen, tws_error *err) {
  const char *word;
  char hint[sizeof err->hint];
  TWS_TRY(tws_json_string(d->b->json, m->item, key, 0, words[0], &word, err));
  for (*chosen = 0; *chosen < count; ++*chosen)
    if (strcmp(words[*chosen], word) == 0) return TWS_OK;
  tws_names_hint(word, words, (size_t)count, "known here:", NULL, hint, sizeof hint);
  return tws_json_fail(d->b->json, cJSON_GetObjectItemCaseSensitive(m->item, key), err, hint,
                       "\"%s\" of %s is \"%.40s\"", key, m->name, word);
}

static tws_code read_experts(const tws_described *d, const tws_described_module *m, expert_keys *k, tws_error *err) {
  static const char *const activations[] = {"relu", "gelu", "gelu_tanh"}, *const noises[] = {"none", "rsample"},
                           *const selections[] = {"random", "first"};
  static const tws_module_type types[] = {TWS_MODULE_RELU, TWS_MODULE_GELU_EXACT, TWS_MODULE_GELU};
  const int64_t in = value_in(d, m, 0)->per_row;
  int activation, first;
  TWS_TRY(size(d, m, "experts", 1, TWS_MAX_EXPERTS, 0, &k->experts, err));
  TWS_TRY(size(d, m, "top_k", 1, TWS_MAX_CHOICES, 1, &k->choices, err));
  TWS_TRY(size(d, m, "min_capacity", 0, TWS_MAX_WIDTH, 4, &k->least_slots, err));
  TWS_TRY(size(d, m, "inner", 0, TWS_MAX_WIDTH, 0, &k->inner, err));
  TWS_TRY(size(d, m, "out", 1, TWS_MAX_WIDTH, in, &k->out, err));
  TWS_TRY(tws_json_number(d->b->json, m->item, "capacity_factor", 0, 0, 1e6, 1, &k->factor, err));
  TWS_TRY(tws_json_number(d->b->json, m->item, "auxiliary", 0, 0, 1e6, 0, &k->auxiliary, err));
  TWS_TRY(tws_json_bool(d->b->json, m->item, "residual", 0, 0, &k->residual, err));
  TWS_TRY(tws_json_bool(d->b->json, m->item, "bias", 0, 1, &k->bias, err));
  TWS_TRY(read_word(d, m, "activation", activations, 3, &activation, err));
  TWS_TRY(read_word(d, m, "noise", noises, 2, &k->noisy, err));
  TWS_TRY(read_word(d, m, "selection", selections, 2, &first, err));
  k->activation = types[activation];
  k->random = !first;
  TWS_TRY(deviation(d, m, in, &k->std, err));
  TWS_TRY(deviation(d, m, k->inner > 0 ? k->inner : in, &k->inner_std, err));
  if (k->choices > k->experts)
    return tws_json_fail(d->b->json, m->item, err, "let a token choose at most as many experts as there are",
                         "a token of %s chooses %lld of %lld experts", m->name, (long long)k->choices,
                         (long long)k->experts);
  const int64_t widest = k->inner > k->out ? k->inner : k->out;
  return widest > TWS_MAX_WIDTH / k->experts ? too_wide(d, m, err) : TWS_OK;
}

/* Adds the experts' linear layers over slots, or with routes NULL the layers of the residual branch over rows. */
static uint32_t add_expert(tws_described *d, const tws_described_module *m, const expert_keys *k, uint32_t x,
                           const tws_routes *routes) {
  tws_network_builder *b = d->b;
  const char *part = routes ? "experts" : "mlp";
  for (int last = k->inner == 0; last < 2; last++) {
    const char *name = tws_build_name(b, "%s.%s.%s", m->name, part, k->inner == 0 ? "fc" : last ? "fc2" : "fc1");
    const int64_t out = last ? k->out : k->inner;
    const float std = last ? k->inner_std : k->std;
    x = routes ? tws_build_expert_linear(b, m->layer, name, x, routes, out, std, k->bias, NULL)
               : tws_build_linear(b, m->layer, name, x, b->net->values[x].per_row, out, std, k->bias, NULL, TWS_NONE);
    if (!last)
      x = tws_build_pointwise(b, m->layer, tws_build_name(b, "%s.%s.activation", m->name, part), k->activation, x, out);
  }
  return x;
}

/* Adds a mixture of experts as DeepSpeed's MoE layer has it (deepspeed/moe/layer.py): a router without bias, experts
 * with a bounded number of slots each and, if "residual", a branch that all rows pass, where a softmax of two numbers
 * weighs the two results (Rajbhandari et al. 2022). */
static tws_code build_experts(tws_described *d, tws_described_module *m, tws_error *err) {
  tws_network_builder *b = d->b;
  expert_keys k;
  TWS_TRY(needs_value(d, m, err));
  if (value_in(d, m, 0)->row_dims == 3)
    return tws_json_fail(b->json, m->item, err, "put it after the module \"flatten\" or \"global_average_pool\"",
                         "%s routes rows of samples or tokens, and %s has pixels", m->name, d->modules[m->in[0]].name);
  TWS_TRY(read_experts(d, m, &k, err));
  const uint32_t x = graph_in(d, m, 0);
  const int64_t in = b->net->values[x].per_row;
#define NAME(part) tws_build_name(b, "%s." part, m->name)
  tws_routing routing =
      tws_routing_like_deepspeed((int32_t)k.experts, (int32_t)k.choices, k.factor, k.least_slots, k.random);
  routing.auxiliary = k.auxiliary;
  if (k.noisy) routing.sampled = 1;
  const uint32_t logits = tws_build_linear(b, m->layer, NAME("gate.wg"), x, in, k.experts, k.std, 0, NULL, TWS_NONE);
  const tws_routes routes = tws_build_router(b, m->layer, NAME("gate.router"), logits, &routing);
  uint32_t y = tws_build_dispatch(b, m->layer, NAME("dispatch"), x, &routes);
  y = tws_build_combine(b, m->layer, NAME("combine"), add_expert(d, m, &k, y, &routes), &routes);
  if (k.residual) {
    const uint32_t gates = tws_build_linear(b, m->layer, NAME("coefficient"), x, in, 2, k.std, 1, NULL, TWS_NONE);
    const uint32_t all = add_expert(d, m, &k, x, NULL);
    y = tws_build_gate(b, m->layer, NAME("experts_by_gate"), y, gates, 0);
    y = tws_build_add(b, m->layer, NAME("add"), y, tws_build_gate(b, m->layer, NAME("mlp_by_gate"), all, gates, 1));
  }
#undef NAME
  m->value = y;
  return TWS_OK;
}

/* ---- the table ---- */

#define KEYS(...)                   \
  (const char *const[]) {           \
    __VA_ARGS__ __VA_OPT__(, ) NULL \
  }
static const tws_described_type types[] = {
    {"convolution", 1, KEYS("out", "side", "stride", "padding", "groups", "bias", "std"), build_convolution,
     TWS_MODULE_CONVOLUTION},
    {"transposed_convolution", 1, KEYS("out", "side", "stride", "padding", "output_padding", "groups", "bias", "std"),
     build_transposed_convolution, TWS_MODULE_TRANSPOSED_CONVOLUTION},
    {"max_pool", 1, KEYS("side", "stride", "padding"), build_pool, TWS_MODULE_MAX_POOL},
    {"average_pool", 1, KEYS("side", "stride", "padding"), build_pool, TWS_MODULE_AVERAGE_POOL},
    {"global_average_pool", 1, KEYS(), build_global_pool, TWS_MODULE_AVERAGE_POOL},
    {"batch_norm", 1, KEYS("epsilon", "momentum"), build_batch_norm, TWS_MODULE_BATCH_NORM},
    {"flatten", 1, KEYS(), build_flatten, TWS_MODULE_FLATTEN},
    {"linear", 1, KEYS("out", "bias", "std", "tied"), build_linear, TWS_MODULE_LINEAR},
    {"layer_norm", 1, KEYS("epsilon"), build_norm, TWS_MODULE_NORM},
    {"rms_norm", 1, KEYS("epsilon"), build_norm, TWS_MODULE_NORM},
    {"relu", 1, KEYS(), build_activation, TWS_MODULE_RELU},
    {"gelu", 1, KEYS(), build_activation, TWS_MODULE_GELU_EXACT},
    {"gelu_tanh", 1, KEYS(), build_activation, TWS_MODULE_GELU},
    {"squared_relu", 1, KEYS(), build_activation, TWS_MODULE_SQUARED_RELU},
    {"sigmoid", 1, KEYS(), build_activation, TWS_MODULE_SIGMOID},
    {"silu", 1, KEYS(), build_activation, TWS_MODULE_SILU},
    {"tanh", 1, KEYS(), build_tanh, TWS_MODULE_SOFTCAP},
    {"leaky_relu", 1, KEYS("slope"), build_leaky_relu, TWS_MODULE_LEAKY_RELU},
    {"clamp", 1, KEYS("low", "high"), build_clamp, TWS_MODULE_CLAMP},
    {"dropout", 1, KEYS("probability"), build_dropout, TWS_MODULE_DROPOUT},
    {"scale", 1, KEYS("factor"), build_scale, TWS_MODULE_MULTIPLY},
    {"experts", 1,
     KEYS("experts", "top_k", "capacity_factor", "min_capacity", "selection", "noise", "auxiliary", "residual", "out",
          "inner", "activation", "bias", "std"),
     build_experts, TWS_MODULE_ROUTER},
    {"add", 2, KEYS(), build_add, TWS_MODULE_ADD},
    {"embedding", 1, KEYS("width", "positions", "std"), build_embedding, TWS_MODULE_EMBEDDING},
    {"self_attention", 1, KEYS("heads", "causal", "bias", "std"), build_attention, TWS_MODULE_ATTENTION},
};
enum { TYPES = sizeof types / sizeof *types };

const tws_described_type *tws_described_type_named(const char *name) {
  for (int i = 0; i < TYPES; i++)
    if (strcmp(types[i].name, name) == 0) return &types[i];
  return NULL;
}

void tws_described_types_hint(const char *word, char *hint, size_t size) {
  const char *names[TYPES];
  for (int i = 0; i < TYPES; i++) names[i] = types[i].name;
  tws_names_hint(word, names, TYPES, "types of modules:", NULL, hint, size);
}
