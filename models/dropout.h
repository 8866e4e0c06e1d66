/* Determines the elements that dropout sets to zero. Kernels of hosts and of devices include this file, so that both
 * generate the same random bits. */
#ifndef TWS_MODELS_DROPOUT_H
#define TWS_MODELS_DROPOUT_H

#include "base/philox.h"

#ifdef __cplusplus
extern "C" {
#endif
/* Returns the 32-bit word below which a random word lies with this probability. */
uint32_t tws_dropout_threshold(double probability);
#ifdef __cplusplus
}
#endif

/* Elements per block of random bits. The probability of key j for query i of a head uses word j % 4 of block number j /
 * 4 after the query's first block (models/attention.h); element e of DROPOUT uses word e % 4 of block e / 4. The random
 * stream is determined by the step, whose number is passed as the bits of hyper[STEP]. */
enum { TWS_DROPOUT_GROUP = 4 };
TWS_HOST_AND_DEVICE static inline uint64_t tws_dropout_stream(uint64_t step_bits) {
  return (uint64_t)1 << 62 | step_bits;
}
/* Returns the random factor between 1 - jitter and 1 + jitter of an element, from 32 random bits. */
TWS_HOST_AND_DEVICE static inline float tws_jitter_factor(uint32_t word, float jitter) {
  return 1.0F + jitter * (((float)(word >> 9) + 0.5F) * (1.0F / 4194304.0F) - 1.0F);
}

#endif
