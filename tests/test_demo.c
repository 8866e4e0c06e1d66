/* The script of the demo, run with a substitute for twinspeed that records how it was called. */
#include <check.h>

#include "tests/command.h"
#include "tests/folder.h"
#include "tests/suite.h"

/* The substitute: each verb writes the files that the script needs, and `tune` also a corrected profile; `estimate`
 * sleeps where a file "sleeps" exists. */
static const char program[] =
    "#!/bin/sh\n"
    "here=$(dirname \"$0\")\n"
    "echo \"$*\" >>\"$here/calls\"\n"
    "case $1 in\n"
    "calibrate) echo '{}' >\"$here/demo/host.json\" ;;\n"
    "estimate) [ ! -f \"$here/sleeps\" ] || exec sleep 30 ;;\n"
    "tune) mkdir -p \"$here/demo/tune\"\n"
    "  echo '{}' >\"$here/demo/tune/ds_config_optimal.json\"\n"
    "  echo '{}' >\"$here/demo/tune/profile_corrected.json\" ;;\n"
    "esac\n";

static void write_programs(void) {
  write_text(in_folder("twinspeed"), program);
  write_text(in_folder("bible"), "#!/bin/sh\necho 'gen1:1 In the beginning'\n");
  ck_assert_int_eq(chmod(in_folder("twinspeed"), 0755) | chmod(in_folder("bible"), 0755), 0);
}

static command_result demo(int limit_s) {
  char line[512];
  snprintf(line, sizeof line, "PATH=%s:$PATH exec timeout -k 10 -s INT %d sh %s/scenarios/demo/run.sh %s", folder,
           limit_s, TWS_SOURCE_DIR, folder);
  return command_execute((char *const[]){(char *)"/bin/sh", (char *)"-c", line, NULL});
}

START_TEST(interrupted_demos_keep_what_was_done) {
  write_programs();
  write_text(in_folder("sleeps"), "");
  command_result r = demo(2);
  ck_assert_msg(strstr(r.err, "demo: interrupted, what was done is in "), "%d: %s", r.status, r.err);
  ck_assert_int_eq(access(in_folder("demo/host.json"), F_OK), 0);
  ck_assert_int_eq(access(in_folder("demo/kjv.txt"), F_OK), 0);
  command_free(&r);
}
END_TEST

static int called(const char *calls, const char *verb, const char *words) {
  char line[2048];
  for (const char *at = calls; *at; at += strcspn(at, "\n") + 1) {
    snprintf(line, sizeof line, "%.*s", (int)strcspn(at, "\n"), at);
    if (strncmp(line, verb, strlen(verb)) == 0 && strstr(line, words)) return 1;
  }
  return 0;
}

/* After the search, the script's commands predict with the profile that the search's runs corrected. */
START_TEST(the_corrected_profile_is_used) {
  write_programs();
  command_result r = demo(60);
  ck_assert_msg(r.status == 0, "%d: %s%s", r.status, r.out, r.err);
  char *calls = command_slurp(open(in_folder("calls"), O_RDONLY));
  ck_assert_msg(called(calls, "tune", "/demo/host.json"), "%s", calls);
  ck_assert_msg(called(calls, "validate", "/demo/tune/profile_corrected.json"), "%s", calls);
  ck_assert_msg(called(calls, "simulate", "/demo/tune/profile_corrected.json"), "%s", calls);
  free(calls);
  command_free(&r);
}
END_TEST

int main(void) {
  Suite *suite = suite_create("demo");
  TCase *tcase = tcase_create("demo");
  tcase_set_timeout(tcase, 120);
  tcase_add_checked_fixture(tcase, make_folder, remove_folder);
  tcase_add_test(tcase, interrupted_demos_keep_what_was_done);
  tcase_add_test(tcase, the_corrected_profile_is_used);
  suite_add_tcase(suite, tcase);
  return run_suite(suite);
}
