/* Any command as a rank of a job. */
#ifndef TWS_LAUNCH_COMMAND_H
#define TWS_LAUNCH_COMMAND_H

#include "base/status.h"

/* TWS_ENVIRONMENT when there is no such program. To ask before mpirun starts: afterwards only a status without a reason
 * would come back. */
tws_code tws_command_find(const char *name, tws_error *err);
/* Inside a rank: the command, and what became of it. TWS_RANK with the signal or status it ended with. */
tws_code tws_command_run(char **argv, tws_error *err);

#endif
