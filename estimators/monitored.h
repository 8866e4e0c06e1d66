/* Opens the monitors of a run whose plan is known, so that figures of its memory can be written to TensorBoard. */
#ifndef TWS_ESTIMATORS_MONITORED_H
#define TWS_ESTIMATORS_MONITORED_H

#include "plan/plan.h"
#include "traces/monitor.h"

/* Opens the monitors as tws_monitor_open() does. If the configuration asks for figures, the scripts in the folder
 * `plots` draw them; figures of memory are drawn from rank 0's plan of a training step, `plan`; run->images is not
 * used. */
tws_code tws_monitored_open(const tws_config *config, const tws_monitor_run *run, const tws_plan *plan,
                            const char *plots, tws_monitor **out, tws_error *err);

#endif
