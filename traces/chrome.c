/* Chrome trace writer. Traces have hundreds of thousands of events: each name is escaped once, numbers are formatted
 * here, and the text is built in memory. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "base/memory.h"
#include "traces/gzip.h"
#include "traces/marks.h"

enum { MAX_RANKS = 65536, MAX_STREAMS = 32 };

typedef struct name_text { /* offsets of texts in `escaped` */
  size_t name, module;     /* offsets in `escaped`, bytes */
  uint32_t name_length, module_length;
} name_text;

typedef struct writer {
  tws_text out, escaped;
  name_text *names;
  uint32_t *streams; /* [rank] bit set of the streams that have events */
  uint64_t flows;    /* number of flows so far, which is the id of the next one */
} writer;

#define ADD_LITERAL(out, text) tws_text_add_bytes((out), (text), sizeof(text) - 1)

/* Events are written through a pointer to reserved memory that has room for a whole event. Returns the position after
 * the text. */
static inline char *put_text(char *at, const char *text, size_t length) {
  memcpy(at, text, length);
  return at + length;
}
#define PUT_LITERAL(at, text) put_text((at), (text), sizeof(text) - 1)

static inline char *put_unsigned(char *at, uint64_t value) {
  char digits[20];
  size_t first = sizeof digits;
  do {
    digits[--first] = (char)('0' + value % 10);
    value /= 10;
  } while (value);
  return put_text(at, digits + first, sizeof digits - first);
}

/* Writes nanoseconds as microseconds with three decimals, "12.345". */
static inline char *put_microseconds(char *at, uint64_t nanoseconds) {
  const unsigned rest = (unsigned)(nanoseconds % 1000);
  at = put_unsigned(at, nanoseconds / 1000);
  *at++ = '.';
  *at++ = (char)('0' + rest / 100);
  *at++ = (char)('0' + rest / 10 % 10);
  *at++ = (char)('0' + rest % 10);
  return at;
}

static void add_escaped(tws_text *out, const char *text, size_t length) {
  for (size_t i = 0; i < length; i++) {
    const unsigned char c = (unsigned char)text[i];
    if (c < 0x20 || c == '"' || c == '\\')
      tws_text_add(out, "\\u%04x", c);
    else
      tws_text_add_bytes(out, text + i, 1);
  }
}

static void escape_names(writer *w, const tws_timeline *timeline) {
  w->escaped.length = 0;
  for (uint32_t i = 0; i < timeline->name_count; i++) {
    int module_length = 0;
    const char *label = timeline->names[i], *module = tws_label_module(label, &module_length);
    name_text *name = &w->names[i];
    name->name = w->escaped.length;
    add_escaped(&w->escaped, label, strlen(label));
    name->module = w->escaped.length;
    name->name_length = (uint32_t)(name->module - name->name);
    add_escaped(&w->escaped, module, (size_t)module_length);
    name->module_length = (uint32_t)(w->escaped.length - name->module);
  }
}

static uint64_t nanoseconds(double seconds) {
  return seconds > 0 ? (uint64_t)(seconds * 1e9 + 0.5) : 0;
}

