/* Memory that no operation may read: a range is dead from the last operation that uses it until one that writes all of
 * it without reading it. An operation that reads it too early would often find there the value that is written next,
 * such as parameters that are gathered twice; so dead memory is overwritten with a pattern that no operation
 * expects. */
#ifndef TWS_EMULATION_DEAD_MEMORY_H
#define TWS_EMULATION_DEAD_MEMORY_H

#include "plan/plan.h"

typedef struct tws_dead_range {
  uint32_t writer;        /* the operation that writes it next */
  uint32_t buffer;        /* as the writer names it */
  uint64_t offset, count; /* elements */
  uint32_t users;         /* operations that have to end before it is dead; 0: from the beginning on */
} tws_dead_range;

/* Of one rank. */
typedef struct tws_dead_ranges {
  tws_dead_range *all;
  uint32_t count;
  uint32_t *first, *of; /* by operation: of[first[op]] to of[first[op + 1]] are the ranges that it is a user of */
} tws_dead_ranges;

/* In `arena`; long plans have none. */
tws_code tws_dead_ranges_find(const tws_plan *plan, tws_arena *arena, tws_dead_ranges *out, tws_error *err);

#endif
