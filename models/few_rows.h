/* The limit between the host's two kernels of matrix products. */
#ifndef TWS_MODELS_FEW_ROWS_H
#define TWS_MODELS_FEW_ROWS_H

/* Most rows of a LINEAR for which the host reads each row of the weight once, as for the tokens of a decode;
 * calibration and the costs of a profile treat such products as a kernel of their own. */
enum { TWS_FEW_ROWS = 4 };

#endif
