#include "cli/optimizers_view.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/memory.h"
#include "base/units.h"
#include "cli/job_view.h"
#include "job/modules.h"
#include "traces/plot.h"

/* ---- JSON ---- */

cJSON *tws_run_json(const tws_run_estimate *run) {
  cJSON *one = cJSON_CreateObject(), *phases;
  cJSON_AddNumberToObject(one, "steps", (double)run->steps);
  cJSON_AddNumberToObject(one, "seconds", run->seconds);
  cJSON_AddNumberToObject(one, "mean_step_s", run->mean_step_s);
  cJSON_AddNumberToObject(one, "sent_bytes", run->sent_bytes);
  phases = cJSON_AddArrayToObject(one, "programs");
  for (int i = 0; i < run->phases; i++) {
    const tws_run_phase *phase = &run->phase[i];
    cJSON *item = cJSON_CreateObject();
    cJSON_AddStringToObject(item, "program", tws_program_name(phase->program));
    cJSON_AddNumberToObject(item, "runs", (double)phase->runs);
    cJSON_AddNumberToObject(item, "seconds", phase->seconds);
    cJSON_AddNumberToObject(item, "sent_bytes", phase->sent_bytes);
    cJSON_AddItemToArray(phases, item);
  }
  return one;
}

static void add_run(cJSON *list, const tws_run_estimate *run, double value) {
  cJSON *one = tws_run_json(run);
  cJSON_AddNumberToObject(one, "value", value);
  cJSON_AddItemToArray(list, one);
}

static tws_code print_json(const tws_optimizer_comparison *all, const tws_knee_sweep *sweep, tws_error *err) {
  cJSON *json = cJSON_CreateObject();
  cJSON_AddStringToObject(json, "schema", "twinspeed-optimizers-1");
  cJSON_AddStringToObject(json, "parameter", sweep->parameter);
  cJSON_AddStringToObject(json, "unit", tws_knee_unit(sweep));
  cJSON_AddNumberToObject(json, "steps", (double)all->steps);
  cJSON_AddNumberToObject(json, "freeze_step", (double)all->frozen_from);
  cJSON *list = cJSON_AddArrayToObject(json, "optimizers");
  for (int k = 0; k < all->optimizers; k++) {
    const tws_compared_optimizer *o = &all->optimizer[k];
    cJSON *one = cJSON_CreateObject();
    cJSON_AddStringToObject(one, "type", o->name);
    if (k > 0 && isfinite(o->pays_up_to)) cJSON_AddNumberToObject(one, "pays_up_to", o->pays_up_to);
    if (k > 0 && !isfinite(o->pays_up_to)) cJSON_AddStringToObject(one, "pays_up_to", "all");
    cJSON *points = cJSON_AddArrayToObject(one, "points");
    for (int i = 0; i < all->count; i++) add_run(points, &o->run[i], all->value[i]);
    cJSON_AddItemToArray(list, one);
  }
  return tws_out_json(json, err);
}

/* ---- tables ---- */

static const char *figure_cell(double value, const tws_knee_sweep *sweep) {
  return tws_cell("%.4g G%s", value / 1e9, tws_knee_unit(sweep));
}

static tws_code print_steps(const tws_cli *cli, const tws_optimizer_comparison *all, const tws_knee_sweep *sweep,
                            tws_error *err) {
  const char *cells[2 * TWS_COMPARED_OPTIMIZERS] = {sweep->parameter};
  tws_table table;
  /* a column for AdamW, and for each of the others its time and how many times as fast it is */
  tws_table_init(&table, 2 * all->optimizers);
  for (int k = 0; k < all->optimizers; k++) {
    cells[k > 0 ? 2 * k : 1] = all->optimizer[k].name;
    if (k > 0) cells[2 * k + 1] = "";
  }
  tws_table_row(&table, cells);
  for (int i = 0; i < all->count; i++) {
    char step[TWS_COMPARED_OPTIMIZERS][32];
    cells[0] = figure_cell(all->value[i], sweep);
    for (int k = 0; k < all->optimizers; k++) {
      tws_format_seconds(all->optimizer[k].run[i].mean_step_s, step[k], sizeof step[k]);
      cells[k > 0 ? 2 * k : 1] = step[k];
      if (k > 0) cells[2 * k + 1] = tws_cell("%.2fx", all->optimizer[k].speedup[i]);
    }
    tws_table_row(&table, cells);
  }
  return tws_table_print(cli, &table, err);
}

