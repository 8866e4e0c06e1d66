/* Calibration of this machine: the implementation of `twinspeed calibrate`. */
#ifndef TWS_REAL_CALIBRATE_H
#define TWS_REAL_CALIBRATE_H

#include "real/real.h"

/* Runs the calibration; called in every rank between start() and stop(); rank 0 writes options->out_path. On a device
 * it also writes the results so far, every few seconds and after each kernel of the first pass, which measures the
 * kernels in the given order. */
tws_code tws_real_calibrate(const tws_calibrate_options *options, tws_error *err);

#endif
