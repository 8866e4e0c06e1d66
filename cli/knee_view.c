#include "cli/knee_view.h"

#include "autotune/results.h"
#include "base/units.h"
#include "cli/job_view.h"

static tws_code print_json(const tws_knee *knee, const tws_knee_sweep *sweep, const tws_tune_request *request,
                           tws_error *err) {
  cJSON *json = cJSON_CreateObject();
  cJSON_AddStringToObject(json, "schema", "twinspeed-sweep-1");
  cJSON_AddStringToObject(json, "model", request->job->network->name);
  cJSON_AddStringToObject(json, "cluster", request->job->cluster.name);
  cJSON_AddStringToObject(json, "runtime", tws_profile_runtime(request->job->profile)->name);
  cJSON_AddStringToObject(json, "dtype", tws_dtype_name(request->job->config->dtype));
  cJSON_AddNumberToObject(json, "sequence_length", (double)tws_job_sequence(request->job));
  tws_assumption assumed[TWS_ASSUMPTIONS];
  cJSON_AddItemToObject(json, "assumptions", tws_assumptions_json(assumed, tws_tune_assumed(request, assumed)));
  cJSON_AddStringToObject(json, "parameter", sweep->parameter);
  cJSON_AddStringToObject(json, "unit", tws_knee_unit(sweep));
  cJSON *points = cJSON_AddArrayToObject(json, "points");
  for (int i = 0; i < knee->count; i++) {
    const tws_knee_point *p = &knee->points[i];
    cJSON *one = cJSON_CreateObject();
    cJSON_AddNumberToObject(one, "value", p->value);
    if (p->fits) {
      cJSON_AddStringToObject(one, "name", p->name);
      cJSON_AddNumberToObject(one, "step_s", p->step_s);
      cJSON_AddNumberToObject(one, "samples_per_s", p->samples_per_s);
      cJSON_AddNumberToObject(one, "tokens_per_s", p->tokens_per_s);
    }
    cJSON_AddItemToArray(points, one);
  }
  if (knee->knee >= 0) cJSON_AddNumberToObject(json, "knee", knee->points[knee->knee].value);
  return tws_out_json(json, err);
}

/* Returns a value with its unit: "400 Gbit/s", "5 us". */
static const char *value_cell(double value, const char *unit) {
  static const struct {
    double size;
    const char *letter;
  } steps[] = {{1e15, "P"}, {1e12, "T"}, {1e9, "G"}, {1e6, "M"}, {1e3, "k"}, {1, ""}, {1e-3, "m"}, {0, "u"}};
  size_t i = 0;
  while (value < steps[i].size) i++;
  return tws_cell("%.4g %s%s", value / (steps[i].size > 0 ? steps[i].size : 1e-6), steps[i].letter, unit);
}

tws_code tws_knee_print(const tws_cli *cli, const tws_knee *knee, const tws_knee_sweep *sweep,
                        const tws_tune_request *request, tws_error *err) {
  if (cli->json) return print_json(knee, sweep, request, err);
  const char *unit = tws_knee_unit(sweep);
  tws_table table;
  tws_table_init(&table, 5);
  tws_table_row(&table, (const char *[]){sweep->parameter, "best", "step", "tokens/s", "knee"});
  for (int i = 0; i < knee->count; i++) {
    const tws_knee_point *p = &knee->points[i];
    char step[32] = "-";
    if (p->fits) tws_format_seconds(p->step_s, step, sizeof step);
    tws_table_row(&table, (const char *[]){value_cell(p->value, unit), p->fits ? p->label : "nothing fits", step,
                                           p->fits ? tws_thousands((int64_t)(p->tokens_per_s + 0.5)) : "-",
                                           i == knee->knee ? "<" : ""});
  }
  TWS_TRY(tws_table_print(cli, &table, err));
  if (knee->knee >= 0)
    tws_out("\nbeyond %s more of it buys less\n", value_cell(knee->points[knee->knee].value, unit));
  else
    tws_out("\nno knee: the curve of the throughput has none in this range\n");
  tws_assumption assumed[TWS_ASSUMPTIONS];
  tws_assumptions_print(cli, assumed, tws_tune_assumed(request, assumed));
  return TWS_OK;
}
