/* Computes the scores of candidates by the objective of a search, such as throughput or cost. */
#ifndef TWS_AUTOTUNE_GOAL_H
#define TWS_AUTOTUNE_GOAL_H

#include "autotune/autotune.h"

const char *tws_goal_name(tws_goal objective); /* returns "throughput", "latency", ... */

/* The predicted or measured figures from which a score is computed. */
typedef struct tws_scored {
  /* figures of the whole job; bytes: peak memory of the rank that uses the most */
  double step_s, samples, bytes, model_flops;
  int ranks;
} tws_scored;
/* Returns the score by the objective: larger is better, never negative, 0 if the figures are not known. With equal
 * memory the faster candidate is better by less than a millionth. */
double tws_goal_score(tws_goal objective, const tws_scored *scored);
tws_scored tws_candidate_scored(const tws_tune_candidate *candidate); /* returns the predicted figures */

/* Sorts the fitting candidates, which are sorted by throughput on entry, by the request's objective. */
tws_code tws_tune_order(const tws_tune_request *request, tws_tune_result *result, tws_error *err);

#endif
