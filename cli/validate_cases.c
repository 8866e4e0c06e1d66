/* twinspeed validate --cases: compares predictions with published runs, by group. */
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/memory.h"
#include "base/units.h"
#include "cli/validate.h"
#include "job/modules.h"
#include "models/hardware/runtime.h"
#include "traces/plot.h"
#include "validation/cases.h"

typedef struct cases_report {
  const tws_validate_options *o;
  tws_cases *cases;
  tws_case_comparison compared;
  tws_case_half halves[2];
} cases_report;

static const char *percent_text(double percent) {
  return isfinite(percent) ? tws_cell("%.1f", percent) : "";
}

/* ---- text ---- */

static tws_code print_groups(const tws_cli *cli, const cases_report *r, tws_error *err) {
  tws_table table;
  tws_table_init(&table, 14);
  tws_table_row(&table, (const char *[]){"group", "runs", "skip", "timed", "mean", "median", "bias", "in 10 %",
                                         "concord", "apart", "mean", "memory", "mean", "OOM +/-"});
  for (int i = 0; i < r->compared.group_count; i++) {
    const tws_case_group *g = &r->compared.groups[i];
    const char *verdicts = g->oom_right + g->oom_wrong ? tws_cell("%d/%d", g->oom_right, g->oom_wrong) : "";
    tws_table_row(&table, (const char *[]){
                              g->name, tws_cell("%d", g->n), tws_cell("%d", g->skipped), tws_cell("%d", g->time_n),
                              percent_text(g->time_mape), percent_text(g->time_median_ape),
                              isfinite(g->time_bias) ? tws_cell("%+.1f", g->time_bias) : "", percent_text(g->within_10),
                              isfinite(g->concordance) ? tws_cell("%.2f", g->concordance) : "",
                              g->apart_n ? tws_cell("%d", g->apart_n) : "", percent_text(g->apart_mape),
                              g->mem_n ? tws_cell("%d", g->mem_n) : "", percent_text(g->mem_mape), verdicts});
  }
  return tws_table_print(cli, &table, err);
}

/* Prints the errors of both halves of the runs: constants are fitted on one; the other shows how well they
 * generalize. */
static tws_code print_halves(const tws_cli *cli, const cases_report *r, tws_error *err) {
  tws_table table;
  tws_table_init(&table, 9);
  tws_table_row(&table, (const char *[]){"half", "runs", "ran +/-", "OOM +/-", "tight", "memory", "inside", "median",
                                         "mean of groups"});
  for (int i = 0; i < 2; i++) {
    const tws_case_half *h = &r->halves[i];
    tws_table_row(&table, (const char *[]){tws_case_half_name(h->for_fitting), tws_cell("%d", h->runs),
                                           tws_cell("%d/%d", h->ran_right, h->ran_wrong),
                                           tws_cell("%d/%d", h->oom_right, h->oom_wrong),
                                           tws_cell("%d", h->ran_tight + h->oom_tight), tws_cell("%d", h->memory_runs),
                                           tws_cell("%d", h->memory_inside), percent_text(h->memory_median),
                                           percent_text(h->memory_mean_of_groups)});
  }
  tws_out("\n");
  return tws_table_print(cli, &table, err);
}

/* Prints the errors of the step's time, over groups that have five timed runs or more. */
static tws_code print_time_halves(const tws_cli *cli, const cases_report *r, tws_error *err) {
  tws_table table;
  tws_table_init(&table, 9);
  tws_table_row(&table, (const char *[]){"half", "timed", "groups", "median", "mean", "worst", "in interval", "inside",
                                         "half width"});
  for (int i = 0; i < 2; i++) {
    const tws_case_half *h = &r->halves[i];
    const double inside = h->time_in_interval ? 100.0 * h->time_inside / h->time_in_interval : NAN;
    tws_table_row(&table, (const char *[]){
                              tws_case_half_name(h->for_fitting), tws_cell("%d", h->time_runs),
                              tws_cell("%d", h->time_groups), percent_text(h->time_median_of_groups),
                              percent_text(h->time_mean_of_groups), percent_text(h->time_worst_group),
                              tws_cell("%d", h->time_in_interval), isfinite(inside) ? tws_cell("%.1f %%", inside) : "",
                              isfinite(h->time_half_width) ? tws_cell("%.1f %%", 100 * h->time_half_width) : ""});
  }
  tws_out("\n");
  return tws_table_print(cli, &table, err);
}

