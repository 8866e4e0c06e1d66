/* Which configuration to run next, when runs are real and few: the tuners of DeepSpeed by name.
 *   gridsearch   in the order of the space: stage, recomputation, ranks, ..., micro batch
 *   random       without replacement, in an order drawn from the seed
 *   model_based  the predicted best first; then the largest expected improvement (Jones, Schonlau and Welch, 1998)
 * under a Gaussian process over what has been measured. Its mean is the prediction times what predictions were off by
 * on average, its kernel a squared exponential over stage, recomputation and the logarithms of micro batch,
 * accumulation, ranks, threads and axes. All are deterministic: the same results in the same order choose the same
 * trial, so that a search which was killed goes on as it would have gone on. */
#ifndef TWS_AUTOTUNE_NEXT_TRIAL_H
#define TWS_AUTOTUNE_NEXT_TRIAL_H

#include "autotune/autotune.h"

typedef struct tws_trial_point {
  const tws_variant *variant;
  double predicted; /* scores: larger is better (autotune/goal.h) */
  double measured;  /* 0: a trial that failed, or no trial yet */
} tws_trial_point;

typedef struct tws_trial_rule {
  tws_tuner tuner;
  uint64_t seed;
  int trials;         /* at most */
  int early_stopping; /* end after so many trials without a better one; 0: never */
} tws_trial_rule;

/* Index of the next of `count` points, given the indices of all trials so far in their order; -1 when the search has
 * ended by its rule or because every point was tried. */
tws_code tws_next_trial(const tws_trial_rule *rule, const tws_trial_point *points, int count, const int *tried,
                        int tried_count, int *next, tws_error *err);

#endif
