/* Matches the collectives and messages of several ranks before a run starts (run_order.h). Internal to plan/. */
#ifndef TWS_PLAN_RENDEZVOUS_H
#define TWS_PLAN_RENDEZVOUS_H

#include "plan/run_order.h"

/* Fills the communicators, rendezvous and members of a run and ranks[].rendezvous, and checks that matching operations
 * have equal kinds, types and sizes. */
tws_code tws_rendezvous_make(tws_run *run, tws_error *err);

#endif
