#include "models/network/onnx_file.h"

#include <string.h>
#include "base/dtype.h"
#include "base/json.h"
#include "models/network/onnx_data.h"

/* ---- the wire format (protobuf.dev/programming-guides/encoding) ---- */

enum { VARINT = 0, FIXED64 = 1, BYTES = 2, FIXED32 = 5 };
enum { MOST_NODES = 1 << 16, MOST_PORTS = 1 << 12, MOST_OPERANDS = 1 << 10 };

typedef struct span {
  const uint8_t *at, *end;
} span;

typedef struct field {
  int number, wire;
  uint64_t value; /* of VARINT, FIXED64 and FIXED32 */
  span bytes;     /* of BYTES */
} field;

typedef struct reader {
  tws_onnx_graph *graph;
  const uint8_t *begin;
  int malformed;  /* 1: the fields of some message cannot be read */
  uint64_t where; /* position in the file of that message's faulty field */
} reader;

static int fails(reader *r, const uint8_t *at) {
  if (!r->malformed) r->where = (uint64_t)(at - r->begin);
  r->malformed = 1;
  return 0;
}

static int take_varint(span *from, uint64_t *value) {
  *value = 0;
  for (int shift = 0; shift < 64 && from->at < from->end; shift += 7) {
    const uint8_t byte = *from->at++;
    *value |= (uint64_t)(byte & 127) << shift;
    if (byte < 128) return 1;
  }
  return 0;
}

static int take_fixed(span *from, int bytes, uint64_t *value) {
  if (from->end - from->at < bytes) return 0;
  *value = 0;
  for (int i = 0; i < bytes; i++) *value |= (uint64_t)from->at[i] << 8 * i;
  from->at += bytes;
  return 1;
}

/* Reads the next field of a message and advances. Returns 0 at the message's end, and for malformed bytes, which
 * r->malformed then says. */
static int next_field(reader *r, span *message, field *f) {
  uint64_t key;
  const uint8_t *begin = message->at;
  if (message->at == message->end || r->malformed) return 0;
  *f = (field){.number = 0};
  if (!take_varint(message, &key) || key >> 3 == 0 || key >> 3 > INT32_MAX >> 3) return fails(r, begin);
  f->number = (int)(key >> 3);
  f->wire = (int)(key & 7);
  switch (f->wire) {
    case VARINT:
      return take_varint(message, &f->value) ? 1 : fails(r, begin);
    case FIXED64:
      return take_fixed(message, 8, &f->value) ? 1 : fails(r, begin);
    case FIXED32:
      return take_fixed(message, 4, &f->value) ? 1 : fails(r, begin);
    case BYTES:
      if (!take_varint(message, &f->value) || f->value > (uint64_t)(message->end - message->at)) return fails(r, begin);
      f->bytes = (span){message->at, message->at + f->value};
      message->at += f->value;
      return 1;
    default:
      return fails(r, begin);
  }
}

static int count_fields(reader *r, span message, int number) {
  int count = 0;
  for (field f; next_field(r, &message, &f);) count += f.number == number && f.wire == BYTES;
  return count;
}

static void *allocate(const reader *r, int64_t count, size_t bytes) {
  return tws_arena_alloc(r->graph->arena, (size_t)(count > 0 ? count : 1), bytes);
}

static tws_code no_memory(const reader *r, tws_error *err) {
  return tws_fail(err, TWS_MEMORY, NULL, "%s: no memory for the file's graph", r->graph->path);
}

static tws_code check_form(const reader *r, tws_error *err) {
  if (!r->malformed) return TWS_OK;
  return tws_fail(err, TWS_INVALID, "write it again with torch.onnx.export(model, inputs, \"model.onnx\")",
                  "%s: byte %llu begins no field of an ONNX file: it is cut off, or of another kind", r->graph->path,
                  (unsigned long long)r->where);
}

