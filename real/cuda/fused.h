/* Fused attention by cuDNN, through the C interface of its graphs. Loaded when it is there (cuDNN 9.10 or later). */
#ifndef TWS_REAL_CUDA_FUSED_H
#define TWS_REAL_CUDA_FUSED_H

#include "real/cuda/internal.h"

typedef struct tws_cuda_fused tws_cuda_fused;

/* described NULL: the current device. Else a description of one in cuDNN's own terms (JSON), which need not be there:
 * graphs can be built for it, not run. TWS_UNSUPPORTED: no cuDNN, or none that can do this. */
tws_code tws_cuda_fused_create(const char *described, tws_cuda_fused **out, tws_error *err);
void tws_cuda_fused_destroy(tws_cuda_fused *fused);
size_t tws_cuda_fused_version(const tws_cuda_fused *fused); /* 91900 for 9.19.0; NULL: 0 */

/* Device memory that a call may use beside its operands. */
typedef struct tws_cuda_fused_workspace {
  void *data; /* of the stream: for the library, and delta */
  size_t stream_bytes;
  int deterministic; /* equal bits from equal work */
  int timed;         /* of several ways to do a work that is new the fastest is kept: not while a step is recorded */
} tws_cuda_fused_workspace;

/* Whether a graph for this work can be made that needs no more memory than there is. TWS_UNSUPPORTED: another shape or
 * type, or the library has nothing; that is found out once for a work. */
tws_code tws_cuda_fused_prepare(tws_cuda_fused *fused, const tws_work *work, size_t stream_bytes, int deterministic,
                                tws_error *err);
/* ATTENTION, ATTENTION_GRAD. TWS_UNSUPPORTED: not for this call, nothing was started; fused may be NULL. */
tws_code tws_cuda_fused_attention(tws_cuda_fused *fused, const tws_cuda_call *call,
                                  const tws_cuda_fused_workspace *workspace, tws_error *err);

#endif
