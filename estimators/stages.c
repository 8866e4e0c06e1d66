/* Computes the memory and the balance of a pipeline's stages. */
#include <string.h>

#include "estimators/estimators.h"

static double param_elements(const tws_plan *plan, uint32_t param) {
  if (!plan->slices) return (double)tws_param_numel(&plan->network->params[param]);
  const tws_param_slice *slice = &plan->slices[param];
  return (double)(tws_param_slice_rows(slice) * slice->columns);
}

double tws_stage_bytes(const tws_stage_estimate *stage) {
  double bytes = 0;
  for (int t = 0; t < TWS_TIER_COUNT; t++) bytes += (double)stage->arena_bytes[t];
  return bytes;
}

/* Reads a stage from its plan: counts the parameters and the layers of the modules that the plan computes, each
 * once. */
tws_code tws_stage_read(const tws_plan *plan, tws_stage_estimate *stage, tws_error *err) {
  const tws_network *network = plan->network;
  memset(stage, 0, sizeof *stage);
  stage->stage = plan->stage;
  stage->rank = plan->rank;
  for (int t = 0; t < TWS_TIER_COUNT; t++) stage->arena_bytes[t] = tws_plan_bytes(plan, (tws_tier)t);
  stage->live_bytes = stage->arena_bytes[TWS_TIER_DEVICE];
  if (!network) return TWS_OK; /* a plan built by hand, without a network */
  uint8_t *runs = tws_calloc(network->module_count + 1u, 1), *held = tws_calloc(network->param_count + 1u, 1);
  if (!runs || !held) {
    tws_free(runs);
    tws_free(held);
    return tws_fail(err, TWS_MEMORY, NULL, "no memory for the stages");
  }
  for (uint32_t op = 0; op < plan->op_count; op++) {
    const tws_op *o = &plan->ops[op];
    if (o->kind == TWS_OP_COMPUTE && o->module < network->module_count) runs[o->module] = 1;
  }
  int64_t layer = -1; /* index of the layer that was counted last; the modules of a layer are adjacent */
  for (uint32_t m = 0; m < network->module_count; m++) {
    const tws_module *module = &network->modules[m];
    if (!runs[m]) continue;
    stage->layers += module->layer >= 0 && module->layer != layer;
    if (module->layer >= 0) layer = module->layer;
    for (int i = 0; i < TWS_MODULE_PARAMS; i++) {
      uint32_t param = module->param[i];
      if (param == TWS_NONE || held[param]) continue;
      held[param] = 1;
      stage->parameters += param_elements(plan, param);
    }
  }
  tws_free(runs);
  tws_free(held);
  return TWS_OK;
}

tws_stage_balance tws_stage_compare(const tws_stage_estimate *stages, int count) {
  tws_stage_balance b = {.compute_imbalance = 1, .memory_imbalance = 1};
  double most = 0, computing = 0, memory = 0;
  for (int i = 0; i < count; i++) {
    const tws_path_result *path = &stages[i].path;
    double seconds = path->step_s - path->exposed_s - path->loading_s;
    if (path->step_s > 0) b.bubble += path->bubble_s / path->step_s / count;
    computing += seconds / count;
    memory += (double)stages[i].arena_bytes[TWS_TIER_DEVICE] / count;
    if (seconds > most) most = seconds;
    if (stages[i].arena_bytes[TWS_TIER_DEVICE] > stages[b.largest].arena_bytes[TWS_TIER_DEVICE]) b.largest = i;
  }
  if (computing > 0) b.compute_imbalance = most / computing;
  if (memory > 0) b.memory_imbalance = (double)stages[b.largest].arena_bytes[TWS_TIER_DEVICE] / memory;
  return b;
}
