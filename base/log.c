#include "base/log.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <time.h>

#include "base/units.h"

double tws_clock_s(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

double tws_wall_s(void) {
  struct timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

void tws_log_write(const tws_log *log, tws_log_level level, const char *format, ...) {
  if (!log || !log->write || level > log->level) return;
  char line[2048];
  va_list arguments;
  va_start(arguments, format);
  int length = vsnprintf(line, sizeof line, format, arguments);
  va_end(arguments);
  if (length >= 0) log->write(log->user, level, line);
}

static void draw_progress(tws_progress *progress, double now) {
  char line[256], left[32] = "";
  const double spent = now - progress->started_s, done = progress->done - progress->before;
  const double share = progress->total > 0 ? fmin(progress->done / progress->total, 1) : 0;
  /* The first half second gives no useful estimate. */
  if (done > 0 && share < 1 && spent > 0.5)
    tws_format_seconds(spent * (progress->total - progress->done) / done, left, sizeof left);
  snprintf(line, sizeof line, "%s %3.0f%% (%.0f of %.0f)%s%s%s", progress->what, floor(100 * share), progress->done,
           progress->total, left[0] ? ", " : "", left, left[0] ? " left" : "");
  progress->drawn_s = now;
  progress->draw(progress->user, line);
}

void tws_progress_begin(tws_progress *progress, const char *what, double total) {
  tws_progress_resume(progress, what, 0, total);
}

void tws_progress_resume(tws_progress *progress, const char *what, double before, double total) {
  progress->what = what;
  progress->total = total;
  progress->done = progress->before = before;
  progress->started_s = tws_clock_s();
  if (progress->draw) draw_progress(progress, progress->started_s);
}

void tws_progress_update(tws_progress *progress, double done) {
  progress->done = done;
  if (!progress->draw) return;
  double now = tws_clock_s();
  if (now - progress->drawn_s >= 0.1) draw_progress(progress, now);
}

void tws_progress_end(tws_progress *progress) {
  if (!progress->draw) return;
  progress->done = progress->total;
  draw_progress(progress, tws_clock_s());
}