/* Prints the runs that are excluded from all errors, one line for each reason. */
static void print_apart(const tws_case_comparison *c) {
  for (int i = 0, begun = 0; i < c->count; i++) {
    const tws_case_result *one = &c->results[i];
    int before = 0, alike = 0;
    if (!tws_case_is_excluded(one)) continue;
    for (int j = 0; j < c->count; j++) {
      const tws_case_result *other = &c->results[j];
      if (!tws_case_is_excluded(other) || strcmp(other->doubt, one->doubt) != 0) continue;
      before += j < i;
      alike++;
    }
    if (before) continue;
    if (!begun++) tws_out("\nPredicted, but excluded from the errors:\n");
    tws_out_wrapped(4, "  %s%s, %s: %s", one->of->id, alike > 1 ? tws_cell(" and %d more", alike - 1) : "",
                    one->doubts_time ? "time" : "memory", one->doubt);
  }
}

static tws_code print_worst(const tws_cli *cli, const cases_report *r, tws_error *err) {
  const tws_case_comparison *c = &r->compared;
  const tws_case_result **order = tws_calloc((size_t)c->count + 1, sizeof *order);
  if (!order) return tws_fail(err, TWS_MEMORY, NULL, "out of memory");
  const int count = tws_cases_by_error(c, order);
  tws_table table;
  tws_table_init(&table, 6);
  tws_table_row(&table, (const char *[]){"farthest off", "group", "runtime", "measured", "predicted", "error"});
  for (int i = 0; i < count && i < r->o->worst; i++)
    tws_table_row(&table,
                  (const char *[]){order[i]->of->id, order[i]->of->group, order[i]->runtime,
                                   tws_cell("%.4g s", order[i]->measured_s), tws_cell("%.4g s", order[i]->predicted_s),
                                   tws_cell("%+.1f %%", 100 * tws_case_time_error(order[i]))});
  tws_free(order);
  tws_out("\n");
  return tws_table_print(cli, &table, err);
}

static tws_code print_text(const tws_cli *cli, const cases_report *r, tws_error *err) {
  tws_out("Seconds of a step, %s, and peak bytes of a device, against what was measured; errors in percent:\n",
          r->o->simulate ? "simulated" : "estimated");
  TWS_TRY(print_groups(cli, r, err));
  TWS_TRY(print_halves(cli, r, err));
  TWS_TRY(print_time_halves(cli, r, err));
  if (r->o->worst > 0) TWS_TRY(print_worst(cli, r, err));
  if (r->compared.reason_count) tws_out("\nSkipped:\n");
  for (int i = 0; i < r->compared.reason_count; i++)
    tws_out_wrapped(4, "  %d: %s", r->compared.reasons[i].count, r->compared.reasons[i].text);
  print_apart(&r->compared);
  return TWS_OK;
}

/* ---- JSON ---- */

static void add_number(cJSON *to, const char *name, double value) {
  if (isfinite(value))
    cJSON_AddNumberToObject(to, name, value);
  else
    cJSON_AddNullToObject(to, name);
}

static void add_figure(cJSON *to, const char *name, double value) {
  add_number(to, name, value > 0 ? value : NAN);
}

static void add_groups(cJSON *list, const tws_case_comparison *c) {
  for (int i = 0; i < c->group_count; i++) {
    const tws_case_group *g = &c->groups[i];
    cJSON *item = cJSON_CreateObject();
    if (!item) continue;
    cJSON_AddStringToObject(item, "group", g->name);
    cJSON_AddNumberToObject(item, "n", g->n);
    cJSON_AddNumberToObject(item, "skipped", g->skipped);
    add_number(item, "time_mape", g->time_mape);
    add_number(item, "time_median_ape", g->time_median_ape);
    add_number(item, "time_bias", g->time_bias);
    add_number(item, "within_10", g->within_10);
    add_number(item, "concordance", g->concordance);
    cJSON_AddNumberToObject(item, "apart_n", g->apart_n);
    add_number(item, "apart_mape", g->apart_mape);
    cJSON_AddNumberToObject(item, "mem_n", g->mem_n);
    add_number(item, "mem_mape", g->mem_mape);
    cJSON_AddNumberToObject(item, "oom_right", g->oom_right);
    cJSON_AddNumberToObject(item, "oom_wrong", g->oom_wrong);
    cJSON_AddItemToArray(list, item);
  }
}

