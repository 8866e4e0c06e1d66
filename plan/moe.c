/* Lowers routers, which assign tokens to the slots of experts. Each rank routes its own tokens, and an expert has
 * separate slots for the tokens of each rank, so that which tokens are dropped does not depend on which rank has which
 * experts. */
#include "base/number.h"
#include "plan/lower.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "models/routing.h"
#include "plan/zero.h"

static int divides_experts(const tws_network *network, int ranks, int64_t *experts) {
  for (uint32_t p = 0; p < network->param_count; p++) {
    *experts = network->params[p].experts;
    if (*experts % ranks != 0) return 0;
  }
  return 1;
}

tws_code tws_expert_parallel_check(const tws_network *network, int ranks, tws_error *err) {
  int64_t experts, other;
  char hint[96];
  if (!tws_network_has_experts(network))
    return tws_fail(err, TWS_UNSUPPORTED,
                    "leave out --ep (twinspeed.expert_parallel_size), or choose a model of experts",
                    "expert parallelism over %d ranks: the model has no experts", ranks);
  if (divides_experts(network, ranks, &experts)) return TWS_OK;
  int below = ranks - 1;
  while (!divides_experts(network, below, &other)) below--;
  snprintf(hint, sizeof hint, "the nearest smaller degree that is legal for this model is %d", below);
  return tws_fail(err, TWS_INVALID, hint, "expert parallelism over %d ranks does not divide a layer's %lld experts",
                  ranks, (long long)experts);
}

/* Returns 1 if tensor-parallel ranks route different tokens. */
static int splits_tokens(const tws_lower *l, const tws_module *m) {
  return l->local.values[m->in[0]].placement.on[TWS_AXIS_MODEL] == TWS_PLACED_TOKENS;
}

/* Writes the arguments of a router's random numbers, which depend on the positions of its tokens in the global
 * batch. */
static void random_arguments(const tws_lower *l, const tws_module *m, tws_arguments *arguments) {
  const int64_t tokens = (int64_t)tws_value_rows(l, m->in[0]), whole = l->config->sequence_length;
  const uint64_t seed = (uint64_t)l->config->seed * 1000003u + l->b.module;
  const tws_position *position = &l->sharding.position;
  int64_t part = position->index[TWS_AXIS_SEQUENCE];
  if (splits_tokens(l, m)) part = part * position->ranks[TWS_AXIS_MODEL] + position->index[TWS_AXIS_MODEL];
  arguments->a[0] = (double)(seed & ((UINT64_C(1) << 53) - 1));
  arguments->a[1] = (double)(tws_first_sample(l) * whole + part * tokens);
}

/* Returns the weight of one micro-batch of one rank in the mean over the global batch. */
static double share_of(const tws_lower *l) {
  return 1.0 / ((double)l->config->accumulation_steps * l->zero.ranks);
}

/* Returns the operand of the metrics that count the routes to a router's experts. */
static tws_operand routed(const tws_lower *l, const tws_module *m, uint32_t access) {
  uint64_t first;
  tws_routers(l->b.plan->network, tws_local_of(l, m)->origin, &first);
  return (tws_operand){l->b.plan->metrics, access, TWS_METRIC_COUNT + first, (uint64_t)m->routing->experts};
}

/* Emits the router's kernels. Each tensor-parallel rank counts its own share of the routes. Recomputation does not
 * count routes again, and an evaluation draws no noise. */
