#include "models/kernel.h"

#include "models/windows.h"

const tws_arguments tws_no_arguments = {{0}};

const char *tws_kernel_flag_name(int bit) {
  static const char *const names[TWS_KERNEL_FLAGS] = {"accumulate",   "accumulate_param",
                                                      "bias",         "rms",
                                                      "l2",           NULL,
                                                      "gelu",         "residual",
                                                      "half_weights", "half_moments",
                                                      "stochastic",   "bidirectional",
                                                      "alibi",        "dropout",
                                                      NULL,           NULL,
                                                      NULL,           NULL,
                                                      NULL,           NULL,
                                                      NULL,           "relative",
                                                      NULL,           NULL,
                                                      "fp8",          "sums",
                                                      "documents",    "split_weights"};
  return bit >= 0 && bit < TWS_KERNEL_FLAGS ? names[bit] : NULL;
}

int tws_is_whole_loss(tws_kernel kernel) {
  return kernel == TWS_KERNEL_CROSS_ENTROPY || kernel == TWS_KERNEL_BINARY_CROSS_ENTROPY ||
         kernel == TWS_KERNEL_MEAN_SQUARED_ERROR;
}

/* Returns bytes of workspace. Convolutions: see models/windows.h. Attention: on the host as computed in workspace.c; on
 * CUDA only the backward pass needs any: a float32 accumulator of dq, [tokens, q heads x head size]; with 16-bit types
 * a second one of that size for cuDNN on any device; if query heads share key heads, a third buffer of that size for
 * the gradients of keys and values (measured with cuDNN 9.19, which needs less on newer devices). */
size_t tws_work_workspace(const tws_work *work, tws_backend_kind backend, int threads) {
  if (work->kind != 0) return 0;
  if (tws_is_convolution(work)) return tws_convolution_workspace(work, backend);
  if (work->code == TWS_KERNEL_DISENTANGLED || work->code == TWS_KERNEL_DISENTANGLED_GRAD)
    return tws_disentangled_workspace(work, backend, threads > 0 ? threads : 1);
  if (work->code != TWS_KERNEL_ATTENTION && work->code != TWS_KERNEL_ATTENTION_GRAD) return 0;
  if (backend == TWS_BACKEND_HOST) return tws_host_attention_workspace(work, threads > 0 ? threads : 1);
  if (work->code == TWS_KERNEL_ATTENTION) return 0;
  const size_t sums = (size_t)work->d[0] * (size_t)work->d[1] * (size_t)work->d[2] * (size_t)work->d[4] * sizeof(float);
  const size_t parts = tws_attention_bias_parts(work, backend) * sizeof(float);
  if (work->dtype == TWS_F32) return sums + parts;
  return (work->d[3] < work->d[2] ? 3 : 2) * sums + parts + 1024;
}
