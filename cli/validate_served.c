/* twinspeed validate --cases, for published runs of inference. */
#include <math.h>
#include <string.h>

#include "base/memory.h"
#include "cli/validate.h"
#include "validation/cases.h"
#include "validation/serving_cases.h"

tws_code tws_validate_is_served(const char *path, int *served, tws_error *err) {
  tws_json *json;
  TWS_TRY(tws_json_read(path, &json, err));
  *served = tws_served_is_list(json);
  tws_json_destroy(json);
  return TWS_OK;
}

static const char *number_text(const char *format, double value) {
  return isfinite(value) ? tws_cell(strcmp(format, "share") == 0 ? "%.2f" : "%+.1f", value) : "";
}

static void add_row(tws_table *table, const tws_served_group *g, const char *name) {
  const int verdicts = g->verdicts_right + g->verdicts_wrong;
  tws_table_row(table,
                (const char *[]){name, tws_cell("%d", g->n), tws_cell("%d", g->skipped), tws_cell("%d", g->timed),
                                 isfinite(g->median) ? tws_cell("%.1f", g->median) : "", number_text("signed", g->bias),
                                 number_text("share", g->concordance), g->weighed ? tws_cell("%d", g->weighed) : "",
                                 isfinite(g->memory) ? tws_cell("%.1f", g->memory) : "",
                                 verdicts ? tws_cell("%d/%d", g->verdicts_right, g->verdicts_wrong) : ""});
}

static tws_code print_worst(const tws_cli *cli, const tws_served_comparison *c, int64_t worst, tws_error *err) {
  tws_table table;
  double before = INFINITY;
  tws_table_init(&table, 4);
  tws_table_row(&table, (const char *[]){"farthest off", "measured", "predicted", "error"});
  for (int64_t n = 0; n < worst; n++) {
    const tws_served_result *next = NULL;
    double most = -1;
    for (int i = 0; i < c->count; i++) {
      const tws_served_result *r = &c->results[i];
      if (r->skipped_because || !(r->measured > 0) || !(r->predicted > 0)) continue;
      const double far = fabs(log(r->predicted / r->measured));
      if (far < before && far > most) most = far, next = r;
    }
    if (!next) break;
    before = most;
    tws_table_row(&table, (const char *[]){next->id, tws_cell("%.4g tokens/s", next->measured),
                                           tws_cell("%.4g tokens/s", next->predicted),
                                           tws_cell("%+.1f %%", 100 * (next->predicted / next->measured - 1))});
  }
  tws_out("\n");
  return tws_table_print(cli, &table, err);
}

static void print_skipped(const tws_served_comparison *c) {
  tws_out("\nSkipped:\n");
  for (int i = 0; i < c->count; i++) {
    const char *reason = c->results[i].skipped_because;
    int before = 0, alike = 0;
    for (int j = 0; reason && j < c->count; j++) {
      const int same = c->results[j].skipped_because && strcmp(c->results[j].skipped_because, reason) == 0;
      before += same && j < i;
      alike += same;
    }
    if (reason && !before) tws_out_wrapped(4, "  %d: %s", alike, reason);
  }
}

static tws_code print_text(const tws_cli *cli, const tws_served_comparison *c, int64_t worst, tws_error *err) {
  tws_table table;
  tws_out("Generated tokens/s and memory of a device, against what was measured; errors in percent:\n");
  tws_table_init(&table, 10);
  tws_table_row(&table, (const char *[]){"group", "runs", "skip", "timed", "median", "bias", "concord", "weighed",
                                         "memory", "OOM +/-"});
  for (int i = 0; i < c->group_count; i++) add_row(&table, &c->groups[i], c->groups[i].name);
  for (int i = 0; i < 2; i++) add_row(&table, &c->halves[i], tws_cell("half: %s", tws_case_half_name(i == 0)));
  TWS_TRY(tws_table_print(cli, &table, err));
  if (worst > 0) TWS_TRY(print_worst(cli, c, worst, err));
  print_skipped(c);
  return TWS_OK;
}

