#include "estimators/monitored.h"

#include "estimators/estimators.h"

/* Writes the memory over the operations of the plan for each tier that it uses. */
static tws_code read_memory(const tws_plan *plan, tws_text csv[TWS_TIER_COUNT], tws_monitor_images *images,
                            tws_error *err) {
  tws_ledger ledger;
  TWS_TRY(tws_ledger_read(plan, &ledger, err));
  for (int tier = 0; tier < TWS_TIER_COUNT; tier++) {
    if (ledger.tier[tier].arena_bytes == 0) continue;
    TWS_TRY(tws_ledger_csv(plan, (tws_tier)tier, &csv[tier], err));
    images->memory[tier] = csv[tier].data;
  }
  return TWS_OK;
}

tws_code tws_monitored_open(const tws_config *config, const tws_monitor_run *run, const tws_plan *plan,
                            const char *plots, tws_monitor **out, tws_error *err) {
  const int draws = config->tensorboard.enabled && config->tensorboard_images;
  tws_text csv[TWS_TIER_COUNT] = {{0}};
  tws_monitor_images images = {.plots = plots ? plots : ""};
  tws_monitor_run with = *run;
  with.images = draws ? &images : NULL;
  *out = NULL;
  tws_code code = draws ? read_memory(plan, csv, &images, err) : TWS_OK;
  if (code == TWS_OK) code = tws_monitor_open(config, &with, out, err);
  for (int tier = 0; tier < TWS_TIER_COUNT; tier++) tws_text_free(&csv[tier]);
  return code;
}
