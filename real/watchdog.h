/* A thread that ends the process when a step takes too long, and says which rank is stuck in which operation.
 *
 * All ranks of a job pass the deadline together, since they wait for the one that is stuck. So a rank that is computing
 * speaks at the deadline, one that waits in a collective gives it two seconds first, and then names the rank that has
 * not come. */
#ifndef TWS_REAL_WATCHDOG_H
#define TWS_REAL_WATCHDOG_H

#include "real/executor.h"

typedef struct tws_watchdog tws_watchdog;
typedef struct tws_watchdog_setup {
  double deadline_s;
  int rank;
  const tws_executor *executor;
  const tws_comm *comm;
  void (*on_hang)(void *user, const tws_error *err); /* or NULL */
  void *user;
} tws_watchdog_setup;

tws_code tws_watchdog_create(const tws_watchdog_setup *setup, tws_watchdog **out, tws_error *err);
void tws_watchdog_destroy(tws_watchdog *watchdog);             /* NULL is allowed */
void tws_watchdog_begin(tws_watchdog *watchdog, int64_t step); /* a step begins */
void tws_watchdog_end(tws_watchdog *watchdog);

#endif
