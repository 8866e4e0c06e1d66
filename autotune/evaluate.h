/* Evaluates one point of a search space, by a lower bound or by its plan. Internal to autotune/. */
#ifndef TWS_AUTOTUNE_EVALUATE_H
#define TWS_AUTOTUNE_EVALUATE_H

#include "autotune/autotune.h"
#include "estimators/bound.h"

/* Returns a candidate of which only the variant is set. */
tws_tune_candidate tws_tune_candidate_of(const tws_variant *variant);
/* Derives the candidate's job. A refusal by the plan is no error: *refused is set, and the candidate's verdict and
 * reason describe it. */
tws_code tws_tune_derive(const tws_tune_request *request, tws_tune_candidate *candidate, tws_job **job, int *refused,
                         tws_error *err);
/* Converts the code of a refusal (TWS_INVALID, TWS_UNSUPPORTED) into a verdict, sets *refused and returns TWS_OK;
 * returns other codes as errors. */
tws_code tws_tune_refusal(tws_tune_candidate *candidate, tws_code code, const tws_error *why, int *refused,
                          tws_error *err);
/* Sets verdict, bytes and reason from the ledger of a point without a derived job; the memory that other programs use
 * on the device is not counted. */
void tws_tune_judge_ledger(const tws_capacity *capacity, const tws_ledger *ledger, tws_tune_candidate *candidate);
/* Computes a lower bound of the step and of the memory: sets step_s, the ledger and model_flops of the estimate, and a
 * verdict if the memory already exceeds a tier. */
tws_code tws_tune_bound(const tws_tune_request *request, tws_tune_candidate *candidate, tws_error *err);
/* Computes a lower bound of the step from the model's layers alone, independent of the ZeRO knobs: sets step_s and
 * model_flops. */
tws_code tws_tune_bound_layers(const tws_tune_request *request, tws_tune_candidate *candidate, tws_error *err);
/* Returns the candidate's score by the request's objective; larger is better. If step_s and bytes are lower bounds, it
 * is an upper bound of the scores of all plans of the point. */
double tws_tune_score(const tws_tune_request *request, const tws_tune_candidate *candidate);

#endif
