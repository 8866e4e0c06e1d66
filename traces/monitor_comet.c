/* An offline archive of Comet, as its package comet_ml 3 writes it: ".cometml-runs/<key>.zip" in the current folder
 * with experiment.json and messages.json, a JSON object a line, both stored as they are (APPNOTE.TXT of PKWARE, version
 * 6.3.10: local headers, central directory and its end). Messages come second and the directory last, so that a step
 * appends its messages in the directory's place and writes it anew: the archive is whole after every step. Each number
 * is written when samples_log_interval samples have passed since it was last written, as DeepSpeed does. */
#include <cjson/cJSON.h>
#include <errno.h>
#include <inttypes.h>
#include <lzma.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/json.h"
#include "base/log.h"
#include "base/output_file.h"
#include "base/random.h"
#include "traces/monitor.h"
#include "traces/protobuf.h"

enum { KEY_SIZE = 65, NAME_SIZE = 96, PATH_SIZE = 256, ROOM = 32768, TRIES = 1000 };
enum { LOCAL_BYTES = 30, CENTRAL_BYTES = 46, END_BYTES = 22 };
static const char folder_name[] = ".cometml-runs";
static const char *const names[] = {"experiment.json", "messages.json"};

typedef struct entry {
  uint64_t at, bytes; /* at: offset of the local header; bytes: size of the stored data */
  uint32_t crc;
} entry;

typedef struct comet_sink {
  tws_sink sink;
  const tws_comet_section *section;
  int folder, fd;
  int64_t messages, last[TWS_STEP_VALUE_COUNT]; /* last: [value] sample count at which the value was last written; -1:
                                                 * never */
  entry entry[2];
  double start_s;
  tws_text lines, bytes; /* lines: messages of one step; bytes: data that are written in one call */
  tws_text rest;         /* the members of experiment.json that do not change */
  char key[KEY_SIZE], path[PATH_SIZE];
} comet_sink;

/* ---- the archive ---- */

/* Fields that both headers of an entry share: version 2.0, no flags, stored, 1 January 1980, checksum, bytes twice,
 * length of the name, no extra field. */
static void common_header(char *to, const entry *e, const char *name) {
  memset(to, 0, 26);
  tws_put_little(to, 20, 2);
  tws_put_little(to + 8, 1 << 5 | 1, 2);
  tws_put_little(to + 10, e->crc, 4);
  tws_put_little(to + 14, e->bytes, 4);
  tws_put_little(to + 18, e->bytes, 4);
  tws_put_little(to + 22, strlen(name), 2);
}

static void put_local(tws_text *out, const entry *e, const char *name) {
  char head[LOCAL_BYTES];
  memcpy(head, "PK\3\4", 4);
  common_header(head + 4, e, name);
  tws_text_add_bytes(out, head, sizeof head);
  tws_text_add_bytes(out, name, strlen(name));
}

static void put_directory(tws_text *out, const entry *entries, uint64_t at) {
  char head[CENTRAL_BYTES], end[END_BYTES];
  const size_t begin = out->length;
  for (int i = 0; i < 2; i++) {
    memset(head, 0, sizeof head);
    memcpy(head, "PK\1\2\24", 5); /* made by version 2.0 */
    common_header(head + 6, &entries[i], names[i]);
    tws_put_little(head + 42, entries[i].at, 4);
    tws_text_add_bytes(out, head, sizeof head);
    tws_text_add_bytes(out, names[i], strlen(names[i]));
  }
  memset(end, 0, sizeof end);
  memcpy(end, "PK\5\6", 4);
  tws_put_little(end + 8, 2, 2);
  tws_put_little(end + 10, 2, 2);
  tws_put_little(end + 12, out->length - begin, 4);
  tws_put_little(end + 16, at, 4);
  tws_text_add_bytes(out, end, sizeof end);
}

static tws_code write_at(comet_sink *s, uint64_t at, tws_error *err) {
  if (s->bytes.failed) return tws_fail(err, TWS_MEMORY, NULL, "out of memory");
  if (lseek(s->fd, (off_t)at, SEEK_SET) < 0) return tws_output_failed(s->path, "write", err);
  const tws_code code = tws_write_all(s->fd, s->path, s->bytes.data, s->bytes.length, err);
  s->bytes.length = 0;
  return code;
}

/* Appends a JSON string; NULL is written as null. */
static void put_text(tws_text *out, const char *text) {
  cJSON *item = text ? cJSON_CreateString(text) : cJSON_CreateNull();
  char *json = cJSON_PrintUnformatted(item);
  out->failed |= json == NULL;
  if (json) tws_text_add(out, "%s", json);
  cJSON_free(json);
  cJSON_Delete(item);
}

static uint64_t milliseconds(double seconds) {
  return (uint64_t)(1e3 * seconds);
}

/* Writes experiment.json, which always has the same length: its numbers have thirteen digits. */
static void put_experiment(comet_sink *s, double now_s, tws_text *out) {
  const size_t at = out->length;
  tws_text_add(out, "{\"offline_id\": \"%s\", \"start_time\": %013" PRIu64 ", \"stop_time\": %013" PRIu64 ", ", s->key,
               milliseconds(s->start_s), milliseconds(now_s));
  tws_text_add_bytes(out, s->rest.data, s->rest.length);
  s->entry[0].bytes = out->length - at;
}

