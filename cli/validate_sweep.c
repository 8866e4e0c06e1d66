/* The accuracy experiment: many configurations, measured in interleaved rounds and predicted from a calibration of the
 * same minutes. */
#include <errno.h>
#include <math.h>
#include <string.h>
#include <sys/stat.h>
#include "base/units.h"
#include "cli/calibration.h"
#include "launch/launch.h"
#include "cli/modules.h"
#include "cli/validate.h"
#include "traces/plot.h"

enum { MOST_POINTS = 64, MOST_ROUNDS = 100 };

typedef struct trial_point {
  tws_tune_point point;
  char name[TWS_TUNE_NAME];
  tws_trial trial;
  double measured_s, low_s, high_s, simulated_s, estimated_s;
} trial_point;

typedef struct sweep {
  const tws_validate_options *o;
  tws_config *config;
  tws_network *network;
  tws_cluster cluster;
  tws_profile *profile;
  int64_t ranks[8], runs[TWS_CALIBRATION_RUNS]; /* to train with, to calibrate with */
  int ranks_count, run_count;
  trial_point points[MOST_POINTS];
  int count;
  tws_error refusal;                                /* of the last point without a plan */
  tws_measurements (*rounds)[TWS_CALIBRATION_RUNS]; /* [round][run] */
  double calibration_spread;
} sweep;

/* ---- which configurations ---- */

static int64_t divisor_up_to(int64_t n, int64_t limit) {
  int64_t best = 1;
  for (int64_t d = 1; d <= n && d <= limit; d++)
    if (n % d == 0) best = d;
  return best;
}

/* Whether there is a plan for the point: a pipeline refuses stages 2 and 3, a schedule some numbers of micro-batches.
 */
static int has_plan(sweep *s, const tws_tune_point *point) {
  tws_config *config;
  tws_plan *plan;
  if (tws_tune_config(s->config, s->network, point, &config, &s->refusal) != TWS_OK) return 0;
  tws_plan_request request = {
      .network = s->network, .config = config, .backend = TWS_BACKEND_HOST, .threads = point->threads};
  tws_code code = tws_plan_topology(config, point->ranks, &request.topology, &s->refusal);
  if (code == TWS_OK) code = tws_plan_build(&request, &plan, &s->refusal);
  if (code == TWS_OK) tws_plan_destroy(plan);
  tws_config_destroy(config);
  return code == TWS_OK;
}

static void add_point(sweep *s, int stage, int large, tws_recompute recompute, int64_t ranks, int64_t batch) {
  int64_t replicas = ranks / tws_config_model_ranks(s->config);
  if (s->count == MOST_POINTS || ranks % tws_config_model_ranks(s->config) != 0 || batch % replicas != 0) return;
  int64_t own = batch / replicas, micro = divisor_up_to(own, large ? own / 2 : own / 8);
  trial_point *p = &s->points[s->count];
  p->point = tws_tune_given(s->config);
  p->point.stage = stage;
  p->point.recompute = recompute;
  p->point.ranks = (int)ranks;
  p->point.micro = micro;
  p->point.accumulation = own / micro;
  int64_t threads = s->o->job.threads ? s->o->job.threads : s->config->threads;
  p->point.threads = tws_launch_threads(threads, (int)ranks);
  tws_tune_name(&p->point, p->name, sizeof p->name);
  for (int i = 0; i < s->count; i++)
    if (strcmp(s->points[i].name, p->name) == 0) return; /* a small batch leaves fewer choices */
  s->count += has_plan(s, &p->point);
}

/* Every stage, a small and a large micro batch, some recomputation: fourteen points for three rank counts. */
static void choose_points(sweep *s, int64_t batch) {
  static const struct {
    int stage, large;
    tws_recompute recompute;
  } choices[] = {{0, 1, TWS_RECOMPUTE_NONE}, {3, 0, TWS_RECOMPUTE_NONE}, {2, 1, TWS_RECOMPUTE_NONE},
                 {1, 0, TWS_RECOMPUTE_NONE}, {3, 1, TWS_RECOMPUTE_NONE}, {1, 1, TWS_RECOMPUTE_FULL}};
  for (int n = 0; n < s->ranks_count; n++) {
    int more = s->ranks[n] > 1 && s->ranks[n] <= tws_launch_cores(); /* what people would use gets the most points */
    for (int i = 0; i < (more ? 6 : 4); i++)
      add_point(s, choices[i].stage, choices[i].large, choices[i].recompute, s->ranks[n], batch);
  }
}