static void add_event(writer *w, const tws_timeline *timeline, const tws_event *event, double origin_s, uint64_t pid) {
  const name_text *name = &w->names[event->name];
  const char *phase = timeline->phase_names[event->phase];
  const size_t phase_length = strlen(phase);
  /* start and end are both rounded, so that adjacent events stay adjacent */
  const uint64_t start = nanoseconds(event->start_s - origin_s), end = nanoseconds(event->end_s - origin_s);
  /* upper limit of an event's length: its literals and eight numbers */
  const char *detail = event->detail ? timeline->names[event->detail - 1] : "";
  const size_t detail_length = strlen(detail);
  const size_t most = 320 + name->name_length + name->module_length + 2 * phase_length + detail_length;
  if (w->out.failed || tws_reserve(&w->out.data, &w->out.capacity, w->out.length + most, 1) != 0) {
    w->out.failed = 1;
    return;
  }
  char *at = w->out.data + w->out.length;
  at = PUT_LITERAL(at, ",\n{\"ph\":\"X\",\"name\":\"");
  at = put_text(at, w->escaped.data + name->name, name->name_length);
  at = PUT_LITERAL(at, "\",\"cat\":\"");
  at = put_text(at, phase, phase_length);
  at = PUT_LITERAL(at, "\",\"pid\":");
  at = put_unsigned(at, pid);
  at = PUT_LITERAL(at, ",\"tid\":");
  at = put_unsigned(at, event->stream);
  at = PUT_LITERAL(at, ",\"ts\":");
  at = put_microseconds(at, start);
  at = PUT_LITERAL(at, ",\"dur\":");
  at = put_microseconds(at, end - start);
  at = PUT_LITERAL(at, ",\"args\":{\"op\":");
  at = put_unsigned(at, event->op);
  at = PUT_LITERAL(at, ",\"phase\":\"");
  at = put_text(at, phase, phase_length);
  at = PUT_LITERAL(at, "\",\"micro_batch\":");
  at = put_unsigned(at, event->micro_batch);
  if (event->step) {
    at = PUT_LITERAL(at, ",\"step\":");
    at = put_unsigned(at, event->step);
  }
  if (name->module_length) {
    at = PUT_LITERAL(at, ",\"module\":\"");
    at = put_text(at, w->escaped.data + name->module, name->module_length);
    *at++ = '"';
  }
  if (detail_length) {
    *at++ = ',';
    at = put_text(at, detail, detail_length);
  }
  at = PUT_LITERAL(at, "}}");
  w->out.length = (size_t)(at - w->out.data);
}

static void add_rows(writer *w, const tws_timeline *timeline, uint64_t first_pid) {
  for (unsigned rank = 0; rank < MAX_RANKS; rank++) {
    if (!w->streams[rank]) continue;
    const unsigned long long pid = first_pid + rank;
    tws_text_add(&w->out, ",\n{\"ph\":\"M\",\"name\":\"process_name\",\"pid\":%llu,\"args\":{\"name\":\"%s rank %u\"}}",
                 pid, timeline->source, rank);
    tws_text_add(&w->out,
                 ",\n{\"ph\":\"M\",\"name\":\"process_sort_index\",\"pid\":%llu,\"args\":{\"sort_index\":%llu}}", pid,
                 pid);
    for (int stream = 0; stream < timeline->stream_count; stream++) {
      if (!(w->streams[rank] >> stream & 1)) continue;
      tws_text_add(
          &w->out,
          ",\n{\"ph\":\"M\",\"name\":\"thread_name\",\"pid\":%llu,\"tid\":%d,\"args\":{\"name\":\"%s\"}}"
          ",\n{\"ph\":\"M\",\"name\":\"thread_sort_index\",\"pid\":%llu,\"tid\":%d,\"args\":{\"sort_index\":%d}}",
          pid, stream, timeline->stream_names[stream], pid, stream, stream);
    }
  }
}

/* Adds the counters: the values of all series of one counter at one time are one event. Counters of a rank belong to
 * its process, others to a process whose number follows those of the ranks. */
static void add_counts(writer *w, const tws_timeline *timeline, double origin_s, uint64_t first_pid) {
  const unsigned long long all = first_pid + MAX_RANKS - 1;
  int shared = 0;
  for (size_t i = 0; i < timeline->count_count && !shared; i++) shared = timeline->counts[i].rank < 0;
  if (shared)
    tws_text_add(&w->out,
                 ",\n{\"ph\":\"M\",\"name\":\"process_name\",\"pid\":%llu,\"args\":{\"name\":\"%s counters\"}}", all,
                 timeline->source);
  for (size_t i = 0; i < timeline->count_count; i++) {
    const tws_count *count = &timeline->counts[i], *before = i > 0 ? count - 1 : NULL;
    const name_text *name = &w->names[count->name], *series = &w->names[count->series];
    const int goes_on =
        before && before->name == count->name && before->at_s == count->at_s && before->rank == count->rank;
    const unsigned long long pid = count->rank < 0 ? all : first_pid + (unsigned)count->rank;
    if (!goes_on)
      tws_text_add(&w->out, "%s,\n{\"ph\":\"C\",\"name\":\"%.*s\",\"pid\":%llu,\"tid\":0,\"ts\":%.3f,\"args\":{",
                   before ? "}}" : "", (int)name->name_length, w->escaped.data + name->name, pid,
                   1e-3 * (double)nanoseconds(count->at_s - origin_s));
    tws_text_add(&w->out, "%s\"%.*s\":%.9g", goes_on ? "," : "", (int)series->name_length,
                 w->escaped.data + series->name, count->value);
  }
  if (timeline->count_count) tws_text_add(&w->out, "}}");
}

