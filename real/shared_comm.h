/* The shared-memory transport of the communicator: one control page set and the arenas, mapped by every rank of the
 * node. Nothing has a name in the file system: memory disappears with the last process that maps it. */
#ifndef TWS_REAL_SHARED_COMM_H
#define TWS_REAL_SHARED_COMM_H

#include <mpi.h>
#include "real/real.h"

typedef struct tws_shared tws_shared;

/* Collective over the world. *out stays NULL, with TWS_OK, where ranks cannot share memory. */
tws_code tws_shared_create(MPI_Comm world, int rank, int world_size, uint32_t group_count, int busy, tws_shared **out,
                           tws_error *err);
void tws_shared_destroy(tws_shared *shared);
tws_code tws_shared_allocate(tws_shared *shared, uint64_t bytes, void **base, tws_error *err);

/* A group as the transport sees it: `id` numbers the distinct groups of the world. */
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
/* This rank begins (1) or ends (0) to wait for a message of another transport: for tws_shared_missing(). */
void tws_shared_waits(tws_shared *shared, int waits);
/* A rank that waits for nothing while this one does, or -1. */
int tws_shared_missing(const tws_shared *shared);

/* Types that can be summed. */
static inline int tws_ordered_sum_takes(tws_dtype dtype) {
  return dtype == TWS_F32 || dtype == TWS_BF16 || dtype == TWS_F16 || dtype == TWS_F64;
}
/* to[d][i] = sum over sources of from[s][i], in the order given, for i < count; float32 accumulation (float64 for
 * float64), rounded once. A destination may be one of the sources. dtype: one that it takes. */
void tws_ordered_sum(tws_dtype dtype, const void *const *from, int sources, void *const *to, int destinations,
                     uint64_t count);

#endif
