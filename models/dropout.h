/* Which numbers dropout drops: for hosts and devices alike, which have to draw the same bits. */
#ifndef TWS_MODELS_DROPOUT_H
#define TWS_MODELS_DROPOUT_H

#include "base/philox.h"

#ifdef __cplusplus
extern "C" {
#endif
/* The word below which a share of random words lies. */
uint32_t tws_dropout_threshold(double probability);
#ifdef __cplusplus
}
#endif

/* The probability of key j for query i of a head takes word j % 4 of block number j / 4 after the row's first one
 * (models/attention.h); of DROPOUT element e takes word e % 4 of block e / 4. The stream is that of the step, given as
 * the bits of hyper[STEP]. */
enum { TWS_DROPOUT_GROUP = 4 };
TWS_HOST_AND_DEVICE static inline uint64_t tws_dropout_stream(uint64_t step_bits) {
  return (uint64_t)1 << 62 | step_bits;
}
/* Returns the factor of an element: from 1 - jitter to 1 + jitter. */
TWS_HOST_AND_DEVICE static inline float tws_jitter_factor(uint32_t word, float jitter) {
  return 1.0F + jitter * (((float)(word >> 9) + 0.5F) * (1.0F / 4194304.0F) - 1.0F);
}

#endif
