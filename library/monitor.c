/* Custom metrics: the monitors of a configuration, for a program that trains by other means. */
#include <math.h>
#include <string.h>

#include "base/log.h"
#include "base/memory.h"
#include "config/ds_config.h"
#include "library/status.h"
#include "library/twinspeed.h"
#include "traces/monitor.h"

enum { LONGEST_TAG = 128 };

struct twinspeed_monitor {
  tws_config *config; /* whose texts the monitors use */
  tws_monitor *monitor;
};

static void release(twinspeed_monitor *m) {
  if (m) tws_config_destroy(m->config);
  tws_free(m);
}

twinspeed_status twinspeed_monitor_open(const char *config, int64_t samples, twinspeed_monitor **out,
                                        twinspeed_error *error) {
  tws_error why = {0};
  const tws_monitor_run run = {.continues = samples > 0, .samples = samples};
  twinspeed_monitor *m = tws_calloc(1, sizeof *m);
  *out = NULL;
  tws_code code = m ? TWS_OK : tws_fail(&why, TWS_MEMORY, NULL, "no memory for the monitors");
  if (code == TWS_OK && samples < 0)
    code = tws_fail(&why, TWS_USAGE, "give 0 for a training that begins", "samples is %lld", (long long)samples);
  if (code == TWS_OK) code = tws_config_load(config, &m->config, &why);
  if (code == TWS_OK) code = tws_monitor_open(m->config, &run, &m->monitor, &why);
  if (code == TWS_OK && !m->monitor)
    code = tws_fail(&why, TWS_INVALID, "enable tensorboard, csv_monitor, wandb or comet", "%s: no monitor is enabled",
                    config);
  if (code == TWS_OK)
    *out = m;
  else
    release(m);
  return twinspeed_tell_(twinspeed_failed_(code), &why, error);
}

/* Tags become names of files and texts of JSON: printable ASCII without quotes and backslashes. */
static tws_code check_tag(const char *tag, tws_error *why) {
  const size_t length = tag ? strlen(tag) : 0;
  int plain = length > 0 && length <= LONGEST_TAG && tag[0] != '.' && tag[length - 1] != '/';
  for (size_t i = 0; i < length; i++) plain &= tag[i] >= ' ' && tag[i] < 127 && tag[i] != '"' && tag[i] != '\\';
  if (plain) return TWS_OK;
  return tws_fail(
      why, TWS_USAGE, "for example \"Train/Samples/accuracy\"",
      "a metric's tag has 1 to %d printable ASCII characters without quotes and backslashes, does not begin "
      "with a dot or end with a slash",
      LONGEST_TAG);
}

twinspeed_status twinspeed_monitor_write(twinspeed_monitor *m, const char *tag, double value, int64_t samples,
                                         twinspeed_error *error) {
  tws_error why = {0};
  const tws_custom_value metric = {tag, value};
  const tws_step_report report = {.samples = samples, .at_s = tws_wall_s(), .custom = &metric};
  tws_code code = check_tag(tag, &why);
  if (code == TWS_OK) code = tws_monitor_step(m->monitor, &report, &why);
  return twinspeed_tell_(twinspeed_failed_(code), &why, error);
}

twinspeed_status twinspeed_monitor_close(twinspeed_monitor *m, twinspeed_error *error) {
  tws_error why = {0};
  tws_code code = TWS_OK;
  if (m) code = tws_monitor_close(m->monitor, TWS_OK, &why);
  release(m);
  return twinspeed_tell_(twinspeed_failed_(code), &why, error);
}
