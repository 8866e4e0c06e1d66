/* Multi-head latent attention (DeepSeek-V2, 2024, section 2.1), for backends. Queries, keys and values of a token are
 * projected from a compressed row; some elements of each query and key head have rotary positions, and all heads share
 * these elements of the key. */
#ifndef TWS_MODELS_LATENT_H
#define TWS_MODELS_LATENT_H

#include <math.h>
#include <stdint.h>
#include "base/philox.h"

/* Returns the radians per position of pair i of `rope` elements: theta^(-2 i / rope). The frequency is divided by
 * `factor` from pair `high` on, unchanged up to pair `low`, and interpolated between them (YaRN; Peng et al. 2023);
 * factor 0: it is never divided. f: theta, factor, low, high. */
TWS_HOST_AND_DEVICE static inline double tws_latent_frequency(const double *f, int64_t rope, int64_t i) {
  const double frequency = pow(f[0], -2.0 * (double)i / (double)rope);
  if (f[1] == 0) return frequency;
  const double part = f[3] > f[2] ? ((double)i - f[2]) / (f[3] - f[2]) : (double)i >= f[3] ? 1 : 0;
  const double divided = part < 0 ? 0 : part > 1 ? 1 : part;
  return frequency * (1 - divided) + frequency / f[1] * divided;
}

#endif
