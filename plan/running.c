/* Lowers running statistics: moving averages of the means and variances of batches, biases of routers, and tables of
 * constants. All these are state that no gradient changes; one entry of the state has those of all modules of this
 * rank. Biases and tables are equal on all ranks; a network that has them has no moving averages.
 *
 * Each rank normalizes with the statistics of its own micro-batch, and updates its moving averages with them, as
 * data-parallel replicas usually do. The moving averages of all ranks are averaged in the optimizer phase of each step,
 * so that all ranks have equal moving averages whatever samples they processed, and evaluations and checkpoints do not
 * depend on the rank. The last update of a step divides by the number of ranks, so that a sum over ranks is the
 * average. */
#include "plan/lower.h"
#include "plan/turns.h"

static uint32_t running_of(const tws_lower *l, uint32_t module) {
  return l->network->modules[module].running;
}

/* Returns 1 if a network has moving averages, which depend on the data; constants are recomputed from the model's
 * configuration instead. */
static int follows(const tws_network *network) {
  uint32_t r = 0;
  while (r < network->running_count && network->running[r].fixed) r++;
  return r < network->running_count;
}

tws_code tws_running_begin(tws_lower *l) {
  tws_plan *plan = l->b.plan;
  const uint32_t count = l->network->running_count;
  uint64_t elements = 0;
  if (count == 0) return TWS_OK;
  uint64_t *first = tws_arena_alloc(plan->arena, count, sizeof *first);
  if (!first) return tws_builder_fail(&l->b, TWS_MEMORY, "no memory");
  for (uint32_t i = 0; i < count; i++) first[i] = TWS_NO_OFFSET;
  for (int c = 0; c < l->pipeline.chunk_count; c++)
    for (uint32_t m = l->pipeline.chunks[c].first; m < l->pipeline.chunks[c].end; m++) {
      const uint32_t r = running_of(l, m);
      if (r == TWS_NONE || first[r] != TWS_NO_OFFSET) continue;
      first[r] = elements;
      elements += (uint64_t)(l->network->running[r].rows * l->network->running[r].columns);
    }
  plan->running_first = first;
  if (elements == 0) return TWS_OK;
  const tws_state_entry entry = {.name = "running statistics",
                                 .tier = TWS_TIER_DEVICE,
                                 .dtype = TWS_F32,
                                 .category = TWS_CATEGORY_PARAMETER,
                                 .role = TWS_ELEMENTS_NONE,
                                 .initial = TWS_INITIAL_RUNNING,
                                 .checkpointed = (uint8_t)follows(l->network),
                                 .elements = elements};
  plan->running = tws_builder_state(&l->b, &entry);
  return l->b.failed;
}

tws_operand tws_running_operand(const tws_lower *l, const tws_module *m, uint32_t access) {
  const tws_running *running = &l->network->running[m->running];
  return (tws_operand){.buffer = l->b.plan->running,
                       .access = access,
                       .offset = l->b.plan->running_first[m->running],
                       .count = (uint64_t)(running->rows * running->columns)};
}

double tws_running_share(const tws_lower *l, const tws_module *m) {
  const uint32_t end = tws_turns(l) > 1 ? l->network->module_count : 0; /* without turns no modules share them */
  for (uint32_t i = (uint32_t)(m - l->network->modules) + 1; i < end; i++)
    if (l->network->modules[i].running == m->running) return 1;
  return l->b.micro_batch + 1 == l->extent.accumulation ? 1.0 / l->zero.ranks : 1;
}

void tws_running_average(tws_lower *l) {
  const tws_plan *plan = l->b.plan;
  uint64_t experts;
  if (plan->running == TWS_NONE || !follows(l->network) || l->zero.ranks == 1 || l->b.failed != TWS_OK) return;
  if (tws_routers(plan->network, TWS_NONE, &experts) > 0) return;
  const tws_operand all = tws_all(&l->b, plan->running, TWS_READ_WRITE);
  tws_builder_collective(&l->b, TWS_STREAM_COMPUTE, TWS_COLLECTIVE_ALL_REDUCE, l->zero.group, TWS_F32,
                         all.count * sizeof(float), 1, 0, &all, 1);
}
