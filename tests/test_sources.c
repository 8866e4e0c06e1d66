/* Rules about the sources of measured runs: the conditions and facts that rules can state, and the requirements on a
 * file of rules. */
#include <check.h>
#include <stdio.h>
#include <string.h>

#include "tests/published.h"
#include "tests/suite.h"
#include "validation/case_fields.h"
#include "validation/case_rules.h"

static const char row_text[] =
    "{\"id\":\"a/1-after\",\"model\":{\"name\":\"GPT "
    "7B+MoE\",\"heads\":32,\"kv_heads\":8,\"untied\":false,\"layers\":null},"
    "\"parallel\":{\"tp\":4,\"compile\":true,\"recompute\":\"selective mlp\"},\"hardware\":{\"version\":\"26.02.01\"}}";

static tws_json *parse(const char *text) {
  tws_json *json = NULL;
  tws_error err = {0};
  ck_assert_msg(tws_json_parse(text, strlen(text), "rules", &json, &err) == TWS_OK, "%s", err.message);
  return json;
}

/* Returns 1 if a condition of a rule is true for the row above. */
static int holds(const char *when) {
  char text[1024];
  snprintf(text, sizeof text, "{\"rules\":[{\"says\":{\"known\":\"yes\"}},{\"when\":%s,\"says\":{\"held\":true}}]}",
           when);
  tws_json *rules = parse(text), *row = parse(row_text);
  tws_error err = {0};
  cJSON *facts = cJSON_CreateObject();
  ck_assert_msg(tws_case_rules_check(rules, &err) == TWS_OK, "%s", err.message);
  ck_assert_msg(tws_case_rules_apply(rules, row->root, facts, &err) == TWS_OK, "%s", err.message);
  const int held = cJSON_IsTrue(cJSON_GetObjectItem(facts, "held"));
  cJSON_Delete(facts);
  tws_json_destroy(rules);
  tws_json_destroy(row);
  return held;
}

START_TEST(conditions_hold_or_do_not) {
  static const struct {
    const char *when;
    int holds;
  } all[] = {
      {"{}", 1},
      {"{\"model.heads\":32}", 1},
      {"{\"model.heads\":31}", 0},
      {"{\"model.layers\":0}", 1}, /* null counts as absent, and an absent number as 0 */
      {"{\"model.name\":{\"begins\":\"GPT \",\"contains\":\"+MoE\"}}", 1},
      {"{\"model.name\":{\"begins\":\"GPT \",\"contains\":[\"BERT\",\"T5\"]}}", 0},
      {"{\"model.name\":{\"lacks\":[\"BERT\",\"7B\"]}}", 0},
      {"{\"id\":{\"ends\":[\"-before\",\"-after\"]}}", 1},
      {"{\"parallel.tp\":{\"above\":3,\"at_most\":4,\"at_least\":4}}", 1},
      {"{\"parallel.tp\":{\"above\":4}}", 0},
      {"{\"model.heads\":{\"same_as\":\"model.kv_heads\"}}", 0},
      {"{\"parallel.compile\":true}", 1},
      {"{\"parallel.tp\":false}", 1}, /* not true */
      {"{\"model.untied\":{\"is_false\":true}}", 1},
      {"{\"parallel.pp\":{\"is_false\":true}}", 0},
      {"{\"parallel.recompute\":{\"is_text\":true,\"not\":\"\"}}", 1},
      {"{\"parallel.recompute\":[\"full\",\"selective mlp\"]}", 1},
      {"{\"hardware.version\":{\"before\":\"26.04\"}}", 1},
      {"{\"hardware.version\":{\"before\":\"26.02\"}}", 0}, /* compares as many characters as the rule gives */
      {"{\"fact.known\":\"yes\",\"none\":[{\"parallel.tp\":5}],\"any\":[{\"id\":\"x\"},{\"model.heads\":32}]}", 1},
      {"[{\"id\":\"x\"},{\"parallel.tp\":5}]", 0}};
  for (size_t i = 0; i < sizeof all / sizeof *all; i++)
    ck_assert_msg(holds(all[i].when) == all[i].holds, "%s", all[i].when);
}
END_TEST

