/* The wire format of protocol buffers, restricted to the types that files of monitors need
 * (protobuf.dev/programming-guides/encoding). Fields written in the order of their numbers equal, byte for byte, the
 * output of protobuf's own writers. Each function appends to `out`; out->failed is set if there is no memory. */
#ifndef TWS_TRACES_PROTOBUF_H
#define TWS_TRACES_PROTOBUF_H

#include <stdint.h>
#include "base/memory.h"

/* Appends a field of type int32, int64, bool or enum. */
void tws_protobuf_integer(tws_text *out, int field, uint64_t value);
void tws_protobuf_double(tws_text *out, int field, double value);
void tws_protobuf_float(tws_text *out, int field, float value);
/* Appends a field of type bytes. */
void tws_protobuf_bytes(tws_text *out, int field, const char *bytes, size_t length);
/* Appends a field of type string; for NULL it appends nothing. */
void tws_protobuf_text(tws_text *out, int field, const char *text);

/* Append a message as a field: begin() returns the position at which its fields start, and end() inserts key and length
 * before them. */
size_t tws_protobuf_begin(const tws_text *out);
void tws_protobuf_end(tws_text *out, int field, size_t begin);

/* Writes the `bytes` lowest bytes of a number to `to`, little endian; used in headers of records. */
void tws_put_little(char *to, uint64_t value, int bytes);

#endif
