#include "autotune/measure.h"

#include <math.h>
#include <string.h>

#include "autotune/correct.h"
#include "autotune/race.h"
#include "launch/launch.h"
#include "traces/measurements.h"

/* Number of candidates at the top of the corrected ranking that are run if they were not run before. */
enum { RUN_AGAIN = 3 };

typedef struct session {
  const tws_tune_request *request;
  const tws_tune_measuring *how;
  tws_tune_trials *trials;
  double started_s;
  int id; /* number of the next experiment */
} session;

/* Returns the measured score of a trial; 0: not measured. */
static double score_of(const session *s, const tws_tune_trial *trial) {
  tws_scored scored = trial->scored;
  scored.step_s = trial->step_s;
  return tws_goal_score(s->request->goal, &scored);
}

static double predicted_score(const session *s, const tws_tune_candidate *c) {
  const tws_scored scored = tws_candidate_scored(c);
  return tws_goal_score(s->request->goal, &scored);
}

double tws_tune_trial_throughput(const tws_tune_trial *trial) {
  return trial->step_s > 0 ? trial->samples / trial->step_s : 0;
}

void tws_tune_trials_free(tws_tune_trials *trials) {
  for (int i = 0; i < trials->count; i++) tws_experiment_free(&trials->all[i].experiment);
  tws_free(trials->all);
  *trials = (tws_tune_trials){.best = -1};
}

static int is_out_of_time(const session *s) {
  return s->how->budget_s > 0 && tws_clock_s() - s->started_s > s->how->budget_s;
}

static int find_trial(const tws_tune_trials *trials, const char *name) {
  for (int i = 0; i < trials->count; i++)
    if (strcmp(trials->all[i].name, name) == 0) return i;
  return -1;
}

/* ---- one trial ---- */

static void say(const session *s, const tws_tune_trial *trial) {
  const tws_experiment *e = &trial->experiment;
  if (e->outcome == TWS_OUTCOME_MEASURED)
    tws_log_write(s->how->log, TWS_LOG_INFO, "%s: %.4g s per step%s", trial->name, trial->step_s,
                  trial->reused ? ", measured by an earlier search" : "");
  else
    tws_log_write(s->how->log, TWS_LOG_WARNING, "%s: %s: %s", trial->name, tws_outcome_name(e->outcome), e->reason);
}

static tws_code run_once(const session *s, tws_tune_trial *trial, tws_error *err) {
  tws_job *job = NULL;
  tws_experiment *e = &trial->experiment;
  TWS_TRY(tws_job_derive(s->request->job, &trial->variant, &job, err));
  tws_code code = TWS_OK;
  if (e->outcome == TWS_OUTCOME_NONE) {
    code = tws_experiment_read(&s->how->setup, job, trial->name, e, err);
    trial->reused = e->outcome != TWS_OUTCOME_NONE;
    if (code == TWS_OK && !trial->reused) code = tws_experiment_run(&s->how->setup, job, trial->name, e, err);
  } else {
    code = tws_experiment_run(&s->how->setup, job, trial->name, e, err);
  }
  tws_job_destroy(job);
  if (code != TWS_OK) return code;
  tws_experiment_times(e, &trial->step_s, &trial->spread_s);
  /* a failed trial has no times, even if an earlier run of it succeeded */
  if (e->outcome != TWS_OUTCOME_MEASURED) trial->step_s = trial->spread_s = 0;
  say(s, trial);
  return TWS_OK;
}

static tws_code run_candidate(session *s, const tws_tune_candidate *c, tws_error *err) {
  tws_tune_trials *trials = s->trials;
  if (tws_reserve(&trials->all, &trials->capacity, (size_t)trials->count + 1, sizeof *trials->all) != 0)
    return tws_fail(err, TWS_MEMORY, NULL, "out of memory");
  tws_tune_trial *trial = &trials->all[trials->count++];
  *trial = (tws_tune_trial){.variant = c->variant, .samples = c->samples, .scored = tws_candidate_scored(c)};
  memcpy(trial->name, c->name, sizeof trial->name);
  trial->predicted_s = c->samples / tws_tune_throughput(c);
  TWS_TRY(tws_tune_write_experiment(c, s->request, s->how->folders, s->id++, err));
  return run_once(s, trial, err);
}

/* ---- first round: each trial that the tuner chooses runs once ---- */

static tws_code next_of(const session *s, const tws_tune_result *result, tws_trial_point *points, int *tried, int *next,
                        tws_error *err) {
  int count = 0;
  for (int i = 0; i < result->fits; i++)
    points[i] = (tws_trial_point){&result->candidates[i].variant, predicted_score(s, &result->candidates[i]), 0};
  for (int t = 0; t < s->trials->count; t++)
    for (int i = 0; i < result->fits; i++) {
      if (strcmp(result->candidates[i].name, s->trials->all[t].name) != 0) continue;
      points[i].measured = score_of(s, &s->trials->all[t]);
      tried[count++] = i;
    }
  return tws_next_trial(&s->how->rule, points, result->fits, tried, count, next, err);
}

