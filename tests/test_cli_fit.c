/* ctest: sampled */
/* estimate --fit: the job fits on the number of GPUs that the answer names, and not on a smaller number. */
#include <check.h>
#include "base/memory.h"
#include "tests/answers.h"
#include "tests/folder.h"
#include "tests/suite.h"

static double number(const cJSON *object, const char *key) {
  const cJSON *item = cJSON_GetObjectItem(object, key);
  ck_assert_msg(cJSON_IsNumber(item), "no number %s", key);
  return item->valuedouble;
}

/* For each kind of GPU, the command that the answer names confirms the fit, and the tuner finds no fit on the next
 * smaller number. */
START_TEST(smallest_number_holds_the_model) {
  command_result r = twinspeed("estimate --fit -m llama-3-8b --cluster dgx-a100,dgx-h100,dgx-a100-40gb --json");
  ck_assert_msg(r.status == 0, "%s", r.err);
  cJSON *json = assert_json(&r, "twinspeed-fit-1"), *one;
  double last = 0;
  int seen = 0;
  cJSON_ArrayForEach(one, cJSON_GetObjectItem(json, "answers")) {
    const double devices = number(one, "devices");
    ck_assert(cJSON_IsTrue(cJSON_GetObjectItem(one, "fits")));
    ck_assert_double_ge(devices, last); /* the smallest first */
    last = devices;
    seen++;
    command_result yes = twinspeed("estimate %s", cJSON_GetObjectItem(one, "arguments")->valuestring);
    ck_assert_msg(yes.status == 0, "%s", yes.err);
    command_free(&yes);
    command_result no = twinspeed("tune -m llama-3-8b --cluster %s -n %.0f --axes on --no-simulation -o %s --force",
                                  cJSON_GetObjectItem(one, "cluster")->valuestring, devices / 2, in_folder("results"));
    ck_assert_msg(no.status == 1 && strstr(no.err, "nothing fits"), "%s on half: %s%s",
                  cJSON_GetObjectItem(one, "cluster")->valuestring, no.out, no.err);
    command_free(&no);
  }
  ck_assert_int_eq(seen, 3);
  ck_assert_double_gt(last, 1);
  cJSON_Delete(json);
  command_free(&r);
}
END_TEST

START_TEST(without_clusters_all_kinds_are_compared) {
  command_result r = twinspeed("estimate --fit -m gpt2-xl --dtype bf16 --json");
  ck_assert_msg(r.status == 0, "%s", r.err);
  cJSON *json = assert_json(&r, "twinspeed-fit-1");
  const cJSON *answers = cJSON_GetObjectItem(json, "answers");
  ck_assert_int_ge(cJSON_GetArraySize(answers), 7);
  ck_assert_double_eq(number(cJSON_GetArrayItem(answers, 0), "devices"), 1);
  cJSON_Delete(json);
  command_free(&r);
  r = twinspeed("estimate --fit -m gpt2-xl --dtype bf16");
  ck_assert_ptr_nonnull(strstr(r.out, "\n   1  dgx-b200"));
  ck_assert_ptr_nonnull(strstr(r.out, "\nlook closer: twinspeed estimate --model=gpt2-xl --cluster=gb300-nvl72 "));
  command_free(&r);
}
END_TEST

/* With --within, --fit keeps the given options, and a step is as short as asked; with one node less it is not. */
START_TEST(a_time_for_a_step) {
  const char *job = "estimate --fit -m gpt2-xl --dtype bf16 --stage 2 --recompute full --set train_batch_size=512";
  command_result r = twinspeed("%s --cluster dgx-a100 --within 3 --json", job);
  ck_assert_msg(r.status == 0, "%s", r.err);
  cJSON *json = assert_json(&r, "twinspeed-fit-1");
  const cJSON *one = cJSON_GetArrayItem(cJSON_GetObjectItem(json, "answers"), 0);
  ck_assert_double_le(number(one, "step_s"), 3);
  ck_assert_double_eq(number(one, "zero_stage"), 2);
  ck_assert_str_eq(cJSON_GetObjectItem(one, "recompute")->valuestring, "full");
  const double nodes = number(one, "nodes"), replicas = number(cJSON_GetObjectItem(one, "axes"), "data");
  ck_assert_double_eq(number(one, "micro_batch") * number(one, "accumulation_steps") * replicas, 512);
  ck_assert_double_ge(nodes, 2);
  command_result no = twinspeed("%s --cluster dgx-a100:%.0f --within 3", job, nodes - 1);
  ck_assert_msg(no.status == 1 && strstr(no.err, "too slow"), "%s%s", no.out, no.err);
  command_free(&no);
  cJSON_Delete(json);
  command_free(&r);
  r = twinspeed("estimate --fit -m gpt2-xl --dtype bf16 --cluster dgx-a100 --tokens-per-second 5e5 --json");
  json = assert_json(&r, "twinspeed-fit-1");
  ck_assert_double_ge(number(cJSON_GetArrayItem(cJSON_GetObjectItem(json, "answers"), 0), "tokens_per_s"), 5e5);
  cJSON_Delete(json);
  command_free(&r);
}
END_TEST

