#include "cli/calibrate_from.h"

#include "base/json.h"
#include "base/units.h"
#include "calibration/recorded.h"
#include "cli/outputs.h"

static const char *seconds_cell(double seconds) {
  char text[32];
  return seconds > 0 ? tws_cell("%s", tws_format_seconds(seconds, text, sizeof text)) : "-";
}

static tws_code print_parts(const tws_cli *cli, const tws_recorded_result *r, tws_error *err) {
  tws_table table;
  tws_table_init(&table, 5);
  tws_table_row(&table, (const char *[]){"module", r->kernels_on_device ? "kernels" : "operators", "measured",
                                         "predicted before", "share"});
  for (int i = 0; i < TWS_PART_COUNT; i++) {
    const tws_recorded_row *row = &r->part[i];
    if (!(row->measured_s > 0) && !(row->predicted_s > 0)) continue;
    tws_table_row(&table, (const char *[]){tws_part_name(i), tws_cell("%.0f", row->calls),
                                           seconds_cell(row->measured_s), seconds_cell(row->predicted_s),
                                           tws_cell("%.1f %%", 100 * row->measured_s / r->kernel_s)});
  }
  if (r->unattributed_s > 0)
    tws_table_row(&table, (const char *[]){"without a module", "", seconds_cell(r->unattributed_s), "",
                                           tws_cell("%.1f %%", 100 * r->unattributed_s / r->kernel_s)});
  TWS_TRY(tws_table_print(cli, &table, err));
  if (r->product_count) {
    tws_out("\n");
    tws_table_init(&table, 4);
    tws_table_row(&table, (const char *[]){"products by size", "first module", "measured", "predicted before"});
  }
  for (int i = 0; i < r->product_count; i++) {
    const tws_product_row *p = &r->product[i];
    tws_table_row(
        &table, (const char *[]){
                    tws_cell("%lld x %lld x %lld", (long long)p->size[0], (long long)p->size[1], (long long)p->size[2]),
                    p->modules[0] ? p->modules : "-", seconds_cell(p->measured_s), seconds_cell(p->predicted_s)});
  }
  if (r->product_count) TWS_TRY(tws_table_print(cli, &table, err));
  if (r->unknown_count) tws_out("\nKernels without a module:\n");
  for (int i = 0; i < r->unknown_count; i++)
    tws_out_wrapped(4, "  %s %s", seconds_cell(r->unknown[i].seconds), r->unknown[i].name);
  return TWS_OK;
}

static tws_code print_text(const tws_cli *cli, const tws_recorded_result *r, tws_error *err) {
  if (r->traces) TWS_TRY(print_parts(cli, r, err));
  if (r->rescaling.steps) {
    tws_text text = {0};
    tws_rescaling_text(&r->rescaling, &text);
    tws_out_wrapped(2, "%d measured step%s: %s", r->rescaling.steps, r->rescaling.steps > 1 ? "s" : "",
                    text.data ? text.data : "");
    tws_text_free(&text);
  }
  if (r->measured_s > 0)
    tws_out("\nstep: measured %s, predicted with %s %s, with the new profile %s\n", seconds_cell(r->measured_s),
            r->base, seconds_cell(r->before_s), seconds_cell(r->after_s));
  if (r->left_out)
    tws_warn(cli, "%lld events of the trace were left out: they are too large, or more than are kept",
             (long long)r->left_out);
  return TWS_OK;
}

