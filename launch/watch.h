/* The launcher's watchdog over a job with a deadline, from the start of its ranks to the end of the last process. The
 * ranks' own watchdogs (real/watchdog.h) know best which rank computes and which waits, but a stopped process reports
 * nothing, and when all are stopped none does. So the launcher reads every rank's last report (the board), the states
 * of the processes on this machine, and the time of the last message of the others.
 *
 * When nothing has changed for the deadline, stopped processes are named. A rank of another machine counts as
 * stopped if it sends nothing while its machine answers: it gets 1.25 s more, so that the others can send
 * heartbeats. Reports of the ranks themselves, up to two seconds past the deadline, take precedence; after that the
 * message lists every rank's operation, and says that one of them does not continue. */
#ifndef TWS_LAUNCH_WATCH_H
#define TWS_LAUNCH_WATCH_H

#include <sys/types.h>
#include "base/status.h"

typedef struct tws_watch tws_watch;
typedef struct tws_watch_setup {
  int ranks;
  double deadline_s; /* 0: there is none, and tws_watch_judge() returns TWS_OK */
  const char *board; /* TWS_BOARD_LINE bytes per rank; must outlive the watch */
} tws_watch_setup;

tws_code tws_watch_create(const tws_watch_setup *setup, tws_watch **out, tws_error *err);
void tws_watch_destroy(tws_watch *watch); /* NULL is allowed */

/* ---- events that the launcher reports ---- */
void tws_watch_started(tws_watch *watch, pid_t mpirun);
/* A rank has connected: its process, or 0 where it is on another machine; the socket, whose kernel reports whether
 * the other machine answers, is -1 for a local one. */
void tws_watch_came(tws_watch *watch, int rank, pid_t pid, int socket);
void tws_watch_heard(tws_watch *watch, int rank);
void tws_watch_done(tws_watch *watch, int rank); /* nothing more is expected of it */

/* ---- queries of the launcher ---- */
/* Time of the next check, by tws_clock_s(). */
double tws_watch_due(const tws_watch *watch);
/* Checks, if the time has come. Returns the seconds for which this process itself did not run, and could not receive
 * messages; normally 0. */
double tws_watch_look(tws_watch *watch);
/* Process of a rank on this machine; 0: not known. */
pid_t tws_watch_pid(const tws_watch *watch, int rank);
/* Returns 1 if the other machine has answered within these seconds, whatever the state of the rank. */
int tws_watch_answers(const tws_watch *watch, int rank, double within_s);
/* TWS_HANG: the job does not continue; *rank is a stopped rank, or -1 if it is unknown which one. */
tws_code tws_watch_judge(const tws_watch *watch, int *rank, tws_error *err);
/* TWS_HANG if ranks are stopped, or silent on a machine that answers, whatever other ranks report; TWS_OK: none is
 * known to be. */
tws_code tws_watch_stopped(const tws_watch *watch, int *rank, tws_error *err);
/* Kills the stopped processes of this machine, which receive no other signal. */
void tws_watch_kill_stopped(const tws_watch *watch);

#endif