START_TEST(questions_without_meaning) {
  command_result r = twinspeed("estimate --fit -m gpt2 -n 4");
  assert_one_error(&r, 2, "-n");
  command_free(&r);
  r = twinspeed("estimate -m gpt2 --within 3");
  assert_one_error(&r, 2, "a time without a batch");
  command_free(&r);
  r = twinspeed("estimate --fit -m gpt2 --cluster dgx-a100,host");
  assert_one_error(&r, 2, "host");
  command_free(&r);
  r = twinspeed("estimate --fit -m gpt2 --cluster dgx-a100,dgx-a10");
  assert_one_error(&r, 3, "unknown cluster");
  command_free(&r);
  r = twinspeed("estimate --fit -m llama-2-70b --stage 0 --pp 1 --tp 1 --sp 1 --cluster dgx-a100:2");
  ck_assert_msg(r.status == 1 && strstr(r.out, "none    dgx-a100: "), "%s%s", r.out, r.err);
  command_free(&r);
}
END_TEST

/* For each candidate the tuner gives the verdict of estimate, and with --no-tight it leaves out tight ones. */
START_TEST(tuning_says_what_is_tight) {
  static const char command[] =
      "tune -m gpt2-xl --cluster dgx1-v100 --runtime deepspeed-flash --dtype fp16 --stages 1 --micro-batches 4,8 "
      "--accumulations 1 --recomputes none --axes off --overlaps on -n 8 --no-simulation -q --force -o %s %s";
  command_result r = twinspeed(command, in_folder("tight"), "--json");
  ck_assert_msg(r.status == 0, "%s", r.err);
  cJSON *json = cJSON_Parse(r.out), *one;
  int tight = 0, candidates = 0;
  cJSON_ArrayForEach(one, cJSON_GetObjectItem(json, "candidates")) {
    command_result e = twinspeed(
        "estimate -m gpt2-xl --cluster dgx1-v100 --runtime deepspeed-flash --dtype fp16 --stage 1 --micro-batch %.0f "
        "--json",
        number(one, "micro_batch"));
    cJSON *estimate = cJSON_Parse(e.out);
    const char *answer = cJSON_GetStringValue(cJSON_GetObjectItem(cJSON_GetObjectItem(estimate, "verdict"), "answer"));
    ck_assert_str_eq(answer, cJSON_IsTrue(cJSON_GetObjectItem(one, "tight")) ? "tight" : "fits");
    tight += cJSON_IsTrue(cJSON_GetObjectItem(one, "tight"));
    candidates++;
    cJSON_Delete(estimate);
    command_free(&e);
  }
  ck_assert_int_eq(candidates, 2);
  ck_assert_int_eq(tight, 1);
  cJSON_Delete(json);
  command_free(&r);
  r = twinspeed(command, in_folder("tight"), "");
  ck_assert_ptr_nonnull(strstr(r.out, " tight\n"));
  ck_assert_ptr_nonnull(strstr(r.out, "\ntight: one in twenty measured peaks"));
  command_free(&r);
  r = twinspeed(command, in_folder("tight"), "--no-tight --json");
  json = cJSON_Parse(r.out);
  ck_assert_int_eq(cJSON_GetArraySize(cJSON_GetObjectItem(json, "candidates")), 1);
  ck_assert(cJSON_IsFalse(cJSON_GetObjectItem(cJSON_GetObjectItem(json, "best"), "tight")));
  cJSON_Delete(json);
  command_free(&r);
}
END_TEST

int main(void) {
  Suite *suite = suite_create("cli_fit");
  TCase *tests = tcase_create("fit");
  tcase_set_timeout(tests, 120);
  tcase_add_checked_fixture(tests, make_folder, remove_folder);
  tcase_add_test(tests, smallest_number_holds_the_model);
  tcase_add_test(tests, without_clusters_all_kinds_are_compared);
  tcase_add_test(tests, a_time_for_a_step);
  tcase_add_test(tests, questions_without_meaning);
  tcase_add_test(tests, tuning_says_what_is_tight);
  suite_add_tcase(suite, tests);
  return run_suite(suite);
}
