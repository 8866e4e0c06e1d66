/* Counter-based random numbers (Philox 4x32-10; Salmon et al., "Parallel random numbers: as easy as 1, 2, 3",
 * SC 2011): a value depends only on (seed, stream, index), never on which rank draws it or in which order, so that
 * initial weights and shuffles do not change with the sharding. */
#ifndef TWS_BASE_RANDOM_H
#define TWS_BASE_RANDOM_H

#include <stdint.h>

void tws_philox(uint64_t seed, uint64_t stream, uint64_t index, uint32_t out[4]);
double tws_random_uniform(uint64_t seed, uint64_t stream, uint64_t index); /* in (0, 1) */
double tws_random_normal(uint64_t seed, uint64_t stream, uint64_t index);  /* Box-Muller */
/* Returns the image of i under a permutation of 0 .. n-1 that `seed` selects, in O(1) expected time (Feistel network
 * with cycle walking). */
uint64_t tws_random_permute(uint64_t seed, uint64_t n, uint64_t i);

#endif