/* The first rule that states a fact decides it; "$" stands for the value at a place of the row, also within lists and
 * objects. */
START_TEST(rules_say_facts) {
  tws_json *rules = parse(
      "{\"rules\":[{\"says\":{\"a\":{\"n\":[\"$model.heads\",\"$parallel.pp\"]},\"b\":1}},"
      "{\"says\":{\"b\":2,\"c\":\"$fact.b\",\"d\":\"text\"}}]}");
  tws_json *row = parse(row_text);
  tws_error err = {0};
  cJSON *facts = cJSON_CreateObject();
  ck_assert_int_eq(tws_case_rules_apply(rules, row->root, facts, &err), TWS_OK);
  char *text = cJSON_PrintUnformatted(facts);
  ck_assert_str_eq(text, "{\"a\":{\"n\":[32,0]},\"b\":1,\"c\":1,\"d\":\"text\"}");
  cJSON_free(text);
  cJSON_Delete(facts);
  tws_json_destroy(rules);
  tws_json_destroy(row);
}
END_TEST

START_TEST(other_files_are_refused_with_their_place) {
  static const struct {
    const char *text, *says;
  } all[] = {{"[]", "rules:1:1: "},
             {"{\"rules\":[1]}", "a rule must be an object"},
             {"{\"rules\":[{\"says\":{}, \"then\":{}}]}", "then"},
             {"{\"rules\":[\n{\"when\":{}}]}", "rules:2:1: a rule says nothing"},
             {"{\"rules\":[{\"when\":1,\"says\":{}}]}", "\"when\" must be an object"},
             {"{\"rules\":[{\"when\":[1],\"says\":{}}]}", "a condition must be an object"},
             {"{\"rules\":[{\"when\":{\"any\":{}},\"says\":{}}]}", "a list of conditions"},
             {"{\"rules\":[{\"when\":{\"id\":{\"resembles\":\"x\"}},\"says\":{}}]}", "\"resembles\" is nothing"},
             {"{\"rules\":[{\"when\":{\"tags\":{\"has\":1}},\"says\":{}}]}", "\"has\" is asked with"},
             {"{\"rules\":[{\"when\":{\"id\":{\"above\":\"x\"}},\"says\":{}}]}", "\"above\" is asked with"},
             {"{\"rules\":[{\"when\":{\"id\":{\"before\":[\"x\"]}},\"says\":{}}]}", "\"before\" is asked with"},
             {"{\"rules\":[{\"when\":{\"id\":{\"not\":{\"contains\":1}}},\"says\":{}}]}", "\"contains\" is asked with"},
             {"{\"rules\":[{\"when\":{\"id\":[1]},\"says\":{}}]}", "nothing that can be asked"}};
  for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
    tws_json *rules = parse(all[i].text);
    tws_error err = {0};
    ck_assert_int_eq(tws_case_rules_check(rules, &err), TWS_INVALID);
    ck_assert_msg(strstr(err.message, all[i].says) && strncmp(err.message, "rules:", 6) == 0, "%s: %s", all[i].text,
                  err.message);
    tws_json_destroy(rules);
  }
}
END_TEST

/* In the file of published runs each run has a runtime where its software is stated, and a model or the reason why it
 * has none. */
