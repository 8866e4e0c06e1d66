/* A micro-batch as a list of module visits. The forward pass visits every module once; the backward pass visits them in
 * reverse, and before each one the values it needs that were not kept are made again, from whatever is nearest. What is
 * kept is the recomputation policy:
 *   none       everything that a backward kernel reads
 *   full       only what enters a transformer layer (Chen et al. 2016, one checkpoint a layer)
 *   selective  all but the outputs of normalisations and activation functions, which cost bytes and no matrix product
 */
#include "plan/lower.h"

static uint32_t push(tws_lower *l, uint32_t module, tws_phase phase) {
  tws_visit_list *list = &l->chunk->visits;
  if (tws_reserve(&list->items, &list->capacity, list->count + 1u, sizeof *list->items)) {
    tws_builder_fail(&l->b, TWS_MEMORY, "no memory");
    return 0;
  }
  list->items[list->count] = (tws_visit){.module = module, .phase = (uint8_t)phase};
  return list->count++;
}

static void decide_kept(tws_lower *l) {
  const tws_network *network = l->network;
  for (uint32_t v = 0; v < network->value_count; v++) {
    const tws_module *producer = &network->modules[network->values[v].producer];
    int keep = 1;
    if (producer->layer >= 0 && l->config->recompute == TWS_RECOMPUTE_FULL) keep = 0;
    if (producer->layer >= 0 && l->config->recompute == TWS_RECOMPUTE_SELECTIVE) {
      keep =
          producer->type != TWS_MODULE_NORM && producer->type != TWS_MODULE_GELU && producer->type != TWS_MODULE_SWIGLU;
    }
    l->kept[v] = (uint8_t)keep;
  }
  for (uint32_t m = 0; m < network->module_count; m++) { /* what crosses from one layer to the next is a checkpoint */
    for (int i = 0; i < 2; i++) {
      uint32_t v = network->modules[m].in[i];
      if (v == TWS_NONE) continue;
      if (network->modules[network->values[v].producer].layer != network->modules[m].layer) l->kept[v] = 1;
    }
  }
}

/* Values that a module's backward kernels read (models/network/network.h: "saved for backward"). */
static int needed_values(const tws_module *m, uint32_t needed[3]) {
  int n = 0;
  switch (m->type) {
    case TWS_MODULE_NORM:
      needed[n++] = m->in[0];
      needed[n++] = m->out[1];
      break;
    case TWS_MODULE_LINEAR:
    case TWS_MODULE_GELU:
    case TWS_MODULE_SWIGLU:
      needed[n++] = m->in[0];
      break;
    case TWS_MODULE_ATTENTION:
      needed[n++] = m->in[0];
      needed[n++] = m->out[0];
      needed[n++] = m->out[1];
      break;
    default:
      break;
  }
  return n;
}

static int in_place_input(const tws_module *m, uint32_t *value) {
  if (m->type == TWS_MODULE_ROPE || m->type == TWS_MODULE_LOSS)
    *value = m->in[0];
  else if (m->type == TWS_MODULE_ADD)
    *value = m->in[1];
  else
    return 0;
  return 1;
}

/* Make `value` again; recursion depth is bounded by the modules of one layer. */
static void ensure(tws_lower *l, uint8_t *have, uint32_t value) {
  if (value == TWS_NONE || have[value] || l->b.failed != TWS_OK) return;
  uint32_t index = l->network->values[value].producer, consumed;
  const tws_module *m = &l->network->modules[index];
  for (int i = 0; i < 2; i++) ensure(l, have, m->in[i]);
  push(l, index, TWS_PHASE_RECOMPUTE);
  for (int i = 0; i < 2; i++) {
    if (m->out[i] != TWS_NONE) have[m->out[i]] = 1;
  }
  if (in_place_input(m, &consumed)) have[consumed] = 0;
}

tws_code tws_lower_visits(tws_lower *l, tws_chunk *chunk) {
  const tws_network *network = l->network;
  uint8_t *have = tws_arena_alloc(l->scratch, network->value_count + 1u, 1);
  if (!have) return tws_builder_fail(&l->b, TWS_MEMORY, "no memory");
  l->chunk = chunk;
  decide_kept(l);
  push(l, TWS_NONE, TWS_PHASE_FORWARD);
  for (uint32_t m = chunk->first; m < chunk->end; m++) push(l, m, TWS_PHASE_FORWARD);
  chunk->forward_visits = chunk->visits.count;
  for (uint32_t v = 0; v < network->value_count; v++) have[v] = l->kept[v];
  for (uint32_t m = chunk->first; m < chunk->end; m++) {
    uint32_t consumed;
    if (in_place_input(&network->modules[m], &consumed)) have[consumed] = 0;
  }
  push(l, TWS_NONE, TWS_PHASE_BACKWARD);
  for (uint32_t m = chunk->end; m-- > chunk->first;) {
    uint32_t needed[3];
    int n = needed_values(&network->modules[m], needed);
    for (int i = 0; i < n; i++) ensure(l, have, needed[i]);
    push(l, m, TWS_PHASE_BACKWARD);
  }
  return l->b.failed;
}
