/* ctest: mpi */
/* Live progress of train: a few lines that refresh on a terminal, lines of JSON, and no progress in a pipe. The
 * terminal stays usable after Ctrl-C and after changes of its width. */
#include <check.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <termios.h>

#include "command.h"
#include "tests/folder.h"
#include "tests/suite.h"

enum { WIDTH = 60, NARROW = 34, MOST = 1 << 20, LONGEST_S = 60 };

typedef struct session {
  int fd;
  pid_t child;
  struct termios before;
  char text[MOST];
  size_t length;
} session;
static session terminal;

static void set_width(int columns) {
  const struct winsize size = {.ws_row = 24, .ws_col = (unsigned short)columns};
  ck_assert_int_eq(ioctl(terminal.fd, TIOCSWINSZ, &size), 0);
}

/* Starts the program with these arguments, ended by NULL, on a pseudo-terminal of its own. */
static void start(char *const *arguments) {
  terminal.length = 0;
  terminal.fd = posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC);
  ck_assert_int_ge(terminal.fd, 0);
  ck_assert(grantpt(terminal.fd) == 0 && unlockpt(terminal.fd) == 0);
  const char *name = ptsname(terminal.fd);
  ck_assert_ptr_nonnull(name);
  set_width(WIDTH);
  terminal.child = fork();
  if (terminal.child == 0) {
    setsid();
    const int fd = open(name, O_RDWR); /* becomes the controlling terminal */
    for (int i = 0; i < 3; i++) dup2(fd, i);
    setenv("TERM", "xterm", 1);
    execv(TWS_BUILD_DIR "/twinspeed", arguments);
    _exit(127);
  }
  ck_assert_int_eq(tcgetattr(terminal.fd, &terminal.before), 0);
}

/* Reads until the text has been there `times` times, or without a text until the program has ended. Returns 1, or 0 if
 * the output has ended. */
static int read_until(const char *text, int times) {
  for (int waited = 0; waited < LONGEST_S * 10;) {
    struct pollfd ready = {.fd = terminal.fd, .events = POLLIN};
    int found = 0;
    terminal.text[terminal.length] = '\0';
    for (const char *at = terminal.text; text && (at = strstr(at, text)) != NULL; at++) found++;
    if (text && found >= times) return 1;
    if (poll(&ready, 1, 100) < 1) {
      waited++;
      continue;
    }
    const ssize_t count = read(terminal.fd, terminal.text + terminal.length, MOST - terminal.length - 1);
    if (count <= 0) return 0;
    terminal.length += (size_t)count;
  }
  kill(terminal.child, SIGKILL);
  ck_abort_msg("no \"%s\" within %d s: %s", text ? text : "end", LONGEST_S, terminal.text);
  return 0;
}

