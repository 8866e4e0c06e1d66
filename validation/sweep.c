#include "validation/sweep.h"

#include <math.h>
#include <string.h>

#include "base/failure.h"
#include "launch/launch.h"

/* ---- choice of the configurations ---- */

static int64_t divisor_up_to(int64_t n, int64_t limit) {
  int64_t best = 1;
  for (int64_t d = 1; d <= n && d <= limit; d++)
    if (n % d == 0) best = d;
  return best;
}

/* Returns 1 if the variant has a plan, else sets *refusal to the reason: a pipeline refuses ZeRO stages 2 and 3, and a
 * schedule refuses some numbers of micro-batches. */
static int has_plan(const tws_sweep *s, const tws_variant *variant, tws_error *refusal) {
  tws_job *job = NULL;
  tws_plan *plan;
  tws_code code = tws_job_derive(s->job, variant, &job, refusal);
  if (code == TWS_OK) code = tws_job_plan(job, 0, &plan, refusal);
  if (code == TWS_OK) tws_plan_destroy(plan);
  tws_job_destroy(job);
  return code == TWS_OK;
}

typedef struct choice {
  int stage, large;
  tws_recompute recompute;
} choice;

static void add_point(tws_sweep *s, const choice *c, int64_t ranks, int64_t batch, tws_error *refusal) {
  const tws_config *config = s->job->config;
  int64_t replicas = ranks / tws_config_model_ranks(config);
  if (s->count == TWS_SWEEP_POINTS || ranks % tws_config_model_ranks(config) != 0 || batch % replicas != 0) return;
  int64_t own = batch / replicas, micro = divisor_up_to(own, c->large ? own / 2 : own / 8);
  tws_sweep_point *p = &s->points[s->count];
  p->variant = tws_variant_given(config);
  p->variant.stage = c->stage;
  p->variant.recompute = c->recompute;
  p->variant.ranks = (int)ranks;
  p->variant.micro = micro;
  p->variant.accumulation = own / micro;
  p->variant.threads =
      tws_launch_threads(s->request->spec->threads ? s->request->spec->threads : config->threads, (int)ranks);
  tws_variant_name(&p->variant, p->name, sizeof p->name);
  for (int i = 0; i < s->count; i++) /* the point exists already: with a small batch two choices may be equal */
    if (strcmp(s->points[i].name, p->name) == 0) return;
  s->count += has_plan(s, &p->variant, refusal);
}

static void choose_points(tws_sweep *s, int64_t batch, tws_error *refusal) {
  static const choice choices[] = {{0, 1, TWS_RECOMPUTE_NONE}, {3, 0, TWS_RECOMPUTE_NONE}, {2, 1, TWS_RECOMPUTE_NONE},
                                   {1, 0, TWS_RECOMPUTE_NONE}, {3, 1, TWS_RECOMPUTE_NONE}, {1, 1, TWS_RECOMPUTE_FULL}};
  for (int n = 0; n < s->request->ranks_count; n++) {
    const int64_t ranks = s->request->ranks[n];
    /* the usual numbers of ranks, from 2 to the number of cores, get the most points */
    const int more = ranks > 1 && ranks <= tws_launch_cores();
    for (int i = 0; i < (more ? 6 : 4); i++) add_point(s, &choices[i], ranks, batch, refusal);
  }
}

static void choose_runs(tws_sweep *s) {
  const int cores = tws_launch_cores();
  int full = 0;
  for (int i = 0; i < s->request->ranks_count; i++) {
    s->runs[s->run_count++] = s->request->ranks[i];
    full |= s->request->ranks[i] == cores;
  }
  /* calibrates kernels while every core is busy, for runs with more ranks than cores */
  if (!full) s->runs[s->run_count++] = cores;
}

tws_code tws_sweep_open(const tws_sweep_request *request, tws_job *job, tws_sweep *out, tws_error *err) {
  tws_error refusal = {0}; /* reason of the last point without a plan */
  const int64_t configured = job->config->train_batch_size ? job->config->train_batch_size : 32;
  memset(out, 0, sizeof *out);
  out->request = request;
  out->job = job;
  choose_runs(out);
  choose_points(out, request->global_batch ? request->global_batch : configured, &refusal);
  if (out->count == 0 && refusal.message[0])
    return tws_fail(err, TWS_INVALID, refusal.hint[0] ? refusal.hint : NULL, "no configuration to measure: %s",
                    refusal.message);
  if (out->count == 0)
    return tws_fail(err, TWS_INVALID, "-n: multiples of --pp x --tp x --sp whose replicas divide the global batch",
                    "no configuration to measure: no number of ranks divides into %lld that share a replica",
                    (long long)tws_config_model_ranks(job->config));
  out->rounds = tws_calloc((size_t)request->rounds, sizeof *out->rounds);
  return out->rounds ? TWS_OK : tws_fail(err, TWS_MEMORY, NULL, "out of memory");
}

void tws_sweep_free(tws_sweep *sweep) {
  for (int i = 0; i < sweep->count; i++) tws_trial_free(&sweep->points[i].trial);
  for (int r = 0; sweep->rounds && r < sweep->request->rounds; r++)
    for (int i = 0; i < TWS_CALIBRATION_RUNS; i++) tws_measurements_free(&sweep->rounds[r][i]);
  tws_free(sweep->rounds);
}