static void add_time_half(cJSON *item, const tws_case_half *h) {
  cJSON_AddNumberToObject(item, "time_n", h->time_runs);
  cJSON_AddNumberToObject(item, "time_groups", h->time_groups);
  add_number(item, "time_median_of_groups", h->time_median_of_groups);
  add_number(item, "time_mean_of_groups", h->time_mean_of_groups);
  add_number(item, "time_worst_group", h->time_worst_group);
  cJSON_AddNumberToObject(item, "time_in_interval_n", h->time_in_interval);
  cJSON_AddNumberToObject(item, "time_inside", h->time_inside);
  add_number(item, "time_half_width", h->time_half_width);
}

static void add_halves(cJSON *list, const tws_case_half halves[2]) {
  for (int i = 0; i < 2; i++) {
    const tws_case_half *h = &halves[i];
    cJSON *item = cJSON_CreateObject();
    if (!item) continue;
    cJSON_AddStringToObject(item, "half", tws_case_half_name(h->for_fitting));
    cJSON_AddNumberToObject(item, "n", h->runs);
    cJSON_AddNumberToObject(item, "ran_right", h->ran_right);
    cJSON_AddNumberToObject(item, "ran_wrong", h->ran_wrong);
    cJSON_AddNumberToObject(item, "oom_right", h->oom_right);
    cJSON_AddNumberToObject(item, "oom_wrong", h->oom_wrong);
    cJSON_AddNumberToObject(item, "ran_tight", h->ran_tight);
    cJSON_AddNumberToObject(item, "oom_tight", h->oom_tight);
    cJSON_AddNumberToObject(item, "mem_n", h->memory_runs);
    cJSON_AddNumberToObject(item, "mem_inside", h->memory_inside);
    cJSON_AddNumberToObject(item, "mem_groups", h->memory_groups);
    add_number(item, "mem_median_ape", h->memory_median);
    add_number(item, "mem_median_of_groups", h->memory_median_of_groups);
    add_number(item, "mem_mean_of_groups", h->memory_mean_of_groups);
    add_time_half(item, h);
    cJSON_AddItemToArray(list, item);
  }
}

/* Adds the members of a run that scenarios/published/evidence.sh writes to validation/evidence.def. */
static void add_key(cJSON *item, const tws_case_result *r) {
  if (r->skipped_because) return;
  cJSON_AddStringToObject(item, "part", tws_evidence_part_name(r->part));
  cJSON_AddStringToObject(item, "profile", r->key.gpu);
  cJSON_AddStringToObject(item, "generation", tws_generation_name(r->key.generation));
  cJSON_AddStringToObject(item, "kind", tws_evidence_model_name(r->key.model));
  cJSON_AddNumberToObject(item, "parameters", r->key.parameters);
  cJSON_AddNumberToObject(item, "tokens", r->key.tokens);
  cJSON_AddNumberToObject(item, "gpus", r->key.gpus);
  cJSON_AddNumberToObject(item, "zero_stage", r->key.stage);
}

static void add_results(cJSON *list, const tws_case_comparison *c) {
  for (int i = 0; i < c->count; i++) {
    const tws_case_result *r = &c->results[i];
    cJSON *item = cJSON_CreateObject();
    if (!item) continue;
    cJSON_AddStringToObject(item, "id", r->of->id);
    cJSON_AddStringToObject(item, "group", r->of->group);
    cJSON_AddStringToObject(item, "half", tws_case_half_name(r->for_fitting));
    cJSON_AddStringToObject(item, "runtime", r->runtime);
    if (r->predicted_fits >= 0) cJSON_AddBoolToObject(item, "predicted_fits", r->predicted_fits);
    if (r->predicted_fits >= 0) cJSON_AddBoolToObject(item, "predicted_tight", r->predicted_tight);
    if (r->out_of_memory >= 0) cJSON_AddBoolToObject(item, "out_of_memory", r->out_of_memory);
    add_figure(item, "predicted_s", r->predicted_s);
    add_figure(item, "predicted_low_s", r->low_s);
    add_figure(item, "predicted_high_s", r->high_s);
    add_figure(item, "measured_s", r->skipped_because ? r->of->measured_s : r->measured_s);
    add_figure(item, "predicted_bytes", r->predicted_bytes);
    add_figure(item, "measured_bytes", r->of->measured_bytes);
    if (r->skipped_because)
      cJSON_AddStringToObject(item, "skipped_because", r->skipped_because);
    else
      cJSON_AddNullToObject(item, "skipped_because");
    if (r->doubt) cJSON_AddStringToObject(item, "doubt", r->doubt);
    add_key(item, r);
    cJSON_AddItemToArray(list, item);
  }
}

