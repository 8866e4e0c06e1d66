#include "launch/command.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "launch/launch.h"
#include "launch/protocol.h"

tws_code tws_command_find(const char *name, tws_error *err) {
  const char *path = getenv("PATH");
  int found = strchr(name, '/') && access(name, X_OK) == 0;
  for (const char *at = path ? path : ""; !found && !strchr(name, '/') && *at;) {
    char candidate[4096];
    size_t length = strcspn(at, ":");
    snprintf(candidate, sizeof candidate, "%.*s/%s", (int)length, at, name);
    found = access(candidate, X_OK) == 0;
    at += length + (at[length] == ':');
  }
  if (found) return TWS_OK;
  return tws_fail(err, TWS_ENVIRONMENT, "give its path, or put it on PATH", "launch: there is no program \"%.200s\"",
                  name);
}

/* ---- inside a rank: the command, and what became of it ---- */

static pid_t command_pid; /* for the handler below */

static void pass_on(int number) {
  if (command_pid > 0) kill(command_pid, number);
}

static void set_number(const char *name, int value) {
  char text[16];
  snprintf(text, sizeof text, "%d", value);
  setenv(name, text, 1);
}

/* What torchrun and DeepSpeed's launcher tell their commands. */
static void set_environment(int rank, const tws_rank_place *p) {
  char devices[1024] = "";
  int n = 0;
  set_number("RANK", rank);
  set_number("WORLD_SIZE", p->ranks);
  set_number("LOCAL_RANK", p->local_rank);
  set_number("LOCAL_WORLD_SIZE", p->local_ranks);
  set_number("LOCAL_SIZE", p->local_ranks);
  set_number("CROSS_RANK", p->node);
  set_number("CROSS_SIZE", p->nodes);
  setenv("MASTER_ADDR", p->master, 0);
  setenv("MASTER_PORT", "29500", 0);
  for (int i = 0; p->given && i < p->device_count && n < (int)sizeof devices; i++)
    n += snprintf(devices + n, sizeof devices - (size_t)n, "%s%d", i ? "," : "", p->device[i]);
  if (p->given) setenv("CUDA_VISIBLE_DEVICES", devices, 0);
}

static void become_command(char **argv) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  signal(SIGTERM, SIG_DFL);
  signal(SIGPIPE, SIG_DFL);
  signal(SIGXFSZ, SIG_DFL);
  set_environment(tws_worker_rank(), tws_worker_place());
  unsetenv(TWS_SECRET_VARIABLE);
  unsetenv(TWS_LAUNCHER_VARIABLE); /* a twinspeed that the command starts is no rank of this job */
  execvp(argv[0], argv);
  _exit(127);
}

tws_code tws_command_run(char **argv, tws_error *err) {
  int status = 0, rank = tws_worker_rank();
  signal(SIGTERM, pass_on);
  fflush(NULL);
  command_pid = fork();
  if (command_pid == 0) become_command(argv);
  if (command_pid < 0) return tws_fail(err, TWS_ENVIRONMENT, NULL, "cannot start a process: %s", strerror(errno));
  while (waitpid(command_pid, &status, 0) < 0)
    if (errno != EINTR) break;
  if (WIFSIGNALED(status))
    return tws_fail(err, TWS_RANK, NULL, "rank %d of the command was ended by signal %d (%s)", rank, WTERMSIG(status),
                    strsignal(WTERMSIG(status)));
  if (WEXITSTATUS(status))
    return tws_fail(err, TWS_RANK, NULL, "rank %d of the command ended with status %d", rank, WEXITSTATUS(status));
  return TWS_OK;
}
