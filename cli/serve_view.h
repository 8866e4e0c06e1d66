/* The view of a prediction of inference (job/serving.h), for `estimate --serve`. */
#ifndef TWS_CLI_SERVE_VIEW_H
#define TWS_CLI_SERVE_VIEW_H

#include "cli/cli.h"
#include "job/serving.h"

/* Predicts and prints; fails with TWS_NO if the job does not fit. */
tws_code tws_serve_print(tws_cli *cli, tws_job *job, const tws_serve_request *request, tws_error *err);

#endif