void tws_router_forward(tws_lower *l, const tws_module *m) {
  tws_work work = tws_module_work(l, m, TWS_KERNEL_ROUTER, 0);
  const int counts = l->b.phase == TWS_PHASE_FORWARD;
  const double share = share_of(l) / l->sharding.position.ranks[TWS_AXIS_MODEL];
  tws_arguments arguments = {{0}};
  uint64_t all;
  /* the share of dropped routes is a mean over all routers */
  const uint32_t routers = tws_routers(l->b.plan->network, TWS_NONE, &all);
  if (l->extent.evaluates) {
    if (work.f[0] == TWS_KEEPS_RANDOM) work.f[0] = TWS_KEEPS_FIRST;
    work.f[3] = 0;
  }
  const int draws = work.f[0] == TWS_KEEPS_RANDOM || work.f[3] > 0;
  if (draws) random_arguments(l, m, &arguments);
  arguments.a[2] = counts ? m->routing->auxiliary * share : 0;
  arguments.a[3] = counts ? share / ((double)work.d[0] * (double)work.d[2] * routers) : 0;
  arguments.a[4] = counts ? 1.0 / (splits_tokens(l, m) ? 1 : l->sharding.position.ranks[TWS_AXIS_MODEL]) : 0;
  arguments.a[5] = counts ? m->routing->z * share : 0;
  tws_operand operands[10] = {tws_value_read(l, m->in[0])};
  int count = 7;
  for (int i = 0; i < 4; i++) operands[1 + i] = tws_value_write(l, m->out[i]);
  operands[5] = tws_update(l->b.plan->metrics, TWS_METRIC_AUXILIARY, 2);
  operands[6] = routed(l, m, TWS_READ_WRITE);
  if (draws) operands[count++] = tws_hyper_of(l->b.plan->hyper, 0);
  if (m->running != TWS_NONE) {
    work.flags |= TWS_BIAS;
    operands[count++] = tws_running_operand(l, m, TWS_READ);
  }
  if (work.flags & TWS_Z_LOSS) operands[count++] = tws_value_write(l, m->out[4]);
  tws_lower_compute_with(l, &work, &arguments, operands, count);
}

/* Emits the gradient kernels of a router. Ranks that route different tokens add up their gradients. */
void tws_router_backward(tws_lower *l, const tws_module *m) {
  int accumulate;
  tws_work work = tws_module_work(l, m, TWS_KERNEL_ROUTER_GRAD, 0);
  const double parts = splits_tokens(l, m) ? l->sharding.position.ranks[TWS_AXIS_MODEL] : 1;
  const double share = share_of(l) * tws_gradient_weight(l) / parts;
  const tws_arguments arguments = {{m->routing->auxiliary * share, m->routing->z * share}};
  tws_operand dlogits = tws_value_gradient_out(l, m->in[0], &accumulate);
  if (accumulate) dlogits = tws_lower_scratch(l, "gradient to add", l->config->dtype, dlogits.count);
  tws_operand operands[7] = {tws_value_gradient(l, m->out[2]), tws_value_read(l, m->out[0]),
                             tws_value_read(l, m->out[1]), tws_value_read(l, m->out[3]), dlogits};
  int count = tws_lower_scaled(l, &work, operands, 5);
  if (work.flags & TWS_Z_LOSS) operands[count++] = tws_value_read(l, m->out[4]);
  tws_lower_compute_with(l, &work, &arguments, operands, count);
  if (accumulate) tws_lower_add_gradient(l, m->in[0], dlogits);
}

/* Emits the update of the biases that balance the experts, from the routes of all ranks; all ranks have equal biases
 * before and after the update. */
void tws_router_balance(tws_lower *l) {
  if (l->config->expert_bias_rate == 0) return;
  for (int c = 0; c < l->pipeline.chunk_count; c++)
    for (uint32_t i = l->pipeline.chunks[c].first; i < l->pipeline.chunks[c].end; i++) {
      const tws_module *m = &l->network->modules[i];
      if (m->type != TWS_MODULE_ROUTER || m->running == TWS_NONE) continue;
      tws_work work = tws_kernel_work(TWS_KERNEL_BALANCE, TWS_F32, 0);
      work.d[0] = m->routing->experts;
      work.f[0] = l->config->expert_bias_rate;
      const tws_operand operands[2] = {tws_running_operand(l, m, TWS_READ_WRITE), routed(l, m, TWS_READ)};
      tws_builder_compute(&l->b, TWS_STREAM_COMPUTE, &work, operands, 2);
    }
}

tws_code tws_expert_bias_check(const tws_network *network, tws_error *err) {
  for (uint32_t m = 0; m < network->module_count; m++)
    if (network->modules[m].type == TWS_MODULE_ROUTER && network->modules[m].routing->biased) return TWS_OK;
  return tws_fail(err, TWS_UNSUPPORTED,
                  "leave it out, and balance experts by a loss (router_aux_loss_coef), or choose a model whose routers "
                  "have biases: deepseek_v3",
                  "twinspeed.expert_bias_rate: the routers of %s have no biases", network->name);
}
