/* The flows of communicators, and representatives of flows that are equal by symmetry.
 *
 * If representative ranks are simulated, a collective starts the flows of all ranks at the same time. There may be
 * millions of them. A cluster is symmetric under rotations: of the nodes within blocks of nodes, or of the slots
 * within every node. If a rotation maps the set of flows of each communicator to itself, two flows that it maps to
 * each other start together, share their links with equally many flows, and end together. It is then enough to
 * simulate one flow of each orbit, on the links of the representative ranks: each of these links is crossed by as many
 * flows as in the whole network, so all rates are those of the whole. */
#include <stdlib.h>

#include "models/collective.h"
#include "sim/executor.h"

enum { MOST_FLOWS = 1 << 20 }; /* of a communicator; no symmetry is searched with more */

static int no_memory(tws_sim *sim) {
  tws_sim_fail(sim, TWS_MEMORY, "out of memory while simulating");
  return 0;
}

/* Lists the communicators that a communicator represents: itself and, if representative ranks are simulated, those at
 * all other coordinates along the axes on which neither its ranks nor the simulated ranks differ, since these do the
 * same at the same time. */
static int replicas_of(tws_sim *sim, const tws_communicator *c, const int **replicas) {
  const tws_topology *topology = &sim->ranks[0].plan->topology;
  *replicas = c->ranks;
  if (!sim->request->fold || tws_topology_world(topology) != sim->world) return 1;
  const unsigned fixed = sim->classes | tws_sim_axes(topology, c->ranks, c->size);
  int count = 1, at[TWS_MAX_AXES] = {0}, coordinates[TWS_MAX_AXES];
  for (int axis = 0; axis < topology->axes; axis++)
    if (!(fixed >> axis & 1)) count *= topology->dim[axis];
  int *all = tws_arena_alloc(sim->arena, (size_t)count * (size_t)c->size, sizeof *all);
  if (!all) {
    no_memory(sim);
    return 1;
  }
  for (int replica = 0; replica < count; replica++) {
    for (int i = 0; i < c->size; i++) {
      tws_topology_coordinates(topology, c->ranks[i], coordinates);
      for (int axis = 0; axis < topology->axes; axis++)
        if (!(fixed >> axis & 1)) coordinates[axis] = at[axis];
      all[replica * c->size + i] = tws_topology_rank(topology, coordinates);
    }
    for (int axis = topology->axes - 1; axis >= 0; axis--) { /* next coordinates */
      if (fixed >> axis & 1) continue;
      if (++at[axis] < topology->dim[axis]) break;
      at[axis] = 0;
    }
  }
  *replicas = all;
  return count;
}

tws_sim_pattern *tws_sim_pattern_of(tws_sim *sim, uint32_t communicator) {
  tws_sim_pattern *pattern = &sim->patterns[communicator];
  if (!pattern->replicas)
    pattern->replica_count = replicas_of(sim, &sim->run->communicators[communicator], &pattern->replicas);
  return pattern;
}

/* ---- all flows ---- */

static tws_flow *room_for(tws_sim *sim, tws_flows *flows, size_t count) {
  flows->of = tws_arena_alloc_unset(sim->arena, count + 1, sizeof *flows->of);
  if (!flows->of) no_memory(sim);
  return flows->of;
}

static void make_rings(tws_sim *sim, const tws_communicator *c, const tws_sim_pattern *p, tws_flows *flows) {
  const size_t replicas = (size_t)p->replica_count;
  tws_edge **edges = tws_arena_alloc(sim->arena, replicas, sizeof *edges);
  int *counts = tws_arena_alloc(sim->arena, replicas, sizeof *counts);
  size_t all = 0;
  int good = edges && counts;
  for (size_t i = 0; i < replicas && good; i++) {
    counts[i] = tws_platform_rings(&sim->platform, p->replicas + i * (size_t)c->size, c->size, sim->arena, &edges[i]);
    good = counts[i] >= 0;
    all += good ? (size_t)counts[i] : 0;
  }
  if (!good || !room_for(sim, flows, all)) {
    no_memory(sim);
    return;
  }
  for (size_t i = 0; i < replicas; i++)
    for (int k = 0; k < counts[i]; k++)
      flows->of[flows->count++] =
          (tws_flow){.from = edges[i][k].from, .to = edges[i][k].to, .replica = (int)i, .share = edges[i][k].share};
}

static void make_pairs(tws_sim *sim, const tws_communicator *c, const tws_sim_pattern *p, tws_flows *flows) {
  const int size = c->size, senders = c->message ? 1 : size;
  if (!room_for(sim, flows, (size_t)p->replica_count * (size_t)senders * (size_t)(size - 1))) return;
  for (int replica = 0; replica < p->replica_count; replica++) {
    const int *ranks = p->replicas + (size_t)replica * (size_t)size;
    for (int i = 0; i < senders; i++)
      for (int k = 1; k < size; k++) {
        const int to = (i + k) % size;
        flows->of[flows->count++] = (tws_flow){
            .from = ranks[i], .to = ranks[to], .replica = replica, .from_index = i, .to_index = to, .share = 1};
      }
  }
}

static int makes_pairs(const tws_communicator *c, const tws_collective_row *row) {
  return c->message || row->pattern == TWS_PATTERN_PAIRS;
}

