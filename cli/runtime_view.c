#include "cli/runtime_view.h"

#include "base/units.h"
#include "job/features.h"

void tws_own_engine_print(const tws_own_engine *own, double step_s, double device_bytes) {
  char step[32], bytes[32], more[32];
  if (!own->known || !(own->step_s > 0)) return;
  const double extra = device_bytes - own->device_bytes;
  tws_format_bytes(extra < 0 ? -extra : extra, more, sizeof more);
  tws_out_wrapped(
      9, "Style    a step takes %+.1f %% and a device needs %c%s against this program's own engine (%s, %s)",
      100 * (step_s / own->step_s - 1), extra < 0 ? '-' : '+', more, tws_format_seconds(own->step_s, step, sizeof step),
      tws_format_bytes(own->device_bytes, bytes, sizeof bytes));
}

void tws_own_engine_json(const tws_own_engine *own, cJSON *root) {
  if (!own->known) return;
  cJSON *json = cJSON_AddObjectToObject(root, "own_engine");
  cJSON_AddNumberToObject(json, "step_s", own->step_s);
  cJSON_AddNumberToObject(json, "device_bytes", own->device_bytes);
}

void tws_other_runtimes_print(const tws_other_runtime *list, int count) {
  tws_text text = {0};
  char step[32], bytes[32];
  for (int i = 0; i < count; i++)
    tws_text_add(&text, "%s%s %s, %s%s", i ? "; " : "", list[i].runtime->name,
                 tws_format_seconds(list[i].step_s, step, sizeof step),
                 tws_format_bytes(list[i].fit.device_need, bytes, sizeof bytes),
                 list[i].fit.fits ? "" : " (does not fit)");
  if (text.length) tws_out_wrapped(9, "Others   %s; --runtime help lists all", text.data);
  tws_text_free(&text);
}

void tws_other_runtimes_json(const tws_other_runtime *list, int count, cJSON *root) {
  cJSON *others = cJSON_AddArrayToObject(root, "other_runtimes");
  for (int i = 0; i < count; i++) {
    cJSON *one = cJSON_CreateObject();
    cJSON_AddStringToObject(one, "runtime", list[i].runtime->name);
    cJSON_AddNumberToObject(one, "step_s", list[i].step_s);
    cJSON_AddNumberToObject(one, "device_bytes", list[i].fit.device_need);
    cJSON_AddBoolToObject(one, "fits", list[i].fit.fits);
    cJSON_AddItemToArray(others, one);
  }
}

void tws_runtimes_print(void) {
  tws_out("Whose software runs the plan (--runtime NAME):\n\n");
  for (const char *const *name = tws_runtime_names(); *name; name++) {
    const tws_runtime *runtime = tws_runtime_find(*name);
    tws_out_wrapped(26, "  %-22s  %s", *name, runtime->about);
  }
  tws_out("\n");
  tws_out_wrapped(
      0,
      "Without --runtime a ds_config.json means deepspeed-flash, or transformers where a value is \"auto\"; "
      "another program's configuration means that program; nothing means twinspeed, as do hosts and "
      "profiles that calibrate measured.");
}
