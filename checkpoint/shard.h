/* The file of one rank: a safetensors file (https://github.com/huggingface/safetensors#format) of pieces. */
#ifndef TWS_CHECKPOINT_SHARD_H
#define TWS_CHECKPOINT_SHARD_H

#include "checkpoint/index.h"

/* Elements [first, first + count) of a piece, as they are in the state. */
typedef tws_code (*tws_piece_source)(void *user, const tws_piece *piece, uint64_t first, uint64_t count, void *to,
                                     tws_error *err);

typedef struct tws_shard_request {
  const tws_state_entry *entries;
  const tws_param *params;
  const tws_piece *pieces; /* that the file is to have, in this order */
  uint32_t count;
  tws_piece_source source;
  void *user;
} tws_shard_request;

/* The values that the index needs: where each slice's data begins after the header, and its checksums,
 * consecutively. */
typedef struct tws_shard_written {
  uint64_t bytes, data, header_checksum;
  uint64_t *at;        /* by piece */
  uint64_t *checksums; /* tws_saved_blocks() of each piece */
  uint64_t checksum_count;
} tws_shard_written;

/* Takes the file's bytes, from the first to the last. */
typedef tws_code (*tws_shard_sink)(void *user, const void *bytes, size_t count, tws_error *err);

/* Bytes that the file will have, and the name that it will have. */
uint64_t tws_shard_bytes(const tws_shard_request *request);
const char *tws_shard_name(int rank, char *buffer, size_t size); /* "rank-00003.safetensors" */
/* Lists of *written are in the arena. */
tws_code tws_shard_make(const tws_shard_request *request, tws_shard_sink sink, void *user, tws_arena *arena,
                        tws_shard_written *written, tws_error *err);
/* The same into a new file: on the disk when it returns. */
tws_code tws_shard_write(const char *path, const tws_shard_request *request, tws_arena *arena,
                         tws_shard_written *written, tws_error *err);

#endif
