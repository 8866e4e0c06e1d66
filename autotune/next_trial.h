/* Chooses the next configuration to run, where runs are expensive, by one of DeepSpeed's tuners:
 *   gridsearch   in the order of the space: stage, recomputation, ranks, ..., micro batch
 *   random       without replacement, in an order drawn from the seed
 *   model_based  the best prediction first; then the largest expected improvement (Jones, Schonlau and Welch, 1998)
 * under a Gaussian process over the measurements. Its mean is the prediction times the mean ratio of measurement to
 * prediction, its kernel a squared exponential over stage, recomputation and the logarithms of micro batch,
 * accumulation, ranks, threads and axes. All three are deterministic: the same results in the same order select the
 * same trial, so that a resumed search makes the same choices as an uninterrupted one. */
#ifndef TWS_AUTOTUNE_NEXT_TRIAL_H
#define TWS_AUTOTUNE_NEXT_TRIAL_H

#include "autotune/autotune.h"

typedef struct tws_trial_point {
  const tws_variant *variant;
  double predicted; /* predicted score; larger is better (autotune/goal.h) */
  double measured;  /* measured score; 0: the trial failed, or the point was not tried yet */
} tws_trial_point;

typedef struct tws_trial_rule {
  tws_tuner tuner;
  uint64_t seed;
  int trials;         /* maximum number of trials */
  int early_stopping; /* stop after this many trials without an improvement; 0: never */
} tws_trial_rule;

/* Sets *next to the index of the next of `count` points, given the indices of all trials so far in their order; -1: the
 * search ends by its rule, or every point was tried. */
tws_code tws_next_trial(const tws_trial_rule *rule, const tws_trial_point *points, int count, const int *tried,
                        int tried_count, int *next, tws_error *err);

#endif
