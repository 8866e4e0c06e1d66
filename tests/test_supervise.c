/* The supervisor that restarts a job: attempts, ranks and checkpoints, without processes. */
#include <check.h>
#include <stdio.h>
#include <string.h>

#include "launch/supervise.h"
#include "tests/folder.h"
#include "tests/suite.h"

/* The attempts of a job: the first `failures` of them fail; ranks, force and said record what each attempt received. */
typedef struct story {
  int failures, made;
  tws_code code;
  tws_supervised *of;
  int64_t ranks[8];
  int force[8];
  char said[1024];
} story;

static tws_code attempt(void *user, const tws_supervised *now, tws_error *err) {
  story *s = user;
  ck_assert_int_lt(s->made, 8);
  s->ranks[s->made] = now->job.ranks;
  s->force[s->made] = now->force;
  if (s->made++ >= s->failures) return TWS_OK;
  *now->launch.failed_rank = 1;
  return tws_fail(err, s->code, NULL, "rank 1 died in attempt %d", s->made);
}

static void note(void *user, tws_log_level level, const char *line) {
  story *s = user;
  ck_assert_int_eq(level, TWS_LOG_WARNING);
  snprintf(s->said + strlen(s->said), sizeof s->said - strlen(s->said), "%s\n", line);
}

static tws_code supervise(story *s, const char *save, int64_t restarts, tws_error *err) {
  const tws_log log = {.write = note, .user = s, .level = TWS_LOG_INFO};
  tws_supervised now = {.job = TWS_JOB_SPEC_DEFAULTS, .save = save, .restarts = restarts, .failed_rank = -1};
  now.job.model = "tiny-gpt2";
  now.job.micro_batch = 1;
  now.job.ranks = 4;
  now.launch.ranks = 4;
  return tws_supervise(&now, attempt, s, &log, err);
}

START_TEST(those_that_are_left_continue) {
  tws_error err = {0};
  story s = {.failures = 2, .code = TWS_RANK};
  ck_assert_msg(supervise(&s, folder, 3, &err) == TWS_OK, "%s", err.message);
  ck_assert_int_eq(s.made, 3);
  ck_assert(s.ranks[0] == 4 && s.ranks[1] == 3 && s.ranks[2] == 2);
  ck_assert(!s.force[0] && s.force[1] && s.force[2]);
  ck_assert_ptr_nonnull(strstr(s.said, "rank 1 died in attempt 2\n"));
  ck_assert_ptr_nonnull(
      strstr(s.said, "continuing with 3 of 4 ranks from the beginning: no checkpoint was saved yet\n"));
  ck_assert_str_eq(err.message, "");
}
END_TEST

/* The supervisor restarts a job no more often than --restarts says, not after an error of the job itself, and not where
 * nothing is saved. */
START_TEST(not_without_end) {
  const struct {
    tws_code code;
    const char *save;
    int64_t restarts;
    int made;
  } all[] = {{TWS_RANK, folder, 1, 2}, {TWS_HANG, folder, 1, 2},    {TWS_IO, folder, 1, 2},
             {TWS_RANK, folder, 0, 1}, {TWS_INVALID, folder, 3, 1}, {TWS_RANK, NULL, 3, 1}};
  for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
    tws_error err = {0};
    story s = {.failures = 8, .code = all[i].code};
    ck_assert_int_eq(supervise(&s, all[i].save, all[i].restarts, &err), all[i].code);
    ck_assert_int_eq(s.made, all[i].made);
    ck_assert_ptr_nonnull(strstr(err.message, "rank 1 died"));
    s = (story){.failures = 8, .code = all[i].code};
    ck_assert_int_eq(supervise(&s, all[i].save, all[i].restarts, NULL), all[i].code); /* who does not ask why */
  }
}
END_TEST

int main(void) {
  Suite *suite = suite_create("supervise");
  TCase *tests = tcase_create("supervise");
  tcase_add_checked_fixture(tests, make_folder, remove_folder);
  tcase_add_test(tests, those_that_are_left_continue);
  tcase_add_test(tests, not_without_end);
  suite_add_tcase(suite, tests);
  return run_suite(suite);
}
