/* The kernels of one instruction set: a function for each row of models/operators.def. */
#ifndef TWS_REAL_HOST_KERNELS_KERNELS_H
#define TWS_REAL_HOST_KERNELS_KERNELS_H

#include "real/host/kernels/vector.h"

#define OPERATOR(id, name, ...) HOST_KERNEL(name);
#include "models/operators.def"

/* Computes sums[columns] = the sum of the rows of x[rows, columns]; with `keep`, it is added to sums. */
typedef struct host_sums {
  const void *x;
  void *sums;
  tws_dtype type, sums_type;
  int64_t rows, columns;
  int keep;
} host_sums;
tws_code TWS_HOST(column_sums)(const tws_host_call *call, host_sums sums);

/* Stores the largest of the threads' magnitudes, which are given as bits, as a float. */
static inline void put_largest(const tws_host_call *call, const int32_t *bits, float *to) {
  int32_t most = 0;
  for (int i = 0; i < call->backend->threads; ++i) most = bits[i] > most ? bits[i] : most;
  memcpy(to, &most, sizeof most);
}

#endif
