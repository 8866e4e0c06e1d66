/* ctest: mpi engine slow sampled */
/* Tables show how far a prediction is from measurements, print no plan twice, and have no row wider than a screen. */
#include <check.h>
#include "base/memory.h"
#include "tests/answers.h"
#include "tests/folder.h"
#include "tests/suite.h"

static void assert_evidence(const char *command, const char *kind, const char *nearest) {
  command_result r = twinspeed("%s --json", command);
  cJSON *json = cJSON_Parse(r.out);
  ck_assert_msg(json != NULL && r.status < 2, "%s: %s", command, r.err);
  const cJSON *evidence = cJSON_GetObjectItem(json, "evidence");
  if (!evidence) evidence = cJSON_GetObjectItem(cJSON_GetObjectItem(json, "best"), "evidence");
  if (!evidence)
    evidence = cJSON_GetObjectItem(cJSON_GetArrayItem(cJSON_GetObjectItem(json, "answers"), 0), "evidence");
  ck_assert_msg(evidence != NULL, "%s: no evidence", command);
  ck_assert_msg(strcmp(cJSON_GetObjectItem(evidence, "kind")->valuestring, kind) == 0, "%s: %s", command,
                cJSON_Print(evidence));
  if (nearest) ck_assert_str_eq(cJSON_GetObjectItem(evidence, "nearest")->valuestring, nearest);
  cJSON_Delete(json);
  command_free(&r);
}

/* The evidence of an answer is "near" within the published runs, "far" beyond them, "wrong" where the documentation
 * says that predictions are wrong, and "own" on this machine. */
START_TEST(distance_from_evidence) {
  char tune[256];
  snprintf(tune, sizeof tune, "tune -m gpt2-xl --dtype bf16 --stages 3 -n 8 --cluster dgx-h100 -k 1 -o %s",
           in_folder("tuned"));
  assert_evidence("estimate -m llama-2-7b --dtype bf16 --cluster dgx-a100 --stage 1 --tp 8 --runtime megatron-2021",
                  "near", NULL);
  assert_evidence("estimate -m llama-2-7b --dtype bf16 --cluster dgx-a100 --stage 1 --tp 8", "far", NULL);
  assert_evidence(
      "simulate -m llama-2-70b --dtype bf16 --recompute full --cluster dgx-a100:48 --stage 3 "
      "--runtime megatron-2021",
      "near", "sc21-table2/ZeRO3-175B-384");
  assert_evidence("estimate -m llama-2-13b --dtype fp16 --cluster dgx1-v100:16 --stage 1 --runtime megatron-2021",
                  "wrong", "megatron-ds-rebase/gpt13b-before");
  assert_evidence(
      "estimate -m llama-3-70b --dtype bf16 --recompute full --cluster dgx-h100:16 --seq 8192 --stage 3 "
      "--micro-batch 2 --runtime maxtext",
      "near", NULL);
  assert_evidence(tune, "far", NULL);
  assert_evidence("estimate -m gpt2 --seq 64", "own", NULL);
  command_result r = twinspeed(
      "estimate -m llama-2-70b --dtype bf16 --recompute full --cluster dgx-a100:48 --stage 3 --runtime megatron-2021");
  ck_assert_msg(strstr(r.out, "Evidence measured nearby: sc21-table2/ZeRO3-175B-384") != NULL, "%s", r.out);
  ck_assert_msg(strstr(r.out, "in nine of ten such runs), longest path") != NULL, "%s", r.out);
  command_free(&r);
  r = twinspeed(
      "tune -m llama-2-7b --dtype bf16 --stages 2,3 -n 8 --tp 1 --cluster dgx-a100 --no-simulation --micro-batches 1 "
      "--runtime fsdp-2022 -o %s",
      in_folder("two"));
  ck_assert_msg(strstr(r.out, "  evidence ") && strstr(r.out, "  near ") && strstr(r.out, "  far "), "%s", r.out);
  command_free(&r);
}
END_TEST

/* On one rank ZeRO has nothing to divide: all its stages give the same plan and one row. */
START_TEST(equal_plans_are_one_row) {
  char plans[2][32];
  for (int stage = 0; stage < 4; stage += 3) {
    command_result r = twinspeed("estimate -m gpt2 --seq 64 -n 1 --stage %d --json", stage);
    cJSON *json = assert_json(&r, "twinspeed-estimate-1");
    snprintf(plans[stage > 0], sizeof plans[0], "%s",
             cJSON_GetObjectItem(cJSON_GetObjectItem(json, "fingerprint"), "plan")->valuestring);
    cJSON_Delete(json);
    command_free(&r);
  }
  ck_assert_str_eq(plans[0], plans[1]);
  command_result r =
      twinspeed("tune -m gpt2 --seq 64 -n 1,2 --micro-batches 1,2 --recomputes none --json -o %s", in_folder("equal"));
  ck_assert_msg(r.status == 0, "%s", r.err);
  cJSON *json = assert_json(&r, "twinspeed-tune-1"), *one;
  int alone = 0, together = 0;
  cJSON_ArrayForEach(one, cJSON_GetObjectItem(json, "candidates")) {
    const int ranks = cJSON_GetObjectItem(one, "ranks")->valueint;
    if (ranks == 1) ck_assert_int_eq(cJSON_GetObjectItem(one, "zero_stage")->valueint, 0);
    alone += ranks == 1 && cJSON_GetObjectItem(one, "micro_batch")->valueint == 1;
    together += ranks == 2 && cJSON_GetObjectItem(one, "micro_batch")->valueint == 1;
  }
  ck_assert_int_ge(alone, 1);
  ck_assert_int_eq(together, 4 * 1);
  cJSON_Delete(json);
  command_free(&r);
}
END_TEST

