/* In six large spaces a search finds the ten fastest configurations that an earlier, independent search found. */
/* ctest: slow */
#include <check.h>
#include <math.h>

#include "tests/command.h"
#include "tests/folder.h"
#include "tests/members.h"
#include "tests/sanitized.h"
#include "tests/suite.h"

static const double tolerance = 1e-9;

/* Returns 1 if a configuration is in the list of the fastest ones. Configurations whose steps take equally long may be
 * in any order, and at the end of the list another one of equal speed may replace one. */
static int is_listed(const cJSON *best, const char *name, double step_s) {
  const cJSON *item;
  int ties = 0;
  cJSON_ArrayForEach(item, best) {
    if (fabs(number(item, "step_s") - step_s) > tolerance * step_s) continue;
    if (strcmp(member(item, "name")->valuestring, name) == 0) return 1;
    ties++;
  }
  return ties > 0 &&
         fabs(number(cJSON_GetArrayItem(best, cJSON_GetArraySize(best) - 1), "step_s") - step_s) <= tolerance * step_s;
}

START_TEST(the_best_of_large_spaces) {
  if (TWS_SANITIZED && _i % 3) return; /* each takes minutes there, and the search is the same */
  tws_json *golden = golden_file("spaces.json");
  const cJSON *space = cJSON_GetArrayItem(member(golden->root, "spaces"), _i);
  const char *what = member(space, "space")->valuestring;
  const cJSON *best = member(space, "best");
  tws_error err = {0};
  make_folder();
  command_result run = twinspeed("tune %s --exhaustive -k 10 --no-simulation -q --json -o %s",
                                 member(space, "options")->valuestring, in_folder("results"));
  ck_assert_msg(run.status == 0, "%s: %s", what, run.err);
  tws_json *json;
  ck_assert(tws_json_parse(run.out, strlen(run.out), "results", &json, &err) == TWS_OK);
  const cJSON *found = member(json->root, "candidates");
  ck_assert_int_ge(cJSON_GetArraySize(found), cJSON_GetArraySize(best));
  for (int i = 0; i < cJSON_GetArraySize(best); i++) {
    const cJSON *candidate = cJSON_GetArrayItem(found, i);
    const double expected = number(cJSON_GetArrayItem(best, i), "step_s");
    const double step_s = number(candidate, "predicted_step_s");
    const char *name = member(candidate, "name")->valuestring;
    ck_assert_msg(fabs(step_s - expected) <= tolerance * expected, "%s: number %d, %s, takes %.12g s, not %.12g s",
                  what, i + 1, name, step_s, expected);
    ck_assert_msg(is_listed(best, name, step_s), "%s: number %d is %s", what, i + 1, name);
  }
  tws_json_destroy(json);
  tws_json_destroy(golden);
  command_free(&run);
  remove_folder();
}
END_TEST

int main(void) {
  Suite *suite = suite_create("spaces");
  TCase *c = tcase_create("spaces");
  tcase_set_timeout(c, 180);
  tcase_add_loop_test(c, the_best_of_large_spaces, 0, 6);
  suite_add_tcase(suite, c);
  return run_suite(suite);
}
