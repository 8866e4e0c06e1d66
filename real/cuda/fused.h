/* Fused attention by cuDNN, through the C interface of its graphs. cuDNN is loaded if it is installed (9.10 or
 * later). */
#ifndef TWS_REAL_CUDA_FUSED_H
#define TWS_REAL_CUDA_FUSED_H

#include "real/cuda/internal.h"

typedef struct tws_cuda_fused tws_cuda_fused;

/* described NULL: the current device. Otherwise cuDNN's own description of a device (JSON), which need not be
 * present: graphs can be built for it, not run. TWS_UNSUPPORTED: cuDNN is missing, or this version lacks a feature. */
tws_code tws_cuda_fused_create(const char *described, tws_cuda_fused **out, tws_error *err);
void tws_cuda_fused_destroy(tws_cuda_fused *fused);
size_t tws_cuda_fused_version(const tws_cuda_fused *fused); /* 91900 for 9.19.0; NULL: 0 */

/* Device memory that a call may use in addition to its operands. */
typedef struct tws_cuda_fused_workspace {
  void *data; /* of the stream: workspace of the library, and delta (row sums of dO * O) */
  size_t stream_bytes;
  int deterministic; /* equal bits from equal work */
  int timed;         /* several plans for a new work are timed and the fastest is kept: not while a step is being
                        recorded */
} tws_cuda_fused_workspace;

/* TWS_OK if a graph for this work can be built that needs no more memory than available. TWS_UNSUPPORTED: another
 * shape or type, or the library has no plan; the answer is cached per work. */
tws_code tws_cuda_fused_prepare(tws_cuda_fused *fused, const tws_work *work, size_t stream_bytes, int deterministic,
                                tws_error *err);
/* Runs ATTENTION or ATTENTION_GRAD. TWS_UNSUPPORTED: not supported for this call, nothing was started; fused may be
 * NULL. */
tws_code tws_cuda_fused_attention(tws_cuda_fused *fused, const tws_cuda_call *call,
                                  const tws_cuda_fused_workspace *workspace, tws_error *err);

#endif
