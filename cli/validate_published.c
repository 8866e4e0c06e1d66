/* twinspeed validate --published: predictions beside runs that others published, each with its error. */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include "base/units.h"
#include "cli/validate.h"
#include "job/modules.h"
#include "validation/published.h"

typedef struct published_report {
  const tws_validate_options *o;
  tws_published *published;
  tws_published_comparison compared;
} published_report;

/* A median over the runs of a group (NULL: of all, after the groups). Begins as {.measure = TWS_PUBLISHED_MEASURES -
 * 1}. */
typedef struct group_median {
  const char *group;
  int measure, runs;
  double error;
  int next, last; /* of tws_published_next_group(); whether `group` is all */
} group_median;

/* The next one that there are runs for; 0 at the end. */
static int next_median(const published_report *r, group_median *m) {
  do {
    if (++m->measure == TWS_PUBLISHED_MEASURES) {
      if (m->last) return 0;
      m->group = tws_published_next_group(&r->compared, &m->next);
      m->last = m->group == NULL;
      m->measure = 0;
    }
    m->error = tws_published_median(&r->compared, m->group, (tws_published_measure)m->measure, &m->runs);
  } while (m->runs == 0);
  return 1;
}

/* ---- the report for people ---- */

static const char *percent_text(double error) {
  return isfinite(error) ? tws_cell("%+.1f %%", error * 100) : "";
}

/* "8 x 35 (3) x 9": ranks that share layers, stages (and their chunks), replicas */
static const char *layout_text(const tws_published_row *row_) {
  tws_division d = tws_config_division(row_->job->config);
  int data = tws_topology_size(&row_->job->topology, TWS_AXES_DATA);
  const char *chunks = d.virtual_stages > 1 ? tws_cell("(%d)", d.virtual_stages) : "";
  return tws_cell("%d x %d%s x %d", d.tensor, d.pipeline, chunks, data > 0 ? data : 1);
}

/* How many predictions there are to compare by a measure. */
static int count_compared(const published_report *r, int measure) {
  int count;
  tws_published_median(&r->compared, NULL, (tws_published_measure)measure, &count);
  return count;
}

static tws_code print_steps(const tws_cli *cli, const published_report *r, tws_error *err) {
  tws_table table;
  if (!count_compared(r, TWS_PUBLISHED_STEP)) return TWS_OK;
  tws_table_init(&table, 10);
  tws_table_row(&table, (const char *[]){"run", "GPUs", "tp x pp x dp", "micro", "batch", "published", "predicted",
                                         "error", "TFLOP/s", "predicted"});
  for (int i = 0; i < r->compared.count; i++) {
    const tws_published_row *row_ = &r->compared.rows[i];
    if (!row_->predicted || !(row_->published_s > 0)) continue;
    const tws_config *c = row_->job->config;
    double published = tws_published_teraflops(row_->run, row_->job, row_->published_s);
    double predicted = tws_published_teraflops(row_->run, row_->job, row_->prediction.step_s);
    tws_table_row(&table, (const char *[]){row_->run->id, tws_cell("%d", row_->run->gpus), layout_text(row_),
                                           tws_cell("%lld", (long long)c->micro_batch_size),
                                           tws_cell("%lld", (long long)c->train_batch_size),
                                           tws_cell("%s%.3f s", row_->derived ? "~" : "", row_->published_s),
                                           tws_cell("%.3f s", row_->prediction.step_s),
                                           percent_text(tws_published_error(row_, TWS_PUBLISHED_STEP)),
                                           tws_cell("%.1f", published), tws_cell("%.1f", predicted)});
  }
  tws_out(
      "\nTime of an iteration, %s (~: made of the published TFLOP/s or MFU); TFLOP/s of one GPU,\n"
      "counted as the papers do, with recomputation:\n",
      r->o->simulate ? "simulated" : "estimated");
  return tws_table_print(cli, &table, err);
}

static void memory_row(tws_table *table, const tws_published_row *row_, int measure, const char *what, double published,
                       double predicted) {
  if (!(published > 0)) return;
  tws_table_row(table, (const char *[]){row_->run->id, what, tws_cell("%.2f", published), tws_cell("%.2f", predicted),
                                        percent_text(tws_published_error(row_, (tws_published_measure)measure))});
}

static tws_code print_memory(const tws_cli *cli, const published_report *r, tws_error *err) {
  tws_table table;
  if (!count_compared(r, TWS_PUBLISHED_STATE) && !count_compared(r, TWS_PUBLISHED_ACTIVATIONS)) return TWS_OK;
  tws_table_init(&table, 5);
  tws_table_row(&table, (const char *[]){"run", "memory of one GPU, GiB", "published", "predicted", "error"});
  for (int i = 0; i < r->compared.count; i++) {
    const tws_published_row *row_ = &r->compared.rows[i];
    if (!row_->predicted) continue;
    memory_row(&table, row_, TWS_PUBLISHED_STATE, "weights, gradients, optimizer", row_->run->state_gib,
               row_->prediction.state_gib);
    memory_row(&table, row_, TWS_PUBLISHED_ACTIVATIONS, "activations", row_->run->activation_gib,
               row_->prediction.activation_gib);
  }
  tws_out("\n");
  return tws_table_print(cli, &table, err);
}

