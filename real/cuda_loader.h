/* Loads the CUDA module, which lies next to the engine's own module, when --device cuda requires it. */
#ifndef TWS_REAL_CUDA_LOADER_H
#define TWS_REAL_CUDA_LOADER_H

#include "real/cuda/cuda.h"

/* Loads the module, which then stays loaded, and writes its functions to *out. Fails with TWS_ENVIRONMENT if the module
 * was not built, is not found, or lacks a library. */
tws_code tws_cuda_load(const tws_cuda_api **out, tws_error *err);
/* Chooses the device of this process: *device is the process's rank on its node, modulo the number of the node's
 * devices. Fails with TWS_ENVIRONMENT if there is no device. If ranks share a device, NCCL is configured to treat them
 * as separate hosts: such runs are for tests only, their times are meaningless. */
tws_code tws_cuda_choose_device(const tws_cuda_api *api, int *device, tws_error *err);
/* Creates the NCCL communicators of the plan's groups. All ranks of the MPI communicator `ranks` (real/mpi_comm.h) have
 * to call it. */
tws_code tws_cuda_connect(const tws_cuda_api *api, tws_backend *backend, const void *ranks, const tws_plan *plan,
                          tws_comm **out, tws_error *err);

#endif
