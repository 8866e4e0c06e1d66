/* estimate --fit: prints how many GPUs a job needs. */
#ifndef TWS_CLI_FIT_VIEW_H
#define TWS_CLI_FIT_VIEW_H

#include "autotune/smallest.h"
#include "cli/cli.h"

/* Searches the smallest number of GPUs of each kind and prints it. Fails with TWS_NO if no kind of cluster suffices. */
tws_code tws_fit_answer(tws_cli *cli, const tws_smallest_request *request, tws_error *err);

#endif
