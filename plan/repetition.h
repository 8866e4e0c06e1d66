/* Determines the period of a pipeline schedule in micro-batches. The lowering passes it to the layout, which determines
 * after how many micro-batches memory is periodic; plan/fold.h builds plans of few micro-batches with it. */
#ifndef TWS_PLAN_REPETITION_H
#define TWS_PLAN_REPETITION_H

#include "plan/pipeline_schedule.h"

/* Returns the number of micro-batches after which a stage repeats its actions with the same message slots (a round). */
int64_t tws_fold_round(const tws_pipeline_shape *shape);
/* Returns the number of micro-batches after which a stage repeats its actions, possibly with other message slots. */
int64_t tws_fold_step(const tws_pipeline_shape *shape);
/* Returns the number of micro-batches of the shortest plan to measure. Such a plan has more than the first micro-batch,
 * which does not accumulate gradients; in a pipeline it is so long that every stage has completed some micro-batches
 * and reuses message slots. */
int64_t tws_fold_first(const tws_pipeline_shape *shape);
/* Returns 1 if a step of this number of micro-batches may be extrapolated, which requires that it has more
 * micro-batches than the first three measured plans. */
int tws_fold_applies(const tws_pipeline_shape *shape, int64_t micro_batches);

/* The period of a step's plan, in micro-batches: a stage repeats the actions of a micro-batch `step` micro-batches
 * later, except for the last `ending` micro-batches. Both are 0 for plans that are not periodic. */
typedef struct tws_repetition {
  uint32_t step, ending;
} tws_repetition;
tws_repetition tws_fold_repetition(const tws_pipeline_shape *shape, int stage, int64_t micro_batches);

#endif
