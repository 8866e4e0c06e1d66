/* ctest: sampled */
/* A profile rescaled by measurements of a site: one step, one product, one all-gather. */
#include <check.h>
#include <cjson/cJSON.h>
#include <math.h>

#include "job/measured.h"
#include "tests/command.h"
#include "tests/folder.h"
#include "tests/suite.h"
#include "validation/cases.h"

static tws_error err;
#define OK(call) ck_assert_msg((call) == TWS_OK, "%s (%s)", err.message, err.hint)

static double number(const cJSON *object, const char *section, const char *key) {
  const cJSON *in = cJSON_GetObjectItem(object, section), *item = cJSON_GetObjectItem(in, key);
  return cJSON_IsNumber(item) ? item->valuedouble : NAN;
}

static double step_of(const char *words) {
  command_result r =
      twinspeed("estimate -m llama-2-7b --cluster dgx-a100:2 --dtype bf16 --stage 3 -q --json %s", words);
  cJSON *json = cJSON_Parse(r.out);
  const double step = number(json, "time", "step_s");
  ck_assert_msg(step > 0, "%s: %s", words, r.err);
  cJSON_Delete(json);
  command_free(&r);
  return step;
}

/* With the measured step of a configuration, its prediction equals the measurement, and predictions of other
 * configurations change in the same direction. */
START_TEST(a_step_rescales) {
  const double before = step_of("--micro-batch 2"), other = step_of("--micro-batch 1");
  char words[128];
  snprintf(words, sizeof words, "--micro-batch 2 --measured step=%.6g", 1.2 * before);
  ck_assert_double_eq_tol(step_of(words) / (1.2 * before), 1, 0.01);
  snprintf(words, sizeof words, "--micro-batch 1 --measured step=%.6gms,micro-batch=2", 1200 * before);
  ck_assert_double_gt(step_of(words), 1.1 * other);
  ck_assert_double_lt(step_of(words), 1.35 * other);
}
END_TEST

/* The steps of three configurations on a site with known factors determine these factors, so that the fourth step is
 * predicted. */
START_TEST(steps_of_a_known_site) {
  static const double site[TWS_SCALE_COUNT] = {1.25, 1.1, 1.8}, none[TWS_SCALE_COUNT] = {0};
  tws_timed_job steps[3];
  tws_job *fourth;
  tws_estimate truth, estimate;
  tws_rescaling fitted;
  tws_job_spec spec = TWS_JOB_SPEC_DEFAULTS;
  spec.model = "llama-2-7b";
  spec.cluster = "dgx-a100:2";
  spec.dtype = "bf16";
  spec.stage = 3;
  for (int i = 0; i < 4; i++) {
    tws_job **job = i < 3 ? &steps[i].job : &fourth;
    spec.micro_batch = i == 3 ? 4 : i + 1;
    spec.sequence = i == 1 ? 1024 : i == 3 ? 512 : 4096;
    OK(tws_job_load(&spec, job, &err));
    tws_job_rescale_profile(*job, site);
    OK(tws_job_estimate(*job, &truth, NULL, &err));
    if (i < 3) steps[i].seconds = truth.step_s;
  }
  OK(tws_measured_fit(steps, 3, none, &fitted, &err));
  ck_assert_int_eq(fitted.steps, 3);
  tws_job_rescale_profile(fourth, fitted.factor);
  OK(tws_job_estimate(fourth, &estimate, NULL, &err));
  ck_assert_double_eq_tol(estimate.step_s / truth.step_s, 1, 0.02);
  for (int i = 0; i < 3; i++) tws_job_destroy(steps[i].job);
  tws_job_destroy(fourth);
}
END_TEST

/* Measured rates of a product and of an all-gather determine their factors exactly. */
START_TEST(rates_rescale) {
  command_result r = twinspeed(
      "estimate -m llama-2-7b --cluster dgx-a100:2 --dtype bf16 --stage 3 --micro-batch 1 -q "
      "--json --measured product=200TFLOP/s --measured all-gather=150GB/s");
  cJSON *json = cJSON_Parse(r.out);
  const cJSON *measured = cJSON_GetObjectItem(json, "measured");
  tws_profile *profile;
  tws_cluster cluster;
  OK(tws_profile_load("a100-80gb", &profile, &err));
  OK(tws_cluster_load("dgx-a100:2", &cluster, &err));
  const double rate = tws_profile_product_rate(profile, 8192, 8192, 8192, TWS_BF16, 1, 1);
  const double gib = 1073741824.0;
  const double gather = tws_collective_seconds(&cluster, profile, TWS_COLLECTIVE_ALL_GATHER, 8, 8, gib, 1);
  ck_assert_msg(measured != NULL, "%s%s", r.out, r.err);
  ck_assert_double_eq_tol(cJSON_GetObjectItem(measured, "products")->valuedouble, rate / 200e12, 1e-6);
  ck_assert_double_eq_tol(cJSON_GetObjectItem(measured, "links")->valuedouble, gib * 7 / 8 / gather / 150e9, 1e-6);
  ck_assert_double_eq(cJSON_GetObjectItem(measured, "memory")->valuedouble, 1);
  tws_profile_destroy(profile);
  cJSON_Delete(json);
  command_free(&r);
}
END_TEST

