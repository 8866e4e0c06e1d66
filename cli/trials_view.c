#include "cli/trials_view.h"

#include "base/units.h"
#include "cli/job_view.h"

static const char *seconds_cell(double seconds) {
  char text[32];
  return seconds > 0 ? tws_cell("%s", tws_format_seconds(seconds, text, sizeof text)) : "-";
}

static void add_trial(const tws_tune_trial *t, const tws_tune_request *request, tws_table *table) {
  char label[TWS_VARIANT_NAME];
  tws_variant_label(&t->variant, label, sizeof label);
  const double predicted = t->corrected_s > 0 ? t->corrected_s : t->predicted_s;
  const int measured = t->step_s > 0;
  tws_table_row(table,
                (const char *[]){
                    label, tws_cell("%d", t->variant.ranks), seconds_cell(t->predicted_s), seconds_cell(t->corrected_s),
                    measured ? seconds_cell(t->step_s) : tws_outcome_name(t->experiment.outcome),
                    measured ? tws_cell("%.1f %%", 100 * t->spread_s / t->step_s) : "-",
                    measured && predicted > 0 ? tws_cell("%+.1f %%", 100 * (predicted - t->step_s) / t->step_s) : "-",
                    measured ? tws_thousands((int64_t)(tws_tune_trial_tokens_per_s(request, t) + 0.5)) : "-"});
}

static void print_pick(const tws_tune_trials *trials) {
  const tws_tune_pick p = tws_tune_pick_of(trials);
  if (!p.best) return;
  tws_out("\nmeasured: median error of the prediction %.1f %%", 100 * trials->error_before);
  if (trials->corrected > 0) tws_out(", with the corrected profile %.1f %%", 100 * trials->error_after);
  tws_out("; the steps of a run spread over %.1f %%\n", 100 * p.spread);
  if (p.measured == 1)
    tws_out("only one configuration was measured: nothing to compare it with\n");
  else if (p.pick == p.best)
    tws_out("what was predicted to be the fastest is the fastest of the %d that were measured\n", p.measured);
  else if (p.pick && 1 - p.share <= p.spread)
    tws_out("what was predicted to be the fastest is as fast as the best of the %d, as far as such a spread can tell\n",
            p.measured);
  else if (p.pick)
    tws_out("what was predicted to be the fastest reaches %.1f %% of the best of the %d that were measured\n",
            100 * p.share, p.measured);
}

tws_code tws_trials_print(const tws_cli *cli, const tws_tune_trials *trials, const tws_tune_request *request,
                          tws_error *err) {
  tws_table table;
  if (trials->count == 0) return TWS_OK;
  tws_out("\n");
  tws_table_init(&table, 8);
  tws_table_row(
      &table, (const char *[]){"trial", "ranks", "predicted", "corrected", "measured", "spread", "error", "tokens/s"});
  for (int i = 0; i < trials->count; i++) add_trial(&trials->all[i], request, &table);
  TWS_TRY(tws_table_print(cli, &table, err));
  for (int i = 0; i < trials->count; i++)
    if (trials->all[i].experiment.outcome != TWS_OUTCOME_MEASURED)
      tws_out_wrapped(2, "%s: %s: %s", tws_outcome_name(trials->all[i].experiment.outcome), trials->all[i].name,
                      trials->all[i].experiment.reason);
  print_pick(trials);
  return TWS_OK;
}