/* Prints the programs of each optimizer's steps: how often each runs, and what rank 0 sends in one run. */
static tws_code print_programs(const tws_cli *cli, const tws_optimizer_comparison *all, tws_error *err) {
  tws_table table;
  const int last = all->count - 1;
  tws_table_init(&table, 6);
  tws_table_row(&table, (const char *[]){"optimizer", "program", "runs", "sent", "slowest", "fastest"});
  for (int k = 0; k < all->optimizers; k++) {
    const tws_compared_optimizer *o = &all->optimizer[k];
    for (int p = 0; p < o->run[0].phases; p++) {
      const tws_run_phase *phase = &o->run[0].phase[p];
      char sent[32], slow[32], fast[32];
      tws_format_bytes(phase->sent_bytes, sent, sizeof sent);
      tws_format_seconds(phase->seconds, slow, sizeof slow);
      tws_format_seconds(o->run[last].phase[p].seconds, fast, sizeof fast);
      tws_table_row(&table, (const char *[]){p == 0 ? o->name : "", tws_program_name(phase->program),
                                             tws_thousands(phase->runs), sent, slow, fast});
    }
  }
  return tws_table_print(cli, &table, err);
}

tws_code tws_run_print(const tws_cli *cli, const tws_run_estimate *run, tws_error *err) {
  char all[32], sent[32];
  tws_table table;
  tws_table_init(&table, 4);
  tws_table_row(&table, (const char *[]){"program", "runs", "time", "sent by a rank"});
  for (int p = 0; p < run->phases; p++) {
    const tws_run_phase *phase = &run->phase[p];
    char seconds[32];
    tws_format_seconds(phase->seconds, seconds, sizeof seconds);
    tws_format_bytes(phase->sent_bytes, sent, sizeof sent);
    tws_table_row(&table,
                  (const char *[]){tws_program_name(phase->program), tws_thousands(phase->runs), seconds, sent});
  }
  tws_out("\nTraining of %s steps, by their programs:\n", tws_thousands(run->steps));
  TWS_TRY(tws_table_print(cli, &table, err));
  tws_out("%s in all, %s sent by a rank\n", tws_format_seconds(run->seconds, all, sizeof all),
          tws_format_bytes(run->sent_bytes, sent, sizeof sent));
  return TWS_OK;
}

static void print_limits(const tws_optimizer_comparison *all, const tws_knee_sweep *sweep) {
  for (int k = 1; k < all->optimizers; k++) {
    const tws_compared_optimizer *o = &all->optimizer[k];
    if (o->pays_up_to > 0 && isfinite(o->pays_up_to))
      tws_out("%s saves a twentieth of the time or more up to %s\n", o->name, figure_cell(o->pays_up_to, sweep));
    else
      tws_out("%s saves a twentieth of the time %s\n", o->name,
              o->pays_up_to > 0 ? "in the whole range" : "at no value of the range");
  }
}

static tws_code draw(const tws_optimizer_comparison *all, const tws_job *job, const char *out, tws_error *err) {
  tws_plot_speedup points[TWS_KNEE_POINTS];
  char scripts[512], title[160];
  const char *names[TWS_COMPARED_OPTIMIZERS];
  for (int k = 1; k < all->optimizers; k++) names[k - 1] = all->optimizer[k].name;
  for (int i = 0; i < all->count; i++) {
    points[i].bits_per_s = all->value[i];
    for (int k = 1; k < all->optimizers; k++) points[i].speedup[k - 1] = all->optimizer[k].speedup[i];
  }
  snprintf(title, sizeof title, "%.60s, %d ranks, %s steps", job->network->name, job->ranks, tws_thousands(all->steps));
  return tws_plot_speedups(tws_plots_path(scripts, sizeof scripts), points, all->count, names, all->optimizers - 1,
                           title, out, err);
}

tws_code tws_optimizers_run(const tws_cli *cli, tws_job *job, const tws_knee_sweep *sweep, int64_t steps,
                            const char *figure, tws_error *err) {
  tws_optimizer_comparison *all = tws_calloc(1, sizeof *all);
  if (!all) return tws_fail(err, TWS_MEMORY, NULL, "out of memory");
  tws_code code = tws_compare_optimizers(job, sweep, steps, all, err);
  if (code == TWS_OK && cli->json) code = print_json(all, sweep, err);
  if (code == TWS_OK && !cli->json) {
    tws_out("mean step of trainings of %s steps, %s of them uncompressed, on %d ranks\n\n", tws_thousands(steps),
            tws_thousands(all->frozen_from), job->ranks);
    code = print_steps(cli, all, sweep, err);
    tws_out("\n");
    if (code == TWS_OK) code = print_programs(cli, all, err);
    tws_out("\n");
    if (code == TWS_OK) print_limits(all, sweep);
  }
  if (code == TWS_OK && figure) code = draw(all, job, figure, err);
  tws_free(all);
  return code;
}
