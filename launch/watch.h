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
  double deadline_s; /* the watch's deadline in seconds; 0: there is none, and tws_watch_judge() returns TWS_OK */
  const char *board; /* TWS_BOARD_LINE bytes per rank; must outlive the watch */
} tws_watch_setup;

tws_code tws_watch_create(const tws_watch_setup *setup, tws_watch **out, tws_error *err);
void tws_watch_destroy(tws_watch *watch); /* NULL is allowed */

/* ---- events that the launcher reports ---- */
void tws_watch_started(tws_watch *watch, pid_t mpirun);
/* Called when a rank has connected. pid: its process, or 0 if it is on another machine. socket: the connection, whose
 * kernel reports whether the other machine answers; -1 for a local rank. */
void tws_watch_connected(tws_watch *watch, int rank, pid_t pid, int socket);
void tws_watch_received(tws_watch *watch, int rank);
void tws_watch_done(tws_watch *watch, int rank); /* called when a rank has ended its work; no further report of it is
                                                  * expected */

/* ---- queries of the launcher ---- */
/* Returns the time of the next check, on the clock of tws_clock_s(). */
double tws_watch_next_check_s(const tws_watch *watch);
/* Checks the ranks if the next check is due. Returns the seconds for which this process itself did not run and could
 * not receive messages; normally 0. */
double tws_watch_look(tws_watch *watch);
/* Returns the process ID of a rank on this machine; 0: not known. */
pid_t tws_watch_pid(const tws_watch *watch, int rank);
/* Returns 1 if the rank's machine has answered within the last `within_s` seconds, whatever the state of the rank. */
int tws_watch_answers(const tws_watch *watch, int rank, double within_s);
/* Returns TWS_HANG if the job makes no progress; *rank is a stopped rank, or -1 if the stuck rank is unknown. */
tws_code tws_watch_judge(const tws_watch *watch, int *rank, tws_error *err);
/* Returns TWS_HANG if ranks are stopped, or silent on a machine that answers, whatever other ranks report; TWS_OK if no
 * rank is known to be stopped. */
tws_code tws_watch_stopped(const tws_watch *watch, int *rank, tws_error *err);
/* Kills the stopped processes of this machine, which receive no other signal. */
void tws_watch_kill_stopped(const tws_watch *watch);

#endif