static tws_code print_json(const cases_report *r, tws_error *err) {
  cJSON *root = cJSON_CreateObject();
  cJSON_AddStringToObject(root, "schema", "twinspeed-cases-1");
  cJSON_AddStringToObject(root, "times", r->o->simulate ? "simulated" : "estimated");
  add_groups(cJSON_AddArrayToObject(root, "groups"), &r->compared);
  add_halves(cJSON_AddArrayToObject(root, "halves"), r->halves);
  add_results(cJSON_AddArrayToObject(root, "cases"), &r->compared);
  return tws_out_json(root, err);
}

/* ---- the scatter plot ---- */

static tws_code draw_scatter(const tws_cli *cli, const cases_report *r, tws_error *err) {
  const tws_case_comparison *c = &r->compared;
  char scripts[4096], path[4200], title[128];
  int count = 0;
  if (mkdir(r->o->figures, 0777) != 0 && errno != EEXIST)
    return tws_fail(err, TWS_IO, NULL, "%s: %s", r->o->figures, strerror(errno));
  tws_plot_point *points = tws_calloc((size_t)c->count + 1, sizeof *points);
  if (!points) return tws_fail(err, TWS_MEMORY, NULL, "out of memory for a figure");
  for (int i = 0; i < c->count; i++) {
    const tws_case_result *one = &c->results[i];
    if (!isfinite(tws_case_time_error(one))) continue;
    points[count++] =
        (tws_plot_point){one->of->group, one->measured_s, one->measured_s, one->measured_s, one->predicted_s};
  }
  tws_plots_path(scripts, (int)sizeof scripts);
  snprintf(title, sizeof title, "%d published runs: predicted against measured", count);
  for (int i = 0; i < 2 && count; i++) {
    tws_error why = {0};
    snprintf(path, sizeof path, "%s/accuracy.%s", r->o->figures, i ? "svg" : "png");
    tws_validate_figure_note(cli, tws_plot_accuracy(scripts, points, count, title, path, &why), path, &why);
  }
  tws_free(points);
  return TWS_OK;
}

/* ---- the subcommand ---- */

static tws_code validate_cases(const tws_cli *cli, cases_report *r, tws_error *err) {
  const tws_validate_options *o = r->o;
  const tws_sim_api *sim = NULL;
  tws_progress progress = tws_cli_progress(cli);
  TWS_TRY(tws_cases_load(o->cases, &r->cases, err));
  if (o->simulate) TWS_TRY(tws_sim_load(&sim, err));
  TWS_TRY(tws_cases_compare(r->cases, o->group.item, o->group.count, sim, &progress, &r->compared, err));
  TWS_TRY(tws_cases_halves(&r->compared, r->halves, err));
  TWS_TRY(cli->json ? print_json(r, err) : print_text(cli, r, err));
  if (o->figures) TWS_TRY(draw_scatter(cli, r, err));
  int count;
  const double error = tws_cases_time_error(&r->compared, &count);
  if (o->tolerance >= 0 && !(error <= o->tolerance))
    return tws_fail(err, TWS_NO, NULL, "the mean absolute error of %d step times is %.1f %%, the tolerance is %.3g %%",
                    count, error, o->tolerance);
  return TWS_OK;
}

tws_code tws_validate_cases(const tws_cli *cli, const tws_validate_options *o, tws_error *err) {
  int served = 0;
  TWS_TRY(tws_validate_is_served(o->cases, &served, err));
  if (served) return tws_validate_served(cli, o, err);
  cases_report r = {.o = o};
  tws_code code = validate_cases(cli, &r, err);
  tws_case_comparison_free(&r.compared);
  tws_cases_destroy(r.cases);
  return code;
}
