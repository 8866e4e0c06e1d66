/* Parts of calibration for GPUs only: operands with random values, launch overhead and copy rates, and the
 * description of the device. */
#ifndef TWS_REAL_CALIBRATE_DEVICE_H
#define TWS_REAL_CALIBRATE_DEVICE_H

#include "real/cuda/cuda.h"
#include "real/stopwatch.h"
#include "traces/measurements.h"

typedef struct tws_calibrate_device {
  const tws_cuda_api *cuda;
  tws_backend *backend;
  int world; /* number of ranks of this calibration run */
} tws_calibrate_device;

/* Fills memory with finite numbers of either sign, whether read as bfloat16, half precision, float32 or float64:
 * magnitudes of bfloat16 and float32 lie between 1/8 and 2. */
tws_code tws_calibrate_fill(const tws_backend_ops *ops, tws_backend *backend, void *memory, uint64_t bytes,
                            tws_error *err);

/* Adds to the measurements: name, memory, versions and clocks of the device, its memory in use outside of arenas, and
 * shared_device. */
tws_code tws_calibrate_describe(const tws_calibrate_device *on, tws_measurements *m, tws_error *err);

/* Adds notes to the measurements: launch overhead of kernels one by one and in a CUDA graph, and copies between memory
 * of the device and of the host, pinned and pageable, by size up to `most_bytes` (0: 256 MiB). */
tws_code tws_calibrate_extras(const tws_calibrate_device *on, uint64_t most_bytes, tws_measurements *m, tws_error *err);

/* Measures a work under sustained load by repeating it for `for_s` seconds: in a long training, a device exceeds its
 * power limit and lowers its clocks, which short measurements do not show. *seconds: time of one execution at the end
 * of the repetition. A work of this shape must have run before. */
tws_code tws_calibrate_sustain(const tws_calibrate_device *on, tws_timed start, void *user, double for_s,
                               double *seconds, tws_error *err);

#endif
