#include "cli/stage_view.h"

#include "base/units.h"
#include "cli/job_view.h"

static int axis_used(const tws_path_result *path, int axis) {
  return path->axis_busy_s[axis] > 0 || path->axis_exposed_s[axis] > 0;
}

tws_code tws_stages_print(const tws_cli *cli, const tws_stage_estimate *stages, int count,
                          const tws_stage_balance *balance, tws_error *err) {
  enum { FIXED = 7 };
  int axes[TWS_REPORT_COUNT], used = 0;
  if (count < 2) return TWS_OK;
  for (int axis = 0; axis < TWS_REPORT_COUNT; axis++)
    for (int i = 0; i < count; i++)
      if (axis_used(&stages[i].path, axis)) {
        axes[used++] = axis;
        break;
      }
  tws_table table;
  tws_table_init(&table, FIXED + used);
  const char *row[FIXED + TWS_REPORT_COUNT] = {"Pipeline", "rank",      "layers", "params",
                                               "memory",   "computing", "waiting"};
  for (int i = 0; i < used; i++) row[FIXED + i] = tws_report_name(axes[i]);
  tws_table_row(&table, row);
  for (int s = 0; s < count; s++) {
    const tws_stage_estimate *stage = &stages[s];
    const tws_path_result *path = &stage->path;
    char text[32];
    row[0] = tws_cell("stage %d%s", stage->stage, s == balance->largest ? " *" : "");
    row[1] = tws_cell("%d", stage->rank);
    row[2] = tws_cell("%d", stage->layers);
    row[3] = tws_cell("%s", tws_format_count(stage->parameters, text, sizeof text));
    row[4] = tws_cell("%s", tws_format_bytes(tws_stage_bytes(stage), text, sizeof text));
    row[5] = tws_cell("%.1f %%", 100 * tws_path_share(path, path->step_s - path->exposed_s));
    row[6] = tws_cell("%.1f %%", 100 * tws_path_share(path, path->bubble_s));
    for (int i = 0; i < used; i++)
      row[FIXED + i] = tws_cell("%.1f %%", 100 * tws_path_share(path, path->axis_exposed_s[axes[i]]));
    tws_table_row(&table, row);
  }
  TWS_TRY(tws_table_print(cli, &table, err));
  tws_out_wrapped(2, "*: needs the most memory%s", used ? "; pipe, data, ...: communicating, not hidden" : "");
  tws_out("bubble %.1f %% of the step; imbalance (largest / mean): computing %.3f, memory %.3f\n",
          100 * balance->bubble, balance->compute_imbalance, balance->memory_imbalance);
  return TWS_OK;
}

void tws_axes_print(const tws_path_result *path) {
  tws_text line = {0};
  for (int axis = 0; axis < TWS_REPORT_COUNT; axis++) {
    char busy[32], exposed[32];
    if (!axis_used(path, axis)) continue;
    tws_text_add(&line, "%s %s %s (%s exposed)", line.length ? "," : "  by axis:", tws_report_name(axis),
                 tws_format_seconds(path->axis_busy_s[axis], busy, sizeof busy),
                 tws_format_seconds(path->axis_exposed_s[axis], exposed, sizeof exposed));
  }
  if (line.length) tws_out_wrapped(4, "%s", line.data);
  tws_text_free(&line);
}

cJSON *tws_axes_json(const tws_path_result *path) {
  cJSON *json = cJSON_CreateObject();
  for (int axis = 0; axis < TWS_REPORT_COUNT; axis++) {
    if (!axis_used(path, axis)) continue;
    cJSON *one = cJSON_AddObjectToObject(json, tws_report_name(axis));
    cJSON_AddNumberToObject(one, "busy_s", path->axis_busy_s[axis]);
    cJSON_AddNumberToObject(one, "exposed_s", path->axis_exposed_s[axis]);
  }
  return json;
}

cJSON *tws_stages_json(const tws_stage_estimate *stages, int count) {
  cJSON *list = cJSON_CreateArray();
  for (int s = 0; s < count; s++) {
    const tws_stage_estimate *stage = &stages[s];
    cJSON *one = cJSON_CreateObject();
    cJSON_AddNumberToObject(one, "stage", stage->stage);
    cJSON_AddNumberToObject(one, "rank", stage->rank);
    cJSON_AddNumberToObject(one, "layers", stage->layers);
    cJSON_AddNumberToObject(one, "parameters", stage->parameters);
    cJSON_AddNumberToObject(one, "memory_bytes", tws_stage_bytes(stage));
    cJSON_AddNumberToObject(one, "compute_s", stage->path.step_s - stage->path.exposed_s);
    cJSON_AddNumberToObject(one, "bubble_s", stage->path.bubble_s);
    cJSON_AddItemToObject(one, "communication", tws_axes_json(&stage->path));
    cJSON_AddItemToArray(list, one);
  }
  return list;
}

void tws_balance_json(const tws_stage_balance *balance, cJSON *json) {
  cJSON_AddNumberToObject(json, "bubble", balance->bubble);
  cJSON_AddNumberToObject(json, "compute_imbalance", balance->compute_imbalance);
  cJSON_AddNumberToObject(json, "memory_imbalance", balance->memory_imbalance);
}
