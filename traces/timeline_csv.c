/* Timelines as comma-separated tables with a header row, for gnuplot and spreadsheets. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/json.h"
#include "base/memory.h"
#include "base/number.h"
#include "traces/timeline.h"

static void add_separator(tws_text *out) {
  if (out->length && out->data[out->length - 1] != '\n') tws_text_add_bytes(out, ",", 1);
}

/* The functions below append one cell, after a comma unless it is the first of its line. Text with commas, quotes or
 * line breaks is quoted (RFC 4180). */
static void add_text(tws_text *out, const char *text) {
  add_separator(out);
  if (!strpbrk(text, ",\"\r\n") && *text) {
    tws_text_add_bytes(out, text, strlen(text));
    return;
  }
  tws_text_add_bytes(out, "\"", 1);
  for (; *text; text++) {
    if (*text == '"') tws_text_add_bytes(out, "\"", 1);
    tws_text_add_bytes(out, text, 1);
  }
  tws_text_add_bytes(out, "\"", 1);
}

/* Appends the shortest text that reads back as the same number; nan and inf are written as such. */
static void add_number(tws_text *out, double value) {
  char text[40];
  add_separator(out);
  for (int digits = 6; digits <= 17; digits++) {
    snprintf(text, sizeof text, "%.*g", digits, value);
    double back;
    if (!isfinite(value) || (tws_text_number(text, NULL, -HUGE_VAL, HUGE_VAL, &back) && back == value)) break;
  }
  tws_text_add_bytes(out, text, strlen(text));
}

static void add_integer(tws_text *out, long long value) {
  add_separator(out);
  tws_text_add(out, "%lld", value);
}

static void end_line(tws_text *out) {
  tws_text_add_bytes(out, "\n", 1);
}

tws_code tws_timeline_write_csv(const tws_timeline *const *timelines, int count, const char *path, tws_error *err) {
  tws_text out = {0};
  tws_code code = TWS_OK;
  tws_text_add(&out, "source,rank,step,stream,phase,micro_batch,op,name,start_s,end_s\n");
  for (int t = 0; t < count && code == TWS_OK; t++) {
    const tws_timeline *timeline = timelines[t];
    code = tws_timeline_check(timeline, err);
    for (size_t i = 0; i < timeline->event_count && code == TWS_OK; i++) {
      const tws_event *event = &timeline->events[i];
      add_text(&out, timeline->source);
      add_integer(&out, event->rank);
      add_integer(&out, event->step);
      add_text(&out, timeline->stream_names[event->stream]);
      add_text(&out, timeline->phase_names[event->phase]);
      add_integer(&out, event->micro_batch);
      add_integer(&out, event->op);
      add_text(&out, timeline->names[event->name]);
      add_number(&out, event->start_s);
      add_number(&out, event->end_s);
      end_line(&out);
    }
  }
  if (code == TWS_OK && out.failed) code = tws_fail(err, TWS_MEMORY, NULL, "out of memory while writing %.300s", path);
  if (code == TWS_OK) code = tws_write_file(path, out.data, out.length, err);
  tws_text_free(&out);
  return code;
}