/* ---- flows ---- */

static int order_meetings(const void *a, const void *b) {
  const tws_event *x = *(const tws_event *const *)a, *y = *(const tws_event *const *)b;
  if (x->meets != y->meets) return x->meets < y->meets ? -1 : 1;
  if (x->step != y->step) return x->step < y->step ? -1 : 1;
  if (x->start_s != y->start_s) return x->start_s < y->start_s ? -1 : 1;
  return x->rank - y->rank;
}

static int is_send(const tws_timeline *timeline, const tws_event *event) {
  return strcmp(tws_label_kind(timeline->names[event->name]), "send") == 0;
}

/* Adds the entries of one flow: each has a time in the middle of an event, which binds the flow to that event. */
static void add_flow(writer *w, const tws_timeline *timeline, const tws_event *const *events, size_t count,
                     double origin_s, uint64_t first_pid) {
  const char *name = tws_label_kind(timeline->names[events[0]->name]);
  for (size_t i = 0; i < count; i++) {
    const tws_event *event = events[i];
    const uint64_t start = nanoseconds(event->start_s - origin_s), end = nanoseconds(event->end_s - origin_s);
    const char *kind = i == 0 ? "s" : i + 1 < count ? "t" : "f";
    tws_text_add(&w->out,
                 ",\n{\"ph\":\"%s\",\"name\":\"%s\",\"cat\":\"communication\",\"id\":%llu,\"pid\":%llu,\"tid\":%u,"
                 "\"ts\":%.3f%s}",
                 kind, name, (unsigned long long)w->flows, (unsigned long long)(first_pid + event->rank), event->stream,
                 1e-3 * (double)(start + (end - start) / 2), *kind == 'f' ? ",\"bp\":\"e\"" : "");
  }
  w->flows++;
}

/* Connects the events that meet: a message from its send to its receive, a collective in the order in which its ranks
 * entered. */
static tws_code add_flows(writer *w, const tws_timeline *timeline, double origin_s, uint64_t first_pid,
                          tws_error *err) {
  size_t count = 0;
  const tws_event **met = tws_calloc(timeline->event_count + 1, sizeof *met);
  if (!met) return tws_fail(err, TWS_MEMORY, NULL, "out of memory while writing a trace");
  for (size_t i = 0; i < timeline->event_count; i++)
    if (timeline->events[i].meets) met[count++] = &timeline->events[i];
  if (count) qsort(met, count, sizeof *met, order_meetings);
  for (size_t i = 0, next; i < count; i = next) {
    for (next = i + 1; next < count && met[next]->meets == met[i]->meets && met[next]->step == met[i]->step;) next++;
    if (next - i == 2 && is_send(timeline, met[i + 1])) {
      const tws_event *send = met[i + 1];
      met[i + 1] = met[i];
      met[i] = send;
    }
    if (next - i > 1) add_flow(w, timeline, met + i, next - i, origin_s, first_pid);
  }
  tws_free(met);
  return TWS_OK;
}

