/* The bytes of a large new file (base/output_file.h): the caller fills buffers, a thread of the output writes them,
 * past the page cache where the file system can. So making the next bytes and writing the last overlap, and little is
 * left to flush at the end. */
#ifndef TWS_CHECKPOINT_OUTPUT_H
#define TWS_CHECKPOINT_OUTPUT_H

#include <stddef.h>
#include <stdint.h>
#include "base/output_file.h"

typedef struct tws_output tws_output;

/* `file`, which is empty and outlives the output; `bytes` are reserved on the disk at once: TWS_IO where there is no
 * room. A stream is written to in order. */
tws_code tws_output_open(const tws_new_file *file, uint64_t bytes, tws_output **out, tws_error *err);
/* Returns room for the bytes that follow those written so far, aligned as they are in the file; they count once
 * tws_output_take() is called. The error may be that of earlier bytes. */
tws_code tws_output_room(tws_output *output, void **room, size_t *bytes, tws_error *err);
void tws_output_take(tws_output *output, size_t bytes);
/* Appends bytes from other memory. The error may be that of an earlier call's bytes. */
tws_code tws_output_write(tws_output *output, const void *bytes, size_t count, tws_error *err);
/* All bytes are written when it returns TWS_OK; the file stays open, and flushing it to the disk is its end's
 * (tws_new_file_close()). `code` is what came in between: where it is another, that is handed on. */
tws_code tws_output_close(tws_output *output, tws_code code, tws_error *err);

#endif