/* Copies a text; what is no printable UTF-8 becomes question marks. */
static const char *text_of(const reader *r, span bytes) {
  const size_t length = (size_t)(bytes.end - bytes.at);
  char *copy = allocate(r, (int64_t)length + 1, 1);
  if (!copy) return NULL;
  memcpy(copy, bytes.at, length);
  for (size_t i = 0; i < length; i++)
    if ((unsigned char)copy[i] < 32 || copy[i] == 127) copy[i] = '?';
  const int is_utf8 = tws_json_is_utf8(copy);
  for (size_t i = 0; i < length && !is_utf8; i++)
    if ((unsigned char)copy[i] > 127) copy[i] = '?';
  return copy;
}

/* ---- tensors ---- */

/* The fields of a TensorProto. Each kind of elements may be in one packed field or in one field an element. */
typedef struct tensor_fields {
  span raw;
  int has_raw, external;
  tws_onnx_place place; /* of external elements */
  int64_t counts[4]; /* elements of float_data, int32_data, int64_data, double_data */
} tensor_fields;

enum { FLOATS, INT32S, INT64S, DOUBLES };

static int kind_of_field(int number) {
  return number == 4 ? FLOATS : number == 5 ? INT32S : number == 7 ? INT64S : number == 10 ? DOUBLES : -1;
}

/* Calls `put` for each number of a repeated field of numbers, packed or not. Returns their number. */
static int64_t each_number(reader *r, const field *f, int wire, void (*put)(void *to, int64_t i, uint64_t value),
                           void *to, int64_t at) {
  int64_t count = 0;
  span rest = f->bytes;
  if (f->wire == wire) {
    if (put) put(to, at, f->value);
    return 1;
  }
  if (f->wire != BYTES) return fails(r, r->begin);
  while (rest.at < rest.end) {
    uint64_t value;
    const int ok = wire == VARINT ? take_varint(&rest, &value) : take_fixed(&rest, wire == FIXED32 ? 4 : 8, &value);
    if (!ok) return fails(r, rest.at);
    if (put) put(to, at + count, value);
    count++;
  }
  return count;
}

static void put_float(void *to, int64_t i, uint64_t value) {
  const uint32_t bits = (uint32_t)value;
  memcpy((float *)to + i, &bits, sizeof bits);
}

static void put_double(void *to, int64_t i, uint64_t value) {
  double number;
  memcpy(&number, &value, sizeof number);
  ((float *)to)[i] = (float)number;
}

static void put_integer(void *to, int64_t i, uint64_t value) {
  ((int64_t *)to)[i] = (int64_t)value;
}

static void put_int32(void *to, int64_t i, uint64_t value) {
  ((int64_t *)to)[i] = (int32_t)(uint32_t)value;
}

static void put_half(void *to, int64_t i, uint64_t value) {
  ((float *)to)[i] = tws_from_f16((unsigned short)value);
}

static void put_bf16(void *to, int64_t i, uint64_t value) {
  ((float *)to)[i] = tws_from_bf16((unsigned short)value);
}

static void put_bool(void *to, int64_t i, uint64_t value) {
  ((int64_t *)to)[i] = (value & 255) != 0;
}

/* The types of elements that are read: how many bytes they have as raw data, the field that has them otherwise, and
 * how one is converted. */
static const struct {
  int type, bytes, field, is_float;
  void (*put)(void *to, int64_t i, uint64_t value);
} element_types[] = {{TWS_ONNX_FLOAT, 4, FLOATS, 1, put_float},   {TWS_ONNX_INT32, 4, INT32S, 0, put_int32},
                     {TWS_ONNX_INT64, 8, INT64S, 0, put_integer}, {TWS_ONNX_BOOL, 1, INT32S, 0, put_bool},
                     {TWS_ONNX_FLOAT16, 2, INT32S, 1, put_half},  {TWS_ONNX_DOUBLE, 8, DOUBLES, 1, put_double},
                     {TWS_ONNX_BFLOAT16, 2, INT32S, 1, put_bf16}};
enum { ELEMENT_TYPES = sizeof element_types / sizeof *element_types };

