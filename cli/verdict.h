/* Prints whether a job fits its cluster, the bottleneck of its step, and the measured accuracy of similar
 * predictions. */
#ifndef TWS_CLI_VERDICT_H
#define TWS_CLI_VERDICT_H

#include "autotune/advice.h"
#include "cli/cli.h"
#include "job/fit.h"
#include "validation/evidence.h"

/* Prints at most three lines, one for each change that helps most: the change, how much faster or slower it is, the
 * memory of a device that it needs, and its flags. */
void tws_advice_print(const tws_cli *cli, const tws_advice *list, int count);
void tws_fit_print(const tws_cli *cli, const tws_fit *fit);
cJSON *tws_fit_json(const tws_fit *fit);
/* Prints a warning if the job does not fit, for a subcommand whose own result is the step's time. */
void tws_fit_warn(const tws_cli *cli, const tws_fit *fit);
/* Prints three lines: the bottleneck, its share of the step, and the gain without it. */
void tws_bottleneck_print(const tws_cli *cli, const tws_path_result *path);
/* Adds "bottleneck", a sentence, and "limited_by", the figures, to a result. */
void tws_bottleneck_json(const tws_path_result *path, cJSON *result);
/* Prints a line on the nearest measured run; nothing if the profile was measured on this machine. */
void tws_evidence_print(const tws_cli *cli, const tws_evidence *evidence);

#endif
