/* The shared-memory transport of the communicator: one set of control pages and the arenas, mapped by every rank of
 * the node. None of it has a name in the file system: memory disappears with the last process that maps it. */
#ifndef TWS_REAL_SHARED_COMM_H
#define TWS_REAL_SHARED_COMM_H

#include <mpi.h>
#include "models/collective.h"
#include "real/real.h"

typedef struct tws_shared tws_shared;

/* maximum number of segments of one collective that are visible to other ranks at a time */
enum { TWS_SHARED_SEGMENTS = 128 };

/* Creates the transport; collective over the world. `node`: communicator of the ranks that share memory, which is used
 * until tws_shared_destroy(). If any rank cannot share memory, *out stays NULL with TWS_OK on all ranks. */
tws_code tws_shared_create(MPI_Comm world, MPI_Comm node, uint32_t group_count, int busy, tws_shared **out,
                           tws_error *err);
void tws_shared_destroy(tws_shared *shared);
tws_code tws_shared_allocate(tws_shared *shared, uint64_t bytes, void **base, tws_error *err);

/* A process group. id: number of the group among the distinct groups of the world; ranks: numbered as in the world. */
typedef struct tws_shared_group {
  uint32_t id;
  int size, index;
  const int *ranks;
} tws_shared_group;

/* Returns 1 if every address of the segments lies in memory of tws_shared_allocate(). Ranks run the same plan, so that
 * all ranks of a group return the same value. */
int tws_shared_covers(const tws_shared *shared, tws_collective collective, const tws_shared_group *group, int root,
                      const tws_comm_segment *segments, int count);
void tws_shared_collective(tws_shared *shared, const tws_shared_group *group, tws_collective collective, int root,
                           const tws_comm_segment *segments, int count);
void tws_shared_barrier(tws_shared *shared, const tws_shared_group *group);

/* Parts of a collective for a group with members on other nodes. show() publishes the addresses of at most
 * TWS_SHARED_SEGMENTS segments; the others may read them after the next barrier, until the one after it. copy()
 * copies the data that members [first, last), which are on this node, have for this rank in a collective that does
 * not reduce. */
void tws_shared_expose(tws_shared *shared, tws_collective_parts parts, const tws_comm_segment *segments, int count);
void tws_shared_copy(const tws_shared *shared, const tws_shared_group *group, const tws_collective_row *row, int root,
                     int first, int last, int segment, const tws_comm_segment *s);
/* Return the addresses that a rank of this node (numbered as in the world) has published. */
char *tws_shared_sent(const tws_shared *shared, int rank, int segment);
char *tws_shared_received(const tws_shared *shared, int rank, int segment);
/* Reports that this rank begins (1) or ends (0) to wait for a message of another transport; used by
 * tws_shared_missing(). */
void tws_shared_waits(tws_shared *shared, int waits);
/* Returns the number of a rank that is not waiting although this rank waits in a collective, or -1 if there is none. */
int tws_shared_missing(const tws_shared *shared);
int tws_shared_is_waiting(const tws_shared *shared); /* returns 1 if this rank waits */

/* Returns 1 for types that tws_ordered_sum() can sum. */
static inline int tws_ordered_sum_supports(tws_dtype dtype) {
  return dtype == TWS_F32 || dtype == TWS_BF16 || dtype == TWS_F16 || dtype == TWS_F64;
}
/* Computes to[d][i] = sum over sources of from[s][i], in the order given, for i < count; float32 accumulation (float64
 * for float64), rounded once. A destination may be one of the sources. dtype: one of tws_ordered_sum_supports(). */
void tws_ordered_sum(tws_dtype dtype, const void *const *from, int sources, void *const *to, int destinations,
                     uint64_t count);
/* Compute the sum of tws_ordered_sum() in several calls. tws_ordered_sum_part() sets `wide`, whose type is float32
 * (float64 for float64), to `carry` (NULL: 0) plus the sources; tws_ordered_sum_round() rounds the result of the last
 * call to `dtype`. carry may equal wide. */
void tws_ordered_sum_part(tws_dtype dtype, const void *carry, const void *const *from, int sources, void *wide,
                          uint64_t count);
void tws_ordered_sum_round(tws_dtype dtype, const void *wide, void *to, uint64_t count);
static inline uint64_t tws_ordered_sum_wide(tws_dtype dtype) { /* returns the bytes of an element of `wide` */
  return dtype == TWS_F64 ? sizeof(double) : sizeof(float);
}

#endif
