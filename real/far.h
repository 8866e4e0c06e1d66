/* A checkpoint on a disk that some ranks do not see: rank 0's. What they save goes there, and what they go on from
 * comes from there, as messages of a block at most. Rank 0 attends to one of them after the other. */
#ifndef TWS_REAL_FAR_H
#define TWS_REAL_FAR_H

#include "real/train_internal.h"

/* Of a rank that does not see the checkpoint that is gone on from: a tws_saved_fetch, and the end of it. */
tws_code tws_far_fetch(void *training, uint32_t file, uint64_t offset, void *to, size_t count, tws_error *err);
tws_code tws_far_fetch_end(tws_training *t, tws_error *err);
/* Of rank 0: gives all of them what they ask for. */
tws_code tws_far_serve(tws_training *t, tws_error *err);

/* Of a rank that does not see the folder that is saved to: a tws_shard_sink, and the end of the file. */
tws_code tws_far_write(void *training, const void *bytes, size_t count, tws_error *err);
tws_code tws_far_write_end(tws_training *t, tws_error *err);
/* Of rank 0: the file of `rank`, on the disk when it returns. */
tws_code tws_far_receive(tws_training *t, int rank, const char *path, tws_error *err);

#endif
