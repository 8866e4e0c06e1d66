#include "launch/guard.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/log.h"
#include "launch/protocol.h"

static const double look_s = 0.25;

/* Signals that are ignored stay ignored, such as nohup's SIGHUP. */
static void choose_signals(sigset_t *mask) {
  static const int numbers[] = {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGTSTP};
  struct sigaction action;
  sigemptyset(mask);
  sigaddset(mask, SIGCHLD);
  for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
    if (sigaction(numbers[i], NULL, &action) == 0 && action.sa_handler != SIG_IGN) sigaddset(mask, numbers[i]);
}

/* Ctrl-Z stops both; the child continues with this process. */
static void stop_together(pid_t child) {
  kill(-child, SIGSTOP);
  raise(SIGSTOP);
  kill(-child, SIGCONT);
}

/* Waits until the child has ended; returns 0 if it was stopped until the deadline. */
static int wait_for_end(pid_t child, double deadline_s, const sigset_t *mask, int *status) {
  const struct timespec look = {.tv_nsec = (long)(look_s * 1e9)};
  double stopped_s = 0, looked_s = tws_clock_s();
  for (int stopped = 0;;) {
    const int number = sigtimedwait(mask, NULL, &look);
    if (number == SIGTSTP)
      stop_together(child);
    else if (number > 0 && number != SIGCHLD) {
      kill(child, number);
      if (stopped) kill(child, SIGCONT); /* a stopped process takes no signal */
    }
    for (;;) {
      const pid_t got = waitpid(child, status, WNOHANG | WUNTRACED | WCONTINUED);
      if (got < 0 && errno == EINTR) continue;
      if (got < 0 || (got == child && !WIFSTOPPED(*status) && !WIFCONTINUED(*status))) return 1;
      if (got == 0) break;
      stopped = WIFSTOPPED(*status);
    }
    const double passed = tws_clock_s() - looked_s; /* more where this process was stopped, too */
    looked_s += passed;
    stopped_s = !stopped ? 0 : stopped_s + (passed < 2 * look_s ? passed : 2 * look_s);
    if (stopped_s >= deadline_s) return 0;
  }
}

static tws_code watch_child(pid_t child, double deadline_s, const sigset_t *mask, tws_guard *g, tws_error *err) {
  int status = 0;
  if (!wait_for_end(child, deadline_s, mask, &status)) {
    kill(-child, SIGKILL);
    while (waitpid(child, &status, 0) < 0 && errno == EINTR) continue;
    return tws_fail(err, TWS_HANG, "`kill -CONT` continues a stopped process, before the deadline",
                    "nothing has happened for %.3g s: rank 0 is stopped (process %d), at: %.255s", deadline_s,
                    (int)child, g->line[0] ? g->line : "starting");
  }
  g->signal = WIFSIGNALED(status) ? WTERMSIG(status) : 0;
  g->status = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  return TWS_OK;
}

tws_code tws_guard_start(double deadline_s, tws_guard *g, tws_error *err) {
  sigset_t mask, before;
  *g = (tws_guard){.room = TWS_BOARD_LINE};
  g->line = mmap(NULL, g->room, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (g->line == MAP_FAILED) return tws_fail(err, TWS_MEMORY, NULL, "out of memory");
  choose_signals(&mask);
  signal(SIGCHLD, SIG_DFL);
  sigprocmask(SIG_BLOCK, &mask, &before);
  fflush(NULL);
  const pid_t parent = getpid(), child = fork();
  if (child <= 0) g->inside = 1; /* also where there can be no other process: it is unwatched then */
  if (child == 0) {
    setpgid(0, 0);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent) _exit(128 + SIGKILL);
    signal(SIGTTOU, SIG_IGN); /* it prints to the terminal, which is its parent's */
  } else if (child > 0) {
    setpgid(child, child); /* in parent and child: whichever runs first */
    const tws_code code = watch_child(child, deadline_s, &mask, g, err);
    munmap(g->line, g->room);
    g->line = NULL;
    sigprocmask(SIG_SETMASK, &before, NULL);
    return code;
  }
  sigprocmask(SIG_SETMASK, &before, NULL);
  return TWS_OK;
}
