/* What the configurations that a search really ran have come to, for people. */
#ifndef TWS_CLI_TRIALS_VIEW_H
#define TWS_CLI_TRIALS_VIEW_H

#include "autotune/results.h"
#include "cli/cli.h"

/* A row for each trial, failed ones with their reasons, and what is to be said of prediction and pick. */
tws_code tws_trials_print(const tws_cli *cli, const tws_tune_trials *trials, const tws_tune_request *request,
                          tws_error *err);

#endif
