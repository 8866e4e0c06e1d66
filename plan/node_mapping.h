/* The node, NIC and NUMA domain of each rank. No other file computes them.
 *
 * Ranks fill nodes in order, one rank per device. Ranks on hosts without devices are distributed evenly over the nodes
 * and may outnumber cores. A node's NICs are assigned to its slots in order, in equal shares. */
#ifndef TWS_PLAN_NODE_MAPPING_H
#define TWS_PLAN_NODE_MAPPING_H

#include "config/cluster.h"
#include "plan/topology.h"

typedef struct tws_node_mapping {
  int ranks;
  int slots; /* ranks of a full node */
  int nodes; /* nodes with ranks */
  int nics;  /* NICs of a node, at most as many as slots */
} tws_node_mapping;

/* shared: ranks on hosts, which share the cores of a node and have no devices. */
tws_node_mapping tws_node_mapping_of(const tws_cluster *cluster, int shared, int ranks);
static inline int tws_mapping_node(const tws_node_mapping *m, int rank) {
  return rank / m->slots;
}
/* Returns a rank's NIC, numbered over all nodes. */
int tws_mapping_nic(const tws_node_mapping *m, int rank);
/* Return a rank's NUMA domain in its node (tws_cluster.numa_nodes), and the largest number of ranks in one domain. */
int tws_mapping_numa(const tws_node_mapping *m, const tws_cluster *cluster, int rank);
int tws_mapping_most_on_numa(const tws_node_mapping *m, const tws_cluster *cluster);
/* Returns the largest number of ranks on one node, whose memory has to hold all of them. */
int tws_mapping_most_on_node(const tws_node_mapping *m);
/* Returns how many of these ranks are on the first one's node. */
int tws_mapping_beside_first(const tws_node_mapping *m, const int *ranks, int count);

/* Returns the number of ranks that share the busier of the NICs of `rank` and `peer` when all ranks of their two
 * pipeline stages exchange messages at the same time; 1 if they are not in adjacent stages. */
int tws_mapping_sharers(const tws_node_mapping *m, const tws_topology *topology, int rank, int peer);
/* Returns 1 if all groups of an axis are placed on nodes in the same pattern, and the messages of a stage share NICs
 * equally: then ranks with equal operations run them at the same time. */
int tws_mapping_is_even(const tws_node_mapping *m, const tws_topology *topology);

#endif
