/* Monitors of a run whose plan is known, so that TensorBoard's events can have figures of its memory. */
#ifndef TWS_ESTIMATORS_MONITORED_H
#define TWS_ESTIMATORS_MONITORED_H

#include "plan/plan.h"
#include "traces/monitor.h"

/* Opens the monitors as tws_monitor_open() does. Where the configuration asks for figures they are drawn with the
 * scripts in the folder `plots`, those of memory from rank 0's plan of a training step; run->images is not used. */
tws_code tws_monitored_open(const tws_config *config, const tws_monitor_run *run, const tws_plan *plan,
                            const char *plots, tws_monitor **out, tws_error *err);

#endif
