/* Memory of ranks of one process, in which ranks with equal data share physical pages until one of them writes.
 *
 * Every arena is a private mapping. If a range holds the same bytes as the same range of another rank's arena, it is
 * moved to a file in memory (memfd), which both map copy-on-write: a rank that writes gets private pages from the
 * kernel, and no other rank is affected. So sharing changes only how much memory is needed; data are compared byte
 * by byte before. Ranges of a few pages are not shared. Not thread-safe. */
#ifndef TWS_REAL_SHARED_PAGES_H
#define TWS_REAL_SHARED_PAGES_H

#include "real/real.h"

typedef struct tws_shared_pages tws_shared_pages;

/* Creates an empty set of arenas. Fails with TWS_ENVIRONMENT if the system has no memfd files. */
tws_code tws_shared_pages_create(tws_shared_pages **out, tws_error *err);
void tws_shared_pages_destroy(tws_shared_pages *pages); /* destroys the set with all its arenas; NULL is allowed */

/* tws_shared_pages_begin_rank() begins the next rank. tws_shared_pages_comm() returns a communicator whose allocate()
 * returns zeroed arenas for the rank that was begun last; it has no other function. */
tws_code tws_shared_pages_begin_rank(tws_shared_pages *pages, tws_error *err);
const tws_comm_ops *tws_shared_pages_ops(void);
tws_comm *tws_shared_pages_comm(tws_shared_pages *pages);

/* Shares a range with equal ranges of other ranks, if possible; to be called when a range of a rank's arena has just
 * been written (ranks are numbered in the order in which they were begun). `writer`: a number that is equal for ranges
 * into which ranks have probably written the same data. Fails with TWS_MEMORY if the system allows no more mappings. */
tws_code tws_shared_pages_share(tws_shared_pages *pages, uint32_t rank, const void *at, uint64_t bytes, uint32_t writer,
                                tws_error *err);

typedef struct tws_shared_count {
  uint64_t mapped_bytes, held_bytes; /* mapped_bytes: bytes of shared pages that are mapped into ranks' arenas;
                                      * held_bytes: memory that these pages use */
} tws_shared_count;
tws_shared_count tws_shared_pages_count(const tws_shared_pages *pages);

#endif
