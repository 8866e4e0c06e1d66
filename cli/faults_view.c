#include "cli/faults_view.h"

#include <cjson/cJSON.h>
#include <inttypes.h>
#include <stdlib.h>
#include "autotune/analysis.h"
#include "base/units.h"
#include "cli/job_view.h"
#include "cli/tune_view.h"
#include "job/saving.h"

/* What starting ranks anew takes, where nobody says: a minute. */
static const double restart_s = 60.0;

/* How many of the best are advised for. */
enum { ADVISED = 5 };

static double step_seconds(const tws_tune_candidate *c) {
  return c->simulated_s > 0 ? c->simulated_s : c->estimate.step_s;
}

/* Of candidate `at`, as it was ranked; its throughput is what failures leave of it. */
static tws_code advise_for(const tws_tune_report *report, int at, double between_s, tws_saving_advice *advice,
                           tws_error *err) {
  const tws_tune_candidate *c = &report->result->candidates[at];
  tws_job *job;
  TWS_TRY(tws_job_derive(report->request->job, &c->variant, &job, err));
  const tws_code code = tws_job_saving_advise(job, step_seconds(c), between_s, restart_s, advice, err);
  tws_job_destroy(job);
  return code;
}

static int advised(const tws_tune_report *report) {
  return report->result->fits < ADVISED ? report->result->fits : ADVISED;
}

static double tokens_left(const tws_tune_report *report, int at, const tws_saving_advice *advice) {
  const double samples = tws_tune_throughput(&report->result->candidates[at]);
  return samples * (double)tws_job_sequence(report->request->job) * advice->goodput;
}

/* The best of the search with what failures leave of them, which may be another order. */
static tws_code print_others(const tws_cli *cli, const tws_tune_report *report, double between_s, tws_error *err) {
  tws_table table;
  tws_table_init(&table, 6);
  tws_table_row(&table,
                (const char *[]){"ZeRO", "batch", "parallel", "save every", "work that stays", "tokens/s left"});
  for (int i = 0; i < advised(report); i++) {
    const tws_variant *v = &report->result->candidates[i].variant;
    tws_saving_advice a;
    TWS_TRY(advise_for(report, i, between_s, &a, err));
    tws_table_row(&table, (const char *[]){tws_cell("%d", v->stage),
                                           tws_cell("%lld x %lld", (long long)v->micro, (long long)v->accumulation),
                                           tws_variant_axes_cell(v), tws_cell("%" PRId64 " steps", a.every),
                                           tws_cell("%.2f %%", 100 * a.goodput),
                                           tws_thousands((int64_t)(tokens_left(report, i, &a) + 0.5))});
  }
  return tws_table_print(cli, &table, err);
}

static tws_code advise(const tws_tune_report *report, double between_s, tws_saving_advice *advice, tws_error *err) {
  tws_job *job;
  TWS_TRY(tws_job_derive(report->request->job, tws_tune_best(report, NULL), &job, err));
  const tws_code code = tws_job_saving_advise(job, report->analysis->winner.step_s, between_s, restart_s, advice, err);
  tws_job_destroy(job);
  return code;
}

tws_code tws_faults_print(const tws_cli *cli, const tws_tune_report *report, double between_s, tws_error *err) {
  tws_saving_advice a;
  char bytes[32], between[32], write[32], hold[32], every[32], young[32];
  TWS_TRY(advise(report, between_s, &a, err));
  tws_out_wrapped(2,
                  "a failure every %s: save every %" PRId64
                  " steps (%s; Young %s): %s are written in %s and hold "
                  "training up for %s; %.2f %% of the time is work that stays",
                  tws_format_seconds(between_s, between, sizeof between), a.every,
                  tws_format_seconds((double)a.every * report->analysis->winner.step_s, every, sizeof every),
                  tws_format_seconds(a.young_s, young, sizeof young),
                  tws_format_bytes(a.saving.bytes, bytes, sizeof bytes),
                  tws_format_seconds(a.saving.write_s, write, sizeof write),
                  tws_format_seconds(a.saving.hold_s, hold, sizeof hold), 100 * a.goodput);
  return advised(report) > 1 ? print_others(cli, report, between_s, err) : TWS_OK;
}

static tws_code add_other(const tws_tune_report *report, int at, double between_s, cJSON *to, tws_error *err) {
  tws_saving_advice a;
  TWS_TRY(advise_for(report, at, between_s, &a, err));
  cJSON *one = cJSON_CreateObject();
  cJSON_AddStringToObject(one, "name", report->result->candidates[at].name);
  cJSON_AddNumberToObject(one, "step_s", step_seconds(&report->result->candidates[at]));
  cJSON_AddNumberToObject(one, "save_every", (double)a.every);
  cJSON_AddNumberToObject(one, "goodput", a.goodput);
  cJSON_AddNumberToObject(one, "tokens_per_s", tokens_left(report, at, &a));
  cJSON_AddItemToArray(to, one);
  return TWS_OK;
}

tws_code tws_faults_add_json(const tws_tune_report *report, double between_s, tws_text *document, tws_error *err) {
  tws_saving_advice a;
  TWS_TRY(advise(report, between_s, &a, err));
  tws_code code = TWS_OK;
  cJSON *root = document->data ? cJSON_Parse(document->data) : NULL;
  cJSON *to = cJSON_AddObjectToObject(root, "faults");
  cJSON_AddNumberToObject(to, "between_failures_s", between_s);
  cJSON_AddNumberToObject(to, "checkpoint_bytes", a.saving.bytes);
  cJSON_AddNumberToObject(to, "write_s", a.saving.write_s);
  cJSON_AddNumberToObject(to, "hold_s", a.saving.hold_s);
  cJSON_AddNumberToObject(to, "restart_s", restart_s);
  cJSON_AddNumberToObject(to, "young_s", a.young_s);
  cJSON_AddNumberToObject(to, "daly_s", a.daly_s);
  cJSON_AddNumberToObject(to, "save_every", (double)a.every);
  cJSON_AddNumberToObject(to, "goodput", a.goodput);
  cJSON *best = cJSON_AddArrayToObject(to, "best");
  for (int i = 0; i < advised(report) && code == TWS_OK; i++) code = add_other(report, i, between_s, best, err);
  char *text = root ? cJSON_Print(root) : NULL;
  cJSON_Delete(root);
  if (code != TWS_OK) {
    free(text);
    return code;
  }
  if (!text) return tws_fail(err, TWS_MEMORY, NULL, "out of memory");
  tws_text_free(document);
  *document = (tws_text){0};
  tws_text_add(document, "%s\n", text);
  free(text);
  return TWS_OK;
}
