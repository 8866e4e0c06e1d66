/* The program's outputs replace no existing file unless an option allows it, and are checked before the work begins. */
#include <check.h>
#include <signal.h>
#include "tests/suite.h"
#include "tests/answers.h"
#include "tests/folder.h"

static char *contents(const char *path) {
  int fd = open(path, O_RDONLY);
  return fd < 0 ? NULL : command_slurp(fd);
}

static void assert_kept(const char *path, const char *text, const char *what) {
  char *now = contents(path);
  ck_assert_msg(now && strcmp(now, text) == 0, "%s: %s now holds \"%.60s\"", what, path, now ? now : "nothing");
  free(now);
}

#define MODEL                                                                                                         \
  "{\"model_type\": \"gpt2\", \"vocab_size\": 256, \"n_positions\": 64, \"n_embd\": 32, \"n_layer\": 1, \"n_head\": " \
  "4}"

/* Lines of all verbs that write a file, with the flag that names it; %s is the file. */
static const char *const writers[] = {"train -m tiny-gpt2 --seq 32 --steps 1 --quiet --data @/text --csv %s",
                                      "train -m tiny-gpt2 --seq 32 --steps 1 --quiet --data @/text --trace %s",
                                      "train -m tiny-gpt2 --seq 32 --steps 1 --quiet --data @/text --result %s",
                                      "simulate -m tiny-gpt2 --trace %s",
                                      "simulate -m tiny-gpt2 --csv %s",
                                      "estimate -m tiny-gpt2 --ledger-csv %s",
                                      "validate -m tiny-gpt2 --seq 32 --data @/text --trace %s",
                                      "validate --sweep -m tiny-gpt2 --data @/text --save-profile %s",
                                      "calibrate --quick -n 1 -o %s",
                                      "convert config @/config.json %s",
                                      "convert tokens @/text %s"};
enum { WRITERS = sizeof writers / sizeof *writers, QUICK = 6 };

static command_result run_writer(const char *pattern, const char *path, const char *more) {
  char line[2048];
  size_t used = 0;
  for (const char *c = pattern; *c && used < sizeof line - 300; c++) {
    if (c[0] == '@')
      used += (size_t)snprintf(line + used, sizeof line - used, "%s", folder);
    else if (c[0] == '%' && c[1] == 's')
      used += (size_t)snprintf(line + used, sizeof line - used, "%s", path), c++;
    else
      line[used++] = *c;
  }
  snprintf(line + used, sizeof line - used, " %s", more);
  return twinspeed("%s", line);
}

static void fill_folder(void) {
  make_folder_with_text();
  write_text(in_folder("config.json"), "{\"train_batch_size\": 8}");
  write_text(in_folder("model.json"), MODEL);
}

START_TEST(existing_files_are_kept) {
  const char *path = in_folder("there");
  write_text(path, "precious");
  command_result r = run_writer(writers[_i], path, "");
  assert_one_error(&r, 2, writers[_i]);
  ck_assert_msg(strstr(r.err, "hint: --force overwrites it") != NULL, "%s: %s", writers[_i], r.err);
  assert_kept(path, "precious", writers[_i]);
  command_free(&r);
}
END_TEST

START_TEST(force_overwrites) {
  const char *path = in_folder("there");
  write_text(path, "precious");
  command_result r = run_writer(writers[_i], path, "--force");
  ck_assert_msg(r.status == 0, "%s: %s", writers[_i], r.err);
  char *now = contents(path);
  ck_assert_msg(strcmp(now, "precious") != 0 && *now, "%s: not written", writers[_i]);
  free(now);
  command_free(&r);
}
END_TEST

/* An output in a missing folder, or in the place of a folder, is refused before the work begins and leaves no file. */
START_TEST(places_that_cannot_be_written) {
  command_result r = run_writer(writers[_i], in_folder("none/at/all"), "");
  assert_one_error(&r, 4, writers[_i]);
  ck_assert_msg(strstr(r.err, "hint: make the folder first") != NULL, "%s: %s", writers[_i], r.err);
  command_free(&r);
  mkdir(in_folder("a-folder"), 0777);
  r = run_writer(writers[_i], in_folder("a-folder"), "--force");
  assert_one_error(&r, 4, writers[_i]);
  ck_assert_msg(strstr(r.err, "is a folder, and a file is to be written") != NULL, "%s: %s", writers[_i], r.err);
  command_free(&r);
  r = run_writer(writers[_i], in_folder("text/inside"), "");
  assert_one_error(&r, 4, writers[_i]);
  command_free(&r);
}
END_TEST

