/* A thread that ends the process when nothing has happened for too long, and says which rank is stuck where.
 *
 * What happens is that an operation of a step ends, or a phase between and around the steps begins, on any rank that
 * there is news of. All of a training is watched, from its planning to its results: a step, a save or an evaluation may
 * take as long as it likes while something happens in it. All ranks of a job stop together, since they wait for the one
 * that is stuck. So a rank that computes speaks at the deadline; one that waits in a collective gives it two seconds
 * first, and names the rank of its node that has not come. One that waits and cannot say for whom leaves that to the
 * launcher, which sees every process (launch/watch.h); where there is none it speaks after four seconds. A process that
 * was stopped and continues counts from then on. */
#ifndef TWS_REAL_WATCHDOG_H
#define TWS_REAL_WATCHDOG_H

#include "real/executor.h"

typedef struct tws_watchdog tws_watchdog;
typedef struct tws_watchdog_setup {
  double deadline_s;
  int rank;
  char *activity; /* where phases are written for others, or NULL: there is no launcher that reads it */
  size_t activity_bytes;
  uint64_t (*news)(void *user);                      /* see tws_train_options, or NULL */
  void (*on_hang)(void *user, const tws_error *err); /* or NULL */
  void *user;
} tws_watchdog_setup;

/* What a phase waits for: */
typedef enum tws_phase_kind {
  TWS_PHASE_ALONE,  /* for this rank alone: one that takes too long is stuck */
  TWS_PHASE_MEETS,  /* for other ranks, too */
  TWS_PHASE_WRITES, /* for whoever reads what this rank prints, as long as that takes */
} tws_phase_kind;

/* All take NULL for a watchdog. */
tws_code tws_watchdog_create(const tws_watchdog_setup *setup, tws_watchdog **out, tws_error *err);
void tws_watchdog_destroy(tws_watchdog *watchdog);
/* What runs the steps, which must outlive it. */
void tws_watchdog_attach(tws_watchdog *watchdog, const tws_executor *executor, const tws_comm *comm);
/* Around the steps, or with a step's number after or before it: "planning", "saving the checkpoint". */
void tws_watchdog_phase(tws_watchdog *watchdog, int64_t step, const char *what, tws_phase_kind kind);
/* In a phase: something has happened, for others to hear of too. */
void tws_watchdog_goes_on(tws_watchdog *watchdog, const char *what);
/* The same from any thread, for what happens often: pieces of a save. */
void tws_watchdog_moves(tws_watchdog *watchdog);
void tws_watchdog_begin(tws_watchdog *watchdog, int64_t step); /* a step begins; the next phase ends it */

#endif
