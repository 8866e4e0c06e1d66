#include "job/own_engine.h"

#include <string.h>

#include "job/fit.h"

tws_own_engine tws_own_engine_find(const tws_job_spec *spec, const char *program) {
  tws_own_engine own = {.known = 0};
  tws_job_spec plain = *spec;
  tws_estimate estimate;
  tws_job *job = NULL;
  tws_error none = {0};
  if (!spec->runtime || strcmp(spec->runtime, "twinspeed") == 0) return own;
  plain.runtime = NULL;
  tws_code code = tws_job_load(&plain, &job, &none);
  if (code == TWS_OK) code = tws_job_choose_program(job, program, &none);
  if (code == TWS_OK) code = tws_job_estimate(job, &estimate, NULL, &none);
  if (code == TWS_OK) own = (tws_own_engine){1, estimate.step_s, tws_job_fit(job, &estimate.ledger).device_need};
  tws_job_destroy(job);
  return own;
}
