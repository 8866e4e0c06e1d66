/* What `twinspeed emulate` prints of a run. */
#ifndef TWS_CLI_EMULATE_VIEW_H
#define TWS_CLI_EMULATE_VIEW_H

#include "cli/cli.h"
#include "emulation/emulate.h"

void tws_emulation_print(const tws_job *job, const tws_emulation *r);
/* steps: as they were shown, which the object takes over; failure NULL: it ended well. */
tws_code tws_emulation_print_json(const tws_job *job, const tws_emulation *r, cJSON *steps, const tws_error *failure,
                                  tws_error *err);

#endif