static tws_code first_round(session *s, const tws_tune_result *result, tws_error *err) {
  tws_trial_point *points = tws_calloc((size_t)result->fits + 1, sizeof *points);
  int *tried = tws_calloc((size_t)result->fits + 1, sizeof *tried), next = 0;
  tws_code code = points && tried ? TWS_OK : tws_fail(err, TWS_MEMORY, NULL, "out of memory");
  while (code == TWS_OK && !is_out_of_time(s)) {
    code = next_of(s, result, points, tried, &next, err);
    if (code != TWS_OK || next < 0) break;
    tws_log_write(s->how->log, TWS_LOG_INFO, "trial %d of at most %d: %s", s->trials->count + 1, s->how->rule.trials,
                  result->candidates[next].name);
    code = run_candidate(s, &result->candidates[next], err);
  }
  tws_free(points);
  tws_free(tried);
  return code;
}

/* ---- correction of the profile ---- */

/* Returns 1 if a trial's times by kind are usable. If several ranks share a core, waiting for the core is counted as
 * waiting for collectives, and the split by kind is meaningless. */
static int tells_of_kinds(const tws_tune_trial *trial) {
  const int threads = trial->variant.threads > 0 ? trial->variant.threads : 1;
  return trial->step_s > 0 && trial->variant.ranks * threads <= tws_launch_cores();
}

static tws_code simulate_trial(const session *s, const tws_tune_trial *trial, double *kinds, double *step_s,
                               tws_error *err) {
  tws_job *job = NULL;
  TWS_TRY(tws_job_derive(s->request->job, &trial->variant, &job, err));
  const tws_code code = tws_simulated_kinds(job, s->request->sim, s->request->fidelity, kinds, step_s, err);
  tws_job_destroy(job);
  return code;
}

static double median_error(const tws_tune_trials *trials, int corrected) {
  double *errors = tws_calloc((size_t)trials->count + 1, sizeof *errors), median = 0;
  size_t n = 0;
  for (int i = 0; errors && i < trials->count; i++) {
    const tws_tune_trial *t = &trials->all[i];
    const double predicted = corrected ? t->corrected_s : t->predicted_s;
    if (t->step_s > 0 && predicted > 0) errors[n++] = fabs(predicted - t->step_s) / t->step_s;
  }
  if (n > 0) median = tws_sample_median(errors, n);
  tws_free(errors);
  return median;
}

static tws_code sum_kinds(const session *s, tws_kind_sums *sums, tws_error *err) {
  const tws_tune_trials *trials = s->trials;
  double kinds[TWS_EXPERIMENT_KINDS], step_s;
  for (int t = 0; t < trials->count; t++) {
    if (!tells_of_kinds(&trials->all[t])) continue;
    TWS_TRY(simulate_trial(s, &trials->all[t], kinds, &step_s, err));
    for (int i = 0; i < TWS_EXPERIMENT_KINDS; i++) {
      sums->simulated[i] += kinds[i];
      sums->measured[i] += trials->all[t].experiment.kind_s[i];
    }
  }
  return TWS_OK;
}

/* Corrects the profile. If the corrected profile predicts the trials worse than before, the correction is undone: other
 * load on the machine has then disturbed the traced step. */
static tws_code correct_profile(const session *s, tws_error *err) {
  tws_tune_trials *trials = s->trials;
  tws_kind_sums sums = {0};
  double kinds[TWS_EXPERIMENT_KINDS];
  TWS_TRY(sum_kinds(s, &sums, err));
  trials->corrected = tws_correction_of(&sums, &trials->correction);
  if (trials->corrected == 0) return TWS_OK;
  tws_job_correct_profile(s->request->job, &trials->correction);
  for (int t = 0; t < trials->count; t++)
    TWS_TRY(simulate_trial(s, &trials->all[t], kinds, &trials->all[t].corrected_s, err));
  if (median_error(trials, 1) < median_error(trials, 0)) {
    tws_log_write(s->how->log, TWS_LOG_INFO, "the profile is corrected by %d trials; searching again", trials->count);
    return TWS_OK;
  }
  trials->corrected = 0;
  trials->correction = (tws_profile_correction){0};
  tws_job_correct_profile(s->request->job, &trials->correction);
  for (int t = 0; t < trials->count; t++) trials->all[t].corrected_s = 0;
  tws_log_write(s->how->log, TWS_LOG_INFO, "the correction by the trials does not predict them better and is not used");
  return TWS_OK;
}

static tws_code rank_again(session *s, tws_tune_result **result, tws_error *err) {
  tws_tune_result *again;
  TWS_TRY(tws_tune(s->request, &again, err));
  tws_tune_result_destroy(*result);
  *result = again;
  TWS_TRY(tws_tune_order(s->request, again, err));
  for (int i = 0; i < again->fits && i < RUN_AGAIN && !is_out_of_time(s); i++) {
    const tws_tune_candidate *c = &again->candidates[i];
    if (find_trial(s->trials, c->name) >= 0) continue;
    tws_log_write(s->how->log, TWS_LOG_INFO, "number %d of the corrected ranking: %s", i + 1, c->name);
    TWS_TRY(run_candidate(s, c, err));
    s->trials->all[s->trials->count - 1].corrected_s = s->trials->all[s->trials->count - 1].predicted_s;
    s->trials->all[s->trials->count - 1].predicted_s = 0;
  }
  return TWS_OK;
}

