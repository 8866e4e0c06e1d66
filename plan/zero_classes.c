/* Determines the ZeRO classes: sets of parameters that are replicated on the same ranks and that are trained or frozen
 * alike, in one parameter group. */
#include "plan/eight_bit.h"
#include "plan/turns.h"
#include "plan/zero.h"

/* Returns the axes along which a parameter is replicated, a subset of `replicas`. Its gradient is summed over the
 * ranks along these axes. */
static tws_axes axes_of(const tws_lower *l, uint32_t p, tws_axes replicas) {
  const tws_topology *t = &l->b.plan->topology;
  tws_axes copied = 0;
  int own = 0;
  if (!l->network->params[p].own_along) return replicas;
  for (int i = 0; i < t->axes; i++) {
    if (!tws_axes_cover(replicas, t->axis[i])) continue;
    if (l->local.params[p].on[t->axis[i]] == TWS_PLACED_EXPERTS)
      own = 1;
    else
      copied |= 1u << t->axis[i];
  }
  return own ? copied : replicas;
}

static int is_class(const tws_zero_class *c, const tws_zero_class *wanted) {
  return c->axes == wanted->axes && c->frozen == wanted->frozen && c->param_group == wanted->param_group &&
         c->eight_bits == wanted->eight_bits && c->turn == wanted->turn;
}

/* Returns the index of the class with these axes, frozen, param_group, eight_bits and turn, which is added if there is
 * none. */
static uint8_t find_class(tws_lower *l, tws_zero_class wanted) {
  tws_zero *z = &l->zero;
  const tws_plan *plan = l->b.plan;
  uint8_t found = 0;
  while (found < z->class_count && !is_class(&z->classes[found], &wanted)) found++;
  if (found < z->class_count) return found;
  if (z->class_count == TWS_ZERO_CLASSES) {
    tws_builder_fail(&l->b, TWS_UNSUPPORTED, "too many sets of ranks hold copies of parameters");
    return 0;
  }
  wanted.group = tws_lower_group(l, wanted.axes);
  wanted.ranks = tws_topology_size(&plan->topology, wanted.axes);
  wanted.index = tws_topology_index(&plan->topology, plan->rank, wanted.axes);
  z->classes[z->class_count++] = wanted;
  return found;
}

/* Classes in their order in the flat buffers. Parameters with states of 8 bits come first, since these states have
 * entries of their own. Muon's come after those of other trained parameters, which alone have a second state. */
enum { ORDER_EIGHT_BITS, ORDER_OTHERS, ORDER_MUON, ORDER_FROZEN, ORDER_QUANTIZED, ORDERS };

static int order_of(const tws_lower *l, uint32_t p) {
  if (tws_is_frozen(l, p)) return tws_is_quantized(l, p) ? ORDER_QUANTIZED : ORDER_FROZEN;
  if (tws_has_eight_bits(l, p)) return ORDER_EIGHT_BITS;
  return tws_config_is_muon_group(l->config, l->network->params[p].param_group) ? ORDER_MUON : ORDER_OTHERS;
}

/* Makes the ZeRO classes. The class that is replicated on all ranks always exists and is the first, so that all ranks
 * have the classes in one order. */
void tws_zero_make_classes(tws_lower *l) {
  tws_zero *z = &l->zero;
  z->classes = tws_arena_alloc(l->scratch, TWS_ZERO_CLASSES, sizeof *z->classes);
  z->class_of = tws_arena_alloc(l->scratch, l->network->param_count + 1u, 1);
  if (!z->classes || !z->class_of) {
    tws_builder_fail(&l->b, TWS_MEMORY, "no memory");
    return;
  }
  const tws_axes replicas = tws_topology_partitions(&l->b.plan->topology);
  find_class(l, (tws_zero_class){.axes = replicas,
                                 .param_group = tws_config_is_muon_group(l->config, 0) ? 1 : 0,
                                 .eight_bits = tws_optimizer_of(l->config->optimizer)->eight_bits});
  for (int order = 0, left = (int)l->network->param_count; order < ORDERS; order++) {
    for (uint32_t p = 0; p < l->network->param_count && left > 0; p++) {
      if (order_of(l, p) != order) continue;
      const int frozen = order <= ORDER_MUON ? 0 : order - ORDER_MUON;
      z->class_of[p] = find_class(l, (tws_zero_class){.axes = axes_of(l, p, replicas),
                                                      .frozen = frozen,
                                                      .param_group = frozen ? 0 : l->network->params[p].param_group,
                                                      .eight_bits = order == ORDER_EIGHT_BITS,
                                                      .turn = frozen ? 0 : l->network->params[p].turn});
      left--;
    }
    if (order == ORDER_MUON) z->trained_count = z->class_count;
  }
  tws_groups_begin(l);
}

tws_zero_part tws_zero_part_of(const tws_lower *l, const tws_zero_class *c, uint32_t param) {
  const tws_zero *z = &l->zero;
  const uint64_t begin = tws_zero_kept_first(z, c), end = begin + c->partition, start = z->flat_offset[param];
  /* skipped: number of elements of the parameter before the elements that the rank stores; stored: number of these */
  uint64_t skipped = 0, stored = tws_zero_numel(l, param);
  if (z->stage == 3) {
    const uint64_t part = (uint64_t)z->part[param], all = stored;
    skipped = part * (uint64_t)c->index;
    stored = skipped >= all ? 0 : all - skipped < part ? all - skipped : part;
  }
  const uint64_t from = start > begin ? start : begin, to = start + stored < end ? start + stored : end;
  if (from >= to) return (tws_zero_part){0};
  return (tws_zero_part){
      .count = to - from, .first = skipped + from - start, .at = from, .kept = c->kept + from - begin};
}

static void kept_runs_of(tws_lower *l, const tws_zero_class *c, tws_zero_kind kind_of, tws_zero_run run) {
  const tws_zero *z = &l->zero;
  /* this rank updates [begin, end) of the stored range; padding belongs to the last range */
  const uint64_t begin = tws_zero_kept_first(z, c), end = begin + c->partition;
  const uint64_t base = z->flat_gradients ? 0 : begin - c->kept;
  uint64_t first = begin;
  int kind = -1;
  for (uint32_t i = c->first; i < c->end; i++) {
    uint32_t p = (uint32_t)z->order[i];
    uint64_t size = z->stage == 3 ? (uint64_t)z->part[p] : tws_zero_numel(l, p);
    int next = kind_of(l, p);
    if (!size || z->flat_offset[p] + size <= begin || z->flat_offset[p] >= end || next == kind) continue;
    uint64_t at = z->flat_offset[p] > begin ? z->flat_offset[p] : begin;
    if (kind >= 0 && at > first) run(l, kind, first - base, at - first);
    kind = next;
    first = at;
  }
  if (kind >= 0 && end > first) run(l, kind, first - base, end - first);
}

void tws_zero_kept_runs(tws_lower *l, tws_zero_kind kind_of, tws_zero_run run) {
  for (uint32_t k = 0; k < l->zero.trained_count; k++)
    if (tws_zero_has_turn(l, &l->zero.classes[k])) kept_runs_of(l, &l->zero.classes[k], kind_of, run);
}
