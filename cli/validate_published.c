/* twinspeed validate --published: predictions beside runs that others published, each with its error. */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include "base/units.h"
#include "cli/modules.h"
#include "cli/validate.h"
#include "estimators/published.h"

typedef struct row {
  const tws_published_run *run;
  tws_published_job job;
  tws_prediction prediction;
  int predicted, derived, chosen;
  double published_s;
  tws_error why; /* no prediction */
} row;

typedef struct published_report {
  const tws_validate_options *o;
  tws_published *published;
  row *rows;
  int count;
} published_report;

/* ---- predicting ---- */

static tws_code simulate(const published_report *r, row *row_, tws_error *err) {
  const tws_sim_api *sim;
  tws_fidelity fidelity;
  tws_sim_result result;
  TWS_TRY(tws_validate_fidelity(r->o->fidelity, &fidelity, err));
  TWS_TRY(tws_sim_load(&sim, err));
  TWS_TRY(tws_tune_simulate(sim, row_->job.network, row_->job.config, row_->run->gpus, 1, &row_->job.machine, fidelity,
                            NULL, &result, err));
  row_->prediction.step_s = result.step_s;
  return TWS_OK;
}

static tws_code predict(const published_report *r, row *row_, tws_error *err) {
  int index = (int)(row_->run - r->published->runs);
  TWS_TRY(tws_published_job_load(r->published, index, &row_->job, err));
  TWS_TRY(tws_published_predict(&row_->job, &row_->prediction, err));
  row_->published_s = tws_published_step(row_->run, &row_->job, &row_->derived);
  return r->o->simulate && row_->published_s > 0 ? simulate(r, row_, err) : TWS_OK;
}

/* Runs that cannot be planned are part of the answer; what fails for another reason ends the verb. */
static tws_code predict_all(const tws_cli *cli, published_report *r, tws_error *err) {
  tws_progress progress = tws_cli_progress(cli);
  tws_code code = TWS_OK;
  int done = 0;
  tws_progress_begin(&progress, "predicting published runs", r->count);
  for (int i = 0; i < r->count && code == TWS_OK; i++) {
    row *row_ = &r->rows[i];
    if (!row_->chosen) continue;
    code = predict(r, row_, &row_->why);
    row_->predicted = code == TWS_OK;
    if (code == TWS_UNSUPPORTED || code == TWS_INVALID) code = TWS_OK;
    if (code != TWS_OK && err) *err = row_->why;
    tws_progress_update(&progress, ++done);
  }
  tws_progress_end(&progress);
  return code;
}

/* ---- errors ---- */

static double ratio_error(double predicted, double published) {
  return published > 0 ? predicted / published - 1 : NAN;
}

enum { STEP, STATE, ACTIVATIONS, MEASURES };

static double error_of(const row *row_, int measure) {
  if (!row_->predicted) return NAN;
  const tws_prediction *p = &row_->prediction;
  if (measure == STEP) return ratio_error(p->step_s, row_->published_s);
  if (measure == STATE) return ratio_error(p->state_gib, row_->run->state_gib);
  return ratio_error(p->activation_gib, row_->run->activation_gib);
}

static int ascending(const void *a, const void *b) {
  double x = *(const double *)a, y = *(const double *)b;
  return (x > y) - (x < y);
}

/* Median of the absolute errors of a group (NULL: all); the number of them in *count. */
static double median_error(const published_report *r, const char *group, int measure, int *count) {
  double *errors = tws_calloc((size_t)r->count + 1, sizeof *errors), median = NAN;
  *count = 0;
  for (int i = 0; errors && i < r->count; i++) {
    double error = error_of(&r->rows[i], measure);
    if (isfinite(error) && (!group || strcmp(r->rows[i].run->group, group) == 0)) errors[(*count)++] = fabs(error);
  }
  if (*count > 0) {
    qsort(errors, (size_t)*count, sizeof *errors, ascending);
    median = (errors[(*count - 1) / 2] + errors[*count / 2]) / 2;
  }
  tws_free(errors);
  return median;
}

/* The first chosen row of each group in turn: *next starts at 0. */
static const char *next_group(const published_report *r, int *next) {
  for (; *next < r->count; ++*next) {
    const char *group = r->rows[*next].run->group;
    int seen = !r->rows[*next].chosen;
    for (int i = 0; i < *next && !seen; i++) seen = r->rows[i].chosen && strcmp(r->rows[i].run->group, group) == 0;
    if (!seen) return r->rows[(*next)++].run->group;
  }
  return NULL;
}

/* A median over the runs of a group (NULL: of all, after the groups). Begins as {.measure = MEASURES - 1}. */
typedef struct group_median {
  const char *group;
  int measure, runs;
  double error;
  int next, last; /* next_group()'s; whether `group` is all */
} group_median;

/* The next one that there are runs for; 0 at the end. */
static int next_median(const published_report *r, group_median *m) {
  do {
    if (++m->measure == MEASURES) {
      if (m->last) return 0;
      m->group = next_group(r, &m->next);
      m->last = m->group == NULL;
      m->measure = 0;
    }
    m->error = median_error(r, m->group, m->measure, &m->runs);
  } while (m->runs == 0);
  return 1;
}

