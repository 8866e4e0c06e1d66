/* Offloading and partitioning of activation checkpoints, called around the visits of a micro-batch. These functions
 * emit no operation if the configuration requests neither. Internal to plan/. */
#ifndef TWS_PLAN_CHECKPOINTS_H
#define TWS_PLAN_CHECKPOINTS_H

#include "plan/lower.h"

/* Determines which values are offloaded or partitioned. Called when the local network is known. */
void tws_checkpoints_begin(tws_lower *l);
/* The first is called before a backward visit, and copies back or gathers the checkpoints that the visit reads. The
 * second is called after a forward visit, and offloads or partitions the checkpoints that no later forward visit
 * reads. */
void tws_checkpoints_before(tws_lower *l, uint32_t visit);
void tws_checkpoints_after(tws_lower *l, uint32_t visit);

#endif
