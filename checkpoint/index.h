/* A checkpoint's index lists which slice of which tensor is in which file, and the counters of the training.
 *
 * DIR/latest names a tag; DIR/<tag>/index.json lists files of the same folder. These are safetensors files, one per
 * rank, whose tensors have the names that tws_piece_name() builds, readable by any program that reads the format. For
 * each slice, the index also records the parameter and the range of its elements. It has checksums: of every
 * TWS_CHECKPOINT_BLOCK bytes of a slice's data (so that a reader of some elements verifies those), of every file's
 * header, and of the index itself. */
#ifndef TWS_CHECKPOINT_INDEX_H
#define TWS_CHECKPOINT_INDEX_H

#include "base/json.h"
#include "checkpoint/slice.h"

#define TWS_CHECKPOINT_SCHEMA "twinspeed-checkpoint-1"
#define TWS_CHECKPOINT_INDEX "index.json"
enum { TWS_CHECKPOINT_BLOCK = 1 << 20 };

typedef struct tws_saved_entry { /* one entry of the state (plan/state.h): its name and types */
  const char *name;
  uint8_t dtype, initial; /* tws_dtype, tws_initial */
} tws_saved_entry;

typedef struct tws_saved_file {
  const char *name;
  uint64_t bytes, data;     /* size of the file, and offset of the first tensor's data in it, in bytes */
  uint64_t header_checksum; /* checksum of the first `data` bytes of the file */
} tws_saved_file;

typedef struct tws_saved_piece {
  tws_piece piece; /* rank: index of the file; at: offset of the piece's data from the end of the header */
  const uint64_t *checksums;
} tws_saved_piece;

typedef struct tws_saved_index {
  tws_arena *arena;
  const char *path;                         /* path of the checkpoint's folder, for messages */
  const char *model, *configuration, *plan; /* fingerprints of the training; "": not known */
  const char *architecture, *class_name;    /* the model's architecture and class in Hugging Face's terms, or "" */
  const char *dtype;                        /* compute type of the training: "bf16" */
  const char *data;                         /* path of the training data */
  int64_t data_tokens, samples;             /* tokens of the training data; samples of it that the training has
                                             * consumed */
  int64_t train_batch, sequence_length, vocabulary, padded_vocabulary;
  int64_t ranks, zero_stage;
  const char *base;    /* path of the file that the frozen parameters were read from; "": they were initialized at
                        * random, or no parameter is frozen */
  int64_t lora_r;      /* rank of the low-rank adapters; 0: no adapters */
  double lora_scale;   /* factor by which the adapters' output is multiplied */
  int64_t block;       /* elements that share one scale in quantized frozen parameters; 0: no parameter is quantized */
  int64_t scale_block; /* number of scales that are themselves quantized to 8 bits together; 0: scales are float32 */
  const char *client_state; /* text that a program which trained through the library stored; "": none */
  tws_counters counters;
  tws_saved_entry *entries;
  tws_param *params; /* the parameters of the model. Set are name, rows, columns, fused, groups, shape, experts,
                      * own_along, bits and frozen; frozen 1: the checkpoint does not contain the parameter */
  tws_saved_file *files;
  tws_saved_piece *pieces; /* sorted in the order of tws_pieces_share() */
  uint32_t entry_count, param_count, file_count, piece_count;
} tws_saved_index;

/* tws_saved_bytes() returns the bytes of a piece's data, and tws_saved_blocks() the number of checksummed blocks in
 * `bytes` bytes of data. */
uint64_t tws_saved_bytes(const tws_saved_index *index, const tws_piece *piece);
uint32_t tws_saved_blocks(uint64_t bytes);

/* Appends the index as JSON that ends with its own checksum. */
void tws_saved_write(const tws_saved_index *index, tws_text *out);
/* Parses an index. Fails with TWS_INVALID if the text is damaged or was not written by tws_saved_write(); `path` is
 * that of the index's folder. Any result is consistent, whatever the text: file names contain no folders, pieces are
 * inside their files and parameters, and numbers are in range. */
tws_code tws_saved_parse(const char *text, size_t length, const char *path, tws_saved_index **out, tws_error *err);
/* Reads the text of the index file in a checkpoint's folder; the caller frees *text. */
tws_code tws_saved_read_index(const char *folder, char **text, size_t *length, tws_error *err);
/* Opens the index in a folder. Fails if a file that the index names is missing or has another size. The error's hint
 * names other checkpoints of the same directory. */
tws_code tws_saved_open(const char *folder, tws_saved_index **out, tws_error *err);
/* Extends the error of a failed read: if the checkpoint at `path` no longer exists, the message says so and names the
 * checkpoints that exist. */
tws_code tws_saved_explain_missing(const char *path, tws_code code, tws_error *err);
void tws_saved_close(tws_saved_index *index); /* NULL is allowed */
/* Returns the index of the entry with this name, or TWS_NONE. */
uint32_t tws_saved_entry_of(const tws_saved_index *index, const char *name);
uint32_t tws_saved_param_of(const tws_saved_index *index, const char *name);

#endif
