/* Long lists of random cases. A run takes all of them, as `make check-all` does, unless TWS_SEED is set: then one of
 * each `of` adjacent cases, which that text chooses. `make check` sets it to the commit, so that commits take different
 * cases, and says so; a run with the same TWS_SEED takes the same. */
#ifndef TWS_TESTS_SAMPLE_H
#define TWS_TESTS_SAMPLE_H

#include <stdint.h>
#include <stdlib.h>
#include "base/random.h"

static inline int takes_all(void) {
  const char *seed = getenv("TWS_SEED");
  return !seed || !*seed;
}

static inline int takes(uint64_t index, uint32_t of) {
  if (takes_all()) return 1;
  uint64_t hash = 14695981039346656037u; /* FNV-1a */
  for (const char *c = getenv("TWS_SEED"); *c; c++) hash = (hash ^ (unsigned char)*c) * 1099511628211u;
  uint32_t bits[4];
  tws_philox(hash, 91, index / of, bits);
  return index % of == bits[0] % of;
}

#endif
