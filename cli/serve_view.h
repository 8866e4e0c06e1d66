/* The view of a prediction of inference (job/serving.h), for `estimate --serve`. */
#ifndef TWS_CLI_SERVE_VIEW_H
#define TWS_CLI_SERVE_VIEW_H

#include "cli/cli.h"
#include "job/serving.h"

/* Prints software, model, cluster, with_ranks 1: ranks and types, and assumptions. */
void tws_serve_job_print(const tws_cli *cli, const tws_job *job, const tws_serve_request *request, int with_ranks);
/* Predicts and prints; fails with TWS_NO if the job does not fit. */
tws_code tws_serve_print(tws_cli *cli, tws_job *job, const tws_serve_request *request, tws_error *err);

#endif
