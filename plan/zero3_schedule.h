/* The schedule of ZeRO-3's gathers and releases: a function that computes what DeepSpeed's parameter coordinator does
 * once its trace is complete.
 *
 * A micro-batch is a list of visits (root, every module forward, root, every module backward, including recomputation).
 * Before a visit, the parameters that it needs and that are not gathered yet are gathered immediately; then the next
 * parameters of the trace are prefetched, up to a budget; after the visit, parameters that no visit needs soon are
 * released. Parameters that are gathered at the same time are gathered by one collective. With
 * stage3_allgather_sequential each parameter is gathered by a collective of its own, and the budget is one element, so
 * that only the next parameter of the trace is prefetched. */
#ifndef TWS_PLAN_ZERO3_SCHEDULE_H
#define TWS_PLAN_ZERO3_SCHEDULE_H

#include <stdint.h>
#include "base/memory.h"
#include "base/status.h"

typedef struct tws_zero3_visit {
  const uint32_t *params; /* parameter indices, ascending */
  uint32_t count;
} tws_zero3_visit;

typedef struct tws_zero3_limits {
  int64_t prefetch_bucket_size, max_live_parameters, max_reuse_distance; /* all three in elements */
} tws_zero3_limits;

/* Slices of tws_zero3_schedule.params: the parameters that are gathered before the visit, those that are prefetched,
 * and those that are released after it. */
typedef struct tws_zero3_actions {
  uint32_t gather_first, gather_count, prefetch_first, prefetch_count, release_first, release_count;
} tws_zero3_actions;

typedef struct tws_zero3_schedule {
  tws_zero3_actions *actions; /* per visit: its actions */
  uint32_t *params;
  uint32_t param_count;
  int64_t peak_numel; /* largest number of gathered elements, without persistent parameters */
} tws_zero3_schedule;

/* Builds the schedule of a trace of visits. complete 0: the trace is still being recorded, so nothing is prefetched and
 * parameters are released immediately. The result is allocated in `arena`. */
tws_code tws_zero3_make_schedule(const tws_zero3_visit *visits, uint32_t count, uint32_t param_count,
                                 const int64_t *numel, const uint8_t *persistent, const tws_zero3_limits *limits,
                                 int complete, tws_arena *arena, tws_zero3_schedule *out, tws_error *err);

/* Builds the schedule of PyTorch's FSDP: all parameters of a unit are gathered by one collective, the next unit of the
 * trace is prefetched while one is in use, and a unit is released after its use. unit[param_count]: index of each
 * parameter's unit, below param_count. Successive visits that use the same units are merged. */
tws_code tws_zero3_make_unit_schedule(const tws_zero3_visit *visits, uint32_t count, uint32_t param_count,
                                      const int64_t *numel, const uint32_t *unit, tws_arena *arena,
                                      tws_zero3_schedule *out, tws_error *err);

#endif
