/* Model flops: the flops of a network's matrix products, in the forward pass and in training. */
#include <math.h>

#include "models/kernel.h"
#include "models/network/module.h"

typedef struct lengths {
  int64_t seq, target;
} lengths;

/* Returns the number of rows of a value per token. */
static double rows_per_token(const tws_network *network, uint32_t value, lengths of) {
  const tws_value *v = &network->values[value];
  const int64_t tokens = of.seq > 0 ? of.seq : 1;
  tws_dim row[3];
  for (int i = 0; i < v->row_dims; i++) {
    row[i] = v->row[i];
    if (row[i].kind == TWS_DIM_TARGET) row[i].size = of.target;
  }
  return (double)tws_dims_count(row, v->row_dims, 1, tokens) / (double)tokens;
}

/* Returns the flops per token of attention between one sequence's queries and all of its keys. */
static double square_flops(const tws_network *network, const tws_module *m, lengths of, int causal_halved) {
  const uint32_t keys = m->type == TWS_MODULE_CROSS_ATTENTION ? m->in[1] : m->in[0];
  const double tokens = (double)(of.seq > 0 ? of.seq : 1), queries = rows_per_token(network, m->in[0], of) * tokens,
               seen = rows_per_token(network, keys, of) * tokens, window = (double)m->window;
  double square = 4 * queries / tokens * seen * (double)m->heads * (double)m->head_size;
  if (m->window > 0 && window < seen) /* excludes pairs of queries and keys outside of the window */
    square *= window * (2 * seen - window + 1) / (seen * (seen + 1));
  if (m->document > 0 && (double)m->document < seen) square *= (double)m->document / seen;
  const int halved = causal_halved && !(m->flags & TWS_BIDIRECTIONAL) && m->type == TWS_MODULE_ATTENTION;
  return halved ? square / 2 : square;
}

/* Returns the flops per token of products of contents with the rows of relative positions that occur in one
 * sequence. */
static double position_flops(const tws_module *m, lengths of) {
  const double tokens = (double)(of.seq > 0 ? of.seq : 1), rows = fmin((double)m->buckets, 2 * tokens - 1);
  return (m->kinds > 2 ? 4 : 2) * rows * (double)m->heads * (double)m->head_size;
}

/* Returns the flops per token of a module's forward pass. */
static double module_flops(const tws_network *network, const tws_module *m, lengths of, int causal_halved) {
  const double rows = rows_per_token(network, m->out[0], of);
  switch (m->type) {
    case TWS_MODULE_LINEAR: {
      const int64_t out = tws_linear_scores_words(network, m) ? network->vocabulary : m->out_features;
      return 2 * (double)m->in_features * (double)out * rows;
    }
    case TWS_MODULE_CONVOLUTION:
    case TWS_MODULE_LOW_RANK:
      return 2 * (double)tws_param_numel(&network->params[m->param[0]]) * rows;
    case TWS_MODULE_TRANSPOSED_CONVOLUTION: /* each pixel of the input is multiplied with the weight */
      return 2 * (double)tws_param_numel(&network->params[m->param[0]]) * (double)tws_module_windows_of_picture(m);
    case TWS_MODULE_EXPERT_LINEAR:
      return 2 * (double)m->routing->choices * (double)m->in_features * (double)m->out_features;
    case TWS_MODULE_ATTENTION:
    case TWS_MODULE_CROSS_ATTENTION:
      return square_flops(network, m, of, causal_halved);
    case TWS_MODULE_DISENTANGLED:
      return square_flops(network, m, of, 0) + position_flops(m, of);
    default:
      return 0;
  }
}

double tws_network_flops_per_token(const tws_network *network, int64_t seq, int64_t target, int causal_halved) {
  const lengths of = {seq, target};
  double flops = 0;
  for (uint32_t i = 0; i < network->module_count; i++)
    flops += module_flops(network, &network->modules[i], of, causal_halved);
  return flops;
}

/* ---- training ---- */

static int is_trained(const tws_network *network, const tws_module *m, uint32_t param) {
  return param != TWS_NONE && !network->params[param].frozen && !m->held;
}

void tws_network_find_needed(const tws_network *network, uint8_t *needed) {
  for (uint32_t i = 0; i < network->module_count; i++) {
    const tws_module *m = &network->modules[i];
    int depends = 0;
    for (int k = 0; k < TWS_MODULE_PARAMS; k++) depends |= is_trained(network, m, m->param[k]);
    for (int k = 0; k < TWS_MODULE_INS; k++) depends |= m->in[k] != TWS_NONE && needed[m->in[k]];
    if (m->type == TWS_MODULE_DETACH) depends = 0;
    for (int k = 0; k < TWS_MODULE_OUTS; k++)
      if (m->out[k] != TWS_NONE) needed[m->out[k]] = (uint8_t)depends;
  }
}

static int needs_gradient(const tws_network *network, uint32_t value) {
  return value != TWS_NONE && !network->values[value].constant;
}

/* Returns the number of matrix products of a module's backward pass, each of which is as large as one of its forward
 * pass: for a layer with a weight, the gradients of its input and of its weight; for attention, the gradients of both
 * factors of its products. */
static int backward_products(const tws_network *network, const tws_module *m) {
  switch (m->type) {
    case TWS_MODULE_ATTENTION:
    case TWS_MODULE_CROSS_ATTENTION:
    case TWS_MODULE_DISENTANGLED:
      return needs_gradient(network, m->out[0]) ? 2 : 0;
    case TWS_MODULE_LOW_RANK:
      return needs_gradient(network, m->in[1]) + is_trained(network, m, m->param[0]);
    default:
      return needs_gradient(network, m->in[0]) + is_trained(network, m, m->param[0]);
  }
}

double tws_network_training_flops_per_token(const tws_network *network, int64_t seq, int64_t target,
                                            int causal_halved) {
  const lengths of = {seq, target};
  double flops = 0;
  for (uint32_t i = 0; i < network->module_count; i++) {
    const tws_module *m = &network->modules[i];
    const double forward = module_flops(network, m, of, causal_halved);
    if (forward > 0) flops += (1 + backward_products(network, m)) * forward;
  }
  return flops;
}
