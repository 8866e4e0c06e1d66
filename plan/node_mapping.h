/* Computes the node, the NIC and the NUMA domain of each rank. No other file computes them.
 *
 * Ranks fill nodes in order, one rank per device. Ranks on hosts without devices are distributed evenly over the nodes,
 * and there may be more ranks than cores. A node's NICs are assigned to its slots (one per rank) in order, in equal
 * shares. */
#ifndef TWS_PLAN_NODE_MAPPING_H
#define TWS_PLAN_NODE_MAPPING_H

#include "config/cluster.h"
#include "plan/topology.h"

typedef struct tws_node_mapping {
  int ranks;
  int slots; /* number of ranks of a full node */
  int nodes; /* number of nodes with ranks */
  int nics;  /* number of NICs of a node that ranks use, at most `slots` */
} tws_node_mapping;

/* Returns the mapping of `ranks` ranks to the nodes of a cluster. shared 1: the ranks run on hosts, have no devices and
 * share the cores of a node. */
tws_node_mapping tws_node_mapping_of(const tws_cluster *cluster, int shared, int ranks);
static inline int tws_mapping_node(const tws_node_mapping *m, int rank) {
  return rank / m->slots;
}
/* Returns a rank's NIC, numbered over all nodes. */
int tws_mapping_nic(const tws_node_mapping *m, int rank);
/* tws_mapping_numa() returns the index of a rank's NUMA domain in its node (tws_cluster.numa_nodes),
 * tws_mapping_most_on_numa() the largest number of ranks in one domain. */
int tws_mapping_numa(const tws_node_mapping *m, const tws_cluster *cluster, int rank);
int tws_mapping_most_on_numa(const tws_node_mapping *m, const tws_cluster *cluster);
/* Returns the largest number of ranks on one node, all of which the node's memory has to hold. */
int tws_mapping_most_on_node(const tws_node_mapping *m);
/* Returns the number of these ranks that are on the same node as ranks[0], ranks[0] included. */
int tws_mapping_ranks_on_first_node(const tws_node_mapping *m, const int *ranks, int count);

/* Returns the number of ranks that share the NIC of `rank` or that of `peer`, whichever more ranks share, when all
 * ranks of their two pipeline stages exchange messages at the same time; 1 if the two are not in adjacent stages. */
int tws_mapping_sharers(const tws_node_mapping *m, const tws_topology *topology, int rank, int peer);
/* Returns 1 if all groups of an axis are placed on nodes in the same pattern, and the messages of a stage share NICs
 * equally. Ranks with equal operations then run them at the same time. */
int tws_mapping_is_even(const tws_node_mapping *m, const tws_topology *topology);

#endif