/* Reads an entry of TensorProto.external_data: a key (field 1) and its value (field 2). */
static tws_code read_place(reader *r, span message, tws_onnx_place *place, tws_error *err) {
  const char *key = "", *value = "";
  for (field f; next_field(r, &message, &f);) {
    if (f.number == 1 && f.wire == BYTES && !(key = text_of(r, f.bytes))) return no_memory(r, err);
    if (f.number == 2 && f.wire == BYTES && !(value = text_of(r, f.bytes))) return no_memory(r, err);
  }
  tws_onnx_place_set(place, key, value);
  return TWS_OK;
}

static tws_code scan_tensor(reader *r, span message, tws_onnx_tensor *t, tensor_fields *found, tws_error *err) {
  int negative = 0;
  *t = (tws_onnx_tensor){.name = "", .count = 1};
  *found = (tensor_fields){.has_raw = 0};
  for (field f; next_field(r, &message, &f);) {
    int64_t dims[TWS_ONNX_DIMS + 1];
    const int kind = kind_of_field(f.number);
    if (f.number == 1) {
      const int64_t more = each_number(r, &f, VARINT, NULL, NULL, 0);
      if (r->malformed) break; /* numbers precede the faulty one */
      if (more > TWS_ONNX_DIMS - t->dims)
        return tws_fail(err, TWS_UNSUPPORTED, "export a model whose tensors have at most 8 dimensions",
                        "%s: a tensor has more than %d dimensions", r->graph->path, TWS_ONNX_DIMS);
      each_number(r, &f, VARINT, put_integer, dims, 0);
      for (int64_t i = 0; i < more; i++) t->shape[t->dims++] = dims[i];
    } else if (f.number == 2 && f.wire == VARINT) {
      t->type = f.value < 64 ? (int)f.value : 63;
    } else if (f.number == 8 && f.wire == BYTES) {
      if (!(t->name = text_of(r, f.bytes))) return no_memory(r, err);
    } else if (f.number == 9 && f.wire == BYTES) {
      found->raw = f.bytes;
      found->has_raw = 1;
    } else if (f.number == 13 && f.wire == BYTES) {
      TWS_TRY(read_place(r, f.bytes, &found->place, err));
    } else if (f.number == 14 && f.wire == VARINT) {
      found->external = f.value == 1;
    } else if (kind >= 0) {
      found->counts[kind] += each_number(r, &f,
                                         kind == FLOATS    ? FIXED32
                                         : kind == DOUBLES ? FIXED64
                                                           : VARINT,
                                         NULL, NULL, 0);
    }
  }
  TWS_TRY(check_form(r, err));
  for (int i = 0; i < t->dims; i++) {
    negative |= t->shape[i] < 0;
    if (negative || (t->shape[i] > 0 && t->count > INT32_MAX / t->shape[i]))
      return tws_fail(err, TWS_INVALID, "check the file with onnx.checker", "%s: tensor %.200s has a wrong shape",
                      r->graph->path, t->name);
    t->count *= t->shape[i];
  }
  return TWS_OK;
}

static tws_code check_tensor(const reader *r, const tws_onnx_tensor *t, const tensor_fields *found, int row,
                             tws_error *err) {
  const char *path = r->graph->path;
  if (found->external && !r->graph->reads_beside)
    return tws_fail(
        err, TWS_UNSUPPORTED,
        "write one file: torch.onnx.export(..., external_data=False), or onnx.save(onnx.load(\"model.onnx\"), "
        "\"one.onnx\")",
        "%s: the elements of tensor %.200s are in another file", path, t->name);
  if (row == ELEMENT_TYPES)
    return tws_fail(err, TWS_UNSUPPORTED, "export the model in float32: model.float()",
                    "%s: tensor %.200s has elements of type %d of onnx.proto, and float32, float16, bfloat16, float64, "
                    "int32, int64 and bool are read",
                    path, t->name, t->type);
  if (found->external) return TWS_OK;
  const int64_t have = found->has_raw ? (int64_t)(found->raw.end - found->raw.at) / element_types[row].bytes
                                      : found->counts[element_types[row].field];
  const int whole = !found->has_raw || (found->raw.end - found->raw.at) % element_types[row].bytes == 0;
  if (have == t->count && whole) return TWS_OK;
  return tws_fail(err, TWS_INVALID, "the file is damaged: write it again",
                  "%s: tensor %.200s has %lld elements by its shape, and the file has %lld of them", path, t->name,
                  (long long)t->count, (long long)have);
}

