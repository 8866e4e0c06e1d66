/* JSON lines: one object per step, with its known values. */
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/memory.h"
#include "base/output_file.h"
#include "traces/monitor.h"

enum { PATH_SIZE = 4096 };

typedef struct lines_sink {
  tws_sink sink;
  int fd;
  char path[PATH_SIZE];
} lines_sink;

static tws_code lines_write(tws_sink *sink, const tws_step_report *report, tws_error *err) {
  lines_sink *s = (lines_sink *)sink;
  char line[TWS_STEP_LINE];
  const int length = tws_step_line(report, line);
  return tws_write_all(s->fd, s->path, line, (size_t)length, err);
}

static tws_code lines_close(tws_sink *sink, tws_code ended, tws_error *err) {
  (void)ended;
  lines_sink *s = (lines_sink *)sink;
  const tws_code code = s->fd >= 0 && close(s->fd) != 0 ? tws_output_failed(s->path, "write", err) : TWS_OK;
  tws_free(s);
  return code;
}

tws_code tws_lines_sink_open(const char *path, int appends, tws_sink **out, tws_error *err) {
  lines_sink *s = tws_calloc(1, sizeof *s);
  *out = NULL;
  if (!s) return tws_fail(err, TWS_MEMORY, NULL, "out of memory");
  s->sink = (tws_sink){lines_write, lines_close};
  s->fd = -1;
  snprintf(s->path, sizeof s->path, "%s", path);
  const tws_code code = appends && tws_path_kind_of(path) != TWS_PATH_STREAM
                            ? tws_appended_file(AT_FDCWD, path, path, &s->fd, err)
                            : tws_growing_file(path, &s->fd, err);
  if (code == TWS_OK)
    *out = &s->sink;
  else
    lines_close(&s->sink, code, NULL);
  return code;
}
