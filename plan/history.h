/* The history of an arena: it records which buffer occupied each address last. A new buffer has to wait until all
 * streams have finished with the earlier buffers that occupied its memory. Internal to plan/.
 *
 * Ranges are sorted by address in leaves of at most TWS_HISTORY_LEAF, as in a B+ tree of two levels: plans have
 * hundreds of ranges, and each new buffer replaces only a few of them. */
#ifndef TWS_PLAN_HISTORY_H
#define TWS_PLAN_HISTORY_H

#include "plan/plan.h"

enum { TWS_HISTORY_LEAF = 32 };
typedef struct tws_history_leaf {
  uint32_t count;                    /* number of ranges in the leaf, at least 1 */
  uint32_t buffer[TWS_HISTORY_LEAF]; /* the last buffer of each range; TWS_NONE: no buffer has used it so far */
  uint64_t begin[TWS_HISTORY_LEAF];  /* first byte of each range, which ends where the next begins */
} tws_history_leaf;

typedef struct tws_history_place {
  uint32_t leaf, slot;
} tws_history_place;

enum { TWS_HISTORY_HINTS = 256 };
/* A history; an empty one consists of zeros. */
typedef struct tws_history {
  tws_history_leaf **leaves; /* leaves in the order of addresses; unless there are none, they cover all addresses */
  uint64_t *first;           /* begin[0] of each leaf, in one array for the search */
  size_t count, capacity, first_capacity;
  /* cache: position at which the range with a given first byte was found last */
  tws_history_place hint[TWS_HISTORY_HINTS];
} tws_history;

/* Called when a buffer begins its life at [begin, begin + bytes). needed[streams] is the position that each stream must
 * have reached; it is raised to the maximum of touched[buffer][streams] over the buffers that occupied these bytes
 * earlier. */
void tws_history_require(tws_history *history, uint64_t begin, uint64_t bytes, const uint32_t *touched,
                         uint32_t streams, uint32_t *needed);
/* Called when `buffer` ends its life: records it as the last one on its bytes, of which there is at least one. Returns
 * 0, or -1 if out of memory. */
int tws_history_record(tws_history *history, uint64_t begin, uint64_t bytes, uint32_t buffer);
void tws_history_free(tws_history *history);

#endif
