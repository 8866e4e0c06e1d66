/* The program from outside: every verb's conventions and exit codes. */
#include <check.h>
#include <ctype.h>
#include "tests/answers.h"
#include "tests/folder.h"
#include "tests/suite.h"

static const char *const verbs[] = {"estimate",  "check",  "simulate", "tune",    "train",   "profile", "validate",
                                    "calibrate", "report", "doctor",   "convert", "inspect", "launch",  "elastic",
                                    "generate",  "predict", "score"};

START_TEST(help_of_every_verb) {
  command_result r = twinspeed("--help");
  ck_assert_int_eq(r.status, 0);
  for (size_t i = 0; i < sizeof verbs / sizeof verbs[0]; i++)
    ck_assert_msg(strstr(r.out, verbs[i]) != NULL, "--help does not list %s", verbs[i]);
  command_free(&r);
  for (size_t i = 0; i < sizeof verbs / sizeof verbs[0]; i++) {
    r = twinspeed("%s --help", verbs[i]);
    ck_assert_msg(r.status == 0 && r.err[0] == '\0', "%s --help: %s", verbs[i], r.err);
    const char *examples = strstr(r.out, "Examples:"), *usage = strstr(r.out, "Usage:");
    ck_assert_msg(examples && usage && examples < usage, "%s: examples come first", verbs[i]);
    ck_assert_msg(strstr(r.out, "--json") != NULL, "%s: no --json", verbs[i]);
    for (char letter = 'a'; letter <= 'z'; letter++) { /* one letter, one meaning */
      const char row[] = {' ', ' ', '-', letter, ',', '\0'};
      ck_assert_msg(count_lines_with(r.out, row) <= 1, "%s: -%c has two meanings", verbs[i], letter);
    }
    command_free(&r);
    r = twinspeed("help %s", verbs[i]);
    ck_assert_int_eq(r.status, 0);
    command_free(&r);
  }
}
END_TEST

START_TEST(version_lists_features) {
  command_result r = twinspeed("--version");
  ck_assert_int_eq(r.status, 0);
  ck_assert_ptr_nonnull(strstr(r.out, "twinspeed 0."));
  ck_assert_ptr_nonnull(strstr(r.out, "GSL"));
  ck_assert_ptr_nonnull(strstr(r.out, "simulator"));
  ck_assert_ptr_nonnull(strstr(r.out, "engine"));
  command_free(&r);
}
END_TEST

START_TEST(wrong_usage) {
  static const struct {
    const char *line, *says;
  } cases[] = {
      {"estimat", "did you mean \"estimate\""},
      {"xyzzy", "--help"},
      {"estimate --modle gpt2", "did you mean --model"},
      {"estimate --stage", "needs a value"},
      {"estimate --stage 4 -m gpt2", "--stage"},
      {"estimate --stage x -m gpt2", "--stage"},
      {"estimate --json=1 -m gpt2", "takes no value"},
      {"estimate", "-m MODEL"},
      {"estimate gpt2", "unexpected argument"},
      {"estimate -m gpt2 --micro-batch 0", "--micro-batch"},
      {"estimate -m gpt2 --micro-batch -3", "--micro-batch"},
      {"estimate -m gpt2 --micro-batch 99999999999999999999", "--micro-batch"},
      {"estimate -m gpt2 --set stage", "KEY=VALUE"},
      {"estimate -m gpt2 --dtype int4", "fp32"},
      {"estimate --zero3 --compat deepspeed", "--total-params"},
      {"estimate --zero3 --zero2 --total-params 1", "exclude"},
      {"estimate -m gpt2 --compat megatron", "deepspeed"},
      {"check", "-c"},
      {"convert token a b", "did you mean \"tokens\""},
      {"completion tcsh", "bash"},
      {"launch", "COMMAND"},
      {"generate --recompute full", "unknown option \"--recompute\""}, /* it would have no effect */
      {"train --hlep", "did you mean --help"},
      {"check -m gpt2 --pp 0", "--pp: 0 is outside"},
      {"check -m gpt2 --pp two", "--pp"},
      {"check -m gpt2 --tp -4", "--tp"},
      {"check -m gpt2 --tp 65537", "--tp"},
      {"check -m gpt2 --sp 1.5", "--sp"},
      {"check -m gpt2 --sp", "needs a value"},
      {"check -m gpt2 --virtual-stages 0", "--virtual-stages"},
      {"check -m gpt2 --schedule gipe", "did you mean \"gpipe\""},
      {"check -m gpt2 --axis-order pipe,data", "--axis-order: "},
      {"check -m gpt2 --axis-order pipe,pipe,sequence,model", "in some order"},
      {"check -m gpt2 --sequence-parallel=yes", "takes no value"},
      {"check -m gpt2 --sequence-paralel", "did you mean --sequence-parallel"},
      {"check -m gpt2 --recompute ful", "did you mean \"full\""},
      {"emulate -m gpt2 --data text --compare run.csv", "--compare without --figure"},
  };
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    command_result r = twinspeed("%s", cases[i].line);
    assert_one_error(&r, 2, cases[i].line);
    ck_assert_msg(strstr(r.err, cases[i].says) != NULL, "%s: no \"%s\" in: %s", cases[i].line, cases[i].says, r.err);
    command_free(&r);
  }
  command_result r = twinspeed(" ");
  ck_assert_int_eq(r.status, 2);
  ck_assert_str_eq(r.out, "");
  command_free(&r);
}
END_TEST