/* ---- the report for people ---- */

static const char *percent(double error) {
  return isfinite(error) ? tws_cell("%+.1f %%", error * 100) : "";
}

/* "8 x 35 (3) x 9": ranks that share layers, stages (and their chunks), replicas */
static const char *layout(const row *row_) {
  tws_division d = tws_config_division(row_->job.config);
  int data = tws_topology_size(&row_->job.topology, TWS_AXES_DATA);
  const char *chunks = d.virtual_stages > 1 ? tws_cell("(%d)", d.virtual_stages) : "";
  return tws_cell("%d x %d%s x %d", d.tensor, d.pipeline, chunks, data > 0 ? data : 1);
}

/* How many predictions there are to compare by a measure. */
static int compared(const published_report *r, int measure) {
  int count;
  median_error(r, NULL, measure, &count);
  return count;
}

static tws_code print_steps(const tws_cli *cli, const published_report *r, tws_error *err) {
  tws_table table;
  if (!compared(r, STEP)) return TWS_OK;
  tws_table_init(&table, 10);
  tws_table_row(&table, (const char *[]){"run", "GPUs", "tp x pp x dp", "micro", "batch", "published", "predicted",
                                         "error", "TFLOP/s", "predicted"});
  for (int i = 0; i < r->count; i++) {
    const row *row_ = &r->rows[i];
    if (!row_->predicted || !(row_->published_s > 0)) continue;
    const tws_config *c = row_->job.config;
    double published = tws_published_teraflops(row_->run, &row_->job, row_->published_s);
    double predicted = tws_published_teraflops(row_->run, &row_->job, row_->prediction.step_s);
    tws_table_row(&table, (const char *[]){row_->run->id, tws_cell("%d", row_->run->gpus), layout(row_),
                                           tws_cell("%lld", (long long)c->micro_batch_size),
                                           tws_cell("%lld", (long long)c->train_batch_size),
                                           tws_cell("%s%.3f s", row_->derived ? "~" : "", row_->published_s),
                                           tws_cell("%.3f s", row_->prediction.step_s), percent(error_of(row_, STEP)),
                                           tws_cell("%.1f", published), tws_cell("%.1f", predicted)});
  }
  tws_out(
      "\nTime of an iteration, %s (~: made of the published TFLOP/s or MFU); TFLOP/s of one GPU,\n"
      "counted as the papers do, with recomputation:\n",
      r->o->simulate ? "simulated" : "estimated");
  return tws_table_print(cli, &table, err);
}

static void memory_row(tws_table *table, const row *row_, int measure, const char *what, double published,
                       double predicted) {
  if (!(published > 0)) return;
  tws_table_row(table, (const char *[]){row_->run->id, what, tws_cell("%.2f", published), tws_cell("%.2f", predicted),
                                        percent(error_of(row_, measure))});
}

static tws_code print_memory(const tws_cli *cli, const published_report *r, tws_error *err) {
  tws_table table;
  if (!compared(r, STATE) && !compared(r, ACTIVATIONS)) return TWS_OK;
  tws_table_init(&table, 5);
  tws_table_row(&table, (const char *[]){"run", "memory of one GPU, GiB", "published", "predicted", "error"});
  for (int i = 0; i < r->count; i++) {
    const row *row_ = &r->rows[i];
    if (!row_->predicted) continue;
    memory_row(&table, row_, STATE, "weights, gradients, optimizer", row_->run->state_gib, row_->prediction.state_gib);
    memory_row(&table, row_, ACTIVATIONS, "activations", row_->run->activation_gib, row_->prediction.activation_gib);
  }
  tws_out("\n");
  return tws_table_print(cli, &table, err);
}

static tws_code print_medians(const tws_cli *cli, const published_report *r, tws_error *err) {
  static const char *const names[] = {"time", "states", "activations"};
  tws_table table;
  if (!compared(r, STEP) && !compared(r, STATE) && !compared(r, ACTIVATIONS)) return TWS_OK;
  tws_table_init(&table, 4);
  tws_table_row(&table, (const char *[]){"median absolute error", "of", "runs", "error"});
  for (group_median m = {.measure = MEASURES - 1}; next_median(r, &m);)
    tws_table_row(&table, (const char *[]){m.group ? m.group : "all", names[m.measure], tws_cell("%d", m.runs),
                                           tws_cell("%.1f %%", m.error * 100)});
  tws_out("\n");
  return tws_table_print(cli, &table, err);
}

/* Runs that went and would not go as planned, and the other way round. */
static void print_verdicts(const published_report *r) {
  for (int i = 0; i < r->count; i++) {
    const row *row_ = &r->rows[i];
    if (!row_->predicted) continue;
    int fitted = row_->run->fits >= 0 ? row_->run->fits : row_->published_s > 0;
    if (fitted == row_->prediction.fits || (row_->run->fits < 0 && !(row_->published_s > 0))) continue;
    tws_out("%s: published to %s, predicted to need %.1f GiB of a GPU\n", row_->run->id,
            fitted ? "fit" : "run out of memory", row_->prediction.memory_gib);
  }
}

