/* Defines the table of the CUDA module, which the real engine loads. */
#include "build_interface.h"
#include "real/cuda/module.h"

__attribute__((visibility("default"))) const tws_cuda_api *tws_cuda_module(void);
const tws_cuda_api *tws_cuda_module(void) {
  static const tws_cuda_api api = {.version = TWS_INTERFACE,
                                   .backend = &tws_cuda_backend,
                                   .device_count = tws_cuda_device_count,
                                   .memory = tws_cuda_memory_of,
                                   .device = tws_cuda_device_now,
                                   .describe = tws_cuda_describe,
                                   .comm_create = tws_nccl_create,
                                   .comm_destroy = tws_nccl_destroy,
                                   .comm_ops = &tws_nccl_ops,
                                   .attention_for = tws_cuda_attention_for};
  return &api;
}
