/* Offloading and partitioning of activation checkpoints, called around the visits of a micro-batch. These functions
 * emit no operation if the configuration does not ask for it. Internal to plan/. */
#ifndef TWS_PLAN_CHECKPOINTS_H
#define TWS_PLAN_CHECKPOINTS_H

#include "plan/lower.h"

/* Called once the local network is known. */
void tws_checkpoints_begin(tws_lower *l);
/* Before a backward visit: copy back or gather the checkpoints that it reads. After a forward visit: offload or
 * partition those that no later forward visit reads. */
void tws_checkpoints_before(tws_lower *l, uint32_t visit);
void tws_checkpoints_after(tws_lower *l, uint32_t visit);

#endif
