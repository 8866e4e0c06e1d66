/* ZenFlow updates (plan/zenflow.c), as other passes of the lowering call them. Internal to plan/. */
#ifndef TWS_PLAN_ZENFLOW_H
#define TWS_PLAN_ZENFLOW_H

#include "plan/lower.h"

/* Determines the number of selected columns of each matrix and adds the entries of the state. Called when parameters
 * are laid out; kept: number of elements that the rank updates. */
void tws_zenflow_begin(tws_lower *l, uint64_t kept);
/* Emits the first operations of a training step: the host accumulates the staged gradients of the previous step, and in
 * a step that overlaps the host also runs the update of the previous interval, whose results tws_zenflow_step() copies
 * to the device. In an evaluation it emits nothing. */
void tws_zenflow_late(tws_lower *l);
/* Emits the copies of this step's gradients to the host. Called when all gradients have been emitted. */
void tws_zenflow_stage(tws_lower *l);
/* Emits the optimizer phase of a training step. Called when the clipping coefficient has been computed. */
void tws_zenflow_step(tws_lower *l);
/* Emit the operations of the programs TWS_PROGRAM_APPLY, SELECT and SYNC. */
void tws_zenflow_apply(tws_lower *l);
void tws_zenflow_select(tws_lower *l);
void tws_zenflow_sync(tws_lower *l);

#endif
