#include "cli/runtime_view.h"

#include <string.h>

#include "base/units.h"
#include "cli/job_options.h"
#include "job/fit.h"

tws_own_engine tws_own_engine_find(const tws_job_spec *spec, const char *program) {
  tws_own_engine own = {.known = 0};
  tws_job_spec plain = *spec;
  tws_estimate estimate;
  tws_job *job = NULL;
  tws_error none = {0};
  if (!spec->runtime || strcmp(spec->runtime, "twinspeed") == 0) return own;
  plain.runtime = NULL;
  tws_code code = tws_job_load(&plain, &job, &none);
  if (code == TWS_OK) code = tws_job_choose_program(job, program, &none);
  if (code == TWS_OK) code = tws_job_estimate(job, &estimate, NULL, &none);
  if (code == TWS_OK) own = (tws_own_engine){1, estimate.step_s, tws_job_fit(job, &estimate.ledger).device_need};
  tws_job_destroy(job);
  return own;
}

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
