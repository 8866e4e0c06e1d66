#include "traces/protobuf.h"

#include <string.h>

enum { VARINT = 0, FIXED64 = 1, BYTES = 2, FIXED32 = 5, LONGEST = 10 };

void tws_put_little(char *to, uint64_t value, int bytes) {
  for (int i = 0; i < bytes; i++) to[i] = (char)(value >> 8 * i & 255);
}

/* Encodes a number with seven bits per byte, lowest first; returns the number of bytes. */
static size_t to_varint(uint64_t value, char bytes[LONGEST]) {
  size_t count = 0;
  do {
    bytes[count++] = (char)((value & 127) | (value > 127 ? 128 : 0));
    value >>= 7;
  } while (value);
  return count;
}

static void put_varint(tws_text *out, uint64_t value) {
  char bytes[LONGEST];
  tws_text_add_bytes(out, bytes, to_varint(value, bytes));
}

static void put_key(tws_text *out, int field, int wire) {
  put_varint(out, (uint64_t)(field << 3 | wire));
}

void tws_protobuf_integer(tws_text *out, int field, uint64_t value) {
  put_key(out, field, VARINT);
  put_varint(out, value);
}

void tws_protobuf_double(tws_text *out, int field, double value) {
  uint64_t bits;
  char bytes[8];
  memcpy(&bits, &value, sizeof bits);
  tws_put_little(bytes, bits, 8);
  put_key(out, field, FIXED64);
  tws_text_add_bytes(out, bytes, sizeof bytes);
}

void tws_protobuf_float(tws_text *out, int field, float value) {
  uint32_t bits;
  char bytes[4];
  memcpy(&bits, &value, sizeof bits);
  tws_put_little(bytes, bits, 4);
  put_key(out, field, FIXED32);
  tws_text_add_bytes(out, bytes, sizeof bytes);
}

void tws_protobuf_bytes(tws_text *out, int field, const char *bytes, size_t length) {
  put_key(out, field, BYTES);
  put_varint(out, length);
  tws_text_add_bytes(out, bytes, length);
}

void tws_protobuf_text(tws_text *out, int field, const char *text) {
  if (text) tws_protobuf_bytes(out, field, text, strlen(text));
}

size_t tws_protobuf_begin(const tws_text *out) {
  return out->length;
}

void tws_protobuf_end(tws_text *out, int field, size_t begin) {
  char head[2 * LONGEST];
  if (out->failed) return;
  const size_t length = out->length - begin;
  size_t bytes = to_varint((uint64_t)(field << 3 | BYTES), head);
  bytes += to_varint(length, head + bytes);
  tws_text_add_bytes(out, head, bytes); /* reserves memory */
  if (out->failed) return;
  memmove(out->data + begin + bytes, out->data + begin, length);
  memcpy(out->data + begin, head, bytes);
}
