/* The choice of the next configuration to run, and corrections of a profile by runs, with known results. */
#include <check.h>
#include <gsl/gsl_randist.h>
#include <gsl/gsl_rng.h>
#include <math.h>
#include <stdlib.h>

#include "autotune/correct.h"
#include "autotune/next_trial.h"
#include "autotune/race.h"
#include "sim_module.h"
#include "suite.h"
#include "traces/measurements.h"

static tws_error err;

enum { STAGES = 4, MICROS = 8, POINTS = STAGES * MICROS };
static tws_variant variants[POINTS];
static tws_trial_point points[POINTS];
static double truth[POINTS];

/* Makes points whose predictions ignore a slowdown of large micro-batches at stages 2 and 3, so that the best
 * prediction is wrong. */
static void make_points(void) {
  for (int i = 0; i < POINTS; i++) {
    const int stage = i / MICROS, micro = i % MICROS;
    variants[i] = (tws_variant){.stage = stage, .ranks = 8, .micro = (int64_t)1 << micro, .accumulation = 1};
    const double predicted = 100 + 4 * stage + 3 * micro;
    truth[i] = 0.8 * predicted * (stage >= 2 ? 1 - 0.03 * micro : 1);
    points[i] = (tws_trial_point){&variants[i], predicted, 0};
  }
}

/* Runs trials until the rule ends the search; returns their number. */
static int run(const tws_trial_rule *rule, int *tried) {
  int count = 0, next;
  make_points();
  for (;;) {
    ck_assert_msg(tws_next_trial(rule, points, POINTS, tried, count, &next, &err) == TWS_OK, "%s", err.message);
    if (next < 0) return count;
    for (int i = 0; i < count; i++) ck_assert_int_ne(tried[i], next);
    points[next].measured = truth[next];
    tried[count++] = next;
  }
}

START_TEST(orders) {
  int tried[POINTS], again[POINTS], sum = 0;
  tws_trial_rule rule = {.tuner = TWS_TUNER_GRIDSEARCH, .trials = 1000};
  ck_assert_int_eq(run(&rule, tried), POINTS);
  for (int i = 0; i < POINTS; i++) ck_assert_int_eq(tried[i], i);
  rule = (tws_trial_rule){.tuner = TWS_TUNER_RANDOM, .trials = 1000, .seed = 3};
  ck_assert_int_eq(run(&rule, tried), POINTS);
  ck_assert_int_eq(run(&rule, again), POINTS);
  ck_assert_mem_eq(tried, again, sizeof tried);
  rule.seed = 4;
  run(&rule, again);
  for (int i = 0; i < POINTS; i++) sum += tried[i] == again[i];
  ck_assert_int_lt(sum, POINTS / 2);
  rule.trials = 5;
  ck_assert_int_eq(run(&rule, tried), 5);
}
END_TEST

/* Early stopping ends the search 3 trials after the best one: in the order of the space, trials improve up to the end
 * of the first stage. */
START_TEST(stops_early) {
  int tried[POINTS];
  const tws_trial_rule rule = {.tuner = TWS_TUNER_GRIDSEARCH, .trials = 1000, .early_stopping = 3};
  ck_assert_int_eq(run(&rule, tried), MICROS + 3);
}
END_TEST

START_TEST(model_learns_the_residuals_of_predictions) {
  int tried[POINTS], best = 0, found = -1;
  const tws_trial_rule rule = {.trials = 12};
  ck_assert_int_eq(run(&rule, tried), 12);
  ck_assert_int_eq(tried[0], POINTS - 1); /* the best prediction, which is not a good point */
  for (int i = 0; i < POINTS; i++)
    if (truth[i] > truth[best]) best = i;
  for (int i = 0; i < 12; i++)
    if (tried[i] == best) found = i;
  ck_assert_int_ge(found, 1);
  ck_assert_int_lt(truth[POINTS - 1] / truth[best] < 0.95 ? 0 : 1, 1);
}
END_TEST

/* A failed trial is not repeated, and similar points are tried late. */
START_TEST(failures_count_as_slow) {
  const tws_trial_rule rule = {.trials = 100};
  int tried[2] = {POINTS - 1, 0}, next;
  make_points();
  points[0].measured = truth[0];
  ck_assert_int_eq(tws_next_trial(&rule, points, POINTS, tried, 2, &next, &err), TWS_OK);
  ck_assert_int_lt(variants[next].stage, 3);
  ck_assert_int_eq(tws_next_trial(&rule, points, POINTS, tried, 1, &next, &err), TWS_OK); /* nothing is known yet */
  ck_assert_int_eq(next, POINTS - 2);
}
END_TEST

/* ---- races ---- */

enum { RACERS = 9, MOST_RUNS = 8 };

static int next_of(const tws_race_entry *racers, int count, int most) {
  int next;
  ck_assert_int_eq(tws_race_next(racers, count, most, &next, &err), TWS_OK);
  return next;
}

/* In a race with differences of up to 4 %, noise of 2 %, and every fifth run disturbed by up to 40 %, the winner is
 * nearly always close to the fastest, and the race needs fewer runs than running all candidates to the end. */
