/* Few rounds: steps of many micro-batches repeat themselves, so that plans of some say what any number of them needs
 * and takes. Estimates, simulations, checks and searches build these, and add up the rest. What does not prove to
 * repeat is planned whole. GPipe is: it holds all micro-batches at once; and so is what an update of the step before
 * runs beside, since how much of it they hide depends on their number.
 *
 * Memory, by induction. Lowering does the same for each micro-batch of a step's middle, and placement is a function of
 * what is free. Where the buffers of as many micro-batches as are alive together lie where those of an earlier one lay,
 * the free memory is the same again, and so is all that follows, until the step ends. plan/layout.c says after how many
 * micro-batches that is seen, and after how many it recurs (tws_plan.settled, .period): a plan that is so long, and
 * shorter than the whole by a multiple of the period, begins its end with the same free memory as the whole does. It
 * needs the same arena, to the byte, but for the network's inputs, of which there is one for each micro-batch.
 *
 * Time. When an operation starts is the latest of the times at which those that it waits for ended. What a micro-batch
 * waits for reaches back no farther than to those that are in flight with it. So where all of them ended later by one
 * and the same time than those a step before, all that follow do, too. Of that the samples see what the step is made
 * of: three plans, each longer than the one before by the same number of micro-batches. The second adds to the first
 * what the third adds to the second: to the step, and to each number of each rank's account, so that not only the
 * longest of the streams is steady, but what the others wait as well. Else there is one sample more, up to a limit. */
#ifndef TWS_PLAN_FOLD_H
#define TWS_PLAN_FOLD_H

#include "plan/plan.h"
#include "plan/repetition.h"

/* A plan of the request's rank with the memory of its whole plan, but for the network's inputs: of few micro-batches
 * where their layout is known to repeat, else of all. It has no dependencies. request->max_accumulation and ->use are
 * not looked at. */
tws_code tws_fold_plan(const tws_plan_request *request, tws_plan **out, tws_error *err);

/* Whether a plan's layout is known to be that of the whole of `wanted` micro-batches. */
int tws_fold_says_memory(const tws_plan *plan, int64_t wanted);

/* ---- times ---- */

/* A sample is not worth a layout that makes no stream wait where it would not say what the whole needs. */
tws_plan_use tws_fold_use(const tws_pipeline_shape *shape, int64_t micro_batches);

/* What is added up, of a job with some number of micro-batches. */
typedef struct tws_fold_sample {
  double step_s;
  const double *numbers; /* `count` of the account of each rank: rank r's begin at numbers + r * stride */
  size_t count, stride;
  size_t first_time, times; /* numbers that are times in the step: they grow as the step does, or stay */
  int ranks;
  uint32_t settled; /* the largest of the plans */
} tws_fold_sample;
enum { TWS_FOLD_SAMPLES = 3 };

/* Measures a job with so many micro-batches and keeps the results in `slot`, 0 .. TWS_FOLD_SAMPLES - 1. */
typedef tws_code (*tws_fold_measure)(void *user, int64_t micro_batches, int slot, tws_fold_sample *sample,
                                     tws_error *err);

/* Which results say all: those of `slot`, and `more` times what they have beyond those of slot `before`. */
typedef struct tws_folded {
  int slot, before;
  int64_t built; /* micro-batches of slot */
  double more;   /* 0: all micro-batches were built */
} tws_folded;
/* Steps of `wanted` micro-batches, measured by as few as say all. */
tws_code tws_fold_find(const tws_pipeline_shape *shape, int64_t wanted, tws_fold_measure measure, void *user,
                       tws_folded *out, tws_error *err);

#endif
