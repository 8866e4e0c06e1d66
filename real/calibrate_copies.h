/* Rates of copies between devices and pinned memory of their host, in one direction and in both at once. */
#ifndef TWS_REAL_CALIBRATE_COPIES_H
#define TWS_REAL_CALIBRATE_COPIES_H

#include "real/calibrate_device.h"

/* Measures the rates of all ranks of the calibration run together, while each of them copies between its device and its
 * own pinned memory. `comm` connects the ranks, all of which call this function and get the same rates; NULL: there is
 * one rank. Copies have at most `most_bytes` bytes (0: 256 MiB). */
tws_code tws_calibrate_copies(const tws_calibrate_device *on, tws_comm *comm, uint64_t most_bytes,
                              tws_copy_rates *rates, tws_error *err);
/* Adds a note with the rates to the measurements. */
tws_code tws_calibrate_note_copies(const tws_copy_rates *rates, tws_measurements *m, tws_error *err);

#endif
