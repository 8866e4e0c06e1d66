/* Converts errors of the CUDA runtime to errors of the program. */
#include "real/cuda/internal.h"

tws_code tws_cuda_fail(tws_error *err, cudaError_t status, const char *what) {
  switch (status) {
    case cudaErrorMemoryAllocation:
      return tws_fail(err, TWS_MEMORY, "use a smaller micro batch, recomputation, a higher ZeRO stage or more ranks",
                      "CUDA: %s: %s", what, cudaGetErrorString(status));
    case cudaErrorNoDevice:
    case cudaErrorInsufficientDriver:
    case cudaErrorInvalidDevice:
    case cudaErrorDevicesUnavailable:
    case cudaErrorStubLibrary:
    case cudaErrorSystemDriverMismatch:
    case cudaErrorNotPermitted:
      return tws_fail(err, TWS_ENVIRONMENT, "train on the host instead; `nvidia-smi` shows what the driver sees",
                      "no CUDA device: %s: %s", what, cudaGetErrorString(status));
    case cudaErrorNoKernelImageForDevice:
      return tws_fail(err, TWS_ENVIRONMENT, "configure with -DTWINSPEED_CUDA_ARCHITECTURES=<yours>",
                      "CUDA: %s: this build has no code for this device", what);
    default:
      return tws_fail(err, TWS_RANK, NULL, "CUDA: %s: %s (%s)", what, cudaGetErrorString(status),
                      cudaGetErrorName(status));
  }
}
