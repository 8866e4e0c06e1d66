/* A checkpoint's index: which slice of which tensor lies where, and the host's counters.
 *
 * DIR/latest names a tag; DIR/<tag>/index.json lists files of the same folder. These are safetensors files, one per
 * rank, whose tensors have the names that tws_piece_name() builds, readable by any program that reads the format. In
 * addition to their headers the index has, for each slice, the parameter and the elements of it, and checksums: of
 * every TWS_CHECKPOINT_BLOCK bytes of a slice's data (so that a reader of some elements verifies those), of every
 * file's header, and of the index itself. */
#ifndef TWS_CHECKPOINT_INDEX_H
#define TWS_CHECKPOINT_INDEX_H

#include "base/json.h"
#include "checkpoint/slice.h"

#define TWS_CHECKPOINT_SCHEMA "twinspeed-checkpoint-1"
#define TWS_CHECKPOINT_INDEX "index.json"
enum { TWS_CHECKPOINT_BLOCK = 1 << 20 };

typedef struct tws_saved_entry { /* of the state */
  const char *name;
  uint8_t dtype, initial; /* tws_dtype, tws_initial */
} tws_saved_entry;

typedef struct tws_saved_file {
  const char *name;
  uint64_t bytes, data;     /* of the file; where its tensors' data begins */
  uint64_t header_checksum; /* of the bytes before that */
} tws_saved_file;

typedef struct tws_saved_piece {
  tws_piece piece; /* rank: index of the file; at: offset of its data from the end of the file's header */
  const uint64_t *checksums;
} tws_saved_piece;

typedef struct tws_saved_index {
  tws_arena *arena;
  const char *path;                         /* of the folder: for messages */
  const char *model, *configuration, *plan; /* fingerprints; "" where they are not known */
  const char *architecture, *class_name;    /* of Hugging Face; "" */
  const char *dtype;                        /* of the training: "bf16" */
  const char *data;                         /* file that was trained on */
  int64_t data_tokens, samples;             /* that it has; of it that were used up */
  int64_t train_batch, sequence_length, vocabulary, padded_vocabulary;
  int64_t ranks, zero_stage;
  const char *base;    /* file that frozen parameters came from; "": they were drawn, or there are none */
  int64_t lora_r;      /* 0: no adapters */
  double lora_scale;   /* of what they add */
  int64_t block;       /* elements that share a scale in frozen parameters of few bits; 0: there are none */
  int64_t scale_block; /* blocks whose scales are kept in 8 bits, together; 0: scales are float32 */
  tws_counters counters;
  tws_saved_entry *entries;
  tws_param *params; /* name, rows, columns, fused, groups, shape, experts, own_along, bits, frozen: the checkpoint has
                        none of it */
  tws_saved_file *files;
  tws_saved_piece *pieces; /* sorted as tws_pieces_share() does */
  uint32_t entry_count, param_count, file_count, piece_count;
} tws_saved_index;

/* Bytes of a piece, and how many blocks they are. */
uint64_t tws_saved_bytes(const tws_saved_index *index, const tws_piece *piece);
uint32_t tws_saved_blocks(uint64_t bytes);

/* JSON that ends with its own checksum. */
void tws_saved_write(const tws_saved_index *index, tws_text *out);
/* TWS_INVALID: not what tws_saved_write() makes, or damaged; `path` is the folder's. Whatever the bytes are, what comes
 * out holds together: names of files have no folders in them, pieces lie inside their files and parts, numbers
 * are in range. */
tws_code tws_saved_parse(const char *text, size_t length, const char *path, tws_saved_index **out, tws_error *err);
/* The bytes of a folder's index; *text is the caller's to free. */
tws_code tws_saved_read_index(const char *folder, char **text, size_t *length, tws_error *err);
/* Opens the index in a folder; requires that every file that it names exists with its size. The hint names other
 * checkpoints of the same directory. */
tws_code tws_saved_open(const char *folder, tws_saved_index **out, tws_error *err);
/* After an error of reading: where the checkpoint at `path` is not there any more, says that and what is instead. */
tws_code tws_saved_lost(const char *path, tws_code code, tws_error *err);
void tws_saved_close(tws_saved_index *index); /* NULL is allowed */
/* Entry of this name, or TWS_NONE. */
uint32_t tws_saved_entry_of(const tws_saved_index *index, const char *name);
uint32_t tws_saved_param_of(const tws_saved_index *index, const char *name);

#endif