START_TEST(refusals) {
  static const struct {
    const char *words, *message;
    int status;
  } cases[] = {{"step=0.0001", "is faster than physical", 3},
               {"step=9000", "is no measurement of", 3},
               {"product=900TFLOP/s", "product=9e+14 is faster than physical", 3},
               {"all-gather=900GB/s", "faster than physical", 3},
               {"memory=-3GB/s", "is no positive number", 2},
               {"step=3h", "is no positive number", 2},
               {"step=1,sequence=5", "unknown option \"sequence\" of a step", 2},
               {"step=1,seq", "is not OPTION=VALUE", 2},
               {"stepp=1", "is no kind of measurement", 2},
               {"nothing", "is no measurement", 2}};
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    command_result r = twinspeed("estimate -m gpt2 --dtype bf16 --cluster dgx-a100 --measured %s", cases[i].words);
    ck_assert_msg(r.status == cases[i].status && strstr(r.err, cases[i].message) && strstr(r.err, "\nhint: "),
                  "%s: %d: %s", cases[i].words, r.status, r.err);
    command_free(&r);
  }
}
END_TEST

/* Every planning verb takes it. */
START_TEST(of_all_planning_verbs) {
  static const char *const verbs[] = {"estimate", "check", "tune -b 8 --force -o"};
  const int simulates = access(TWS_BUILD_DIR "/twinspeed_sim.so", R_OK) == 0; /* which tuning needs */
  for (int i = 0; i < (simulates ? 3 : 2); i++) {
    command_result r = twinspeed("%s %s -m gpt2 --dtype bf16 --seq 512 --cluster a100 --measured product=150TFLOP/s",
                                 verbs[i], i == 2 ? in_folder("tuned") : "");
    ck_assert_msg(r.status == 0 && strstr(r.err, "by 1 measurement, products take"), "%s: %s", verbs[i], r.err);
    command_free(&r);
  }
}
END_TEST

/* Runs of Megatron-Core on eight B200: each run alone, as the only measurement, predicts the others within limits, and on
 * average better than without a measurement. A group whose runs are predicted within NOISE without one may get worse:
 * one run's own deviation is then added to the others'. */
START_TEST(one_run_predicts_the_others) {
  static const struct {
    const char *group;
    double most;
  } limits[] = {{"simumax-b200-dense", 5}, {"simumax-b200-moe", 8}, {"simumax-b200-cp", 7}};
  static const double NOISE = 3; /* percent */
  double gained = 0;
  tws_cases *cases;
  tws_progress silent = {0};
  tws_case_choices choices;
  OK(tws_cases_load(TWS_SOURCE_DIR "/tests/golden/measured_b200.json", &cases, &err));
  OK(tws_cases_rescale(cases, NULL, 0, &silent, &choices, &err));
  ck_assert_int_eq(choices.group_count, 3);
  for (int g = 0; g < choices.group_count; g++)
    for (int i = 0; i < 3; i++)
      if (strcmp(choices.groups[g].group, limits[i].group) == 0) {
        ck_assert_msg(choices.groups[g].after <= limits[i].most, "%s: %.1f %%", limits[i].group,
                      choices.groups[g].after);
        if (choices.groups[g].before > NOISE) ck_assert_double_gt(choices.groups[g].before, choices.groups[g].after);
        gained += choices.groups[g].before - choices.groups[g].after;
      }
  ck_assert_double_gt(gained, 0);
  for (int i = 0; i < choices.count; i++) ck_assert_double_le(choices.choices[i].own, NOISE);
  tws_case_choices_free(&choices);
  tws_cases_destroy(cases);
}
END_TEST

int main(void) {
  Suite *suite = suite_create("measured");
  TCase *c = tcase_create("measured");
  tcase_set_timeout(c, 120);
  tcase_add_unchecked_fixture(c, make_folder, remove_folder);
  tcase_add_test(c, a_step_rescales);
  tcase_add_test(c, steps_of_a_known_site);
  tcase_add_test(c, rates_rescale);
  tcase_add_test(c, refusals);
  tcase_add_test(c, of_all_planning_verbs);
  tcase_add_test(c, one_run_predicts_the_others);
  suite_add_tcase(suite, c);
  return run_suite(suite);
}