START_TEST(published_runs_are_known) {
  tws_cases *cases = load(RUNS);
  int doubts = 0, recipes = 0, experts = 0, partitioned = 0, unnamed = 0;
  for (int i = 0; i < cases->count; i++) {
    const tws_case *one = &cases->cases[i];
    const cJSON *named = cJSON_GetObjectItem(cJSON_GetObjectItem(one->row, "hardware"), "framework");
    ck_assert_msg(*tws_case_fact_text(one, "runtime") || !cJSON_IsString(named), "%s", one->id);
    unnamed += !*tws_case_fact_text(one, "runtime");
    ck_assert_msg(cJSON_IsObject(tws_case_fact(one, "model")) || *tws_case_fact_text(one, "lacks"), "%s", one->id);
    doubts += tws_case_fact(one, "doubt") != NULL;
    recipes += tws_case_fact_flag(one, "recipe");
    experts += tws_case_fact_flag(one, "experts");
    partitioned += tws_case_fact_flag(one, "partitions_checkpoints");
  }
  ck_assert_int_gt(doubts, 5);
  ck_assert_int_gt(recipes, 2);
  ck_assert_int_gt(experts, 5);
  ck_assert_int_gt(partitioned, 0);
  ck_assert_int_le(unnamed, 6);
  tws_cases_destroy(cases);
}
END_TEST

/* Facts that rows do not state: Llama 3.1 405B of Megatron-Bridge counts both ends of its pipeline as layers where that
 * makes equal chunks; SimuMax's DeepSeek-V3 has one dense layer among four. */
START_TEST(recipes_divide_what_rows_omit) {
  tws_cases *cases = cases_of(
      "[{\"id\":\"b\",\"group\":\"g\",\"model\":{\"name\":\"LLAMA3.1_405B\",\"layers\":126,\"hidden\":16384,\"heads\":"
      "128,"
      "\"kv_heads\":8,\"ffn\":53248,\"vocab\":128256,\"seq_len\":512},\"parallel\":{\"tp\":4,\"pp\":16,\"vpp\":4,"
      "\"dp\":1,"
      "\"micro_batch\":1,\"global_batch\":16,\"precision\":\"FP8\"},\"hardware\":{\"gpu\":\"GB200\",\"n_gpus\":64,"
      "\"gpus_per_node\":4,\"framework\":\"Megatron-Bridge / Megatron-Core\",\"version\":\"26.06\"},"
      "\"result\":{\"iter_time_s\":1}},"
      "{\"id\":\"s\",\"group\":\"g\",\"source\":{\"title\":\"SimuMax B200 release "
      "v1.2\"},\"model\":{\"name\":\"DeepSeekV3\","
      "\"layers\":4,\"hidden\":7168,\"heads\":128,\"kv_heads\":128,\"ffn\":18432,\"vocab\":129280,\"num_experts\":256,"
      "\"moe_topk\":8,\"seq_len\":512},\"parallel\":{\"tp\":1,\"pp\":1,\"dp\":8,\"ep\":8,\"micro_batch\":1,"
      "\"precision\":\"bf16\",\"zero_stage\":1},\"hardware\":{\"gpu\":\"B200\",\"n_gpus\":8,\"framework\":"
      "\"Megatron-LM/Core 2026 (Megatron-Core)\"},\"result\":{\"iter_time_s\":1}}]",
      TWS_OK, "");
  tws_job *job;
  tws_error err = {0};
  ck_assert_msg(tws_case_job(cases, 0, &job, &err) == TWS_OK, "%s", err.message);
  ck_assert_str_eq(job->config->pipeline_partition, "type:transformer|embedding|lm_head");
  tws_job_destroy(job);
  ck_assert_msg(tws_case_job(cases, 1, &job, &err) == TWS_OK, "%s", err.message);
  int routed = 0;
  for (uint32_t m = 0; m < job->network->module_count; m++)
    routed += job->network->modules[m].type == TWS_MODULE_ROUTER;
  ck_assert_int_eq(routed, 3);
  tws_job_destroy(job);
  tws_cases_destroy(cases);
}
END_TEST

int main(void) {
  Suite *suite = suite_create("sources");
  TCase *tests = tcase_create("sources");
  tcase_add_test(tests, conditions_hold_or_do_not);
  tcase_add_test(tests, rules_say_facts);
  tcase_add_test(tests, other_files_are_refused_with_their_place);
  tcase_add_test(tests, published_runs_are_known);
  tcase_add_test(tests, recipes_divide_what_rows_omit);
  suite_add_tcase(suite, tests);
  return run_suite(suite);
}
