#include "traces/monitor.h"

#include <stdio.h>
#include <string.h>

#include "base/log.h"
#include "base/memory.h"

enum { SINKS = 6, PATH_SIZE = 4096 };
struct tws_monitor {
  tws_sink *sink[SINKS];
  int count;
};

static tws_code open_all(const tws_monitor_setup *setup, tws_monitor *m, tws_error *err) {
  tws_sink **next = m->sink;
  if (setup->csv_folder) TWS_TRY(tws_csv_sink_open(setup->csv_folder, next++, err));
  m->count = (int)(next - m->sink);
  if (setup->event_folder) TWS_TRY(tws_event_sink_open(setup, next++, err));
  m->count = (int)(next - m->sink);
  if (setup->wandb) TWS_TRY(tws_wandb_sink_open(setup, next++, err));
  m->count = (int)(next - m->sink);
  if (setup->comet) TWS_TRY(tws_comet_sink_open(setup, next++, err));
  m->count = (int)(next - m->sink);
  if (setup->lines_path) TWS_TRY(tws_lines_sink_open(setup->lines_path, setup->continues, next++, err));
  m->count = (int)(next - m->sink);
  if (setup->prometheus_path) TWS_TRY(tws_prometheus_sink_open(setup->prometheus_path, next++, err));
  m->count = (int)(next - m->sink);
  return TWS_OK;
}

tws_code tws_monitor_open_sinks(const tws_monitor_setup *setup, tws_monitor **out, tws_error *err) {
  *out = NULL;
  if (!setup->csv_folder && !setup->event_folder && !setup->wandb && !setup->comet && !setup->lines_path &&
      !setup->prometheus_path)
    return TWS_OK;
  tws_monitor *m = tws_calloc(1, sizeof *m);
  if (!m) return tws_fail(err, TWS_MEMORY, NULL, "out of memory");
  const tws_code code = open_all(setup, m, err);
  if (code == TWS_OK)
    *out = m;
  else
    tws_monitor_close(m, code, NULL);
  return code;
}

/* Joins as Python's os.path.join does: a name that begins with '/' is used alone. */
static const char *folder_of(const tws_monitor_section *section, char *path, size_t size) {
  const size_t length = strlen(section->output_path);
  const int alone = length == 0 || section->job_name[0] == '/';
  if (!section->enabled) return NULL;
  snprintf(path, size, "%s%s%s", alone ? "" : section->output_path,
           alone || section->output_path[length - 1] == '/' ? "" : "/", section->job_name);
  return path;
}

/* Formats the effective configuration as JSON, without secrets. */
static tws_code describe(const tws_config *config, char **out, tws_error *err) {
  static const char *const secrets[][2] = {{"comet", "api_key"}};
  tws_text text = {0};
  tws_json *json = NULL;
  tws_code code = tws_config_print(config, 0, &text, err);
  if (code == TWS_OK) code = tws_json_parse(text.data, text.length, "the configuration", &json, err);
  tws_text_free(&text);
  TWS_TRY(code);
  for (size_t i = 0; i < sizeof secrets / sizeof *secrets; i++)
    cJSON_DeleteItemFromObjectCaseSensitive(cJSON_GetObjectItemCaseSensitive(json->root, secrets[i][0]), secrets[i][1]);
  *out = cJSON_Print(json->root);
  tws_json_destroy(json);
  return *out ? TWS_OK : tws_fail(err, TWS_MEMORY, NULL, "out of memory");
}

tws_code tws_monitor_open(const tws_config *config, const tws_monitor_run *run, tws_monitor **out, tws_error *err) {
  char csv_folder[PATH_SIZE], event_folder[PATH_SIZE], *configuration = NULL;
  tws_monitor_setup setup = {.csv_folder = folder_of(&config->csv_monitor, csv_folder, sizeof csv_folder),
                             .event_folder = folder_of(&config->tensorboard, event_folder, sizeof event_folder),
                             .wandb = config->wandb.enabled ? &config->wandb : NULL,
                             .comet = config->comet.enabled ? &config->comet : NULL,
                             .lines_path = run->lines_path,
                             .prometheus_path = run->prometheus_path,
                             .images = config->tensorboard_images ? run->images : NULL,
                             .continues = run->continues,
                             .samples = run->samples,
                             .now_s = tws_wall_s()};
  tws_code code = setup.event_folder || setup.wandb || setup.comet ? describe(config, &configuration, err) : TWS_OK;
  setup.configuration = configuration;
  if (code == TWS_OK) code = tws_monitor_open_sinks(&setup, out, err);
  cJSON_free(configuration);
  return code;
}

tws_code tws_monitor_step(tws_monitor *m, const tws_step_report *report, tws_error *err) {
  for (int i = 0; m && i < m->count; i++) TWS_TRY(m->sink[i]->write(m->sink[i], report, err));
  return TWS_OK;
}

tws_code tws_monitor_close(tws_monitor *m, tws_code ended, tws_error *err) {
  tws_code first = TWS_OK;
  for (int i = 0; m && i < m->count; i++) {
    const tws_code code = m->sink[i]->close(m->sink[i], ended, first == TWS_OK ? err : NULL);
    if (first == TWS_OK) first = code;
  }
  tws_free(m);
  return first;
}