START_TEST(race_finds_the_fastest) {
  int good = 0, runs = 0;
  gsl_rng *random = gsl_rng_alloc(gsl_rng_mt19937);
  for (int f = 0; f < 40; f++) {
    double true_s[RACERS], run_s[RACERS][MOST_RUNS], low[RACERS];
    tws_race_entry racers[RACERS];
    for (int i = 0; i < RACERS; i++) {
      true_s[i] = i == 0 ? 1 : 1 + 0.001 * f + 0.02 * i * gsl_rng_uniform(random);
      racers[i] = (tws_race_entry){run_s[i], 2};
      for (int k = 0; k < MOST_RUNS; k++)
        run_s[i][k] = true_s[i] * exp(gsl_ran_gaussian(random, 0.02)) *
                      (gsl_rng_uniform(random) < 0.2 ? 1 + 0.4 * gsl_rng_uniform(random) : 1);
    }
    for (int next; (next = next_of(racers, RACERS, MOST_RUNS)) >= 0;) {
      ck_assert_int_lt(racers[next].runs, MOST_RUNS);
      racers[next].runs++;
    }
    int winner = 0;
    for (int i = 0; i < RACERS; i++) {
      runs += racers[i].runs;
      low[i] = tws_sample_low(run_s[i], (size_t)racers[i].runs);
      if (low[i] < low[winner]) winner = i;
    }
    good += true_s[winner] < 1.03;
  }
  gsl_rng_free(random);
  ck_assert_msg(good >= 36, "%d of 40", good);
  ck_assert_msg(runs < 40 * RACERS * MOST_RUNS * 3 / 4, "%d runs", runs);
}
END_TEST

START_TEST(race_ends) {
  const double fast[] = {1, 1.01, 1.02}, slow[] = {2, 2.01, 2.02};
  const tws_race_entry apart[] = {{fast, 2}, {slow, 2}}, once[] = {{fast, 1}, {fast + 1, 1}},
                       failed[] = {{fast, 3}, {slow, 0}};
  const tws_race_entry close[] = {{fast, 3}, {slow, 2}, {fast, 2}}, full[] = {{fast, 3}, {fast, 3}};
  ck_assert_int_eq(next_of(apart, 2, 9), -1);
  ck_assert_int_eq(next_of(once, 2, 9), -1);
  ck_assert_int_eq(next_of(failed, 2, 9), -1);
  ck_assert_int_eq(next_of(close, 3, 9), 2);
  ck_assert_int_eq(next_of(full, 2, 3), -1);
}
END_TEST

/* Kinds of work that were simulated at half of their real time are predicted exactly once the profile is corrected. */
START_TEST(profile_is_corrected) {
  tws_job_spec spec = TWS_JOB_SPEC_DEFAULTS;
  tws_job *job;
  spec.model = "tiny-gpt2";
  spec.cluster = "dgx-a100";
  spec.ranks = 2;
  spec.micro_batch = 2;
  spec.sequence = 32;
  ck_assert_msg(tws_job_load(&spec, &job, &err) == TWS_OK, "%s", err.message);
  double before[TWS_EXPERIMENT_KINDS], after[TWS_EXPERIMENT_KINDS], step_s[2];
  ck_assert_msg(tws_simulated_kinds(job, load_simulator(), TWS_FIDELITY_ANALYTIC, before, &step_s[0], &err) == TWS_OK,
                "%s", err.message);
  tws_kind_sums sums = {0};
  for (int i = 0; i < TWS_EXPERIMENT_KINDS; i++) {
    sums.simulated[i] = before[i];
    sums.measured[i] = i == TWS_KERNEL_LINEAR || i >= TWS_KERNEL_COUNT ? 2 * before[i] : before[i];
  }
  tws_profile_correction correction;
  ck_assert_int_gt(tws_correction_of(&sums, &correction), 3);
  ck_assert_double_eq_tol(correction.kernel[TWS_KERNEL_LINEAR], 2, 1e-12);
  tws_job_correct_profile(job, &correction);
  ck_assert_int_eq(tws_simulated_kinds(job, load_simulator(), TWS_FIDELITY_ANALYTIC, after, &step_s[1], &err), TWS_OK);
  for (int i = 0; i < TWS_KERNEL_COUNT; i++)
    if (sums.measured[i] > 0) ck_assert_double_eq_tol(after[i] / sums.measured[i], 1, 1e-9);
  ck_assert_double_gt(step_s[1], step_s[0]);
  tws_job_correct_profile(job, &(tws_profile_correction){0});
  ck_assert_int_eq(tws_simulated_kinds(job, load_simulator(), TWS_FIDELITY_ANALYTIC, after, &step_s[1], &err), TWS_OK);
  ck_assert_double_eq(step_s[1], step_s[0]);
  tws_job_destroy(job);
}
END_TEST

int main(void) {
  Suite *suite = suite_create("next_trial");
  TCase *tcase = tcase_create("next_trial");
  tcase_add_test(tcase, orders);
  tcase_add_test(tcase, stops_early);
  tcase_add_test(tcase, model_learns_the_residuals_of_predictions);
  tcase_add_test(tcase, failures_count_as_slow);
  tcase_add_test(tcase, race_finds_the_fastest);
  tcase_add_test(tcase, race_ends);
  tcase_add_test(tcase, profile_is_corrected);
  suite_add_tcase(suite, tcase);
  return run_suite(suite);
}
