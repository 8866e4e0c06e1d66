#include "traces/monitor.h"

#include <stdio.h>
#include <string.h>

#include "base/log.h"
#include "base/memory.h"

enum { SINKS = 4, PATH_SIZE = 4096 };
struct tws_monitor {
  tws_sink *sink[SINKS];
  int count;
};

static tws_code open_all(const tws_monitor_setup *setup, tws_monitor *m, tws_error *err) {
  if (setup->csv_folder) TWS_TRY(tws_csv_sink_open(setup->csv_folder, &m->sink[m->count], err));
  if (setup->csv_folder) m->count++;
  if (setup->event_folder) TWS_TRY(tws_event_sink_open(setup, &m->sink[m->count], err));
  if (setup->event_folder) m->count++;
  if (setup->lines_path) TWS_TRY(tws_lines_sink_open(setup->lines_path, setup->continues, &m->sink[m->count], err));
  if (setup->lines_path) m->count++;
  if (setup->prometheus_path) TWS_TRY(tws_prometheus_sink_open(setup->prometheus_path, &m->sink[m->count], err));
  if (setup->prometheus_path) m->count++;
  return TWS_OK;
}

tws_code tws_monitor_open_sinks(const tws_monitor_setup *setup, tws_monitor **out, tws_error *err) {
  *out = NULL;
  if (!setup->csv_folder && !setup->event_folder && !setup->lines_path && !setup->prometheus_path) return TWS_OK;
  tws_monitor *m = tws_calloc(1, sizeof *m);
  if (!m) return tws_fail(err, TWS_MEMORY, NULL, "out of memory");
  const tws_code code = open_all(setup, m, err);
  if (code == TWS_OK)
    *out = m;
  else
    tws_monitor_close(m, NULL);
  return code;
}

/* As Python joins them: a name that begins with '/' stands alone. */
static const char *folder_of(const tws_monitor_section *section, char *path, size_t size) {
  const size_t length = strlen(section->output_path);
  const int alone = length == 0 || section->job_name[0] == '/';
  if (!section->enabled) return NULL;
  snprintf(path, size, "%s%s%s", alone ? "" : section->output_path,
           alone || section->output_path[length - 1] == '/' ? "" : "/", section->job_name);
  return path;
}

tws_code tws_monitor_open(const tws_config *config, const tws_monitor_run *run, tws_monitor **out, tws_error *err) {
  char csv_folder[PATH_SIZE], event_folder[PATH_SIZE];
  tws_text text = {0};
  tws_monitor_setup setup = {.csv_folder = folder_of(&config->csv_monitor, csv_folder, sizeof csv_folder),
                             .event_folder = folder_of(&config->tensorboard, event_folder, sizeof event_folder),
                             .lines_path = run->lines_path,
                             .prometheus_path = run->prometheus_path,
                             .continues = run->continues,
                             .samples = run->samples,
                             .now_s = tws_wall_s()};
  tws_code code = setup.event_folder ? tws_config_print(config, 0, &text, err) : TWS_OK;
  setup.configuration = text.data;
  if (code == TWS_OK) code = tws_monitor_open_sinks(&setup, out, err);
  tws_text_free(&text);
  return code;
}

tws_code tws_monitor_step(tws_monitor *m, const tws_step_report *report, tws_error *err) {
  for (int i = 0; m && i < m->count; i++) TWS_TRY(m->sink[i]->write(m->sink[i], report, err));
  return TWS_OK;
}

tws_code tws_monitor_close(tws_monitor *m, tws_error *err) {
  tws_code first = TWS_OK;
  for (int i = 0; m && i < m->count; i++) {
    const tws_code code = m->sink[i]->close(m->sink[i], first == TWS_OK ? err : NULL);
    if (first == TWS_OK) first = code;
  }
  tws_free(m);
  return first;
}
