/* Activation checkpoints that wait elsewhere: called around the visits of a micro-batch. Without them in the
 * configuration nothing here emits an operation. Internal to plan/. */
#ifndef TWS_PLAN_CHECKPOINTS_H
#define TWS_PLAN_CHECKPOINTS_H

#include "plan/lower.h"

/* After the local network is known. */
void tws_checkpoints_begin(tws_lower *l);
/* Before a backward visit: brings what it needs; after a forward visit: sends away what it used last. */
void tws_checkpoints_before(tws_lower *l, uint32_t visit);
void tws_checkpoints_after(tws_lower *l, uint32_t visit);

#endif
