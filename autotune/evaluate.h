/* What is known of one point of a search space, from a bound or from its plan. Internal to autotune/. */
#ifndef TWS_AUTOTUNE_EVALUATE_H
#define TWS_AUTOTUNE_EVALUATE_H

#include "autotune/autotune.h"
#include "estimators/bound.h"

/* A candidate of which nothing is known but its variant. */
tws_tune_candidate tws_tune_candidate_of(const tws_variant *variant);
/* Its job, derived. What the plan refuses is no error: *refused, and the candidate's verdict and reason say so. */
tws_code tws_tune_derive(const tws_tune_request *request, tws_tune_candidate *candidate, tws_job **job, int *refused,
                         tws_error *err);
/* A refusal becomes the verdict; other codes stay errors, of this candidate. */
tws_code tws_tune_refusal(tws_tune_candidate *candidate, tws_code code, const tws_error *why, int *refused,
                          tws_error *err);
/* Verdict, bytes and reason by candidate->estimate.ledger; job: its own. */
void tws_tune_judge(const tws_tune_request *request, const tws_job *job, tws_tune_candidate *candidate);
/* The same by a ledger of a point that was not derived: without what other programs hold beside the plan. */
void tws_tune_judge_ledger(const tws_capacity *capacity, const tws_ledger *ledger, tws_tune_candidate *candidate);
/* A lower bound of its step, and whether the least that it needs is too much: estimate has step_s and the ledger, and
 * model_flops. */
tws_code tws_tune_bound(const tws_tune_request *request, tws_tune_candidate *candidate, tws_error *err);
/* The same by what its layers alone take, whatever the knobs of ZeRO are: estimate has step_s and model_flops. */
tws_code tws_tune_bound_layers(const tws_tune_request *request, tws_tune_candidate *candidate, tws_error *err);
/* By the request's objective, larger is better: with bounds for step_s and bytes no plan of the point has more. */
double tws_tune_score(const tws_tune_request *request, const tws_tune_candidate *candidate);

#endif
