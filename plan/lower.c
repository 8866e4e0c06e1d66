/* Scratch memory and communicators for all passes of the lowering. */
#include "plan/lower.h"

void *tws_lower_memory(tws_lower *l, size_t count, size_t bytes) {
  void *memory = tws_arena_alloc(l->scratch, count + 1, bytes);
  if (!memory) tws_builder_fail(&l->b, TWS_MEMORY, "no memory");
  return memory;
}

uint32_t tws_lower_add_group(tws_lower *l, tws_axes axes, const int *members, int count) {
  tws_plan *plan = l->b.plan;
  int *ranks = tws_arena_alloc(plan->arena, (size_t)count, sizeof *ranks), index = 0;
  if (!ranks) {
    tws_builder_fail(&l->b, TWS_MEMORY, "no memory");
    return TWS_NONE;
  }
  for (int i = 0; i < count; i++) {
    ranks[i] = members[i];
    if (members[i] == plan->rank) index = i;
  }
  plan->groups[plan->group_count] = (tws_group){.axes = axes, .size = count, .index = index, .ranks = ranks};
  return plan->group_count++;
}

uint32_t tws_lower_group(tws_lower *l, tws_axes axes) {
  const tws_plan *plan = l->b.plan;
  for (uint32_t i = 0; i < plan->group_count; i++) /* one communicator of each kind */
    if (plan->groups[i].axes == axes) return i;
  int *members = tws_arena_alloc(l->scratch, (size_t)tws_topology_size(&plan->topology, axes), sizeof *members);
  if (!members) {
    tws_builder_fail(&l->b, TWS_MEMORY, "no memory");
    return TWS_NONE;
  }
  const int count = tws_topology_group(&plan->topology, plan->rank, axes, members);
  return tws_lower_add_group(l, axes, members, count);
}
