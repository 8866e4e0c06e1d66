/* ctest: mpi engine slow */
/* The verbs tune and validate from end to end on a tiny model. Measured figures are not asserted; the test asserts that
 * they are measured, compared, written and judged. */
#include <check.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "base/json.h"
#include "base/memory.h"
#include "tests/command.h"
#include "tests/folder.h"
#include "tests/members.h"
#include "tests/suite.h"

static char data[64];

static void make_data(void) {
  make_folder();
  snprintf(data, sizeof data, "%s/text", folder);
  FILE *file = fopen(data, "w");
  for (int i = 0; i < 2000; i++) fprintf(file, "The %d. line of a text that repeats itself.\n", i % 97);
  fclose(file);
}

START_TEST(validate_one) {
  command_result run = twinspeed(
      "validate -m tiny-gpt2 --seq 32 --micro-batch 2 --accumulation 2 --stage 2 -n 2 --steps 5 "
      "--data %s --json --trace %s/both.json",
      data, folder);
  ck_assert_msg(run.status == 0, "%d: %s", run.status, run.err);
  cJSON *json = cJSON_Parse(run.out);
  ck_assert_str_eq(cJSON_GetObjectItem(json, "schema")->valuestring, "twinspeed-validate-1");
  ck_assert_double_gt(number(json, "predicted_step_s"), 0);
  ck_assert_double_gt(number(json, "measured_step_s"), 0);
  ck_assert_double_eq(number(json, "ledger_bytes"), number(json, "allocated_bytes"));
  ck_assert_double_gt(number(json, "peak_rss_bytes"), number(json, "allocated_bytes"));
  ck_assert(cJSON_IsArray(cJSON_GetObjectItem(cJSON_GetObjectItem(json, "comparison"), "phase")));
  cJSON_Delete(json);
  command_free(&run);
  char path[128], *text;
  size_t length;
  snprintf(path, sizeof path, "%s/both.json", folder);
  ck_assert_int_eq(tws_read_file(path, 0, &text, &length, NULL), TWS_OK);
  ck_assert_ptr_nonnull(strstr(text, "simulated rank 1"));
  ck_assert_ptr_nonnull(strstr(text, "measured rank 1"));
  tws_free(text);
  run = twinspeed("validate -m tiny-gpt2 --seq 32 --steps 3 --data %s --quiet --tolerance 0.0000001", data);
  ck_assert_msg(run.status == 1, "%d: %s", run.status, run.err); /* an honest no */
  ck_assert_ptr_nonnull(strstr(run.err, "tolerance"));
  command_free(&run);
}
END_TEST

START_TEST(tune_and_measure) {
  command_result run = twinspeed(
      "tune -m tiny-gpt2 -b 8 --seq 32 -n 1,2 --stages 0,3 --recomputes none --threads 1 -k 4 "
      "--validate 2 --end-profile-step 3 --data %s --json -o %s/results",
      data, folder);
  ck_assert_msg(run.status == 0, "%d: %s", run.status, run.err);
  cJSON *json = cJSON_Parse(run.out), *best = cJSON_GetObjectItem(json, "best");
  ck_assert_double_eq(number(json, "simulated"), 4);
  ck_assert_double_gt(number(best, "measured_step_s"), 0);
  cJSON_Delete(json);
  command_free(&run);
  run = twinspeed("train -m tiny-gpt2 -c %s/results/ds_config_optimal.json --steps 2 --data %s --quiet", folder, data);
  ck_assert_msg(run.status == 0, "%d: %s", run.status, run.err);
  command_free(&run);
  run = twinspeed("tune -m tiny-gpt2 -b 8 --seq 32 -n 1 --no-simulation -o %s/results", folder);
  ck_assert_int_eq(run.status, 2); /* not over earlier results */
  ck_assert_ptr_nonnull(strstr(run.err, "--force"));
  command_free(&run);
  run = twinspeed("tune -m tiny-gpt2 -b 8 --seq 32 --cluster dgx-a100 --memory 100KiB -o %s/nothing", folder);
  ck_assert_int_eq(run.status, 1);
  ck_assert_ptr_nonnull(strstr(run.err, " short"));
  command_free(&run);
}
END_TEST

