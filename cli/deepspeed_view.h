/* Prints DeepSpeed's memory formulas for a job next to the ledger of its plan. */
#ifndef TWS_CLI_DEEPSPEED_VIEW_H
#define TWS_CLI_DEEPSPEED_VIEW_H

#include "cli/cli.h"
#include "job/deepspeed_comparison.h"

tws_code tws_deepspeed_comparison_print(const tws_cli *cli, const tws_deepspeed_comparison *b, tws_error *err);
cJSON *tws_deepspeed_comparison_json(const tws_deepspeed_comparison *b);

#endif
