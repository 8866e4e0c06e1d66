/* Activation checkpointing: chooses the values of a layer that are kept for the backward pass; the others are
 * recomputed from these.
 *   none        everything that a backward kernel reads is kept
 *   full        only the input of each transformer layer is kept (Chen et al. 2016, one checkpoint per layer)
 *   selective   all but the outputs of normalisations and activation functions, which cost bytes and no matrix product
 *   operations  all but the outputs of the kinds of operations that a list names. A share of the matrix products is
 *               kept; a half is every second product of a layer, as PyTorch's selective activation checkpointing counts
 *               them (torchtitan's "op"). A module with several products (queries, keys and values; gate and up) keeps
 *               them in that share of the layers. An MLP is two products and the activation function between them.
 * Recomputation applies to every layer, or to every n-th layer. */
#include <math.h>

#include "plan/lower.h"

static int operation_of(const tws_module *m) {
  switch (m->type) {
    case TWS_MODULE_NORM:
    case TWS_MODULE_HEADS_NORM:
    case TWS_MODULE_BATCH_NORM:
      return TWS_RECOMPUTED_NORM;
    case TWS_MODULE_ADD:
      return TWS_RECOMPUTED_SUM;
    case TWS_MODULE_LINEAR:
    case TWS_MODULE_EXPERT_LINEAR:
      return TWS_RECOMPUTED_PRODUCT;
    case TWS_MODULE_ATTENTION:
    case TWS_MODULE_CROSS_ATTENTION:
    case TWS_MODULE_DISENTANGLED:
      return TWS_RECOMPUTED_ATTENTION;
    default:
      return tws_module_row_of(m->type)->pointwise ? TWS_RECOMPUTED_ACTIVATION : -1;
  }
}

/* Returns the number of matrix products that a module computes at once. */
static int products_of(const tws_lower *l, uint32_t module) {
  const tws_module *m = &l->network->modules[module];
  int parts = 0;
  if (operation_of(m) != TWS_RECOMPUTED_PRODUCT) return 0;
  for (int i = 0; i < 3 && m->param[0] != TWS_NONE; i++) parts += l->network->params[m->param[0]].fused[i] > 0;
  return parts > 0 ? parts : 1;
}

/* Returns 1 if the outputs of a module's products are kept. The n-th product of a layer (from 1 on) is kept if n times
 * the budget (the share of products to keep), rounded up, is larger than n - 1 times the budget, rounded up. */
static int keeps_product(const tws_lower *l, uint32_t module, int before) {
  const double budget = l->config->recompute_budget;
  const int parts = products_of(l, module), layer = l->network->modules[module].layer;
  int kept = 0;
  for (int n = before + 1; n <= before + parts; n++) kept += ceil(n * budget - 1e-9) > ceil((n - 1) * budget - 1e-9);
  return (layer + 1) * kept / parts > layer * kept / parts;
}

static int is_beside(const tws_network *network, uint32_t module, int next, int pointwise) {
  const uint32_t other = next ? module + 1 : module - 1;
  if ((next ? other >= network->module_count : module == 0)) return 0;
  const tws_module *m = &network->modules[other];
  return m->layer == network->modules[module].layer &&
         (pointwise ? tws_module_row_of(m->type)->pointwise : operation_of(m) == TWS_RECOMPUTED_PRODUCT);
}

/* Returns 1 if a module belongs to an MLP: two matrix products and the activation function between them. */
static int is_of_mlp(const tws_network *network, uint32_t module) {
  const tws_module *m = &network->modules[module];
  if (operation_of(m) == TWS_RECOMPUTED_PRODUCT)
    return is_beside(network, module, 0, 1) || is_beside(network, module, 1, 1);
  return tws_module_row_of(m->type)->pointwise && is_beside(network, module, 0, 0) && is_beside(network, module, 1, 0);
}

static int makes_mlps_again(const tws_config *c) {
  return c->recompute == TWS_RECOMPUTE_OPERATIONS && tws_config_recomputes_blocks(c);
}

/* Returns 1 if the output of a layer's module is stored for the backward pass and not recomputed; before: number of the
 * layer's matrix products before the module. */
