/* Collectives among ranks whose memory is all in this process: one thread computes, for all members at once, the
 * same results as the communicator between processes, in the same order of summation. */
#ifndef TWS_REAL_LOCAL_COMM_H
#define TWS_REAL_LOCAL_COMM_H

#include "real/real.h"

/* segments[m]: the `count` segments of member m; all members have equally many. root: a member, where the collective
 * has one. TWS_UNSUPPORTED: sums of a type that the host cannot sum; TWS_RANK: uneven counts exceed the buffer. */
tws_code tws_local_collective(tws_collective collective, int root, const tws_comm_segment *const *segments, int members,
                              int count, tws_error *err);

#endif
