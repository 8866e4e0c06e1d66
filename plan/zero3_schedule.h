/* When ZeRO-3 gathers and releases parameters: DeepSpeed's parameter coordinator with a complete trace, as a function.
 *
 * A micro-batch is a list of visits (root, every module forward, root, every module backward, with recomputation where
 * it happens). Before a visit the parameters it needs and are not there are gathered at once; then the next ones of the
 * trace are prefetched, up to a budget; after it those that are not needed soon are released. What is gathered at one
 * moment is one collective, or with stage3_allgather_sequential one for each parameter: then the budget is one element,
 * so that always the next parameter of the trace is prefetched. */
#ifndef TWS_PLAN_ZERO3_SCHEDULE_H
#define TWS_PLAN_ZERO3_SCHEDULE_H

#include <stdint.h>
#include "base/memory.h"
#include "base/status.h"

typedef struct tws_zero3_visit {
  const uint32_t *params; /* sorted */
  uint32_t count;
} tws_zero3_visit;

typedef struct tws_zero3_limits {
  int64_t prefetch_bucket_size, max_live_parameters, max_reuse_distance; /* elements */
} tws_zero3_limits;

/* Slices of the result's `params`: gathered at once, prefetched, released after. */
typedef struct tws_zero3_actions {
  uint32_t gather_first, gather_count, prefetch_first, prefetch_count, release_first, release_count;
} tws_zero3_actions;

typedef struct tws_zero3_schedule {
  tws_zero3_actions *actions; /* one per visit */
  uint32_t *params;
  uint32_t param_count;
  int64_t peak_numel; /* most elements gathered at once, persistent ones left out */
} tws_zero3_schedule;

/* complete = 0: the trace is still being recorded (no prefetch, release at once). Everything lives in `arena`. */
tws_code tws_zero3_make_schedule(const tws_zero3_visit *visits, uint32_t count, uint32_t param_count,
                                 const int64_t *numel, const uint8_t *persistent, const tws_zero3_limits *limits,
                                 int complete, tws_arena *arena, tws_zero3_schedule *out, tws_error *err);

/* Likewise, as PyTorch's FSDP does with units of parameters: all of a unit is gathered at once, the next unit of the
 * trace while one is in use, and all is released after it. unit: of each parameter, below param_count. Visits that
 * follow one another and use the same units are one. */
tws_code tws_zero3_make_unit_schedule(const tws_zero3_visit *visits, uint32_t count, uint32_t param_count,
                                      const int64_t *numel, const uint32_t *unit, tws_arena *arena,
                                      tws_zero3_schedule *out, tws_error *err);

#endif
