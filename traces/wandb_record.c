#include "traces/wandb_record.h"

#include <cjson/cJSON.h>
#include <lzma.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "traces/protobuf.h"

/* ---- chunks ---- */

enum { BLOCK = 32768, CHUNK_HEAD = 7, FULL = 1, FIRST = 2, MIDDLE = 3, LAST = 4 };

static void put_chunk(tws_wandb_log *log, tws_text *out, const char *bytes, size_t length, int type) {
  char head[CHUNK_HEAD];
  head[6] = (char)type;
  tws_put_little(head, lzma_crc32((const uint8_t *)bytes, length, lzma_crc32((const uint8_t *)head + 6, 1, 0)), 4);
  tws_put_little(head + 4, length, 2);
  tws_text_add_bytes(out, head, sizeof head);
  tws_text_add_bytes(out, bytes, length);
  log->offset += sizeof head + length;
}

/* Writes the finished record: in one chunk, or in several if a block ends within it. */
static void put_record(tws_wandb_log *log, tws_text *out) {
  static const char nothing[CHUNK_HEAD];
  const char *bytes = log->record.data;
  size_t left = log->record.length;
  out->failed |= log->record.failed;
  if (out->failed) return;
  for (int first = 1, last = 0; !last; first = 0) {
    size_t room = BLOCK - log->offset % BLOCK;
    if (room < CHUNK_HEAD) {
      tws_text_add_bytes(out, nothing, room);
      log->offset += room;
      room = BLOCK;
    }
    room -= CHUNK_HEAD;
    last = left <= room;
    const size_t length = last ? left : room;
    put_chunk(log, out, bytes, length, first ? last ? FULL : FIRST : last ? LAST : MIDDLE);
    bytes += length;
    left -= length;
  }
}

/* ---- records ---- */

static void begin_record(tws_wandb_log *log) {
  log->record.length = 0;
  tws_protobuf_integer(&log->record, 1, (uint64_t)++log->count);
}

/* Adds the field that follows a record's own one, the run that the record belongs to (_info.stream_id), and ends the
 * record. */
static void end_record(tws_wandb_log *log, tws_text *out) {
  enum { INFO = 200, STREAM_ID = 1 };
  const size_t at = tws_protobuf_begin(&log->record);
  tws_protobuf_text(&log->record, STREAM_ID, log->run->id);
  tws_protobuf_end(&log->record, INFO, at);
  put_record(log, out);
}

static void put_header(tws_wandb_log *log, tws_text *out) {
  begin_record(log);
  const size_t header = tws_protobuf_begin(&log->record), version = header;
  tws_protobuf_text(&log->record, 1, "0.31.0");
  tws_protobuf_text(&log->record, 2, "0.70.0");
  tws_protobuf_end(&log->record, 1, version);
  tws_protobuf_end(&log->record, 21, header);
  end_record(log, out);
}

/* Adds an item of history, summary (field 1 of either; the name is a path of one part, field 2) or configuration (field
 * 1). */
static void put_item(tws_text *out, int name_field, const char *name, const char *json) {
  const size_t at = tws_protobuf_begin(out);
  tws_protobuf_text(out, name_field, name);
  tws_protobuf_text(out, 16, json);
  tws_protobuf_end(out, 1, at);
}

static void put_configuration(const tws_wandb_run *run, tws_text *out) {
  const cJSON *item;
  const size_t at = tws_protobuf_begin(out);
  cJSON_ArrayForEach(item, run->configuration) {
    char *json = cJSON_PrintUnformatted(item);
    out->failed |= json == NULL;
    if (json) put_item(out, 1, item->string, json);
    cJSON_free(json);
  }
  tws_protobuf_end(out, 4, at);
}

static void put_run(tws_wandb_log *log, tws_text *out) {
  const tws_wandb_run *run = log->run;
  const double seconds = floor(run->start_s);
  tws_text *r = &log->record;
  begin_record(log);
  const size_t at = tws_protobuf_begin(r);
  tws_protobuf_text(r, 1, run->id);
  tws_protobuf_text(r, 2, run->team);
  tws_protobuf_text(r, 3, run->project);
  put_configuration(run, r);
  tws_protobuf_text(r, 6, run->group);
  tws_protobuf_text(r, 13, run->host);
  const size_t start = tws_protobuf_begin(r); /* google.protobuf.Timestamp */
  tws_protobuf_integer(r, 1, (uint64_t)seconds);
  tws_protobuf_integer(r, 2, (uint64_t)(1e9 * (run->start_s - seconds)));
  tws_protobuf_end(r, 17, start);
  tws_protobuf_end(r, 17, at);
  end_record(log, out);
}

void tws_wandb_begin(tws_wandb_log *log, tws_text *out) {
  static const char magic[7] = {':', 'W', '&', 'B', (char)0xe1, (char)0xbe, 0};
  tws_text_add_bytes(out, magic, sizeof magic);
  log->offset += sizeof magic;
  put_header(log, out);
  put_run(log, out);
}

static void put_items(const tws_wandb_log *log, const tws_step_report *report, tws_text *out) {
  char text[64];
  double value;
  snprintf(text, sizeof text, "%.6f", report->at_s);
  put_item(out, 2, "_timestamp", text);
  snprintf(text, sizeof text, "%.6f", report->at_s - log->run->start_s);
  put_item(out, 2, "_runtime", text);
  put_item(out, 2, "_step", tws_step_value_python((double)report->samples, text));
  for (int i = 0; i < TWS_STEP_VALUE_COUNT; i++)
    if (tws_step_value(report, i, &value))
      put_item(out, 2, tws_step_value_of(i)->tag, tws_step_value_python(value, text));
  if (report->custom) put_item(out, 2, report->custom->tag, tws_step_value_python(report->custom->value, text));
}

void tws_wandb_step(tws_wandb_log *log, const tws_step_report *report, tws_text *out) {
  enum { HISTORY = 2, SUMMARY = 3, STEP = 2 };
  for (int field = SUMMARY; field >= HISTORY; field--) {
    begin_record(log);
    const size_t at = tws_protobuf_begin(&log->record);
    put_items(log, report, &log->record);
    if (field == HISTORY) {
      const size_t step = tws_protobuf_begin(&log->record);
      tws_protobuf_integer(&log->record, 1, (uint64_t)report->samples);
      tws_protobuf_end(&log->record, STEP, step);
    }
    tws_protobuf_end(&log->record, field, at);
    end_record(log, out);
  }
}

void tws_wandb_exit(tws_wandb_log *log, int exit_code, double now_s, tws_text *out) {
  begin_record(log);
  const size_t at = tws_protobuf_begin(&log->record);
  if (exit_code != 0) tws_protobuf_integer(&log->record, 1, (uint64_t)exit_code);
  const double ran_s = now_s - log->run->start_s;
  if (ran_s >= 1) tws_protobuf_integer(&log->record, 2, (uint64_t)ran_s);
  tws_protobuf_end(&log->record, 18, at);
  end_record(log, out);
}