static tws_code add_timeline(writer *w, const tws_timeline *timeline, uint64_t first_pid, tws_error *err) {
  TWS_TRY(tws_timeline_check(timeline, err));
  if (timeline->stream_count > MAX_STREAMS)
    return tws_fail(err, TWS_INTERNAL, NULL, "%s timeline: more than %d streams", timeline->source, MAX_STREAMS);
  tws_free(w->names);
  w->names = tws_calloc((size_t)timeline->name_count + 1, sizeof *w->names);
  if (!w->names) return tws_fail(err, TWS_MEMORY, NULL, "out of memory while writing a trace");
  memset(w->streams, 0, MAX_RANKS * sizeof *w->streams);
  escape_names(w, timeline);
  if (w->escaped.failed) return tws_fail(err, TWS_MEMORY, NULL, "out of memory while writing a trace");
  double origin_s = timeline->event_count ? timeline->events[0].start_s : 0;
  for (size_t i = 0; i < timeline->event_count; i++) {
    const tws_event *event = &timeline->events[i];
    if (event->start_s < origin_s) origin_s = event->start_s;
    w->streams[event->rank] |= 1u << event->stream;
  }
  add_rows(w, timeline, first_pid);
  for (size_t i = 0; i < timeline->event_count; i++)
    add_event(w, timeline, &timeline->events[i], origin_s, first_pid + timeline->events[i].rank);
  add_counts(w, timeline, origin_s, first_pid);
  return add_flows(w, timeline, origin_s, first_pid, err);
}

/* Adds a mark, drawn as a line across all rows at the time at which it begins. */
static void add_mark(writer *w, const tws_mark *mark) {
  const double from_s = mark->from_s > 0 ? mark->from_s : 0;
  tws_text_add(&w->out,
               ",\n{\"ph\":\"i\",\"s\":\"g\",\"cat\":\"event\",\"name\":\"%s\",\"pid\":0,\"tid\":0,\"ts\":%.3f,"
               "\"args\":{\"from_s\":%.9g,\"lasts_s\":%.9g}}",
               mark->name, from_s * 1e6, mark->from_s, mark->until_s - mark->from_s);
}

tws_code tws_timeline_write_chrome(const tws_timeline *const *timelines, int count, const char *path, tws_error *err) {
  return tws_timeline_write_marked(timelines, count, NULL, 0, path, err);
}

tws_code tws_timeline_write_marked(const tws_timeline *const *timelines, int count, const tws_mark *marks,
                                   int mark_count, const char *path, tws_error *err) {
  writer w = {0};
  tws_code code = TWS_OK;
  w.streams = tws_calloc(MAX_RANKS, sizeof *w.streams);
  if (!w.streams) return tws_fail(err, TWS_MEMORY, NULL, "out of memory while writing a trace");
  /* the first entry only saves a special case for commas */
  ADD_LITERAL(&w.out,
              "{\"displayTimeUnit\":\"ms\",\"traceEvents\":[\n"
              "{\"ph\":\"M\",\"name\":\"trace\",\"pid\":0,\"args\":{\"written_by\":\"twinspeed\"}}");
  for (int i = 0; i < count && code == TWS_OK; i++)
    code = add_timeline(&w, timelines[i], 1 + (uint64_t)i * MAX_RANKS, err);
  for (int i = 0; i < count; i++)
    if (*timelines[i]->plan)
      tws_text_add(&w.out,
                   ",\n{\"ph\":\"M\",\"name\":\"fingerprint\",\"pid\":0,\"args\":{\"source\":\"%s\",\"model\":\"%s\","
                   "\"plan\":\"%s\"}}",
                   timelines[i]->source, timelines[i]->model, timelines[i]->plan);
  for (int i = 0; i < mark_count; i++) add_mark(&w, &marks[i]);
  ADD_LITERAL(&w.out, "\n]}\n");
  if (code == TWS_OK && w.out.failed) code = tws_fail(err, TWS_MEMORY, NULL, "out of memory while writing a trace");
  if (code == TWS_OK) code = tws_gzip_write(path, w.out.data, w.out.length, err);
  tws_text_free(&w.out);
  tws_text_free(&w.escaped);
  tws_free(w.names);
  tws_free(w.streams);
  return code;
}
