/* Where samples of a body have parameters and gradients. */
#include "plan/lower.h"

/* Tiles of a layer's weights count behind all that its modules have. */
static void place_tiles(const tws_lower *l, tws_gradient_place *at, uint32_t first, uint32_t module, uint32_t end) {
  const tws_module *modules = l->network->modules;
  const tws_weight_tiles *own = &l->weight_tiles[modules[module].param[0]];
  uint32_t which = (end - first) * TWS_MODULE_PARAMS;
  if (!own->count) return;
  for (uint32_t m = first; m < module; m++)
    if (modules[m].param[0] != TWS_NONE) which += l->weight_tiles[modules[m].param[0]].count;
  for (uint32_t i = 0; i < own->count; i++) {
    at[own->first + i].layer = at[modules[module].param[0]].layer;
    at[own->first + i].which = which + i;
  }
}

/* The first module that uses a parameter is the last in a backward pass. */
const tws_gradient_place *tws_sample_place(tws_lower *l) {
  if (l->places) return l->places;
  tws_gradient_place *at = tws_lower_memory(l, l->network->param_count, sizeof *at);
  for (uint32_t p = 0; at && p < l->network->param_count; p++) at[p].layer = -1;
  for (int c = l->chunk_count; c-- > 0 && at;)
    for (uint32_t m = l->chunks[c].end, first, end = m; m-- > l->chunks[c].first;) {
      const int layer = l->sample->layer_of[l->local.modules[m].origin];
      if (l->sample->layer_of[l->local.modules[end - 1].origin] != layer) end = m + 1;
      for (first = m; first > 0 && l->sample->layer_of[l->local.modules[first - 1].origin] == layer;) first--;
      for (uint32_t i = 0; i < TWS_MODULE_PARAMS; i++) {
        const uint32_t p = l->network->modules[m].param[i];
        if (p == TWS_NONE) continue;
        at[p].layer = layer;
        at[p].which = (m - first) * TWS_MODULE_PARAMS + i;
      }
      if (l->weight_tiles && l->network->modules[m].param[0] != TWS_NONE) place_tiles(l, at, first, m, end);
    }
  return l->places = at;
}

tws_code tws_sample_gradients(tws_lower *l, tws_arena *arena, tws_gradient_list *out) {
  const uint32_t n = l->network->param_count;
  const tws_gradient_place *at = tws_sample_place(l);
  out->items = tws_arena_alloc_unset(arena, n + 1u, sizeof *out->items);
  if (!out->items) tws_builder_fail(&l->b, TWS_MEMORY, "no memory");
  if (l->b.failed != TWS_OK) return l->b.failed;
  for (uint32_t i = 0; i < n; i++) {
    const uint32_t p = (uint32_t)l->zero.order[i];
    if (!l->zero.uses[p] || tws_is_frozen(l, p)) continue;
    out->items[out->count] = at[p];
    out->items[out->count].first = l->zero.flat_offset[p];
    out->items[out->count++].elements = (uint64_t)tws_param_numel(&l->network->params[p]);
  }
  return TWS_OK;
}

static int is_moved(const tws_lower *l) {
  const int moves = !l->zero.flat_gradients || l->offload.param_tier != TWS_TIER_DEVICE;
  return l->wanted && !l->wanted->tail && moves && l->b.failed == TWS_OK;
}

void tws_sample_moved(tws_lower *l, uint32_t param, tws_operand where) {
  tws_plan_sample *s = l->sample;
  if (!is_moved(l)) return;
  const tws_gradient_place *at = tws_sample_place(l);
  if (!at || tws_reserve(&s->moved, &s->moved_capacity, s->moved_count + 1u, sizeof *s->moved)) {
    tws_builder_fail(&l->b, TWS_MEMORY, "no memory");
    return;
  }
  s->moved[s->moved_count++] =
      (tws_moved_place){where.buffer, where.offset, where.count, at[param].layer, at[param].which};
}

/* Of weights in few bits the codes: who reads these reads their scales. */
static tws_operand place_of(const tws_lower *l, uint32_t p) {
  const uint64_t count = (uint64_t)tws_param_numel(&l->network->params[p]), first = l->zero.flat_offset[p];
  tws_operand parts[TWS_QUANTIZED_PARTS];
  if (!tws_is_quantized(l, p)) return tws_read(l->b.plan->parameters, first, count);
  tws_quantized_stored(&l->b.plan->quantized, first, count, parts);
  return parts[0];
}

/* Those of one buffer after those of the other. */
void tws_sample_params(tws_lower *l) {
  for (int quantized = 0; quantized < 2; quantized++)
    for (uint32_t i = 0; i < l->network->param_count && l->zero.stage != 3 && is_moved(l); i++) {
      const uint32_t p = (uint32_t)l->zero.order[i];
      if (l->zero.uses[p] && tws_is_quantized(l, p) == quantized) tws_sample_moved(l, p, place_of(l, p));
    }
}

static void add_event(tws_lower *l, int layer, uint32_t which) {
  tws_plan_sample *s = l->sample;
  if (tws_reserve(&s->events, &s->event_capacity, s->event_count + 1u, sizeof *s->events)) {
    tws_builder_fail(&l->b, TWS_MEMORY, "no memory");
    return;
  }
  s->events[s->event_count++] = (tws_sample_event){l->b.plan->op_count, layer, which};
}

void tws_sample_visit(tws_lower *l, const tws_visit *visit) {
  if (!is_moved(l)) return;
  const int root = visit->module == TWS_NONE;
  add_event(l, root ? -1 : l->sample->layer_of[l->local.modules[visit->module].origin], TWS_NONE);
}

void tws_sample_contributed(tws_lower *l, uint32_t param) {
  const tws_gradient_place *at = is_moved(l) && !l->zero.flat_gradients ? tws_sample_place(l) : NULL;
  if (at) add_event(l, at[param].layer, at[param].which);
}
