#include "traces/plot.h"
#include "traces/draw.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#include "base/json.h"
#include "base/memory.h"
#include "base/process.h"

int tws_plot_available(void) {
  char path[4096];
  return tws_process_find("gnuplot", path, sizeof path) != NULL;
}

/* ---- running gnuplot ---- */

/* Adds a text variable. gnuplot doubles a quote inside quotes, but not at their beginning and not twice, so quotes
 * become apostrophes. */
void tws_plot_text(tws_text *settings, const char *name, const char *value) {
  tws_text_add(settings, "%s = '", name);
  for (; *value; value++) {
    const char c = (unsigned char)*value < 32 || *value == 127 ? ' ' : *value;
    if (c == '\'')
      tws_text_add(settings, "\xe2\x80\x99");
    else
      tws_text_add_bytes(settings, &c, 1);
  }
  tws_text_add(settings, "'; ");
}

/* Adds a text in double quotes, as a cell of the data or as one of several words in a cell; characters that would end
 * the text become blanks. */
static void plot_word(tws_text *text, const char *word, size_t length) {
  tws_text_add(text, "\"");
  for (size_t i = 0; i < length; i++) {
    const int kept = (unsigned char)word[i] >= 32 && word[i] != 127 && word[i] != '"' && word[i] != '\\';
    tws_text_add_bytes(text, kept ? &word[i] : " ", 1);
  }
  tws_text_add(text, "\"");
}

/* Returns a descriptor of an anonymous file with the data, since gnuplot reads it more than once. */
static int data_file(const tws_text *data) {
  const int file = memfd_create("twinspeed-figure", MFD_CLOEXEC);
  for (size_t done = 0; file >= 0 && done < data->length;) {
    const ssize_t n = write(file, data->data + done, data->length - done);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) {
      close(file);
      return -1;
    }
    done += (size_t)n;
  }
  return file;
}

/* Runs gnuplot, which takes file names that begin with '|' or '<' for commands. It is given no names: the folder of the
 * scripts and the data are its descriptors 3 and 4, and it writes the picture to its standard output. */
