/* Fused attention by cuDNN, through the C interface of its graphs. cuDNN is loaded if it is installed (9.10 or
 * later). */
#ifndef TWS_REAL_CUDA_FUSED_H
#define TWS_REAL_CUDA_FUSED_H

#include "real/cuda/internal.h"

typedef struct tws_cuda_fused tws_cuda_fused;

/* Loads cuDNN for a device: `described` is cuDNN's own description of a device (JSON) that need not be present, for
 * which graphs can be built but not run; NULL: the current device. Fails with TWS_UNSUPPORTED if cuDNN is missing, or
 * its version lacks a feature. */
tws_code tws_cuda_fused_create(const char *described, tws_cuda_fused **out, tws_error *err);
void tws_cuda_fused_destroy(tws_cuda_fused *fused);
/* returns cuDNN's version, 91900 for 9.19.0; 0 if `fused` is NULL */
size_t tws_cuda_fused_version(const tws_cuda_fused *fused);

/* Device memory that a call may use in addition to its operands. */
typedef struct tws_cuda_fused_workspace {
  void *data; /* memory of the stream: workspace of the library, and delta (row sums of dO * O) */
  size_t stream_bytes;
  int deterministic; /* 1: equal work must give equal bits */
  int timed;         /* 1: several plans for a new work are timed, and the fastest is kept; not allowed while a step is
                      * being recorded */
} tws_cuda_fused_workspace;

/* Prepares the graph for a work, and returns TWS_OK if a graph for this work can be built that needs no more memory
 * than available. Fails with TWS_UNSUPPORTED if cuDNN does not support the shape or type, or has no plan for it. The
 * result is cached for each work. */
tws_code tws_cuda_fused_prepare(tws_cuda_fused *fused, const tws_work *work, size_t stream_bytes, int deterministic,
                                tws_error *err);
/* Runs ATTENTION or ATTENTION_GRAD. Fails with TWS_UNSUPPORTED, without having started anything, if cuDNN does not
 * support the call or `fused` is NULL. */
tws_code tws_cuda_fused_attention(tws_cuda_fused *fused, const tws_cuda_call *call,
                                  const tws_cuda_fused_workspace *workspace, tws_error *err);

#endif