/* Builds the members of experiment.json that do not change; called once. */
static void make_rest(comet_sink *s) {
  const tws_comet_section *c = s->section;
  tws_text_add(&s->rest, "\"project_name\": ");
  put_text(&s->rest, c->project);
  tws_text_add(&s->rest, ", \"workspace\": ");
  put_text(&s->rest, c->workspace);
  tws_text_add(&s->rest, ", \"tags\": [], \"resume_strategy\": \"%s\", \"user_provided_experiment_key\": %s, ",
               c->mode ? c->mode : "create", c->experiment_key ? "true" : "false");
  tws_text_add(&s->rest,
               "\"customer_error_reported\": false, \"customer_error_message\": null, "
               "\"comet_start_sourced\": false}\n");
}

/* Appends the messages in s->lines to the second entry; then writes the directory and the first entry again. */
static tws_code append(comet_sink *s, double now_s, tws_error *err) {
  entry *e = s->entry;
  const uint64_t end = e[1].at + LOCAL_BYTES + strlen(names[1]) + e[1].bytes;
  if (s->lines.failed) return tws_fail(err, TWS_MEMORY, NULL, "out of memory");
  if (end + s->lines.length > UINT32_MAX - ROOM)
    return tws_fail(err, TWS_IO, "raise comet.samples_log_interval", "%s: the archive would be larger than 4 GiB",
                    s->path);
  e[1].crc = lzma_crc32((const uint8_t *)s->lines.data, s->lines.length, e[1].crc);
  e[1].bytes += s->lines.length;
  /* The directory contains the checksum of the first entry, so the text of that entry is built before the directory. */
  const size_t head = LOCAL_BYTES + strlen(names[0]);
  s->bytes.length = 0;
  put_local(&s->bytes, &e[0], names[0]);
  put_experiment(s, now_s, &s->bytes);
  if (s->bytes.failed) return tws_fail(err, TWS_MEMORY, NULL, "out of memory");
  e[0].crc = lzma_crc32((const uint8_t *)s->bytes.data + head, e[0].bytes, 0);
  s->bytes.length = 0;
  tws_text_add_bytes(&s->bytes, s->lines.data, s->lines.length);
  put_directory(&s->bytes, e, end + s->lines.length);
  s->lines.length = 0;
  TWS_TRY(write_at(s, end, err));
  put_local(&s->bytes, &e[0], names[0]);
  put_experiment(s, now_s, &s->bytes);
  TWS_TRY(write_at(s, 0, err));
  put_local(&s->bytes, &e[1], names[1]);
  return write_at(s, e[1].at, err);
}

/* ---- messages ---- */

static void log_other(comet_sink *s, const char *key, const char *json) {
  tws_text_add(&s->lines,
               "{\"payload\":{\"key\":\"%s\",\"message_id\":%" PRId64 ",\"value\":%s},\"type\":\"log_other\"}\n", key,
               ++s->messages, json);
}

/* Adds the members of an object as parameters, named by their paths with '|' as separator. */
static void log_parameters(comet_sink *s, const cJSON *object, const char *above) {
  const cJSON *item;
  char path[PATH_SIZE];
  cJSON_ArrayForEach(item, object) {
    snprintf(path, sizeof path, "%s%s%s", above, *above ? "|" : "", item->string ? item->string : "");
    if (cJSON_IsObject(item)) {
      log_parameters(s, item, path);
      continue;
    }
    char *json = cJSON_PrintUnformatted(item);
    s->lines.failed |= json == NULL;
    tws_text_add(&s->lines,
                 "{\"payload\":{\"local_timestamp\":%" PRIu64 ",\"message_id\":%" PRId64 ",\"param\":{\"paramName\":",
                 milliseconds(s->start_s), ++s->messages);
    put_text(&s->lines, path);
    tws_text_add(&s->lines, ",\"paramValue\":");
    if (json && cJSON_IsArray(item))
      put_text(&s->lines, json);
    else
      tws_text_add(&s->lines, "%s", json ? json : "");
    tws_text_add(&s->lines, ",\"source\":\"manual\",\"step\":null}},\"type\":\"parameter_msg\"}\n");
    cJSON_free(json);
  }
}

static void put_metric(comet_sink *s, const tws_step_report *report, const char *tag, double value) {
  char text[TWS_STEP_TEXT_SIZE];
  tws_text_add(&s->lines,
               "{\"payload\":{\"local_timestamp\":%" PRIu64 ",\"message_id\":%" PRId64
               ",\"metric\":{\"epoch\":null,\"metricName\":\"%s\",\"metricValue\":%s,\"step\":%" PRId64
               "}},\"type\":\"metric_msg\"}\n",
               milliseconds(report->at_s), ++s->messages, tag, tws_step_value_python(value, text), report->samples);
}

