/* How it is shown whether a job fits its cluster. */
#ifndef TWS_CLI_VERDICT_H
#define TWS_CLI_VERDICT_H

#include "cli/cli.h"
#include "job/fit.h"

void tws_fit_print(const tws_cli *cli, const tws_fit *fit);
cJSON *tws_fit_json(const tws_fit *fit);

#endif
