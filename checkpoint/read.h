/* Reads any range of elements of a saved state, whichever ranks saved it. Checksums of the data are verified before the
 * data are used. */
#ifndef TWS_CHECKPOINT_READ_H
#define TWS_CHECKPOINT_READ_H

#include "checkpoint/index.h"

/* Reads bytes [offset, offset + count) of a file that another machine has, through a rank there. */
typedef tws_code (*tws_saved_fetch)(void *user, uint32_t file, uint64_t offset, void *to, size_t count, tws_error *err);

typedef struct tws_saved_reader {
  const tws_saved_index *index;
  tws_saved_fetch fetch;        /* set by the caller after opening; NULL: the files are in the index's folder */
  void *user;                   /* passed to fetch() */
  unsigned char *block;         /* the block of data that was read last */
  unsigned char *checked;       /* [file] 1: the file's header has been compared with its checksum */
  uint32_t piece, number; /* indices of the piece of `block` and of the block in the piece; or TWS_NONE */
  uint32_t file;          /* index of the open file; TWS_NONE: no file is open */
  int fd;
} tws_saved_reader;

tws_code tws_saved_reader_open(const tws_saved_index *index, tws_saved_reader *reader, tws_error *err);
void tws_saved_reader_close(tws_saved_reader *reader);

/* Reads elements [first, first + count) of the slice `slice` from a parameter of the index, as saved in
 * `entry`, and converts them to `dtype`. Elements of rows that were not saved (of a vocabulary that is padded further
 * than the saved one) stay unchanged. If param is TWS_NONE, the elements are those of the piece with the member copy
 * equal to `copy`, and `slice` is ignored. Fails with TWS_INVALID, naming file and tensor, if data are damaged or
 * missing. */
tws_code tws_saved_read(tws_saved_reader *reader, uint32_t entry, uint32_t param, int copy,
                        const tws_param_slice *slice, uint64_t first, uint64_t count, tws_dtype dtype, void *out,
                        tws_error *err);

/* Returns 1 if the parameter was saved in this slice, 0 if it was saved in others or not at all. */
int tws_saved_has_slice(const tws_saved_index *index, uint32_t entry, uint32_t param, int copy,
                        const tws_param_slice *slice);
/* Returns the number of elements of a rank's copy of an entry that belongs to no parameter; 0: it is not there. */
uint64_t tws_saved_own_elements(const tws_saved_index *index, uint32_t entry, int copy);
/* Reads all data of the checkpoint; returns TWS_OK if every checksum agrees. */
tws_code tws_saved_verify(tws_saved_reader *reader, tws_error *err);

/* Converts `count` elements: copies the bytes if the types are equal, otherwise rounds to nearest. `from` is not
 * TWS_LOW16: lower halves alone are no numbers. */
void tws_convert_elements(tws_dtype from, const void *in, tws_dtype to, void *out, uint64_t count);

#endif
