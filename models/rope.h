/* Computes the angles of the kernel ROPE. Kernels of hosts and of devices include this file, so that both compute the
 * same. */
#ifndef TWS_MODELS_ROPE_H
#define TWS_MODELS_ROPE_H

#include <math.h>
#include "base/philox.h"
#include "base/status.h"
#include "models/kernel.h"

typedef struct tws_rope_form {
  int64_t rotary; /* number of elements of a head that are rotated, the first ones */
  double theta, factor, low, high, original, gain;
  int32_t interleaved;
  const float *factors; /* [pair] divisors of the frequencies, in the backend's memory; NULL: none */
} tws_rope_form;

#ifdef __cplusplus
extern "C" {
#endif
/* Returns the sizes and parameters of a work of ROPE. factors: the operand with divisors if the work has TWS_RUNNING,
 * else NULL. */
tws_rope_form tws_rope_form_of(const tws_work *work, const float *factors);
/* Fails with TWS_UNSUPPORTED if the work rotates no pair of elements, or more pairs than a head has. */
tws_code tws_rope_check(const tws_work *work, tws_error *err);
#ifdef __cplusplus
}
#endif

/* Returns the radians by which pair i is rotated per position. Llama 3.1 divides low frequencies by a factor, leaves
 * high ones unchanged, and interpolates between them; YaRN (Peng et al. 2023, equation 23 and the following) does the
 * same by the index of the pair instead of the frequency. */
TWS_HOST_AND_DEVICE static inline double tws_rope_frequency(const tws_rope_form *f, int64_t i) {
  const double frequency = pow(f->theta, -2.0 * (double)i / (double)f->rotary);
  if (f->factors) return frequency / (double)f->factors[i];
  if (f->factor == 0) return frequency;
  double kept = 0; /* share of the undivided frequency in the blend */
  if (f->original > 0) {
    const double wavelength = 2 * 3.14159265358979323846 / frequency;
    if (wavelength < f->original / f->high) return frequency;
    if (wavelength > f->original / f->low) return frequency / f->factor;
    kept = (f->original / wavelength - f->low) / (f->high - f->low);
  } else if (f->high > f->low) {
    kept = 1 - ((double)i - f->low) / (f->high - f->low);
    kept = kept < 0 ? 0 : kept > 1 ? 1 : kept;
  }
  return (1 - kept) * frequency / f->factor + kept * frequency;
}

#endif
