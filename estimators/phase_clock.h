/* Computes the seconds of the passes of a step from the times at which each operation of one rank's plan started and
 * ended. It reports the same times as DeepSpeed's wall_clock_breakdown, but does not wait for the device between the
 * passes. The seconds of a pass are those in which at least one of its operations runs, so passes that overlap share
 * time. */
#ifndef TWS_ESTIMATORS_PHASE_CLOCK_H
#define TWS_ESTIMATORS_PHASE_CLOCK_H

#include "plan/plan.h"
#include "traces/step_report.h"

typedef struct tws_phase_clock tws_phase_clock;

/* Creates a clock for a plan, which must outlive the clock. */
tws_code tws_phase_clock_create(const tws_plan *plan, tws_phase_clock **out, tws_error *err);
void tws_phase_clock_destroy(tws_phase_clock *clock); /* NULL is allowed */
/* Returns the seconds of the passes. times: double [op_count][2], start and end of each operation in seconds;
 * operations of a stream start in the order in which they were issued. The function allocates nothing. */
tws_phase_seconds tws_phase_clock_read(tws_phase_clock *clock, const double *times);

#endif
