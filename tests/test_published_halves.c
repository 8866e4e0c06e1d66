/* The two halves of measured runs: one to fit constants, and one whose errors are only reported. */
#include <stdio.h>

#include "base/sha256.h"
#include "command.h"
#include "tests/published.h"
#include "tests/suite.h"

/* SHA-256 equals NIST's examples for FIPS 180-4, one of them longer than a block, and an example whose padding needs a
 * block of its own. */
START_TEST(sha256_is_as_published) {
  static const struct {
    const char *text;
    uint8_t first[4];
  } known[] = {{"", {0xe3, 0xb0, 0xc4, 0x42}},
               {"abc", {0xba, 0x78, 0x16, 0xbf}},
               {"abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq", {0x24, 0x8d, 0x6a, 0x61}},
               {"abcdefghbcdefghicdefghijdefghijkefghijklfghijklmghijklmnhijklmnoijklmnopjklmnopqklmnopqrlmnopqrsmnopqr"
                "stnopqrstu",
                {0xcf, 0x5b, 0x16, 0xa7}}};
  for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
    uint8_t digest[32];
    tws_sha256(known[i].text, strlen(known[i].text), digest);
    ck_assert_mem_eq(digest, known[i].first, 4);
  }
}
END_TEST

/* The script and the program put each run into the same half. */
START_TEST(script_and_program_split_alike) {
  tws_cases *cases = load(RUNS);
  char *argv[] = {TWS_SOURCE_DIR "/scenarios/published/split.sh", RUNS, NULL};
  command_result result = command_execute(argv);
  ck_assert_msg(result.status == 0, "%s", result.err);
  char *line = result.out, *end;
  int fitting = 0;
  for (int i = 0; i < cases->count; i++, line = end + 1) {
    char expected[256];
    snprintf(expected, sizeof expected, "%s %s", tws_case_half_name(tws_case_is_for_fitting(cases->cases[i].id)),
             cases->cases[i].id);
    end = strchr(line, '\n');
    ck_assert_ptr_nonnull(end);
    *end = '\0';
    ck_assert_str_eq(line, expected);
    fitting += tws_case_is_for_fitting(cases->cases[i].id);
  }
  ck_assert_int_eq(*line, '\0');
  ck_assert_int_gt(fitting, cases->count / 3);
  ck_assert_int_lt(fitting, 2 * cases->count / 3);
  command_free(&result);
  tws_cases_destroy(cases);
}
END_TEST

/* The halves have separate scores. The half of a run follows from the SHA-256 of its name: that of "a" begins with ca,
 * of "b" with 3e, of "c" with 2e, of "d" with 18, all for fitting; that of "e" with 3f. "b" ran out of memory although
 * it is predicted to fit; "d" has a time and no verdict, so it ran. */
START_TEST(halves_are_scored_apart) {
  tws_cases *cases =
      cases_of("[" ROW("a", "1", "1", "false") "," ROW("b", "1", "2", "true") "," ROW("c", "1", "1", "false") "," ROW(
                   "d", "1", "0", "null") "," ROW("e", "0", "0", "null") "," ROW("e1", "1", "0", "null") "]",
               TWS_OK, "");
  tws_case_comparison compared;
  tws_case_half halves[2];
  tws_error err = {0};
  ck_assert_int_eq(tws_cases_compare(cases, NULL, 0, NULL, &(tws_progress){0}, &compared, &err), TWS_OK);
  compared.results[0].measured_bytes = compared.results[0].predicted_bytes / 1.5;
  compared.results[1].measured_bytes = compared.results[1].predicted_bytes;
  compared.results[2].measured_bytes = compared.results[2].predicted_bytes / 1.1;
  ck_assert_int_eq(tws_cases_halves(&compared, halves, &err), TWS_OK);
  ck_assert_int_eq(compared.results[4].for_fitting, 0);
  const tws_case_half *h = &halves[0];
  ck_assert(h->for_fitting && !halves[1].for_fitting);
  ck_assert_int_eq(h->runs + halves[1].runs, 6);
  ck_assert_int_eq(h->ran_wrong + h->oom_right + halves[1].ran_wrong + halves[1].oom_right, 0);
  ck_assert_int_eq(h->oom_wrong, 1);
  ck_assert_int_eq(h->ran_right + halves[1].ran_right, 4); /* "e" does not count, because nothing was measured */
  ck_assert_int_eq(h->memory_runs, 3);
  ck_assert_double_eq_tol(h->memory_median, 10, 1e-6);
  ck_assert_double_eq_tol(h->memory_mean_of_groups, 20, 1e-6);
  ck_assert_int_eq(halves[1].memory_runs, 0);
  tws_case_comparison_free(&compared);
  tws_cases_destroy(cases);
}
END_TEST

START_TEST(the_verb_says_the_halves) {
  command_result result = twinspeed("validate --cases " RUNS " --group torchtitan --json");
  ck_assert_msg(result.status == 0, "%s", result.err);
  cJSON *json = cJSON_Parse(result.out);
  const cJSON *halves = cJSON_GetObjectItem(json, "halves"), *item;
  double runs = 0;
  ck_assert_int_eq(cJSON_GetArraySize(halves), 2);
  cJSON_ArrayForEach(item, halves) runs += cJSON_GetNumberValue(cJSON_GetObjectItem(item, "n"));
  ck_assert_double_eq(
      runs, cJSON_GetNumberValue(cJSON_GetObjectItem(cJSON_GetArrayItem(cJSON_GetObjectItem(json, "groups"), 0), "n")));
  ck_assert_str_eq(cJSON_GetStringValue(cJSON_GetObjectItem(cJSON_GetArrayItem(halves, 0), "half")), "fitting");
  ck_assert_ptr_nonnull(cJSON_GetObjectItem(cJSON_GetArrayItem(cJSON_GetObjectItem(json, "cases"), 0), "half"));
  cJSON_Delete(json);
  command_free(&result);
  result = twinspeed("validate --cases " RUNS " --group torchtitan");
  ck_assert_ptr_nonnull(strstr(result.out, "ran +/-"));
  ck_assert_ptr_nonnull(strstr(result.out, "reported"));
  command_free(&result);
}
END_TEST

int main(void) {
  Suite *suite = suite_create("published_halves");
  TCase *tests = tcase_create("published_halves");
  tcase_set_timeout(tests, 120);
  tcase_add_test(tests, sha256_is_as_published);
  tcase_add_test(tests, script_and_program_split_alike);
  tcase_add_test(tests, halves_are_scored_apart);
  tcase_add_test(tests, the_verb_says_the_halves);
  suite_add_tcase(suite, tests);
  return run_suite(suite);
}
