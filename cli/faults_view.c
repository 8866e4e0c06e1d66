#include "cli/faults_view.h"

#include <cjson/cJSON.h>
#include <inttypes.h>
#include <stdlib.h>
#include "base/units.h"
#include "cli/job_view.h"
#include "cli/tune_view.h"

/* Prints the best candidates with their goodputs, whose order may differ from that of their throughputs. */
static tws_code print_others(const tws_cli *cli, const tws_goodput *g, tws_error *err) {
  tws_table table;
  tws_table_init(&table, 6);
  tws_table_row(&table,
                (const char *[]){"ZeRO", "batch", "parallel", "save every", "work that stays", "tokens/s left"});
  for (int i = 0; i < g->count; i++) {
    const tws_goodput_row *row = &g->rows[i];
    const tws_variant *v = &row->of->variant;
    tws_table_row(&table, (const char *[]){tws_cell("%d", v->stage),
                                           tws_cell("%lld x %lld", (long long)v->micro, (long long)v->accumulation),
                                           tws_variant_axes_cell(v), tws_cell("%" PRId64 " steps", row->advice.every),
                                           tws_cell("%.2f %%", 100 * row->advice.goodput),
                                           tws_thousands((int64_t)(row->tokens_per_s + 0.5))});
  }
  return tws_table_print(cli, &table, err);
}

tws_code tws_faults_print(const tws_cli *cli, const tws_goodput *g, tws_error *err) {
  const tws_saving_advice *a = &g->winner;
  char bytes[32], between[32], write[32], hold[32], every[32], young[32];
  tws_out_wrapped(2,
                  "a failure every %s: save every %" PRId64
                  " steps (%s; Young %s): %s are written in %s and hold "
                  "training up for %s; %.2f %% of the time is work that stays",
                  tws_format_seconds(g->between_failures_s, between, sizeof between), a->every,
                  tws_format_seconds((double)a->every * g->step_s, every, sizeof every),
                  tws_format_seconds(a->young_s, young, sizeof young),
                  tws_format_bytes(a->saving.bytes, bytes, sizeof bytes),
                  tws_format_seconds(a->saving.write_s, write, sizeof write),
                  tws_format_seconds(a->saving.hold_s, hold, sizeof hold), 100 * a->goodput);
  return g->count > 1 ? print_others(cli, g, err) : TWS_OK;
}

static void add_other(const tws_goodput_row *row, cJSON *to) {
  cJSON *one = cJSON_CreateObject();
  cJSON_AddStringToObject(one, "name", row->of->name);
  cJSON_AddNumberToObject(one, "step_s", row->step_s);
  cJSON_AddNumberToObject(one, "save_every", (double)row->advice.every);
  cJSON_AddNumberToObject(one, "goodput", row->advice.goodput);
  cJSON_AddNumberToObject(one, "tokens_per_s", row->tokens_per_s);
  cJSON_AddItemToArray(to, one);
}

tws_code tws_faults_add_json(const tws_goodput *g, tws_text *document, tws_error *err) {
  const tws_saving_advice *a = &g->winner;
  cJSON *root = document->data ? cJSON_Parse(document->data) : NULL;
  cJSON *to = cJSON_AddObjectToObject(root, "faults");
  cJSON_AddNumberToObject(to, "between_failures_s", g->between_failures_s);
  cJSON_AddNumberToObject(to, "checkpoint_bytes", a->saving.bytes);
  cJSON_AddNumberToObject(to, "write_s", a->saving.write_s);
  cJSON_AddNumberToObject(to, "hold_s", a->saving.hold_s);
  cJSON_AddNumberToObject(to, "restart_s", g->restart_s);
  cJSON_AddNumberToObject(to, "young_s", a->young_s);
  cJSON_AddNumberToObject(to, "daly_s", a->daly_s);
  cJSON_AddNumberToObject(to, "save_every", (double)a->every);
  cJSON_AddNumberToObject(to, "goodput", a->goodput);
  cJSON *best = cJSON_AddArrayToObject(to, "best");
  for (int i = 0; i < g->count; i++) add_other(&g->rows[i], best);
  char *text = root ? cJSON_Print(root) : NULL;
  cJSON_Delete(root);
  if (!text) return tws_fail(err, TWS_MEMORY, NULL, "out of memory");
  tws_text_free(document);
  *document = (tws_text){0};
  tws_text_add(document, "%s\n", text);
  free(text);
  return TWS_OK;
}
