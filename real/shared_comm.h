/* The shared-memory transport of the communicator: one control page set and the arenas, mapped by every rank of the
 * node. Nothing has a name in the file system: memory disappears with the last process that maps it. */
#ifndef TWS_REAL_SHARED_COMM_H
#define TWS_REAL_SHARED_COMM_H

#include <mpi.h>
#include "models/collective.h"
#include "real/real.h"

typedef struct tws_shared tws_shared;

enum { TWS_SHARED_SEGMENTS = 128 }; /* of one collective that the others can see at a time */

/* Collective over the world. `node`: the ranks that share memory, which it keeps using. *out stays NULL, with TWS_OK,
 * on all ranks where any of them cannot. */
tws_code tws_shared_create(MPI_Comm world, MPI_Comm node, uint32_t group_count, int busy, tws_shared **out,
                           tws_error *err);
void tws_shared_destroy(tws_shared *shared);
tws_code tws_shared_allocate(tws_shared *shared, uint64_t bytes, void **base, tws_error *err);

/* A group as the transport sees it: `id` numbers the distinct groups of the world; ranks are the world's. */
typedef struct tws_shared_group {
  uint32_t id;
  int size, index;
  const int *ranks;
} tws_shared_group;

/* 1 when every address of the segments lies in memory of tws_shared_allocate(). Ranks run the same plan, so they
 * agree. */
int tws_shared_covers(const tws_shared *shared, tws_collective collective, const tws_shared_group *group, int root,
                      const tws_comm_segment *segments, int count);
void tws_shared_collective(tws_shared *shared, const tws_shared_group *group, tws_collective collective, int root,
                           const tws_comm_segment *segments, int count);
void tws_shared_barrier(tws_shared *shared, const tws_shared_group *group);

/* The same in parts, for a group of which only some members are here. show(): where the segments lie, at most
 * TWS_SHARED_SEGMENTS; known to the others behind a barrier, and valid until the next. copy(): what members [first,
 * last), which are here, have for this rank of a collective that does not reduce. */
void tws_shared_show(tws_shared *shared, tws_collective_parts parts, const tws_comm_segment *segments, int count);
void tws_shared_copy(const tws_shared *shared, const tws_shared_group *group, const tws_collective_row *row, int root,
                     int first, int last, int segment, const tws_comm_segment *s);
/* What a rank of this node (as the world numbers it) has shown. */
char *tws_shared_sent(const tws_shared *shared, int rank, int segment);
char *tws_shared_received(const tws_shared *shared, int rank, int segment);
/* This rank begins (1) or ends (0) to wait for a message of another transport: for tws_shared_missing(). */
void tws_shared_waits(tws_shared *shared, int waits);
/* A rank that waits for nothing while this one does, or -1. */
int tws_shared_missing(const tws_shared *shared);
int tws_shared_is_waiting(const tws_shared *shared); /* this rank is */

/* Types that can be summed. */
static inline int tws_ordered_sum_takes(tws_dtype dtype) {
  return dtype == TWS_F32 || dtype == TWS_BF16 || dtype == TWS_F16 || dtype == TWS_F64;
}
/* to[d][i] = sum over sources of from[s][i], in the order given, for i < count; float32 accumulation (float64 for
 * float64), rounded once. A destination may be one of the sources. dtype: one that it takes. */
void tws_ordered_sum(tws_dtype dtype, const void *const *from, int sources, void *const *to, int destinations,
                     uint64_t count);
/* The same sum in parts: `wide`, float32 (float64 for float64), becomes what is in `carry` (NULL: nothing yet) and then
 * the sources; the last part is rounded. carry may be wide. */
void tws_ordered_sum_part(tws_dtype dtype, const void *carry, const void *const *from, int sources, void *wide,
                          uint64_t count);
void tws_ordered_sum_round(tws_dtype dtype, const void *wide, void *to, uint64_t count);
static inline uint64_t tws_ordered_sum_wide(tws_dtype dtype) { /* bytes of an element of `wide` */
  return dtype == TWS_F64 ? sizeof(double) : sizeof(float);
}

#endif