static tws_code open_sweep(const tws_cli *cli, const tws_validate_options *o, sweep *s, tws_error *err) {
  s->o = o;
  TWS_TRY(tws_job_config(&o->job, &s->config, err));
  if (!o->job.model)
    return tws_fail(err, TWS_USAGE, "give -m MODEL: a Hugging Face config.json or a built-in name such as gpt2",
                    "no model was given");
  TWS_TRY(tws_network_load(o->job.model, tws_config_vocabulary_multiple(s->config), &s->network, err));
  int assumed = 0;
  TWS_TRY(tws_job_assume_dtype(s->config, s->network, &assumed, err));
  tws_config_remarks(cli, s->config);
  tws_model_remarks(cli, o->job.model, s->network, assumed);
  tws_data_remark(cli, o->data, s->network);
  TWS_TRY(tws_cluster_load("host", &s->cluster, err));
  if (o->job.profile) TWS_TRY(tws_profile_load(o->job.profile, &s->profile, err));
  TWS_TRY(tws_parse_list(o->ranks ? o->ranks : "1,2,4", "-n", 1, 64, s->ranks, 8, &s->ranks_count, err));
  int cores = tws_launch_cores(), full = 0;
  for (int i = 0; i < s->ranks_count; i++) full |= s->ranks[i] == cores;
  memcpy(s->runs, s->ranks, sizeof s->ranks);
  s->run_count = s->ranks_count;
  if (!full) s->runs[s->run_count++] = cores; /* kernels with every core busy: what more ranks than cores share */
  int64_t batch = o->global_batch ? o->global_batch : s->config->train_batch_size ? s->config->train_batch_size : 32;
  choose_points(s, batch);
  if (s->count == 0 && s->refusal.message[0])
    return tws_fail(err, TWS_INVALID, s->refusal.hint[0] ? s->refusal.hint : NULL, "no configuration to measure: %s",
                    s->refusal.message);
  if (s->count == 0)
    return tws_fail(err, TWS_INVALID, "-n: multiples of --pp x --tp x --sp whose replicas divide the global batch",
                    "no configuration to measure: no number of ranks divides into %lld that share a replica",
                    (long long)tws_config_model_ranks(s->config));
  s->rounds = tws_calloc((size_t)o->rounds, sizeof *s->rounds);
  return s->rounds ? TWS_OK : tws_fail(err, TWS_MEMORY, NULL, "out of memory");
}

static void close_sweep(sweep *s) {
  for (int i = 0; i < s->count; i++) tws_trial_free(&s->points[i].trial);
  for (int r = 0; s->rounds && r < s->o->rounds; r++)
    for (int i = 0; i < TWS_CALIBRATION_RUNS; i++) tws_measurements_free(&s->rounds[r][i]);
  tws_free(s->rounds);
  tws_profile_destroy(s->profile);
  tws_network_destroy(s->network);
  tws_config_destroy(s->config);
}

/* ---- measuring ---- */

static tws_code calibrate(const tws_cli *cli, sweep *s, int round, tws_error *err) {
  tws_calibration_plan plan = {.cores = tws_launch_cores(), .quick = 1, .run_count = s->run_count};
  for (int i = 0; i < s->run_count; i++) plan.runs[i] = s->runs[i];
  return tws_calibration_run(cli, &plan, s->rounds[round], err);
}

static tws_code measure(const tws_cli *cli, sweep *s, tws_error *err) {
  for (int round = 0; round < s->o->rounds; round++) {
    if (!s->o->job.profile) TWS_TRY(calibrate(cli, s, round, err));
    for (int i = 0; i < s->count; i++) {
      trial_point *p = &s->points[(i + round * 5) % s->count]; /* another neighbour in each round */
      tws_point_text text;
      tws_job_options job = tws_point_options(&s->o->job, &p->point, &text);
      tws_say(cli, "round %d of %lld, %d of %d: %s", round + 1, (long long)s->o->rounds, i + 1, s->count, p->name);
      TWS_TRY(
          tws_trial_run(&job, p->point.ranks, p->point.threads, s->o->data, s->o->steps, NULL, &p->trial, err));
    }
  }
  for (int i = 0; i < s->count; i++)
    tws_trial_times(&s->points[i].trial, &s->points[i].measured_s, &s->points[i].low_s, &s->points[i].high_s);
  return TWS_OK;
}

