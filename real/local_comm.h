/* Collectives among ranks whose memory is all in this process: what the communicator between processes does, in the
 * same order of summation, done by one thread for all members at once. */
#ifndef TWS_REAL_LOCAL_COMM_H
#define TWS_REAL_LOCAL_COMM_H

#include "real/real.h"

/* segments[m]: the `count` segments of member m, which all have. root: a member, where the collective has one.
 * TWS_UNSUPPORTED: sums of a type that the host has none for; TWS_RANK: uneven counts beyond the room for them. */
tws_code tws_local_collective(tws_collective collective, int root, const tws_comm_segment *const *segments, int members,
                              int count, tws_error *err);

#endif
