/* Adds the modules of mixture-of-experts layers: routers, dispatch, experts and combination. */
#include "models/network/build.h"

#include <string.h>
#include "models/routing.h"

tws_routing tws_routing_like_deepspeed(int32_t experts, int32_t choices, double factor, int64_t least_slots,
                                       int random) {
  tws_routing r = {
      .experts = experts, .choices = choices, .by_choice = choices <= 2, .renormalizes = choices > 1, .scale = 1};
  if (choices > 2) r.keeps = TWS_KEEPS_PROBABLE;
  if (choices == 1 && random) r.keeps = TWS_KEEPS_RANDOM;
  if (choices == 2 && random) r.sampled = 2;
  r.slots = (tws_dim){.kind = TWS_DIM_CAPACITY, .parts = experts, .size = least_slots, .factor = factor * choices};
  return r;
}

static tws_module *with_routing(tws_network_builder *b, uint32_t module, const tws_routing *routing) {
  b->net->modules[module].routing = routing;
  return &b->net->modules[module];
}

tws_routes tws_build_router(tws_network_builder *b, int layer, const char *name, uint32_t logits,
                            const tws_routing *routing) {
  tws_routing *copy = tws_arena_alloc(b->net->arena, 1, sizeof *copy);
  const tws_routes none = {.routing = routing};
  b->failed |= copy == NULL;
  if (copy == NULL) return none;
  *copy = *routing;
  tws_routes r = {.routing = copy};
  const uint32_t module = tws_build_module(b, TWS_MODULE_ROUTER, layer, name);
  with_routing(b, module, r.routing)->in[0] = logits;
  b->net->modules[module].out_features = routing->experts;
  const tws_value like = b->net->values[logits];
  const tws_dim experts = {.kind = TWS_DIM_FIXED, .size = routing->experts};
  tws_build_value(b, module, 0, "probabilities", like.row, like.row_dims, routing->experts, TWS_VALUE_STATISTIC);
  r.routes = tws_build_value(b, module, 1, "routes", like.row, like.row_dims, routing->choices, TWS_VALUE_INDEX);
  r.weights = tws_build_value(b, module, 2, "weights", like.row, like.row_dims, routing->choices, TWS_VALUE_STATISTIC);
  r.counts = tws_build_value(b, module, 3, "counts", &experts, 1, TWS_EXPERT_COUNTS, TWS_VALUE_INDEX);
  if (routing->z > 0) tws_build_value(b, module, 4, "sums", like.row, like.row_dims, 1, TWS_VALUE_STATISTIC);
  if (routing->biased) {
    b->net->modules[module].running = b->net->running_count++;
    b->net->running[b->net->modules[module].running] =
        (tws_running){.name = tws_build_name(b, "%s.biases", name), .rows = 1, .columns = routing->experts};
  }
  return r;
}

/* Adds a value with a row for each slot of all experts. */
static uint32_t add_slots(tws_network_builder *b, uint32_t module, const tws_routing *routing, int64_t width) {
  const tws_dim row[2] = {{.kind = TWS_DIM_FIXED, .size = routing->experts}, routing->slots};
  b->net->modules[module].out_features = width;
  return tws_build_value(b, module, 0, "slots", row, 2, width, TWS_VALUE_ACTIVATION);
}

uint32_t tws_build_dispatch(tws_network_builder *b, int layer, const char *name, uint32_t x, const tws_routes *to) {
  const uint32_t module = tws_build_module(b, TWS_MODULE_DISPATCH, layer, name);
  tws_module *m = with_routing(b, module, to->routing);
  m->in[0] = x;
  m->in[1] = to->routes;
  m->in[2] = to->counts;
  return add_slots(b, module, to->routing, b->net->values[x].per_row);
}

uint32_t tws_build_expert_linear(tws_network_builder *b, int layer, const char *name, uint32_t slots,
                                 const tws_routes *of, int64_t out, float std, int bias, const int64_t *fused) {
  tws_network *net = b->net;
  const uint32_t module = tws_build_module(b, TWS_MODULE_EXPERT_LINEAR, layer, name);
  const int64_t experts = of->routing->experts, in = net->values[slots].per_row;
  tws_module *m = with_routing(b, module, of->routing);
  m->in[0] = slots;
  m->in[1] = of->counts;
  m->in_features = in;
  tws_build_param(b, module, 0, tws_build_name(b, "%s.weight", name), experts * out, in, (tws_init){std, 0});
  if (bias) tws_build_param(b, module, 1, tws_build_name(b, "%s.bias", name), experts, out, (tws_init){0, 0});
  for (int i = 0; i < 1 + bias; i++) {
    tws_param *p = &net->params[m->param[i]];
    p->experts = (int32_t)experts;
    if (fused != NULL) memcpy(p->fused, fused, sizeof p->fused);
  }
  return add_slots(b, module, of->routing, out);
}

uint32_t tws_build_gate(tws_network_builder *b, int layer, const char *name, uint32_t x, uint32_t gates, int second) {
  const uint32_t module = tws_build_module(b, TWS_MODULE_GATE, layer, name);
  const tws_value like = b->net->values[x];
  tws_module *m = &b->net->modules[module];
  m->in[0] = x;
  m->in[1] = gates;
  m->in_features = b->net->values[gates].per_row;
  m->out_features = like.per_row;
  m->second_gate = second;
  return tws_build_value(b, module, 0, "y", like.row, like.row_dims, like.per_row, TWS_VALUE_ACTIVATION);
}

uint32_t tws_build_combine(tws_network_builder *b, int layer, const char *name, uint32_t slots,
                           const tws_routes *from) {
  const uint32_t module = tws_build_module(b, TWS_MODULE_COMBINE, layer, name);
  const tws_value like = b->net->values[from->routes];
  tws_module *m = with_routing(b, module, from->routing);
  m->in[0] = slots;
  m->in[1] = from->routes;
  m->in[2] = from->weights;
  m->in[3] = from->counts;
  m->out_features = b->net->values[slots].per_row;
  return tws_build_value(b, module, 0, "y", like.row, like.row_dims, m->out_features, TWS_VALUE_ACTIVATION);
}
