/* The time of a collective's rings on idle links, simulated message by message. Flows model only bytes; the difference
 * becomes a wait before them. */
#ifndef TWS_SIM_ALONE_H
#define TWS_SIM_ALONE_H

#include "config/cluster.h"

/* Returns the seconds until the last message of `rings` rings through `per_node` ranks of every node has arrived, each
 * with `steps` messages of `piece` bytes on every edge; < 0: no memory. All nodes do the same at the same time, so one
 * node is simulated: the edge that leaves it leads to its own first rank. */
double tws_rings_alone_s(const tws_cluster *cluster, int per_node, int rings, int steps, double piece);

#endif
