/* Computes the bytes that a rank sends in one run of a program. */
#ifndef TWS_PLAN_VOLUME_H
#define TWS_PLAN_VOLUME_H

#include "plan/plan.h"

/* Returns the bytes that the plan's rank sends in collectives and messages, as the algorithms of
 * models/collectives.def transfer them (an all-reduce of S bytes among n ranks: 2 (n - 1) / n S). An uneven all-to-all
 * counts with its expected size. */
double tws_plan_sent_bytes(const tws_plan *plan);

#endif
