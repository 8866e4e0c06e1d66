/* Writes a large new file (base/output_file.h): the caller fills buffers, and a thread writes them, bypassing the page
 * cache if the file system supports it. So computing the next bytes overlaps with writing the previous ones, and few
 * bytes are left to flush at the end. */
#ifndef TWS_CHECKPOINT_OUTPUT_H
#define TWS_CHECKPOINT_OUTPUT_H

#include <stddef.h>
#include <stdint.h>
#include "base/output_file.h"

typedef struct tws_output tws_output;

/* Opens an output to `file`, which is empty and must outlive the output. `bytes` bytes are reserved on the disk at
 * once; fails with TWS_IO if the disk lacks them. If the file is a stream (a pipe), it is written in order. */
tws_code tws_output_open(const tws_new_file *file, uint64_t bytes, tws_output **out, tws_error *err);
/* Sets *room to a buffer for the next bytes of the file and *bytes to its size. The buffer has the same alignment as
 * its offset in the file. The caller fills it, and passes the number of bytes to tws_output_take(). The error returned
 * may be that of an earlier write. */
tws_code tws_output_room(tws_output *output, void **room, size_t *bytes, tws_error *err);
void tws_output_take(tws_output *output, size_t bytes);
/* Appends `count` bytes, which it copies. The error returned may be that of an earlier write. */
tws_code tws_output_write(tws_output *output, const void *bytes, size_t count, tws_error *err);
/* Waits until all bytes are written. The file stays open and is not flushed; tws_new_file_close() flushes it. If
 * `code`, the result of the caller's work since tws_output_open(), is an error, this error is returned. */
tws_code tws_output_close(tws_output *output, tws_code code, tws_error *err);

#endif
