/* Prints the result of `twinspeed emulate`. */
#ifndef TWS_CLI_EMULATE_VIEW_H
#define TWS_CLI_EMULATE_VIEW_H

#include "cli/cli.h"
#include "emulation/emulate.h"

void tws_emulation_print(const tws_job *job, const tws_emulation *r);
/* Prints the result as JSON. steps: the printed steps, which the JSON object takes over; failure NULL: the run
 * succeeded. */
tws_code tws_emulation_print_json(const tws_job *job, const tws_emulation *r, cJSON *steps, const tws_error *failure,
                                  tws_error *err);

#endif
