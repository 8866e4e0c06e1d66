/* One job simulated and trained: predicted against measured. */
#ifndef TWS_VALIDATION_VALIDATION_H
#define TWS_VALIDATION_VALIDATION_H

#include "base/log.h"
#include "job/simulate.h"
#include "traces/compare.h"
#include "validation/trial.h"

typedef struct tws_validation_request {
  const tws_job_spec *spec; /* the job was loaded from it, and the ranks are started with it */
  const char *data;
  int64_t steps;
  const tws_sim_api *sim;
  tws_fidelity fidelity;
  const tws_log *log;     /* may be NULL */
  tws_progress *progress; /* may be NULL */
} tws_validation_request;

typedef struct tws_validation {
  tws_timeline *simulated, *measured;
  tws_comparison *comparison; /* of the two */
  tws_trial trial;
  double predicted_s, measured_s, low_s, high_s; /* of a step; measured: median and quartiles */
  tws_path_result path;                          /* of rank 0, predicted */
  double ledger_bytes;                           /* of all ranks */
  const char *streams[TWS_STREAM_COUNT], *phases[TWS_PHASE_COUNT];
} tws_validation;

/* Free *out in any case after the call; do not copy it. */
tws_code tws_validate_job(const tws_job *job, const tws_validation_request *request, tws_validation *out,
                          tws_error *err);
void tws_validation_free(tws_validation *validation);
double tws_validation_error(const tws_validation *validation); /* relative, of the step's time */

#endif
