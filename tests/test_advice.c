/* ctest: sampled */
/* Advice after an estimate: its figures are those of the changed job, and no other change that the advice considers is
 * better. */
#include <check.h>

#include "tests/answers.h"
#include "tests/folder.h"
#include "tests/members.h"
#include "tests/suite.h"

static cJSON *estimate(const char *line, const char *more, int status) {
  command_result r = twinspeed("estimate %s %s --json", line, more);
  ck_assert_msg(r.status == status, "%s %s: %d %s", line, more, r.status, r.err);
  cJSON *json = cJSON_Parse(r.out);
  ck_assert(json != NULL);
  command_free(&r);
  return json;
}

static double tokens(const cJSON *json) {
  return number(member(json, "time"), "tokens_per_s");
}

/* Asserts that each advice, applied to the line, gives the figures that it states, that its gain is relative to `given`
 * tokens per second, and that the advice is in order. */
static void assert_true(const char *line, const cJSON *json, double given) {
  const cJSON *one;
  double last = 0;
  int changed = 0;
  cJSON_ArrayForEach(one, member(json, "advice")) {
    cJSON *with = estimate(line, member(one, "arguments")->valuestring, 0);
    ck_assert_double_eq(tokens(with), number(one, "tokens_per_s"));
    ck_assert_double_eq_tol(number(one, "gain"), tokens(with) / given - 1, 1e-12);
    ck_assert_double_eq(number(member(with, "verdict"), "device_need_bytes"), number(one, "device_bytes"));
    const int changes = is_true(one, "changes_training");
    ck_assert(changes >= changed);
    ck_assert(changes > changed || last == 0 || number(one, "tokens_per_s") <= last);
    last = number(one, "tokens_per_s");
    changed = changes;
    cJSON_Delete(with);
  }
}

START_TEST(advice_is_computed) {
  static const char *const lines[] = {
      ("-m gpt2-xl --cluster dgx-a100 --stage 2 --dtype bf16 --micro-batch 1 --accumulation 4 --recompute full "
       "--runtime deepspeed-flash --set zero_optimization.offload_optimizer.device=cpu"),
      "-m gpt2-xl --cluster dgx-h100:2 --stage 3 --dtype bf16 --recompute full --accumulation 8",
      "-m llama-3-8b --cluster dgx-a100 -n 8 --stage 3 --dtype bf16 --seq 2048 --accumulation 2 --runtime fsdp"};
  static const char *const others[] = {"--recompute none",
                                       "--recompute full",
                                       "--stage 1",
                                       "--stage 2",
                                       "--micro-batch 2 --accumulation 2",
                                       "--micro-batch 2 --accumulation 4",
                                       "--set zero_optimization.offload_optimizer.device=none"};
  for (size_t i = 0; i < sizeof lines / sizeof *lines; i++) {
    cJSON *json = estimate(lines[i], "", 0);
    const cJSON *advice = member(json, "advice");
    const cJSON *first = cJSON_GetArrayItem(advice, 0);
    assert_true(lines[i], json, tokens(json));
    ck_assert_int_le(cJSON_GetArraySize(advice), 3);
    for (size_t k = 0; k < sizeof others / sizeof *others; k++) { /* no other change fits, keeps the batch and is
                                                                   * faster */
      command_result r = twinspeed("estimate %s %s --json", lines[i], others[k]);
      cJSON *with = cJSON_Parse(r.out);
      const int same = with && number(with, "train_batch") == number(json, "train_batch");
      if (r.status == 0 && same && !cJSON_GetObjectItem(with, "missing"))
        ck_assert_msg(tokens(with) <= (first ? number(first, "tokens_per_s") : 1.02 * tokens(json)), "%s %s", lines[i],
                      others[k]);
      cJSON_Delete(with);
      command_free(&r);
    }
    cJSON_Delete(json);
  }
}
END_TEST

