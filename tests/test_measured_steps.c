/* ctest: traces */
/* Steps that were measured on GPUs (traces/DATE-DEVICE, of tests/gpu/run) against the simulator, with the profile that
 * was calibrated in the same run. Registered only where there are such folders. */
#include <check.h>
#include <glob.h>
#include <math.h>

#include "base/json.h"
#include "tests/command.h"
#include "tests/folder.h"
#include "tests/suite.h"

/* Limits of relative errors: for the plan that was measured, and for a plan that has changed since. */
static const double limit = 0.05, limit_of_changed_plans = 0.2;

static double member(const cJSON *object, const char *key) {
  const cJSON *item = cJSON_GetObjectItemCaseSensitive(object, key);
  return cJSON_IsNumber(item) ? item->valuedouble : NAN;
}

static const char *text(const cJSON *object, const char *key) {
  const char *value = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(object, key));
  ck_assert_msg(value != NULL, "no \"%s\"", key);
  return value;
}

/* The name of a run's model, or a file of the model where the run has its configuration. */
static const char *model_of(const cJSON *run) {
  const cJSON *config = cJSON_GetObjectItemCaseSensitive(run, "config");
  if (!config) return text(run, "model");
  char *written = cJSON_PrintUnformatted(config);
  write_text(in_folder("model.json"), written);
  cJSON_free(written);
  return in_folder("model.json");
}

static double arena_now(const cJSON *run, const char *place) {
  command_result r =
      twinspeed("estimate -m %s %s --profile %s/profile.json --json", model_of(run), text(run, "flags"), place);
  cJSON *json = cJSON_Parse(r.out);
  const cJSON *device = cJSON_GetObjectItem(cJSON_GetObjectItem(json, "memory"), "device");
  const double bytes = member(device, "arena_bytes");
  ck_assert_msg(bytes > 0, "%s: %s", text(run, "name"), r.err);
  cJSON_Delete(json);
  command_free(&r);
  return bytes;
}

/* Returns the simulated seconds of a step; estimated ones in a build without the simulator. */
static double seconds_now(const cJSON *run, const char *place) {
  const int simulates = access(TWS_BUILD_DIR "/twinspeed_sim.so", R_OK) == 0;
  command_result r = twinspeed("%s -m %s %s --profile %s/profile.json --json", simulates ? "simulate" : "estimate",
                               model_of(run), text(run, "flags"), place);
  cJSON *json = cJSON_Parse(r.out);
  const double seconds = member(simulates ? json : cJSON_GetObjectItem(json, "time"), "step_s");
  ck_assert_msg(seconds > 0, "%s: %s", text(run, "name"), r.err);
  cJSON_Delete(json);
  command_free(&r);
  return seconds;
}

static void check_run(const cJSON *run, const char *place) {
  const double measured = member(run, "measured_step_s"), arena = member(run, "arena_bytes");
  ck_assert_msg(measured > 0 && arena > 0, "%s: %s: no measured step", place, text(run, "name"));
  const int same = arena_now(run, place) == arena;
  const double error = seconds_now(run, place) / measured - 1;
  printf("%s: %s: %+.1f %%%s\n", place, text(run, "name"), 100 * error, same ? "" : " (the plan has changed since)");
  ck_assert_msg(fabs(error) <= (same ? limit : limit_of_changed_plans), "%s: %s: simulated %+.1f %% off", place,
                text(run, "name"), 100 * error);
}

START_TEST(simulated_as_measured) {
  const char *traces = getenv("TWINSPEED_TRACES");
  char pattern[4096];
  glob_t found;
  tws_error err = {0};
  make_folder();
  snprintf(pattern, sizeof pattern, "%s/*/steps.json", traces ? traces : TWS_SOURCE_DIR "/traces");
  ck_assert_int_eq(glob(pattern, 0, NULL, &found), 0);
  for (size_t i = 0; i < found.gl_pathc; i++) {
    tws_json *json;
    ck_assert_msg(tws_json_read(found.gl_pathv[i], &json, &err) == TWS_OK, "%s", err.message);
    ck_assert_str_eq(text(json->root, "schema"), "twinspeed-measured-steps-1");
    ck_assert_msg(!cJSON_IsTrue(cJSON_GetObjectItem(json->root, "dry_run")), "%s is of a dry run", found.gl_pathv[i]);
    *strrchr(found.gl_pathv[i], '/') = '\0';
    const cJSON *run;
    int runs = 0;
    cJSON_ArrayForEach(run, cJSON_GetObjectItem(json->root, "runs")) {
      check_run(run, found.gl_pathv[i]);
      runs++;
    }
    ck_assert_int_gt(runs, 0);
    tws_json_destroy(json);
  }
  globfree(&found);
  remove_folder();
}
END_TEST

int main(void) {
  Suite *suite = suite_create("measured_steps");
  TCase *tcase = tcase_create("steps");
  tcase_set_timeout(tcase, 240);
  tcase_add_test(tcase, simulated_as_measured);
  suite_add_tcase(suite, tcase);
  return run_suite(suite);
}
