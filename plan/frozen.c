/* Frozen parameters have no gradients, no reductions and no optimizer states; only their values are kept between steps.
 * The gradient of a value is computed only if the gradient of a trained parameter depends on it. */
#include <string.h>

#include "plan/lower.h"
#include "plan/turns.h"

int tws_module_goes_backward(const tws_lower *l, const tws_module *m) {
  for (int i = 0; i < TWS_MODULE_OUTS; i++)
    if (m->out[i] != TWS_NONE && l->needed[m->out[i]]) return 1;
  return 0;
}

/* Returns 1 if a value crosses between pipeline stages, which exchange the gradients of all such values. */
static int crosses_stages(const tws_lower *l) {
  return l->b.plan->position.ranks[TWS_AXIS_PIPE] > 1;
}

static uint32_t count_frozen(const tws_network *network) {
  uint32_t count = 0;
  for (uint32_t p = 0; p < network->param_count; p++) count += network->params[p].frozen != 0;
  return count;
}

tws_code tws_frozen_begin(tws_lower *l) {
  const uint32_t frozen = count_frozen(l->network);
  l->needed = tws_arena_alloc(l->scratch, l->network->value_count + 1u, 1);
  if (!l->needed) return tws_fail(l->b.err, TWS_MEMORY, NULL, "no memory for the plan");
  if (frozen > 0 && frozen == l->network->param_count && !l->extent.evaluates)
    return tws_fail(l->b.err, TWS_INVALID, "leave some of them out of twinspeed.frozen_parameters",
                    "all parameters are frozen: there is nothing to train");
  if ((frozen == 0 && tws_turns(l) == 1) || crosses_stages(l)) {
    memset(l->needed, 1, l->network->value_count);
    return TWS_OK;
  }
  tws_network_find_needed(l->network, l->needed);
  return TWS_OK;
}

tws_operand tws_discarded_gradient(tws_lower *l, uint32_t param) {
  return tws_lower_scratch(l, "unwanted gradient", l->zero.grad_dtype,
                           (uint64_t)tws_param_numel(&l->network->params[param]));
}
