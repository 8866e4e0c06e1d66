/* Prints the results of the configurations that a search has trained. */
#ifndef TWS_CLI_TRIALS_VIEW_H
#define TWS_CLI_TRIALS_VIEW_H

#include "autotune/results.h"
#include "cli/cli.h"

/* Prints a row for each trial, failed ones with their reasons, and compares the predicted best trial with the measured
 * one. */
tws_code tws_trials_print(const tws_cli *cli, const tws_tune_trials *trials, const tws_tune_request *request,
                          tws_error *err);

#endif
