/* A best-fit heap of address ranges for placing buffers ahead of time. A free block remembers how far each stream has
 * to be done before its memory may be used again. Internal to plan/. */
#ifndef TWS_PLAN_HEAP_H
#define TWS_PLAN_HEAP_H

#include "plan/plan.h"

typedef struct tws_touched {
  uint32_t position[TWS_STREAM_COUNT];
} tws_touched; /* 1-based, 0: never */

typedef struct tws_heap_block {
  uint64_t offset, bytes;
  tws_touched touched;
} tws_heap_block;

typedef struct tws_heap {
  tws_heap_block *blocks; /* free ones, by address; adjacent blocks stay apart to keep their histories apart */
  size_t count, capacity;
  uint64_t end; /* high-water mark */
} tws_heap;

/* Find room for `bytes`; *touched is what must be waited for. Returns the offset, or UINT64_MAX without memory. */
uint64_t tws_heap_take(tws_heap *heap, uint64_t bytes, tws_touched *touched);
int tws_heap_give(tws_heap *heap, uint64_t offset, uint64_t bytes, const tws_touched *touched);
void tws_heap_free(tws_heap *heap);

#endif