/* ---- widths ---- */

enum { WIDTH = 100 };

/* Asserts that no line of a text is wider than a screen; a character of UTF-8 takes one column. */
static void assert_width(const char *text, const char *what) {
  for (const char *line = text; *line; line += strcspn(line, "\n"), line += *line == '\n') {
    int width = 0;
    for (const char *c = line; *c && *c != '\n'; c++) width += ((unsigned char)*c & 0xc0) != 0x80;
    ck_assert_msg(width <= WIDTH, "%s: %d columns: %.*s", what, width, (int)strcspn(line, "\n"), line);
  }
}

static void assert_narrow(const char *command) {
  command_result r = twinspeed("%s", command);
  ck_assert_msg(r.status <= 1 && strchr(r.out, '\n'), "%s: %d %s", command, r.status, r.err);
  assert_width(r.out, command);
  command_free(&r);
}

START_TEST(help_fits_a_screen) {
  static const char *const verbs[] = {"estimate", "check",     "simulate", "tune",   "train",   "profile",
                                      "validate", "calibrate", "report",   "doctor", "convert", "launch"};
  char command[64];
  assert_narrow("--help");
  for (size_t i = 0; i < sizeof verbs / sizeof *verbs; i++) {
    snprintf(command, sizeof command, "%s --help", verbs[i]);
    assert_narrow(command);
  }
}
END_TEST

/* Runs every verb with the job that needs its widest table. The module trees of `profile` and the tables of `--compat`
 * are in DeepSpeed's format. */
START_TEST(tables_fit_a_screen) {
  static const char *const wide =
      "-m llama-3-70b --cluster dgx-a100:16 --pp 8 --tp 8 --sp 2 --sequence-parallel "
      "--schedule interleaved --virtual-stages 2 --accumulation 8 --stage 1";
  const char *model = TWS_SOURCE_DIR "/scenarios/demo/config.json", *data = in_folder("text");
  char command[1024];
  FILE *text = fopen(data, "w");
  for (int i = 0; i < 4000; i++) fputs("In the beginning was the word. ", text);
  fclose(text);
  static const char *const verbs[] = {"estimate", "simulate", "check --max-ranks 8"};
  for (int i = 0; i < 3; i++) {
    snprintf(command, sizeof command, "%s %s", verbs[i], wide);
    assert_narrow(command);
  }
  snprintf(command, sizeof command,
           "tune -m llama-3-70b --dtype bf16 --cluster dgx-h100:4 --pp 1,8 --tp 4,8 --sp 1,2 "
           "--schedules 1f1b,interleaved:2 --micro-batches 1 --recomputes selective,full -k 3 --rows 100 -o %s",
           in_folder("wide"));
  assert_narrow(command);
  snprintf(command, sizeof command, "tune -m gpt2 --seq 64 -n 1,2 -k 3 -o %s", in_folder("host"));
  assert_narrow(command);
  assert_narrow("estimate --fit -m llama-3-70b");
  snprintf(command, sizeof command,
           "train -m %s --seq 64 -n 2 --stage 2 -d %s -s 3 --eval-data %s --eval-steps 1 --result %s", model, data,
           data, in_folder("train.json"));
  assert_narrow(command);
  command_result r = twinspeed("simulate -m %s --seq 64 -n 2 --stage 2 --json", model);
  write_text(in_folder("simulate.json"), r.out);
  command_free(&r);
  snprintf(command, sizeof command, "report %s %s", in_folder("train.json"), in_folder("simulate.json"));
  assert_narrow(command);
  snprintf(command, sizeof command, "validate -m %s --seq 64 -n 2 --stage 2 -d %s -s 3", model, data);
  assert_narrow(command);
  snprintf(command, sizeof command, "calibrate --quick --seconds 0.2 -n 1 --cores 1 --largest 1e5 -o %s",
           in_folder("host.json"));
  assert_narrow(command);
  snprintf(command, sizeof command, "convert model %s", model);
  assert_narrow(command);
  assert_narrow("doctor");
}
END_TEST