static void add_number(cJSON *to, const char *name, double value) {
  if (isfinite(value) && value != 0)
    cJSON_AddNumberToObject(to, name, value);
  else
    cJSON_AddNullToObject(to, name);
}

static cJSON *group_json(const tws_served_group *g, const char *key, const char *name) {
  cJSON *item = cJSON_CreateObject();
  cJSON_AddStringToObject(item, key, name);
  cJSON_AddNumberToObject(item, "n", g->n);
  cJSON_AddNumberToObject(item, "skipped", g->skipped);
  cJSON_AddNumberToObject(item, "timed", g->timed);
  add_number(item, "median_ape", g->median);
  add_number(item, "bias", g->bias);
  add_number(item, "concordance", g->concordance);
  cJSON_AddNumberToObject(item, "weighed", g->weighed);
  add_number(item, "memory_median_ape", g->memory);
  cJSON_AddNumberToObject(item, "verdicts_right", g->verdicts_right);
  cJSON_AddNumberToObject(item, "verdicts_wrong", g->verdicts_wrong);
  return item;
}

static tws_code print_json(const tws_served_comparison *c, tws_error *err) {
  cJSON *root = cJSON_CreateObject(), *groups, *halves, *runs;
  cJSON_AddStringToObject(root, "schema", "twinspeed-served-cases-1");
  groups = cJSON_AddArrayToObject(root, "groups");
  for (int i = 0; i < c->group_count; i++)
    cJSON_AddItemToArray(groups, group_json(&c->groups[i], "group", c->groups[i].name));
  halves = cJSON_AddArrayToObject(root, "halves");
  for (int i = 0; i < 2; i++)
    cJSON_AddItemToArray(halves, group_json(&c->halves[i], "half", tws_case_half_name(i == 0)));
  runs = cJSON_AddArrayToObject(root, "cases");
  for (int i = 0; i < c->count; i++) {
    const tws_served_result *r = &c->results[i];
    cJSON *item = cJSON_CreateObject();
    cJSON_AddStringToObject(item, "id", r->id);
    cJSON_AddStringToObject(item, "group", r->group);
    cJSON_AddStringToObject(item, "half", tws_case_half_name(r->for_fitting));
    add_number(item, "measured_tokens_per_s", r->measured);
    add_number(item, "predicted_tokens_per_s", r->predicted);
    if (r->measured_gib > 0) {
      add_number(item, "measured_gib", r->measured_gib);
      add_number(item, "predicted_gib", r->predicted_gib);
    }
    if (r->out_of_memory >= 0) cJSON_AddBoolToObject(item, "out_of_memory", r->out_of_memory);
    if (!r->skipped_because) cJSON_AddBoolToObject(item, "predicted_fits", r->predicted_fits);
    if (r->skipped_because)
      cJSON_AddStringToObject(item, "skipped_because", r->skipped_because);
    else
      cJSON_AddNullToObject(item, "skipped_because");
    cJSON_AddItemToArray(runs, item);
  }
  return tws_out_json(root, err);
}

static tws_code report(const tws_cli *cli, const tws_validate_options *o, const tws_served_comparison *c,
                       tws_error *err) {
  TWS_TRY(cli->json ? print_json(c, err) : print_text(cli, c, o->worst, err));
  const double median = c->halves[1].median;
  if (o->tolerance >= 0 && !(median <= o->tolerance))
    return tws_fail(err, TWS_NO, NULL, "the median error of the reported half is %.1f %%, the tolerance is %.3g %%",
                    median, o->tolerance);
  return TWS_OK;
}

tws_code tws_validate_served(const tws_cli *cli, const tws_validate_options *o, tws_error *err) {
  tws_progress progress = tws_cli_progress(cli);
  tws_served_comparison compared;
  if (o->simulate || o->figures)
    return tws_fail(err, TWS_USAGE, "leave out --simulate and --figures", "runs of inference are estimated");
  tws_code code = tws_served_compare(o->cases, o->group.item, o->group.count, &progress, &compared, err);
  if (code == TWS_OK) code = report(cli, o, &compared, err);
  tws_served_free(&compared);
  return code;
}
