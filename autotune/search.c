/* The search: bounds exclude points, plans select the best of the others, and simulations rank these. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "autotune/worker_pool.h"
#include "autotune/frontier.h"
#include "base/output_file.h"
#include "base/random.h"

enum { PATH = 4096 };

tws_swept_outcome tws_tune_swept_outcome(const tws_tune_swept *s, int way) {
  const tws_swept_outcome all[TWS_SWEPT_OUTCOMES] = {
      {s->illegal, "illegal: the division, batch or combination is not possible"},
      {s->equal, "equal to another configuration: a knob has no effect"},
      {s->refused, "refused by the plan"},
      {s->too_large, "too large for the device, its host or disk"},
      {s->ruled_out, "no better than the best, by their lower bounds"},
      {s->planned, "planned"},
      {s->left, "not evaluated within the budget"}};
  return all[way];
}

int64_t tws_tune_points(const tws_tune_result *result) {
  return result->swept.considered - result->swept.illegal - result->swept.equal;
}

/* ---- memory of the states ---- */

double tws_tune_least_devices(const tws_tune_request *request) {
  const tws_variant one = {.ranks = 1,
                           .micro = 1,
                           .accumulation = 1,
                           .pipeline = 1,
                           .tensor = 1,
                           .sequence = 1,
                           .schedule = {TWS_PIPELINE_1F1B, 1}};
  const tws_capacity capacity = tws_capacity_of(&request->job->machine, 1, request->memory_bytes);
  tws_bound_bytes state;
  tws_job *job;
  if (capacity.host || tws_job_derive(request->job, &one, &job, NULL) != TWS_OK) return 1;
  const tws_plan_request plan = tws_job_request(job, 0);
  const tws_code code = tws_bound_state(&plan, &state, NULL);
  tws_job_destroy(job);
  return code == TWS_OK ? (double)state.end.tier[TWS_TIER_DEVICE].live_bytes / capacity.rank_device : 1;
}

int tws_tune_needs_axes(const tws_tune_request *request) {
  return tws_tune_least_devices(request) > 1;
}

/* ---- simulation ---- */

static tws_code simulate_candidate(const tws_tune_request *request, tws_tune_candidate *c, tws_error *err) {
  tws_job *job = NULL;
  tws_simulation simulation = {0};
  tws_code code = tws_job_derive(request->job, &c->variant, &job, err);
  if (code == TWS_OK) {
    const tws_simulation_request of_job = {
        .sim = request->sim, .fidelity = request->fidelity, .every_up_to = tws_job_simulates_every(job)};
    code = tws_job_simulate(job, &of_job, &simulation, err);
  }
  c->simulation = simulation.result;
  tws_simulation_free(&simulation);
  tws_job_destroy(job);
  if (code != TWS_OK) return tws_fail_in(err, code, "%s", c->name);
  c->simulated_s = c->simulation.step_s;
  return TWS_OK;
}

static int wanted_of(const tws_tune_request *request) {
  return request->trials > 0 ? request->trials : TWS_TUNE_TRIALS;
}

/* Returns the index, below `fits`, of the candidate that the tuner simulates as number `trial` (from 0 on). */
static int trial_index(const tws_tune_request *request, int fits, int trial) {
  if (request->tuner == TWS_TUNER_RANDOM)
    return (int)tws_random_permute(request->seed, (uint64_t)fits, (uint64_t)trial);
  return trial;
}

typedef struct trials {
  const tws_tune_request *request;
  tws_tune_result *result;
  int best;
  double best_throughput;
} trials;

static tws_code simulate_trial(void *user, int trial, void *answer, tws_error *err) {
  const trials *t = user;
  tws_tune_candidate *c = answer;
  *c = t->result->candidates[trial_index(t->request, t->result->fits, trial)];
  return simulate_candidate(t->request, c, err);
}

static tws_code read_trial(void *user, int trial, const void *answer, int *stop, tws_error *err) {
  trials *t = user;
  tws_tune_candidate *c = &t->result->candidates[trial_index(t->request, t->result->fits, trial)];
  (void)err;
  memcpy(c, answer, sizeof *c);
  c->estimate.path.bottleneck = c->estimate.path.text;
  t->result->simulated += c->simulated_s > 0;
  if (tws_tune_throughput(c) > t->best_throughput) {
    t->best_throughput = tws_tune_throughput(c);
    t->best = trial;
  }
  if (t->request->progress) tws_progress_update(t->request->progress, trial + 1);
  *stop = t->request->early_stopping > 0 && trial + 1 >= t->best + 1 + t->request->early_stopping;
  return TWS_OK;
}