/* A file that a command reads is never overwritten, not even with --force or by another of its names. */
START_TEST(inputs_are_never_outputs) {
  static const struct {
    const char *line, *file;
  } cases[] = {{"train -m tiny-gpt2 --seq 32 --data @/text --csv %s --force", "text"},
               {"train -m tiny-gpt2 --seq 32 --data @/text --csv @/./text --force", "text"},
               {"train -m tiny-gpt2 --seq 32 --data @/text --trace @/link --force", "text"},
               {"train -m @/model.json --data @/text --result %s --force", "model.json"},
               {"train -m tiny-gpt2 --data @/text -c @/config.json --result %s --force", "config.json"},
               {"simulate -m @/model.json --trace %s --force", "model.json"},
               {"simulate -m @ --trace %s --force", "config.json"}, /* a folder with a config.json */
               {"estimate -m @/model.json --ledger-csv %s --force", "model.json"},
               {"validate -m tiny-gpt2 --data @/text --trace %s --force", "text"},
               {"convert config @/config.json %s --force", "config.json"},
               {"convert tokens @/text %s --force", "text"}};
  const char *path = in_folder(cases[_i].file);
  ck_assert_int_eq(symlink("text", in_folder("link")), 0);
  char *before = contents(path);
  command_result r = run_writer(cases[_i].line, path, "");
  assert_one_error(&r, 2, cases[_i].line);
  ck_assert_msg(strstr(r.err, "would be lost") != NULL, "%s: %s", cases[_i].line, r.err);
  assert_kept(path, before, cases[_i].line);
  free(before);
  command_free(&r);
}
END_TEST

START_TEST(two_outputs_in_one_file) {
  command_result r = run_writer("simulate -m tiny-gpt2 --trace %s --csv @/./new", in_folder("new"), "");
  assert_one_error(&r, 2, "two outputs");
  command_free(&r);
  r = run_writer("simulate -m tiny-gpt2 --print-plan --trace %s", in_folder("new"), "");
  assert_one_error(&r, 2, "a plan has no timeline");
  command_free(&r);
}
END_TEST

/* "-" is standard output where an option prints its document, and elsewhere no file of that name is made. */
START_TEST(a_dash_is_no_name) {
  command_result r = run_writer(writers[_i], "-", "--force");
  assert_one_error(&r, 2, writers[_i]);
  ck_assert_msg(strstr(r.err, "\"-\" is no name of a file") && strstr(r.err, "/dev/stdout"), "%s: %s", writers[_i],
                r.err);
  ck_assert(access("-", F_OK) != 0);
  command_free(&r);
}
END_TEST

/* Options whose files or folders the subcommand checks itself refuse "-" and empty names in the same way. */
static const char *const own_checks[] = {"train -m tiny-gpt2 --seq 32 --steps 1 --data @/text --save %s",
                                         "emulate -m tiny-gpt2 --seq 32 --steps 1 --data @/text --save %s",
                                         "train -m tiny-gpt2 --seq 32 --steps 1 --data @/text -n 2 --logs %s",
                                         "launch -n 2 --logs %s -- true",
                                         "tune -m tiny-gpt2 --no-simulation -o @/tuned --experiments %s",
                                         "tune -m tiny-gpt2 --no-simulation -o %s",
                                         "calibrate --quick --disk %s",
                                         "calibrate --quick --disk @ --into %s"};
enum { OWN_CHECKS = sizeof own_checks / sizeof *own_checks };

START_TEST(a_dash_is_no_folder) {
  const char *line = own_checks[_i];
  for (int empty = 0; empty < 2; empty++) {
    command_result r = run_writer(line, empty ? "''" : "-", "");
    assert_one_error(&r, 2, line);
    ck_assert_msg(strstr(r.err, empty ? "the name is empty" : "\"-\" is no name of a file or folder") != NULL, "%s: %s",
                  line, r.err);
    ck_assert(access("-", F_OK) != 0);
    command_free(&r);
  }
}
END_TEST

/* Exports are of one planned job: other answers refuse them, and an unknown format is refused before anything is
 * computed. */
