/* How a job is shown to people. */
#ifndef TWS_CLI_JOB_VIEW_H
#define TWS_CLI_JOB_VIEW_H

#include "cli/cli.h"
#include "job/assumed.h"

/* With --verbose, on standard error: what the tensor ranks add to the vocabulary. tws_job_print() says it too. */
void tws_job_remark(const tws_cli *cli, const tws_job *job);
/* A paragraph, or nothing where nothing was assumed; of a job what it assumes. tws_job_print() says it too. */
void tws_assumptions_print(const tws_cli *cli, const tws_assumption *list, int count);
/* The first line of an answer: whose software runs the plan, and why; nothing on a host. */
void tws_runtime_print(const tws_cli *cli, const tws_job *job);
/* Runtime, model, cluster, job and what was assumed. */
void tws_job_print(const tws_cli *cli, const tws_job *job);
/* {"model": ..., "ranks": ..., ...}: what was asked for, for the --json results. */
cJSON *tws_job_json(const tws_job *job);
/* "1,234,567" in a rotating buffer */
const char *tws_thousands(int64_t value);

#endif
