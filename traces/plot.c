#include "traces/plot.h"
#include "traces/draw.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>
#include "base/json.h"
#include "base/memory.h"

extern char **environ;

int tws_plot_available(void) {
  const char *path = getenv("PATH");
  char file[4096];
  while (path && *path) {
    size_t length = strcspn(path, ":");
    if (length < sizeof file - 16) {
      snprintf(file, sizeof file, "%.*s/gnuplot", (int)length, path);
      if (access(file, X_OK) == 0) return 1;
    }
    path += length + (path[length] == ':');
  }
  return 0;
}

/* ---- running gnuplot ---- */

/* A gnuplot string between single quotes: a quote is doubled, controls become blanks. */
static void add_quoted(tws_text *text, const char *name, const char *value) {
  tws_text_add(text, "%s = '", name);
  for (; *value; value++) {
    char c = (unsigned char)*value < 32 ? ' ' : *value;
    tws_text_add_bytes(text, &c, 1);
    if (c == '\'') tws_text_add_bytes(text, &c, 1);
  }
  tws_text_add(text, "'; ");
}

/* What the child wrote on standard error, its last words kept. */
static void last_words(int fd, char *words, size_t size) {
  char buffer[512];
  size_t used = 0;
  words[0] = '\0';
  for (ssize_t got; (got = read(fd, buffer, sizeof buffer)) != 0;) {
    if (got < 0) {
      if (errno == EINTR) continue;
      break;
    }
    for (ssize_t i = 0; i < got; i++) {
      if (used + 1 >= size) {
        memmove(words, words + size / 2, used - size / 2);
        used -= size / 2;
      }
      words[used++] = buffer[i] == '\n' ? ' ' : buffer[i];
    }
  }
  words[used] = '\0';
}

