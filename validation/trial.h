/* Real training runs as trials: started by the launcher, silent, their step times collected. */
#ifndef TWS_VALIDATION_TRIAL_H
#define TWS_VALIDATION_TRIAL_H

#include <stddef.h>
#include "base/log.h"
#include "job/spec.h"

typedef struct tws_trial {
  double *step_s; /* of every step but the first of each run */
  size_t count, capacity;
  double predicted_bytes, allocated_bytes;           /* sum over the ranks' arenas */
  double rank_predicted_bytes, rank_allocated_bytes; /* of the rank whose arenas are largest */
  double peak_rss_bytes;                             /* sum over the ranks */
  double first_loss, last_loss;
  int runs;
} tws_trial;

/* A training of the specification on `ranks` ranks with `threads` threads each. */
typedef struct tws_trial_request {
  const tws_job_spec *spec;
  int ranks, threads;
  const char *data;
  int64_t steps;
  tws_progress *progress; /* in steps; NULL: none */
} tws_trial_request;

/* One run; its times are added to the trial's. trace: Chrome trace of the last step (which is then left out of the
 * times), or NULL. */
tws_code tws_trial_run(const tws_trial_request *request, const char *trace, tws_trial *trial, tws_error *err);
/* Median and quartiles of the steps so far; 0 without any. */
void tws_trial_times(const tws_trial *trial, double *median_s, double *low_s, double *high_s);
void tws_trial_free(tws_trial *trial);

#endif
