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

/* A call that finds the largest magnitude of a tensor, and what each thread found, as bits. */
typedef struct largest_job {
  const tws_host_call *call;
  int32_t largest[MAX_THREADS];
} largest_job;

/* Stores the largest of the threads' magnitudes as a float. */
static inline void put_largest(const largest_job *job, float *to) {
  int32_t most = 0;
  for (int i = 0; i < job->call->backend->threads; ++i) most = job->largest[i] > most ? job->largest[i] : most;
  memcpy(to, &most, sizeof most);
}

#endif