static tws_code simulate_best(const tws_tune_request *request, tws_tune_result *result, int workers, tws_error *err) {
  const int wanted = wanted_of(request), count = wanted < result->fits ? wanted : result->fits;
  trials t = {.request = request, .result = result, .best = -1};
  if (request->progress) tws_progress_begin(request->progress, "simulating", count);
  const tws_worker_pool_list list = {count, sizeof(tws_tune_candidate), simulate_trial, read_trial, &t, 1};
  const tws_code code = tws_worker_pool_process(&list, workers, &result->swept.simulate_cpu_s, err);
  if (request->progress) tws_progress_end(request->progress);
  return code;
}

/* ---- the result ---- */

static int by_estimate(const void *left, const void *right) {
  const tws_tune_candidate *a = left, *b = right;
  const double x = a->samples / a->estimate.step_s, y = b->samples / b->estimate.step_s;
  if (x != y) return x > y ? -1 : 1;
  if (a->needed_bytes != b->needed_bytes) return a->needed_bytes < b->needed_bytes ? -1 : 1;
  return strcmp(a->name, b->name);
}

static int by_number(const void *left, const void *right) {
  const tws_tune_candidate *a = left, *b = right;
  return a->number < b->number ? -1 : a->number > b->number;
}

static int by_result(const void *left, const void *right) {
  const tws_tune_candidate *a = left, *b = right;
  const int simulated_a = a->simulated_s > 0, simulated_b = b->simulated_s > 0;
  if (simulated_a != simulated_b) return simulated_b - simulated_a;
  if (!simulated_a) return by_estimate(left, right);
  const double x = tws_tune_throughput(a), y = tws_tune_throughput(b);
  return x != y ? (x > y ? -1 : 1) : by_estimate(left, right);
}

static int by_count(const void *left, const void *right) {
  const tws_tune_rejection *a = left, *b = right;
  return a->count != b->count ? (b->count > a->count ? 1 : -1) : strcmp(a->reason, b->reason);
}

static void find_smallest(tws_tune_result *result) {
  result->smallest = -1;
  for (int i = 0; i < result->count && result->fits == 0; i++) {
    const tws_tune_candidate *c = &result->candidates[i];
    if (c->verdict == TWS_TUNE_NOT_SUPPORTED || c->implied) continue;
    if (result->smallest >= 0) {
      const tws_tune_candidate *s = &result->candidates[result->smallest];
      if (s->needed_bytes - s->available_bytes <= c->needed_bytes - c->available_bytes) continue;
    }
    result->smallest = i;
  }
}

static tws_code fill_rejections(const tws_tally *tally, tws_tune_result *result, tws_error *err) {
  result->rejections = tws_calloc((size_t)tally->reason_count + 1, sizeof *result->rejections);
  if (!result->rejections) return tws_fail(err, TWS_MEMORY, NULL, "no memory for the list of rejections");
  memcpy(result->rejections, tally->reasons, (size_t)tally->reason_count * sizeof *result->rejections);
  result->rejection_count = tally->reason_count;
  qsort(result->rejections, (size_t)result->rejection_count, sizeof *result->rejections, by_count);
  return TWS_OK;
}

/* Copies the best candidates to the result, followed by those that do not fit: all if every point is listed, or, if
 * nothing fits, those closest to fitting. */
static tws_code fill_candidates(tws_search *s, tws_tune_result *result, tws_error *err) {
  const int fits = s->every || s->fit_count < s->wanted ? s->fit_count : s->wanted;
  const int rejects = s->every || fits == 0 ? s->reject_count : 0;
  result->candidates = tws_calloc((size_t)(fits + rejects) + 1, sizeof *result->candidates);
  if (!result->candidates) return tws_fail(err, TWS_MEMORY, NULL, "no memory for the candidates");
  if (fits) memcpy(result->candidates, s->fits, (size_t)fits * sizeof *s->fits);
  if (rejects) memcpy(result->candidates + fits, s->rejects, (size_t)rejects * sizeof *s->rejects);
  for (int i = 0; i < fits + rejects; i++) {
    tws_estimate *e = &result->candidates[i].estimate;
    if (e->path.bottleneck) e->path.bottleneck = e->path.text;
  }
  result->count = fits + rejects;
  result->fits = fits;
  result->every = s->every;
  qsort(result->candidates, (size_t)fits, sizeof *result->candidates,
        s->request->tuner == TWS_TUNER_MODEL_BASED ? by_estimate : by_number);
  return TWS_OK;
}