START_TEST(sweep) {
  command_result run = twinspeed(
      "validate --sweep -m tiny-gpt2 --seq 32 -b 8 -n 1,2 --rounds 1 --steps 3 --profile host "
      "--data %s --json",
      data);
  ck_assert_msg(run.status == 0, "%d: %s", run.status, run.err);
  cJSON *json = cJSON_Parse(run.out), *item;
  int count = 0;
  cJSON_ArrayForEach(item, cJSON_GetObjectItem(json, "configurations")) {
    ck_assert_double_eq(number(item, "ledger_bytes"), number(item, "allocated_bytes"));
    ck_assert_double_eq_tol(number(item, "error"), number(item, "simulated_s") / number(item, "measured_s") - 1, 1e-9);
    count++;
  }
  ck_assert_int_ge(count, 8);
  ck_assert_double_le(number(json, "pick_share"), 1);
  cJSON_Delete(json);
  command_free(&run);
}
END_TEST

/* With ranks that share a replica validate checks one configuration in depth, and sweeps the legal ones with these
 * axes; report reads both results. */
START_TEST(axes_are_validated) {
  char one[128], many[128];
  snprintf(one, sizeof one, "%s/one.json", folder);
  snprintf(many, sizeof many, "%s/many.json", folder);
  command_result run = twinspeed(
      "validate -m tiny-gpt2 --seq 32 --micro-batch 2 --tp 2 --sequence-parallel -n 2 --steps 3 --data %s --json",
      data);
  ck_assert_msg(run.status == 0, "%d: %s", run.status, run.err);
  write_text(one, run.out);
  command_free(&run);
  run = twinspeed(
      "validate --sweep -m tiny-gpt2 --seq 32 -b 4 --pp 2 -n 1,2 --rounds 1 --steps 3 --profile host "
      "--data %s --json",
      data);
  ck_assert_msg(run.status == 0, "%d: %s", run.status, run.err);
  write_text(many, run.out);
  cJSON *json = cJSON_Parse(run.out), *item;
  cJSON_ArrayForEach(item, cJSON_GetObjectItem(json, "configurations")) {
    ck_assert_double_eq(number(item, "ranks"), 2); /* one rank cannot have two stages */
    ck_assert_double_eq(number(item, "micro_batch") * number(item, "accumulation"), 4); /* of one replica */
    ck_assert_double_le(number(item, "zero_stage"), 1);
    ck_assert_double_eq(number(item, "ledger_bytes"), number(item, "allocated_bytes"));
    ck_assert_double_ge(2 * number(item, "rank_ledger_bytes"), number(item, "ledger_bytes"));
  }
  cJSON_Delete(json);
  command_free(&run);
  run = twinspeed("report %s %s", one, many);
  ck_assert_msg(run.status == 0, "%s", run.err);
  ck_assert_msg(strstr(run.out, "model 2, sequence parallel") && strstr(run.out, "pipe 2, 1f1b"), "%s", run.out);
  command_free(&run);
}
END_TEST

/* Times of a trace are attributed to the operations of the plans, whichever rank ran them. */
START_TEST(profile_of_a_trace) {
  static const char *const axes[] = {"", "-n 2 --tp 2", "-n 2 --pp 2 --accumulation 2"};
  for (int i = 0; i < 3; i++) {
    const char *job = "-m tiny-gpt2 --seq 32 --micro-batch 2 --threads 1";
    command_result run =
        twinspeed("train %s %s --steps 2 --data %s --trace %s/trace --force --quiet", job, axes[i], data, folder);
    ck_assert_msg(run.status == 0, "%d: %s", run.status, run.err);
    command_free(&run);
    run = twinspeed("profile %s %s --measured %s/trace --json", job, axes[i], folder);
    ck_assert_msg(run.status == 0 && run.err[0] == '\0', "%s: %s", axes[i], run.err); /* nothing was missing */
    cJSON *json = cJSON_Parse(run.out), *stage;
    ck_assert_str_eq(cJSON_GetObjectItem(json, "times")->valuestring, "measured");
    cJSON_ArrayForEach(stage, cJSON_GetObjectItem(json, "stages")) {
      double busy = number(stage, "forward_s") + number(stage, "backward_s") + number(stage, "step_s");
      ck_assert_double_gt(number(stage, "forward_s"), 0);
      if (i < 2)
        ck_assert_double_le(busy, number(json, "iteration_s") * 1.0001); /* with one micro-batch every event counts
                                                                          * once */
    }
    cJSON_Delete(json);
    command_free(&run);
  }
  command_result run = twinspeed("profile -m tiny-gpt2 --seq 32 --measured %s/trace", folder);
  ck_assert_int_eq(run.status, 3);
  ck_assert_ptr_nonnull(strstr(run.err, "a trace of 2 ranks, and the job has 1"));
  command_free(&run);
}
END_TEST

