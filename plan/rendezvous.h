/* Matches the collectives and messages of several ranks before a run starts (run_order.h). Internal to plan/. */
#ifndef TWS_PLAN_RENDEZVOUS_H
#define TWS_PLAN_RENDEZVOUS_H

#include "plan/run_order.h"

/* Fills communicators, rendezvous, members and ranks[].rendezvous, and checks that the ranks agree. */
tws_code tws_rendezvous_make(tws_run *run, tws_error *err);

#endif
