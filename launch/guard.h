/* Supervisor process of a job of one rank, which has no launcher: a stopped process cannot end itself. */
#ifndef TWS_LAUNCH_GUARD_H
#define TWS_LAUNCH_GUARD_H

#include "base/status.h"

typedef struct tws_guard {
  int inside;         /* 1: this is the supervised process, which does the work */
  char *line;         /* supervised: shared text with its current operation, zero-terminated */
  unsigned long room; /* size of `line`, bytes */
  int status;         /* supervisor: exit status of the child; -1 when a signal ended it */
  int signal;
} tws_guard;

/* Forks this process, which has one thread. The child returns at once and does the work. The parent forwards signals to
 * the child (SIGTSTP too), and returns when the child has ended: TWS_HANG if the child was stopped until the deadline,
 * and was killed. The child is a process group of its own and ends when the parent is killed. If no process can be
 * forked, this one does the work unsupervised. */
tws_code tws_guard_start(double deadline_s, tws_guard *guard, tws_error *err);

#endif
