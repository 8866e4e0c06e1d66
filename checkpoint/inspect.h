/* Values of a saved checkpoint, read without ranks: whole tensors, statistics, histograms, differences. A tensor is one
 * entry of the state ("master weights", "first moments") of one parameter, in the whole parameter's order, whichever
 * ranks saved it; of experts of which each rank has other ones, the copies one after another. Memory does not depend on
 * sizes. */
#ifndef TWS_CHECKPOINT_INSPECT_H
#define TWS_CHECKPOINT_INSPECT_H

#include "checkpoint/read.h"

typedef struct tws_saved_tensor {
  uint32_t entry, param;
  int copies;        /* number of copies of the parameter; 1 unless ranks have different ones */
  uint64_t elements; /* of all copies */
} tws_saved_tensor;

/* Lists the tensors of a checkpoint, by parameter and then by entry; *tensors is in the arena. A parameter in several
 * precisions (weights and master weights) has several tensors. */
tws_code tws_saved_tensors(const tws_saved_index *index, tws_arena *arena, tws_saved_tensor **tensors, uint32_t *count,
                           tws_error *err);
/* Reads elements [first, first + count) as float32. Rows that were not saved are 0. */
tws_code tws_saved_tensor_read(tws_saved_reader *reader, const tws_saved_tensor *tensor, uint64_t first, uint64_t count,
                               float *out, tws_error *err);

/* All numbers but the counts are of the finite elements alone. */
typedef struct tws_saved_statistics {
  uint64_t elements, zeros, nans, infinities;
  double least, largest, mean, deviation, norm; /* deviation: standard deviation of the population; norm: Euclidean */
} tws_saved_statistics;
tws_code tws_saved_statistics_of(tws_saved_reader *reader, const tws_saved_tensor *tensor, tws_saved_statistics *out,
                                 tws_error *err);

enum { TWS_SAVED_BINS = 256 };
/* Counts the finite elements in `bins` (at most TWS_SAVED_BINS) ranges of equal width from `least` to `largest`, which
 * the last range includes. */
tws_code tws_saved_histogram(tws_saved_reader *reader, const tws_saved_tensor *tensor, double least, double largest,
                             int bins, uint64_t counts[TWS_SAVED_BINS], tws_error *err);

typedef struct tws_saved_difference {
  uint64_t elements, different; /* different: number of elements that are not equal; NaN is equal to NaN */
  double largest;               /* largest absolute difference */
  double norm, relative;        /* norm of the difference; that divided by the norm of the first tensor */
} tws_saved_difference;
/* Compares two tensors with equal numbers of elements. */
tws_code tws_saved_compare(tws_saved_reader *a, const tws_saved_tensor *x, tws_saved_reader *b,
                           const tws_saved_tensor *y, tws_saved_difference *out, tws_error *err);

#endif
