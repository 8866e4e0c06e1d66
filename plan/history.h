/* What happened to memory before: which buffer held each address last. How far every stream has to be done before the
 * memory may be used again is the buffer's to say. Internal to plan/.
 *
 * Ranges by address in leaves of some tens, as in a B+ tree of two levels: plans have hundreds of ranges, and each of
 * their buffers replaces a few. */
#ifndef TWS_PLAN_HISTORY_H
#define TWS_PLAN_HISTORY_H

#include "plan/plan.h"

enum { TWS_HISTORY_LEAF = 32 };
typedef struct tws_history_leaf {
  uint32_t count;                    /* at least 1 */
  uint32_t buffer[TWS_HISTORY_LEAF]; /* TWS_NONE: nobody was there yet */
  uint64_t begin[TWS_HISTORY_LEAF];  /* a range reaches to the next one's beginning */
} tws_history_leaf;

typedef struct tws_history_place {
  uint32_t leaf, slot;
} tws_history_place;

enum { TWS_HISTORY_HINTS = 256 };
/* All 0 at first. */
typedef struct tws_history {
  tws_history_leaf **leaves; /* by address; once there are any, they cover all addresses */
  uint64_t *first;           /* of each leaf: begin[0], side by side for the search */
  size_t count, capacity, first_capacity;
  tws_history_place hint[TWS_HISTORY_HINTS]; /* where a range with this beginning was found last: plans repeat */
} tws_history;

/* A buffer begins to live on [begin, begin + bytes): raises needed[streams] to the largest of touched[buffer][streams]
 * of the buffers that were there. */
void tws_history_require(tws_history *history, uint64_t begin, uint64_t bytes, const uint32_t *touched,
                         uint32_t streams, uint32_t *needed);
/* `buffer` is gone, and was the last on its bytes, of which there are some. Returns 0, or -1 without memory. */
int tws_history_record(tws_history *history, uint64_t begin, uint64_t bytes, uint32_t buffer);
void tws_history_free(tws_history *history);

#endif
