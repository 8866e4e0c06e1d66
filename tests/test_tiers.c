/* The tiers of `make check`: samples of random cases (tests/sample.h) and of tests (tests/sampled.c), and one run of CTest over several build folders
 * that counts assertions (tests/run.sh, tests/assertions.c). */
#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/command.h"
#include "tests/folder.h"
#include "tests/sample.h"
#include "tests/suite.h"

/* A sample has one of each four adjacent cases, the same for equal texts; another text takes others. Without one all
 * are taken. */
START_TEST(samples) {
  static const char *const seeds[] = {"a1b2", "a1b2", "twinspeed"};
  char taken[3][400];
  for (int k = 0; k < 3; k++) {
    setenv("TWS_SEED", seeds[k], 1);
    int places[4] = {0};
    for (uint64_t group = 0; group < 100; group++) {
      int count = 0;
      for (uint64_t i = 4 * group; i < 4 * group + 4; i++) {
        count += taken[k][i] = (char)takes(i, 4);
        places[i % 4] += taken[k][i];
      }
      ck_assert_int_eq(count, 1);
    }
    for (int i = 0; i < 4; i++) ck_assert_int_gt(places[i], 10);
  }
  ck_assert_mem_eq(taken[0], taken[1], sizeof taken[0]);
  ck_assert_mem_ne(taken[0], taken[2], sizeof taken[0]);
  unsetenv("TWS_SEED");
  for (uint64_t i = 0; i < 100; i++) ck_assert(takes(i, 4));
}
END_TEST

enum { ADDED = 80 };
static int added[ADDED], add_count; /* the tests that tests/sampled.c passes on to Check, each with one number */
void __real__tcase_add_test(TCase *tcase, const TTest *test, int signal, int status, int start, int end);
void __wrap__tcase_add_test(TCase *tcase, const TTest *test, int signal, int status, int start, int end);
void __real__tcase_add_test(TCase *tcase, const TTest *test, int signal, int status, int start, int end) {
  if (tcase || test || signal != 6 || status != 3 || end != start + 1) abort();
  added[add_count++] = start;
}

/* Adds a test that is repeated 76 times and four single tests, and returns how many are passed on to Check: one of each
 * four, or all. A process of its own does that, because sampled.c reports at the end of a suite what it left out. */
static int add_tests(const char *seed) {
  const pid_t pid = fork();
  int status;
  if (pid > 0) return waitpid(pid, &status, 0) == pid && WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  if (seed) setenv("TWS_SEED", seed, 1);
  __wrap__tcase_add_test(NULL, NULL, 6, 3, 0, ADDED - 4);
  for (int i = ADDED - 4; i < ADDED; i++) __wrap__tcase_add_test(NULL, NULL, 6, 3, i, i + 1);
  for (int i = 0; i < add_count; i++)
    if (added[i] / (seed ? 4 : 1) != i) _exit(255);
  _exit(add_count);
}

START_TEST(sampled_suites) {
  unsetenv("TWS_SEED");
  ck_assert_int_eq(add_tests("a1b2"), ADDED / 4);
  ck_assert_int_eq(add_tests(NULL), ADDED);
  int same = 0;
  setenv("TWS_SEED", "a1b2", 1);
  for (uint64_t i = 0; i < 400; i++) same += takes_of("test_fold", i, 4) && takes_of("test_plan", i, 4);
  unsetenv("TWS_SEED");
  ck_assert(same > 5 && same < 60); /* a quarter of 100 */
}
END_TEST

/* Makes a build folder whose tests are shell commands. */
static void make_tree(const char *name, const char *const tests[][2], int count) {
  char path[128], text[2048] = "";
  snprintf(path, sizeof path, "%s/%s", folder, name);
  ck_assert_int_eq(mkdir(path, 0700), 0);
  for (int i = 0; i < count; i++)
    snprintf(text + strlen(text), sizeof text - strlen(text), "add_test(%s sh -c [==[%s]==])\n", tests[i][0],
             tests[i][1]);
  snprintf(path, sizeof path, "%s/%s/CTestTestfile.cmake", folder, name);
  FILE *file = fopen(path, "w");
  ck_assert(file && fputs(text, file) >= 0 && fclose(file) == 0);
}

static command_result run_trees(const char *more) {
  char line[1024];
  snprintf(line, sizeof line, "%s/run.sh %s/both %s/plain %s/sanitized -- %s", TWS_TEST_DIR, folder, folder, folder,
           more);
  char *argv[] = {(char *)"/bin/sh", (char *)"-c", line, NULL};
  return command_execute(argv);
}

/* Tests of two build folders form one run; assertions and cases are added up, and CTest's summary stays last. */
START_TEST(trees_are_one_run) {
  static const char *const plain[][2] = {
      {"one", "echo '100%: Checks: 3, Failures: 0, Errors: 0'; echo assertions: 40 at 7 places"},
      {"two", "echo nothing is counted here"}};
  static const char *const sanitized[][2] = {
      {"one_sanitized", "echo '100%: Checks: 2, Failures: 0, Errors: 0'; echo assertions: 5000000000 at 5 places"},
      {"bad_sanitized", "echo what went wrong; exit 3"}};
  make_tree("plain", plain, 2);
  make_tree("sanitized", sanitized, 2);
  command_result r = run_trees("-E bad");
  ck_assert_msg(r.status == 0, "%s%s", r.out, r.err);
  const char *sum = strstr(r.out, "5000000040 assertions at 12 places held, in 5 cases of 2 suites\n");
  ck_assert_msg(sum && strstr(sum, "100% tests passed, 0 tests failed out of 3\n"), "%s", r.out);
  ck_assert_ptr_nonnull(strstr(sum, "Total Test time (real)"));
  ck_assert_ptr_nonnull(strstr(r.out, "one_sanitized"));
  command_free(&r);
  r = run_trees("-j 2");
  ck_assert_int_eq(r.status, 8); /* CTest's own */
  sum = strstr(r.out, "5000000040 assertions at 12 places held, in 5 cases of 2 suites\n");
  ck_assert_msg(sum && strstr(sum, "75% tests passed, 1 tests failed out of 4"), "%s", r.out);
  ck_assert_ptr_nonnull(strstr(r.out, "what went wrong"));
  ck_assert_ptr_nonnull(strstr(sum, "bad_sanitized"));
  command_free(&r);
}
END_TEST

int main(void) {
  Suite *suite = suite_create("tiers");
  TCase *tests = tcase_create("tiers");
  tcase_add_checked_fixture(tests, make_folder, remove_folder);
  tcase_add_test(tests, samples);
  tcase_add_test(tests, sampled_suites);
  tcase_add_test(tests, trees_are_one_run);
  suite_add_tcase(suite, tests);
  return run_suite(suite);
}
