/* A process that watches over a job of one rank, which has no launcher: a stopped process cannot end itself. */
#ifndef TWS_LAUNCH_GUARD_H
#define TWS_LAUNCH_GUARD_H

#include "base/status.h"

typedef struct tws_guard {
  int inside;         /* 1: this is the process that is watched, and does the work */
  char *line;         /* inside: where it says what it does, zero-terminated */
  unsigned long room; /* of the line, in bytes */
  int status;         /* outside: its exit status; -1 when a signal ended it */
  int signal;
} tws_guard;

/* Splits this process, which has one thread, in two. The child returns at once. The parent passes signals on to it
 * (SIGTSTP too), and returns when it has ended: TWS_HANG when it was stopped for the deadline, and is killed. The child
 * is a process group of its own and ends when the parent is killed. Where no process can be started this one does the
 * work unwatched. */
tws_code tws_guard_start(double deadline_s, tws_guard *guard, tws_error *err);

#endif
