/* Reads ONNX files into nodes and tensors; private to models/network. Only the fields of onnx.proto
 * (github.com/onnx/onnx, IR version 3 and later) that a network is built from are read: the nodes, attributes,
 * initializers, inputs and outputs of the main graph. Attributes that are graphs are skipped, so that the nesting of
 * messages has a fixed depth, whatever the file contains. */
#ifndef TWS_MODELS_NETWORK_ONNX_FILE_H
#define TWS_MODELS_NETWORK_ONNX_FILE_H

#include <stddef.h>
#include <stdint.h>
#include "base/memory.h"
#include "base/status.h"

enum { TWS_ONNX_DIMS = 8 };

/* TensorProto.DataType: the types that are read. */
enum {
  TWS_ONNX_FLOAT = 1,
  TWS_ONNX_INT32 = 6,
  TWS_ONNX_INT64 = 7,
  TWS_ONNX_BOOL = 9,
  TWS_ONNX_FLOAT16 = 10,
  TWS_ONNX_DOUBLE = 11,
  TWS_ONNX_BFLOAT16 = 16
};

/* A tensor, row by row. Floating-point numbers are converted to float32 and are in `numbers`; integers and truth values
 * are in `integers`; the other pointer is NULL. An empty tensor has count 0. */
typedef struct tws_onnx_tensor {
  const char *name;
  int dims;
  int64_t shape[TWS_ONNX_DIMS];
  int64_t count;
  const float *numbers;
  const int64_t *integers;
  int type; /* TensorProto.DataType of the file */
} tws_onnx_tensor;

/* An attribute. Of `f`, `i`, `s`, `t` and `ints`, those are set that the file has. */
typedef struct tws_onnx_attribute {
  const char *name, *s;
  const tws_onnx_tensor *t;
  const int64_t *ints;
  const float *floats;
  int64_t i, int_count, float_count;
  double f;
} tws_onnx_attribute;

typedef struct tws_onnx_node {
  const char *name, *op;  /* name: the node's, or of its first output if it has none; op: with a domain if it has one */
  const char **in, **out; /* names of values; "": absent */
  const tws_onnx_attribute *attributes;
  int ins, outs, attribute_count;
} tws_onnx_node;

/* An input or output of the graph. */
typedef struct tws_onnx_port {
  const char *name;
  int type, dims;
  int64_t shape[TWS_ONNX_DIMS]; /* -1: a symbolic length */
} tws_onnx_port;

typedef struct tws_onnx_graph {
  const char *path; /* for messages */
  tws_arena *arena;
  int64_t opset; /* version of the default domain's operators */
  int reads_beside; /* 1: elements may be read from other files in the folder of `path` */
  tws_onnx_node *nodes;
  tws_onnx_tensor *tensors; /* initializers */
  tws_onnx_port *inputs, *outputs;
  int node_count, tensor_count, input_count, output_count;
} tws_onnx_graph;

/* Reads a file of `size` bytes. reads_beside: 1 if elements of tensors may be in other files of the folder of `path`;
 * 0: they are refused. The graph and what it points to are in the arena, so the bytes may be freed. Fails with
 * TWS_INVALID for bytes that are no ONNX file, and with TWS_UNSUPPORTED for types of elements that are not read. */
tws_code tws_onnx_parse(const char *bytes, size_t size, const char *path, int reads_beside, tws_arena *arena,
                        tws_onnx_graph **out, tws_error *err);

/* Return an attribute, or `fallback`; NULL if the node does not have it. */
const tws_onnx_attribute *tws_onnx_attribute_of(const tws_onnx_node *node, const char *name);
int64_t tws_onnx_int(const tws_onnx_node *node, const char *name, int64_t fallback);
double tws_onnx_float(const tws_onnx_node *node, const char *name, double fallback);
const char *tws_onnx_string(const tws_onnx_node *node, const char *name, const char *fallback);

#endif