static int end(void) {
  int status;
  struct termios after;
  read_until(NULL, 0);
  terminal.text[terminal.length] = '\0';
  ck_assert_int_eq(tcgetattr(terminal.fd, &after), 0);
  ck_assert(after.c_lflag == terminal.before.c_lflag && after.c_iflag == terminal.before.c_iflag &&
            after.c_oflag == terminal.before.c_oflag);
  ck_assert_int_eq(waitpid(terminal.child, &status, 0), terminal.child);
  close(terminal.fd);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

/* Requires that no line drawn after `from` is longer than the terminal is wide. */
static void check_widths(size_t from, int width) {
  int column = 0, escape = 0;
  for (const char *at = terminal.text + from; *at; at++) {
    if (*at == '\033') escape = 1;
    if (*at == '\n' || *at == '\r') column = 0;
    if (!escape && (unsigned char)*at >= ' ') column++;
    ck_assert_msg(column < width, "a line of %d columns: %s", column, terminal.text + from);
    if (escape && ((*at >= 'A' && *at <= 'Z') || (*at >= 'a' && *at <= 'z'))) escape = 0;
  }
}

static char data[320];

static char *const *arguments_of(const char *steps, const char *ranks) {
  static char *list[32];
  const char *const fixed[] = {"twinspeed", "train", "-m",      "tiny-gpt2", "--seq",         "32",
                               "--threads", "1",     "--every", "1000",      "--steps",       steps,
                               "-n",        ranks,   "--data",  data,        "--micro-batch", "8"};
  size_t count = sizeof fixed / sizeof *fixed;
  snprintf(data, sizeof data, "%s", in_folder("text"));
  for (size_t i = 0; i < count; i++) list[i] = (char *)(uintptr_t)fixed[i];
  list[count] = NULL;
  return list;
}

/* The progress lines show the figures, replace each other, and disappear at the end. */
START_TEST(lines_refresh_and_vanish) {
  start(arguments_of("60", "1"));
  ck_assert_int_eq(end(), 0);
  ck_assert(strstr(terminal.text, "step 1 of 60, 1 %") && strstr(terminal.text, "tokens/s, "));
  ck_assert(strstr(terminal.text, "memory of rank 0: device ") && strstr(terminal.text, "bottleneck, predicted: "));
  ck_assert_ptr_nonnull(strstr(terminal.text, "\r\033[4A\033[J"));
  const char *last = strstr(terminal.text, "step 60 of 60, 100 %");
  ck_assert(last && strstr(last, "\r\033[4A\033[J\r\nloss "));
  ck_assert_ptr_null(strstr(last, "\033[?"));
}
END_TEST

/* After the window has become narrower, lines fit it; after Ctrl-C the error message has a line of its own. */
START_TEST(a_terminal_survives) {
  for (int ranks = 1; ranks <= 2; ranks++) {
    start(arguments_of("1000000", ranks == 1 ? "1" : "2"));
    ck_assert_int_eq(read_until("tokens/s, ", 2), 1);
    set_width(NARROW);
    const size_t from = terminal.length;
    ck_assert_int_eq(read_until("tokens/s, ", 6), 1);
    terminal.text[terminal.length] = '\0';
    const char *narrow = strstr(terminal.text + from, "\nstep "); /* earlier lines keep the old width */
    if (!narrow) narrow = strstr(terminal.text + from, "\n\033[Kstep ");
    ck_assert_ptr_nonnull(narrow);
    check_widths((size_t)(narrow - terminal.text), NARROW);
    ck_assert_int_eq(write(terminal.fd, "\003", 1), 1);
    ck_assert_int_eq(end(), 130);
    const char *message = strstr(terminal.text, "interrupted");
    ck_assert_msg(message && strcmp(message + strcspn(message, "\n"), "\n") == 0, "%s", terminal.text);
    while (message > terminal.text && message[-1] != '\n' && message[-1] != 'K') message--;
    ck_assert_msg(strncmp(message, "twinspeed:", 10) == 0 || strncmp(message, "\033[31mtwinspeed:", 15) == 0, "%s",
                  message);
  }
}
END_TEST

START_TEST(pipes_get_no_lines) {
  command_result r = twinspeed("train -m tiny-gpt2 --seq 32 --threads 1 --steps 3 --data %s -n 2", in_folder("text"));
  ck_assert_msg(r.status == 0, "%s", r.err);
  ck_assert(!strchr(r.out, '\033') && !strchr(r.err, '\033') && !strstr(r.err, "step "));
  command_free(&r);
  r = twinspeed("train -m tiny-gpt2 --seq 32 --threads 1 --steps 3 --data %s --progress live", in_folder("text"));
  ck_assert_msg(r.status == 0 && strstr(r.err, "so progress is plain"), "%s", r.err);
  ck_assert_ptr_null(strchr(r.err, '\033'));
  command_free(&r);
  r = twinspeed("train -m tiny-gpt2 --seq 32 --threads 1 --steps 3 --data %s --progress json --quiet -n 2 --json",
                in_folder("text"));
  ck_assert_msg(r.status == 0, "%s", r.err);
  const char *line = r.err;
  for (int step = 1; step <= 3; step++) {
    char begin[48];
    ck_assert_int_lt(snprintf(begin, sizeof begin, "{\"step\": %d, \"samples\": %d,", step, 2 * step), 48);
    ck_assert_msg(strncmp(line, begin, strlen(begin)) == 0, "%s", line);
    ck_assert_ptr_nonnull(strstr(line, "\"loss\": "));
    line = strchr(line, '\n') + 1;
  }
  ck_assert_str_eq(line, "");
  ck_assert_int_eq(*r.out, '{');
  command_free(&r);
  r = twinspeed("train -m tiny-gpt2 --data %s --progress fancy", in_folder("text"));
  ck_assert_msg(r.status == 2 && strstr(r.err, "--progress: unknown mode \"fancy\""), "%d: %s", r.status, r.err);
  command_free(&r);
}
END_TEST

int main(void) {
  Suite *suite = suite_create("live");
  TCase *tests = tcase_create("live");
  tcase_add_checked_fixture(tests, make_folder_with_text, remove_folder);
  tcase_add_test(tests, lines_refresh_and_vanish);
  tcase_add_test(tests, a_terminal_survives);
  tcase_add_test(tests, pipes_get_no_lines);
  suite_add_tcase(suite, tests);
  setenv("ASAN_OPTIONS", "detect_leaks=0", 1); /* for the ranks: LeakSanitizer would report memory that MPI never
                                                * frees */
  return run_suite(suite);
}