static int keeps(const tws_lower *l, uint32_t module, int before) {
  const tws_module *m = &l->network->modules[module];
  const tws_config *c = l->config;
  const int operation = operation_of(m);
  if (m->layer < 0 || (c->recompute_every > 1 && m->layer % c->recompute_every != 0)) return 1;
  switch (c->recompute) {
    case TWS_RECOMPUTE_FULL:
      return 0;
    case TWS_RECOMPUTE_SELECTIVE:
      return !tws_module_row_of(m->type)->cheap;
    case TWS_RECOMPUTE_OPERATIONS:
      if (makes_mlps_again(c) && is_of_mlp(l->network, module)) return 0;
      if (operation < 0 || !(tws_recompute_list(c->recompute_operations) >> operation & 1)) return 1;
      return operation == TWS_RECOMPUTED_PRODUCT && keeps_product(l, module, before);
    default:
      return 1;
  }
}

/* The recomputed segment of an MLP ends with the MLP's second product, which follows the activation function. */
uint32_t tws_recompute_block(const tws_lower *l, uint32_t last) {
  const tws_network *network = l->network;
  const int layer = network->modules[last].layer;
  if (!tws_config_recomputes_blocks(l->config) || layer < 0 || keeps(l, last, 0)) return TWS_NONE;
  if (makes_mlps_again(l->config))
    return operation_of(&network->modules[last]) == TWS_RECOMPUTED_PRODUCT && is_beside(network, last, 0, 1) ? last
                                                                                                             : TWS_NONE;
  if (last + 1 < network->module_count && network->modules[last + 1].layer == layer) return TWS_NONE;
  while (last > 0 && network->modules[last - 1].layer == layer) last--;
  return last;
}

/* Returns 1 for a module that updates its input in place and saves nothing else for backward; its output is then kept
 * if its input is. */
static int goes_on_in_place(const tws_lower *l, uint32_t module) {
  const tws_module *m = &l->network->modules[module];
  return l->local.modules[module].forward == TWS_NO_COMMUNICATION ||
         (l->config->recompute == TWS_RECOMPUTE_OPERATIONS && l->memory[m->type].taken == 0);
}

static void decide_outputs(tws_lower *l) {
  const tws_network *network = l->network;
  int layer = -1, before = 0;
  for (uint32_t m = 0; m < network->module_count; m++) {
    const tws_module *module = &network->modules[m];
    if (module->layer != layer) before = 0;
    layer = module->layer;
    int keep = keeps(l, m, before);
    before += products_of(l, m);
    if (goes_on_in_place(l, m) && module->in[0] != TWS_NONE) keep = l->kept[module->in[0]] != TWS_NOT_KEPT;
    for (int i = 0; i < TWS_MODULE_OUTS; i++)
      if (module->out[i] != TWS_NONE) l->kept[module->out[i]] = keep ? TWS_KEPT : TWS_NOT_KEPT;
  }
}

tws_code tws_recompute_begin(tws_lower *l) {
  l->kept = tws_lower_memory(l, l->network->value_count, 1);
  return l->b.failed;
}

void tws_recompute_decide(tws_lower *l) {
  const tws_network *network = l->network;
  if (l->extent.evaluates) return; /* an evaluation keeps no value */
  decide_outputs(l);
  /* a value that another layer than its own reads is a checkpoint */
  for (uint32_t m = 0; m < network->module_count; m++) {
    for (int i = 0; i < TWS_MODULE_INS; i++) {
      uint32_t v = network->modules[m].in[i];
      if (v == TWS_NONE) continue;
      int layer = network->modules[m].layer;
      if (network->modules[network->values[v].producer].layer == layer) continue;
      l->kept[v] = l->kept[v] == TWS_KEPT_CHECKPOINT || layer >= 0 ? TWS_KEPT_CHECKPOINT : TWS_KEPT;
    }
  }
  /* gathered tokens are not kept, since backward gathers them again; neither are values in tiles, except the softmax
   * sums (lse) of chunked attention: their entry determines whether the results of attention are stored on the host
   * until backward */
  for (uint32_t v = 0; v < network->value_count; v++) {
    const tws_module *by = &network->modules[network->values[v].producer];
    if (l->chunked && by->type == TWS_MODULE_ATTENTION && v == by->out[1]) continue;
    if (l->tiled[v] || l->local.modules[network->values[v].producer].forward == TWS_COLLECTIVE_ALL_GATHER)
      l->kept[v] = 0;
  }
}
