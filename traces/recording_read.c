/* Detects the format of a recording by the beginning of its file, and calls the reader for it. */
#include <string.h>
#include <unistd.h>

#include "base/json.h"
#include "traces/recording.h"

/* Returns 1 if the file is an event file, which begins with a short record that has the version */
static int is_events(const unsigned char *head, size_t count) {
  return count >= 12 && head[0] < 128 && head[1] == 0 && head[2] == 0 && head[3] == 0 && head[4] == 0 && head[5] == 0 &&
         head[6] == 0 && head[7] == 0;
}

tws_code tws_recording_read(const char *path, tws_recording *out, tws_error *err) {
  unsigned char head[4096] = {0};
  int fd;
  *out = (tws_recording){.devices = 1};
  TWS_TRY(tws_open_regular(path, &fd, err));
  const ssize_t got = pread(fd, head, sizeof head - 1, 0);
  const size_t count = got > 0 ? (size_t)got : 0;
  const char *text = (const char *)head + strspn((const char *)head, " \t\r\n");
  const int gzip = count > 2 && head[0] == 0x1f && head[1] == 0x8b;
  const int marked = strstr(text, "\"traceEvents\"") || strstr(text, "\"schemaVersion\"");
  const int whole = *text == '[' || (*text == '{' && (marked || strstr(text, "\"deviceProperties\"")));
  tws_code code;
  if (count == 0)
    code = tws_fail(err, TWS_INVALID, "give a log or a trace of a training run", "%s: the file is empty", path);
  else if (count >= 16 && memcmp(head, "SQLite format 3", 16) == 0)
    code = tws_recording_read_nsys(path, out, err);
  else if (is_events(head, count))
    code = tws_recording_read_events(fd, path, out, err);
  else if (gzip || whole)
    code = tws_recording_read_kineto(fd, path, out, err);
  else
    code = tws_recording_read_log(fd, path, out, err);
  close(fd);
  return code;
}
