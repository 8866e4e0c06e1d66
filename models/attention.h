/* The kernel ATTENTION's rules for the keys that a query sees, for biases by distance and for dropout. Kernels of hosts
 * and of devices include this file, so that both compute the same. */
#ifndef TWS_MODELS_ATTENTION_H
#define TWS_MODELS_ATTENTION_H

#include <math.h>
#include "models/dropout.h"
#include "models/kernel.h"

typedef struct tws_attention_form {
  int64_t seq, kv_seq, window; /* queries and keys per sequence; window: largest number of keys seen, 0: no limit */
  int64_t offset;              /* query i has the position of key i + offset */
  int32_t bidirectional, alibi;
  float slope;            /* factor of the linear biases (ALiBi) */
  int32_t plain;          /* 1: causal, with equal numbers of queries and keys, and no other feature */
  int32_t ordinary;       /* 1: as plain, but possibly with dropout */
  float scale, cap;       /* factor of scores; bound of scores (soft cap), 0: none */
  uint32_t dropped_below; /* dropout: drops probabilities whose random word is below this; 0: none */
  float kept;             /* dropout: factor of the probabilities that are not dropped */
  uint64_t seed, step_bits;
  /* numbers of this rank's first sequence and head among those of all ranks; number of heads of all ranks */
  int64_t first_sequence, first_head, heads;
  int64_t buckets, max_distance; /* rows of the relative bias table, 0: no table; distance that it covers */
} tws_attention_form;

#ifdef __cplusplus
extern "C" {
#endif
/* Returns the features of a work of ATTENTION or its gradient. arguments: the operation's TWS_ARGUMENTS numbers. If
 * dropped_below is not 0, the caller sets step_bits to the bits of hyper[STEP]. */
tws_attention_form tws_attention_form_of(const tws_work *work, const double *arguments);
#ifdef __cplusplus
}
#endif

/* Computes the range [*begin, *end) of keys that query i sees in a sequence of `length` keys. */
TWS_HOST_AND_DEVICE static inline void tws_attention_keys(const tws_attention_form *f, int64_t i, int64_t length,
                                                          int64_t *begin, int64_t *end) {
  const int64_t position = i + f->offset;
  int64_t first = f->window > 0 ? position - f->window + 1 : 0, last = position + 1;
  if (f->bidirectional) last = f->window > 0 ? position + f->window : f->kv_seq;
  if (first < 0) first = 0;
  if (last > length) last = length;
  *begin = first;
  *end = last > first ? last : first;
}

/* Restricts the range of keys to the document of query i. documents: for each token of the sequence, the index of the
 * first token of its document and the index after the last one; NULL: the sequence is one document. */
TWS_HOST_AND_DEVICE static inline void tws_attention_within(const int32_t *documents, int64_t i, int64_t *begin,
                                                            int64_t *end) {
  if (!documents) return;
  if (*begin < documents[2 * i]) *begin = documents[2 * i];
  if (*end > documents[2 * i + 1]) *end = documents[2 * i + 1];
  if (*end < *begin) *end = *begin;
}

/* Returns the slope m of head h, whose linear bias is -m |distance|: f->slope times a factor by head (Press et al.
 * 2022, section 3). If the number of heads is no power of two, the remaining heads use every other slope of twice as
 * many heads, as in the authors' code. */
TWS_HOST_AND_DEVICE static inline float tws_attention_slope(const tws_attention_form *f, int64_t h) {
  if (!f->alibi) return 0;
  int64_t power = 1;
  h += f->first_head;
  while (2 * power <= f->heads) power *= 2;
  if (h < power) return f->slope * exp2f(-8.0F * (float)(h + 1) / (float)power);
  return f->slope * exp2f(-4.0F * (float)(2 * (h - power) + 1) / (float)power);
}

/* Returns the row of the table of relative biases for a key that is `distance` after the query, or before it if
 * negative. Raffel et al. 2020, section 2.1: half of the rows are for one distance each, the others for ranges that
 * grow logarithmically up to max_distance; the last row is for all larger distances. If attention is bidirectional,
 * half of all rows are for keys after the query. */
TWS_HOST_AND_DEVICE static inline int64_t tws_attention_bucket(const tws_attention_form *f, int64_t distance) {
  int64_t rows = f->buckets, first = 0, away = distance < 0 ? -distance : 0;
  if (f->bidirectional) {
    rows /= 2;
    if (distance > 0) first = rows, away = distance;
  }
  const int64_t single = rows / 2;
  if (away < single) return first + away;
  /* The epsilon ensures that rounding does not reduce an integral result to the integer below it. */
  const double beyond = log((double)away / (double)single) / log((double)f->max_distance / (double)single);
  const int64_t row = single + (int64_t)(beyond * (double)(rows - single) + 1e-6);
  return first + (row < rows ? row : rows - 1);
}

/* Returns the number of the first block of dropout's random bits (models/dropout.h) for query i of a head. */
TWS_HOST_AND_DEVICE static inline uint64_t tws_attention_block(const tws_attention_form *f, int64_t batch, int64_t h,
                                                               int64_t i) {
  const int64_t head = (f->first_sequence + batch) * f->heads + f->first_head + h;
  const int64_t blocks = (f->kv_seq + TWS_DROPOUT_GROUP - 1) / TWS_DROPOUT_GROUP;
  return (uint64_t)((head * f->seq + i) * blocks);
}

#endif
