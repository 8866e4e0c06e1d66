/* What the verbs that train print of a step besides its row. */
#ifndef TWS_CLI_STEP_VIEW_H
#define TWS_CLI_STEP_VIEW_H

#include "traces/step_report.h"

/* The line of wall_clock_breakdown, in DeepSpeed's words. */
void tws_print_phases(const tws_phase_seconds *phase);

#endif
