/* What happened to memory before: ranges, each with the buffer that held it last. How far every stream has to be done
 * before a range may be used again is the buffer's to say. Internal to plan/. */
#ifndef TWS_PLAN_HISTORY_H
#define TWS_PLAN_HISTORY_H

#include "plan/plan.h"

typedef struct tws_history_range {
  uint64_t begin, end;
  uint32_t buffer;
} tws_history_range;

typedef struct tws_history {
  tws_history_range *ranges; /* by address, disjoint */
  size_t count, capacity;
} tws_history;

/* A buffer begins to live on [begin, begin + bytes): raises needed[streams] to the largest of touched[buffer][streams]
 * of the buffers that were there. */
void tws_history_require(const tws_history *history, uint64_t begin, uint64_t bytes, const uint32_t *touched,
                         uint32_t streams, uint32_t *needed);
/* `buffer` is gone, and was the last there. Returns 0, or -1 without memory. */
int tws_history_record(tws_history *history, uint64_t begin, uint64_t bytes, uint32_t buffer);
void tws_history_free(tws_history *history);

#endif