static tws_code run_gnuplot(char *commands, char *script, tws_error *err) {
  char *arguments[] = {"gnuplot", "-e", commands, script, 0};
  int fds[2];
  if (pipe2(fds, O_CLOEXEC) != 0) return tws_fail(err, TWS_IO, 0, "no pipe for gnuplot: %s", strerror(errno));
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_addopen(&actions, 0, "/dev/null", O_RDONLY, 0);
  posix_spawn_file_actions_addopen(&actions, 1, "/dev/null", O_WRONLY, 0);
  posix_spawn_file_actions_adddup2(&actions, fds[1], 2);
  pid_t child;
  int failed = posix_spawnp(&child, "gnuplot", &actions, 0, arguments, environ);
  posix_spawn_file_actions_destroy(&actions);
  close(fds[1]);
  if (failed) {
    close(fds[0]);
    return tws_fail(err, TWS_ENVIRONMENT, "install it (Debian: gnuplot-nox)", "gnuplot does not start: %s",
                    strerror(failed));
  }
  char words[400];
  last_words(fds[0], words, sizeof words);
  close(fds[0]);
  int status = 0;
  while (waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  if (WIFEXITED(status) && WEXITSTATUS(status) == 0) return TWS_OK;
  return tws_fail(err, TWS_ENVIRONMENT, 0, "gnuplot failed on %s: %s", script, words);
}

tws_code tws_plot_draw(const char *scripts, const char *script, tws_text *data, tws_text *settings, const char *title,
                       const char *out, tws_error *err) {
  char file[4200], path[4200];
  snprintf(path, sizeof path, "%s/%s", scripts, script);
  const char *dot = strrchr(out, '.'), *slash = strrchr(out, '/');
  int stem = dot && (!slash || dot > slash) ? (int)(dot - out) : (int)strlen(out);
  snprintf(file, sizeof file, "%.*s.dat", stem, out);
  add_quoted(settings, "plots", scripts);
  add_quoted(settings, "data", file);
  add_quoted(settings, "out", out);
  add_quoted(settings, "title_text", title);
  tws_code code = TWS_OK;
  if (data->failed || settings->failed) code = tws_fail(err, TWS_MEMORY, 0, "no memory for the figure %s", out);
  if (code == TWS_OK && access(path, R_OK) != 0)
    code = tws_fail(err, TWS_ENVIRONMENT, "set TWINSPEED_PLOTS to the folder of the .gp files", "%s: %s", path,
                    strerror(errno));
  if (code == TWS_OK) code = tws_write_file(file, data->data, data->length, err);
  if (code == TWS_OK) code = run_gnuplot(settings->data, path, err);
  tws_text_free(data);
  tws_text_free(settings);
  return code;
}

/* ---- timelines ---- */

enum { KINDS = 6, COMMUNICATION = 4, COPIES = 5, MAX_ROWS = 64 };

typedef struct row {
  int timeline, rank, stream;
} row;

static int kind_of(const tws_timeline *timeline, const tws_event *event) {
  const char *stream = event->stream < timeline->stream_count ? timeline->stream_names[event->stream] : "";
  static const char *const communicating[] = {"gather", "reduce", "exchange", "p2p"};
  for (size_t i = 0; i < sizeof communicating / sizeof *communicating; i++)
    if (strcmp(stream, communicating[i]) == 0) return COMMUNICATION;
  if (strncmp(stream, "copy", 4) == 0 || strcmp(stream, "disk") == 0) return COPIES;
  const char *phase = event->phase < timeline->phase_count ? timeline->phase_names[event->phase] : "";
  return strcmp(phase, "backward") == 0 ? 1 : strcmp(phase, "recompute") == 0 ? 2 : strcmp(phase, "step") == 0 ? 3 : 0;
}

static uint32_t last_step(const tws_timeline *timeline) {
  uint32_t step = 0;
  for (size_t i = 0; i < timeline->event_count; i++)
    if (timeline->events[i].step > step) step = timeline->events[i].step;
  return step;
}

/* Rows in the order in which they are read from the top: timelines, ranks, streams. */
static int find_rows(const tws_timeline *const *timelines, int count, int ranks, row *rows) {
  int found = 0;
  for (int t = 0; t < count; t++)
    for (int rank = 0; rank < ranks; rank++)
      for (int stream = 0; stream < timelines[t]->stream_count && found < MAX_ROWS; stream++)
        for (size_t i = 0; i < timelines[t]->event_count; i++) {
          const tws_event *event = &timelines[t]->events[i];
          if (event->rank != rank || event->stream != stream) continue;
          rows[found++] = (row){t, rank, stream};
          break;
        }
  return found;
}

/* Boxes of one kind. Neighbours closer than `gap_ms` become one box: thousands of slivers would only blur. */
static void add_kind(const tws_timeline *timeline, int t, int kind, const row *rows, int row_count, double start,
                     uint32_t step, double gap_ms, tws_text *data) {
  for (int r = 0; r < row_count; r++) {
    if (rows[r].timeline != t) continue;
    double from = NAN, to = NAN;
    for (size_t i = 0; i < timeline->event_count; i++) {
      const tws_event *event = &timeline->events[i];
      if (event->step != step || event->rank != rows[r].rank || event->stream != rows[r].stream ||
          kind_of(timeline, event) != kind)
        continue;
      double begin = (event->start_s - start) * 1e3, end = (event->end_s - start) * 1e3;
      if (begin <= to + gap_ms && begin >= from) {
        to = fmax(to, end);
        continue;
      }
      if (!isnan(from)) tws_text_add(data, "%.6f %.6f %d\n", from, to, row_count - 1 - r);
      from = begin;
      to = end;
    }
    if (!isnan(from)) tws_text_add(data, "%.6f %.6f %d\n", from, to, row_count - 1 - r);
  }
}

/* Start of a step, and how long it is. */
static double first_start(const tws_timeline *timeline, uint32_t step, double *length_s) {
  double start = INFINITY, end = 0;
  for (size_t i = 0; i < timeline->event_count; i++) {
    if (timeline->events[i].step != step) continue;
    start = fmin(start, timeline->events[i].start_s);
    end = fmax(end, timeline->events[i].end_s);
  }
  if (!isfinite(start)) start = 0;
  *length_s = end - start;
  return start;
}

tws_code tws_plot_timelines(const char *scripts, const tws_timeline *const *timelines, int count, int ranks,
                            const char *title, const char *out, tws_error *err) {
  row rows[MAX_ROWS];
  int row_count = find_rows(timelines, count, ranks, rows);
  if (row_count == 0) return tws_fail(err, TWS_INVALID, 0, "%s: the timeline has no events", out);
  tws_text data = {0}, settings = {0};
  for (int r = 0; r < row_count; r++)
    tws_text_add(&data, "%d \"%s, rank %d, %s\"\n", row_count - 1 - r, timelines[rows[r].timeline]->source,
                 rows[r].rank, timelines[rows[r].timeline]->stream_names[rows[r].stream]);
  double longest = 0, length;
  for (int t = 0; t < count; t++) {
    first_start(timelines[t], last_step(timelines[t]), &length);
    longest = fmax(longest, length * 1e3);
  }
  tws_text_add(&settings, "blocks = '"); /* those that have boxes: the legend names no others */
  for (int kind = 0; kind < KINDS; kind++) {
    tws_text_add(&data, "\n\nNaN NaN NaN\n"); /* a block is never empty */
    const size_t before = data.length;
    for (int t = 0; t < count; t++) {
      uint32_t step = last_step(timelines[t]);
      double start = first_start(timelines[t], step, &length);
      add_kind(timelines[t], t, kind, rows, row_count, start, step, longest / 4000, &data);
    }
    if (data.length > before) tws_text_add(&settings, "%d ", kind + 1);
  }
  tws_text_add(&settings, "'; rows = %d; longest_ms = %.6f; height = %d; ", row_count, longest > 0 ? longest : 1,
               150 + 34 * row_count);
  return tws_plot_draw(scripts, "timeline.gp", &data, &settings, title, out, err);
}

/* ---- memory ---- */

/* Whether an operation of the CSV is of this phase, its second column. */
static int has_phase(const char *csv, const char *phase) {
  const size_t length = strlen(phase);
  for (const char *line = strchr(csv, '\n'); line; line = strchr(line + 1, '\n')) {
    const char *cell = line + 1 + strcspn(line + 1, ",\n");
    if (*cell == ',' && strncmp(cell + 1, phase, length) == 0 && cell[1 + length] == ',') return 1;
  }
  return 0;
}

tws_code tws_plot_memory(const char *scripts, const char *csv, const char *title, const char *out, tws_error *err) {
  tws_text data = {0}, settings = {0};
  const char *end = strchr(csv, '\n'), *cell = csv;
  int column = 0, categories = 0;
  tws_text_add(&settings, "names = \"");
  while (end && cell < end) {
    const char *stop = memchr(cell, ',', (size_t)(end - cell));
    if (!stop) stop = end;
    if (column >= 4 && stop < end) { /* between the name and the total */
      tws_text_add(&settings, "%s'%.*s'", categories ? " " : "", (int)(stop - cell), cell);
      categories++;
    }
    column++;
    cell = stop + 1;
  }
  tws_text_add(&settings, "\"; categories = %d; phases = '", categories);
  static const char *const phases[] = {"forward", "backward", "recompute", "step"};
  for (int i = 0; i < 4; i++)
    if (has_phase(csv, phases[i])) tws_text_add(&settings, "%s ", phases[i]);
  tws_text_add(&settings, "'; ");
  if (categories == 0) {
    tws_text_free(&settings);
    return tws_fail(err, TWS_INVALID, 0, "%s: the ledger has no categories", out);
  }
  tws_text_add_bytes(&data, csv, strlen(csv));
  return tws_plot_draw(scripts, "memory.gp", &data, &settings, title, out, err);
}

/* ---- accuracy ---- */

tws_code tws_plot_accuracy(const char *scripts, const tws_plot_point *points, int count, const char *title,
                           const char *out, tws_error *err) {
  tws_text data = {0}, settings = {0};
  double bound = 20;
  for (int i = 0; i < count; i++) {
    const tws_plot_point *p = &points[i];
    double error = (p->predicted_s - p->measured_s) / p->measured_s * 100;
    bound = fmax(bound, fabs(error) * 1.1);
    tws_text_add(&data, "%d \"%s\" %.6g %.6g %.6g %.6g %.4g\n", i, p->name, p->measured_s * 1e3, p->low_s * 1e3,
                 p->high_s * 1e3, p->predicted_s * 1e3, error);
  }
  if (count == 0) return tws_fail(err, TWS_INVALID, 0, "%s: nothing was measured", out);
  tws_text_add(&settings, "rows = %d; bound = %.6g; height = 700; ", count, bound);
  return tws_plot_draw(scripts, "accuracy.gp", &data, &settings, title, out, err);
}
