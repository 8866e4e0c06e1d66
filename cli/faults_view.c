#include "cli/faults_view.h"

#include <cjson/cJSON.h>
#include <inttypes.h>
#include <stdlib.h>
#include "autotune/analysis.h"
#include "base/units.h"
#include "job/saving.h"

/* What starting ranks anew takes, where nobody says: a minute. */
static const double restart_s = 60.0;

static tws_code advise(const tws_tune_report *report, double between_s, tws_saving_advice *advice, tws_error *err) {
  tws_job *job;
  TWS_TRY(tws_job_derive(report->request->job, tws_tune_best(report, NULL), &job, err));
  const tws_code code = tws_job_saving_advise(job, report->analysis->winner.step_s, between_s, restart_s, advice, err);
  tws_job_destroy(job);
  return code;
}

tws_code tws_faults_print(const tws_tune_report *report, double between_s, tws_error *err) {
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
  return TWS_OK;
}

tws_code tws_faults_add_json(const tws_tune_report *report, double between_s, tws_text *document, tws_error *err) {
  tws_saving_advice a;
  TWS_TRY(advise(report, between_s, &a, err));
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
  char *text = root ? cJSON_Print(root) : NULL;
  cJSON_Delete(root);
  if (!text) return tws_fail(err, TWS_MEMORY, NULL, "out of memory");
  tws_text_free(document);
  *document = (tws_text){0};
  tws_text_add(document, "%s\n", text);
  free(text);
  return TWS_OK;
}
