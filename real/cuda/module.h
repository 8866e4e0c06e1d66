/* Functions that module.c puts into the exported table. */
#ifndef TWS_REAL_CUDA_MODULE_H
#define TWS_REAL_CUDA_MODULE_H

#include "real/cuda/cuda.h"

extern const tws_backend_ops tws_cuda_backend;
tws_code tws_cuda_device_count(int *count, tws_error *err);
tws_code tws_cuda_memory_of(const tws_backend *backend, tws_cuda_memory *out, tws_error *err);
tws_code tws_cuda_device_now(tws_cuda_device *out, tws_error *err);
const char *tws_cuda_describe(const tws_backend *backend, char *buffer, int size);

tws_code tws_nccl_create(const tws_cuda_comm_setup *setup, tws_comm **out, tws_error *err);
void tws_nccl_destroy(tws_comm *comm);
extern const tws_comm_ops tws_nccl_ops;

tws_code tws_cuda_attention_for(const char *described, const tws_work *work, int deterministic, tws_error *err);

#endif