static tws_code print_medians(const tws_cli *cli, const published_report *r, tws_error *err) {
  static const char *const names[] = {"time", "states", "activations"};
  tws_table table;
  if (!count_compared(r, TWS_PUBLISHED_STEP) && !count_compared(r, TWS_PUBLISHED_STATE) &&
      !count_compared(r, TWS_PUBLISHED_ACTIVATIONS))
    return TWS_OK;
  tws_table_init(&table, 4);
  tws_table_row(&table, (const char *[]){"median absolute error", "of", "runs", "error"});
  for (group_median m = {.measure = TWS_PUBLISHED_MEASURES - 1}; next_median(r, &m);)
    tws_table_row(&table, (const char *[]){m.group ? m.group : "all", names[m.measure], tws_cell("%d", m.runs),
                                           tws_cell("%.1f %%", m.error * 100)});
  tws_out("\n");
  return tws_table_print(cli, &table, err);
}

/* Runs that went and would not go as planned, and the other way round. */
static void print_verdicts(const published_report *r) {
  for (int i = 0; i < r->compared.count; i++) {
    const tws_published_row *row_ = &r->compared.rows[i];
    if (!row_->predicted) continue;
    int fitted = row_->run->fits >= 0 ? row_->run->fits : row_->published_s > 0;
    if (fitted == row_->prediction.fits || (row_->run->fits < 0 && !(row_->published_s > 0))) continue;
    tws_out("%s: published to %s, predicted to need %.1f GiB of a GPU\n", row_->run->id,
            fitted ? "fit" : "run out of memory", row_->prediction.memory_gib);
  }
}

static void print_reasons(const published_report *r) {
  int heading = 0;
  for (int i = 0; i < r->compared.count; i++) {
    const tws_published_row *row_ = &r->compared.rows[i];
    if (!row_->chosen || row_->predicted) continue;
    if (!heading++) tws_out("\nNot predicted:\n");
    tws_out("  %s: %s\n", row_->run->id, row_->why.message);
  }
}

static void print_sources(const published_report *r) {
  tws_out("\nSources:\n");
  for (int i = 0; i < r->compared.count; i++) {
    const tws_published_run *run = r->compared.rows[i].run;
    int seen = !r->compared.rows[i].chosen;
    for (int j = 0; j < i && !seen; j++)
      seen = r->compared.rows[j].chosen && strcmp(r->compared.rows[j].run->title, run->title) == 0;
    if (!seen) tws_out("  %s%s%s\n", run->title, *run->url ? ", " : "", run->url);
  }
}

static tws_code print_text(const tws_cli *cli, const published_report *r, tws_error *err) {
  if (*r->published->about) tws_out("%s\n", r->published->about);
  TWS_TRY(print_steps(cli, r, err));
  TWS_TRY(print_memory(cli, r, err));
  print_verdicts(r);
  TWS_TRY(print_medians(cli, r, err));
  print_reasons(r);
  print_sources(r);
  return TWS_OK;
}

/* ---- the report for programs ---- */

static void add_number(cJSON *to, const char *name, double value) {
  if (isfinite(value) && value > 0) cJSON_AddNumberToObject(to, name, value);
}

static void add_error(cJSON *to, const char *name, double error) {
  if (isfinite(error)) cJSON_AddNumberToObject(to, name, error);
}

