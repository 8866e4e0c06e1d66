#include "plan/representatives.h"

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

/* Ranks that differ in samples alone do the same. Tensor-parallel ranks differ in who holds which bias, which is more
 * than constants where parameters are gathered; sequence-parallel ones in which rows of a table of positions they leave
 * to others. */
static int stands_for_others(const tws_topology *t, int zero_stage, int rank) {
  for (int i = 0; i < t->axes; i++) {
    const tws_divides divides = tws_axis_divides(t->axis[i]);
    if (divides == TWS_DIVIDES_LAYERS || divides == TWS_DIVIDES_TOKENS) continue;
    if (divides == TWS_DIVIDES_WEIGHTS && zero_stage == 3) continue;
    if (tws_topology_index(t, rank, 1u << t->axis[i]) != 0) return 0;
  }
  return 1;
}

tws_code tws_representatives(const tws_topology *topology, const tws_node_mapping *mapping, int zero_stage,
                             tws_rank_set *out, tws_error *err) {
  const int even = tws_mapping_is_even(mapping, topology), stages = tws_topology_size(topology, TWS_AXES_PIPE);
  TWS_TRY(make_room(out, mapping->ranks, err));
  for (int stage = 0; stage < stages; stage++) /* by stage, in each the first of the axes first */
    for (int rank = 0; rank < mapping->ranks; rank++) {
      if (tws_topology_index(topology, rank, TWS_AXES_PIPE) != stage) continue;
      if (!even || stands_for_others(topology, zero_stage, rank)) out->ranks[out->count++] = rank;
    }
  return TWS_OK;
}

/* ---- for the verifier ---- */

static int at_least_one(int count) {
  return count > 0 ? count : 1;
}

/* Replica number `u` of `units` spread over `replicas`, the first and the last among them. */
static int spread_over(int u, int units, int replicas) {
  return units > 1 ? (int)((int64_t)u * (replicas - 1) / (units - 1)) : 0;
}

/* Whether a rank is in one of the replicas and, where these are not whole, stands for its stage. */
static int is_verified(const tws_topology *t, int rank, int whole, int units, int replicas) {
  const int data = tws_topology_index(t, rank, TWS_AXES_DATA);
  if (!whole && tws_topology_index(t, rank, ~(tws_axes)(TWS_AXES_DATA | TWS_AXES_PIPE)) != 0) return 0;
  for (int u = 0; u < units; u++)
    if (data == spread_over(u, units, replicas)) return 1;
  return 0;
}

tws_code tws_ranks_to_verify(const tws_topology *topology, int64_t most, tws_verified_set *out, tws_error *err) {
  const int ranks = tws_topology_world(topology), replicas = tws_topology_size(topology, TWS_AXES_DATA);
  const int whole = ranks / replicas <= most;
  const int unit = whole ? ranks / replicas : tws_topology_size(topology, TWS_AXES_PIPE);
  const int units = most / unit < replicas ? at_least_one((int)(most / unit)) : replicas;
  *out = (tws_verified_set){.whole_replicas = whole ? units : 0};
  TWS_TRY(make_room(&out->set, ranks, err));
  for (int rank = 0; rank < ranks; rank++)
    if (is_verified(topology, rank, whole, units, replicas)) out->set.ranks[out->set.count++] = rank;
  return TWS_OK;
}
