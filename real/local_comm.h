/* Computes collectives among ranks that are all in this process: one thread computes, for all members at once, the same
 * results as the communicator between processes, in the same order of summation. */
#ifndef TWS_REAL_LOCAL_COMM_H
#define TWS_REAL_LOCAL_COMM_H

#include "real/real.h"

/* Runs a collective. segments[m]: the `count` segments of member m; root: index of the root member, if the collective
 * has a root. Fails with TWS_UNSUPPORTED for sums of a type that the host cannot sum, and with TWS_RANK if uneven
 * counts exceed a buffer. */
tws_code tws_local_collective(tws_collective collective, int root, const tws_comm_segment *const *segments, int members,
                              int count, tws_error *err);

#endif
