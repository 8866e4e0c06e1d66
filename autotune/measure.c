#include "autotune/measure.h"

#include "validation/trial.h"

/* Two rounds over the winners, so that a disturbance does not hit one of them alone. */
tws_code tws_tune_measure(tws_tune_result *result, const tws_tune_measuring *how, const char *folder, tws_error *err) {
  enum { ROUNDS = 2, MOST = 32 };
  tws_trial trials[MOST] = {0};
  int count = how->count < result->fits ? how->count : result->fits;
  if (count > MOST) count = MOST;
  tws_code code = TWS_OK;
  for (int round = 0; round < ROUNDS && code == TWS_OK; round++)
    for (int i = 0; i < count && code == TWS_OK; i++) {
      const tws_tune_candidate *c = &result->candidates[i];
      tws_variant_text text;
      const tws_job_spec spec = tws_variant_spec(how->spec, &c->variant, &text);
      const tws_trial_request trial = {.spec = &spec,
                                       .ranks = c->variant.ranks,
                                       .threads = c->variant.threads,
                                       .data = how->data,
                                       .steps = how->steps};
      tws_log_write(how->log, TWS_LOG_INFO, "measuring %s (%d of %d, round %d of %d)", c->name, i + 1, count, round + 1,
                    ROUNDS);
      code = tws_trial_run(&trial, NULL, &trials[i], err);
    }
  for (int i = 0; i < count; i++) {
    double median, low, high;
    tws_trial_times(&trials[i], &median, &low, &high);
    if (code == TWS_OK) code = tws_tune_record(&result->candidates[i], median, high - low, folder, err);
    tws_trial_free(&trials[i]);
  }
  return code;
}
