/* Reading parts of what was saved, whoever saved which: bytes are verified before they are used. */
#ifndef TWS_CHECKPOINT_READ_H
#define TWS_CHECKPOINT_READ_H

#include "checkpoint/index.h"

/* Bytes [offset, offset + count) of a file that is elsewhere. */
typedef tws_code (*tws_saved_fetch)(void *user, uint32_t file, uint64_t offset, void *to, size_t count, tws_error *err);

typedef struct tws_saved_reader {
  const tws_saved_index *index;
  tws_saved_fetch fetch;        /* set between opening and reading; NULL: files are in the index's folder */
  void *user;                   /* of it */
  unsigned char *block;         /* the block that was read last */
  unsigned char *checked;       /* by file: its header is the one that was saved */
  uint32_t piece, number, file; /* which it is, and the file that is open; TWS_NONE: none */
  int fd;
} tws_saved_reader;

tws_code tws_saved_reader_open(const tws_saved_index *index, tws_saved_reader *reader, tws_error *err);
void tws_saved_reader_close(tws_saved_reader *reader);

/* Elements [first, first + count) of the part that `slice` cuts out of a parameter of the index, as saved in `entry`,
 * converted to `dtype`. Elements beyond the rows that were saved (of a vocabulary padded further) stay as they are.
 * With param TWS_NONE: of the piece of `copy`, and no slice. TWS_INVALID, with file and tensor: damaged, or not there.
 */
tws_code tws_saved_read(tws_saved_reader *reader, uint32_t entry, uint32_t param, int copy,
                        const tws_param_slice *slice, uint64_t first, uint64_t count, tws_dtype dtype, void *out,
                        tws_error *err);

/* Reads every byte that was saved: TWS_OK when all are as they were. */
tws_code tws_saved_verify(tws_saved_reader *reader, tws_error *err);

/* count elements; raw bytes where the types are equal, otherwise rounded to nearest. */
void tws_convert_elements(tws_dtype from, const void *in, tws_dtype to, void *out, uint64_t count);

#endif
