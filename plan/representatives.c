#include "plan/representatives.h"

#include <stdlib.h>

#include "base/memory.h"

void tws_rank_set_free(tws_rank_set *set) {
  tws_free(set->ranks);
  *set = (tws_rank_set){NULL, 0};
}

static tws_code make_room(tws_rank_set *set, int ranks, tws_error *err) {
  *set = (tws_rank_set){tws_calloc((size_t)ranks, sizeof *set->ranks), 0};
  return set->ranks ? TWS_OK : tws_fail(err, TWS_MEMORY, NULL, "no memory for %d ranks", ranks);
}

tws_code tws_every_rank(int ranks, tws_rank_set *out, tws_error *err) {
  TWS_TRY(make_room(out, ranks, err));
  for (int rank = 0; rank < ranks; rank++) out->ranks[out->count++] = rank;
  return TWS_OK;
}

static int by_rank(const void *left, const void *right) {
  const int a = *(const int *)left, b = *(const int *)right;
  return a < b ? -1 : a > b;
}

/* Adds the ranks that differ from `rank` only along a set of axes, in ascending order. */
static void add_group(tws_rank_set *set, const tws_topology *topology, int rank, tws_axes axes) {
  const int count = tws_topology_group(topology, rank, axes, set->ranks + set->count);
  qsort(set->ranks + set->count, (size_t)count, sizeof *set->ranks, by_rank);
  set->count += count;
}

/* Returns the axes along which ranks have different plans. Ranks that differ only in samples have equal plans.
 * Tensor-parallel ranks differ in the biases that they hold, which changes more than constants if parameters are
 * gathered; sequence-parallel ranks differ in the rows of position tables that they do not use. */
static tws_axes axes_that_differ(const tws_topology *t, const tws_config *config) {
  tws_axes axes = 0;
  for (int i = 0; i < t->axes; i++) {
    const tws_divides divides = tws_axis_divides(t->axis[i]);
    if (divides == TWS_DIVIDES_TOKENS || (divides == TWS_DIVIDES_WEIGHTS && config->zero.stage == 3))
      axes |= 1u << t->axis[i];
  }
  return axes;
}

int tws_replicas_are_synchronous(const tws_config *config) {
  const tws_zero_config *z = &config->zero;
  return !z->offload_optimizer || (z->stage != 1 && z->stage != 2);
}

tws_code tws_representatives(const tws_topology *topology, const tws_node_mapping *mapping, const tws_config *config,
                             tws_rank_set *out, tws_error *err) {
  const int even = tws_mapping_is_even(mapping, topology), stages = tws_topology_size(topology, TWS_AXES_PIPE);
  const tws_axes axes = axes_that_differ(topology, config);
  TWS_TRY(make_room(out, even ? stages * tws_topology_size(topology, axes) : mapping->ranks, err));
  /* the ranks are listed stage by stage; the first of each stage is the rank with index 0 along the other axes */
  for (int stage = 0; stage < stages; stage++) {
    const int first = tws_topology_member(topology, 0, TWS_AXES_PIPE, stage);
    if (even) {
      add_group(out, topology, first, axes);
      continue;
    }
    for (int rank = 0; rank < mapping->ranks; rank++)
      if (tws_topology_index(topology, rank, TWS_AXES_PIPE) == stage) out->ranks[out->count++] = rank;
  }
  return TWS_OK;
}

static int at_least_one(int count) {
  return count > 0 ? count : 1;
}

/* Returns the u-th of `units` replicas, spread evenly over all `replicas` and including the first and the last. */
static int spread_over(int u, int units, int replicas) {
  return units > 1 ? (int)((int64_t)u * (replicas - 1) / (units - 1)) : 0;
}

tws_code tws_ranks_to_verify(const tws_topology *topology, int64_t most, tws_verified_set *out, tws_error *err) {
  const int ranks = tws_topology_world(topology), replicas = tws_topology_size(topology, TWS_AXES_DATA);
  const int whole = ranks / replicas <= most;
  const int unit = whole ? ranks / replicas : tws_topology_size(topology, TWS_AXES_PIPE);
  const int units = most / unit < replicas ? at_least_one((int)(most / unit)) : replicas;
  tws_axes inside = TWS_AXES_PIPE; /* the axes inside a replica; or only "pipe", if one rank of each stage is chosen */
  for (int i = 0; whole && i < topology->axes; i++)
    if (!tws_axes_cover(TWS_AXES_DATA, topology->axis[i])) inside |= 1u << topology->axis[i];
  *out = (tws_verified_set){.whole_replicas = whole ? units : 0};
  TWS_TRY(make_room(&out->set, unit * units, err));
  for (int u = 0; u < units; u++)
    add_group(&out->set, topology, tws_topology_member(topology, 0, TWS_AXES_DATA, spread_over(u, units, replicas)),
              inside);
  qsort(out->set.ranks, (size_t)out->set.count, sizeof *out->set.ranks, by_rank);
  return TWS_OK;
}
