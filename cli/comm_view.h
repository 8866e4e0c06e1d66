/* Prints the communication log (communication/comm_log.h). */
#ifndef TWS_CLI_COMM_VIEW_H
#define TWS_CLI_COMM_VIEW_H

#include "cli/cli.h"
#include "config/ds_config.h"
#include "communication/comm_log.h"

typedef enum tws_comm_layout { TWS_COMM_NONE, TWS_COMM_DEEPSPEED, TWS_COMM_NCCL } tws_comm_layout;

/* Sets the layout of --comm-log; NULL: that of DeepSpeed if comms_logger enables the log, otherwise TWS_COMM_NONE. Also
 * checks comms_logger. Fails with TWS_USAGE for an unknown name, and with TWS_INVALID for an unknown operation. */
tws_code tws_comm_layout_read(const char *name, const tws_config *config, tws_comm_layout *out, tws_error *err);
/* Prints the log: operations by size, waiting apart from transfers, ranks and stragglers. */
tws_code tws_comm_print(const tws_cli *cli, tws_comm_log *log, tws_comm_layout layout, tws_error *err);
/* Prints the lines of comms_logger.verbose for the newest step of a record. */
void tws_comm_print_calls(const tws_cli *cli, const tws_comm_record *record);

/* Reads the communication log in the summary of a run. The caller destroys it. */
tws_code tws_comm_read_run(const char *path, tws_comm_log **out, tws_error *err);
/* Prints the rows of a run and of its simulation next to each other, with the ratio of the bandwidths, or returns them
 * as JSON. Counts are those of one step. */
tws_code tws_comm_compare_print(const tws_cli *cli, tws_comm_log *run, tws_comm_log *simulated, tws_error *err);
cJSON *tws_comm_compare_json(tws_comm_log *run, tws_comm_log *simulated);

#endif
