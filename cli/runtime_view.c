#include "cli/runtime_view.h"

#include "base/units.h"

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
