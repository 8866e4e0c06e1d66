/* Reads back what tws_timeline_write_chrome() wrote, so that a measured step can be compared and drawn. */
#include <stdio.h>
#include <string.h>
#include "base/json.h"
#include "base/memory.h"
#include "base/number.h"
#include "traces/gzip.h"
#include "traces/timeline.h"

enum { MAX_PROCESSES = 4096 };
#define LONGEST_US 1e12 /* longest accepted time: a step of eleven days, microseconds */

typedef struct processes {
  int count;
  struct {
    int64_t pid;
    int rank;
  } item[MAX_PROCESSES];
} processes;

static const char *text_of(const cJSON *object, const char *key) {
  const cJSON *item = cJSON_GetObjectItemCaseSensitive(object, key);
  return cJSON_IsString(item) ? item->valuestring : "";
}

/* Returns a whole number from 0 to `most`; 0 if the object does not have it. */
static int64_t number_of(const cJSON *object, const char *key, int64_t most) {
  const cJSON *item = cJSON_GetObjectItemCaseSensitive(object, key);
  int64_t value = 0;
  if (cJSON_IsNumber(item)) tws_whole_number(item->valuedouble, 0, most, &value);
  return value;
}

/* Reads a number in [0, high] that an event must have. */
static tws_code need_number(const tws_json *json, const cJSON *event, const char *key, double high, double *out,
                            tws_error *err) {
  const cJSON *item = cJSON_GetObjectItemCaseSensitive(event, key);
  if (cJSON_IsNumber(item) && item->valuedouble >= 0 && item->valuedouble <= high) {
    *out = item->valuedouble;
    return TWS_OK;
  }
  return tws_json_fail(json, item ? item : event, err, "give a trace that `train --trace` wrote",
                       item ? "\"%s\" of an event must be a number from 0 to %g" : "an event without \"%s\" (0 to %g)",
                       key, high);
}

/* Finds the fingerprints of one source; a trace of two sources has fingerprints for each. */
static void find_fingerprint(const cJSON *events, const char *source, tws_timeline *timeline) {
  const cJSON *event;
  cJSON_ArrayForEach(event, events) {
    const cJSON *args = cJSON_GetObjectItemCaseSensitive(event, "args");
    if (strcmp(text_of(event, "name"), "fingerprint") != 0 || strcmp(text_of(args, "source"), source) != 0) continue;
    tws_timeline_identify(timeline, text_of(args, "model"), text_of(args, "plan"));
  }
}

/* Finds the processes (rows) of the source, named "measured rank 3". */
static void find_processes(const cJSON *events, const char *source, processes *found) {
  const cJSON *event;
  size_t length = strlen(source);
  cJSON_ArrayForEach(event, events) {
    if (strcmp(text_of(event, "name"), "process_name") != 0 || found->count == MAX_PROCESSES) continue;
    const char *name = text_of(cJSON_GetObjectItemCaseSensitive(event, "args"), "name");
    int rank;
    const char *rest;
    if (strncmp(name, source, length) != 0 || strncmp(name + length, " rank ", 6) != 0 ||
        !tws_text_int(name + length + 6, &rest, 0, UINT16_MAX, &rank))
      continue;
    found->item[found->count].pid = number_of(event, "pid", INT64_MAX);
    found->item[found->count++].rank = rank;
  }
}

static int rank_of(const processes *found, int64_t pid) {
  for (int i = 0; i < found->count; i++)
    if (found->item[i].pid == pid) return found->item[i].rank;
  return -1;
}

static int index_of(const char *name, const char *const *names, int count) {
  for (int i = 0; i < count; i++)
    if (strcmp(name, names[i]) == 0) return i;
  return -1;
}

static tws_code add_events(const tws_json *json, const cJSON *events, const processes *found, tws_timeline *timeline,
                           tws_error *err) {
  const cJSON *item;
  cJSON_ArrayForEach(item, events) {
    int rank = rank_of(found, number_of(item, "pid", INT64_MAX));
    if (rank < 0 || strcmp(text_of(item, "ph"), "X") != 0) continue;
    const cJSON *args = cJSON_GetObjectItemCaseSensitive(item, "args");
    int phase = index_of(text_of(args, "phase"), timeline->phase_names, timeline->phase_count);
    double stream = 0, start = 0, duration = 0;
    TWS_TRY(need_number(json, item, "tid", 255, &stream, err));
    TWS_TRY(need_number(json, item, "ts", LONGEST_US, &start, err));
    TWS_TRY(need_number(json, item, "dur", LONGEST_US, &duration, err));
    if (phase < 0 || stream >= timeline->stream_count || rank > UINT16_MAX)
      return tws_json_fail(json, item, err, "give a trace that this version wrote",
                           "an event of an unknown phase or stream");
    tws_event event = {.name = tws_timeline_name(timeline, text_of(item, "name")),
                       .rank = (uint16_t)rank,
                       .stream = (uint8_t)stream,
                       .phase = (uint8_t)phase,
                       .op = (uint32_t)number_of(args, "op", UINT32_MAX),
                       .step = (uint32_t)number_of(args, "step", UINT32_MAX),
                       .micro_batch = (uint32_t)number_of(args, "micro_batch", UINT32_MAX),
                       .start_s = start * 1e-6,
                       .end_s = (start + duration) * 1e-6};
    if (event.name == UINT32_MAX || tws_timeline_add(timeline, &event) != 0)
      return tws_fail(err, TWS_MEMORY, 0, "no memory for the timeline");
  }
  return TWS_OK;
}

static tws_code read_events(const tws_json *json, const char *source, tws_timeline *timeline, tws_error *err) {
  const cJSON *events =
      cJSON_IsArray(json->root) ? json->root : cJSON_GetObjectItemCaseSensitive(json->root, "traceEvents");
  if (!cJSON_IsArray(events)) return tws_json_fail(json, json->root, err, 0, "not a Chrome trace: no traceEvents");
  processes *found = tws_calloc(1, sizeof *found);
  if (!found) return tws_fail(err, TWS_MEMORY, 0, "no memory for the timeline");
  find_processes(events, source, found);
  find_fingerprint(events, source, timeline);
  tws_code code = add_events(json, events, found, timeline, err);
  tws_free(found);
  if (code == TWS_OK && timeline->event_count == 0)
    code = tws_json_fail(json, json->root, err, 0, "the trace has no %s events", source);
  return code;
}

tws_code tws_timeline_read_chrome(const char *path, const char *source, const char *const *stream_names,
                                  int stream_count, const char *const *phase_names, int phase_count, tws_timeline **out,
                                  tws_error *err) {
  tws_json *json;
  char *text = NULL;
  size_t length;
  TWS_TRY(tws_read_file(path, 0, &text, &length, err));
  tws_code read = tws_gzip_expand(path, &text, &length, err);
  if (read == TWS_OK) read = tws_json_parse(text, length, path, &json, err);
  tws_free(text);
  if (read != TWS_OK) return read;
  tws_timeline *timeline = tws_timeline_create(source);
  tws_code code = timeline ? TWS_OK : tws_fail(err, TWS_MEMORY, 0, "no memory for the timeline");
  if (timeline) {
    timeline->stream_names = stream_names;
    timeline->stream_count = stream_count;
    timeline->phase_names = phase_names;
    timeline->phase_count = phase_count;
    code = read_events(json, source, timeline, err);
  }
  tws_json_destroy(json);
  if (code != TWS_OK) {
    tws_timeline_destroy(timeline);
    return code;
  }
  *out = timeline;
  return TWS_OK;
}