static tws_flows *all_flows(tws_sim *sim, uint32_t communicator, int pairs) {
  const tws_communicator *c = &sim->run->communicators[communicator];
  tws_sim_pattern *pattern = tws_sim_pattern_of(sim, communicator);
  tws_flows *flows = &pattern->flows[pairs];
  if (flows->of || sim->failed != TWS_OK) return flows;
  (pairs ? make_pairs : make_rings)(sim, c, pattern, flows);
  for (size_t i = 0; i < flows->count; i++)
    tws_platform_path(&sim->platform, flows->of[i].from, flows->of[i].to, flows->of[i].links);
  return flows;
}

const tws_flows *tws_sim_flows(tws_sim *sim, uint32_t communicator, const tws_collective_row *row) {
  return all_flows(sim, communicator, makes_pairs(&sim->run->communicators[communicator], row));
}

/* ---- representatives ---- */

static int by_ends(const void *left, const void *right) {
  const tws_flow *a = left, *b = right;
  return a->from != b->from ? (a->from > b->from) - (a->from < b->from) : (a->to > b->to) - (a->to < b->to);
}

/* Returns 1 if the rotation maps each flow to a flow of equal share. */
static int maps_to_itself(const tws_sim *sim, const tws_flows *flows, const tws_symmetry *symmetry) {
  for (size_t i = 0; i < flows->count; i++) {
    const tws_flow image = {.from = tws_platform_image(&sim->platform, symmetry, flows->of[i].from),
                            .to = tws_platform_image(&sim->platform, symmetry, flows->of[i].to)};
    const tws_flow *found = bsearch(&image, flows->of, flows->count, sizeof image, by_ends);
    if (!found || found->share != flows->of[i].share) return 0;
  }
  return 1;
}

static int all_map_to_themselves(const tws_sim *sim, const tws_symmetry *symmetry) {
  for (size_t c = 0; c < sim->run->communicator_count; c++)
    for (int pairs = 0; pairs < 2; pairs++)
      if (!maps_to_itself(sim, &sim->patterns[c].flows[pairs], symmetry)) return 0;
  return 1;
}

/* Builds the flows of all communicators. Returns 0 if there are too many, or if collectives have roots, which breaks
 * the symmetry. */
static int gather_flows(tws_sim *sim) {
  for (size_t i = 0; i < sim->run->rendezvous_count && sim->failed == TWS_OK; i++) {
    const tws_rendezvous *met = &sim->run->rendezvous[i];
    const tws_communicator *c = &sim->run->communicators[met->communicator];
    const tws_run_member *first = &sim->run->members[met->member_first];
    const tws_plan *plan = sim->ranks[first->rank].plan;
    const tws_collective_row *row =
        c->message ? NULL : tws_collective_of((tws_collective)plan->works[plan->ops[first->op].work].code);
    if (c->size == 1 || (row && row->pattern == TWS_PATTERN_SIGNAL)) continue;
    if (row && (row->root != TWS_ROOT_NONE || row->pattern == TWS_PATTERN_CHAIN)) return 0;
    if (sim->patterns[met->communicator].flows[makes_pairs(c, row)].of) continue;
    if ((int64_t)c->size * (row && row->pattern == TWS_PATTERN_PAIRS ? sim->world : 1) > MOST_FLOWS) return 0;
    tws_flows *flows = all_flows(sim, met->communicator, makes_pairs(c, row));
    if (sim->failed == TWS_OK) qsort(flows->of, flows->count, sizeof *flows->of, by_ends);
  }
  return sim->failed == TWS_OK;
}

static void keep_representatives(tws_sim *sim, const tws_symmetry *symmetry) {
  for (size_t c = 0; c < sim->run->communicator_count; c++)
    for (int pairs = 0; pairs < 2; pairs++) {
      tws_flows *flows = &sim->patterns[c].flows[pairs];
      size_t kept = 0;
      for (size_t i = 0; i < flows->count; i++) {
        if (tws_platform_representative(&sim->platform, symmetry, flows->of[i].from) != flows->of[i].from) continue;
        tws_flow *flow = &flows->of[kept++];
        *flow = flows->of[i];
        for (int k = 0; k < 2; k++) /* clusters with leaf switches, whose paths are longer, are not folded */
          flow->links[k] = tws_platform_representative_link(&sim->platform, symmetry, flow->links[k]);
      }
      flows->count = kept;
    }
}

void tws_sim_fold_flows(tws_sim *sim) {
  const tws_platform *p = &sim->platform;
  const int nodes = p->mapping.nodes, slots = p->mapping.slots;
  if (p->first_leaf >= 0 || p->mapping.ranks != nodes * slots || !gather_flows(sim)) return;
  tws_symmetry symmetry = {.block = 1, .step = slots};
  for (int block = nodes; block > 1 && symmetry.block == 1; block--)
    if (nodes % block == 0 && all_map_to_themselves(sim, &(tws_symmetry){.block = block, .step = slots}))
      symmetry.block = block;
  for (int step = 1; step < slots && symmetry.step == slots; step++)
    if (slots % step == 0 && step * p->mapping.nics % slots == 0 &&
        all_map_to_themselves(sim, &(tws_symmetry){.block = 1, .step = step}))
      symmetry.step = step;
  keep_representatives(sim, &symmetry);
}
