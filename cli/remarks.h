/* Notes and warnings about a job, printed to standard error before its results. */
#ifndef TWS_CLI_REMARKS_H
#define TWS_CLI_REMARKS_H

#include "cli/cli.h"
#include "job/job.h"

/* Prints each line of the text as a note on a line of its own, and frees the text. */
void tws_notes_say(const tws_cli *cli, tws_text *text);
/* Prints warnings for keys without effect, and notes for keys that the job's runtime ignores, for parts of the model
 * that are not modelled and for an ambiguous model name. model: the name as given. */
void tws_job_remarks(const tws_cli *cli, const char *model, const tws_job *job);
/* Prints the same warnings and notes for a subcommand that reads the configuration's section "autotuning". */
void tws_tune_remarks(const tws_cli *cli, const char *model, const tws_job *job);
/* Prints the note for an ambiguous model name alone, for a subcommand whose result includes the model's notes. */
void tws_model_remark(const tws_cli *cli, const char *model, const tws_job *job);
/* Prints the assumptions (job/assumed.h) as a note, for a subcommand whose result does not include them; `trains`:
 * without those that affect a prediction alone. */
void tws_job_assumed_remark(const tws_cli *cli, const tws_job *job, int trains);
/* Prints the values chosen for "auto", and the whole numbers that counts given as fractions were rounded to; included
 * in the remarks about a job. */
void tws_config_remark(const tws_cli *cli, const tws_config *config);
/* Prints a warning if the machine had other load during calibration; included in the remarks about a job. */
void tws_noise_remark(const tws_cli *cli, const tws_profile *profile);
/* Prints a note if a text is read as bytes although the model's vocabulary is larger. */
void tws_data_remark(const tws_cli *cli, const char *path, const tws_network *network);

#endif
