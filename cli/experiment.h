/* Real training runs as experiments: started by the launcher, silent, their step times collected. */
#ifndef TWS_CLI_EXPERIMENT_H
#define TWS_CLI_EXPERIMENT_H

#include "autotune/autotune.h"
#include "cli/common.h"

typedef struct tws_trial {
  double *step_s; /* of every step but the first of each run */
  size_t count, capacity;
  double predicted_bytes, allocated_bytes;           /* sum over the ranks' arenas */
  double rank_predicted_bytes, rank_allocated_bytes; /* of the rank whose arenas are largest */
  double peak_rss_bytes;                             /* sum over the ranks */
  double first_loss, last_loss;
  int runs;
} tws_trial;

/* One run of `steps` steps; its times are added to the trial's. trace: Chrome trace of the last step (which is then
 * left out of the times), or NULL. */
tws_code tws_trial_run(const tws_job_options *job, int ranks, int threads, const char *data, int64_t steps,
                       const char *trace, tws_trial *trial, tws_error *err);
/* Median and quartiles of the steps so far; 0 without any. */
void tws_trial_times(const tws_trial *trial, double *median_s, double *low_s, double *high_s);
void tws_trial_free(tws_trial *trial);

/* The job with a point's settings in place of its own. The extra texts live in `text`. */
typedef struct tws_point_text {
  char batch[64];
} tws_point_text;
tws_job_options tws_point_options(const tws_job_options *base, const tws_tune_point *point, tws_point_text *text);

#endif
