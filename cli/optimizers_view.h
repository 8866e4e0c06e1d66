/* Printing of a comparison of optimizers. */
#ifndef TWS_CLI_OPTIMIZERS_VIEW_H
#define TWS_CLI_OPTIMIZERS_VIEW_H

#include "autotune/optimizers.h"
#include "cli/cli.h"

/* Compares, prints the result as a table or as JSON, and draws a figure unless `figure` is NULL. */
tws_code tws_optimizers_run(const tws_cli *cli, tws_job *job, const tws_knee_sweep *sweep, int64_t steps,
                            const char *figure, tws_error *err);

/* Return or print, for each program (kind of step) of a training: how often it runs, its time, rank 0's sent bytes. */
cJSON *tws_run_json(const tws_run_estimate *run);
tws_code tws_run_print(const tws_cli *cli, const tws_run_estimate *run, tws_error *err);

#endif
