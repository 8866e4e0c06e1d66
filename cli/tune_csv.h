/* Writes the result of a search as CSV: all points that were planned, including those that are not printed. */
#ifndef TWS_CLI_TUNE_CSV_H
#define TWS_CLI_TUNE_CSV_H

#include "autotune/autotune.h"

/* Writes the points, best first; path "-": to standard output. */
tws_code tws_tune_csv_write(const char *path, const tws_tune_result *result, const tws_tune_request *request,
                            tws_error *err);

#endif