START_TEST(a_bottleneck_on_the_host_is_first) {
  command_result r = twinspeed(
      "estimate -m llama-3-8b --cluster dgx-a100 -n 8 --stage 2 --dtype bf16 --seq 2048 "
      "--runtime deepspeed-flash --set zero_optimization.offload_optimizer.device=cpu");
  ck_assert_msg(strstr(r.out, "\nAdvice   optimizer off the host: fits, +"), "%s", r.out);
  command_free(&r);
}
END_TEST

/* For a job that does not fit, the advice names changes with which it fits; adapters come last, marked as another
 * training. */
START_TEST(what_does_not_fit) {
  static const char line[] = "-m llama-3-8b --cluster dgx-a100 -n 1 --dtype bf16 --seq 1024 --runtime transformers";
  cJSON *json = estimate(line, "", 1);
  const cJSON *advice = member(json, "advice"), *one;
  int adapters = 0;
  ck_assert_int_gt(cJSON_GetArraySize(advice), 0);
  assert_true(line, json, tokens(json));
  cJSON_ArrayForEach(one, advice) adapters += is_true(one, "changes_training");
  ck_assert_int_gt(adapters, 0);
  ck_assert(!is_true(cJSON_GetArrayItem(advice, 0), "changes_training"));
  cJSON_Delete(json);
  command_result host = twinspeed("estimate -m tiny-gpt2 -n 2 --json");
  json = cJSON_Parse(host.out);
  ck_assert_int_eq(cJSON_GetArraySize(member(json, "advice")), 0);
  cJSON_Delete(json);
  command_free(&host);
}
END_TEST

/* A search advises on its winner, whose configuration it has written, or on the smallest job if nothing fits. */
START_TEST(searches_advise) {
  static const char job[] = "-m gpt2-xl --cluster dgx-a100 -n 8 --runtime deepspeed-flash --dtype bf16";
  static const char space[] = "--stages 3 --recomputes full --micro-batches 1 --accumulations 8 --no-simulation -q";
  char line[512];
  make_folder();
  command_result r = twinspeed("tune %s %s --force -o %s --json", job, space, in_folder("tuned"));
  ck_assert_msg(r.status == 0, "%s", r.err);
  cJSON *json = cJSON_Parse(r.out);
  snprintf(line, sizeof line, "%s -c %s", job, in_folder("tuned/ds_config_optimal.json"));
  ck_assert_int_eq(cJSON_GetArraySize(member(json, "advice")), 3);
  assert_true(line, json, number(member(json, "best"), "tokens_per_s"));
  cJSON_Delete(json);
  command_free(&r);
  r = twinspeed("tune %s %s --force -o %s", job, space, in_folder("tuned"));
  ck_assert_msg(r.status == 0 && strstr(r.out, "\nAdvice   "), "%s", r.out);
  command_free(&r);
  r = twinspeed(
      "tune -m llama-3-8b --cluster dgx-a100 -n 1 --dtype bf16 --seq 1024 --runtime transformers --stages 0 "
      "--micro-batches 2 --accumulations 1 --no-simulation -q --force -o %s --json",
      in_folder("tuned"));
  ck_assert_msg(r.status == 1, "%s", r.err);
  json = cJSON_Parse(r.out);
  ck_assert_int_gt(cJSON_GetArraySize(member(json, "advice")), 0);
  cJSON_Delete(json);
  command_free(&r);
  remove_folder();
}
END_TEST

int main(void) {
  Suite *suite = suite_create("advice");
  TCase *tcase = tcase_create("advice");
  tcase_set_timeout(tcase, 300);
  tcase_add_test(tcase, advice_is_computed);
  tcase_add_test(tcase, a_bottleneck_on_the_host_is_first);
  tcase_add_test(tcase, what_does_not_fit);
  tcase_add_test(tcase, searches_advise);
  suite_add_tcase(suite, tcase);
  return run_suite(suite);
}
