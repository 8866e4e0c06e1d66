/* Steps of many micro-batches. Their plans repeat themselves, so that what few rounds need and take says what any
 * number of rounds does: estimates and simulations build some and add up the rest.
 *
 * A best fit of buffers wanders, so the layout of a long plan is made to repeat (plan/layout.c): rounds in which every
 * buffer lies where the same of an earlier micro-batch lay stand for all that follow, by induction. GPipe is never
 * long: it holds all micro-batches at once. */
#ifndef TWS_PLAN_FOLD_H
#define TWS_PLAN_FOLD_H

#include "plan/pipeline_schedule.h"

/* Micro-batches of a round, after which a stage does the same with the same slots again. */
int64_t tws_fold_round(const tws_pipeline_shape *shape);
/* Micro-batches after which a stage does the same again, with whatever slots. */
int64_t tws_fold_step(const tws_pipeline_shape *shape);
/* Whether a step of so many micro-batches has a long plan: 32 rounds or more, of a step that they are all of. */
int tws_fold_is_long(const tws_pipeline_shape *shape, int64_t micro_batches);

/* How a long plan repeats itself: what a stage does for a micro-batch it does again `step` micro-batches later, and
 * what it keeps of one is gone `most` micro-batches later. Zeros for a plan that is not long. */
typedef struct tws_repetition {
  uint32_t step, round;
} tws_repetition;
tws_repetition tws_fold_repetition(const tws_pipeline_shape *shape, int64_t micro_batches);

/* What is added up, of a job with some number of micro-batches. */
typedef struct tws_fold_sample {
  double step_s;
  uint64_t bytes;   /* of all arenas that were looked at, without the network's inputs */
  uint32_t settled; /* the largest of the plans (tws_plan.settled) */
} tws_fold_sample;
enum { TWS_FOLD_SAMPLES = 4 };

/* Measures a job with so many micro-batches and keeps the results in `slot`, 0 .. TWS_FOLD_SAMPLES - 1. */
typedef tws_code (*tws_fold_measure)(void *user, int64_t micro_batches, int slot, tws_fold_sample *sample,
                                     tws_error *err);

/* Which results say all: those of `slot`, and `more` times what they have beyond those of slot `before`. */
typedef struct tws_folded {
  int slot, before;
  int64_t built; /* micro-batches of slot */
  double more;   /* 0: all micro-batches were built */
} tws_folded;
/* Steps of `wanted` micro-batches: few rounds when each of the last adds the same time and no bytes, and their layouts
 * repeat; else all of them. Time and memory: those of the measurements. */
tws_code tws_fold_find(const tws_pipeline_shape *shape, int64_t wanted, tws_fold_measure measure, void *user,
                       tws_folded *out, tws_error *err);

#endif
