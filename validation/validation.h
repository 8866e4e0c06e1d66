/* Simulates a job, trains it, and compares the predicted step with the measured ones. */
#ifndef TWS_VALIDATION_VALIDATION_H
#define TWS_VALIDATION_VALIDATION_H

#include "base/log.h"
#include "job/simulate.h"
#include "traces/compare.h"
#include "validation/trial.h"

typedef struct tws_validation_request {
  const tws_job_spec *spec; /* specification with which the job was loaded and the ranks are started */
  const char *data;
  int64_t steps;
  const tws_sim_api *sim;
  tws_fidelity fidelity;
  const tws_log *log;     /* may be NULL */
  tws_progress *progress; /* may be NULL */
} tws_validation_request;

typedef struct tws_validation {
  tws_timeline *simulated, *measured;
  tws_comparison *comparison; /* compares the two timelines */
  tws_trial trial;
  /* seconds of a step: the predicted ones; median and quartiles of the measured ones */
  double predicted_s, measured_s, low_s, high_s;
  tws_path_result path; /* predicted longest path of rank 0 */
  double ledger_bytes;  /* predicted memory, summed over all ranks and tiers */
  const char *streams[TWS_STREAM_COUNT], *phases[TWS_PHASE_COUNT];
} tws_validation;

/* Fills *out. The caller frees it with tws_validation_free(), after an error too, and does not copy it. */
tws_code tws_validate_job(const tws_job *job, const tws_validation_request *request, tws_validation *out,
                          tws_error *err);
void tws_validation_free(tws_validation *validation);
double tws_validation_error(const tws_validation *validation); /* returns the relative error of the predicted step */

#endif