static tws_code comet_write(tws_sink *sink, const tws_step_report *report, tws_error *err) {
  comet_sink *s = (comet_sink *)sink;
  double value;
  for (int i = 0; i < TWS_STEP_VALUE_COUNT; i++) {
    if (!tws_step_value(report, i, &value)) continue;
    if (s->last[i] >= 0 && report->samples - s->last[i] < s->section->samples_log_interval) continue;
    s->last[i] = report->samples;
    put_metric(s, report, tws_step_value_of(i)->tag, value);
  }
  if (report->custom) put_metric(s, report, report->custom->tag, report->custom->value);
  return s->lines.length > 0 ? append(s, report->at_s, err) : TWS_OK;
}

static tws_code comet_close(tws_sink *sink, tws_code ended, tws_error *err) {
  comet_sink *s = (comet_sink *)sink;
  (void)ended;
  const tws_code code = s->fd >= 0 && close(s->fd) != 0 ? tws_output_failed(s->path, "write", err) : TWS_OK;
  if (s->folder >= 0) close(s->folder);
  tws_text_free(&s->lines);
  tws_text_free(&s->bytes);
  tws_text_free(&s->rest);
  tws_free(s);
  return code;
}

/* ---- the beginning ---- */

/* Chooses the experiment's key, which is a part of a path and has letters and digits only. */
static tws_code choose_key(comet_sink *s, double now_s, tws_error *err) {
  const char *given = s->section->experiment_key;
  if (!given) {
    const uint64_t seed = (uint64_t)(1e9 * now_s), stream = (uint64_t)getpid();
    for (uint64_t i = 0; i < 32; i++) s->key[i] = "0123456789abcdef"[(int)(16 * tws_random_uniform(seed, stream, i))];
    return TWS_OK;
  }
  const size_t length = strlen(given);
  if (length == 0 || length >= KEY_SIZE ||
      strspn(given, "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ") != length)
    return tws_fail(err, TWS_INVALID, "give 32 to 50 letters and digits, or leave it out",
                    "comet.experiment_key: \"%.80s\" is no key of an experiment", given);
  memcpy(s->key, given, length + 1);
  return TWS_OK;
}

static tws_code make_file(comet_sink *s, tws_error *err) {
  char name[NAME_SIZE];
  TWS_TRY(tws_make_folder(folder_name, &s->folder, err));
  for (int i = 1;; i++) {
    snprintf(name, sizeof name, "%s.zip", s->key);
    if (i > 1) snprintf(name, sizeof name, "%s-%d.zip", s->key, i);
    snprintf(s->path, sizeof s->path, "%s/%s", folder_name, name);
    const tws_code code = tws_exclusive_file(s->folder, name, s->path, &s->fd, err);
    if (code == TWS_OK && err) *err = (tws_error){0};
    if (code == TWS_OK || errno != EEXIST || i == TRIES) return code;
  }
}

static tws_code write_first(comet_sink *s, const tws_monitor_setup *setup, tws_error *err) {
  tws_json *json = NULL;
  const char *text = setup->configuration, *name = s->section->experiment_name;
  if (text) TWS_TRY(tws_json_parse(text, strlen(text), "the configuration", &json, err));
  tws_text quoted = {0};
  log_other(s, "offline_experiment", "true");
  if (name) put_text(&quoted, name);
  if (name && !quoted.failed) log_other(s, "Name", quoted.data);
  s->lines.failed |= quoted.failed;
  tws_text_free(&quoted);
  if (json) log_parameters(s, json->root, "");
  tws_json_destroy(json);
  make_rest(s);
  if (s->rest.failed) return tws_fail(err, TWS_MEMORY, NULL, "out of memory");
  put_experiment(s, s->start_s, &s->bytes);
  s->entry[1].at = LOCAL_BYTES + strlen(names[0]) + s->entry[0].bytes;
  TWS_TRY(append(s, s->start_s, err));
  for (int k = 0; k < 2; k++) { /* reserves memory for the longest step */
    tws_text *room = k ? &s->bytes : &s->lines;
    for (int i = 0; i < ROOM; i += 64) tws_text_add(room, "%64s", "");
    if (room->failed) return tws_fail(err, TWS_MEMORY, NULL, "out of memory");
    room->length = 0;
  }
  return TWS_OK;
}

tws_code tws_comet_sink_open(const tws_monitor_setup *setup, tws_sink **out, tws_error *err) {
  comet_sink *s = tws_calloc(1, sizeof *s);
  *out = NULL;
  if (!s) return tws_fail(err, TWS_MEMORY, NULL, "out of memory");
  s->sink = (tws_sink){comet_write, comet_close};
  s->section = setup->comet;
  s->start_s = setup->now_s;
  s->fd = s->folder = -1;
  for (int i = 0; i < TWS_STEP_VALUE_COUNT; i++) s->last[i] = -1;
  tws_code code = choose_key(s, setup->now_s, err);
  if (code == TWS_OK) code = make_file(s, err);
  if (code == TWS_OK) code = write_first(s, setup, err);
  if (code == TWS_OK)
    *out = &s->sink;
  else
    comet_close(&s->sink, code, NULL);
  return code;
}
