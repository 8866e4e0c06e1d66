/* How the micro-batches of a step repeat each other. The lowering tells the layout, which finds out after how many of
 * them memory repeats; plan/fold.h builds plans of few of them by it. */
#ifndef TWS_PLAN_REPETITION_H
#define TWS_PLAN_REPETITION_H

#include "plan/pipeline_schedule.h"

/* Micro-batches of a round, after which a stage does the same with the same slots again. */
int64_t tws_fold_round(const tws_pipeline_shape *shape);
/* Micro-batches after which a stage does the same again, with whatever slots. */
int64_t tws_fold_step(const tws_pipeline_shape *shape);
/* Micro-batches of the first sample. The first of a step does not accumulate; in a pipeline, each stage has done with
 * some of them, and its messages have come to the slots of earlier ones. */
int64_t tws_fold_first(const tws_pipeline_shape *shape);
/* Whether a step of so many micro-batches may be read from fewer: when it has more than the first three samples. */
int tws_fold_applies(const tws_pipeline_shape *shape, int64_t micro_batches);

/* How the layout of such a step's plans repeats itself: what a stage does for a micro-batch it does again `step`
 * micro-batches later; the last `ending` ones may differ. Zeros for other plans. */
typedef struct tws_repetition {
  uint32_t step, ending;
} tws_repetition;
tws_repetition tws_fold_repetition(const tws_pipeline_shape *shape, int stage, int64_t micro_batches);

#endif
