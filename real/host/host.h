/* The host backend: every kernel of models/kernel.h on the cores of this machine.
 *
 * Storage types are float32 and bfloat16; arithmetic is float32 (sums of squares and losses: float64). Kernels are
 * compiled for several instruction sets; one is chosen when the backend is created. One pool of threads per backend
 * serves all kernels; work is divided by shape and thread count alone, so equal work gives equal bits. Kernels run
 * one at a time and are complete when run() returns, whatever the stream. */
#ifndef TWS_REAL_HOST_HOST_H
#define TWS_REAL_HOST_HOST_H

#include "real/real.h"

/* Returns the backend's table. In create(), `threads` 0 means one for each processor this process may use; `device` is
 * 0 for the best instruction set, or 1 (any x86-64), 2 (AVX2), 3 (AVX-512) for exactly that one (TWS_UNSUPPORTED where
 * the processor or the build lacks it). */
const tws_backend_ops *tws_host_backend(void);

/* Most bytes of a thread outside of arenas: packing blocks and scratch of the matrix products. */
enum { TWS_HOST_SCRATCH_LIMIT = 4 << 20 };

/* Writes a description such as "avx512, 2 threads, oneDNN 2.6.3" into `buffer` and returns it; backend may be NULL
 * (best instruction set, no thread count). */
const char *tws_host_describe(const tws_backend *backend, char *buffer, int size);

#endif
