/* The angles of ROPE: for hosts and devices alike, which have to agree. */
#ifndef TWS_MODELS_ROPE_H
#define TWS_MODELS_ROPE_H

#include <math.h>
#include "base/philox.h"
#include "base/status.h"
#include "models/kernel.h"

typedef struct tws_rope_form {
  int64_t rotary; /* elements of a head that are turned, from the first on */
  double theta, factor, low, high, original, gain;
  int32_t interleaved;
  const float *factors; /* NULL, or what frequencies are divided by: where the backend has them */
} tws_rope_form;

#ifdef __cplusplus
extern "C" {
#endif
/* factors: the operand, with TWS_RUNNING; else NULL. */
tws_rope_form tws_rope_form_of(const tws_work *work, const float *factors);
/* TWS_UNSUPPORTED: no pairs, or more of them than a head has. */
tws_code tws_rope_check(const tws_work *work, tws_error *err);
#ifdef __cplusplus
}
#endif

/* Radians by which pair i turns from one position to the next. Llama 3.1 divides low frequencies by a factor, keeps
 * high ones and blends between; YaRN (Peng et al. 2023, equation 23 and what follows) does so by the number of the
 * pair. */
TWS_HOST_AND_DEVICE static inline double tws_rope_frequency(const tws_rope_form *f, int64_t i) {
  const double frequency = pow(f->theta, -2.0 * (double)i / (double)f->rotary);
  if (f->factors) return frequency / (double)f->factors[i];
  if (f->factor == 0) return frequency;
  double kept = 0; /* share of the frequency that is not divided */
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
