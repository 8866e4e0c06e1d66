/* Updates in two parts: what the other passes ask. Internal to plan/. */
#ifndef TWS_PLAN_ZENFLOW_H
#define TWS_PLAN_ZENFLOW_H

#include "plan/lower.h"

/* Once parameters are laid out: what is chosen of which, and the entries of the state; `kept`: elements that the rank
 * updates. */
void tws_zenflow_begin(tws_lower *l, uint64_t kept);
/* The end of a training step, once gradients can be clipped. */
void tws_zenflow_step(tws_lower *l);
/* All of TWS_PROGRAM_APPLY, of SELECT, of SYNC. */
void tws_zenflow_apply(tws_lower *l);
void tws_zenflow_select(tws_lower *l);
void tws_zenflow_sync(tws_lower *l);

#endif
