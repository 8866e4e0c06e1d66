/* Calibration of this machine: the implementation of `twinspeed calibrate`. */
#ifndef TWS_REAL_CALIBRATE_H
#define TWS_REAL_CALIBRATE_H

#include "real/real.h"

/* Runs in every rank between start() and stop(); rank 0 writes options->out_path. On a device it also writes the
 * results so far, every few seconds and after each work of the first pass, which runs the works in the given order. */
tws_code tws_real_calibrate(const tws_calibrate_options *options, tws_error *err);

#endif