static void convert_raw(span raw, int row, int64_t count, void *to) {
  for (int64_t i = 0; i < count; i++) {
    uint64_t value = 0;
    take_fixed(&raw, element_types[row].bytes, &value);
    element_types[row].put(to, i, value);
  }
}

static tws_code read_tensor(reader *r, span message, tws_onnx_tensor *t, tws_error *err) {
  tensor_fields found;
  uint8_t *beside = NULL;
  int row = 0;
  TWS_TRY(scan_tensor(r, message, t, &found, err));
  while (row < ELEMENT_TYPES && element_types[row].type != t->type) row++;
  TWS_TRY(check_tensor(r, t, &found, row, err));
  const uint64_t bytes = (uint64_t)t->count * (uint64_t)element_types[row].bytes;
  if (found.external) TWS_TRY(tws_onnx_read_place(r->graph->path, t->name, &found.place, bytes, &beside, err));
  void *to = allocate(r, t->count, element_types[row].is_float ? sizeof(float) : sizeof(int64_t));
  if (!to) {
    tws_free(beside);
    return no_memory(r, err);
  }
  t->numbers = element_types[row].is_float ? to : NULL;
  t->integers = element_types[row].is_float ? NULL : to;
  if (beside || found.has_raw) {
    convert_raw(beside ? (span){beside, beside + bytes} : found.raw, row, t->count, to);
    tws_free(beside);
    return TWS_OK;
  }
  const int kind = element_types[row].field, wire = kind == FLOATS ? FIXED32 : kind == DOUBLES ? FIXED64 : VARINT;
  int64_t at = 0;
  for (field f; next_field(r, &message, &f);)
    if (kind_of_field(f.number) == kind) at += each_number(r, &f, wire, element_types[row].put, to, at);
  return TWS_OK;
}

/* ---- nodes ---- */

static tws_code read_attribute(reader *r, span message, tws_onnx_attribute *a, tws_error *err) {
  span again = message;
  int64_t ints = 0, floats = 0;
  *a = (tws_onnx_attribute){.name = "", .s = ""};
  for (field f; next_field(r, &message, &f);) {
    tws_onnx_tensor *t = NULL;
    if (f.number == 1 && f.wire == BYTES && !(a->name = text_of(r, f.bytes))) return no_memory(r, err);
    if (f.number == 2 && f.wire == FIXED32) {
      float value;
      put_float(&value, 0, f.value);
      a->f = (double)value;
    }
    if (f.number == 3 && f.wire == VARINT) a->i = (int64_t)f.value;
    if (f.number == 4 && f.wire == BYTES && !(a->s = text_of(r, f.bytes))) return no_memory(r, err);
    if (f.number == 5 && f.wire == BYTES) {
      if (!(t = allocate(r, 1, sizeof *t))) return no_memory(r, err);
      TWS_TRY(read_tensor(r, f.bytes, t, err));
      a->t = t;
    }
    if (f.number == 7) floats += each_number(r, &f, FIXED32, NULL, NULL, 0);
    if (f.number == 8) ints += each_number(r, &f, VARINT, NULL, NULL, 0);
  }
  TWS_TRY(check_form(r, err));
  int64_t *integers = allocate(r, ints, sizeof *integers);
  float *numbers = allocate(r, floats, sizeof *numbers);
  if (!integers || !numbers) return no_memory(r, err);
  for (field f; next_field(r, &again, &f);) {
    if (f.number == 7) a->float_count += each_number(r, &f, FIXED32, put_float, numbers, a->float_count);
    if (f.number == 8) a->int_count += each_number(r, &f, VARINT, put_integer, integers, a->int_count);
  }
  a->ints = integers;
  a->floats = numbers;
  return TWS_OK;
}

