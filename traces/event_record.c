#include "traces/event_record.h"

#include <string.h>

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

/* As TFRecord stores it, so that a checksum of bytes with checksums in them is not a special one. */
static uint32_t masked(const void *bytes, size_t count) {
  const uint32_t crc = tws_crc32c(bytes, count);
  return (crc >> 15 | crc << 17) + UINT32_C(0xa282ead8);
}

static void put_little(tws_text *out, uint64_t value, int bytes) {
  char little[8];
  for (int i = 0; i < bytes; i++) little[i] = (char)(value >> 8 * i & 255);
  tws_text_add_bytes(out, little, (size_t)bytes);
}

/* Room for the length and its checksum; returns where the record begins. */
static size_t begin_record(tws_text *out) {
  const size_t at = out->length;
  put_little(out, 0, 8);
  put_little(out, 0, 4);
  return at;
}

static void end_record(tws_text *out, size_t at) {
  if (out->failed) return;
  const size_t length = out->length - at - 12;
  char *head = out->data + at;
  for (int i = 0; i < 8; i++) head[i] = (char)((uint64_t)length >> 8 * i & 255);
  const uint32_t of_length = masked(head, 8);
  for (int i = 0; i < 4; i++) head[8 + i] = (char)(of_length >> 8 * i & 255);
  put_little(out, masked(head + 12, length), 4);
}

/* ---- protobuf's wire format ---- */

enum { VARINT = 0, FIXED64 = 1, BYTES = 2, FIXED32 = 5 };

static void put_varint(tws_text *out, uint64_t value) {
  char bytes[10];
  size_t count = 0;
  do {
    bytes[count++] = (char)((value & 127) | (value > 127 ? 128 : 0));
    value >>= 7;
  } while (value);
  tws_text_add_bytes(out, bytes, count);
}

static size_t varint_bytes(uint64_t value) {
  size_t count = 1;
  while (value >>= 7) count++;
  return count;
}

/* All fields here have numbers below 16: their keys are one byte. */
static void put_key(tws_text *out, int field, int wire) {
  put_varint(out, (uint64_t)(field << 3 | wire));
}

static size_t field_bytes(size_t length) {
  return 1 + varint_bytes(length) + length;
}

static void put_bytes(tws_text *out, int field, const char *bytes, size_t length) {
  put_key(out, field, BYTES);
  put_varint(out, length);
  tws_text_add_bytes(out, bytes, length);
}

/* ---- events ---- */

static void put_time(tws_text *out, double wall_time) {
  uint64_t bits;
  memcpy(&bits, &wall_time, sizeof bits);
  put_key(out, 1, FIXED64);
  put_little(out, bits, 8);
}

static void put_step(tws_text *out, int64_t step) {
  if (step == 0) return; /* as proto3 has it */
  put_key(out, 2, VARINT);
  put_varint(out, (uint64_t)step);
}

static size_t scalar_bytes(const char *tag) {
  return field_bytes(strlen(tag)) + 5;
}

static void put_scalar(tws_text *out, const char *tag, float value) {
  uint32_t bits;
  memcpy(&bits, &value, sizeof bits);
  put_key(out, 1, BYTES);
  put_varint(out, scalar_bytes(tag));
  put_bytes(out, 1, tag, strlen(tag));
  put_key(out, 2, FIXED32);
  put_little(out, bits, 4);
}

void tws_event_version(tws_text *out, double wall_time) {
  static const char version[] = "brain.Event:2";
  const size_t at = begin_record(out);
  put_time(out, wall_time);
  put_bytes(out, 3, version, sizeof version - 1);
  end_record(out, at);
}

void tws_event_scalar(tws_text *out, const char *tag, float value, double wall_time, int64_t step) {
  const size_t at = begin_record(out);
  put_time(out, wall_time);
  put_step(out, step);
  put_key(out, 5, BYTES);
  put_varint(out, field_bytes(scalar_bytes(tag)));
  put_scalar(out, tag, value);
  end_record(out, at);
}

void tws_event_step(tws_text *out, const tws_step_report *report) {
  size_t length = 0;
  double value;
  for (int i = 0; i < TWS_STEP_VALUE_COUNT; i++)
    if (tws_step_value(report, i, &value)) length += field_bytes(scalar_bytes(tws_step_value_of(i)->tag));
  const size_t at = begin_record(out);
  put_time(out, report->at_s);
  put_step(out, report->samples);
  put_key(out, 5, BYTES);
  put_varint(out, length);
  for (int i = 0; i < TWS_STEP_VALUE_COUNT; i++)
    if (tws_step_value(report, i, &value)) put_scalar(out, tws_step_value_of(i)->tag, (float)value);
  end_record(out, at);
}

void tws_event_text(tws_text *out, const char *tag, const char *text, double wall_time, int64_t step) {
  /* TensorProto: dtype (1) DT_STRING (7), tensor_shape (2) without dimensions, string_val (8); SummaryMetadata:
   * plugin_data (1) with plugin_name (1), data_class (4) DATA_CLASS_TENSOR (2). */
  static const char scalar_of_texts[] = {1 << 3 | VARINT, 7, 2 << 3 | BYTES, 0};
  static const char metadata[] = {1 << 3 | BYTES, 6, 1 << 3 | BYTES, 4, 't', 'e', 'x', 't', 4 << 3 | VARINT, 2};
  const size_t length = strlen(text), tensor = sizeof scalar_of_texts + field_bytes(length);
  const size_t value = field_bytes(strlen(tag)) + field_bytes(tensor) + field_bytes(sizeof metadata);
  const size_t at = begin_record(out);
  put_time(out, wall_time);
  put_step(out, step);
  put_key(out, 5, BYTES);
  put_varint(out, field_bytes(value));
  put_key(out, 1, BYTES);
  put_varint(out, value);
  put_bytes(out, 1, tag, strlen(tag));
  put_key(out, 8, BYTES);
  put_varint(out, tensor);
  tws_text_add_bytes(out, scalar_of_texts, sizeof scalar_of_texts);
  put_bytes(out, 8, text, length);
  put_bytes(out, 9, metadata, sizeof metadata);
  end_record(out, at);
}

void tws_event_start(tws_text *out, double wall_time, int64_t step) {
  static const char start[] = {1 << 3 | VARINT, 1}; /* SessionLog.status START */
  const size_t at = begin_record(out);
  put_time(out, wall_time);
  put_step(out, step);
  put_bytes(out, 7, start, sizeof start);
  end_record(out, at);
}
