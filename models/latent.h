/* Multi-head latent attention (DeepSeek-V2, 2024, section 2.1): for backends. Queries, keys and values of a token are
 * made of a compressed row; a part of each head of queries and keys is turned by its position, for keys the same in all
 * heads. */
#ifndef TWS_MODELS_LATENT_H
#define TWS_MODELS_LATENT_H

#include <math.h>
#include <stdint.h>
#include "base/philox.h"

/* Radians a position of pair i of `rope` elements: theta^(-2 i / rope), with a factor (not 0) divided by it from pair
 * `high` on, not at all up to pair `low`, and in part between (YaRN; Peng et al. 2023). f: theta, factor, low, high. */
TWS_HOST_AND_DEVICE static inline double tws_latent_frequency(const double *f, int64_t rope, int64_t i) {
  const double frequency = pow(f[0], -2.0 * (double)i / (double)rope);
  if (f[1] == 0) return frequency;
  const double part = f[3] > f[2] ? ((double)i - f[2]) / (f[3] - f[2]) : (double)i >= f[3] ? 1 : 0;
  const double divided = part < 0 ? 0 : part > 1 ? 1 : part;
  return frequency * (1 - divided) + frequency / f[1] * divided;
}

#endif
