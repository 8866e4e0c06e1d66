#include "base/process.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/log.h"

enum { LINE_BYTES = 64 << 10 };

const char *tws_process_find(const char *name, char *path, size_t size) {
  const char *list = getenv("PATH");
  if (strchr(name, '/')) {
    const int fits = snprintf(path, size, "%s", name) < (int)size;
    return fits && access(path, X_OK) == 0 ? path : NULL;
  }
  while (list && *list && *name) {
    const size_t length = strcspn(list, ":");
    const int written = snprintf(path, size, "%.*s/%s", (int)length, list, name);
    if (length > 0 && written > 0 && (size_t)written < size && access(path, X_OK) == 0) return path;
    list += length + (list[length] == ':');
  }
  return NULL;
}

/* ---- starting a program ---- */

/* Pipes from the child program to this process: this process reads element [0], the program writes to element [1]. */
typedef struct pipes {
  int output[2], errors[2], failure[2]; /* failure: transmits errno if the program cannot be started */
} pipes;

static void close_pair(int pair[2]) {
  for (int i = 0; i < 2; i++) {
    if (pair[i] >= 0) close(pair[i]);
    pair[i] = -1;
  }
}

static void close_pipes(pipes *p) {
  close_pair(p->output);
  close_pair(p->errors);
  close_pair(p->failure);
}

/* Turns the child process into the program, between fork() and execv(), by async-signal-safe calls only. The program's
 * descriptors are first duplicated to high numbers, so that the duplication to 3, 4, ... overwrites none of them.
 * PR_SET_PDEATHSIG kills the program when its parent ends; getppid() shows if the parent had ended before that was
 * set. */
static void become_program(const tws_process *program, const char *path, const pipes *p, pid_t parent) {
  int files[TWS_PROCESS_FILES], high = 16 + TWS_PROCESS_FILES, failed = 0;
  const int null = open("/dev/null", O_RDONLY);
  const int report = fcntl(p->failure[1], F_DUPFD_CLOEXEC, high);
  sigset_t none;
  setpgid(0, 0);
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != parent) _exit(127);
  for (int i = 0; i < program->file_count; i++) {
    files[i] = fcntl(program->files[i], F_DUPFD_CLOEXEC, high);
    failed |= files[i] < 0;
  }
  failed |= null < 0 || dup2(null, STDIN_FILENO) < 0 || dup2(p->output[1], STDOUT_FILENO) < 0 ||
            dup2(program->with_errors ? p->output[1] : p->errors[1], STDERR_FILENO) < 0;
  for (int i = 0; i < program->file_count && !failed; i++) failed |= dup2(files[i], 3 + i) < 0;
  for (int s = 1; s < NSIG; s++)
    if (s != SIGKILL && s != SIGSTOP) signal(s, SIG_DFL);
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none, NULL);
  if (!failed) execv(path, (char *const *)(void *)program->arguments);
  const int why = errno;
  if (write(report, &why, sizeof why) < 0) _exit(126);
  _exit(127);
}

static int start(const tws_process *program, const char *path, pipes *p, pid_t *child, int *why) {
  *child = -1;
  if (pipe2(p->output, O_CLOEXEC) == 0 && pipe2(p->errors, O_CLOEXEC) == 0 && pipe2(p->failure, O_CLOEXEC) == 0) {
    const pid_t parent = getpid();
    *child = fork();
    if (*child == 0) become_program(program, path, p, parent);
  }
  *why = errno;
  if (*child < 0) return 0;
  setpgid(*child, *child); /* parent and child both call it, because either may run first */
  close(p->output[1]);
  close(p->errors[1]);
  close(p->failure[1]);
  p->output[1] = p->errors[1] = p->failure[1] = -1;
  ssize_t got;
  do got = read(p->failure[0], why, sizeof *why);
  while (got < 0 && errno == EINTR);
  if (got != (ssize_t)sizeof *why) return 1;
  waitpid(*child, NULL, 0);
  return 0;
}

/* ---- reading its output ---- */

static void keep_output(tws_process_end *end, const char *bytes, size_t count, size_t most) {
  const size_t room = end->output.length < most ? most - end->output.length : 0;
  end->cut |= count > room;
  tws_text_add_bytes(&end->output, bytes, count < room ? count : room);
}

/* Appends bytes to end->errors, the recorded standard error, which keeps only the last bytes that fit. */
static void keep_errors(tws_process_end *end, const char *bytes, size_t count) {
  size_t used = strlen(end->errors);
  for (size_t i = 0; i < count; i++) {
    if (used + 1 >= sizeof end->errors) {
      const size_t dropped = sizeof end->errors / 2;
      memmove(end->errors, end->errors + dropped, used - dropped);
      used -= dropped;
    }
    end->errors[used++] = bytes[i] == '\n' || bytes[i] == '\0' ? ' ' : bytes[i];
    end->errors[used] = '\0';
  }
}

