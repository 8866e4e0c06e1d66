/* Prints figures of a training step, in addition to its row in the table of steps. */
#ifndef TWS_CLI_STEP_VIEW_H
#define TWS_CLI_STEP_VIEW_H

#include "traces/step_report.h"

/* Prints the line of wall_clock_breakdown in DeepSpeed's format. */
void tws_print_phases(const tws_phase_seconds *phase);

#endif
