/* The launcher's watch over a job with a deadline, from the start of its ranks to the end of the last process. The
 * ranks' own watchdogs (real/watchdog.h) know best who computes and who waits, but a stopped process says nothing, and
 * when all are stopped none does. So the launcher looks at what every rank has said last (the board), at the states of
 * the processes on this machine, and at when it has heard of the others.
 *
 * When nothing has changed for the deadline, processes that are stopped are named. A rank of another machine is taken
 * for stopped when nothing is heard of it while its machine answers: it gets 1.25 s more, so that the others
 * can give signs of life. What ranks report themselves by two seconds past the deadline is believed; after that
 * the message says who is where, and that one of them does not continue. */
#ifndef TWS_LAUNCH_WATCH_H
#define TWS_LAUNCH_WATCH_H

#include <sys/types.h>
#include "base/status.h"

typedef struct tws_watch tws_watch;
typedef struct tws_watch_setup {
  int ranks;
  double deadline_s; /* 0: there is none, and tws_watch_judge() has nothing to say */
  const char *board; /* of TWS_BOARD_LINE bytes a rank; stays */
} tws_watch_setup;

tws_code tws_watch_create(const tws_watch_setup *setup, tws_watch **out, tws_error *err);
void tws_watch_destroy(tws_watch *watch); /* NULL is allowed */

/* ---- what the launcher learns ---- */
void tws_watch_started(tws_watch *watch, pid_t mpirun);
/* A rank has come: its process, or 0 where it is not of this machine; the socket, whose kernel says whether the other
 * machine answers, is -1 for a local one. */
void tws_watch_came(tws_watch *watch, int rank, pid_t pid, int socket);
void tws_watch_heard(tws_watch *watch, int rank);
void tws_watch_done(tws_watch *watch, int rank); /* nothing is expected of it any more */

/* ---- what the launcher asks ---- */
/* When to look next, by tws_clock_s(). */
double tws_watch_due(const tws_watch *watch);
/* Looks, where that is due. Seconds for which this process itself did not run, and others could not be heard; 0 as a
 * rule. */
double tws_watch_look(tws_watch *watch);
/* Process of a rank on this machine; 0: not known. */
pid_t tws_watch_pid(const tws_watch *watch, int rank);
/* 1: the other machine has answered within these seconds, whatever becomes of the rank. */
int tws_watch_answers(const tws_watch *watch, int rank, double within_s);
/* TWS_HANG: the job does not continue; *rank is one that is stopped, or -1: which one is not known. */
tws_code tws_watch_judge(const tws_watch *watch, int *rank, tws_error *err);
/* TWS_HANG where ranks are stopped, or silent on a machine that answers, whatever others say; TWS_OK: none is, as far
 * as is known. */
tws_code tws_watch_stopped(const tws_watch *watch, int *rank, tws_error *err);
/* Ends the stopped ones of this machine, which listen to nothing else. */
void tws_watch_kill_stopped(const tws_watch *watch);

#endif
