/* Training data: one file of tokens, read one sequence at a time.
 *
 * Formats: raw text, one token per byte; the token files of llm.c (dev/data/data_common.py there): a header of 256
 * int32 (magic 20240520, version 1: uint16 tokens; magic 20240801, version 7: uint32 tokens; third word: the number of
 * tokens), then the tokens, little endian; and Megatron's data sets (indexed_dataset.py there): NAME.bin with its
 * NAME.idx, read as one sequence of tokens.
 *
 * Samples: sample i has the tokens [i seq, i seq + seq] - seq inputs and the same shifted by one as targets - so
 * that adjacent samples share one token and every token is a target once. An epoch visits every sample once, in the
 * order tws_random_permute(seed + epoch, samples, .). A step uses the next train_batch_size samples of that order,
 * independent of ranks, micro batch and accumulation. */
#ifndef TWS_REAL_DATA_H
#define TWS_REAL_DATA_H

#include <stddef.h>
#include <stdint.h>
#include "base/status.h"

typedef struct tws_data {
  const char *path; /* the caller's text, which must outlive this struct */
  int fd;
  unsigned char *row;    /* buffer for one more token than a sequence has; NULL: the data are not open */
  uint64_t bytes, first; /* bytes: size of the file; first: offset of the first token, bytes */
  uint64_t count;        /* number of tokens in the file */
  int token_bytes;       /* size of a token in the file: 1, 2 or 4 */
  int64_t sequence, vocabulary;
  uint64_t samples; /* samples per epoch */
  uint64_t seed;
  struct tws_pairs *pairs; /* NULL unless the file has pairs (real/pairs.h) instead of one sequence of tokens */
  /* A global batch in memory instead of a file; NULL: a file. tokens: [samples][sequence + 1]; targets:
   * [samples][sequence], which replace the next tokens as targets, or NULL. Both belong to the caller. */
  const int32_t *tokens, *targets;
  int64_t offset;          /* added to the position of a sample, if earlier steps had another batch size; else 0 */
} tws_data;

/* Opens a file of tokens. Fails with TWS_IO if the file does not exist, is a folder or cannot be read, and with
 * TWS_INVALID for a bad header, for fewer tokens than one global batch needs (the message has this number), or for a
 * token that is not below `vocabulary` (the message has its position). */
tws_code tws_data_open(const char *path, int64_t sequence, int64_t vocabulary, int64_t train_batch, uint64_t seed,
                       tws_data *data, tws_error *err);
/* Opens a file with labels (real/pairs.h); errors as for tws_data_open(), and TWS_INVALID if its name does not end with
 * ".jsonl". */
struct tws_pairs_form;
tws_code tws_data_open_labelled(const char *path, int64_t sequence, const struct tws_pairs_form *form,
                                int64_t train_batch, uint64_t seed, tws_data *data, tws_error *err);
/* Opens data whose batches the caller sets before each step with tws_data_set_batch(): the only samples are those of
 * the batch, in its order. Fails with TWS_MEMORY. */
tws_code tws_data_open_memory(int64_t sequence, int64_t vocabulary, int64_t train_batch, uint64_t seed, tws_data *data,
                              tws_error *err);
/* Sets the tokens and targets of the next step, which have to stay until it has ended. Fails with TWS_INVALID for a
 * token that is not below the vocabulary; the message has its position. */
tws_code tws_data_set_batch(tws_data *data, const int32_t *tokens, const int32_t *targets, tws_error *err);
void tws_data_close(tws_data *data);

/* Returns the index in the file of the sample at position `place` (0 .. train_batch - 1) of the global batch of step
 * `step`, counted from 0. */
uint64_t tws_data_sample(const tws_data *data, int64_t train_batch, int64_t step, int64_t place);

/* One rank's share of the global batch. Micro-batch a of replica r has the positions (a replicas + r) micro + [0,
 * micro), and rank p of the sequence-parallel group the tokens p length + [0, length) of every sample with their
 * targets, where length = sequence / parts; with `halves`, or `chunks` above 1, it has the ranges of tokens that
 * models/zigzag.h computes. The other ranks of a replica (tensor-parallel and pipeline ranks) read the same tokens. */
typedef struct tws_batch_shape {
  int64_t train_batch, micro_batch, accumulation;
  int replica, replicas; /* data parallelism: index and number of replicas */
  int part, parts;       /* sequence parallelism: index and size of the group; parts divide the sequence */
  int64_t ignored; /* targets with this token id become -1 (they do not count in the loss); negative: no target does */
  int halves;      /* 1: a rank has two ranges of tokens of a sample, not one (zigzag) */
  int64_t chunks;  /* above 1: each sample is divided into that many chunks, and a rank has a range of tokens of each
                    * (attention in chunks) */
} tws_batch_shape;
/* Returns the number of tokens of one rank in one step: accumulation x micro_batch x length. */
int64_t tws_data_tokens(const tws_data *data, const tws_batch_shape *shape);
/* Reads `count` (at most `sequence` + 1) tokens from token `first` on. Not thread-safe. Fails with TWS_IO if the
 * file has become shorter or cannot be read, and with TWS_INVALID if a token has changed to one outside of the
 * vocabulary. */
tws_code tws_data_tokens_at(const tws_data *data, uint64_t first, int64_t count, int32_t *tokens, tws_error *err);
/* Fills one rank's share of a step. ids and targets: int32 [accumulation][micro_batch][length]. Fails as
 * tws_data_tokens_at() does. */
tws_code tws_data_fill(const tws_data *data, const tws_batch_shape *shape, int64_t step, int32_t *ids, int32_t *targets,
                       tws_error *err);

#endif
