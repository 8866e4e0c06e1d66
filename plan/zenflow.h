/* ZenFlow updates (plan/zenflow.c), as other passes of the lowering call them. Internal to plan/. */
#ifndef TWS_PLAN_ZENFLOW_H
#define TWS_PLAN_ZENFLOW_H

#include "plan/lower.h"

/* Determines the number of selected columns of each matrix and adds the entries of the state. Called when parameters
 * are laid out; kept: number of elements that the rank updates. */
void tws_zenflow_begin(tws_lower *l, uint64_t kept);
/* Emits, in a training step that overlaps, the host's update of the interval before it: the first operations of the
 * step, whose results tws_zenflow_step() copies to the device. In other programs it emits nothing. */
void tws_zenflow_late(tws_lower *l);
/* Emits the optimizer phase of a training step. Called when the clipping coefficient has been computed. */
void tws_zenflow_step(tws_lower *l);
/* Emit the operations of the programs TWS_PROGRAM_APPLY, SELECT and SYNC. */
void tws_zenflow_apply(tws_lower *l);
void tws_zenflow_select(tws_lower *l);
void tws_zenflow_sync(tws_lower *l);

#endif
