/* Objectives of a search other than throughput. */
#ifndef TWS_AUTOTUNE_GOAL_H
#define TWS_AUTOTUNE_GOAL_H

#include "autotune/autotune.h"

const char *tws_goal_name(tws_goal objective); /* "throughput", "latency", ... */

/* The figures of which a score is computed, predicted or measured. */
typedef struct tws_scored {
  double step_s, samples, bytes, model_flops; /* of the whole job; bytes: of the fullest rank */
  int ranks;
} tws_scored;
/* Score by the objective: larger is better, never negative, 0 if the figures are not known. With equal memory the
 * faster candidate is better by less than a millionth. */
double tws_goal_score(tws_goal objective, const tws_scored *scored);
tws_scored tws_candidate_scored(const tws_tune_candidate *candidate); /* as predicted */

/* Sorts the fitting candidates by the request's objective; they come sorted by throughput. */
tws_code tws_tune_order(const tws_tune_request *request, tws_tune_result *result, tws_error *err);

#endif
