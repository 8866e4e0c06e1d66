/* Prints the pipeline stages of a job and the cost of its communication. */
#ifndef TWS_CLI_STAGE_VIEW_H
#define TWS_CLI_STAGE_VIEW_H

#include "cli/cli.h"
#include "estimators/estimators.h"

/* Prints a table with a row for each stage, marks the one with the most memory, and adds a line on bubble and
 * imbalance. Prints nothing for one stage. */
tws_code tws_stages_print(const tws_cli *cli, const tws_stage_estimate *stages, int count,
                          const tws_stage_balance *balance, tws_error *err);
/* Prints one line with the communication time of each axis and its exposed part, which is not overlapped with
 * compute. */
void tws_axes_print(const tws_path_result *path);
/* Returns [{"stage": 0, "rank": 0, "layers": ..., "parameters": ..., "memory_bytes": ..., "compute_s": ..., "bubble_s":
 * ..., "communication": {"data": {"busy_s": ..., "exposed_s": ...}, ...}}, ...]. */
cJSON *tws_stages_json(const tws_stage_estimate *stages, int count);
/* Returns {"data": {"busy_s": ..., "exposed_s": ...}, ...} for the axes that communicate; "other" is time that is not
 * communication between ranks. */
cJSON *tws_axes_json(const tws_path_result *path);
/* Adds "bubble", "compute_imbalance" and "memory_imbalance" to `json`. */
void tws_balance_json(const tws_stage_balance *balance, cJSON *json);

#endif
