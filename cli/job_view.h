/* Prints a job as text. */
#ifndef TWS_CLI_JOB_VIEW_H
#define TWS_CLI_JOB_VIEW_H

#include "cli/cli.h"
#include "job/assumed.h"
#include "job/features.h"

/* Prints to standard error, with --verbose, how many tokens tensor parallelism adds to pad the vocabulary.
 * tws_job_print() includes this. */
void tws_job_remark(const tws_cli *cli, const tws_job *job);
/* Prints the assumptions as a paragraph, or nothing if there are none. tws_job_print() includes this. */
void tws_assumptions_print(const tws_cli *cli, const tws_assumption *list, int count);
/* Prints the first line of a result: the software that runs the plan, such as Megatron or DeepSpeed, and why it was
 * chosen. Prints nothing if the job runs on CPUs. */
void tws_runtime_print(const tws_cli *cli, const tws_job *job);
/* Prints which of the features `lacked` the job's runtime has not, so that it cannot run `jobs` ("this job"). Prints
 * nothing if none are lacked. */
void tws_lacks_print(const tws_cli *cli, const tws_job *job, tws_features lacked, const char *jobs);
/* Print the lines of the model and of the cluster. tws_job_print() includes them. */
void tws_model_print(const tws_cli *cli, const tws_job *job);
void tws_cluster_print(const tws_cli *cli, const tws_job *job);
/* Appends the start of the line of the job: its ranks and parallel axes. */
void tws_job_ranks_text(const tws_cli *cli, const tws_job *job, tws_text *line);
/* Prints runtime, model, cluster, job and assumptions. */
void tws_job_print(const tws_cli *cli, const tws_job *job);
/* Returns {"model": ..., "ranks": ..., ...}, the settings of the job, for the --json results. */
cJSON *tws_job_json(const tws_job *job);
/* Returns a text such as "1,234,567", in one of a few buffers that are reused in turn. */
const char *tws_thousands(int64_t value);

#endif
