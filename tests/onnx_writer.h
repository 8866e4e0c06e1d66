/* Writes small ONNX files, whose fields and numbers are those of onnx.proto, from a description in text. */
#ifndef TESTS_ONNX_WRITER_H
#define TESTS_ONNX_WRITER_H

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "traces/protobuf.h"

enum { ONNX_FLOATS = 1, ONNX_INTS = 7 };

typedef struct onnx_writer {
  tws_text graph;
  int nodes;
} onnx_writer;

/* Adds an input or output (field 11 or 12) of this element type and shape: "2,3,8,8"; "?" is a symbolic length. */
static inline void onnx_port(onnx_writer *w, int field, const char *name, int type, const char *shape) {
  const size_t port = tws_protobuf_begin(&w->graph);
  tws_protobuf_text(&w->graph, 1, name);
  const size_t kind = tws_protobuf_begin(&w->graph), tensor = kind;
  tws_protobuf_integer(&w->graph, 1, (uint64_t)type);
  const size_t dims = tws_protobuf_begin(&w->graph);
  for (const char *at = shape; at && *at; at = strchr(at, ',') ? strchr(at, ',') + 1 : NULL) {
    const size_t dim = tws_protobuf_begin(&w->graph);
    if (*at == '?')
      tws_protobuf_text(&w->graph, 2, "batch");
    else
      tws_protobuf_integer(&w->graph, 1, strtoull(at, NULL, 10));
    tws_protobuf_end(&w->graph, 1, dim);
  }
  tws_protobuf_end(&w->graph, 2, dims);
  tws_protobuf_end(&w->graph, 1, tensor);
  tws_protobuf_end(&w->graph, 2, kind);
  tws_protobuf_end(&w->graph, field, port);
}

/* Appends the fields of a tensor. Elements: value, or value + step x the element's index. */
static inline void onnx_tensor_fields(tws_text *to, const char *name, int type, const char *shape, double value,
                                      double step) {
  uint64_t count = 1;
  for (const char *at = shape; at && *at; at = strchr(at, ',') ? strchr(at, ',') + 1 : NULL) {
    tws_protobuf_integer(to, 1, strtoull(at, NULL, 10));
    count *= strtoull(at, NULL, 10);
  }
  tws_protobuf_integer(to, 2, (uint64_t)type);
  for (uint64_t i = 0; i < count && type == ONNX_INTS; i++)
    tws_protobuf_integer(to, 7, (uint64_t)(int64_t)(value + step * (double)i));
  tws_protobuf_text(to, 8, name);
  if (type != ONNX_FLOATS) return;
  char *raw = malloc(count * 4 + 1);
  for (uint64_t i = 0; i < count; i++) {
    const float element = (float)(value + step * (double)i);
    memcpy(raw + 4 * i, &element, 4);
  }
  tws_protobuf_bytes(to, 9, raw, count * 4);
  free(raw);
}

static inline void onnx_tensor(onnx_writer *w, const char *name, int type, const char *shape, double value,
                               double step) {
  const size_t begin = tws_protobuf_begin(&w->graph);
  onnx_tensor_fields(&w->graph, name, type, shape, value, step);
  tws_protobuf_end(&w->graph, 5, begin);
}

/* Adds a node: "Op a,b -> c,d key=1 key=2,3 key=0.5f". The node's name is "node_" and its number. */
static inline void onnx_node(onnx_writer *w, const char *text) {
  char copy[400], *save = NULL, name[32];
  const size_t node = tws_protobuf_begin(&w->graph);
  snprintf(copy, sizeof copy, "%s", text);
  char *op = strtok_r(copy, " ", &save), *in = strtok_r(NULL, " ", &save);
  for (char *inner = NULL, *one = strtok_r(in, ",", &inner); one; one = strtok_r(NULL, ",", &inner))
    tws_protobuf_text(&w->graph, 1, strcmp(one, "-") == 0 ? "" : one);
  strtok_r(NULL, " ", &save); /* the arrow */
  char *out = strtok_r(NULL, " ", &save);
  for (char *inner = NULL, *one = strtok_r(out, ",", &inner); one; one = strtok_r(NULL, ",", &inner))
    tws_protobuf_text(&w->graph, 2, one);
  snprintf(name, sizeof name, "node_%d", w->nodes++);
  tws_protobuf_text(&w->graph, 3, name);
  tws_protobuf_text(&w->graph, 4, op);
  for (char *key; (key = strtok_r(NULL, " ", &save)) != NULL;) {
    char *value = strchr(key, '=');
    *value++ = 0;
    const size_t attribute = tws_protobuf_begin(&w->graph);
    tws_protobuf_text(&w->graph, 1, key);
    if (strchr(value, 'f'))
      tws_protobuf_float(&w->graph, 2, strtof(value, NULL));
    else if (!strchr(value, ','))
      tws_protobuf_integer(&w->graph, 3, (uint64_t)strtoll(value, NULL, 10));
    for (char *at = value; strchr(value, ',') && at && *at; at = strchr(at, ',') ? strchr(at, ',') + 1 : NULL)
      tws_protobuf_integer(&w->graph, 8, (uint64_t)strtoll(at, NULL, 10));
    tws_protobuf_end(&w->graph, 5, attribute);
  }
  tws_protobuf_end(&w->graph, 1, node);
}

/* Returns the file of the graph, which the caller frees with tws_text_free(). */
static inline tws_text onnx_file(onnx_writer *w) {
  tws_text file = {0};
  tws_protobuf_integer(&file, 1, 10);
  tws_protobuf_bytes(&file, 7, w->graph.data ? w->graph.data : "", w->graph.length);
  const size_t version = tws_protobuf_begin(&file);
  tws_protobuf_integer(&file, 2, 20);
  tws_protobuf_end(&file, 8, version);
  tws_text_free(&w->graph);
  return file;
}

#endif