static void fill_swept(const tws_search *s, tws_tune_result *result) {
  tws_tune_swept *w = &result->swept;
  w->considered =
      s->every ? s->tally->refused + s->tally->too_large + s->tally->equal + w->left + s->fit_count : s->points->points;
  w->illegal = s->tally->illegal;
  w->equal = s->tally->equal;
  w->refused = s->tally->refused;
  w->too_large = s->tally->too_large;
  w->planned = s->fit_count;
  if (!s->every)
    w->left = w->considered - w->illegal - w->equal - w->refused - w->too_large - w->ruled_out - w->planned;
  const double best = s->fit_count ? tws_tune_score(s->request, &s->fits[0]) : 0;
  const int seen = s->every || s->tally->considered == s->points->points; /* all divisions were examined */
  const int known = seen && best > 0 && s->left_score < 1e299 && s->request->tuner == TWS_TUNER_MODEL_BASED;
  w->left_better = w->left == 0 ? 0 : known ? s->left_score / best - 1 : -1;
  if (known && w->left_better < 0) w->left_better = 0;
}

/* ---- parts ---- */

static void state_path(const tws_tune_request *request, int part, char *path) {
  if (part)
    snprintf(path, PATH, "%.4000s.%d", request->state, part);
  else
    snprintf(path, PATH, "%.4000s", request->state);
}

/* Writes the results of this process's part of the search for the process that merges all parts. */
static tws_code end_part(const tws_search *s, tws_error *err) {
  tws_state_end *end = tws_calloc(1, sizeof *end);
  if (!end) return tws_fail(err, TWS_MEMORY, NULL, "no memory for the search");
  end->tally = *s->tally;
  end->swept = *s->swept;
  for (int i = 0; i < s->fit_count && i < s->wanted && end->count < TWS_STATE_PLANS; i++)
    end->best[end->count++] = s->fits[i].number;
  end->swept.planned = s->fit_count;
  tws_search_state_end(s->state, end);
  tws_free(end);
  return TWS_OK;
}

static tws_code add_found(tws_search *s, const tws_search_state *other, const tws_state_end *end, tws_error *err) {
  for (int i = 0; i < end->count; i++) {
    const tws_variant v = tws_points_variant(s->points, end->best[i]);
    tws_tune_candidate c = tws_tune_candidate_of(&v);
    if (!tws_search_state_find(other, end->best[i], 1, &c)) TWS_TRY(tws_tune_estimate(s->request, &c, err));
    c.number = end->best[i];
    if (tws_reserve(&s->fits, &s->fit_capacity, (size_t)s->fit_count + 1, sizeof *s->fits))
      return tws_fail(err, TWS_MEMORY, NULL, "no memory for the candidates");
    s->fits[s->fit_count++] = c;
  }
  /* the other process reports only its best plans; the points of its other plans count as ruled out */
  s->swept->ruled_out += end->swept.ruled_out + end->swept.planned - end->count;
  s->swept->bounds += end->swept.bounds;
  s->swept->plans += end->swept.plans;
  tws_tally_add(s->tally, &end->tally);
  return TWS_OK;
}

/* Waits until the process of another part of the search has finished, and adds its results. If such a process dies, the
 * launcher that started all of them terminates the others. */
static tws_code add_part(tws_search *s, int part, tws_state_end *end, tws_error *err) {
  char path[PATH];
  tws_search_state other;
  int ready = 0;
  state_path(s->request, part, path);
  while (!ready) {
    TWS_TRY(tws_search_state_open_part(s->points, path, &other, end, &ready, err));
    if (!ready) usleep(20000);
  }
  const tws_code code = add_found(s, &other, end, err);
  tws_search_state_close(&other);
  return code;
}

static tws_code gather_parts(tws_search *s, tws_error *err) {
  tws_state_end *end = tws_calloc(1, sizeof *end);
  tws_code code = end ? TWS_OK : tws_fail(err, TWS_MEMORY, NULL, "no memory for the search");
  const int own = s->fit_count < s->wanted ? s->fit_count : s->wanted;
  s->swept->ruled_out += s->fit_count - own;
  s->fit_count = own;
  for (int part = 1; part < s->request->parts && code == TWS_OK; part++) code = add_part(s, part, end, err);
  if (code == TWS_OK && s->fit_count > 1) qsort(s->fits, (size_t)s->fit_count, sizeof *s->fits, by_estimate);
  tws_free(end);
  return code;
}

/* ---- the search ---- */

static tws_code look_at_divisions(tws_search *s, double started_s, tws_divisions *divisions, tws_error *err) {
  const tws_tune_request *request = s->request;
  TWS_TRY(tws_divisions_open(s->points, s->state->divisions, divisions, err));
  s->divisions = divisions;
  /* The first half of the time limit is for bounds of divisions, the second for plans of the best divisions. */
  const double until_s = request->budget_s > 0 ? started_s + request->budget_s / 2 : 0;
  return tws_divisions_look(divisions, s->workers, until_s, s->tally, &s->swept->search_cpu_s, err);
}