START_TEST(exports_are_not_forgotten) {
  static const char *const with[] = {"--fit", "--seq 16,32", "--csv @/rows.csv", "--zero2 --compat deepspeed",
                                     "--serve"};
  for (size_t i = 0; i < sizeof with / sizeof *with; i++) {
    char line[256];
    snprintf(line, sizeof line, "estimate -m tiny-gpt2 %s --export megatron %%s", with[i]);
    command_result r = run_writer(line, in_folder("exported"), "");
    assert_one_error(&r, 2, with[i]);
    ck_assert_msg(strstr(r.err, "--export") != NULL, "%s: %s", with[i], r.err);
    command_free(&r);
  }
  command_result r = run_writer("estimate -m tiny-gpt2 --export megatorn %s", in_folder("exported"), "");
  assert_one_error(&r, 2, "an unknown format");
  command_free(&r);
}
END_TEST

START_TEST(folders_are_asked_about) {
  static const char *const cases[] = {
      "tune -m tiny-gpt2 --no-simulation -o %s", "validate -m tiny-gpt2 --seq 32 --data @/text --figures %s",
      "validate --sweep -m tiny-gpt2 --seq 32 --data @/text --figures %s", "report @/any.json --plot %s"};
  command_result r = run_writer(cases[_i], in_folder("text"), "--force");
  assert_one_error(&r, 4, cases[_i]);
  ck_assert_msg(strstr(r.err, "is a file, and a folder is wanted") != NULL, "%s: %s", cases[_i], r.err);
  command_free(&r);
  r = run_writer(cases[_i], in_folder("none/at/all"), "");
  assert_one_error(&r, 4, cases[_i]);
  command_free(&r);
}
END_TEST

START_TEST(figures_are_kept) {
  mkdir(in_folder("figures"), 0777);
  write_text(in_folder("figures/accuracy.png"), "precious");
  command_result r = twinspeed("report %s --plot %s", in_folder("any.json"), in_folder("figures"));
  assert_one_error(&r, 2, "report --plot");
  command_free(&r);
  write_text(in_folder("figures/timeline.svg"), "precious");
  r = twinspeed("validate -m tiny-gpt2 --seq 32 --data %s --figures %s", in_folder("text"), in_folder("figures"));
  assert_one_error(&r, 2, "validate --figures");
  command_free(&r);
}
END_TEST

START_TEST(devices_are_written_to) {
  command_result r = twinspeed("estimate -m tiny-gpt2 --ledger-csv /dev/null");
  ck_assert_msg(r.status == 0, "%s", r.err);
  command_free(&r);
  r = twinspeed("estimate -m tiny-gpt2 --json --ledger-csv /dev/full");
  ck_assert_int_eq(r.status, 4);
  command_free(&r);
}
END_TEST

/* With a closed standard stream a new file may get the stream's descriptor: results must not be written into that
 * file. */
START_TEST(closed_standard_streams) {
  char line[1024];
  for (int closed = 0; closed < 3; closed++) {
    snprintf(line, sizeof line,
             "exec %s/twinspeed train -m tiny-gpt2 --seq 32 --steps 2 --data %s --csv %s --force %d>&-", TWS_BUILD_DIR,
             in_folder("text"), in_folder("csv"), closed);
    char *argv[] = {"/bin/sh", "-c", line, NULL};
    command_result r = command_execute(argv);
    ck_assert_msg(r.status == 0, "without descriptor %d: %d %s", closed, r.status, r.err);
    char *csv = contents(in_folder("csv"));
    int lines = 0;
    for (const char *c = csv; *c; c++) lines += *c == '\n';
    ck_assert_msg(strncmp(csv, "step,loss", 9) == 0 && lines == 3, "without descriptor %d: %s", closed, csv);
    free(csv);
    command_free(&r);
  }
}
END_TEST

/* A limit of 0 is a limit. */
START_TEST(zero_is_a_number) {
  command_result r =
      twinspeed("validate -m tiny-gpt2 --seq 32 --steps 3 --tolerance 0 --quiet --data %s", in_folder("text"));
  ck_assert_msg(r.status == 1 && strstr(r.err, "the tolerance is 0 %"), "%d: %s", r.status, r.err);
  command_free(&r);
  r = twinspeed("validate --cases %s/scenarios/published/measured_runs.json --group sc21-table1 --tolerance 0",
                TWS_SOURCE_DIR);
  ck_assert_msg(r.status == 1 && strstr(r.err, "the tolerance is 0 %"), "%d: %s", r.status, r.err);
  command_free(&r);
  static const char *const sizes[] = {"0", "1", "1GiB"};
  for (int i = 0; i < 3; i++) {
    r = twinspeed("tune -m tiny-gpt2 --cluster dgx-a100 --no-simulation -o %s --memory %s", in_folder("tune"),
                  sizes[i]);
    assert_one_error(&r, 1, sizes[i]);
    ck_assert_msg(strstr(r.err, "nothing fits") != NULL && strchr(r.err, '-') == strstr(r.err, "--memory"), "%s",
                  r.err);
    command_free(&r);
  }
}
END_TEST

