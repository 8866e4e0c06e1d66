/* Writes the file of one rank: a safetensors file (https://github.com/huggingface/safetensors#format) whose tensors are
 * pieces (checkpoint/slice.h). */
#ifndef TWS_CHECKPOINT_SHARD_H
#define TWS_CHECKPOINT_SHARD_H

#include "checkpoint/index.h"

/* Copies elements [first, first + count) of a piece from the state to `to`, in the state's type. */
typedef tws_code (*tws_piece_source)(void *user, const tws_piece *piece, uint64_t first, uint64_t count, void *to,
                                     tws_error *err);

typedef struct tws_shard_request {
  const tws_state_entry *entries;
  const tws_param *params;
  const tws_piece *pieces; /* the pieces that the file will contain, in this order */
  uint32_t count;
  tws_piece_source source;
  void *user;
} tws_shard_request;

/* Values that describe a written file in the checkpoint's index. */
typedef struct tws_shard_written {
  uint64_t bytes, data, header_checksum;
  uint64_t *at;        /* [piece] offset of the piece's data from the end of the header, bytes */
  uint64_t *checksums; /* checksums of the data: tws_saved_blocks() values for each piece, consecutively */
  uint64_t checksum_count;
} tws_shard_written;

/* Receives the file's bytes in order, `count` at a time. */
typedef tws_code (*tws_shard_sink)(void *user, const void *bytes, size_t count, tws_error *err);

/* tws_shard_bytes() estimates the size of the file in bytes (data and header), and tws_shard_name() its name. */
uint64_t tws_shard_bytes(const tws_shard_request *request);
const char *tws_shard_name(int rank, char *buffer, size_t size); /* "rank-00003.safetensors" */
/* Generates the bytes of a rank's checkpoint file and passes them to `sink`; the arrays of *written are in the
 * arena. */
tws_code tws_shard_make(const tws_shard_request *request, tws_shard_sink sink, void *user, tws_arena *arena,
                        tws_shard_written *written, tws_error *err);
/* Writes a rank's checkpoint file to `path`, like tws_shard_make(). The file is flushed to the disk when the call
 * returns. */
tws_code tws_shard_write(const char *path, const tws_shard_request *request, tws_arena *arena,
                         tws_shard_written *written, tws_error *err);

#endif
