/* Averages over ranks by signs with error feedback, and the optimizer phase of programs that use them. Internal to
 * plan/. */
#ifndef TWS_PLAN_COMPRESSED_H
#define TWS_PLAN_COMPRESSED_H

#include "plan/lower.h"

/* Adds the state of the compression: errors of each tensor, and for local steps the rank's own changes. */
void tws_compressed_begin(tws_lower *l);
/* Returns 1 if the program leaves the gradients of each rank unreduced. */
int tws_gradients_stay_local(const tws_lower *l);
/* Emits the updates of the program COMPRESSED, LOCAL or MERGE. */
void tws_compressed_update(tws_lower *l);
/* Emits the program FREEZE: errors become 0. */
void tws_compressed_freeze(tws_lower *l);

#endif
