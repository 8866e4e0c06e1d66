/* Numbers for random cases: the same in every run. */
#ifndef TESTS_DRAW_H
#define TESTS_DRAW_H

#include "base/random.h"

/* Returns a pseudo-random number from low to high, both included, for a seed and an index. */
static inline int draw(uint64_t seed, uint64_t index, int low, int high) {
  uint32_t bits[4];
  tws_philox(seed, 77, index, bits);
  return low + (int)(bits[0] % (uint32_t)(high - low + 1));
}

#endif
