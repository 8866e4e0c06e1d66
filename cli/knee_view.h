/* Prints a search repeated over one figure of the cluster, as text and as JSON. */
#ifndef TWS_CLI_KNEE_VIEW_H
#define TWS_CLI_KNEE_VIEW_H

#include "autotune/knee.h"
#include "cli/cli.h"

tws_code tws_knee_print(const tws_cli *cli, const tws_knee *knee, const tws_knee_sweep *sweep,
                        const tws_tune_request *request, tws_error *err);

#endif
