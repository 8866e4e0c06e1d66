/* Which node a rank runs on and which NIC it sends through: the one place that says so.
 *
 * Ranks fill nodes in order. Devices hold one rank each; the ranks of a host are spread evenly over its nodes and may
 * outnumber cores. A node's NICs are dealt to its slots in order, in equal shares. */
#ifndef TWS_PLAN_NODE_MAPPING_H
#define TWS_PLAN_NODE_MAPPING_H

#include "config/cluster.h"
#include "plan/topology.h"

typedef struct tws_node_mapping {
  int ranks;
  int slots; /* ranks on a node that is full */
  int nodes; /* that have ranks */
  int nics;  /* of a node: no more than there are slots */
} tws_node_mapping;

/* shared: the ranks share the cores of the nodes (hosts), they have no devices of their own. */
tws_node_mapping tws_node_mapping_of(const tws_cluster *cluster, int shared, int ranks);
static inline int tws_mapping_node(const tws_node_mapping *m, int rank) {
  return rank / m->slots;
}
/* Counted over all nodes. */
int tws_mapping_nic(const tws_node_mapping *m, int rank);
/* The part of its node's memory that a rank works in (tws_cluster.numa_nodes), and the most ranks that one has. */
int tws_mapping_numa(const tws_node_mapping *m, const tws_cluster *cluster, int rank);
int tws_mapping_most_on_numa(const tws_node_mapping *m, const tws_cluster *cluster);
/* The most ranks that one node has: what its memory has to hold. */
int tws_mapping_most_on_node(const tws_node_mapping *m);
/* How many of these ranks are on the node of the first. */
int tws_mapping_beside_first(const tws_node_mapping *m, const int *ranks, int count);

/* Ranks that want the busier of the two NICs between `rank` and `peer` when all ranks of their pipeline stages exchange
 * messages with each other at once; 1 where these are no neighbours of a pipeline. */
int tws_mapping_sharers(const tws_node_mapping *m, const tws_topology *topology, int rank, int peer);
/* Whether every group of an axis lies on nodes as every other does, and the messages of a stage share NICs alike: then
 * ranks that do the same do it at the same time. */
int tws_mapping_is_even(const tws_node_mapping *m, const tws_topology *topology);

#endif
