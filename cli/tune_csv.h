/* The table of a search as CSV: all its points that were planned, not only the rows that are printed. */
#ifndef TWS_CLI_TUNE_CSV_H
#define TWS_CLI_TUNE_CSV_H

#include "autotune/autotune.h"

/* Best first; "-" prints it. */
tws_code tws_tune_csv_write(const char *path, const tws_tune_result *result, const tws_tune_request *request,
                            tws_error *err);

#endif
