/* Measuring this machine: the function behind `twinspeed calibrate`. */
#ifndef TWS_REAL_CALIBRATE_H
#define TWS_REAL_CALIBRATE_H

#include "real/real.h"

/* Runs in every rank between start() and stop(); rank 0 writes options->out_path. */
tws_code tws_real_calibrate(const tws_calibrate_options *options, tws_error *err);

#endif
