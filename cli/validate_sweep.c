/* twinspeed validate --sweep: runs the accuracy experiment and prints its report. */
#include <errno.h>
#include <string.h>
#include <sys/stat.h>
#include "base/units.h"
#include "cli/remarks.h"
#include "cli/validate.h"
#include "job/modules.h"
#include "traces/plot.h"
#include "validation/results.h"
#include "validation/sweep.h"

static tws_code print_text(const tws_cli *cli, const tws_validate_options *o, const tws_sweep *s, tws_error *err) {
  tws_table table;
  tws_table_init(&table, 10);
  tws_table_row(&table, (const char *[]){"stage", "ranks", "threads", "micro", "accum", "recompute", "predicted ms",
                                         "measured ms", "quartiles", "error %"});
  for (int i = 0; i < s->count; i++) {
    const tws_sweep_point *p = &s->points[i];
    tws_table_row(
        &table,
        (const char *[]){tws_cell("%d", p->variant.stage), tws_cell("%d", p->variant.ranks),
                         tws_cell("%d", p->variant.threads), tws_cell("%lld", (long long)p->variant.micro),
                         tws_cell("%lld", (long long)p->variant.accumulation), tws_recompute_name(p->variant.recompute),
                         tws_cell("%.1f", p->simulated_s * 1e3), tws_cell("%.1f", p->measured_s * 1e3),
                         tws_cell("%.1f-%.1f", p->low_s * 1e3, p->high_s * 1e3),
                         tws_cell("%+.1f", tws_sweep_error(p) * 100)});
  }
  TWS_TRY(tws_table_print(cli, &table, err));
  if (tws_config_model_ranks(s->job->config) > 1) {
    tws_variant axes = tws_variant_given(s->job->config);
    tws_out("\nranks of a replica: pipe %d x sequence %d x model %d", axes.pipeline, axes.sequence, axes.tensor);
    if (axes.pipeline > 1) tws_out(", %s", tws_pipeline_kind_name(axes.schedule.kind));
  }
  tws_out("\n");
  tws_out_wrapped(2, "%d configurations, %lld rounds of %lld steps, interleaved; profile: %s", s->count,
                  (long long)o->rounds, (long long)o->steps, tws_profile_provenance(s->job->profile));
  tws_out("median error %.1f %%, worst %.1f %%; median spread of the measured steps %.1f %%\n", s->median_error * 100,
          s->worst_error * 100, s->median_spread * 100);
  tws_out("the tuner's pick %s runs at %.1f %% of the best measured, %s\n", s->pick->name, s->pick_share * 100,
          s->best->name);
  return TWS_OK;
}

static tws_code print_json(const tws_validate_options *o, const tws_sweep *s, tws_error *err) {
  cJSON *json = cJSON_CreateObject();
  cJSON_AddStringToObject(json, "schema", "twinspeed-accuracy-1");
  cJSON_AddStringToObject(json, "model", s->job->network->name);
  tws_fingerprint fingerprint = {0}; /* the plan's fingerprint stays empty, since each configuration has a plan of its
                                      * own */
  snprintf(fingerprint.model, sizeof fingerprint.model, "%016llx",
           (unsigned long long)tws_network_fingerprint(s->job->network));
  tws_fingerprint_json(&fingerprint, json);
  cJSON_AddStringToObject(json, "runtime", "twinspeed");
  cJSON_AddStringToObject(json, "dtype", tws_dtype_name(s->job->config->dtype));
  cJSON_AddNumberToObject(json, "sequence_length", (double)tws_job_sequence(s->job));
  cJSON_AddStringToObject(json, "profile_provenance", tws_profile_provenance(s->job->profile));
  cJSON_AddNumberToObject(json, "rounds", (double)o->rounds);
  cJSON_AddNumberToObject(json, "steps", (double)o->steps);
  cJSON_AddNumberToObject(json, "median_error", s->median_error);
  cJSON_AddNumberToObject(json, "worst_error", s->worst_error);
  cJSON_AddNumberToObject(json, "median_spread", s->median_spread);
  cJSON_AddStringToObject(json, "pick", s->pick->name);
  cJSON_AddStringToObject(json, "best_measured", s->best->name);
  cJSON_AddNumberToObject(json, "pick_share", s->pick_share);
  cJSON *list = cJSON_AddArrayToObject(json, "configurations");
  for (int i = 0; i < s->count; i++) {
    const tws_sweep_point *p = &s->points[i];
    cJSON *item = cJSON_CreateObject();
    cJSON_AddStringToObject(item, "name", p->name);
    cJSON_AddNumberToObject(item, "zero_stage", p->variant.stage);
    cJSON_AddNumberToObject(item, "ranks", p->variant.ranks);
    tws_variant_axes_json(&p->variant, item);
    cJSON_AddNumberToObject(item, "threads", p->variant.threads);
    cJSON_AddNumberToObject(item, "micro_batch", (double)p->variant.micro);
    cJSON_AddNumberToObject(item, "accumulation", (double)p->variant.accumulation);
    cJSON_AddStringToObject(item, "recompute", tws_recompute_name(p->variant.recompute));
    cJSON_AddNumberToObject(item, "longest_path_s", p->estimated_s);
    cJSON_AddNumberToObject(item, "simulated_s", p->simulated_s);
    cJSON_AddNumberToObject(item, "measured_s", p->measured_s);
    cJSON_AddNumberToObject(item, "measured_low_s", p->low_s);
    cJSON_AddNumberToObject(item, "measured_high_s", p->high_s);
    cJSON_AddNumberToObject(item, "steps", (double)p->trial.count);
    cJSON_AddNumberToObject(item, "error", tws_sweep_error(p));
    cJSON_AddNumberToObject(item, "ledger_bytes", p->trial.predicted_bytes);
    cJSON_AddNumberToObject(item, "allocated_bytes", p->trial.allocated_bytes);
    cJSON_AddNumberToObject(item, "rank_ledger_bytes", p->trial.rank_predicted_bytes);
    cJSON_AddNumberToObject(item, "rank_allocated_bytes", p->trial.rank_allocated_bytes);
    cJSON_AddItemToArray(list, item);
  }
  return tws_out_json(json, err);
}

