/* What tables say: how far a prediction is from what was measured, no plan twice, nothing that is wider than a screen.
 */
#include <check.h>
#include "base/memory.h"
#include "tests/answers.h"
#include "tests/folder.h"

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

/* Within what was published, beyond it, where our own documentation says that predictions are wrong, and here. */
START_TEST(distance_from_evidence) {
  char tune[256];
  snprintf(tune, sizeof tune, "tune -m gpt2-xl --dtype bf16 --stages 3 -n 8 --cluster dgx-h100 -k 1 -o %s",
           in_folder("tuned"));
  assert_evidence("estimate -m llama-2-7b --dtype bf16 --cluster dgx-a100 --stage 1 --tp 8", "near",
                  "megatron2020-a100/8B");
  assert_evidence("estimate -m llama-2-7b --dtype bf16 --cluster dgx-h100 --stage 1 --tp 8", "far", NULL);
  assert_evidence("simulate -m llama-2-70b --dtype bf16 --recompute full --cluster dgx-a100:48 --stage 3", "wrong",
                  "sc21-table2/ZeRO3-175B-384");
  assert_evidence("estimate -m llama-2-70b --dtype bf16 --recompute full --cluster dgx-a100:192 --stage 3", "wrong",
                  "sc21-table2/ZeRO3-175B-1536");
  assert_evidence(tune, "far", NULL);
  assert_evidence("estimate --fit -m gpt2-xl --dtype bf16 --cluster dgx-a100", "near", "megatron2020-a100/1B");
  assert_evidence("estimate -m gpt2 --seq 64", "own", NULL);
  command_result r = twinspeed("estimate -m llama-2-70b --dtype bf16 --recompute full --cluster dgx-a100:48 --stage 3");
  ck_assert_msg(strstr(r.out, "Evidence not to be trusted: sc21-table2/ZeRO3-175B-384") != NULL, "%s", r.out);
  ck_assert_ptr_nonnull(strstr(r.out, "20 % too short"));
  command_free(&r);
  r = twinspeed(
      "tune -m llama-2-7b --dtype bf16 --stages 2,3 -n 8 --tp 1 --cluster dgx-a100 --no-simulation --micro-batches 1 "
      "-o %s",
      in_folder("two"));
  ck_assert_msg(strstr(r.out, "evidence\n") && strstr(r.out, "  near\n") && strstr(r.out, "  far\n"), "%s", r.out);
  command_free(&r);
}
END_TEST

/* On one rank ZeRO has nothing to divide: its stages are one plan, and one row. */
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

int main(void) {
  Suite *suite = suite_create("cli_tables");
  TCase *tests = tcase_create("tables");
  tcase_set_timeout(tests, 120);
  tcase_add_checked_fixture(tests, make_folder, remove_folder);
  tcase_add_test(tests, distance_from_evidence);
  tcase_add_test(tests, equal_plans_are_one_row);
  suite_add_tcase(suite, tests);
  SRunner *runner = srunner_create(suite);
  srunner_run_all(runner, CK_NORMAL);
  int failed = srunner_ntests_failed(runner);
  srunner_free(runner);
  return failed != 0;
}
