/* The view of a prediction of inference (job/serving.h), for `estimate --serve`. */
#ifndef TWS_CLI_SERVE_VIEW_H
#define TWS_CLI_SERVE_VIEW_H

#include "cli/cli.h"
#include "job/assumed.h"
#include "job/serving.h"

enum { TWS_SERVE_ASSUMPTIONS = TWS_ASSUMPTIONS + 1 };
/* Writes the assumptions of a request and of its job to `list`, as tws_job_assumed() those of a training, and returns
 * their number. The job has the figures of the software (tws_job_set_server()). */
int tws_serve_assumed(const tws_job *job, const tws_serve_request *request, tws_assumption list[TWS_SERVE_ASSUMPTIONS]);

/* Prints software, model, cluster, with_ranks 1: ranks and types, and assumptions. */
void tws_serve_job_print(const tws_cli *cli, const tws_job *job, const tws_serve_request *request, int with_ranks);
/* Predicts and prints; fails with TWS_NO if the job does not fit. */
tws_code tws_serve_print(tws_cli *cli, tws_job *job, const tws_serve_request *request, tws_error *err);

#endif