/* Runs a command on a pseudo-terminal of this type and returns what it prints; free with free(). */
static char *on_terminal(const char *terminal, const char *command) {
  char line[2048];
  snprintf(line, sizeof line, "TERM=%s exec script -qec '%s/twinspeed %s' %s", terminal, TWS_BUILD_DIR, command,
           in_folder("typescript"));
  char *argv[] = {"/bin/sh", "-c", line, NULL};
  command_result r = command_execute(argv);
  ck_assert_msg(r.status == 0, "%s: %d %s", line, r.status, r.err);
  command_free(&r);
  return contents(in_folder("typescript"));
}

/* On a terminal, verbs that take long show their progress, except on a dumb one, and with --quiet. */
START_TEST(progress_on_a_terminal) {
  static const char *const verbs[] = {"train -m tiny-gpt2 --seq 32 --steps 3 --data @/text",
                                      "train -m tiny-gpt2 -n 2 --seq 32 --steps 3 --data @/text",
                                      "validate -m tiny-gpt2 -n 2 --seq 32 --steps 3 --data @/text",
                                      "emulate -m tiny-gpt2 -n 2 --seq 32 --steps 3 --data @/text",
                                      "simulate -m tiny-gpt2 --stage 3 --cluster dgx-a100 --all-ranks --fidelity flow"};
  static const char *const seen[] = {"step 1 of 3, 33 %", "step 1 of 3, 33 %", "training steps   0% (0 of 3)",
                                     "emulating steps   0% (0 of 3)", "simulating operations   0% (0 of "};
  char command[512];
  const char *at = strchr(verbs[_i], '@');
  snprintf(command, sizeof command, "%.*s%s%s", at ? (int)(at - verbs[_i]) : 200, verbs[_i], at ? folder : "",
           at ? at + 1 : "");
  char *text = on_terminal("xterm", command);
  ck_assert_msg(strstr(text, seen[_i]) != NULL, "%s: %s", command, text);
  ck_assert_ptr_nonnull(strstr(text, "\r\033["));
  free(text);
  text = on_terminal("dumb", command);
  ck_assert_msg(strchr(text, '\033') == NULL, "%s on a dumb terminal: %s", command, text);
  free(text);
  strncat(command, " --quiet", sizeof command - strlen(command) - 1);
  text = on_terminal("xterm", command);
  ck_assert_msg(strstr(text, "\033[K") == NULL, "%s: %s", command, text);
  free(text);
}
END_TEST

static Suite *outputs_suite(void) {
  Suite *suite = suite_create("outputs");
  TCase *tcase = tcase_create("outputs");
  tcase_add_checked_fixture(tcase, fill_folder, remove_folder);
  tcase_set_timeout(tcase, 120);
  tcase_add_loop_test(tcase, existing_files_are_kept, 0, WRITERS);
  tcase_add_loop_test(tcase, force_overwrites, 0, QUICK);
  tcase_add_loop_test(tcase, places_that_cannot_be_written, 0, WRITERS);
  tcase_add_loop_test(tcase, inputs_are_never_outputs, 0, 11);
  tcase_add_test(tcase, two_outputs_in_one_file);
  tcase_add_loop_test(tcase, a_dash_is_no_name, 0, WRITERS);
  tcase_add_loop_test(tcase, a_dash_is_no_folder, 0, OWN_CHECKS);
  tcase_add_test(tcase, exports_are_not_forgotten);
  tcase_add_loop_test(tcase, folders_are_asked_about, 0, 4);
  tcase_add_test(tcase, figures_are_kept);
  tcase_add_test(tcase, devices_are_written_to);
  tcase_add_test(tcase, closed_standard_streams);
  tcase_add_test(tcase, zero_is_a_number);
  tcase_add_loop_test(tcase, progress_on_a_terminal, 0, 5);
  suite_add_tcase(suite, tcase);
  return suite;
}

/* ctest: mpi sampled */
int main(void) {
  return run_suite(outputs_suite());
}