static char *with(const char *text, const char *from, const char *to) {
  const char *at = strstr(text, from);
  ck_assert_msg(at != NULL, "no %s in the trace", from);
  char *changed = malloc(strlen(text) + strlen(to) + 1);
  sprintf(changed, "%.*s%s%s", (int)(at - text), text, to, at + strlen(from));
  return changed;
}

/* Traces of another job, missing ones and impossible ones are refused. */
START_TEST(traces_that_do_not_belong) {
  const char *job = "--seq 32 --micro-batch 2 --threads 1";
  command_result run =
      twinspeed("train -m tiny-gpt2 %s --steps 2 --data %s --trace %s/trace --quiet", job, data, folder);
  ck_assert_msg(run.status == 0, "%d: %s", run.status, run.err);
  command_free(&run);
  run = twinspeed("simulate -m tiny-gpt2 %s --trace %s/simulated", job, folder);
  ck_assert_msg(run.status == 0, "%d: %s", run.status, run.err);
  command_free(&run);
  const struct {
    const char *model, *options, *file, *says;
  } others[] = {{"tiny-llama", job, "trace", "of another model"},
                {"tiny-gpt2", "--seq 32 --micro-batch 4 --threads 1", "trace", "of another plan"},
                {"tiny-gpt2", "--seq 32 --micro-batch 2 --threads 1 --recompute full", "trace", "of another plan"},
                {"tiny-gpt2", "--seq 32 --micro-batch 2 --threads 1 --dtype bf16", "trace", "of another plan"},
                {"tiny-gpt2", "--seq 32 --micro-batch 2 --threads 1 --accumulation 3", "trace", "of another plan"},
                {"tiny-gpt2", job, "simulated", "no measured events"}};
  for (size_t i = 0; i < sizeof others / sizeof *others; i++) {
    run = twinspeed("profile -m %s %s --measured %s/%s", others[i].model, others[i].options, folder, others[i].file);
    ck_assert_msg(run.status == 3 && strstr(run.err, others[i].says) != NULL, "%zu: %d %s", i, run.status, run.err);
    command_free(&run);
  }
  char *text;
  size_t length;
  ck_assert_int_eq(tws_read_file(in_folder("trace"), 0, &text, &length, NULL), TWS_OK);
  static const char *const changes[][2] = {{"\"dur\":", "\"dur\":-"},
                                           {"\"dur\":", "\"dur\":1e300,\"x\":"},
                                           {"\"ts\":", "\"ts\":\"a\",\"x\":"},
                                           {"\"ts\":", "\"no\":"},
                                           {"\"fingerprint\"", "\"finger\""}};
  for (size_t i = 0; i < sizeof changes / sizeof *changes; i++) {
    char *changed = with(text, changes[i][0], changes[i][1]);
    write_text(in_folder("changed"), changed);
    free(changed);
    run = twinspeed("profile -m tiny-gpt2 %s --measured %s/changed", job, folder);
    ck_assert_msg(run.status == 3 && count_lines_with(run.err, "twinspeed: ") == 1, "%s: %d %s", changes[i][1],
                  run.status, run.err);
    command_free(&run);
  }
  tws_free(text);
}
END_TEST

int main(void) {
  Suite *suite = suite_create("validate");
  TCase *tcase = tcase_create("validate");
  tcase_add_checked_fixture(tcase, make_data, remove_folder);
  tcase_set_timeout(tcase, 240);
  tcase_add_test(tcase, validate_one);
  tcase_add_test(tcase, tune_and_measure);
  tcase_add_test(tcase, sweep);
  tcase_add_test(tcase, traces_that_do_not_belong);
  tcase_add_test(tcase, axes_are_validated);
  tcase_add_test(tcase, profile_of_a_trace);
  suite_add_tcase(suite, tcase);
  return run_suite(suite);
}
