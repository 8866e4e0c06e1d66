/* Training data: one file of tokens, read a sequence at a time.
 *
 * Formats: raw text, one token a byte; and the token files of llm.c (dev/data/data_common.py there): a header of 256
 * int32 (magic 20240520, version 1: uint16 tokens; magic 20240801, version 7: uint32 tokens; third word: how many),
 * then the tokens, little-endian; and Megatron's data sets (indexed_dataset.py there): NAME.bin beside its NAME.idx,
 * read as one stream of tokens.
 *
 * Samples: sample i holds the tokens [i seq, i seq + seq] - seq inputs and the same shifted by one as targets - so
 * that neighbours share one token and every token is a target once. An epoch visits every sample once, in the order
 * tws_random_permute(seed + epoch, samples, .). A step takes the next train_batch_size samples of that order: which
 * ones does not depend on ranks, micro batch or accumulation. */
#ifndef TWS_REAL_DATA_H
#define TWS_REAL_DATA_H

#include <stddef.h>
#include <stdint.h>
#include "base/status.h"

typedef struct tws_data {
  const char *path; /* the caller's: outlives this */
  int fd;
  unsigned char *row;    /* room for the tokens of a sequence and one more; NULL: not open */
  uint64_t bytes, first; /* of the file; offset of the first token */
  uint64_t count;        /* tokens */
  int token_bytes;       /* 1, 2 or 4 */
  int64_t sequence, vocabulary;
  uint64_t samples; /* of one epoch */
  uint64_t seed;
  struct tws_pairs *pairs; /* of a file of pairs (real/pairs.h), which has no tokens one after another; else NULL */
  int64_t offset; /* added to the place of a sample, where steps before had other batches; 0: they had not */
} tws_data;

/* TWS_IO: no such file, a folder, unreadable; TWS_INVALID: bad header, fewer tokens than one global batch needs (the
 * message says how many are needed), a token that is not below `vocabulary` (the message says where). */
tws_code tws_data_open(const char *path, int64_t sequence, int64_t vocabulary, int64_t train_batch, uint64_t seed,
                       tws_data *data, tws_error *err);
/* The same of a file with labels (real/pairs.h). TWS_INVALID too: its name does not end with ".jsonl". */
struct tws_pairs_form;
tws_code tws_data_open_labelled(const char *path, int64_t sequence, const struct tws_pairs_form *form,
                                int64_t train_batch, uint64_t seed, tws_data *data, tws_error *err);
void tws_data_close(tws_data *data);

/* Sample that stands at `place` (0 .. train_batch - 1) of the global batch of 0-based step `step`. */
uint64_t tws_data_sample(const tws_data *data, int64_t train_batch, int64_t step, int64_t place);

/* What one rank reads of the global batch. Micro-batch a of replica r takes the places
 * (a replicas + r) micro + [0, micro), and part p of every sample the tokens p length + [0, length) with their targets,
 * where length = sequence / parts; in halves it has those of models/zigzag.h. All other ranks of a replica read the
 * same. */
typedef struct tws_batch_shape {
  int64_t train_batch, micro_batch, accumulation;
  int replica, replicas; /* data parallelism */
  int part, parts;       /* sequence parallelism; parts divide the sequence */
  int64_t ignored;       /* targets with this id become -1; itself negative: none do */
  int halves;            /* a part is two runs of tokens, not one */
} tws_batch_shape;
/* Tokens of one rank in one step: accumulation x micro_batch x length. */
int64_t tws_data_tokens(const tws_data *data, const tws_batch_shape *shape);
/* `count` (at most `sequence` + 1) tokens from number `first` on. Not from two threads at once. TWS_IO: the file ends
 * earlier than it did, or cannot be read; TWS_INVALID: a token has become one that the vocabulary lacks. */
tws_code tws_data_tokens_at(const tws_data *data, uint64_t first, int64_t count, int32_t *tokens, tws_error *err);
/* ids and targets: int32 [accumulation][micro_batch][length]. Errors as of
 * tws_data_tokens_at(). */
tws_code tws_data_fill(const tws_data *data, const tws_batch_shape *shape, int64_t step, int32_t *ids, int32_t *targets,
                       tws_error *err);

#endif
