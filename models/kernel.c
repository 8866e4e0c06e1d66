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
                                                      "documents"};
  return bit >= 0 && bit < TWS_KERNEL_FLAGS ? names[bit] : NULL;
}

/* Convolutions: models/windows.h. Attention: on the host what workspace.c says; on CUDA only backward, a float32
 * accumulator of dq [tokens, q heads x head size], and with 16-bit types what cuDNN needs in addition on any device: as
 * much again, and where heads share keys once more for the gradients of all heads (as cuDNN 9.19 answers; less on newer
 * devices). */
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
