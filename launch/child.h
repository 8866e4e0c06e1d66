/* Runs another command as a child process. The caller survives a child that crashes, hangs or is killed. */
#ifndef TWS_LAUNCH_CHILD_H
#define TWS_LAUNCH_CHILD_H

#include "base/status.h"

typedef struct tws_child_request {
  const char *const *argv;    /* NULL-terminated; argv[0] is a path */
  const char *output, *error; /* paths of the files that receive the child's standard output and error (created or
                               * emptied) */
  double limit_s;             /* the child is terminated after this time; 0: never */
} tws_child_request;

typedef struct tws_child_end {
  int status;    /* exit status of the child; -1: a signal ended it */
  int signal;    /* signal that ended the child; 0: it exited */
  int timed_out; /* 1: the child was terminated because of limit_s */
  double seconds;
} tws_child_end;

/* Runs the command to its end, in a process group of its own: SIGTERM at the limit, SIGKILL eight seconds later. The
 * child receives SIGTERM when this process ends. TWS_ENVIRONMENT, TWS_IO if it cannot be started; `end` reports how
 * it ended, which is no error. */
tws_code tws_child_run(const tws_child_request *request, tws_child_end *end, tws_error *err);

#endif
