/* Prints the averages of a trace, for `twinspeed report --key-averages`. */
#ifndef TWS_CLI_TRACE_VIEW_H
#define TWS_CLI_TRACE_VIEW_H

#include "cli/cli.h"

tws_code tws_key_averages_print(const tws_cli *cli, const char *path, int by_shape, tws_error *err);

#endif
