/* Other things to want than throughput. */
#ifndef TWS_AUTOTUNE_GOAL_H
#define TWS_AUTOTUNE_GOAL_H

#include "autotune/autotune.h"

const char *tws_goal_name(tws_goal objective); /* "throughput", "latency", ... */

/* What a score is made of, predicted or measured. */
typedef struct tws_scored {
  double step_s, samples, bytes, model_flops; /* of the whole job; bytes: of the fullest rank */
  int ranks;
} tws_scored;
/* Larger is better, and never negative; 0 where nothing is known. Of equal memory the faster is the better by less than
 * a millionth. */
double tws_goal_score(tws_goal objective, const tws_scored *scored);
tws_scored tws_candidate_scored(const tws_tune_candidate *candidate); /* as predicted */

/* The fitting candidates by the request's objective instead of throughput; by throughput they are already. */
tws_code tws_tune_order(const tws_tune_request *request, tws_tune_result *result, tws_error *err);

#endif
