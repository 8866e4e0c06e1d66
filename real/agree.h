/* Whether all ranks read the same: on several nodes a file of one name need not be one file. */
#ifndef TWS_REAL_AGREE_H
#define TWS_REAL_AGREE_H

#include "real/train_internal.h"

/* Collective, where there are several ranks: the model, size and samples of the files of data. TWS_INVALID on every
 * rank names the file, and the node where it is another one than on rank 0's. Learns who does not see rank 0's
 * checkpoints. */
tws_code tws_training_agree(tws_training *t, tws_error *err);

#endif
