/* Checks that all ranks read the same files: on several nodes one file name may denote different files. */
#ifndef TWS_REAL_AGREE_H
#define TWS_REAL_AGREE_H

#include "real/train_internal.h"

/* Compares the model, and the sizes and samples of the data files, among all ranks; a collective if there are several.
 * If they differ, every rank fails with TWS_INVALID, and the message names the file and the node whose file differs
 * from rank 0's. It also determines which ranks do not see rank 0's checkpoint folders. */
tws_code tws_training_agree(tws_training *t, tws_error *err);

#endif