static int has_ended(pid_t child) {
  siginfo_t info = {0};
  return waitid(P_PID, (id_t)child, &info, WEXITED | WNOHANG | WNOWAIT) != 0 || info.si_pid == child;
}

/* Reads the available bytes of one pipe; at the end of the pipe, its descriptor is closed and set to -1. */
static void read_some(int *from, int errors, size_t most, tws_process_end *end) {
  char buffer[16384];
  const ssize_t got = read(*from, buffer, sizeof buffer);
  if (got > 0 && errors) keep_errors(end, buffer, (size_t)got);
  if (got > 0 && !errors) keep_output(end, buffer, (size_t)got, most);
  if (got > 0 || (got < 0 && errno == EINTR)) return;
  close(*from);
  *from = -1;
}

/* Reads both pipes until their writers have closed them, until the time limit, or until the program has ended and the
 * pipes are empty, since its children (such as ssh's persistent connection) may keep the pipes open. */
static void read_all(const tws_process *program, pipes *p, pid_t child, tws_process_end *end, double until_s) {
  const size_t most = program->most_bytes ? program->most_bytes : LINE_BYTES;
  const double look_s = 0.05;
  int ended = 0;
  while (p->output[0] >= 0 || p->errors[0] >= 0) {
    struct pollfd polls[] = {{.fd = p->output[0], .events = POLLIN}, {.fd = p->errors[0], .events = POLLIN}};
    const double left = until_s - tws_clock_s();
    if (left <= 0) {
      end->timed_out = 1;
      return;
    }
    const int ready = poll(polls, 2, ended ? 0 : (int)((left < look_s ? left : look_s) * 1e3) + 1);
    if ((ready < 0 && errno != EINTR) || (ready == 0 && ended)) return;
    if (ready == 0) ended = has_ended(child);
    if (ready > 0 && polls[0].revents) read_some(&p->output[0], 0, most, end);
    if (ready > 0 && polls[1].revents) read_some(&p->errors[0], 1, most, end);
  }
}

/* Waits for the program's exit until the time limit, since a program may close its output and continue to run. */
static void wait_for(pid_t child, tws_process_end *end, double until_s) {
  const struct timespec nap = {.tv_nsec = 2000000};
  int status = 0;
  for (int killed = end->timed_out;;) {
    if (killed) kill(-child, SIGKILL);
    const pid_t got = waitpid(child, &status, killed ? 0 : WNOHANG);
    if (got == child || (got < 0 && errno != EINTR)) break;
    if (!killed && tws_clock_s() >= until_s) killed = end->timed_out = 1;
    if (!killed) nanosleep(&nap, NULL);
  }
  kill(-child, SIGKILL); /* kill the processes that the program started and that still run */
  end->status = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

tws_code tws_process_run(const tws_process *program, tws_process_end *end, tws_error *err) {
  char path[4096];
  const char *name = program->arguments[0];
  pid_t child;
  int why = 0;
  *end = (tws_process_end){0};
  if (!tws_process_find(name, path, sizeof path))
    return tws_fail(err, TWS_ENVIRONMENT, "install it, or put it on PATH", "there is no program \"%.200s\"", name);
  pipes p = {{-1, -1}, {-1, -1}, {-1, -1}};
  if (!start(program, path, &p, &child, &why)) {
    close_pipes(&p);
    return tws_fail(err, TWS_ENVIRONMENT, NULL, "%.200s does not start: %s", path, strerror(why));
  }
  const double until_s = tws_clock_s() + program->limit_s;
  read_all(program, &p, child, end, until_s);
  wait_for(child, end, until_s);
  close_pipes(&p);
  if (!end->output.failed) return TWS_OK;
  tws_text_free(&end->output);
  return tws_fail(err, TWS_MEMORY, NULL, "no memory for the output of %.200s", name);
}

int tws_process_line(const tws_process *program, char *line, size_t size) {
  tws_process_end end;
  line[0] = '\0';
  if (tws_process_run(program, &end, NULL) != TWS_OK) return 0;
  if (end.status == 0 && !end.timed_out && end.output.data)
    snprintf(line, size, "%.*s", (int)strcspn(end.output.data, "\n"), end.output.data);
  tws_text_free(&end.output);
  return line[0] != '\0';
}

void tws_process_quote(tws_text *out, const char *word) {
  static const char plain[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_=,./:@+%";
  if (*word && !word[strspn(word, plain)]) {
    tws_text_add(out, "%s", word);
    return;
  }
  tws_text_add(out, "'");
  for (; *word; word++)
    if (*word == '\'')
      tws_text_add(out, "'\\''");
    else
      tws_text_add_bytes(out, word, 1);
  tws_text_add(out, "'");
}
