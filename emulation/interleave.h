/* Runs the operations of all ranks in an order drawn from a seed: whenever several may start, any of them may be next.
 * Plans must not depend on an order that they leave open, so every seed has to give the same bits.
 *
 * Every fourth seed takes any operation that may start. The others favour one stream of one rank, a different one with
 * each seed: its operations start as early as their dependencies allow, and other operations run only if those wait for
 * them. So an operation that lacks a dependency reliably runs before the one that it should have waited for. Memory
 * whose content no operation may read any more is overwritten with a pattern that no operation expects, and operations
 * of one channel have to run one after another, in the plan's order. */
#ifndef TWS_EMULATION_INTERLEAVE_H
#define TWS_EMULATION_INTERLEAVE_H

#include "real/real.h"

typedef struct tws_interleaving {
  const tws_plan *const *plans; /* [rank] plans that determine the order: those of `ranks`, or plans that a test
                                 * modified */
  int count;
  const tws_virtual_api *api;
  tws_virtual *ranks;
  tws_program program;
  uint64_t seed;
} tws_interleaving;

/* Runs all operations of one step, between begin() and end() of `ranks`. Fails with TWS_INTERNAL if operations remain
 * that cannot start, or if an operation starts before an earlier operation of its channel has ended. */
tws_code tws_interleave(const tws_interleaving *order, tws_error *err);
/* Returns the number of seeds (0, 1, ...) after which every stream of every rank has been favoured once. */
uint64_t tws_interleave_seeds(const tws_plan *const *plans, int count);

#endif
