/* Starting ranks: `twinspeed rank-worker VERB ...` once per rank under mpirun, and everything that can go wrong.
 *
 * The launcher keeps a socket to each rank. Through it a rank gets the launcher's standard output and error (so
 * mpirun's own chatter never mixes with them) and a line of shared memory in which it says what it is doing; a rank
 * that ends without saying goodbye has died, and the launcher names it and what it was doing. The first failure is
 * reported once; then every rank is ended: SIGTERM, and SIGKILL after five seconds. Ranks also end when the launcher
 * disappears, so there are no orphans. */
#ifndef TWS_LAUNCH_LAUNCH_H
#define TWS_LAUNCH_LAUNCH_H

#include <stddef.h>
#include <stdint.h>
#include "base/status.h"

typedef struct tws_launch_options {
  double deadline_s; /* status 124 when a rank takes longer to start; 0: never */
  int ranks;
  int threads;                  /* per rank: OMP_NUM_THREADS, OPENBLAS_NUM_THREADS */
  const char *const *arguments; /* what follows `twinspeed rank-worker`: the verb and its arguments */
  int argument_count;
  int ends_itself; /* SIGTERM is passed on as tws_worker_asked_to_end(), and ranks that end well end the job well; a second
                      one ends them as ever */
  int silent;    /* the ranks' standard output is dropped */
  int to_stderr; /* it goes to standard error: standard output has another document */
} tws_launch_options;

/* Runs to the end of all ranks. TWS_RANK: a rank failed (err names rank and operation); TWS_HANG, TWS_INVALID ...: the
 * code a rank reported; TWS_INTERRUPTED after Ctrl-C; TWS_ENVIRONMENT: mpirun is missing or does not start. */
tws_code tws_launch(const tws_launch_options *options, tws_error *err);

/* Threads of a host rank when the configuration leaves them open: cores / ranks, at least 1. */
int tws_launch_threads(int64_t configured, int ranks);
int tws_launch_cores(void); /* cores this process may use */
/* Thread variables (OMP_NUM_THREADS, OPENBLAS_NUM_THREADS, ...) for the engine inside this process; call it before the
 * module is loaded. */
void tws_launch_set_threads(int threads);

/* ---- inside a rank ---- */
int tws_worker_is(void);                     /* 1 in a process started by tws_launch() */
int tws_worker_rank(void);                   /* as mpirun numbers it; 0 outside */
tws_code tws_worker_connect(tws_error *err); /* take over the launcher's output; call it first */
char *tws_worker_activity(size_t *bytes);    /* where to say what this rank is doing; NULL outside */
int tws_worker_asked_to_end(void);           /* 1 once the launcher was, with ends_itself */
void tws_worker_fail(const tws_error *err);  /* tell the launcher why this rank ends */
void tws_worker_done(void);                  /* tell the launcher that this rank ends well */

#endif
