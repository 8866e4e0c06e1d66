/* How the pipeline stages of a job, and what its communication costs, are shown. */
#ifndef TWS_CLI_STAGE_VIEW_H
#define TWS_CLI_STAGE_VIEW_H

#include "cli/cli.h"
#include "estimators/estimators.h"

/* A table with a row for each stage, the one that needs the most memory marked, and a line on bubble and imbalance.
 * Nothing for one stage. */
tws_code tws_stages_print(const tws_cli *cli, const tws_stage_estimate *stages, int count,
                          const tws_stage_balance *balance, tws_error *err);
/* One line: for each axis how long communication took, and how much of it the rank's computation does not hide. */
void tws_axes_print(const tws_path_result *path);
/* [{"stage": 0, "rank": 0, "layers": ..., "parameters": ..., "memory_bytes": ..., "compute_s": ..., "bubble_s": ...,
 * "communication": {"data": {"busy_s": ..., "exposed_s": ...}, ...}}, ...] */
cJSON *tws_stages_json(const tws_stage_estimate *stages, int count);
/* {"data": {"busy_s": ..., "exposed_s": ...}, ...}: the axes that communicate; "other" is not communication between
 * ranks. */
cJSON *tws_axes_json(const tws_path_result *path);
/* "bubble", "compute_imbalance" and "memory_imbalance" */
void tws_balance_json(const tws_stage_balance *balance, cJSON *json);

#endif
