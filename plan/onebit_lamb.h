/* OneBitLamb's lists, and the operations of its programs. Internal to plan/. */
#ifndef TWS_PLAN_ONEBIT_LAMB_H
#define TWS_PLAN_ONEBIT_LAMB_H

#include "plan/lower.h"

/* Adds the state of OneBitLamb; other optimizers have none. */
void tws_onebit_lamb_begin(tws_lower *l);
/* Emits the averages of trust ratios of a step with reduced gradients. norms: for each parameter of the network the two
 * numbers that the kernel LAMB_NORMS computes, summed over all ranks that have parts of the parameter. */
void tws_onebit_lamb_follow(tws_lower *l, uint32_t norms);
/* Emits the updates of the program COMPRESSED. */
void tws_onebit_lamb_update(tws_lower *l);
/* Emits the program FREEZE, which begins the phase of compressed steps. */
void tws_onebit_lamb_freeze(tws_lower *l);
/* Returns the share of a parameter's sums that this rank contributes: 1 over the number of ranks with a copy of it,
 * tensor-parallel ranks and the pipeline stages of tied weights. */
double tws_onebit_lamb_share(const tws_lower *l, uint32_t param);

#endif
