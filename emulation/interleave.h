/* The operations of all ranks in an order that a seed draws: whenever several may start, any of them may be next. What
 * plans leave open must not matter, so every seed has to give the same bits.
 *
 * Every fourth order takes any operation that may start. The others hurry one stream of one rank, one after another by
 * the seed: its operations start as early as their dependencies allow, and nothing else runs before but what they wait
 * for. So an operation that misses a dependency runs before what it should have waited for, not only by chance. Memory
 * whose content nobody may read any more is overwritten (emulation/spoil.h), and operations of one channel have to run
 * one after another, as the plan lists them. */
#ifndef TWS_EMULATION_INTERLEAVE_H
#define TWS_EMULATION_INTERLEAVE_H

#include "real/real.h"

typedef struct tws_interleaving {
  const tws_plan *const *plans; /* of all ranks, for the order: those of `ranks`, or others that a test has spoilt */
  int count;
  const tws_virtual_api *api;
  tws_virtual *ranks;
  tws_program program;
  uint64_t seed;
} tws_interleaving;

/* Between begin() and end() of `ranks`. TWS_INTERNAL: operations are left that cannot start, or one starts before one
 * that its channel has first. */
tws_code tws_interleave(const tws_interleaving *order, tws_error *err);
/* Seeds 0 to this hurry every stream of every rank once. */
uint64_t tws_interleave_seeds(const tws_plan *const *plans, int count);

#endif
