/* Shows the progress of a training: on a terminal a few lines that refresh, or a line of JSON for each step. */
#ifndef TWS_CLI_LIVE_H
#define TWS_CLI_LIVE_H

#include "cli/cli.h"
#include "job/job.h"
#include "traces/step_report.h"

typedef enum tws_progress_mode { TWS_PROGRESS_PLAIN, TWS_PROGRESS_LIVE, TWS_PROGRESS_JSON } tws_progress_mode;

/* Sets the mode of --progress; NULL: live if standard error is a terminal that can erase lines. is_rank 1: the process
 * was started by another one, which has decided already. Live without such a terminal becomes plain, and a note says
 * so; --quiet makes live plain. Fails with TWS_USAGE for an unknown name. */
tws_code tws_progress_mode_read(const tws_cli *cli, const char *name, int is_rank, tws_progress_mode *out,
                                tws_error *err);
const char *tws_progress_mode_name(tws_progress_mode mode);

typedef struct tws_live {
  tws_progress_mode mode;
  int64_t steps; /* of the whole training */
  /* sentence on what takes most of the predicted step; "": not known */
  char bottleneck[200];
  double started_s, drawn_s;
  int64_t first_step; /* steps before the first report */
} tws_live;

/* Prepares the display for rank 0; for mode LIVE it estimates the job. */
void tws_live_open(const tws_job *job, tws_progress_mode mode, int64_t steps, tws_live *live);
/* Shows a step: at most ten times a second and after the last step; JSON: always. Allocates nothing. */
void tws_live_step(tws_live *live, const tws_step_report *report);

#endif
