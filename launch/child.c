#include "launch/child.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/log.h"
#include "base/output_file.h"

/* A launcher gives its ranks five seconds to end, and then kills them: it must be given more time than that. */
static const double patience_s = 8.0;

static void become_child(const tws_child_request *request, int output, int error, pid_t parent) {
  const int null = open("/dev/null", O_RDONLY);
  setpgid(0, 0);
  prctl(PR_SET_PDEATHSIG, SIGTERM);
  if (getppid() != parent) _exit(127);
  if (null >= 0) dup2(null, STDIN_FILENO);
  dup2(output, STDOUT_FILENO);
  dup2(error, STDERR_FILENO);
  signal(SIGPIPE, SIG_DFL);
  execv(request->argv[0], (char *const *)(void *)request->argv);
  _exit(127);
}

static void wait_for(pid_t child, double limit_s, tws_child_end *end) {
  const double started = tws_clock_s();
  const struct timespec nap = {.tv_nsec = 5000000};
  int status = 0;
  for (;;) {
    const pid_t got = waitpid(child, &status, WNOHANG);
    if (got == child || (got < 0 && errno != EINTR)) break;
    const double late = limit_s > 0 ? tws_clock_s() - started - limit_s : -1;
    if (late > 0 && !end->timed_out) {
      end->timed_out = 1;
      kill(-child, SIGTERM);
    } else if (late > patience_s) {
      kill(-child, SIGKILL);
    }
    nanosleep(&nap, NULL);
  }
  kill(-child, SIGKILL); /* what it left behind */
  end->seconds = tws_clock_s() - started;
  end->signal = WIFSIGNALED(status) ? WTERMSIG(status) : 0;
  end->status = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

tws_code tws_child_run(const tws_child_request *request, tws_child_end *end, tws_error *err) {
  *end = (tws_child_end){0};
  int output, error = -1;
  tws_code code = tws_growing_file(request->output, &output, err);
  if (code == TWS_OK) code = tws_growing_file(request->error, &error, err);
  if (code == TWS_OK) {
    fflush(NULL);
    const pid_t parent = getpid(), child = fork();
    if (child == 0) become_child(request, output, error, parent);
    if (child < 0) code = tws_fail(err, TWS_ENVIRONMENT, NULL, "cannot start a process: %s", strerror(errno));
    if (child > 0) {
      setpgid(child, child); /* in parent and child: whichever runs first */
      wait_for(child, request->limit_s, end);
    }
  }
  if (output >= 0) close(output);
  if (error >= 0) close(error);
  return code;
}
