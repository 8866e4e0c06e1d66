/* Transfers checkpoints for ranks that do not see the folder of checkpoints of rank 0: such a rank exchanges its data
 * with rank 0 in messages of at most one block, when it saves and when it resumes. Rank 0 serves one rank after
 * another. */
#ifndef TWS_REAL_REMOTE_FILES_H
#define TWS_REAL_REMOTE_FILES_H

#include "real/train_internal.h"

/* Called on a rank that does not see the checkpoint that is resumed: tws_remote_file_fetch(), a tws_saved_fetch,
 * requests bytes of a file from rank 0; tws_remote_file_fetch_end() ends the rank's requests. */
tws_code tws_remote_file_fetch(void *training, uint32_t file, uint64_t offset, void *to, size_t count, tws_error *err);
tws_code tws_remote_file_fetch_end(tws_training *t, tws_error *err);
/* Called on rank 0: serves the requests of all ranks that do not see the checkpoint's folder, until these ranks have
 * ended their requests. */
tws_code tws_remote_file_serve(tws_training *t, tws_error *err);

/* Called on a rank that does not see the folder for saving: tws_remote_file_write(), a tws_shard_sink, sends bytes of
 * its file to rank 0; tws_remote_file_write_end() ends the file. */
tws_code tws_remote_file_write(void *training, const void *bytes, size_t count, tws_error *err);
tws_code tws_remote_file_write_end(tws_training *t, tws_error *err);
/* Called on rank 0: receives the file of `rank` and writes it to the disk. */
tws_code tws_remote_file_receive(tws_training *t, int rank, const char *path, tws_error *err);

#endif