static tws_code read_names(reader *r, span message, int number, const char ***names, int *count, tws_error *err) {
  int at = 0;
  *count = count_fields(r, message, number);
  if (*count > MOST_OPERANDS)
    return tws_fail(err, TWS_UNSUPPORTED, "export a model of fewer parts", "%s: a node has more than %d operands",
                    r->graph->path, MOST_OPERANDS);
  if (!(*names = allocate(r, *count, sizeof **names))) return no_memory(r, err);
  for (field f; next_field(r, &message, &f);)
    if (f.number == number && f.wire == BYTES && !((*names)[at++] = text_of(r, f.bytes))) return no_memory(r, err);
  return TWS_OK;
}

static tws_code read_node(reader *r, span message, tws_onnx_node *n, tws_error *err) {
  const char *domain = "";
  span again = message;
  int at = 0;
  *n = (tws_onnx_node){.name = "", .op = ""};
  TWS_TRY(read_names(r, message, 1, &n->in, &n->ins, err));
  TWS_TRY(read_names(r, message, 2, &n->out, &n->outs, err));
  n->attribute_count = count_fields(r, message, 5);
  if (n->attribute_count > MOST_OPERANDS)
    return tws_fail(err, TWS_UNSUPPORTED, "check the file with onnx.checker", "%s: a node has more than %d attributes",
                    r->graph->path, MOST_OPERANDS);
  tws_onnx_attribute *attributes = allocate(r, n->attribute_count, sizeof *attributes);
  if (!attributes) return no_memory(r, err);
  n->attributes = attributes;
  for (field f; next_field(r, &again, &f);) {
    if (f.wire != BYTES) continue;
    if (f.number == 3 && !(n->name = text_of(r, f.bytes))) return no_memory(r, err);
    if (f.number == 4 && !(n->op = text_of(r, f.bytes))) return no_memory(r, err);
    if (f.number == 7 && !(domain = text_of(r, f.bytes))) return no_memory(r, err);
    if (f.number == 5) TWS_TRY(read_attribute(r, f.bytes, &attributes[at++], err));
  }
  TWS_TRY(check_form(r, err));
  if (!*n->name && n->outs > 0) n->name = n->out[0];
  if (*domain && strcmp(domain, "ai.onnx") != 0)
    n->op = tws_arena_printf(r->graph->arena, "%.100s.%.100s", domain, n->op);
  return n->op ? TWS_OK : no_memory(r, err);
}

/* ---- the graph ---- */

/* Reads a ValueInfoProto: the name, the type of elements and the shape of an input or output. */
static tws_code read_port(reader *r, span message, tws_onnx_port *port, tws_error *err) {
  *port = (tws_onnx_port){.name = ""};
  for (field f; next_field(r, &message, &f);) {
    if (f.number == 1 && f.wire == BYTES && !(port->name = text_of(r, f.bytes))) return no_memory(r, err);
    if (f.number != 2 || f.wire != BYTES) continue;
    span type = f.bytes;
    for (field g; next_field(r, &type, &g);) {
      span tensor = g.bytes;
      if (g.number != 1 || g.wire != BYTES) continue;
      for (field h; next_field(r, &tensor, &h);) {
        span shape = h.bytes;
        if (h.number == 1 && h.wire == VARINT) port->type = h.value < 64 ? (int)h.value : 63;
        if (h.number != 2 || h.wire != BYTES) continue;
        for (field d; next_field(r, &shape, &d);) {
          span dim = d.bytes;
          if (d.number != 1 || d.wire != BYTES || port->dims == TWS_ONNX_DIMS) continue;
          port->shape[port->dims] = -1;
          for (field v; next_field(r, &dim, &v);)
            if (v.number == 1 && v.wire == VARINT && v.value <= INT32_MAX) port->shape[port->dims] = (int64_t)v.value;
          port->dims++;
        }
      }
    }
  }
  return check_form(r, err);
}

