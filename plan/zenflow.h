/* ZenFlow updates, as other passes call them. Internal to plan/. */
#ifndef TWS_PLAN_ZENFLOW_H
#define TWS_PLAN_ZENFLOW_H

#include "plan/lower.h"

/* Determines the number of selected columns of each matrix and adds the entries of the state. Called once parameters
 * are laid out; kept: elements that the rank updates. */
void tws_zenflow_begin(tws_lower *l, uint64_t kept);
/* Emits the optimizer phase of a training step, once the clipping coefficient is computed. */
void tws_zenflow_step(tws_lower *l);
/* Emit the programs TWS_PROGRAM_APPLY, SELECT and SYNC. */
void tws_zenflow_apply(tws_lower *l);
void tws_zenflow_select(tws_lower *l);
void tws_zenflow_sync(tws_lower *l);

#endif
