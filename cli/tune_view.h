/* Prints the result of a search. */
#ifndef TWS_CLI_TUNE_VIEW_H
#define TWS_CLI_TUNE_VIEW_H

#include "autotune/results.h"
#include "cli/cli.h"

/* Prints the best `rows` candidates, the counts of points by outcome, and the difference between predicted and measured
 * times. */
tws_code tws_tune_print(const tws_cli *cli, const tws_tune_result *result, const tws_tune_request *request, int rows,
                        tws_error *err);
/* Returns the variant's parallel axes, "tp 8+seq, pp 4 (1f1b)", in a buffer of tws_cell(); "": it has none. */
const char *tws_variant_axes_cell(const tws_variant *variant);

#endif