/* ---- the whole measurement ---- */

static tws_code later_rounds(const session *s, tws_error *err) {
  const int count = s->trials->count;
  for (int round = 1; round < s->how->rounds; round++)
    for (int i = 0; i < count && !is_out_of_time(s); i++) {
      tws_tune_trial *trial = &s->trials->all[(i + round * 5) % count]; /* the order of trials differs in each round */
      if (trial->experiment.outcome != TWS_OUTCOME_MEASURED || trial->experiment.runs > round) continue;
      tws_log_write(s->how->log, TWS_LOG_INFO, "round %d of %d: %s", round + 1, s->how->rounds, trial->name);
      TWS_TRY(run_once(s, trial, err));
    }
  return TWS_OK;
}

/* Returns an entry of the race with the cost of each run of a trial, the reciprocal of its score by the search's
 * objective (smaller is better). `costs` has room for `most` runs. */
static tws_race_entry racer_of(const session *s, const tws_tune_trial *trial, double *costs, int most) {
  const tws_experiment *e = &trial->experiment;
  tws_tune_trial one = *trial;
  tws_race_entry racer = {.run_s = costs};
  for (size_t k = 0; e->outcome == TWS_OUTCOME_MEASURED && k < e->run_count && racer.runs < most; k++) {
    one.step_s = e->run_s[k];
    costs[racer.runs++] = 1 / score_of(s, &one);
  }
  return racer;
}

/* Repeats runs of the trials that may be as good as the fastest, until the race is decided. */
static tws_code race(const session *s, tws_error *err) {
  const int count = s->trials->count, most = s->how->rounds + s->how->race;
  tws_race_entry *racers = tws_calloc((size_t)count + 1, sizeof *racers);
  double *costs = tws_calloc((size_t)count * (size_t)most + 1, sizeof *costs);
  tws_code code = racers && costs ? TWS_OK : tws_fail(err, TWS_MEMORY, NULL, "out of memory");
  while (code == TWS_OK && !is_out_of_time(s)) {
    for (int i = 0; i < count; i++) racers[i] = racer_of(s, &s->trials->all[i], costs + (ptrdiff_t)i * most, most);
    int next;
    code = tws_race_next(racers, count, most, &next, err);
    if (code != TWS_OK || next < 0) break;
    tws_log_write(s->how->log, TWS_LOG_INFO, "run %d of %s, which may be the best", racers[next].runs + 1,
                  s->trials->all[next].name);
    code = run_once(s, &s->trials->all[next], err);
  }
  tws_free(racers);
  tws_free(costs);
  return code;
}

static void record_all(const session *s, tws_tune_result *result) {
  tws_tune_trials *trials = s->trials;
  trials->best = -1;
  for (int t = 0; t < trials->count; t++) {
    tws_tune_trial *trial = &trials->all[t];
    if (!(trial->step_s > 0)) continue;
    if (trials->best < 0 || score_of(s, trial) > score_of(s, &trials->all[trials->best])) trials->best = t;
    for (int i = 0; i < result->fits; i++)
      if (strcmp(result->candidates[i].name, trial->name) == 0) {
        result->candidates[i].measured_s = trial->step_s;
        result->candidates[i].measured_spread_s = trial->spread_s;
      }
  }
  trials->error_before = median_error(trials, 0);
  trials->error_after = median_error(trials, 1);
}

tws_code tws_tune_measure(const tws_tune_request *request, const tws_tune_measuring *how, tws_tune_result **result,
                          tws_tune_trials *out, tws_error *err) {
  *out = (tws_tune_trials){.best = -1};
  session s = {.request = request, .how = how, .trials = out, .started_s = tws_clock_s()};
  TWS_TRY(first_round(&s, *result, err));
  if (request->sim) TWS_TRY(correct_profile(&s, err));
  if (out->corrected > 0) TWS_TRY(rank_again(&s, result, err));
  TWS_TRY(later_rounds(&s, err));
  TWS_TRY(race(&s, err));
  record_all(&s, *result);
  return TWS_OK;
}

double tws_tune_trial_tokens_per_s(const tws_tune_request *request, const tws_tune_trial *trial) {
  return tws_tune_trial_throughput(trial) * (double)tws_job_sequence(request->job);
}

tws_tune_pick tws_tune_pick_of(const tws_tune_trials *trials) {
  tws_tune_pick p = {.best = trials->best >= 0 ? &trials->all[trials->best] : NULL};
  for (int i = 0; i < trials->count; i++) {
    const tws_tune_trial *t = &trials->all[i];
    if (!(t->step_s > 0)) continue;
    p.spread = fmax(p.spread, t->spread_s / t->step_s);
    p.measured++;
    if (t->predicted_s > 0 && (!p.pick || t->samples / t->predicted_s > p.pick->samples / p.pick->predicted_s))
      p.pick = t;
  }
  if (p.pick && p.best) p.share = tws_tune_trial_throughput(p.pick) / tws_tune_trial_throughput(p.best);
  return p;
}
