/* Runs real trainings as trials: the launcher starts them without output, and their step times are collected. */
#ifndef TWS_VALIDATION_TRIAL_H
#define TWS_VALIDATION_TRIAL_H

#include <stddef.h>
#include "base/log.h"
#include "job/spec.h"

typedef struct tws_trial {
  double *step_s; /* seconds of every step, without the first step of each run */
  size_t count, capacity;
  double predicted_bytes, allocated_bytes;           /* bytes of all ranks' arenas together */
  double rank_predicted_bytes, rank_allocated_bytes; /* bytes of the arenas of the rank that has the largest ones */
  double peak_rss_bytes;                             /* peak resident memory, summed over the ranks */
  double first_loss, last_loss;
  int runs;
} tws_trial;

/* A training of the specification on `ranks` ranks with `threads` threads each. */
typedef struct tws_trial_request {
  const tws_job_spec *spec;
  int ranks, threads;
  const char *data;
  int64_t steps;
  tws_progress *progress; /* counts steps; NULL: none */
} tws_trial_request;

/* Runs the training once and adds its times to the trial. trace: path of the Chrome trace to write of the last step,
 * which is then left out of the times; NULL: none. */
tws_code tws_trial_run(const tws_trial_request *request, const char *trace, tws_trial *trial, tws_error *err);
/* Computes the median and the quartiles of all step times so far; 0 if there are none. */
void tws_trial_times(const tws_trial *trial, double *median_s, double *low_s, double *high_s);
void tws_trial_free(tws_trial *trial);

#endif
