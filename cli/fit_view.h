/* estimate --fit: how many GPUs a job needs. */
#ifndef TWS_CLI_FIT_VIEW_H
#define TWS_CLI_FIT_VIEW_H

#include "autotune/smallest.h"
#include "cli/cli.h"

/* Finds and prints. TWS_NO when no kind of machine does. */
tws_code tws_fit_answer(tws_cli *cli, const tws_smallest_request *request, tws_error *err);

#endif
