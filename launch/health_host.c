/* Examines another host by commands that a remote shell runs there. */
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "base/number.h"
#include "base/process.h"
#include "base/system.h"
#include "launch/health.h"

enum { SHELL_WORDS = 32 };

/* The first words of a command on a host: ssh, or the program of --remote-shell with its arguments, separated by
 * blanks as in mpirun's parameters. ssh takes "--" before the host, so that no name of a host is read as an option;
 * other programs get the host alone. */
typedef struct remote_shell {
  char text[1024];
  const char *words[SHELL_WORDS + 8];
  int count;
} remote_shell;

static void read_shell(const char *given, remote_shell *shell) {
  snprintf(shell->text, sizeof shell->text, "%s", given ? given : "ssh");
  shell->count = 0;
  for (char *rest = shell->text, *word; shell->count < SHELL_WORDS && (word = strtok_r(rest, " ", &rest));)
    shell->words[shell->count++] = word;
  const char *slash = shell->count ? strrchr(shell->words[0], '/') : NULL;
  const int ssh = shell->count && strcmp(slash ? slash + 1 : shell->words[0], "ssh") == 0;
  static const char *const quiet[] = {"-o", "BatchMode=yes", "-o", "ConnectTimeout=5"};
  for (int i = 0; i < 4 && !given; i++) shell->words[shell->count++] = quiet[i];
  if (ssh) shell->words[shell->count++] = "--";
}

static int ask_host(const remote_shell *shell, const char *host, const char *program, const char *argument, char *line,
                    size_t size) {
  const char *words[SHELL_WORDS + 16];
  int count = 0;
  for (int i = 0; i < shell->count; i++) words[count++] = shell->words[i];
  words[count++] = host;
  words[count++] = program;
  words[count++] = argument;
  words[count] = NULL;
  return shell->count > 0 && tws_health_run_program(words, 0, line, size);
}

/* Examines a host of a hostfile: access without a password, the same program, and an agreeing clock. */
void tws_health_host(const tws_health_listener *p, const char *given_shell, const char *host) {
  char line[256], program[512], mine[256];
  struct timespec before, after;
  remote_shell shell;
  read_shell(given_shell, &shell);
  tws_program_path(program, (int)sizeof program);
  clock_gettime(CLOCK_REALTIME, &before);
  double there = 0;
  const int reached =
      ask_host(&shell, host, "date", "+%s.%N", line, sizeof line) && tws_text_number(line, NULL, 0, 1e12, &there);
  clock_gettime(CLOCK_REALTIME, &after);
  if (!reached) {
    tws_health_add(p, TWS_HEALTH_FAIL, host, "ssh-copy-id HOST; --remote-shell names another way",
                   "cannot be reached by %s", given_shell ? given_shell : "ssh");
    return;
  }
  const double first = (double)before.tv_sec + 1e-9 * (double)before.tv_nsec;
  const double last = (double)after.tv_sec + 1e-9 * (double)after.tv_nsec;
  /* the difference between the clocks that the duration of the round trip does not explain */
  const double skew = there < first ? there - first : there > last ? there - last : 0;
  /* path of this program, quoted for the host's shell */
  tws_text path = {0};
  tws_process_quote(&path, program);
  const int same = path.data && ask_host(&shell, host, path.data, "--version", line, sizeof line);
  tws_text_free(&path);
  const char *const own[] = {program, "--version", NULL};
  tws_health_run_program(own, 0, mine, sizeof mine);
  if (!same || strcmp(line, mine) != 0)
    tws_health_add(p, TWS_HEALTH_FAIL, host, "install the same version at the same place on every node", "%s: %s",
                   program, same ? line : "is not there");
  else
    tws_health_add(p, skew > 0.5 || skew < -0.5 ? TWS_HEALTH_WARN : TWS_HEALTH_OKAY, host,
                   "timedatectl set-ntp true there and here", "reached, the same program, clock %+.3f s", skew);
}
