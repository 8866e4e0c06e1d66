/* What happened to memory before: ranges that no buffer holds now, each with how far every stream has to be done before
 * it may be used again. Internal to plan/. */
#ifndef TWS_PLAN_HISTORY_H
#define TWS_PLAN_HISTORY_H

#include "plan/plan.h"

typedef struct tws_touched {
  uint32_t position[TWS_STREAM_COUNT];
} tws_touched; /* 1-based, 0: never */

typedef struct tws_history_range {
  uint64_t begin, end;
  tws_touched touched;
} tws_history_range;

typedef struct tws_history {
  tws_history_range *ranges; /* by address, disjoint */
  size_t count, capacity;
} tws_history;

/* A buffer takes [begin, begin + bytes): *touched is what must be waited for. Returns 0, or -1 without memory. */
int tws_history_take(tws_history *history, uint64_t begin, uint64_t bytes, tws_touched *touched);
/* It is gone. The range must not overlap what the history holds. */
int tws_history_give(tws_history *history, uint64_t begin, uint64_t bytes, const tws_touched *touched);
void tws_history_free(tws_history *history);

#endif