static tws_code print_json(const tws_recorded_result *r, const char *out, tws_error *err) {
  cJSON *json = cJSON_CreateObject();
  cJSON_AddStringToObject(json, "schema", "twinspeed-calibration-from-1");
  cJSON_AddStringToObject(json, "profile", out);
  cJSON_AddStringToObject(json, "base", r->base);
  if (*r->device) cJSON_AddStringToObject(json, "device", r->device);
  cJSON_AddStringToObject(json, "provenance",
                          cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(r->profile, "provenance")));
  if (r->measured_s > 0) {
    cJSON *step = cJSON_AddObjectToObject(json, "step");
    cJSON_AddNumberToObject(step, "measured_s", r->measured_s);
    cJSON_AddNumberToObject(step, "before_s", r->before_s);
    cJSON_AddNumberToObject(step, "after_s", r->after_s);
  }
  if (r->traces) {
    cJSON_AddNumberToObject(json, "kernel_s", r->kernel_s);
    cJSON_AddNumberToObject(json, "attributed_share", 1 - r->unattributed_s / r->kernel_s);
    cJSON *parts = cJSON_AddArrayToObject(json, "modules");
    for (int i = 0; i < TWS_PART_COUNT; i++) {
      cJSON *row = cJSON_CreateObject();
      cJSON_AddStringToObject(row, "module", tws_part_name(i));
      cJSON_AddNumberToObject(row, "kernels", r->part[i].calls);
      cJSON_AddNumberToObject(row, "measured_s", r->part[i].measured_s);
      cJSON_AddNumberToObject(row, "predicted_s", r->part[i].predicted_s);
      cJSON_AddItemToArray(parts, row);
    }
    cJSON *products = cJSON_AddArrayToObject(json, "products");
    for (int i = 0; i < r->product_count; i++) {
      const tws_product_row *p = &r->product[i];
      cJSON *row = cJSON_CreateObject();
      cJSON_AddItemToObject(
          row, "sizes",
          cJSON_CreateDoubleArray((const double[]){(double)p->size[0], (double)p->size[1], (double)p->size[2]}, 3));
      cJSON_AddStringToObject(row, "module", p->modules);
      cJSON_AddNumberToObject(row, "measured_s", p->measured_s);
      cJSON_AddNumberToObject(row, "predicted_s", p->predicted_s);
      cJSON_AddItemToArray(products, row);
    }
    cJSON *unknown = cJSON_AddArrayToObject(json, "without_module");
    for (int i = 0; i < r->unknown_count; i++) {
      cJSON *row = cJSON_CreateObject();
      cJSON_AddStringToObject(row, "kernel", r->unknown[i].name);
      cJSON_AddNumberToObject(row, "measured_s", r->unknown[i].seconds);
      cJSON_AddItemToArray(unknown, row);
    }
  }
  for (int i = 0; r->rescaling.steps && i < TWS_SCALE_COUNT; i++)
    cJSON_AddNumberToObject(json, tws_scale_name(i), r->rescaling.factor[i]);
  return tws_out_json(json, err);
}

static tws_code write_profile(const tws_cli *cli, const tws_recorded_result *r, const char *out, tws_error *err) {
  char *text = cJSON_Print(r->profile);
  tws_text line = {0};
  if (!text) return tws_fail(err, TWS_MEMORY, NULL, "out of memory for a profile");
  tws_text_add(&line, "%s\n", text);
  cJSON_free(text);
  tws_code code = line.failed ? tws_fail(err, TWS_MEMORY, NULL, "out of memory for a profile")
                              : tws_write_file(out, line.data, line.length, err);
  tws_text_free(&line);
  TWS_TRY(code);
  tws_profile *check;
  TWS_TRY(tws_profile_load(out, &check, err));
  tws_profile_destroy(check);
  tws_say(cli, "wrote %s: use it with --profile %s", out, out);
  return TWS_OK;
}

tws_code tws_run_calibrate_from(const tws_cli *cli, const tws_calibrate_from *o, tws_error *err) {
  tws_recorded_result result;
  if (!o->out)
    return tws_fail(err, TWS_USAGE, "twinspeed calibrate --from trace.json -m MODEL -o profile.json",
                    "calibrate: give -o FILE");
  const tws_output output = {"--out", o->out, NULL};
  tws_inputs inputs = tws_inputs_of_job(&o->job);
  for (int i = 0; i < o->files.count; i++) tws_inputs_add(&inputs, o->files.item[i]);
  TWS_TRY(tws_outputs_check(&output, 1, &inputs, o->force, err));
  const tws_recorded_request request = {.spec = &o->job, .files = &o->files, .steps = o->steps};
  tws_code code = tws_recorded_profile(&request, &result, err);
  if (code == TWS_OK) code = write_profile(cli, &result, o->out, err);
  if (code == TWS_OK) code = cli->json ? print_json(&result, o->out, err) : print_text(cli, &result, err);
  cJSON_Delete(result.profile);
  return code;
}
