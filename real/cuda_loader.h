/* Loads the CUDA module, which lies next to the engine's own module, when --device cuda requires it. */
#ifndef TWS_REAL_CUDA_LOADER_H
#define TWS_REAL_CUDA_LOADER_H

#include "real/cuda/cuda.h"

/* TWS_ENVIRONMENT: not built, not found, or a library that it needs is missing. The module stays loaded. */
tws_code tws_cuda_load(const tws_cuda_api **out, tws_error *err);
/* Chooses the device of this process: its rank number on the node, modulo the node's devices. TWS_ENVIRONMENT: there
 * is none. Where ranks share a device, NCCL is configured to treat them as separate hosts: such runs are for tests,
 * their times are meaningless. */
tws_code tws_cuda_choose_device(const tws_cuda_api *api, int *device, tws_error *err);
/* Creates the NCCL communicators of the plan's groups. Collective over the world. */
tws_code tws_cuda_connect(const tws_cuda_api *api, tws_backend *backend, const tws_plan *plan, tws_comm **out,
                          tws_error *err);

#endif