/* ---- predicting ---- */

static tws_code make_profile(sweep *s, tws_error *err) {
  if (s->profile) return TWS_OK;
  tws_measurements combined[TWS_CALIBRATION_RUNS] = {0};
  tws_code code = TWS_OK;
  for (int run = 0; run < s->run_count && code == TWS_OK; run++) {
    const tws_measurements *runs[MOST_ROUNDS];
    for (int r = 0; r < s->o->rounds; r++) runs[r] = &s->rounds[r][run];
    code = tws_measurements_combine(runs, (int)s->o->rounds, &combined[run], err);
  }
  tws_profile_builder *builder = NULL;
  if (code == TWS_OK)
    code = tws_calibration_profile("this machine", combined, s->run_count, &s->calibration_spread, &builder, err);
  if (code == TWS_OK && s->o->save_profile) code = tws_profile_builder_write(builder, s->o->save_profile, err);
  if (code == TWS_OK) code = tws_profile_builder_finish(builder, &s->profile, err);
  tws_profile_builder_destroy(builder);
  for (int i = 0; i < TWS_CALIBRATION_RUNS; i++) tws_measurements_free(&combined[i]);
  return code;
}

static tws_code predict_point(const sweep *s, const tws_sim_api *sim, tws_fidelity fidelity, trial_point *p,
                              tws_error *err) {
  tws_machine machine = {&s->cluster, s->profile};
  tws_config *config;
  tws_sim_result result;
  tws_estimate estimate;
  TWS_TRY(tws_tune_config(s->config, s->network, &p->point, &config, err));
  tws_plan_request request = {
      .network = s->network, .config = config, .backend = TWS_BACKEND_HOST, .threads = p->point.threads};
  tws_code code = tws_plan_topology(config, p->point.ranks, &request.topology, err);
  if (code == TWS_OK) code = tws_estimate_step(&request, &machine, &estimate, err);
  if (code == TWS_OK)
    code = tws_tune_simulate(sim, s->network, config, p->point.ranks, p->point.threads, &machine, fidelity, NULL,
                             &result, err);
  tws_config_destroy(config);
  if (code != TWS_OK) return tws_fail_in(err, code, "%s", p->name);
  p->estimated_s = estimate.step_s;
  p->simulated_s = result.step_s;
  return TWS_OK;
}

static tws_code predict(sweep *s, tws_error *err) {
  const tws_sim_api *sim;
  tws_fidelity fidelity;
  TWS_TRY(tws_validate_fidelity(s->o->fidelity, &fidelity, err));
  TWS_TRY(tws_sim_load(&sim, err));
  for (int i = 0; i < s->count; i++) TWS_TRY(predict_point(s, sim, fidelity, &s->points[i], err));
  return TWS_OK;
}

/* ---- results ---- */

typedef struct verdict {
  double median_error, worst_error, median_spread; /* relative */
  const trial_point *pick, *best;                  /* fastest predicted, fastest measured */
  double pick_share;                               /* pick's measured throughput over the best's */
} verdict;

static double error_of(const trial_point *p) {
  return (p->simulated_s - p->measured_s) / p->measured_s;
}

static verdict judge(const sweep *s) {
  double errors[MOST_POINTS], spreads[MOST_POINTS];
  verdict v = {.pick = &s->points[0], .best = &s->points[0]};
  for (int i = 0; i < s->count; i++) {
    const trial_point *p = &s->points[i];
    errors[i] = fabs(error_of(p));
    spreads[i] = (p->high_s - p->low_s) / p->measured_s;
    v.worst_error = fmax(v.worst_error, errors[i]);
    if (p->simulated_s < v.pick->simulated_s) v.pick = p; /* equal global batches: the shortest step is the fastest */
    if (p->measured_s < v.best->measured_s) v.best = p;
  }
  v.median_error = tws_sample_median(errors, (size_t)s->count);
  v.median_spread = tws_sample_median(spreads, (size_t)s->count);
  v.pick_share = v.best->measured_s / v.pick->measured_s;
  return v;
}

