/* The CUDA module as the engine sees it: found beside the engine's own module, loaded when --device cuda asks
 * for it. */
#ifndef TWS_REAL_CUDA_LOADER_H
#define TWS_REAL_CUDA_LOADER_H

#include "real/cuda/cuda.h"

/* TWS_ENVIRONMENT: not built, not found, or a library it needs is missing. Stays loaded. */
tws_code tws_cuda_load(const tws_cuda_api **out, tws_error *err);
/* The device of this process: its number on the node, modulo the node's devices. TWS_ENVIRONMENT: there is none.
 * Where ranks share a device, NCCL is told to keep them apart: such runs are for tests, their times mean nothing. */
tws_code tws_cuda_choose_device(const tws_cuda_api *api, int *device, tws_error *err);
/* The plan's groups on NCCL. Collective over the world. */
tws_code tws_cuda_connect(const tws_cuda_api *api, tws_backend *backend, const tws_plan *plan, tws_comm **out,
                          tws_error *err);

#endif
