/* Memory of ranks that live in one process, in which those that hold equal bits hold them once, until one of them
 * writes.
 *
 * Every arena is a private mapping. A range that is seen to hold what the same range of another rank's arena holds is
 * moved to a file in memory, and both map it from there, copy on write: a rank that writes gets pages of its own, by
 * the system, and nobody else sees it. So nothing depends on what is shared but how much memory is needed; what ranks
 * have is compared byte by byte before. Ranges of a few pages are not worth it. Not thread-safe. */
#ifndef TWS_REAL_SHARED_PAGES_H
#define TWS_REAL_SHARED_PAGES_H

#include "real/real.h"

typedef struct tws_shared_pages tws_shared_pages;

/* TWS_ENVIRONMENT: the system has no such files. */
tws_code tws_shared_pages_create(tws_shared_pages **out, tws_error *err);
void tws_shared_pages_destroy(tws_shared_pages *pages); /* with all its arenas; NULL is allowed */

/* A communicator whose allocate() gives out arenas of the rank that was begun last, zeroed, and that does nothing
 * else. */
tws_code tws_shared_pages_begin_rank(tws_shared_pages *pages, tws_error *err);
const tws_comm_ops *tws_shared_pages_ops(void);
tws_comm *tws_shared_pages_comm(tws_shared_pages *pages);

/* A range of an arena of a rank (counted from 0, as they were begun) has just been written. `writer`: a number that is
 * equal where ranks may be expected to have written the same. TWS_MEMORY: the system takes no more mappings. */
tws_code tws_shared_pages_settle(tws_shared_pages *pages, uint32_t rank, const void *at, uint64_t bytes,
                                 uint32_t writer, tws_error *err);

typedef struct tws_shared_count {
  uint64_t mapped_bytes, held_bytes; /* what ranks see of shared pages, and what these take */
} tws_shared_count;
tws_shared_count tws_shared_pages_count(const tws_shared_pages *pages);

#endif