static tws_code search_points(tws_search *s, tws_tune_result *result, tws_error *err) {
  const tws_tune_request *request = s->request;
  const double started_s = tws_clock_s();
  tws_divisions divisions = {.count = 0};
  s->until_s = request->budget_s > 0 ? started_s + request->budget_s : 0;
  tws_code code = s->every ? TWS_OK : look_at_divisions(s, started_s, &divisions, err);
  const double looked_s = tws_clock_s();
  if (code == TWS_OK) code = tws_frontier_search(s, err);
  if (code == TWS_OK && !s->every && request->parts > 1)
    code = request->part > 0 ? end_part(s, err) : gather_parts(s, err);
  if (code == TWS_OK && s->fit_count == 0 && request->part == 0 && !(s->until_s > 0))
    code = tws_frontier_plan_closest(s, err);
  s->swept->search_s = looked_s - started_s;
  s->swept->plan_s = tws_clock_s() - looked_s;
  tws_divisions_close(&divisions);
  if (code == TWS_OK) code = fill_candidates(s, result, err);
  if (code == TWS_OK) fill_swept(s, result);
  return code == TWS_OK ? fill_rejections(s->tally, result, err) : code;
}

static tws_code search_space(const tws_points *points, tws_tune_result *result, tws_error *err) {
  const tws_tune_request *request = points->request;
  tws_search_state state;
  char path[PATH];
  tws_tally *tally = tws_calloc(1, sizeof *tally);
  if (!tally) return tws_fail(err, TWS_MEMORY, NULL, "no memory for the search");
  const int64_t few = request->list_up_to ? request->list_up_to : TWS_TUNE_FEW;
  const int64_t own = points->listed ? points->points : tws_points_count_distinct(points, few > 0 ? few + 1 : 1);
  tws_search s = {.request = request,
                  .points = points,
                  .state = &state,
                  .wanted = wanted_of(request),
                  .every = points->listed || own <= few,
                  .workers = tws_worker_pool_size(request->workers),
                  .tally = tally,
                  .swept = &result->swept};
  tws_code code = own > 0 ? TWS_OK : tws_points_explain_none(points, err);
  /* a killed search of a small space is repeated, so its state is not stored */
  const int keeps = request->state && !s.every;
  if (keeps) state_path(request, request->part, path);
  if (code == TWS_OK) code = tws_search_state_open(points, keeps ? path : NULL, request->resume, &state, err);
  if (code == TWS_OK) {
    if (!s.every || request->part == 0) code = search_points(&s, result, err);
    tws_search_state_close(&state);
  }
  tws_free(s.fits);
  tws_free(s.rejects);
  tws_free(tally);
  return code;
}

static tws_code search_and_simulate(const tws_points *points, tws_tune_result *result, tws_error *err) {
  const tws_tune_request *request = points->request;
  const double started_s = tws_clock_s();
  result->smallest = -1;
  TWS_TRY(search_space(points, result, err));
  const double estimated_s = tws_clock_s();
  result->estimate_s = estimated_s - started_s;
  if (request->part > 0) return TWS_OK;
  if (request->sim) TWS_TRY(simulate_best(request, result, tws_worker_pool_size(request->workers), err));
  result->simulate_s = tws_clock_s() - estimated_s;
  qsort(result->candidates, (size_t)result->fits, sizeof *result->candidates, by_result);
  for (int i = 0; i < result->fits; i++)
    result->candidates[i].estimate.path.bottleneck = result->candidates[i].estimate.path.text;
  find_smallest(result);
  return TWS_OK;
}

tws_code tws_tune(const tws_tune_request *request, tws_tune_result **out, tws_error *err) {
  tws_points points;
  tws_code code = tws_points_fill(request, &points, err);
  tws_tune_result *result = code == TWS_OK ? tws_calloc(1, sizeof *result) : NULL;
  if (code == TWS_OK && !result) code = tws_fail(err, TWS_MEMORY, NULL, "no memory for the search");
  if (code == TWS_OK) code = search_and_simulate(&points, result, err);
  tws_points_free(&points);
  if (code != TWS_OK) {
    tws_tune_result_destroy(result);
    return code;
  }
  *out = result;
  return TWS_OK;
}

void tws_tune_forget(const tws_tune_request *request) {
  char path[PATH];
  for (int part = 0; request->state && part < (request->parts > 1 ? request->parts : 1); part++) {
    state_path(request, part, path);
    tws_remove_file(path);
  }
}

void tws_tune_result_destroy(tws_tune_result *result) {
  if (!result) return;
  tws_free(result->candidates);
  tws_free(result->rejections);
  tws_free(result);
}
