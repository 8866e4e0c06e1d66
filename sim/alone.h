/* Computes the time of a collective's rings on idle links, message by message. Flows model only bytes, so a simulated
 * collective waits before it starts its flows, for the difference between this time and the time of the flows. */
#ifndef TWS_SIM_ALONE_H
#define TWS_SIM_ALONE_H

#include "config/cluster.h"

/* Returns the seconds until the last message of a collective has arrived; below 0: out of memory. The collective has
 * `rings` rings through `per_node` ranks of every node, each with `steps` messages of `piece` bytes on every edge. All
 * nodes do the same at the same time, so one node is simulated, and its outgoing edge leads to its own first rank. */
double tws_ring_collective_s(const tws_cluster *cluster, int per_node, int rings, int steps, double piece);

#endif
