/* Measuring this machine: the function behind `twinspeed calibrate`. */
#ifndef TWS_REAL_CALIBRATE_H
#define TWS_REAL_CALIBRATE_H

#include "real/real.h"

/* Runs in every rank between start() and stop(); rank 0 writes options->out_path: on a device also what was
 * measured so far, every few seconds of the first pass, in which works come in the order given, and behind each. */
tws_code tws_real_calibrate(const tws_calibrate_options *options, tws_error *err);

#endif
