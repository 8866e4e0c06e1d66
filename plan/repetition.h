/* The period of a pipeline schedule in micro-batches. The lowering passes it to the layout, which determines after how
 * many micro-batches memory is periodic; plan/fold.h builds few-round plans with it. */
#ifndef TWS_PLAN_REPETITION_H
#define TWS_PLAN_REPETITION_H

#include "plan/pipeline_schedule.h"

/* Returns the micro-batches of a round, after which a stage repeats its actions with the same message slots. */
int64_t tws_fold_round(const tws_pipeline_shape *shape);
/* Returns the micro-batches after which a stage repeats its actions, possibly with other message slots. */
int64_t tws_fold_step(const tws_pipeline_shape *shape);
/* Returns the micro-batches of the shortest plan to measure. It has more than the first micro-batch, which does not
 * accumulate; in a pipeline it is so long that every stage has completed some micro-batches and reuses message
 * slots. */
int64_t tws_fold_first(const tws_pipeline_shape *shape);
/* Returns 1 if a step of this number of micro-batches may be extrapolated: it has more than the first three measured
 * plans. */
int tws_fold_applies(const tws_pipeline_shape *shape, int64_t micro_batches);

/* The period of a step's plan: a stage repeats the actions of a micro-batch `step` micro-batches later, except for the
 * last `ending` micro-batches. Zeros for other plans. */
typedef struct tws_repetition {
  uint32_t step, ending;
} tws_repetition;
tws_repetition tws_fold_repetition(const tws_pipeline_shape *shape, int stage, int64_t micro_batches);

#endif
