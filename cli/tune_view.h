/* What a search found, for people. */
#ifndef TWS_CLI_TUNE_VIEW_H
#define TWS_CLI_TUNE_VIEW_H

#include "autotune/results.h"
#include "cli/cli.h"

/* The best `rows`, what was counted, and how far the best is from what was measured. */
tws_code tws_tune_print(const tws_cli *cli, const tws_tune_result *result, const tws_tune_request *request, int rows,
                        tws_error *err);
/* "tp 8+seq, pp 4 (1f1b)", "" without */
const char *tws_variant_axes_cell(const tws_variant *variant);

#endif
