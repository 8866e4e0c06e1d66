/* How long a collective's rings take by themselves, message by message: what flows, which know only bytes, wait for. */
#ifndef TWS_SIM_ALONE_H
#define TWS_SIM_ALONE_H

#include "config/cluster.h"

/* Several rings through `per_node` ranks of every node, each of `steps` messages of `piece` bytes on every edge; all
 * nodes are alike and do the same at the same time, so one is looked at, whose last hop leads to its own first. Seconds
 * until the last message has arrived; < 0: no memory. */
double tws_rings_alone_s(const tws_cluster *cluster, int per_node, int rings, int steps, double piece);

#endif
