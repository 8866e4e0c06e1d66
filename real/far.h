/* Checkpoints on a disk of rank 0 that some ranks do not see. These ranks exchange their data with rank 0 in
 * messages of at most one block, when they save and when they resume. Rank 0 serves one rank after another. */
#ifndef TWS_REAL_FAR_H
#define TWS_REAL_FAR_H

#include "real/train_internal.h"

/* On a rank that does not see the checkpoint that is resumed: a tws_saved_fetch, and the end of its requests. */
tws_code tws_far_fetch(void *training, uint32_t file, uint64_t offset, void *to, size_t count, tws_error *err);
tws_code tws_far_fetch_end(tws_training *t, tws_error *err);
/* On rank 0: serves the requests of all those ranks until they end. */
tws_code tws_far_serve(tws_training *t, tws_error *err);

/* On a rank that does not see the folder for saving: a tws_shard_sink, and the end of its file. */
tws_code tws_far_write(void *training, const void *bytes, size_t count, tws_error *err);
tws_code tws_far_write_end(tws_training *t, tws_error *err);
/* On rank 0: receives the file of `rank`, which is on the disk when this returns. */
tws_code tws_far_receive(tws_training *t, int rank, const char *path, tws_error *err);

#endif
