#include "autotune/evaluate.h"

#include <stdio.h>

#include "autotune/goal.h"

tws_tune_candidate tws_tune_candidate_of(const tws_variant *variant) {
  tws_tune_candidate c = {.variant = *variant};
  c.samples = (double)(variant->micro * variant->accumulation * tws_variant_replicas(variant));
  tws_variant_name(variant, c.name, sizeof c.name);
  return c;
}

tws_code tws_tune_refusal(tws_tune_candidate *c, tws_code code, const tws_error *why, int *refused, tws_error *err) {
  *refused = code == TWS_UNSUPPORTED || code == TWS_INVALID;
  if (*refused) {
    c->verdict = TWS_TUNE_NOT_SUPPORTED;
    snprintf(c->reason, sizeof c->reason, "refused: %.140s", why->message);
    return TWS_OK;
  }
  if (code == TWS_OK) return TWS_OK;
  if (err) *err = *why;
  return tws_fail_in(err, code, "%s", c->name);
}

tws_code tws_tune_derive(const tws_tune_request *request, tws_tune_candidate *c, tws_job **job, int *refused,
                         tws_error *err) {
  tws_error why = {0};
  *job = NULL;
  return tws_tune_refusal(c, tws_job_derive(request->job, &c->variant, job, &why), &why, refused, err);
}

/* ---- memory ---- */

static void judge(const tws_fit *fit, const tws_ledger *ledger, tws_tune_candidate *c) {
  static const char *const places[TWS_TIER_COUNT] = {
      [TWS_TIER_DEVICE] = "device memory", [TWS_TIER_HOST] = "host memory", [TWS_TIER_DISK] = "disk"};
  c->needed_bytes = fit->rank_need;
  c->available_bytes = fit->rank_have;
  c->verdict = fit->fits                      ? TWS_TUNE_FITS
               : fit->tier == TWS_TIER_DEVICE ? TWS_TUNE_NO_DEVICE_MEMORY
                                              : TWS_TUNE_NO_HOST_MEMORY;
  if (fit->fits) return;
  const tws_ledger_tier *guilty = &ledger->tier[fit->tier];
  int largest = 0;
  for (int i = 1; i < TWS_CATEGORY_COUNT; i++)
    if (guilty->category[i] > guilty->category[largest]) largest = i;
  snprintf(c->reason, sizeof c->reason, "%s: mostly %s", places[fit->tier], tws_category_name((tws_category)largest));
}

/* Sets verdict, bytes and reason from c->estimate.ledger. job: the candidate's job. */
static void judge_estimate(const tws_tune_request *request, const tws_job *job, tws_tune_candidate *c) {
  const tws_fit fit = tws_job_fit_within(job, &c->estimate.ledger, request->memory_bytes);
  judge(&fit, &c->estimate.ledger, c);
}

void tws_tune_judge_ledger(const tws_capacity *capacity, const tws_ledger *ledger, tws_tune_candidate *c) {
  const tws_fit fit = tws_fit_of(capacity, ledger);
  judge(&fit, ledger, c);
}

int tws_tune_is_tight(const tws_tune_request *request, const tws_tune_candidate *c) {
  const double high = tws_runtime_memory_interval(tws_profile_runtime(request->job->profile))->high;
  const tws_capacity capacity = tws_capacity_of(&request->job->machine, c->variant.ranks, request->memory_bytes);
  if (request->keeps_margin || capacity.host || c->verdict != TWS_TUNE_FITS) return 0;
  return (c->needed_bytes + capacity.device - c->available_bytes) * high > capacity.device;
}

/* ---- time ---- */

tws_code tws_tune_bound(const tws_tune_request *request, tws_tune_candidate *c, tws_error *err) {
  tws_error why = {0};
  tws_bound bound;
  tws_job *job;
  int refused;
  TWS_TRY(tws_tune_derive(request, c, &job, &refused, err));
  if (refused) return TWS_OK;
  const tws_plan_request plan = tws_job_request(job, 0);
  const tws_code code = tws_bound_step(&plan, &job->machine, &bound, &why);
  if (code == TWS_OK) {
    c->estimate.step_s = bound.step_s;
    c->estimate.ledger = bound.ledger;
    c->print = bound.print;
    c->estimate.model_flops = tws_model_flops(&plan);
    judge_estimate(request, job, c);
    c->implied = c->verdict != TWS_TUNE_FITS;
  }
  c->rough = 1;
  tws_job_destroy(job);
  return tws_tune_refusal(c, code, &why, &refused, err);
}

tws_code tws_tune_bound_layers(const tws_tune_request *request, tws_tune_candidate *c, tws_error *err) {
  tws_error why = {0};
  tws_bound bound = {.step_s = 0};
  tws_job *job;
  int refused;
  TWS_TRY(tws_tune_derive(request, c, &job, &refused, err));
  if (refused) return TWS_OK;
  const tws_plan_request plan = tws_job_request(job, 0);
  const tws_code code = tws_bound_layers(&plan, &job->machine, &bound, &why);
  c->estimate.step_s = bound.step_s;
  c->estimate.model_flops = tws_model_flops(&plan);
  tws_job_destroy(job);
  return tws_tune_refusal(c, code, &why, &refused, err);
}

tws_code tws_tune_estimate(const tws_tune_request *request, tws_tune_candidate *c, tws_error *err) {
  tws_error why = {0};
  tws_job *job;
  int refused;
  c->rough = c->implied = 0;
  TWS_TRY(tws_tune_derive(request, c, &job, &refused, err));
  if (refused) return TWS_OK;
  tws_code code = tws_job_live(job, &c->estimate.ledger, &why);
  if (code == TWS_OK) judge_estimate(request, job, c);
  /* the arena of a complete plan is at least as large as the live bytes that were checked above, so it may exceed the
   * tier */
  if (code == TWS_OK && c->verdict == TWS_TUNE_FITS) {
    code = tws_job_estimate(job, &c->estimate, NULL, &why);
    if (code == TWS_OK) judge_estimate(request, job, c);
  }
  tws_job_destroy(job);
  return tws_tune_refusal(c, code, &why, &refused, err);
}

double tws_tune_throughput(const tws_tune_candidate *c) {
  const double seconds = tws_tune_predicted(c);
  return seconds > 0 ? c->samples / seconds : 0;
}

double tws_tune_tokens_per_s(const tws_tune_request *request, const tws_tune_candidate *c) {
  return tws_tune_throughput(c) * (double)tws_job_sequence(request->job);
}

double tws_tune_score(const tws_tune_request *request, const tws_tune_candidate *c) {
  const tws_scored scored = tws_candidate_scored(c);
  return tws_goal_score(request->goal, &scored);
}
