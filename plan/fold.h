/* Few-round plans: steps of many micro-batches are periodic, so that plans of a few micro-batches determine the memory
 * and time of any number. Estimates, simulations, checks and searches build such short plans and extrapolate from them.
 * Steps that are not proven to be periodic are planned whole: GPipe, which holds all micro-batches at once, delayed
 * updates, since the part of the update that overlaps with micro-batches depends on their number, and sparse gradients,
 * whose rows are those of all tokens of a step.
 *
 * Memory is periodic by induction. Lowering emits the same operations for each micro-batch in the middle of a step, and
 * the placement of a buffer is a function of the free memory. As soon as the buffers of all micro-batches that are
 * alive together have the same offsets as the buffers of earlier micro-batches had, the free memory is the same as it
 * was then, and all later offsets repeat until the optimizer phase. plan/layout.c determines after how many
 * micro-batches offsets repeat, and with which period (tws_plan.settled, .period): a plan of that length, which is
 * shorter than the plan of the whole step by a multiple of the period, enters the optimizer phase with the same free
 * memory as the plan of the whole step. It needs an arena of the same size, to the byte, except for the network's
 * inputs, which hold every micro-batch.
 *
 * Time is periodic for the following reason. An operation starts when the last of its predecessors ends. A micro-batch
 * depends on no operation that is earlier than those of the micro-batches in flight with it. If all operations in
 * flight end later by T seconds than the corresponding operations one period earlier, then all later operations do,
 * too. This is checked on three plans, each longer than the previous one by the same number of micro-batches. The step
 * time, and each number of each rank's time account, has to grow from the second plan to the third as much as from the
 * first to the second, so that not only the longest stream is periodic but also the waits of the other streams.
 * Otherwise one more, longer plan is measured, up to a limit. */
#ifndef TWS_PLAN_FOLD_H
#define TWS_PLAN_FOLD_H

#include "plan/plan.h"
#include "plan/repetition.h"

/* Builds a plan of the request's rank that needs as much memory as the plan of the whole step, except for the network's
 * inputs: a plan of few micro-batches if their layout is known to repeat, otherwise of all micro-batches. It has no
 * dependencies. request->max_accumulation and ->use are ignored. */
tws_code tws_fold_plan(const tws_plan_request *request, tws_plan **out, tws_error *err);

/* Returns 1 if a plan is proven to need as much memory as the plan of the whole step of `wanted` micro-batches. */
int tws_fold_determines_memory(const tws_plan *plan, int64_t wanted);

/* ---- times ---- */

/* Returns the value of request->use for a plan of this many micro-batches whose time is measured: the layout is not
 * computed if it does not determine the memory of the whole step and no stream waits for memory. */
tws_plan_use tws_fold_use(const tws_pipeline_shape *shape, int64_t micro_batches);

/* The measurements of a job with some number of micro-batches, from which those of the whole step are extrapolated. */
typedef struct tws_fold_sample {
  double step_s;
  const double *numbers; /* `count` numbers of each rank's time account, rank r's at numbers + r * stride */
  size_t count, stride;
  size_t first_time,
      /* numbers [first_time, first_time + times) are seconds since the step began; with more micro-batches each
       * grows as much as the step does, or stays constant */
      times;
  int ranks;
  uint32_t settled; /* largest tws_plan.settled (micro-batches until the layout recurs) of the plans */
} tws_fold_sample;
enum { TWS_FOLD_SAMPLES = 3 };

/* Measures a job with `micro_batches` micro-batches and stores the results in slot number `slot` (0 to
 * `TWS_FOLD_SAMPLES - 1`) of the caller. */
typedef tws_code (*tws_fold_measure)(void *user, int64_t micro_batches, int slot, tws_fold_sample *sample,
                                     tws_error *err);

/* The result of tws_fold_find(): the results of the whole step are those of `slot`, plus `more` times the difference
 * between those of `slot` and those of slot `before`. */
typedef struct tws_folded {
  int slot, before;
  int64_t built; /* number of micro-batches of the plan that was built and measured in `slot` */
  double more;   /* factor by which the difference of the last two measurements is added to reach all micro-batches; 0:
                  * all micro-batches of the step were measured */
} tws_folded;
/* Measures jobs with increasing numbers of micro-batches, few of the `wanted`, until these determine the whole step. */
tws_code tws_fold_find(const tws_pipeline_shape *shape, int64_t wanted, tws_fold_measure measure, void *user,
                       tws_folded *out, tws_error *err);

#endif
