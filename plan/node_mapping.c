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

int tws_mapping_ranks_on_first_node(const tws_node_mapping *m, const int *ranks, int count) {
  int same = 0;
  for (int i = 0; i < count; i++) same += tws_mapping_node(m, ranks[i]) == tws_mapping_node(m, ranks[0]);
  return same;
}

/* Returns the number of ranks on `rank`'s node and pipeline stage that exchange messages with stage `other` over the
 * same NIC. */
static int nic_sharers(const tws_node_mapping *m, const tws_topology *topology, int rank, int other) {
  const int node = tws_mapping_node(m, rank), first = node * m->slots;
  const int stage = tws_topology_index(topology, rank, TWS_AXES_PIPE);
  int count = 0;
  for (int q = first; q < first + m->slots && q < m->ranks; q++) {
    if (tws_topology_index(topology, q, TWS_AXES_PIPE) != stage || tws_mapping_nic(m, q) != tws_mapping_nic(m, rank))
      continue;
    count += tws_mapping_node(m, tws_topology_member(topology, q, TWS_AXES_PIPE, other)) != node;
  }
  return count;
}

int tws_mapping_sharers(const tws_node_mapping *m, const tws_topology *topology, int rank, int peer) {
  const int from = tws_topology_index(topology, rank, TWS_AXES_PIPE);
  const int to = tws_topology_index(topology, peer, TWS_AXES_PIPE);
  if (tws_mapping_node(m, rank) == tws_mapping_node(m, peer) ||
      tws_topology_member(topology, rank, TWS_AXES_PIPE, to) != peer)
    return 1;
  const int here = nic_sharers(m, topology, rank, to), there = nic_sharers(m, topology, peer, from);
  return here > there ? here : there;
}

/* The distribution of the members of a group over nodes: the time of a collective among the members depends on this
 * distribution alone. */
typedef struct group_spread {
  int on_first_node, nodes;
} group_spread;

static group_spread spread_of(const tws_node_mapping *m, const tws_topology *topology, tws_axes axes, int rank) {
  const int size = tws_topology_size(topology, axes);
  int first_node = -1, last_node = -1;
  group_spread found = {0, 0};
  for (int member = 0; member < size; member++) {
    const int node = tws_mapping_node(m, tws_topology_member(topology, rank, axes, member));
    if (first_node < 0) first_node = node;
    found.on_first_node += node == first_node;
    found.nodes += node != last_node;
    last_node = node;
  }
  return found;
}

/* Lists the sets of axes whose groups of ranks communicate: each axis alone, the axes of data ranks within a node
 * together with that of sequence ranks, and all axes along which samples and tokens are divided. Returns their number.
 * */
static int list_groups(const tws_topology *topology, tws_axes groups[TWS_MAX_AXES + 4]) {
  int count = 0;
  for (int i = 0; i < topology->axes; i++) groups[count++] = 1u << topology->axis[i];
  groups[count++] = TWS_AXES_NODE_DATA | TWS_AXES_SEQUENCE;
  groups[count++] = TWS_AXES_NODE_SHARDS | TWS_AXES_SEQUENCE;
  groups[count++] = tws_topology_partitions(topology);
  groups[count++] = tws_axes_that_divide(TWS_DIVIDES_SAMPLES) | tws_axes_that_divide(TWS_DIVIDES_TOKENS);
  return count;
}

/* Returns 1 if messages from one stage to the next leave the node and share its NICs in the same way on all
 * replicas. */
static int messages_are_even(const tws_node_mapping *m, const tws_topology *topology) {
  const int stages = tws_topology_size(topology, TWS_AXES_PIPE);
  int *outside = tws_calloc((size_t)stages, sizeof *outside), even = outside != NULL;
  for (int rank = 0; rank < m->ranks && even; rank++) {
    const int stage = tws_topology_index(topology, rank, TWS_AXES_PIPE);
    const int peer = tws_topology_member(topology, rank, TWS_AXES_PIPE, (stage + 1) % stages);
    const int inside = tws_mapping_node(m, rank) == tws_mapping_node(m, peer);
    const int here = inside ? -1 : tws_mapping_sharers(m, topology, rank, peer);
    if (outside[stage] == 0) outside[stage] = here;
    even = outside[stage] == here;
  }
  tws_free(outside);
  return even;
}

int tws_mapping_is_even(const tws_node_mapping *m, const tws_topology *topology) {
  tws_axes groups[TWS_MAX_AXES + 4];
  if (m->ranks <= m->slots) return 1;
  const int count = list_groups(topology, groups);
  for (int g = 0; g < count; g++) {
    /* a group of all ranks is skipped, since there is no other group to compare it with */
    if (tws_topology_size(topology, groups[g]) == m->ranks) continue;
    group_spread first = {0, 0};
    for (int rank = 0; rank < m->ranks; rank++) {
      /* each group is examined once, for its first rank */
      if (tws_topology_index(topology, rank, groups[g]) != 0) continue;
      const group_spread here = spread_of(m, topology, groups[g], rank);
      if (rank == 0) first = here;
      if (here.on_first_node != first.on_first_node || here.nodes != first.nodes) return 0;
    }
  }
  return tws_topology_size(topology, TWS_AXES_PIPE) < 2 || messages_are_even(m, topology);
}

/* Slots are assigned to NUMA nodes in order, as devices are; if a node is not full, its first NUMA nodes have the
 * ranks. */
int tws_mapping_numa(const tws_node_mapping *m, const tws_cluster *cluster, int rank) {
  const int slots = cluster->devices_per_node > m->slots ? cluster->devices_per_node : m->slots;
  return cluster->numa_nodes > 1 ? (int)((int64_t)(rank % m->slots) * cluster->numa_nodes / slots) : 0;
}

int tws_mapping_most_on_numa(const tws_node_mapping *m, const tws_cluster *cluster) {
  int count = 0, most = 0;
  for (int rank = 0; rank < tws_mapping_most_on_node(m); rank++) {
    const int same = rank > 0 && tws_mapping_numa(m, cluster, rank) == tws_mapping_numa(m, cluster, rank - 1);
    count = same ? count + 1 : 1;
    if (count > most) most = count;
  }
  return most > 0 ? most : 1;
}
