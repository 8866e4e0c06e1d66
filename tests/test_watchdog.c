/* ctest: engine */
/* The watchdog of a rank, in processes of its own: what it regards as a hang in each kind of phase, and its
 * messages. */
#include <check.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>
#include "base/memory.h"
#include "command.h"
#include "real/watchdog.h"
#include "suite.h"

static const double deadline_s = 1.5;

typedef struct shared {
  char line[256], message[2048];
} shared;

typedef struct situation {
  tws_phase_kind kind;
  int launcher, moves, full, stops; /* full: the rank's output is not read; stops: the process is stopped for longer
                                     * than the deadline */
  double seconds;                   /* that it lasts */
  int status;
  const char *says;
} situation;

static void note_hang(void *user, const tws_error *err) {
  shared *page = user;
  snprintf(page->message, sizeof page->message, "%s", err->message);
}

/* Replaces standard output by a full pipe, which accepts no more data, or by /dev/null. */
static void set_output(int full) {
  static char much[1 << 16];
  int ends[2];
  ck_assert_int_eq(pipe2(ends, O_NONBLOCK), 0);
  while (full && write(ends[1], much, sizeof much) > 0) continue;
  const int file = full ? ends[1] : open("/dev/null", O_WRONLY);
  dup2(file, STDOUT_FILENO);
}

static void live(const situation *s, shared *page) {
  tws_watchdog *w = NULL;
  const tws_watchdog_setup setup = {.deadline_s = deadline_s,
                                    .rank = 3,
                                    .activity = s->launcher ? page->line : NULL,
                                    .activity_bytes = sizeof page->line,
                                    .on_hang = note_hang,
                                    .user = page};
  set_output(s->full);
  if (tws_watchdog_create(&setup, &w, NULL) != TWS_OK) _exit(1);
  tws_watchdog_phase(w, 7, "saving x", s->kind);
  if (s->stops) raise(SIGSTOP);
  for (const double until = tws_clock_s() + s->seconds; tws_clock_s() < until; usleep(20000))
    if (s->moves) tws_watchdog_count_progress(w);
  _exit(0);
}

enum { CASES = 7 };
static const situation cases[CASES] = {
    {TWS_PHASE_ALONE, 1, 0, 0, 0, 9, 124, "nothing has happened for 1.5 s: rank 3 is saving x"},
    {TWS_PHASE_ALONE, 1, 1, 0, 0, 4, 0, ""},
    {TWS_PHASE_MEETS, 0, 0, 0, 0, 20, 124,
     "nothing has happened for 1.5 s: another rank does not continue, for which rank 3 waits: saving x"},
    {TWS_PHASE_MEETS, 1, 0, 0, 0, 8, 0, ""}, /* the launcher speaks */
    {TWS_PHASE_WRITES, 1, 0, 1, 0, 4, 0, ""},
    {TWS_PHASE_WRITES, 1, 0, 0, 0, 9, 124, "nothing has happened for 1.5 s: rank 3 is saving x"},
    {TWS_PHASE_ALONE, 1, 0, 0, 1, 0.5, 0, ""}};

static void assert_end(int number, pid_t child, const shared *page) {
  const situation *s = &cases[number];
  int status = 0;
  ck_assert(command_ends(child, 120, &status));
  ck_assert_msg(WIFEXITED(status) && WEXITSTATUS(status) == s->status, "case %d: status %x: %s", number, status,
                page->message);
  ck_assert_str_eq(page->message, s->says);
  if (s->launcher) ck_assert_msg(strncmp(page->line, "step 7, saving x", 16) == 0, "%s", page->line);
  if (s->moves || s->full)
    ck_assert_msg(strstr(page->line, "saving x (") != NULL, "others hear nothing: %s", page->line);
}

/* All at once: they sleep. */
START_TEST(phases) {
  pid_t child[CASES];
  shared *page = mmap(NULL, CASES * sizeof *page, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  ck_assert(page != MAP_FAILED);
  fflush(NULL);
  for (int i = 0; i < CASES; i++) {
    child[i] = fork();
    if (child[i] == 0) live(&cases[i], &page[i]);
  }
  sleep(3);
  for (int i = 0; i < CASES; i++)
    if (cases[i].stops) kill(child[i], SIGCONT);
  for (int i = 0; i < CASES; i++) assert_end(i, child[i], &page[i]);
  munmap(page, CASES * sizeof *page);
}
END_TEST

int main(void) {
  Suite *suite = suite_create("watchdog");
  TCase *tests = tcase_create("phases");
  tcase_add_test(tests, phases);
  suite_add_tcase(suite, tests);
  return run_suite(suite);
}