static tws_code run_gnuplot(const char *scripts, const char *script, const tws_text *data, tws_text *settings,
                            tws_text *picture, tws_error *err) {
  enum { MOST_BYTES = 64 << 20 };
  char path[300];
  const int folder = open(scripts, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (folder < 0 || faccessat(folder, script, R_OK, 0) != 0) {
    const int why = errno;
    if (folder >= 0) close(folder);
    return tws_fail(err, TWS_ENVIRONMENT, "set TWINSPEED_PLOTS to the folder of the .gp files", "%.1000s/%s: %s",
                    scripts, script, strerror(why));
  }
  snprintf(path, sizeof path, "/proc/self/fd/3/%s", script);
  tws_plot_text(settings, "plots", "/proc/self/fd/3");
  tws_plot_text(settings, "data", "/proc/self/fd/4");
  const int file = data_file(data);
  tws_process_end end = {0};
  tws_code code = TWS_OK;
  if (settings->failed) code = tws_fail(err, TWS_MEMORY, 0, "no memory for a figure");
  if (file < 0) code = tws_fail(err, TWS_IO, 0, "no memory file for the data of a figure: %s", strerror(errno));
  if (code == TWS_OK) {
    const char *const arguments[] = {"gnuplot", "-e", settings->data, path, NULL};
    const tws_process process = {
        .arguments = arguments, .limit_s = 300, .most_bytes = MOST_BYTES, .files = {folder, file}, .file_count = 2};
    code = tws_process_run(&process, &end, err);
    if (code != TWS_OK && err) snprintf(err->hint, sizeof err->hint, "install it (Debian: gnuplot-nox)");
  }
  if (file >= 0) close(file);
  close(folder);
  if (code == TWS_OK && (end.status != 0 || end.timed_out || end.cut || end.output.length == 0))
    code = tws_fail(err, TWS_ENVIRONMENT, 0, "gnuplot %s %s: %.400s",
                    end.timed_out ? "did not end within 300 s on"
                    : end.cut     ? "wrote more than 64 MiB on"
                                  : "failed on",
                    script, end.errors);
  *picture = end.output;
  return code;
}

/* Derives the name of the data file: "x.dat" for "x.png", in the same folder. */
static void name_of_data(const char *out, char *file, size_t size) {
  const char *dot = strrchr(out, '.'), *slash = strrchr(out, '/');
  const size_t stem = dot && (!slash || dot > slash) ? (size_t)(dot - out) : strlen(out);
  snprintf(file, size, "%.*s.dat", (int)stem, out);
}

tws_code tws_plot_picture(const char *scripts, const char *script, const char *format, const tws_text *data,
                          tws_text *settings, const char *title, tws_text *picture, tws_error *err) {
  tws_plot_text(settings, "format", format);
  tws_plot_text(settings, "title_text", title);
  if (data->failed || settings->failed) return tws_fail(err, TWS_MEMORY, 0, "no memory for the figure \"%s\"", title);
  return run_gnuplot(scripts, script, data, settings, picture, err);
}

tws_code tws_plot_draw(const char *scripts, const char *script, tws_text *data, tws_text *settings, const char *title,
                       const char *out, tws_error *err) {
  char file[4200];
  struct stat status;
  tws_text picture = {0};
  const size_t length = strlen(out);
  const int other = stat(out, &status) == 0 && !S_ISREG(status.st_mode); /* a device: no data file is written */
  name_of_data(out, file, sizeof file);
  const char *format = length > 4 && strcmp(out + length - 4, ".svg") == 0 ? "svg" : "png";
  tws_code code = tws_plot_picture(scripts, script, format, data, settings, title, &picture, err);
  if (code == TWS_OK && !other) code = tws_write_file(file, data->data ? data->data : "", data->length, err);
  if (code == TWS_OK) code = tws_write_file(out, picture.data, picture.length, err);
  tws_text_free(&picture);
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

/* Determines the rows in the order from top to bottom: by timeline, rank and stream. */
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

/* Adds the boxes of one kind. Boxes closer than `gap_ms` are merged, as thousands of narrow boxes would only blur. */
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

/* Returns the start of a step, and sets *length_s to its duration. */
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
  for (int r = 0; r < row_count; r++) {
    char label[300];
    snprintf(label, sizeof label, "%.100s, rank %d, %.100s", timelines[rows[r].timeline]->source, rows[r].rank,
             timelines[rows[r].timeline]->stream_names[rows[r].stream]);
    tws_text_add(&data, "%d ", row_count - 1 - r);
    plot_word(&data, label, strlen(label));
    tws_text_add(&data, "\n");
  }
  double longest = 0, length;
  for (int t = 0; t < count; t++) {
    first_start(timelines[t], last_step(timelines[t]), &length);
    longest = fmax(longest, length * 1e3);
  }
  tws_text_add(&settings, "blocks = '"); /* the legend names only kinds that have boxes */
  for (int kind = 0; kind < KINDS; kind++) {
    tws_text_add(&data, "\n\nNaN NaN NaN\n"); /* a data block must not be empty */
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

/* Returns 1 if an operation of the CSV is of this phase, its second column. */
static int has_phase(const char *csv, const char *phase) {
  const size_t length = strlen(phase);
  for (const char *line = strchr(csv, '\n'); line; line = strchr(line + 1, '\n')) {
    const char *cell = line + 1 + strcspn(line + 1, ",\n");
    if (*cell == ',' && strncmp(cell + 1, phase, length) == 0 && cell[1 + length] == ',') return 1;
  }
  return 0;
}

/* Makes the data and the settings of the figure of memory; returns the number of categories. */
static int prepare_memory(const char *csv, tws_text *data, tws_text *settings) {
  tws_text names = {0};
  const char *end = strchr(csv, '\n'), *cell = csv;
  int column = 0, categories = 0;
  while (end && cell < end) {
    const char *stop = memchr(cell, ',', (size_t)(end - cell));
    if (!stop) stop = end;
    if (column >= 4 && stop < end) { /* columns of categories, which are between the name and the total */
      if (categories) tws_text_add(&names, " ");
      plot_word(&names, cell, (size_t)(stop - cell));
      categories++;
    }
    column++;
    cell = stop + 1;
  }
  tws_plot_text(settings, "names", names.data ? names.data : "");
  settings->failed |= names.failed;
  tws_text_free(&names);
  tws_text_add(settings, "categories = %d; phases = '", categories);
  static const char *const phases[] = {"forward", "backward", "recompute", "step"};
  for (int i = 0; i < 4; i++)
    if (has_phase(csv, phases[i])) tws_text_add(settings, "%s ", phases[i]);
  tws_text_add(settings, "'; ");
  tws_text_add_bytes(data, csv, strlen(csv));
  return categories;
}

tws_code tws_plot_memory(const char *scripts, const char *csv, const char *title, const char *out, tws_error *err) {
  tws_text data = {0}, settings = {0};
  if (prepare_memory(csv, &data, &settings) > 0)
    return tws_plot_draw(scripts, "memory.gp", &data, &settings, title, out, err);
  tws_text_free(&data);
  tws_text_free(&settings);
  return tws_fail(err, TWS_INVALID, 0, "%s: the ledger has no categories", out);
}

tws_code tws_plot_memory_png(const char *scripts, const char *csv, const char *title, tws_text *picture,
                             tws_error *err) {
  tws_text data = {0}, settings = {0};
  const tws_code code = prepare_memory(csv, &data, &settings) > 0
                            ? tws_plot_picture(scripts, "memory.gp", "png", &data, &settings, title, picture, err)
                            : tws_fail(err, TWS_INVALID, 0, "%s: the ledger has no categories", title);
  tws_text_free(&data);
  tws_text_free(&settings);
  return code;
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
    tws_text_add(&data, "%d ", i);
    plot_word(&data, p->name, strlen(p->name));
    tws_text_add(&data, " %.6g %.6g %.6g %.6g %.4g\n", p->measured_s * 1e3, p->low_s * 1e3, p->high_s * 1e3,
                 p->predicted_s * 1e3, error);
  }
  if (count == 0) return tws_fail(err, TWS_INVALID, 0, "%s: nothing was measured", out);
  tws_text_add(&settings, "rows = %d; bound = %.6g; height = 700; ", count, bound);
  return tws_plot_draw(scripts, "accuracy.gp", &data, &settings, title, out, err);
}
