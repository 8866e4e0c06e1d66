/* A thread that ends the process after too long a time without progress, and reports which rank is stuck in which
 * operation.
 *
 * Progress means that an operation of a step ends, or a phase between or around the steps begins, on any rank whose
 * progress is visible. The whole training is watched, from its planning to its results: a step, a save or an
 * evaluation may take any time while it makes progress. All ranks of a job stop together, since they wait for the
 * rank that is stuck. So a rank that computes reports at the deadline; one that waits in a collective leaves it two
 * more seconds, and then names the rank of its node that has not arrived. One that waits and cannot tell for which
 * rank leaves the report to the launcher, which sees every process (launch/watch.h); without a launcher it reports
 * after four seconds. For a process that was stopped and continued, the time starts again. */
#ifndef TWS_REAL_WATCHDOG_H
#define TWS_REAL_WATCHDOG_H

#include "real/executor.h"

typedef struct tws_watchdog tws_watchdog;
typedef struct tws_watchdog_setup {
  double deadline_s;
  int rank;
  char *activity; /* buffer in which phases are written for the launcher, or NULL: there is none */
  size_t activity_bytes;
  uint64_t (*news)(void *user);                      /* returns a number that changes when any rank makes progress
                                                      * (tws_train_options), or NULL */
  void (*on_hang)(void *user, const tws_error *err); /* called when a hang is reported; NULL: no call */
  void *user;
} tws_watchdog_setup;

/* The kind of a phase, which states on whom the end of the phase depends. */
typedef enum tws_phase_kind {
  TWS_PHASE_ALONE,  /* depends on this rank alone: the rank is stuck if the phase takes too long */
  TWS_PHASE_MEETS,  /* depends also on other ranks, for which this rank waits */
  TWS_PHASE_WRITES, /* depends on the process that reads this rank's output, which may read at any time */
} tws_phase_kind;

/* Creates a watchdog. All functions below accept NULL as a watchdog. */
tws_code tws_watchdog_create(const tws_watchdog_setup *setup, tws_watchdog **out, tws_error *err);
void tws_watchdog_destroy(tws_watchdog *watchdog);
/* Sets the executor and communicator of the steps, which must outlive the watchdog. */
void tws_watchdog_attach(tws_watchdog *watchdog, const tws_executor *executor, const tws_comm *comm);
/* Begins a phase outside of steps, such as "planning" or "saving the checkpoint". `step`: the number of
 * the step before or after the phase; 0: none. */
void tws_watchdog_phase(tws_watchdog *watchdog, int64_t step, const char *what, tws_phase_kind kind);
/* Reports progress within a phase, visible to other ranks too. */
void tws_watchdog_progress(tws_watchdog *watchdog, const char *what);
/* Reports progress within a phase from any thread, as often as it occurs; used for each segment of a save. */
void tws_watchdog_count_progress(tws_watchdog *watchdog);
/* Reports that a step begins, which ends the current phase. The next call of tws_watchdog_phase() ends the step. */
void tws_watchdog_begin(tws_watchdog *watchdog, int64_t step);

#endif