/* Text from files and arguments must not drive the terminal. */
START_TEST(no_escapes_from_input) {
  write_text(in_folder("ds.json"), "{\"\\u001b[31mred\\u0007\": 1}"); /* a warning, and an error */
  for (int strict = 0; strict < 2; strict++) {
    command_result r = twinspeed("check -c %s%s", in_folder("ds.json"), strict ? " --strict" : "");
    if (strict) assert_one_error(&r, 3, "escape in a key");
    ck_assert_msg(r.status == (strict ? 3 : 0) && strstr(r.err, "31mred"), "%s", r.err);
    for (const char *c = r.err; *c; c++) ck_assert_msg(!iscntrl((unsigned char)*c) || *c == '\n', "control %d", *c);
    command_free(&r);
  }
}
END_TEST

START_TEST(output_to_full_disk) {
  static const char *const words[] = {
      "check --print-schema", "--version",     "--help",
      "help check",           "doctor --help", "estimate -m llama-2-70b --cluster dgx-a100 --quiet"};
  for (size_t i = 0; i < sizeof words / sizeof words[0]; i++) {
    char line[128];
    snprintf(line, sizeof line, "%s", words[i]);
    command_result r = twinspeed_to(open("/dev/full", O_WRONLY), line);
    assert_one_error(&r, 4, words[i]);
    ck_assert_msg(strstr(r.err, "cannot write to standard output") != NULL, "%s: %s", words[i], r.err);
    command_free(&r);
  }
}
END_TEST

/* A reader that closes its pipe early changes neither the exit code nor the other outputs. */
START_TEST(output_without_a_reader) {
  static const struct {
    const char *words;
    int status;
  } cases[] = {{"check --print-schema", 0},
               {"--version", 0},
               {"--help", 0},
               {"estimate -m gpt2 --cluster dgx-a100 --json", 0},
               {"estimate -m llama-2-70b --cluster dgx-a100", 1},
               {"estimate -m no/such/model --cluster dgx-a100", 4},
               {"estimate -m no-such-model --cluster dgx-a100", 3},
               {"estimate --no-such-option", 2}};
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    command_result r = twinspeed_unread("%s", cases[i].words), read = twinspeed("%s", cases[i].words);
    ck_assert_msg(read.status == cases[i].status, "%s: exit %d: %s", cases[i].words, read.status, read.err);
    ck_assert_msg(r.status == read.status, "%s: exit %d unread, %d read", cases[i].words, r.status, read.status);
    ck_assert_str_eq(r.err, read.err);
    command_free(&r);
    command_free(&read);
  }
}
END_TEST

START_TEST(shell_texts) {
  char *argv[] = {(char *)"/bin/bash", (char *)"-c",
                  (char *)"set -e; source <(" TWS_BUILD_DIR
                          "/twinspeed completion bash); COMP_WORDS=(twinspeed estimate "
                          "--largest); COMP_CWORD=2; _twinspeed; echo \"${COMPREPLY[@]}\"",
                  NULL};
  command_result r = command_execute(argv);
  ck_assert_msg(r.status == 0, "%s", r.err);
  ck_assert_str_eq(r.out, "--largest-layer-params\n");
  command_free(&r);
  r = twinspeed("manual");
  ck_assert_int_eq(r.status, 0);
  for (size_t i = 0; i < sizeof verbs / sizeof verbs[0]; i++) {
    char section[64];
    snprintf(section, sizeof section, ".SS twinspeed %s ", verbs[i]);
    ck_assert_msg(strstr(r.out, section) != NULL, "the manual has no %s", verbs[i]);
  }
  command_free(&r);
  static const char *const shells[] = {"zsh", "fish"};
  for (int i = 0; i < 2; i++) {
    r = twinspeed("completion %s", shells[i]);
    ck_assert(r.status == 0 && strstr(r.out, "largest-layer-params") != NULL);
    command_free(&r);
  }
}
END_TEST

int main(void) {
  Suite *suite = suite_create("cli");
  TCase *usage = tcase_create("usage");
  tcase_set_timeout(usage, 120);
  tcase_add_checked_fixture(usage, make_folder, remove_folder);
  tcase_add_test(usage, help_of_every_verb);
  tcase_add_test(usage, version_lists_features);
  tcase_add_test(usage, wrong_usage);
  tcase_add_test(usage, no_escapes_from_input);
  tcase_add_test(usage, output_to_full_disk);
  tcase_add_test(usage, output_without_a_reader);
  tcase_add_test(usage, shell_texts);
  suite_add_tcase(suite, usage);
  return run_suite(suite);
}
