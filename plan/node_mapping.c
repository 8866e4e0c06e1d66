#include "plan/node_mapping.h"

#include "base/memory.h"

tws_node_mapping tws_node_mapping_of(const tws_cluster *cluster, int shared, int ranks) {
  const int nodes = cluster->nodes > 0 ? cluster->nodes : 1;
  const int devices = cluster->devices_per_node > 0 ? cluster->devices_per_node : 1;
  const int nics = cluster->nics_per_node > 0 ? cluster->nics_per_node : 1;
  tws_node_mapping m = {.ranks = ranks, .slots = shared ? (ranks + nodes - 1) / nodes : devices};
  m.nodes = (ranks + m.slots - 1) / m.slots;
  m.nics = nics < m.slots ? nics : m.slots;
  return m;
}

int tws_mapping_nic(const tws_node_mapping *m, int rank) {
  return tws_mapping_node(m, rank) * m->nics + (int)((int64_t)(rank % m->slots) * m->nics / m->slots);
}

int tws_mapping_most_on_node(const tws_node_mapping *m) {
  return m->slots < m->ranks ? m->slots : m->ranks;
}

int tws_mapping_beside_first(const tws_node_mapping *m, const int *ranks, int count) {
  int same = 0;
  for (int i = 0; i < count; i++) same += tws_mapping_node(m, ranks[i]) == tws_mapping_node(m, ranks[0]);
  return same;
}

/* ---- messages ---- */

/* How many ranks of `rank`'s node and pipeline stage have a message for (or from) stage `other` on the same NIC. */
static int nic_sharers(const tws_node_mapping *m, const tws_topology *topology, int rank, int axis, int other) {
  const int node = tws_mapping_node(m, rank), first = node * m->slots;
  int count = 0, mine[TWS_MAX_AXES], theirs[TWS_MAX_AXES];
  tws_topology_coordinates(topology, rank, mine);
  for (int q = first; q < first + m->slots && q < m->ranks; q++) {
    tws_topology_coordinates(topology, q, theirs);
    if (theirs[axis] != mine[axis] || tws_mapping_nic(m, q) != tws_mapping_nic(m, rank)) continue;
    theirs[axis] = other;
    count += tws_mapping_node(m, tws_topology_rank(topology, theirs)) != node;
  }
  return count;
}

int tws_mapping_sharers(const tws_node_mapping *m, const tws_topology *topology, int rank, int peer) {
  const int axis = tws_topology_axis(topology, "pipe");
  int mine[TWS_MAX_AXES], theirs[TWS_MAX_AXES];
  if (axis < 0 || tws_mapping_node(m, rank) == tws_mapping_node(m, peer)) return 1;
  tws_topology_coordinates(topology, rank, mine);
  tws_topology_coordinates(topology, peer, theirs);
  for (int i = 0; i < topology->axes; i++) {
    if (i != axis && mine[i] != theirs[i]) return 1;
  }
  const int here = nic_sharers(m, topology, rank, axis, theirs[axis]);
  const int there = nic_sharers(m, topology, peer, axis, mine[axis]);
  return here > there ? here : there;
}

/* ---- evenness ---- */

/* Where the members of a group lie: what a collective among them costs depends on nothing else. */
typedef struct group_spread {
  int on_first_node, nodes;
} group_spread;

static group_spread spread_of(const tws_node_mapping *m, const tws_topology *topology, const int *axes, int axis_count,
                              int rank) {
  int at[TWS_MAX_AXES], size = 1, first_node = -1, last_node = -1;
  group_spread found = {0, 0};
  tws_topology_coordinates(topology, rank, at);
  for (int i = 0; i < axis_count; i++) size *= topology->dim[axes[i]];
  for (int member = 0; member < size; member++) {
    for (int i = axis_count, left = member; i-- > 0; left /= topology->dim[axes[i]])
      at[axes[i]] = left % topology->dim[axes[i]];
    const int node = tws_mapping_node(m, tws_topology_rank(topology, at));
    if (first_node < 0) first_node = node;
    found.on_first_node += node == first_node;
    found.nodes += node != last_node;
    last_node = node;
  }
  return found;
}

/* Groups that replicas and parameters are shared in: data with sequence, and each other axis alone. */
static int list_groups(const tws_topology *topology, int groups[TWS_MAX_AXES + 1][2], int *sizes) {
  int count = 0, data = tws_topology_axis(topology, "data"), sequence = tws_topology_axis(topology, "sequence");
  for (int axis = 0; axis < topology->axes; axis++) {
    groups[count][0] = axis;
    sizes[count++] = 1;
  }
  if (data >= 0 && sequence >= 0) {
    groups[count][0] = data;
    groups[count][1] = sequence;
    sizes[count++] = 2;
  }
  return count;
}

/* Messages from a stage to the next leave the node, and share its NICs, on all replicas alike. */
static int messages_are_even(const tws_node_mapping *m, const tws_topology *topology, int pipe) {
  int *outside = tws_calloc((size_t)topology->dim[pipe], sizeof *outside), even = outside != NULL;
  for (int rank = 0; rank < m->ranks && even; rank++) {
    int at[TWS_MAX_AXES];
    tws_topology_coordinates(topology, rank, at);
    const int stage = at[pipe];
    at[pipe] = (stage + 1) % topology->dim[pipe];
    const int peer = tws_topology_rank(topology, at);
    const int inside = tws_mapping_node(m, rank) == tws_mapping_node(m, peer);
    const int here = inside ? -1 : tws_mapping_sharers(m, topology, rank, peer);
    if (outside[stage] == 0) outside[stage] = here;
    even = outside[stage] == here;
  }
  tws_free(outside);
  return even;
}

int tws_mapping_is_even(const tws_node_mapping *m, const tws_topology *topology) {
  int groups[TWS_MAX_AXES + 1][2], sizes[TWS_MAX_AXES + 1];
  if (m->ranks <= m->slots) return 1;
  const int count = list_groups(topology, groups, sizes);
  for (int g = 0; g < count; g++) {
    group_spread first = {0, 0};
    for (int rank = 0; rank < m->ranks; rank++) {
      int at[TWS_MAX_AXES], begins = 1;
      tws_topology_coordinates(topology, rank, at);
      for (int i = 0; i < sizes[g]; i++) begins &= at[groups[g][i]] == 0;
      if (!begins) continue; /* each group once, from its first rank */
      const group_spread here = spread_of(m, topology, groups[g], sizes[g], rank);
      if (rank == 0) first = here;
      if (here.on_first_node != first.on_first_node || here.nodes != first.nodes) return 0;
    }
  }
  const int pipe = tws_topology_axis(topology, "pipe");
  return pipe < 0 || topology->dim[pipe] < 2 || messages_are_even(m, topology, pipe);
}