static void print_reasons(const published_report *r) {
  int heading = 0;
  for (int i = 0; i < r->count; i++) {
    const row *row_ = &r->rows[i];
    if (!row_->chosen || row_->predicted) continue;
    if (!heading++) tws_out("\nNot predicted:\n");
    tws_out("  %s: %s\n", row_->run->id, row_->why.message);
  }
}

static void print_sources(const published_report *r) {
  tws_out("\nSources:\n");
  for (int i = 0; i < r->count; i++) {
    const tws_published_run *run = r->rows[i].run;
    int seen = !r->rows[i].chosen;
    for (int j = 0; j < i && !seen; j++) seen = r->rows[j].chosen && strcmp(r->rows[j].run->title, run->title) == 0;
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

static void add_prediction(cJSON *to, const row *row_) {
  const tws_prediction *p = &row_->prediction;
  const tws_config *c = row_->job.config;
  cJSON_AddStringToObject(to, "profile", tws_profile_name(row_->job.profile));
  cJSON_AddNumberToObject(to, "gpus", row_->run->gpus);
  cJSON_AddNumberToObject(to, "parameters", (double)tws_network_params(row_->job.network, 0));
  cJSON_AddNumberToObject(to, "micro_batch", (double)c->micro_batch_size);
  cJSON_AddNumberToObject(to, "train_batch", (double)c->train_batch_size);
  add_number(to, "published_step_s", row_->published_s);
  if (row_->published_s > 0) cJSON_AddBoolToObject(to, "published_step_derived", row_->derived);
  add_number(to, "predicted_step_s", p->step_s);
  add_number(to, "published_teraflops", tws_published_teraflops(row_->run, &row_->job, row_->published_s));
  add_number(to, "predicted_teraflops", tws_published_teraflops(row_->run, &row_->job, p->step_s));
  add_error(to, "step_error", error_of(row_, STEP));
  add_number(to, "published_state_gib", row_->run->state_gib);
  add_number(to, "predicted_state_gib", p->state_gib);
  add_error(to, "state_error", error_of(row_, STATE));
  add_number(to, "published_activation_gib", row_->run->activation_gib);
  add_number(to, "predicted_activation_gib", p->activation_gib);
  add_error(to, "activation_error", error_of(row_, ACTIVATIONS));
  if (row_->run->fits >= 0) cJSON_AddBoolToObject(to, "published_fits", row_->run->fits);
  cJSON_AddNumberToObject(to, "predicted_memory_gib", p->memory_gib);
  cJSON_AddBoolToObject(to, "predicted_fits", p->fits);
  cJSON_AddNumberToObject(to, "bubble", p->estimate.balance.bubble);
  for (int axis = 0; axis < TWS_REPORT_COUNT; axis++)
    if (tws_report_has(axis)) add_number(to, tws_cell("exposed_%s_s", tws_report_name(axis)), p->estimate.path.axis_exposed_s[axis]);
}

static void add_medians(cJSON *root, const published_report *r) {
  static const char *const names[] = {"step", "state", "activation"};
  cJSON *list = cJSON_AddArrayToObject(root, "median_absolute_errors");
  for (group_median m = {.measure = MEASURES - 1}; next_median(r, &m);) {
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
  for (int i = 0; i < r->count; i++) {
    const row *row_ = &r->rows[i];
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

static tws_code validate(const tws_cli *cli, published_report *r, tws_error *err) {
  TWS_TRY(tws_published_load(r->o->published, &r->published, err));
  r->count = r->published->count;
  r->rows = tws_calloc((size_t)r->count + 1, sizeof *r->rows);
  if (!r->rows) return tws_fail(err, TWS_MEMORY, NULL, "out of memory for %d runs", r->count);
  int chosen = 0;
  for (int i = 0; i < r->count; i++) {
    r->rows[i].run = &r->published->runs[i];
    r->rows[i].chosen = !r->o->only || strstr(r->published->runs[i].id, r->o->only) != NULL;
    chosen += r->rows[i].chosen;
  }
  if (chosen == 0)
    return tws_fail(err, TWS_USAGE, "the names are the \"id\" of the runs", "--only %.80s: no run has that in its name",
                    r->o->only ? r->o->only : "");
  TWS_TRY(predict_all(cli, r, err));
  TWS_TRY(cli->json ? print_json(r, err) : print_text(cli, r, err));
  int count;
  double median = median_error(r, NULL, STEP, &count);
  if (r->o->tolerance >= 0 && !(median * 100 <= r->o->tolerance))
    return tws_fail(err, TWS_NO, NULL, "the median error of %d iteration times is %.1f %%, the tolerance is %.3g %%",
                    count, median * 100, r->o->tolerance);
  return TWS_OK;
}

tws_code tws_validate_published(const tws_cli *cli, const tws_validate_options *o, tws_error *err) {
  published_report r = {.o = o};
  tws_code code = validate(cli, &r, err);
  for (int i = 0; r.rows && i < r.count; i++) tws_published_job_release(&r.rows[i].job);
  tws_free(r.rows);
  tws_published_destroy(r.published);
  return code;
}