static tws_code read_graph(reader *r, span message, tws_error *err) {
  tws_onnx_graph *g = r->graph;
  const int nodes = count_fields(r, message, 1), tensors = count_fields(r, message, 5),
            inputs = count_fields(r, message, 11), outputs = count_fields(r, message, 12);
  if (nodes > MOST_NODES || tensors > MOST_NODES || inputs > MOST_NODES || outputs > MOST_PORTS)
    return tws_fail(err, TWS_UNSUPPORTED, "export a smaller model",
                    "%s: the graph has more than %d nodes, or as many initializers or inputs", g->path, MOST_NODES);
  g->nodes = allocate(r, nodes, sizeof *g->nodes);
  g->tensors = allocate(r, tensors, sizeof *g->tensors);
  g->inputs = allocate(r, inputs, sizeof *g->inputs);
  g->outputs = allocate(r, outputs, sizeof *g->outputs);
  if (!g->nodes || !g->tensors || !g->inputs || !g->outputs) return no_memory(r, err);
  for (field f; next_field(r, &message, &f);) {
    if (f.wire != BYTES) continue;
    if (f.number == 1) TWS_TRY(read_node(r, f.bytes, &g->nodes[g->node_count++], err));
    if (f.number == 5) TWS_TRY(read_tensor(r, f.bytes, &g->tensors[g->tensor_count++], err));
    if (f.number == 11) TWS_TRY(read_port(r, f.bytes, &g->inputs[g->input_count++], err));
    if (f.number == 12) TWS_TRY(read_port(r, f.bytes, &g->outputs[g->output_count++], err));
    if (f.number == 15)
      return tws_fail(err, TWS_UNSUPPORTED, "export dense weights", "%s: the graph has sparse initializers", g->path);
  }
  return check_form(r, err);
}

tws_code tws_onnx_parse(const char *bytes, size_t size, const char *path, int reads_beside, tws_arena *arena,
                        tws_onnx_graph **out, tws_error *err) {
  reader r = {.graph = tws_arena_alloc(arena, 1, sizeof(tws_onnx_graph)), .begin = (const uint8_t *)bytes};
  span message = {r.begin, r.begin + size};
  int graphs = 0;
  if (!r.graph) return tws_fail(err, TWS_MEMORY, NULL, "%s: no memory for the file's graph", path);
  *r.graph = (tws_onnx_graph){.path = path, .arena = arena, .reads_beside = reads_beside};
  for (field f; next_field(&r, &message, &f);) {
    if (f.number == 7 && f.wire == BYTES && graphs++ == 0) TWS_TRY(read_graph(&r, f.bytes, err));
    if (f.number != 8 || f.wire != BYTES) continue;
    const char *domain = "";
    int64_t version = 0;
    for (field g; next_field(&r, &f.bytes, &g);) {
      if (g.number == 1 && g.wire == BYTES && !(domain = text_of(&r, g.bytes))) return no_memory(&r, err);
      if (g.number == 2 && g.wire == VARINT) version = (int64_t)g.value;
    }
    if (!*domain || strcmp(domain, "ai.onnx") == 0) r.graph->opset = version;
  }
  TWS_TRY(check_form(&r, err));
  *out = r.graph;
  if (graphs == 1 && r.graph->node_count > 0) return TWS_OK;
  return tws_fail(err, TWS_INVALID, "write it with torch.onnx.export(model, inputs, \"model.onnx\")",
                  "%s: the file has no ONNX graph with nodes", path);
}

const tws_onnx_attribute *tws_onnx_attribute_of(const tws_onnx_node *node, const char *name) {
  for (int i = 0; i < node->attribute_count; i++)
    if (strcmp(node->attributes[i].name, name) == 0) return &node->attributes[i];
  return NULL;
}

int64_t tws_onnx_int(const tws_onnx_node *node, const char *name, int64_t fallback) {
  const tws_onnx_attribute *a = tws_onnx_attribute_of(node, name);
  return a ? a->i : fallback;
}

double tws_onnx_float(const tws_onnx_node *node, const char *name, double fallback) {
  const tws_onnx_attribute *a = tws_onnx_attribute_of(node, name);
  return a ? a->f : fallback;
}

const char *tws_onnx_string(const tws_onnx_node *node, const char *name, const char *fallback) {
  const tws_onnx_attribute *a = tws_onnx_attribute_of(node, name);
  return a ? a->s : fallback;
}
