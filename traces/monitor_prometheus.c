/* The newest step as a file of Prometheus' text format. Every number has the label "run", the name of the file: the
 * collector refuses files that have the same number with the same labels. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/log.h"
#include "base/memory.h"
#include "base/output_file.h"
#include "traces/monitor.h"

enum { PATH_SIZE = 4096, RUN_SIZE = 200, ROOM = TWS_STEP_VALUE_COUNT * 768 };

typedef struct prometheus_sink {
  tws_sink sink;
  double written_s; /* time of the last write on the clock of tws_clock_s(); 0: not written yet */
  int is_new;       /* 1: the newest step has not been written yet */
  size_t length;
  char path[PATH_SIZE], run[RUN_SIZE], text[ROOM];
} prometheus_sink;

static void add_text(prometheus_sink *s, const char *name, const char *help, const char *text) {
  s->length += (size_t)snprintf(s->text + s->length, sizeof s->text - s->length,
                                "# HELP twinspeed_%s %s\n# TYPE twinspeed_%s gauge\ntwinspeed_%s{run=\"%s\"} %s\n",
                                name, help, name, name, s->run, text);
}

static void add_number(prometheus_sink *s, const char *name, const char *help, double value) {
  char number[TWS_STEP_TEXT_SIZE];
  tws_step_value_text(value, number);
  add_text(s, name, help, isnan(value) ? "NaN" : isinf(value) ? value > 0 ? "+Inf" : "-Inf" : number);
}

static void fill(prometheus_sink *s, const tws_step_report *report) {
  double value;
  char seconds[64];
  s->length = 0;
  add_number(s, "step", "Optimizer steps so far.", (double)report->step);
  add_number(s, "samples", "Samples so far.", (double)report->samples);
  snprintf(seconds, sizeof seconds, "%.3f", report->at_s);
  add_text(s, "step_end_seconds", "When the step ended, in seconds since 1970.", seconds);
  for (int i = 0; i < TWS_STEP_VALUE_COUNT; i++)
    if (tws_step_value(report, i, &value)) add_number(s, tws_step_value_of(i)->name, tws_step_value_of(i)->help, value);
}

static tws_code flush(prometheus_sink *s, tws_error *err) {
  s->is_new = 0;
  const tws_code code = tws_write_file(s->path, s->text, s->length, err);
  s->written_s = tws_clock_s();
  return code;
}

static tws_code prometheus_write(tws_sink *sink, const tws_step_report *report, tws_error *err) {
  prometheus_sink *s = (prometheus_sink *)sink;
  fill(s, report);
  s->is_new = 1;
  return s->written_s > 0 && tws_clock_s() - s->written_s < TWS_PROMETHEUS_S ? TWS_OK : flush(s, err);
}

static tws_code prometheus_close(tws_sink *sink, tws_code ended, tws_error *err) {
  (void)ended;
  prometheus_sink *s = (prometheus_sink *)sink;
  const tws_code code = s->is_new ? flush(s, err) : TWS_OK;
  tws_free(s);
  return code;
}

/* Derives the label's value from the file's name, up to its first dot. */
static void name_run(prometheus_sink *s) {
  const char *slash = strrchr(s->path, '/');
  size_t used = 0;
  for (const char *at = slash ? slash + 1 : s->path; *at && *at != '.' && used < RUN_SIZE - 3; at++) {
    if (*at == '"' || *at == '\\') s->run[used++] = '\\';
    s->run[used++] = (char)(*at == '\n' ? ' ' : *at);
  }
}

tws_code tws_prometheus_sink_open(const char *path, tws_sink **out, tws_error *err) {
  prometheus_sink *s = tws_calloc(1, sizeof *s);
  *out = NULL;
  if (!s) return tws_fail(err, TWS_MEMORY, NULL, "out of memory");
  s->sink = (tws_sink){prometheus_write, prometheus_close};
  snprintf(s->path, sizeof s->path, "%s", path);
  name_run(s);
  /* checks before the first step that the file can be written */
  const tws_code code = tws_write_file(path, "", 0, err);
  if (code == TWS_OK)
    *out = &s->sink;
  else
    tws_free(s);
  return code;
}