static void add_prediction(cJSON *to, const tws_published_row *row_) {
  const tws_prediction *p = &row_->prediction;
  const tws_config *c = row_->job->config;
  cJSON_AddStringToObject(to, "profile", tws_profile_name(row_->job->profile));
  cJSON_AddNumberToObject(to, "gpus", row_->run->gpus);
  cJSON_AddNumberToObject(to, "parameters", (double)tws_network_params(row_->job->network, 0));
  cJSON_AddNumberToObject(to, "micro_batch", (double)c->micro_batch_size);
  cJSON_AddNumberToObject(to, "train_batch", (double)c->train_batch_size);
  add_number(to, "published_step_s", row_->published_s);
  if (row_->published_s > 0) cJSON_AddBoolToObject(to, "published_step_derived", row_->derived);
  add_number(to, "predicted_step_s", p->step_s);
  add_number(to, "published_teraflops", tws_published_teraflops(row_->run, row_->job, row_->published_s));
  add_number(to, "predicted_teraflops", tws_published_teraflops(row_->run, row_->job, p->step_s));
  add_error(to, "step_error", tws_published_error(row_, TWS_PUBLISHED_STEP));
  add_number(to, "published_state_gib", row_->run->state_gib);
  add_number(to, "predicted_state_gib", p->state_gib);
  add_error(to, "state_error", tws_published_error(row_, TWS_PUBLISHED_STATE));
  add_number(to, "published_activation_gib", row_->run->activation_gib);
  add_number(to, "predicted_activation_gib", p->activation_gib);
  add_error(to, "activation_error", tws_published_error(row_, TWS_PUBLISHED_ACTIVATIONS));
  if (row_->run->fits >= 0) cJSON_AddBoolToObject(to, "published_fits", row_->run->fits);
  cJSON_AddNumberToObject(to, "predicted_memory_gib", p->memory_gib);
  cJSON_AddBoolToObject(to, "predicted_fits", p->fits);
  cJSON_AddNumberToObject(to, "bubble", p->estimate.balance.bubble);
  for (int axis = 0; axis < TWS_REPORT_COUNT; axis++)
    if (tws_report_has(axis))
      add_number(to, tws_cell("exposed_%s_s", tws_report_name(axis)), p->estimate.path.axis_exposed_s[axis]);
}

static void add_medians(cJSON *root, const published_report *r) {
  static const char *const names[] = {"step", "state", "activation"};
  cJSON *list = cJSON_AddArrayToObject(root, "median_absolute_errors");
  for (group_median m = {.measure = TWS_PUBLISHED_MEASURES - 1}; next_median(r, &m);) {
    cJSON *item = cJSON_CreateObject();
    if (!item) continue;
    cJSON_AddStringToObject(item, "group", m.group ? m.group : "all");
    cJSON_AddStringToObject(item, "of", names[m.measure]);
    cJSON_AddNumberToObject(item, "runs", m.runs);
    cJSON_AddNumberToObject(item, "error", m.error);
    cJSON_AddItemToArray(list, item);
  }
}

static tws_code print_json(const published_report *r, tws_error *err) {
  cJSON *root = cJSON_CreateObject(), *runs = root ? cJSON_AddArrayToObject(root, "runs") : NULL;
  cJSON_AddStringToObject(root, "schema", "twinspeed-validate-published-1");
  cJSON_AddStringToObject(root, "about", r->published->about);
  cJSON_AddStringToObject(root, "predicted_by", r->o->simulate ? "simulation" : "estimate");
  for (int i = 0; i < r->compared.count; i++) {
    const tws_published_row *row_ = &r->compared.rows[i];
    cJSON *item = row_->chosen ? cJSON_CreateObject() : NULL;
    if (!item) continue;
    cJSON_AddStringToObject(item, "id", row_->run->id);
    cJSON_AddStringToObject(item, "group", row_->run->group);
    cJSON_AddStringToObject(item, "source", row_->run->title);
    cJSON_AddStringToObject(item, "where", row_->run->where);
    if (row_->run->note) cJSON_AddStringToObject(item, "note", row_->run->note);
    if (row_->predicted)
      add_prediction(item, row_);
    else
      cJSON_AddStringToObject(item, "reason", row_->why.message);
    cJSON_AddItemToArray(runs, item);
  }
  add_medians(root, r);
  return tws_out_json(root, err);
}

/* ---- the verb ---- */

static tws_code validate_published(const tws_cli *cli, published_report *r, tws_error *err) {
  const tws_validate_options *o = r->o;
  const tws_sim_api *sim = NULL;
  tws_fidelity fidelity;
  tws_progress progress = tws_cli_progress(cli);
  TWS_TRY(tws_published_load(o->published, &r->published, err));
  TWS_TRY(tws_fidelity_parse(o->fidelity, &fidelity, err));
  if (o->simulate) TWS_TRY(tws_sim_load(&sim, err));
  TWS_TRY(tws_published_compare(r->published, o->only, sim, fidelity, &progress, &r->compared, err));
  TWS_TRY(cli->json ? print_json(r, err) : print_text(cli, r, err));
  int count;
  double median = tws_published_median(&r->compared, NULL, TWS_PUBLISHED_STEP, &count);
  if (o->tolerance >= 0 && !(median * 100 <= o->tolerance))
    return tws_fail(err, TWS_NO, NULL, "the median error of %d iteration times is %.1f %%, the tolerance is %.3g %%",
                    count, median * 100, o->tolerance);
  return TWS_OK;
}

tws_code tws_validate_published(const tws_cli *cli, const tws_validate_options *o, tws_error *err) {
  published_report r = {.o = o};
  tws_code code = validate_published(cli, &r, err);
  tws_published_comparison_free(&r.compared);
  tws_published_destroy(r.published);
  return code;
}
