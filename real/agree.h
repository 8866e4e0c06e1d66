/* Checks that all ranks read the same files: on several nodes one file name may denote different files. */
#ifndef TWS_REAL_AGREE_H
#define TWS_REAL_AGREE_H

#include "real/train_internal.h"

/* Collective, where there are several ranks: compares the model, and the sizes and samples of the data files.
 * TWS_INVALID on every rank names the file, and the node where it differs from rank 0's. It also finds out which
 * ranks do not see rank 0's checkpoint folders. */
tws_code tws_training_agree(tws_training *t, tws_error *err);

#endif
