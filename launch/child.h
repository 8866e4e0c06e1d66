/* Another command as a child that may fail in any way: crash, hang or be killed, and the caller goes on. */
#ifndef TWS_LAUNCH_CHILD_H
#define TWS_LAUNCH_CHILD_H

#include "base/status.h"

typedef struct tws_child_request {
  const char *const *argv;    /* NULL-terminated; argv[0] is a path */
  const char *output, *error; /* files that its standard output and error go to (created, emptied) */
  double limit_s;             /* ended past this; 0: never */
} tws_child_request;

typedef struct tws_child_end {
  int status;    /* exit status; -1 when a signal ended it */
  int signal;    /* 0: it exited */
  int timed_out; /* it was ended because of limit_s */
  double seconds;
} tws_child_end;

/* Runs it to its end, in a process group of its own: SIGTERM at the limit, SIGKILL eight seconds later. The child gets
 * SIGTERM when this process disappears. TWS_ENVIRONMENT, TWS_IO when it cannot be started: how it ended is no error. */
tws_code tws_child_run(const tws_child_request *request, tws_child_end *end, tws_error *err);

#endif
