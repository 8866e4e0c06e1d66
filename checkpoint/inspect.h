/* Values of a saved checkpoint, read without ranks: whole tensors, statistics, histograms, differences. A tensor is one
 * entry of the state ("master weights", "first moments") of one parameter, in the order of the unsharded parameter,
 * whichever ranks saved it. If ranks hold different experts, their copies follow one another. The memory needed does
 * not depend on the tensors' sizes. */
#ifndef TWS_CHECKPOINT_INSPECT_H
#define TWS_CHECKPOINT_INSPECT_H

#include "checkpoint/read.h"

typedef struct tws_saved_tensor {
  uint32_t entry, param;
  int copies;        /* number of copies of the parameter; 1 unless ranks hold different experts */
  uint64_t elements; /* of all copies */
} tws_saved_tensor;

/* Lists the tensors of a checkpoint, sorted by parameter and then by state entry; *tensors is in the arena. A parameter
 * that was saved in several precisions (weights and master weights) has several tensors. */
tws_code tws_saved_tensors(const tws_saved_index *index, tws_arena *arena, tws_saved_tensor **tensors, uint32_t *count,
                           tws_error *err);
/* Reads elements [first, first + count) as float32. Rows that were not saved are 0. */
tws_code tws_saved_tensor_read(tws_saved_reader *reader, const tws_saved_tensor *tensor, uint64_t first, uint64_t count,
                               float *out, tws_error *err);

/* Statistics of a tensor. All members except the counts consider only finite elements. */
typedef struct tws_saved_statistics {
  uint64_t elements, zeros, nans, infinities;
  double least, largest, mean, deviation, norm; /* deviation: population standard deviation; norm: Euclidean norm */
} tws_saved_statistics;
tws_code tws_saved_statistics_of(tws_saved_reader *reader, const tws_saved_tensor *tensor, tws_saved_statistics *out,
                                 tws_error *err);

enum { TWS_SAVED_BINS = 256 };
/* Divides the interval from `least` to `largest` into `bins` (at most TWS_SAVED_BINS) ranges of equal width, and counts
 * the finite elements in each; `largest` belongs to the last range. */
tws_code tws_saved_histogram(tws_saved_reader *reader, const tws_saved_tensor *tensor, double least, double largest,
                             int bins, uint64_t counts[TWS_SAVED_BINS], tws_error *err);

typedef struct tws_saved_difference {
  uint64_t elements, different; /* different: number of elements that are not equal; NaN is equal to NaN */
  double largest;               /* largest absolute difference */
  double norm, relative;        /* Euclidean norm of the difference; the same divided by the first tensor's norm */
} tws_saved_difference;
/* Compares two tensors element by element. Both must have the same number of elements. */
tws_code tws_saved_compare(tws_saved_reader *a, const tws_saved_tensor *x, tws_saved_reader *b,
                           const tws_saved_tensor *y, tws_saved_difference *out, tws_error *err);

#endif
