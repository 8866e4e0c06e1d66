#include "autotune/goodput.h"

/* Default seconds from a failure until the restarted ranks continue: one minute. */
static const double restart_s = 60.0;

/* Computes the best interval between checkpoints for a variant with a given step time. */
static tws_code advise(const tws_tune_report *report, const tws_variant *variant, double step_s, double between_s,
                       tws_saving_advice *advice, tws_error *err) {
  tws_job *job;
  TWS_TRY(tws_job_derive(report->request->job, variant, &job, err));
  const tws_code code = tws_job_saving_advise(job, step_s, between_s, restart_s, advice, err);
  tws_job_destroy(job);
  return code;
}

static tws_code add_row(const tws_tune_report *report, const tws_tune_candidate *c, tws_goodput *out, tws_error *err) {
  tws_goodput_row *row = &out->rows[out->count];
  row->of = c;
  row->step_s = tws_tune_predicted(c);
  TWS_TRY(advise(report, &c->variant, row->step_s, out->between_failures_s, &row->advice, err));
  row->tokens_per_s = tws_tune_tokens_per_s(report->request, c) * row->advice.goodput;
  out->count++;
  return TWS_OK;
}

tws_code tws_goodput_find(const tws_tune_report *report, double between_s, tws_goodput *out, tws_error *err) {
  const tws_tune_result *result = report->result;
  *out =
      (tws_goodput){.between_failures_s = between_s, .restart_s = restart_s, .step_s = report->analysis->winner.step_s};
  TWS_TRY(advise(report, tws_tune_best(report, NULL), out->step_s, between_s, &out->winner, err));
  for (int i = 0; i < result->fits && i < TWS_GOODPUT_ROWS; i++)
    TWS_TRY(add_row(report, &result->candidates[i], out, err));
  return TWS_OK;
}
