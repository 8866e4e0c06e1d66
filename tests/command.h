/* Running the program as a user does: exit code, standard output and standard error of one command. */
#ifndef TESTS_COMMAND_H
#define TESTS_COMMAND_H

#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

typedef struct command_result {
  int status; /* exit code, or 128 + signal */
  char *out, *err;
} command_result;

static inline char *command_slurp(int fd) {
  off_t length = lseek(fd, 0, SEEK_END);
  if (length < 0) length = 0; /* a pipe */
  char *text = calloc((size_t)length + 1, 1);
  lseek(fd, 0, SEEK_SET);
  for (off_t at = 0; text && at < length;) {
    ssize_t got = read(fd, text + at, (size_t)(length - at));
    if (got <= 0) break;
    at += got;
  }
  close(fd);
  return text;
}

static inline int command_scratch(void) {
  char name[] = "/tmp/twinspeed-test-XXXXXX";
  int fd = mkstemp(name);
  unlink(name);
  return fd;
}

/* Waits up to `limit_s` seconds for a child process to end, and returns 1 with its status in *status. A process that
 * does not end is killed; its state and the signals that it ignores are then written to standard error, and 0 is
 * returned: without the limit the suite would hang, and nothing would tell where. */
static inline int command_ends(pid_t child, double limit_s, int *status) {
  char path[64], line[256];
  for (int i = 0; i < (int)(limit_s / 0.01); i++) {
    if (waitpid(child, status, WNOHANG) == child) return 1;
    usleep(10000);
  }
  snprintf(path, sizeof path, "/proc/%ld/status", (long)child);
  FILE *file = fopen(path, "r");
  fprintf(stderr, "process %ld has not ended in %g s:\n", (long)child, limit_s);
  while (file && fgets(line, sizeof line, file))
    if (strncmp(line, "State", 5) == 0 || strncmp(line, "Sig", 3) == 0) fputs(line, stderr);
  if (file) fclose(file);
  kill(child, SIGKILL);
  waitpid(child, status, 0);
  return 0;
}

/* Runs a program with argv as execv takes it, reading from `in` and writing to `out`, and closes both. Returns its exit
 * code and outputs; free them with command_free(). */
static inline command_result command_execute_between(int in, int out, char *const *argv) {
  int err = command_scratch();
  pid_t child = fork();
  if (child == 0) {
    dup2(in, 0);
    dup2(out, 1);
    dup2(err, 2);
    execv(argv[0], argv);
    _exit(126);
  }
  int status = 0;
  close(in);
  waitpid(child, &status, 0);
  command_result result = {WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status), command_slurp(out),
                           command_slurp(err)};
  return result;
}

/* Runs a program with an empty standard input, writing to `out`. */
static inline command_result command_execute_to(int out, char *const *argv) {
  return command_execute_between(open("/dev/null", O_RDONLY), out, argv);
}

static inline command_result command_execute(char *const *argv) {
  return command_execute_to(command_scratch(), argv);
}

/* Runs twinspeed with the words of a line, split at blanks ('...' keeps blanks), and returns its exit code and
 * outputs. */
static inline command_result twinspeed_between(int in, int out, char *line) {
  char *argv[128] = {(char *)TWS_BUILD_DIR "/twinspeed"};
  int argc = 1;
  for (char *at = line; *at && argc < 126;) {
    while (*at == ' ') *at++ = '\0';
    if (!*at) break;
    char until = ' ';
    if (*at == '\'') until = *at++;
    argv[argc++] = at;
    while (*at && *at != until) at++;
    if (*at) *at++ = '\0';
  }
  argv[argc] = NULL;
  return command_execute_between(in, out, argv);
}

static inline command_result twinspeed_to(int out, char *line) {
  return twinspeed_between(open("/dev/null", O_RDONLY), out, line);
}

/* Runs twinspeed with the words of a printf text, and returns its exit code and outputs. */
static inline command_result twinspeed(const char *format, ...) __attribute__((format(printf, 1, 2)));
static inline command_result twinspeed(const char *format, ...) {
  char line[8192];
  va_list list;
  va_start(list, format);
  vsnprintf(line, sizeof line, format, list);
  va_end(list);
  return twinspeed_to(command_scratch(), line);
}

/* Runs twinspeed with a text of at most 60 KiB in a pipe as standard input, which can be read only once. */
static inline command_result twinspeed_fed(const char *text, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
static inline command_result twinspeed_fed(const char *text, const char *format, ...) {
  char line[8192];
  int ends[2] = {-1, -1};
  va_list list;
  va_start(list, format);
  vsnprintf(line, sizeof line, format, list);
  va_end(list);
  if (pipe(ends) != 0 || write(ends[1], text, strlen(text)) != (ssize_t)strlen(text)) abort();
  close(ends[1]);
  return twinspeed_between(ends[0], command_scratch(), line);
}

/* Runs twinspeed with a pipe as standard output whose reading end is closed. */
static inline command_result twinspeed_unread(const char *format, ...) __attribute__((format(printf, 1, 2)));
static inline command_result twinspeed_unread(const char *format, ...) {
  char line[8192];
  int ends[2] = {-1, -1};
  va_list list;
  va_start(list, format);
  vsnprintf(line, sizeof line, format, list);
  va_end(list);
  if (pipe(ends) == 0) close(ends[0]);
  return twinspeed_to(ends[1], line);
}

static inline void command_free(command_result *result) {
  free(result->out);
  free(result->err);
}

static inline int count_lines_with(const char *text, const char *start) {
  int count = 0;
  for (const char *line = text; line && *line; line = strchr(line, '\n')) {
    if (*line == '\n') line++;
    count += strncmp(line, start, strlen(start)) == 0;
    if (!*line) break;
  }
  return count;
}

static inline void write_bytes(const char *path, const void *bytes, size_t count) {
  FILE *file = fopen(path, "wb");
  fwrite(bytes, 1, count, file);
  fclose(file);
}

static inline void write_text(const char *path, const char *text) {
  write_bytes(path, text, strlen(text));
}

#endif