static tws_code print_text(const tws_cli *cli, const sweep *s, const verdict *v, tws_error *err) {
  tws_table table;
  tws_table_init(&table, 10);
  tws_table_row(&table, (const char *[]){"stage", "ranks", "threads", "micro", "accum", "recompute", "predicted ms",
                                         "measured ms", "quartiles", "error %"});
  for (int i = 0; i < s->count; i++) {
    const trial_point *p = &s->points[i];
    tws_table_row(
        &table,
        (const char *[]){tws_cell("%d", p->point.stage), tws_cell("%d", p->point.ranks),
                         tws_cell("%d", p->point.threads), tws_cell("%lld", (long long)p->point.micro),
                         tws_cell("%lld", (long long)p->point.accumulation), tws_recompute_name(p->point.recompute),
                         tws_cell("%.1f", p->simulated_s * 1e3), tws_cell("%.1f", p->measured_s * 1e3),
                         tws_cell("%.1f-%.1f", p->low_s * 1e3, p->high_s * 1e3), tws_cell("%+.1f", error_of(p) * 100)});
  }
  TWS_TRY(tws_table_print(cli, &table, err));
  if (tws_config_model_ranks(s->config) > 1) {
    tws_tune_point axes = tws_tune_given(s->config);
    tws_out("\nranks of a replica: pipe %d x sequence %d x model %d", axes.pipeline, axes.sequence, axes.tensor);
    if (axes.pipeline > 1) tws_out(", %s", tws_pipeline_kind_name(axes.schedule.kind));
  }
  tws_out("\n%d configurations, %lld rounds of %lld steps, interleaved; profile: %s\n", s->count,
          (long long)s->o->rounds, (long long)s->o->steps, tws_profile_provenance(s->profile));
  tws_out("median error %.1f %%, worst %.1f %%; median spread of the measured steps %.1f %%\n", v->median_error * 100,
          v->worst_error * 100, v->median_spread * 100);
  tws_out("the tuner's pick %s runs at %.1f %% of the best measured, %s\n", v->pick->name, v->pick_share * 100,
          v->best->name);
  return TWS_OK;
}

static tws_code print_json(const sweep *s, const verdict *v, tws_error *err) {
  cJSON *json = cJSON_CreateObject();
  cJSON_AddStringToObject(json, "schema", "twinspeed-accuracy-1");
  cJSON_AddStringToObject(json, "model", s->network->name);
  tws_fingerprint fingerprint = {0}; /* each configuration has a plan of its own */
  snprintf(fingerprint.model, sizeof fingerprint.model, "%016llx",
           (unsigned long long)tws_network_fingerprint(s->network));
  tws_fingerprint_json(&fingerprint, json);
  cJSON_AddStringToObject(json, "dtype", tws_dtype_name(s->config->dtype));
  cJSON_AddNumberToObject(json, "sequence_length", (double)tws_tune_sequence(s->config, s->network));
  cJSON_AddStringToObject(json, "profile_provenance", tws_profile_provenance(s->profile));
  cJSON_AddNumberToObject(json, "rounds", (double)s->o->rounds);
  cJSON_AddNumberToObject(json, "steps", (double)s->o->steps);
  cJSON_AddNumberToObject(json, "median_error", v->median_error);
  cJSON_AddNumberToObject(json, "worst_error", v->worst_error);
  cJSON_AddNumberToObject(json, "median_spread", v->median_spread);
  cJSON_AddStringToObject(json, "pick", v->pick->name);
  cJSON_AddStringToObject(json, "best_measured", v->best->name);
  cJSON_AddNumberToObject(json, "pick_share", v->pick_share);
  cJSON *list = cJSON_AddArrayToObject(json, "configurations");
  for (int i = 0; i < s->count; i++) {
    const trial_point *p = &s->points[i];
    cJSON *item = cJSON_CreateObject();
    cJSON_AddStringToObject(item, "name", p->name);
    cJSON_AddNumberToObject(item, "zero_stage", p->point.stage);
    cJSON_AddNumberToObject(item, "ranks", p->point.ranks);
    tws_tune_point_axes(&p->point, item);
    cJSON_AddNumberToObject(item, "threads", p->point.threads);
    cJSON_AddNumberToObject(item, "micro_batch", (double)p->point.micro);
    cJSON_AddNumberToObject(item, "accumulation", (double)p->point.accumulation);
    cJSON_AddStringToObject(item, "recompute", tws_recompute_name(p->point.recompute));
    cJSON_AddNumberToObject(item, "longest_path_s", p->estimated_s);
    cJSON_AddNumberToObject(item, "simulated_s", p->simulated_s);
    cJSON_AddNumberToObject(item, "measured_s", p->measured_s);
    cJSON_AddNumberToObject(item, "measured_low_s", p->low_s);
    cJSON_AddNumberToObject(item, "measured_high_s", p->high_s);
    cJSON_AddNumberToObject(item, "steps", (double)p->trial.count);
    cJSON_AddNumberToObject(item, "error", error_of(p));
    cJSON_AddNumberToObject(item, "ledger_bytes", p->trial.predicted_bytes);
    cJSON_AddNumberToObject(item, "allocated_bytes", p->trial.allocated_bytes);
    cJSON_AddNumberToObject(item, "rank_ledger_bytes", p->trial.rank_predicted_bytes);
    cJSON_AddNumberToObject(item, "rank_allocated_bytes", p->trial.rank_allocated_bytes);
    cJSON_AddItemToArray(list, item);
  }
  return tws_out_json(json, err);
}

