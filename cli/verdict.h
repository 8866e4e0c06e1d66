/* How it is shown whether a job fits its cluster, what limits its step, and how far what is said of it is from what was
 * measured. */
#ifndef TWS_CLI_VERDICT_H
#define TWS_CLI_VERDICT_H

#include "autotune/advice.h"
#include "cli/cli.h"
#include "job/fit.h"
#include "validation/evidence.h"

/* Three lines at most: a change, how much faster or slower it is, what it needs of a device, the flags. */
void tws_advice_print(const tws_cli *cli, const tws_advice *list, int count);
/* Adds "advice" to a result. */
void tws_advice_json(const tws_advice *list, int count, cJSON *root);
void tws_fit_print(const tws_cli *cli, const tws_fit *fit);
cJSON *tws_fit_json(const tws_fit *fit);
/* A warning where the job does not fit, for a verb that answers another question: how long a step takes. */
void tws_fit_warn(const tws_cli *cli, const tws_fit *fit);
/* Three lines: which resource, how much of the step, what would be gained without it. */
void tws_bottleneck_print(const tws_cli *cli, const tws_path_result *path);
/* Adds "bottleneck", a sentence, and "limited_by", the figures, to a result. */
void tws_bottleneck_json(const tws_path_result *path, cJSON *result);
/* A line on the nearest measured run; nothing where the machine's own profile is the evidence. */
void tws_evidence_print(const tws_cli *cli, const tws_evidence *evidence);

#endif
