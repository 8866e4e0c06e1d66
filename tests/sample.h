/* Long lists of random cases. A run takes all of them, as `make check-all` does, unless TWS_SEED is set: then one of
 * each `of` adjacent cases, which that text chooses. `make check` sets it to the commit, so that each commit takes
 * different cases, and prints it; a run with the same TWS_SEED takes the same. */
#ifndef TWS_TESTS_SAMPLE_H
#define TWS_TESTS_SAMPLE_H

#include <stdint.h>
#include <stdlib.h>
#include "base/random.h"

static inline int takes_all(void) {
  const char *seed = getenv("TWS_SEED");
  return !seed || !*seed;
}

static inline uint64_t sample_hash(uint64_t hash, const char *text) {
  for (const char *c = text; *c; c++) hash = (hash ^ (unsigned char)*c) * 1099511628211u; /* FNV-1a */
  return hash;
}

/* Returns 1 if the case `index` of the list named `list` is taken: one in `of`. Lists of different names take different
 * cases. */
static inline int takes_of(const char *list, uint64_t index, uint32_t of) {
  if (takes_all()) return 1;
  uint32_t bits[4];
  tws_philox(sample_hash(sample_hash(14695981039346656037u, getenv("TWS_SEED")), list), 91, index / of, bits);
  return index % of == bits[0] % of;
}

static inline int takes(uint64_t index, uint32_t of) {
  return takes_of("", index, of);
}

#endif
