#include "traces/event_record.h"

#include <string.h>

#include "traces/protobuf.h"

/* ---- records ---- */

uint32_t tws_crc32c(const void *bytes, size_t count) {
  static const uint32_t of_four_bits[16] = {0x00000000, 0x105ec76f, 0x20bd8ede, 0x30e349b1, 0x417b1dbc, 0x5125dad3,
                                            0x61c69362, 0x7198540d, 0x82f63b78, 0x92a8fc17, 0xa24bb5a6, 0xb21572c9,
                                            0xc38d26c4, 0xd3d3e1ab, 0xe330a81a, 0xf36e6f75};
  const unsigned char *at = bytes;
  uint32_t crc = UINT32_MAX;
  for (size_t i = 0; i < count; i++) {
    crc ^= at[i];
    crc = crc >> 4 ^ of_four_bits[crc & 15];
    crc = crc >> 4 ^ of_four_bits[crc & 15];
  }
  return ~crc;
}

uint32_t tws_crc32c_masked(const void *bytes, size_t count) {
  const uint32_t crc = tws_crc32c(bytes, count);
  return (crc >> 15 | crc << 17) + UINT32_C(0xa282ead8);
}

/* Reserves space for the length and its checksum; returns the position at which the record begins. */
static size_t begin_record(tws_text *out) {
  static const char nothing[12];
  const size_t at = out->length;
  tws_text_add_bytes(out, nothing, sizeof nothing);
  return at;
}

static void end_record(tws_text *out, size_t at) {
  char checksum[4];
  if (out->failed) return;
  const size_t length = out->length - at - 12;
  char *head = out->data + at;
  tws_put_little(head, length, 8);
  tws_put_little(head + 8, tws_crc32c_masked(head, 8), 4);
  tws_put_little(checksum, tws_crc32c_masked(head + 12, length), 4);
  tws_text_add_bytes(out, checksum, sizeof checksum);
}

/* ---- events ---- */

static size_t begin_event(tws_text *out, double wall_time, int64_t step) {
  const size_t at = begin_record(out);
  tws_protobuf_double(out, 1, wall_time);
  if (step != 0) tws_protobuf_integer(out, 2, (uint64_t)step); /* proto3 leaves out fields that are 0 */
  return at;
}

static void put_scalar(tws_text *out, const char *tag, float value) {
  const size_t at = tws_protobuf_begin(out);
  tws_protobuf_text(out, 1, tag);
  tws_protobuf_float(out, 2, value);
  tws_protobuf_end(out, 1, at);
}

void tws_event_version(tws_text *out, double wall_time) {
  const size_t at = begin_event(out, wall_time, 0);
  tws_protobuf_text(out, 3, "brain.Event:2");
  end_record(out, at);
}

void tws_event_scalar(tws_text *out, const char *tag, float value, double wall_time, int64_t step) {
  const size_t at = begin_event(out, wall_time, step), summary = tws_protobuf_begin(out);
  put_scalar(out, tag, value);
  tws_protobuf_end(out, 5, summary);
  end_record(out, at);
}

void tws_event_step(tws_text *out, const tws_step_report *report) {
  double value;
  const size_t at = begin_event(out, report->at_s, report->samples), summary = tws_protobuf_begin(out);
  for (int i = 0; i < TWS_STEP_VALUE_COUNT; i++)
    if (tws_step_value(report, i, &value)) put_scalar(out, tws_step_value_of(i)->tag, (float)value);
  if (report->custom) put_scalar(out, report->custom->tag, (float)report->custom->value);
  tws_protobuf_end(out, 5, summary);
  end_record(out, at);
}

void tws_event_text(tws_text *out, const char *tag, const char *text, double wall_time, int64_t step) {
  enum { DT_STRING = 7, DATA_CLASS_TENSOR = 2 };
  const size_t at = begin_event(out, wall_time, step), summary = tws_protobuf_begin(out), value = summary;
  tws_protobuf_text(out, 1, tag);
  const size_t tensor = tws_protobuf_begin(out);
  tws_protobuf_integer(out, 1, DT_STRING);
  tws_protobuf_text(out, 2, ""); /* a tensor shape without dimensions */
  tws_protobuf_text(out, 8, text);
  tws_protobuf_end(out, 8, tensor);
  const size_t metadata = tws_protobuf_begin(out);
  tws_protobuf_text(out, 1, "\n\4text"); /* the data of the text plugin: its name in field 1 */
  tws_protobuf_integer(out, 4, DATA_CLASS_TENSOR);
  tws_protobuf_end(out, 9, metadata);
  tws_protobuf_end(out, 1, value);
  tws_protobuf_end(out, 5, summary);
  end_record(out, at);
}

static uint64_t big(const unsigned char *at) {
  return (uint64_t)at[0] << 24 | (uint64_t)at[1] << 16 | (uint64_t)at[2] << 8 | at[3];
}

void tws_event_image(tws_text *out, const char *tag, const tws_text *png, double wall_time, int64_t step) {
  /* a PNG has 8 bytes of signature, 8 of a chunk's head, then width, height, bits and the type of its pixels */
  enum { WIDTH = 16, HEIGHT = 20, TYPE = 25, HEAD = 33, RGBA = 6 };
  const unsigned char *b = (const unsigned char *)png->data;
  if (png->length < HEAD || memcmp(b, "\x89PNG\r\n\x1a\n", 8) != 0) {
    out->failed = 1;
    return;
  }
  const size_t at = begin_event(out, wall_time, step), summary = tws_protobuf_begin(out), value = summary;
  tws_protobuf_text(out, 1, tag);
  const size_t image = tws_protobuf_begin(out);
  tws_protobuf_integer(out, 1, big(b + HEIGHT));
  tws_protobuf_integer(out, 2, big(b + WIDTH));
  tws_protobuf_integer(out, 3, b[TYPE] == RGBA ? 4 : 3); /* channels */
  tws_protobuf_bytes(out, 4, png->data, png->length);
  tws_protobuf_end(out, 4, image);
  tws_protobuf_end(out, 1, value);
  tws_protobuf_end(out, 5, summary);
  end_record(out, at);
}

void tws_event_start(tws_text *out, double wall_time, int64_t step) {
  enum { START = 1 };
  const size_t at = begin_event(out, wall_time, step), log = tws_protobuf_begin(out);
  tws_protobuf_integer(out, 1, START); /* the status of a SessionLog */
  tws_protobuf_end(out, 7, log);
  end_record(out, at);
}
