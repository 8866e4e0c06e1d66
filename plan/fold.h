/* Few-round plans: steps of many micro-batches are periodic, so that plans of a few of them determine the memory and
 * time of any number. Estimates, simulations, checks and searches build these and extrapolate. Steps that are not
 * proven to be periodic are planned whole: GPipe, which holds all micro-batches at once, and delayed updates, since the
 * time that micro-batches hide of them depends on their number.
 *
 * Memory, by induction. Lowering does the same for each micro-batch in the middle of a step, and placement is a
 * function of the free memory. Where the buffers of all micro-batches that are alive together have the offsets of those
 * of earlier ones, the free memory is the same again, and so are all later offsets, until the optimizer phase.
 * plan/layout.c determines after how many micro-batches this is seen, and with which period it recurs
 * (tws_plan.settled, .period): a plan of that length, shorter than the whole by a multiple of the period, enters the
 * optimizer phase with the same free memory as the whole does. It needs the same arena, to the byte, except for the
 * network's inputs, which hold every micro-batch.
 *
 * Time. An operation starts when the last of its predecessors ends. A micro-batch depends on no operation earlier than
 * those of the micro-batches in flight with it. So where all of these end later than those of a period before by one
 * and the same time, all later operations do too. This is checked on three plans, each longer than the one before by
 * the same number of micro-batches: the second has to add to the first what the third adds to the second, in the step
 * and in each number of each rank's account, so that not only the longest stream is periodic but also the waits of the
 * others. Otherwise one plan more is measured, up to a limit. */
#ifndef TWS_PLAN_FOLD_H
#define TWS_PLAN_FOLD_H

#include "plan/plan.h"
#include "plan/repetition.h"

/* Builds a plan of the request's rank with the memory of its whole plan, except for the network's inputs: of few
 * micro-batches where their layout is known to repeat, otherwise of all. It has no dependencies.
 * request->max_accumulation and ->use are ignored. */
tws_code tws_fold_plan(const tws_plan_request *request, tws_plan **out, tws_error *err);

/* Returns 1 if a plan's memory layout is proven to be that of the whole step of `wanted` micro-batches. */
int tws_fold_says_memory(const tws_plan *plan, int64_t wanted);

/* ---- times ---- */

/* Chooses the use of a plan whose time is measured: if its layout does not determine the whole step's memory and no
 * stream waits for memory, the layout is not computed. */
tws_plan_use tws_fold_use(const tws_pipeline_shape *shape, int64_t micro_batches);

/* Measurements of a job with some number of micro-batches, from which the whole step is extrapolated. */
typedef struct tws_fold_sample {
  double step_s;
  const double *numbers; /* `count` numbers of each rank's time account, rank r's at numbers + r * stride */
  size_t count, stride;
  size_t first_time,
      times; /* range of numbers that are dates in the step: they grow by the step's growth, or stay constant */
  int ranks;
  uint32_t settled; /* largest tws_plan.settled of the plans */
} tws_fold_sample;
enum { TWS_FOLD_SAMPLES = 3 };

/* Measures a job with `micro_batches` micro-batches and keeps the results in `slot`, 0 .. TWS_FOLD_SAMPLES - 1. */
typedef tws_code (*tws_fold_measure)(void *user, int64_t micro_batches, int slot, tws_fold_sample *sample,
                                     tws_error *err);

/* The result of a search: the step's results are those of `slot`, plus `more` times their difference to those of slot
 * `before`. */
typedef struct tws_folded {
  int slot, before;
  int64_t built; /* micro-batches of slot */
  double more;   /* 0: all micro-batches were built */
} tws_folded;
/* Finds the few micro-batches that determine a step of `wanted` ones, and measures them. */
tws_code tws_fold_find(const tws_pipeline_shape *shape, int64_t wanted, tws_fold_measure measure, void *user,
                       tws_folded *out, tws_error *err);

#endif
