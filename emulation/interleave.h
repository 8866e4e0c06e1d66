/* The operations of all ranks in an order that a seed draws: whenever several may start, any of them may be next. What
 * plans leave open must not matter, so every seed has to give the same bits. */
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

/* Between begin() and end() of `ranks`. TWS_INTERNAL: operations are left that cannot start. */
tws_code tws_interleave(const tws_interleaving *order, tws_error *err);

#endif