static tws_code draw_sweep(const tws_cli *cli, const tws_validate_options *o, const tws_sweep *s, tws_error *err) {
  tws_plot_point points[TWS_SWEEP_POINTS];
  char scripts[4096], path[4200], title[256], labels[TWS_SWEEP_POINTS][48];
  if (!o->figures) return TWS_OK;
  if (mkdir(o->figures, 0777) != 0 && errno != EEXIST)
    return tws_fail(err, TWS_IO, NULL, "%s: %s", o->figures, strerror(errno));
  for (int i = 0; i < s->count; i++) {
    const tws_sweep_point *p = &s->points[i];
    const tws_variant *q = &p->variant; /* "Z3 n2 4x8": ZeRO-3, 2 ranks, micro batch 4, 8 accumulation steps */
    snprintf(labels[i], sizeof labels[i], "Z%d n%d %lldx%lld%s%s", q->stage, q->ranks, (long long)q->micro,
             (long long)q->accumulation, q->recompute ? " " : "", q->recompute ? tws_recompute_name(q->recompute) : "");
    points[i] = (tws_plot_point){labels[i], p->measured_s, p->low_s, p->high_s, p->simulated_s};
  }
  char model[64];
  tws_result_title(s->job->network->name, model, sizeof model);
  snprintf(title, sizeof title, "%s on this machine: predicted against measured step time, median error %.1f %%", model,
           s->median_error * 100);
  tws_plots_path(scripts, (int)sizeof scripts);
  for (int i = 0; i < 2; i++) {
    tws_error local = {0};
    snprintf(path, sizeof path, "%s/accuracy.%s", o->figures, i ? "svg" : "png");
    tws_validate_figure_note(cli, tws_plot_accuracy(scripts, points, s->count, title, path, &local), path, &local);
  }
  return TWS_OK;
}

static tws_code report_sweep(const tws_cli *cli, const tws_validate_options *o, const tws_sweep *s, tws_error *err) {
  TWS_TRY(cli->json ? print_json(o, s, err) : print_text(cli, o, s, err));
  TWS_TRY(draw_sweep(cli, o, s, err));
  if (s->median_spread > 0.15)
    tws_warn(cli, "the machine was busy: half of the measured steps spread over more than %.0f %%",
             s->median_spread * 100);
  if (o->tolerance >= 0 && !(s->median_error * 100 <= o->tolerance))
    return tws_fail(err, TWS_NO, "was the machine busy? the spread says so; more --rounds help",
                    "the median error is %.1f %%, the tolerance is %.3g %%", s->median_error * 100, o->tolerance);
  return TWS_OK;
}

static tws_code run_sweep(const tws_cli *cli, const tws_validate_options *o, tws_job *job, tws_sweep *s,
                          tws_error *err) {
  tws_progress progress = tws_cli_progress(cli);
  tws_sweep_request request = {.spec = &o->job,
                               .data = o->data,
                               .steps = o->steps,
                               .rounds = o->rounds,
                               .global_batch = o->global_batch,
                               .save_profile = o->save_profile,
                               .log = &cli->log,
                               .progress = &progress};
  TWS_TRY(tws_parse_list(o->ranks ? o->ranks : "1,2,4", "-n", 1, 64, request.ranks, TWS_SWEEP_RANKS,
                         &request.ranks_count, err));
  TWS_TRY(tws_fidelity_parse(o->fidelity, &request.fidelity, err));
  TWS_TRY(tws_sim_load(&request.sim, err));
  tws_code code = tws_sweep_open(&request, job, s, err);
  if (code == TWS_OK) code = tws_sweep_run(s, err);
  if (code == TWS_OK) code = report_sweep(cli, o, s, err);
  tws_sweep_free(s);
  return code;
}

tws_code tws_validate_sweep(const tws_cli *cli, const tws_validate_options *o, tws_error *err) {
  tws_job *job;
  TWS_TRY(tws_job_open(&o->job, &job, err));
  tws_job_remarks(cli, o->job.model, job);
  tws_job_assumed_remark(cli, job, 1);
  tws_data_remark(cli, o->data, job->network);
  tws_sweep *s = tws_calloc(1, sizeof *s);
  tws_code code = s ? run_sweep(cli, o, job, s, err) : tws_fail(err, TWS_MEMORY, NULL, "out of memory");
  tws_free(s);
  tws_job_destroy(job);
  return code;
}