static tws_code draw(const tws_cli *cli, const sweep *s, const verdict *v, tws_error *err) {
  tws_plot_point points[MOST_POINTS];
  char scripts[4096], path[4200], title[256], labels[MOST_POINTS][48];
  if (!s->o->figures) return TWS_OK;
  if (mkdir(s->o->figures, 0777) != 0 && errno != EEXIST)
    return tws_fail(err, TWS_IO, NULL, "%s: %s", s->o->figures, strerror(errno));
  for (int i = 0; i < s->count; i++) {
    const trial_point *p = &s->points[i];
    const tws_tune_point *q = &p->point; /* ZeRO-3, 2 ranks, micro batch 4 x 8 steps */
    snprintf(labels[i], sizeof labels[i], "Z%d n%d %lldx%lld%s%s", q->stage, q->ranks, (long long)q->micro,
             (long long)q->accumulation, q->recompute ? " " : "", q->recompute ? tws_recompute_name(q->recompute) : "");
    points[i] = (tws_plot_point){labels[i], p->measured_s, p->low_s, p->high_s, p->simulated_s};
  }
  snprintf(title, sizeof title, "%.80s on this machine: predicted against measured step time, median error %.1f %%",
           tws_validate_model(s->network), v->median_error * 100);
  tws_validate_scripts(scripts, (int)sizeof scripts);
  for (int i = 0; i < 2; i++) {
    tws_error local = {0};
    snprintf(path, sizeof path, "%s/accuracy.%s", s->o->figures, i ? "svg" : "png");
    tws_validate_figure_note(cli, tws_plot_accuracy(scripts, points, s->count, title, path, &local), path, &local);
  }
  return TWS_OK;
}

static tws_code run_sweep(const tws_cli *cli, sweep *s, tws_error *err) {
  TWS_TRY(open_sweep(cli, s->o, s, err));
  TWS_TRY(measure(cli, s, err));
  TWS_TRY(make_profile(s, err));
  TWS_TRY(predict(s, err));
  verdict v = judge(s);
  TWS_TRY(cli->json ? print_json(s, &v, err) : print_text(cli, s, &v, err));
  TWS_TRY(draw(cli, s, &v, err));
  if (v.median_spread > 0.15)
    tws_warn(cli, "the machine was busy: half of the measured steps spread over more than %.0f %%",
             v.median_spread * 100);
  if (s->o->tolerance >= 0 && !(v.median_error * 100 <= s->o->tolerance))
    return tws_fail(err, TWS_NO, "was the machine busy? the spread says so; more --rounds help",
                    "the median error is %.1f %%, the tolerance is %.3g %%", v.median_error * 100, s->o->tolerance);
  return TWS_OK;
}

tws_code tws_validate_sweep(const tws_cli *cli, const tws_validate_options *o, tws_error *err) {
  sweep *s = tws_calloc(1, sizeof *s);
  if (!s) return tws_fail(err, TWS_MEMORY, NULL, "out of memory");
  s->o = o;
  tws_code code = run_sweep(cli, s, err);
  close_sweep(s);
  tws_free(s);
  return code;
}
