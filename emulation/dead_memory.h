/* Finds memory that no operation may read: a range is dead from the last operation that uses it until one that writes
 * all of it without reading it. An operation that reads it too early would often find there the value that is written
 * next, such as parameters that are gathered twice; so dead memory is overwritten with a pattern that no operation
 * expects. */
#ifndef TWS_EMULATION_DEAD_MEMORY_H
#define TWS_EMULATION_DEAD_MEMORY_H

#include "plan/plan.h"

typedef struct tws_dead_range {
  uint32_t writer;        /* index of the operation that writes the range next */
  uint32_t buffer;        /* index of the buffer that the writer names */
  uint64_t offset, count; /* in elements of the buffer */
  uint32_t users;         /* operations that must have ended before the range is dead; 0: always dead */
} tws_dead_range;

/* The dead ranges of one rank's plan. */
typedef struct tws_dead_ranges {
  tws_dead_range *all;
  uint32_t count;
  uint32_t *first, *of; /* [operation] operation op is a user of the ranges of[first[op]] to of[first[op + 1] - 1] */
} tws_dead_ranges;

/* Finds the dead ranges of a plan; the result is in `arena`. For long plans it finds none (out->count is 0). */
tws_code tws_dead_ranges_find(const tws_plan *plan, tws_arena *arena, tws_dead_ranges *out, tws_error *err);

#endif