/* Values that all rows share are printed once, and those that no row has are left out. */
START_TEST(columns_that_say_nothing_are_left_out) {
  command_result r = twinspeed(
      "tune -m gpt2-xl --dtype bf16 --stages 2,3 -n 8 --cluster dgx-a100 --recomputes none "
      "--micro-batches 4,8 -k 1 -o %s",
      in_folder("columns"));
  ck_assert_msg(strstr(r.out, "\nwith recompute none, ranks 8") != NULL, "%s", r.out);
  ck_assert_ptr_null(strstr(r.out, "threads"));
  ck_assert_ptr_null(strstr(r.out, "  measured "));
  ck_assert_ptr_nonnull(strstr(r.out, "best: ZeRO-"));
  command_free(&r);
}
END_TEST

/* Completion knows the names of models and clusters and the values of options; in bash the test lets bash complete
 * words. */
START_TEST(completion_knows_names) {
  static const char *const shells[] = {"bash", "zsh", "fish"};
  for (int i = 0; i < 3; i++) {
    command_result r = twinspeed("completion %s", shells[i]);
    ck_assert_msg(strstr(r.out, "gpt2-xl") && strstr(r.out, "dgx-h100") && strstr(r.out, "none selective full"), "%s",
                  shells[i]);
    if (i == 0) write_text(in_folder("completion.bash"), r.out);
    command_free(&r);
  }
  static const struct {
    const char *words, *expected;
  } cases[] = {{"twinspeed estimate --cluster dgx-h", "dgx-h100 dgx-h200"},
               {"twinspeed tune -m gpt2-x", "gpt2-xl"},
               {"twinspeed simulate --fidelity m", "message"},
               {"twinspeed estimate --fi", "--fit"}};
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    char script[1024];
    snprintf(
        script, sizeof script,
        "cd / && . %s && COMP_WORDS=(%s) && COMP_CWORD=$((${#COMP_WORDS[@]}-1)) && _twinspeed; echo ${COMPREPLY[@]}",
        in_folder("completion.bash"), cases[i].words);
    char *const argv[] = {"/bin/bash", "-c", script, NULL};
    command_result r = command_execute(argv);
    r.out[strcspn(r.out, "\n")] = '\0';
    ck_assert_msg(strcmp(r.out, cases[i].expected) == 0, "%s: \"%s\" %s", cases[i].words, r.out, r.err);
    command_free(&r);
  }
}
END_TEST

/* The bottleneck is three lines, with the same words in every verb. */
START_TEST(the_bottleneck_in_three_lines) {
  static const char *const verbs[] = {"estimate", "simulate"};
  for (int i = 0; i < 2; i++) {
    command_result r = twinspeed("%s -m gpt2-xl --dtype bf16 --stage 3 --cluster dgx1-v100:4", verbs[i]);
    const char *first = strstr(r.out, "\nBottleneck ");
    ck_assert_msg(first != NULL, "%s", r.out);
    ck_assert_ptr_nonnull(strstr(first, "\n  takes "));
    ck_assert_ptr_nonnull(strstr(first, "\n  without it a step would take "));
    command_free(&r);
    r = twinspeed("%s -m gpt2-xl --dtype bf16 --stage 3 --cluster dgx1-v100:4 --json", verbs[i]);
    cJSON *json = cJSON_Parse(r.out);
    const cJSON *of = i ? json : cJSON_GetObjectItem(json, "time"), *limit = cJSON_GetObjectItem(of, "limited_by");
    const double step = cJSON_GetObjectItem(of, "step_s")->valuedouble;
    const double takes = cJSON_GetObjectItem(limit, "seconds")->valuedouble;
    ck_assert_double_eq_tol(takes / step, cJSON_GetObjectItem(limit, "share")->valuedouble, 1e-9);
    ck_assert_double_ge(cJSON_GetObjectItem(limit, "step_without_s")->valuedouble, step - takes - 1e-12);
    ck_assert_double_lt(cJSON_GetObjectItem(limit, "step_without_s")->valuedouble, step);
    ck_assert_double_le(cJSON_GetObjectItem(limit, "next_share")->valuedouble, takes / step);
    cJSON_Delete(json);
    command_free(&r);
  }
}
END_TEST

int main(void) {
  Suite *suite = suite_create("cli_tables");
  TCase *tests = tcase_create("tables");
  tcase_set_timeout(tests, 120);
  tcase_add_checked_fixture(tests, make_folder, remove_folder);
  tcase_add_test(tests, distance_from_evidence);
  tcase_add_test(tests, equal_plans_are_one_row);
  tcase_add_test(tests, help_fits_a_screen);
  tcase_add_test(tests, tables_fit_a_screen);
  tcase_add_test(tests, columns_that_say_nothing_are_left_out);
  tcase_add_test(tests, completion_knows_names);
  tcase_add_test(tests, the_bottleneck_in_three_lines);
  suite_add_tcase(suite, tests);
  return run_suite(suite);
}
