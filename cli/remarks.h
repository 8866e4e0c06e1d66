/* What has to be said about a job before its results, on standard error. */
#ifndef TWS_CLI_REMARKS_H
#define TWS_CLI_REMARKS_H

#include "cli/cli.h"
#include "job/job.h"

/* Keys without effect as warnings; what of the model is left out and which of two models a name means as notes. model:
 * as it was given. */
void tws_job_remarks(const tws_cli *cli, const char *model, const tws_job *job);
/* The same of a verb that reads the section autotuning. */
void tws_tune_remarks(const tws_cli *cli, const char *model, const tws_job *job);
/* Which of two models alone, for a verb that shows the model's notes in its result. */
void tws_model_remark(const tws_cli *cli, const char *model, const tws_job *job);
/* What was assumed (job/assumed.h) as a note, of a verb whose result does not say it; `trains`: without what matters to
 * a prediction alone. */
void tws_job_assumed_remark(const tws_cli *cli, const tws_job *job, int trains);
/* What was taken for "auto" and for fractions of counts, as notes; part of the remarks about a job. */
void tws_config_remark(const tws_cli *cli, const tws_config *config);
/* A warning where the machine was not quiet when it was measured; part of the remarks about a job. */
void tws_noise_remark(const tws_cli *cli, const tws_profile *profile);
/* That a text is trained on as bytes, where the model's vocabulary is larger than that. */
void tws_data_remark(const tws_cli *cli, const char *path, const tws_network *network);

#endif
