/* Elements of the state as they are saved and offered to programs. Only float32 master weights in two halves
 * (twinspeed.split_master_weights) differ from what is in memory: their entry has the lower halves, and the parameters
 * are the bfloat16 numbers to which the weights round (LOW16 in base/dtype.h). */
#ifndef TWS_REAL_SPLIT_MASTERS_H
#define TWS_REAL_SPLIT_MASTERS_H

#include "real/executor.h"

/* Returns the type in which an entry's elements are saved: float32 for lower halves, else the entry's own. */
tws_dtype tws_whole_dtype(const tws_state_entry *entry);
/* Reads `count` elements of a state's buffer of the training program, from element `at` on, in the type in which they
 * are saved. Lower halves must belong to shards of the plan's state; on the host's backend a thread may read them while
 * operations run that change neither half. */
tws_code tws_whole_get(tws_executor *executor, const tws_plan *plan, uint32_t buffer, uint64_t at, uint64_t count,
                       void *to, tws_error *err);

#endif
