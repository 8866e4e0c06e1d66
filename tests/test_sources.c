/* Rules about the sources of measured runs: what they can ask and say, and what a file of them must be like. */
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

/* Expects that one condition holds for the row above. */
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
      {"{\"model.layers\":0}", 1}, /* null is absent, and what is absent is 0 */
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
      {"{\"hardware.version\":{\"before\":\"26.02\"}}", 0}, /* by as many letters as are given */
      {"{\"fact.known\":\"yes\",\"none\":[{\"parallel.tp\":5}],\"any\":[{\"id\":\"x\"},{\"model.heads\":32}]}", 1},
      {"[{\"id\":\"x\"},{\"parallel.tp\":5}]", 0}};
  for (size_t i = 0; i < sizeof all / sizeof *all; i++)
    ck_assert_msg(holds(all[i].when) == all[i].holds, "%s", all[i].when);
}
END_TEST

/* The first that says something is right; "$" stands for what is at a place, in lists and objects too. */
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

/* The file that comes with the program: each published run has a runtime, and a model or a reason why not. */
START_TEST(published_runs_are_known) {
  tws_cases *cases = load(RUNS);
  int doubts = 0, recipes = 0, experts = 0, partitioned = 0;
  for (int i = 0; i < cases->count; i++) {
    const tws_case *one = &cases->cases[i];
    ck_assert_msg(*tws_case_fact_text(one, "runtime"), "%s", one->id);
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
  suite_add_tcase(suite, tests);
  return run_suite(suite);
}
