/* Computes the memory in use over time (the bytes of buffers that are alive) from the times of a plan's operations. */
#ifndef TWS_ESTIMATORS_MEMORY_TRACK_H
#define TWS_ESTIMATORS_MEMORY_TRACK_H

#include "plan/plan.h"
#include "traces/timeline.h"

/* From at_s on, `bytes` bytes of buffers of this tier are alive. */
typedef struct tws_memory_change {
  double at_s;
  uint64_t bytes;
  uint8_t tier, pad[7];
} tws_memory_change;

/* Lists the changes of one rank, ordered by tier and time; a buffer is alive from the start of the first operation that
 * uses it to the end of the last one, and state and inputs always. times: [op_count][2] seconds. The caller frees
 * *changes (tws_free). */
tws_code tws_memory_track(const tws_plan *plan, const double *times, tws_memory_change **changes, size_t *count,
                          tws_error *err);
/* Adds the changes to a timeline, as one counter for each tier of the rank. Returns 0, or -1 without memory. */
int tws_memory_track_add(tws_timeline *timeline, int rank, const tws_memory_change *changes, size_t count,
                         double origin_s);

#endif
