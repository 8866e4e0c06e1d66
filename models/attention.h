/* Which keys a query of ATTENTION sees, its linear biases and its dropout: for hosts and devices alike, which have to
 * agree. */
#ifndef TWS_MODELS_ATTENTION_H
#define TWS_MODELS_ATTENTION_H

#include <math.h>
#include "models/dropout.h"
#include "models/kernel.h"

typedef struct tws_attention_form {
  int64_t seq, kv_seq, window; /* queries and keys of a sequence; window 0: none */
  int64_t offset;              /* query i is at the position of key i + offset */
  int32_t bidirectional, alibi;
  float slope;            /* factor of linear biases */
  int32_t plain;          /* causal over equal lengths, and nothing else */
  int32_t ordinary;       /* nothing else but dropout */
  float scale, cap;       /* cap: of scores; 0: none */
  uint32_t dropped_below; /* dropout: probabilities whose random word is below it; 0: none */
  float kept;             /* factor of the others */
  uint64_t seed, step_bits;
  int64_t first_sequence, first_head, heads; /* heads: of all ranks */
  int64_t buckets, max_distance;             /* of the table of relative biases; 0: there is none */
} tws_attention_form;

#ifdef __cplusplus
extern "C" {
#endif
/* arguments: TWS_ARGUMENTS of them. step_bits is the caller's to set where dropped_below is not 0: the bits of
 * hyper[STEP]. */
tws_attention_form tws_attention_form_of(const tws_work *work, const double *arguments);
#ifdef __cplusplus
}
#endif

/* Keys [*begin, *end) are what query i sees of a sequence that has `length` of them. */
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

/* Clips these keys to the document of query i. documents: for each token of a sequence, the first token of its document
 * and the one after its last; documents follow each other. NULL: a single document. */
TWS_HOST_AND_DEVICE static inline void tws_attention_within(const int32_t *documents, int64_t i, int64_t *begin,
                                                            int64_t *end) {
  if (!documents) return;
  if (*begin < documents[2 * i]) *begin = documents[2 * i];
  if (*end > documents[2 * i + 1]) *end = documents[2 * i + 1];
  if (*end < *begin) *end = *begin;
}

/* The bias of head h is -slope |distance|, times a factor. Press et al. 2022, section 3; heads that are no power of two
 * take every other slope of twice as many, as the authors' code does. */
TWS_HOST_AND_DEVICE static inline float tws_attention_slope(const tws_attention_form *f, int64_t h) {
  if (!f->alibi) return 0;
  int64_t power = 1;
  h += f->first_head;
  while (2 * power <= f->heads) power *= 2;
  if (h < power) return f->slope * exp2f(-8.0F * (float)(h + 1) / (float)power);
  return f->slope * exp2f(-4.0F * (float)(2 * (h - power) + 1) / (float)power);
}

/* Returns the row of the table of relative biases for a key `distance` after the query, or before it. Raffel et al.
 * 2020, section 2.1: a distance each for half of the rows, then ever more of them up to max_distance, which shares the
 * last row with all beyond; if attention is bidirectional, half of the rows are for keys after the query. */
TWS_HOST_AND_DEVICE static inline int64_t tws_attention_bucket(const tws_attention_form *f, int64_t distance) {
  int64_t rows = f->buckets, first = 0, away = distance < 0 ? -distance : 0;
  if (f->bidirectional) {
    rows /= 2;
    if (distance > 0) first = rows, away = distance;
  }
  const int64_t single = rows / 2;
  if (away < single) return first + away;
  /* whole numbers must not fall short of themselves by rounding */
  const double beyond = log((double)away / (double)single) / log((double)f->max_distance / (double)single);
  const int64_t row = single + (int64_t)(beyond * (double)(rows - single) + 1e-6);
  return first + (row < rows ? row : rows - 1);
}

/* The first block of random bits of query i of a head. */
TWS_HOST_AND_DEVICE static inline uint64_t tws_attention_block(const tws_attention_form *f, int64_t batch, int64_t h,
                                                               int64_t i) {
  const int64_t head = (f->first_sequence + batch) * f->heads + f->first_head + h;
  const int64_t blocks = (f->kv_seq + TWS_DROPOUT_GROUP - 1) / TWS_DROPOUT_GROUP;
  return (uint64_t)((head * f->seq + i) * blocks);
}

#endif
