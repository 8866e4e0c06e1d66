/* csv_monitor, in the format of DeepSpeed's monitor/csv_monitor.py: a file for each number, named after its tag with
 * '/' and ' ' as '_', a header of "step" and the last part of the tag, and lines with the samples so far and the
 * number, which end with CR LF. Unlike there, a resumed file gets no second header. */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/memory.h"
#include "base/output_file.h"
#include "traces/monitor.h"

enum { PATH_SIZE = 4096, NAME_SIZE = 160, LINE_SIZE = 128 };

typedef struct csv_sink {
  tws_sink sink;
  int folder, fd[TWS_STEP_VALUE_COUNT]; /* [value] file descriptor; -1: not open yet */
  char path[PATH_SIZE];
} csv_sink;

/* DeepSpeed's names of files. */
static void underscore(char *name) {
  for (; *name; name++)
    if (*name == '/' || *name == ' ') *name = '_';
}

static void name_of(int index, char name[NAME_SIZE]) {
  snprintf(name, NAME_SIZE, "%s.csv", tws_step_value_of(index)->tag);
  underscore(name);
}

static tws_code open_file(csv_sink *s, int index, tws_error *err) {
  char name[NAME_SIZE], path[PATH_SIZE + NAME_SIZE], heading[LINE_SIZE];
  name_of(index, name);
  snprintf(path, sizeof path, "%s/%s", s->path, name);
  TWS_TRY(tws_appended_file(s->folder, name, path, &s->fd[index], err));
  if (lseek(s->fd[index], 0, SEEK_END) > 0) return TWS_OK;
  const int length = snprintf(heading, sizeof heading, "step,%s\r\n", strrchr(tws_step_value_of(index)->tag, '/') + 1);
  return tws_write_all(s->fd[index], path, heading, (size_t)length, err);
}

/* Appends a custom number to its file, which is opened for each, since there may be any number of names. */
static tws_code write_custom(const csv_sink *s, const tws_custom_value *custom, int64_t samples, tws_error *err) {
  char name[NAME_SIZE], path[PATH_SIZE + NAME_SIZE], line[LINE_SIZE + NAME_SIZE], number[TWS_STEP_TEXT_SIZE];
  const char *slash = strrchr(custom->tag, '/');
  int fd, length = 0;
  snprintf(name, sizeof name, "%s.csv", custom->tag);
  underscore(name);
  snprintf(path, sizeof path, "%s/%s", s->path, name);
  TWS_TRY(tws_appended_file(s->folder, name, path, &fd, err));
  if (lseek(fd, 0, SEEK_END) == 0) length = snprintf(line, sizeof line, "step,%s\r\n", slash ? slash + 1 : custom->tag);
  tws_step_value_text(custom->value, number);
  length += snprintf(line + length, sizeof line - (size_t)length, "%lld,%s\r\n", (long long)samples, number);
  const tws_code code = tws_write_all(fd, path, line, (size_t)length, err);
  if (close(fd) != 0 && code == TWS_OK) return tws_output_failed(path, "write", err);
  return code;
}

static tws_code csv_write(tws_sink *sink, const tws_step_report *report, tws_error *err) {
  csv_sink *s = (csv_sink *)sink;
  char line[LINE_SIZE], number[TWS_STEP_TEXT_SIZE];
  if (report->custom) return write_custom(s, report->custom, report->samples, err);
  for (int i = 0; i < TWS_STEP_VALUE_COUNT; i++) {
    double value;
    if (!tws_step_value(report, i, &value)) continue;
    if (s->fd[i] < 0) TWS_TRY(open_file(s, i, err));
    tws_step_value_text(value, number);
    const int length = snprintf(line, sizeof line, "%lld,%s\r\n", (long long)report->samples, number);
    TWS_TRY(tws_write_all(s->fd[i], s->path, line, (size_t)length, err));
  }
  return TWS_OK;
}

static tws_code csv_close(tws_sink *sink, tws_code ended, tws_error *err) {
  (void)ended;
  csv_sink *s = (csv_sink *)sink;
  tws_code code = TWS_OK;
  for (int i = 0; i < TWS_STEP_VALUE_COUNT; i++)
    if (s->fd[i] >= 0 && close(s->fd[i]) != 0 && code == TWS_OK) code = tws_output_failed(s->path, "write", err);
  if (s->folder >= 0) close(s->folder);
  tws_free(s);
  return code;
}

tws_code tws_csv_sink_open(const char *folder, tws_sink **out, tws_error *err) {
  csv_sink *s = tws_calloc(1, sizeof *s);
  *out = NULL;
  if (!s) return tws_fail(err, TWS_MEMORY, NULL, "out of memory");
  s->sink = (tws_sink){csv_write, csv_close};
  for (int i = 0; i < TWS_STEP_VALUE_COUNT; i++) s->fd[i] = -1;
  snprintf(s->path, sizeof s->path, "%s", folder);
  const tws_code code = tws_make_folder(folder, &s->folder, err);
  if (code == TWS_OK)
    *out = &s->sink;
  else
    tws_free(s);
  return code;
}
