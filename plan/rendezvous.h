/* Internal to plan/: the rendezvous of a run (run_order.h), found before it starts. */
#ifndef TWS_PLAN_RENDEZVOUS_H
#define TWS_PLAN_RENDEZVOUS_H

#include "plan/run_order.h"

/* Fills communicators, rendezvous, members and ranks[].rendezvous, and checks that the ranks agree. */
tws_code tws_rendezvous_make(tws_run *run, tws_error *err);

#endif
