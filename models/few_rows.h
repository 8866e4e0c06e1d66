/* The number of rows below which the host computes matrix products with another kernel. */
#ifndef TWS_MODELS_FEW_ROWS_H
#define TWS_MODELS_FEW_ROWS_H

/* Largest number of rows (tokens) of a LINEAR for which the host uses a kernel that reads each row of the weight once,
 * as for the tokens of a decoding step; calibration and the costs of a profile treat such products as a kernel of their
 * own. */
enum { TWS_FEW_ROWS = 4 };

/* Largest number of rows of a LINEAR that calibration also measures with weights in caches. With more rows, reading the
 * weight takes a small part of the time. */
enum { TWS_REREAD_ROWS = 64 };

#endif
