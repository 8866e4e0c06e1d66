/* Calibration of the seconds of a pass of inference that are not those of its kernels: starting operations, reading
 * clocks, and choosing tokens. */
#ifndef TWS_REAL_CALIBRATE_PASSES_H
#define TWS_REAL_CALIBRATE_PASSES_H

#include "real/stopwatch.h"
#include "traces/measurements.h"

/* Measures tws_measurements.passes on a host, with a watch whose backend computes on the calling thread. quick 1:
 * fewer repetitions. */
tws_code tws_calibrate_passes(tws_stopwatch *watch, int quick, tws_measurements *m, tws_error *err);

#endif
