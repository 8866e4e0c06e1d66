/* A thread that ends the process when nothing has happened for too long, and says which rank is stuck where.
 *
 * What happens is that an operation of a step ends, or a phase around the steps, on any rank that there is news of. A
 * step may take as long as it likes while it goes on: a slow rank does not hang. All ranks of a job stop together,
 * since they wait for the one that is stuck. So a rank that computes speaks at the deadline; one that waits in a
 * collective gives it two seconds first, and names the rank of its node that has not come; one whose node waits as a
 * whole gives the others four. */
#ifndef TWS_REAL_WATCHDOG_H
#define TWS_REAL_WATCHDOG_H

#include "real/executor.h"

typedef struct tws_watchdog tws_watchdog;
typedef struct tws_watchdog_setup {
  double deadline_s;
  int rank;
  char *activity; /* where phases are written for others, or NULL */
  size_t activity_bytes;
  uint64_t (*news)(void *user);                      /* see tws_train_options, or NULL */
  void (*on_hang)(void *user, const tws_error *err); /* or NULL */
  void *user;
} tws_watchdog_setup;

/* All take NULL for a watchdog. */
tws_code tws_watchdog_create(const tws_watchdog_setup *setup, tws_watchdog **out, tws_error *err);
void tws_watchdog_destroy(tws_watchdog *watchdog);
/* What runs the steps, which must outlive it. */
void tws_watchdog_attach(tws_watchdog *watchdog, const tws_executor *executor, const tws_comm *comm);
/* Around the steps: "planning", a text that stays. meets: other ranks are waited for in it. */
void tws_watchdog_phase(tws_watchdog *watchdog, const char *what, int meets);
/* In a phase: something has happened, for others to hear of too. */
void tws_watchdog_goes_on(tws_watchdog *watchdog, const char *what);
void tws_watchdog_begin(tws_watchdog *watchdog, int64_t step); /* a step begins */
void tws_watchdog_end(tws_watchdog *watchdog);

#endif