/* ---- measuring ---- */

static tws_code calibrate_once(tws_sweep *s, int round, tws_error *err) {
  tws_calibration_request request = {.cores = tws_launch_cores(),
                                     .quick = 1,
                                     .run_count = s->run_count,
                                     .deadline_s = TWS_FAILURE_DEADLINE_S,
                                     .log = s->request->log};
  for (int i = 0; i < s->run_count; i++) request.runs[i] = s->runs[i];
  return tws_calibration_run(&request, s->rounds[round], err);
}

static tws_code measure_points(tws_sweep *s, tws_error *err) {
  const tws_sweep_request *r = s->request;
  for (int round = 0; round < r->rounds; round++) {
    if (!r->spec->profile) TWS_TRY(calibrate_once(s, round, err));
    for (int i = 0; i < s->count; i++) {
      /* the order is rotated, so that in each round another point precedes this one */
      tws_sweep_point *p = &s->points[(i + round * 5) % s->count];
      tws_variant_text text;
      const tws_job_spec spec = tws_variant_spec(r->spec, &p->variant, &text);
      const tws_trial_request trial = {.spec = &spec,
                                       .ranks = p->variant.ranks,
                                       .threads = p->variant.threads,
                                       .data = r->data,
                                       .steps = r->steps,
                                       .progress = r->progress};
      tws_log_write(r->log, TWS_LOG_INFO, "round %d of %lld, %d of %d: %s", round + 1, (long long)r->rounds, i + 1,
                    s->count, p->name);
      TWS_TRY(tws_trial_run(&trial, NULL, &p->trial, err));
    }
  }
  for (int i = 0; i < s->count; i++)
    tws_trial_times(&s->points[i].trial, &s->points[i].measured_s, &s->points[i].low_s, &s->points[i].high_s);
  return TWS_OK;
}

/* ---- predicting ---- */

static tws_code make_profile(tws_sweep *s, tws_error *err) {
  const tws_sweep_request *request = s->request;
  if (request->spec->profile) return TWS_OK;
  tws_measurements combined[TWS_CALIBRATION_RUNS] = {0};
  tws_code code = TWS_OK;
  for (int run = 0; run < s->run_count && code == TWS_OK; run++) {
    const tws_measurements *runs[TWS_SWEEP_ROUNDS];
    for (int r = 0; r < request->rounds; r++) runs[r] = &s->rounds[r][run];
    code = tws_measurements_combine(runs, (int)request->rounds, &combined[run], err);
  }
  tws_profile_builder *builder = NULL;
  tws_profile *profile;
  if (code == TWS_OK)
    code = tws_calibration_profile("this machine", combined, s->run_count, &s->calibration_spread, &builder, err);
  if (code == TWS_OK && request->save_profile) code = tws_profile_builder_write(builder, request->save_profile, err);
  if (code == TWS_OK) code = tws_profile_builder_finish(builder, &profile, err);
  if (code == TWS_OK) tws_job_set_profile(s->job, profile);
  tws_profile_builder_destroy(builder);
  for (int i = 0; i < TWS_CALIBRATION_RUNS; i++) tws_measurements_free(&combined[i]);
  return code;
}

static tws_code predict_point(const tws_sweep *s, tws_sweep_point *p, tws_error *err) {
  tws_job *job = NULL;
  tws_estimate estimate;
  tws_code code = tws_job_derive(s->job, &p->variant, &job, err);
  if (code == TWS_OK) code = tws_job_estimate(job, &estimate, NULL, err);
  if (code == TWS_OK) code = tws_job_simulated_step(job, s->request->sim, s->request->fidelity, &p->simulated_s, err);
  tws_job_destroy(job);
  if (code != TWS_OK) return tws_fail_in(err, code, "%s", p->name);
  p->estimated_s = estimate.step_s;
  return TWS_OK;
}

/* ---- errors ---- */

double tws_sweep_error(const tws_sweep_point *point) {
  return (point->simulated_s - point->measured_s) / point->measured_s;
}

static void judge_sweep(tws_sweep *s) {
  double errors[TWS_SWEEP_POINTS], spreads[TWS_SWEEP_POINTS];
  s->pick = s->best = &s->points[0];
  for (int i = 0; i < s->count; i++) {
    const tws_sweep_point *p = &s->points[i];
    errors[i] = fabs(tws_sweep_error(p));
    spreads[i] = (p->high_s - p->low_s) / p->measured_s;
    s->worst_error = fmax(s->worst_error, errors[i]);
    if (p->simulated_s < s->pick->simulated_s) s->pick = p; /* equal global batches: the shortest step is the fastest */
    if (p->measured_s < s->best->measured_s) s->best = p;
  }
  s->median_error = tws_sample_median(errors, (size_t)s->count);
  s->median_spread = tws_sample_median(spreads, (size_t)s->count);
  s->pick_share = s->best->measured_s / s->pick->measured_s;
}

tws_code tws_sweep_run(tws_sweep *sweep, tws_error *err) {
  TWS_TRY(measure_points(sweep, err));
  TWS_TRY(make_profile(sweep, err));
  for (int i = 0; i < sweep->count; i++) TWS_TRY(predict_point(sweep, &sweep->points[i], err));
  judge_sweep(sweep);
  return TWS_OK;
}
