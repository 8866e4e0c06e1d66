#include "models/network/pickle.h"

#include <stdio.h>
#include <string.h>

enum { MOST_VALUES = 1 << 23 /* limit; occurrences in lists count too */, MOST_TEXT = 1 << 20 };

/* ---- names that a pickle may use ---- */

typedef enum name_use {
  KEPT,    /* the result is an object that records the name and its arguments */
  DICT,    /* the result is a dictionary, empty or made from pairs */
  LISTED,  /* the result is a list of the argument's items */
  ITSELF,  /* its argument */
  TENSOR,  /* a tensor, from a storage */
  STORAGE, /* the type of a storage */
  WRAPPED, /* its first argument */
  REBUILT  /* the result of the function in the first argument for the arguments in the third */
} name_use;

static const struct {
  const char *name, *dtype;
  name_use use;
} names[] = {
    {"collections.OrderedDict", NULL, DICT},
    {"collections.defaultdict", NULL, DICT},
    {"__builtin__.set", NULL, LISTED},
    {"__builtin__.frozenset", NULL, LISTED},
    {"__builtin__.list", NULL, KEPT},
    {"__builtin__.dict", NULL, KEPT},
    {"torch.Size", NULL, ITSELF},
    {"torch._utils._rebuild_tensor_v2", NULL, TENSOR},
    {"torch._utils._rebuild_tensor", NULL, TENSOR},
    {"torch._utils._rebuild_parameter", NULL, WRAPPED},
    {"torch._utils._rebuild_parameter_with_state", NULL, WRAPPED},
    {"torch._tensor._rebuild_from_type_v2", NULL, REBUILT},
    {"torch.Tensor", NULL, KEPT},
    {"torch.nn.parameter.Parameter", NULL, KEPT},
    {"torch.FloatStorage", "F32", STORAGE},
    {"torch.DoubleStorage", "F64", STORAGE},
    {"torch.HalfStorage", "F16", STORAGE},
    {"torch.BFloat16Storage", "BF16", STORAGE},
    {"torch.LongStorage", "I64", STORAGE},
    {"torch.IntStorage", "I32", STORAGE},
    {"torch.ShortStorage", "I16", STORAGE},
    {"torch.CharStorage", "I8", STORAGE},
    {"torch.ByteStorage", "U8", STORAGE},
    {"torch.BoolStorage", "BOOL", STORAGE},
    {"torch.float32", NULL, KEPT},
    {"torch.float64", NULL, KEPT},
    {"torch.float16", NULL, KEPT},
    {"torch.bfloat16", NULL, KEPT},
    {"torch.int64", NULL, KEPT},
    {"torch.int32", NULL, KEPT},
    {"torch.uint8", NULL, KEPT},
    {"torch.bool", NULL, KEPT},
    {"torch.device", NULL, KEPT},
    {"_codecs.encode", NULL, KEPT},
    {"argparse.Namespace", NULL, KEPT},
    {"numpy.dtype", NULL, KEPT},
    {"numpy.ndarray", NULL, KEPT},
    {"numpy.core.multiarray.scalar", NULL, KEPT},
    {"numpy.core.multiarray._reconstruct", NULL, KEPT},
    {"numpy._core.multiarray.scalar", NULL, KEPT},
    {"numpy._core.multiarray._reconstruct", NULL, KEPT},
    {"deepspeed.runtime.zero.config.ZeroStageEnum", NULL, WRAPPED},
    {"deepspeed.runtime.fp16.loss_scaler.LossScaler", NULL, KEPT},
    {"deepspeed.runtime.fp16.loss_scaler.DynamicLossScaler", NULL, KEPT},
    {"deepspeed.utils.tensor_fragment.fragment_address", NULL, KEPT},
};

/* ---- the pickle machine: a stack of values, marks in the stack, and a memo ---- */

typedef struct machine {
  const unsigned char *bytes;
  size_t count, at, opcode_at;
  unsigned char opcode;
  const char *name;
  tws_arena *arena;
  tws_pickle *out;
  tws_pickle_value **stack, **memo;
  size_t *marks;
  size_t depth, mark_count, memo_count, stack_room, mark_room, memo_room, storage_room, values, text_bytes;
  tws_error *err;
} machine;

static tws_code bad(const machine *m, const char *hint, const char *what) {
  return tws_fail(m->err, TWS_INVALID, hint ? hint : "the file is damaged, or not written by torch.save",
                  "%s: opcode 0x%02x at byte %zu: %s", m->name, m->opcode, m->opcode_at, what);
}

static tws_code no_memory(const machine *m) {
  return tws_fail(m->err, TWS_MEMORY, NULL, "%s: out of memory", m->name);
}

static tws_code new_value(machine *m, tws_pickle_kind kind, tws_pickle_value **out) {
  if (++m->values > MOST_VALUES) return bad(m, NULL, "more values than any file of weights has");
  *out = tws_arena_alloc(m->arena, 1, sizeof **out);
  if (!*out) return no_memory(m);
  (*out)->kind = kind;
  return TWS_OK;
}

static tws_code push(machine *m, tws_pickle_value *value) {
  if (tws_reserve(&m->stack, &m->stack_room, m->depth + 1, sizeof *m->stack)) return no_memory(m);
  m->stack[m->depth++] = value;
  return TWS_OK;
}

static tws_code push_new(machine *m, tws_pickle_kind kind, int64_t integer) {
  tws_pickle_value *value;
  TWS_TRY(new_value(m, kind, &value));
  value->integer = integer;
  return push(m, value);
}

static size_t bottom(const machine *m) {
  return m->mark_count > 0 ? m->marks[m->mark_count - 1] : 0;
}

/* Returns the topmost `count` values above the last mark, or NULL if there are fewer. */
static tws_pickle_value **top(const machine *m, size_t count) {
  return m->stack && m->depth - bottom(m) >= count ? m->stack + m->depth - count : NULL;
}

static tws_code take(machine *m, size_t count, const unsigned char **out) {
  if (count > m->count - m->at) return bad(m, NULL, "the pickle ends here");
  *out = m->bytes + m->at;
  m->at += count;
  return TWS_OK;
}

static tws_code take_number(machine *m, size_t bytes, uint64_t *out) {
  const unsigned char *from = NULL;
  TWS_TRY(take(m, bytes, &from));
  *out = 0;
  for (size_t i = bytes; i-- > 0;) *out = *out << 8 | from[i];
  return TWS_OK;
}

static tws_code copy_text(machine *m, const unsigned char *from, size_t count, const char **out) {
  char *text = count > MOST_TEXT ? NULL : tws_arena_alloc_unset(m->arena, count + 1, 1);
  if (count > MOST_TEXT) return bad(m, NULL, "a text longer than any in a file of weights");
  if (!text) return no_memory(m);
  memcpy(text, from, count);
  text[count] = '\0';
  *out = text;
  return TWS_OK;
}

/* Reserves room in a list for `more` items. The capacity of a list doubles when it is full; the arrays are in the
 * arena. */
static tws_code make_room(machine *m, tws_pickle_value *list, size_t more) {
  const size_t have = list->count, need = have + more;
  size_t room = 4;
  m->values += more;
  if (m->values > MOST_VALUES) return bad(m, NULL, "more values than any file of weights has");
  if (have > 0) {
    while (room < have) room *= 2; /* computes the present capacity, which is not stored */
    if (room >= need) return TWS_OK;
  }
  while (room < need) room *= 2;
  tws_pickle_value **items = tws_arena_alloc(m->arena, room, sizeof *items);
  if (!items) return no_memory(m);
  if (have > 0) memcpy(items, list->items, have * sizeof *items);
  list->items = items;
  return TWS_OK;
}

static tws_code append(machine *m, tws_pickle_value *list, tws_pickle_value **from, size_t count) {
  if (count == 0) return TWS_OK;
  TWS_TRY(make_room(m, list, count));
  memcpy(list->items + list->count, from, count * sizeof *from);
  list->count += (uint32_t)count;
  return TWS_OK;
}

/* Replaces the topmost `count` values by one that contains them. */
static tws_code gather(machine *m, tws_pickle_kind kind, size_t count) {
  tws_pickle_value *value, **from = top(m, count);
  if (count > 0 && !from) return bad(m, NULL, "there is too little on the stack");
  TWS_TRY(new_value(m, kind, &value));
  TWS_TRY(append(m, value, from, count));
  m->depth -= count;
  return push(m, value);
}

static tws_code pop_mark(machine *m, size_t *count) {
  if (m->mark_count == 0) return bad(m, NULL, "there is no mark");
  *count = m->depth - m->marks[--m->mark_count];
  return TWS_OK;
}

/* Pops the topmost `count` values and appends them to the list or dictionary below them on the stack. */
static tws_code add_to(machine *m, tws_pickle_kind kind, size_t count) {
  tws_pickle_value **from = top(m, count + 1);
  if (!from || from[0]->kind != kind || (kind == TWS_PICKLE_DICT && count % 2 != 0))
    return bad(m, NULL, kind == TWS_PICKLE_DICT ? "no dictionary to set items of" : "no list to append to");
  TWS_TRY(append(m, from[0], from + 1, count));
  m->depth -= count;
  return TWS_OK;
}

static tws_code read_counts(machine *m, const tws_pickle_value *from, int64_t *to, const char *what) {
  for (uint32_t i = 0; i < from->count; i++) {
    if (from->items[i]->kind != TWS_PICKLE_INTEGER || from->items[i]->integer < 0) return bad(m, NULL, what);
    to[i] = from->items[i]->integer;
  }
  return TWS_OK;
}

/* Checks that a view lies inside its storage. */
static tws_code check_view(machine *m, tws_pickle_value *tensor, const int64_t *stride) {
  uint64_t last = tensor->first, run = 1;
  int overflows = 0;
  tensor->elements = 1;
  tensor->contiguous = 1;
  for (uint32_t i = 0; i < tensor->count; i++)
    overflows |= __builtin_mul_overflow(tensor->elements, (uint64_t)tensor->shape[i], &tensor->elements);
  for (uint32_t i = tensor->count; i-- > 0 && tensor->elements > 0;) {
    const uint64_t size = (uint64_t)tensor->shape[i];
    uint64_t reach = 0;
    if (size > 1 && (uint64_t)stride[i] != run) tensor->contiguous = 0;
    overflows |= __builtin_mul_overflow(size - 1, (uint64_t)stride[i], &reach);
    overflows |= __builtin_add_overflow(last, reach, &last);
    overflows |= __builtin_mul_overflow(run, size, &run);
  }
  if (overflows || tensor->elements > INT64_MAX / 16) return bad(m, NULL, "a tensor's shape overflows");
  if (tensor->elements > 0 ? last >= (uint64_t)tensor->storage->integer : last > (uint64_t)tensor->storage->integer)
    return bad(m, NULL, "a tensor reaches beyond its storage");
  return TWS_OK;
}

/* Makes a tensor from the arguments (storage, first element, shape, strides, ...). */
static tws_code make_tensor(machine *m, const tws_pickle_value *arguments, tws_pickle_value **out) {
  int64_t stride[TWS_TORCH_DIMS] = {0};
  tws_pickle_value *const *a = arguments->items;
  if (arguments->count < 4 || a[0]->kind != TWS_PICKLE_STORAGE || a[1]->kind != TWS_PICKLE_INTEGER ||
      a[1]->integer < 0 || a[2]->kind != TWS_PICKLE_TUPLE || a[3]->kind != TWS_PICKLE_TUPLE ||
      a[2]->count != a[3]->count || a[2]->count > TWS_TORCH_DIMS)
    return bad(m, NULL, "not a tensor's storage, place, shape and strides");
  TWS_TRY(new_value(m, TWS_PICKLE_TENSOR, out));
  tws_pickle_value *tensor = *out;
  tensor->storage = a[0];
  tensor->first = (uint64_t)a[1]->integer;
  tensor->count = a[2]->count;
  tensor->shape = tws_arena_alloc(m->arena, tensor->count + (size_t)1, sizeof *tensor->shape);
  if (!tensor->shape) return no_memory(m);
  TWS_TRY(read_counts(m, a[2], tensor->shape, "not a tensor's shape"));
  TWS_TRY(read_counts(m, a[3], stride, "not a tensor's strides"));
  return check_view(m, tensor, stride);
}

/* Makes a storage from the tuple ("storage", its type, key, device, number of elements) on the stack. */
static tws_code make_storage(machine *m) {
  tws_pickle_value **from = top(m, 1), *id = from ? from[0] : NULL, *storage;
  if (!id || id->kind != TWS_PICKLE_TUPLE || id->count < 5 || id->items[0]->kind != TWS_PICKLE_TEXT ||
      strcmp(id->items[0]->text, "storage") != 0 || id->items[1]->kind != TWS_PICKLE_NAME || !id->items[1]->dtype ||
      id->items[2]->kind != TWS_PICKLE_TEXT || id->items[4]->kind != TWS_PICKLE_INTEGER || id->items[4]->integer < 0)
    return bad(m, NULL, "not a storage of numbers");
  TWS_TRY(new_value(m, TWS_PICKLE_STORAGE, &storage));
  storage->text = id->items[2]->text;
  storage->dtype = id->items[1]->dtype;
  storage->integer = id->items[4]->integer;
  if (storage->integer > INT64_MAX / 16) return bad(m, NULL, "a storage of more elements than there can be");
  if (tws_reserve(&m->out->storages, &m->storage_room, m->out->storage_count + (size_t)1, sizeof *m->out->storages))
    return no_memory(m);
  m->out->storages[m->out->storage_count++] = storage;
  from[0] = storage;
  return TWS_OK;
}

/* ---- names and their effects ---- */

static tws_code take_line(machine *m, const char **out) {
  const unsigned char *from = m->bytes + m->at, *end = memchr(from, '\n', m->count - m->at);
  if (!end || end == from || end - from > 200 || memchr(from, '\0', (size_t)(end - from)))
    return bad(m, NULL, "not a name");
  m->at += (size_t)(end - from) + 1;
  return copy_text(m, from, (size_t)(end - from), out);
}

static tws_code push_name(machine *m) {
  const char *module, *name;
  char whole[420];
  tws_pickle_value *value;
  TWS_TRY(take_line(m, &module));
  TWS_TRY(take_line(m, &name));
  if (strcmp(module, "builtins") == 0) module = "__builtin__";
  snprintf(whole, sizeof whole, "%s.%s", module, name);
  for (size_t i = 0; i < sizeof names / sizeof *names; i++)
    if (strcmp(whole, names[i].name) == 0) {
      TWS_TRY(new_value(m, TWS_PICKLE_NAME, &value));
      value->text = names[i].name;
      value->dtype = names[i].dtype;
      value->integer = names[i].use;
      return push(m, value);
    }
  for (char *at = whole; *at; at++)
    if (*at < ' ' || *at > '~') *at = '?';
  return tws_fail(m->err, TWS_INVALID,
                  "it is none that a file of weights needs, and could be code: save the tensors alone",
                  "%s: opcode 0x%02x at byte %zu: it names %s", m->name, m->opcode, m->opcode_at, whole);
}

static int is_list(const tws_pickle_value *value) {
  return value && (value->kind == TWS_PICKLE_LIST || value->kind == TWS_PICKLE_TUPLE);
}

/* Makes a dictionary, which is empty (pairs NULL) or has the given pairs; old versions of Python pickled an OrderedDict
 * in this form. */
static tws_code make_dict(machine *m, const tws_pickle_value *pairs, tws_pickle_value **out) {
  TWS_TRY(new_value(m, TWS_PICKLE_DICT, out));
  for (uint32_t i = 0; is_list(pairs) && i < pairs->count; i++) {
    if (!is_list(pairs->items[i]) || pairs->items[i]->count != 2) return bad(m, NULL, "not pairs of a dictionary");
    TWS_TRY(append(m, *out, pairs->items[i]->items, 2));
  }
  return TWS_OK;
}

static tws_code call(machine *m, const tws_pickle_value *name, const tws_pickle_value *arguments,
                     tws_pickle_value **out) {
  tws_pickle_value *first = arguments->count > 0 ? arguments->items[0] : NULL;
  switch ((name_use)name->integer) {
    case TENSOR:
      return make_tensor(m, arguments, out);
    case DICT:
      return make_dict(m, first, out);
    case LISTED:
      if (first && !is_list(first)) return bad(m, NULL, "not a set's members");
      TWS_TRY(new_value(m, TWS_PICKLE_LIST, out));
      return first ? append(m, *out, first->items, first->count) : TWS_OK;
    case ITSELF:
      *out = first;
      return is_list(first) ? TWS_OK : bad(m, NULL, "not a shape");
    case WRAPPED:
      *out = first;
      return first ? TWS_OK : bad(m, NULL, "not what it is made of");
    case REBUILT:
      if (arguments->count < 3 || first->kind != TWS_PICKLE_NAME || first->integer == REBUILT ||
          arguments->items[2]->kind != TWS_PICKLE_TUPLE)
        return bad(m, NULL, "not a tensor and its class");
      return call(m, first, arguments->items[2], out);
    case STORAGE:
      return bad(m, NULL, "a storage that is made by a call");
    case KEPT:
      break;
  }
  TWS_TRY(new_value(m, TWS_PICKLE_OBJECT, out));
  (*out)->text = name->text;
  return append(m, *out, arguments->items, arguments->count);
}

/* Implements the opcode REDUCE: replaces a name and its arguments on the stack by the result of calling the name
 * (name_use). */
static tws_code reduce(machine *m) {
  tws_pickle_value **from = top(m, 2), *made = NULL;
  if (!from || from[0]->kind != TWS_PICKLE_NAME || from[1]->kind != TWS_PICKLE_TUPLE)
    return bad(m, NULL, "not a name and its arguments");
  TWS_TRY(call(m, from[0], from[1], &made));
  from[0] = made;
  m->depth--;
  return TWS_OK;
}

/* Implements the opcode BUILD, which sets the state of an object: removes the state from the stack and ignores it. */
static tws_code build(machine *m) {
  tws_pickle_value **from = top(m, 2);
  if (!from ||
      (from[0]->kind != TWS_PICKLE_OBJECT && from[0]->kind != TWS_PICKLE_DICT && from[0]->kind != TWS_PICKLE_TENSOR))
    return bad(m, NULL, "no object that it would be the state of");
  m->depth--;
  return TWS_OK;
}

/* ---- numbers and texts ---- */

static tws_code push_integer(machine *m, size_t bytes, int is_signed) {
  uint64_t value;
  TWS_TRY(take_number(m, bytes, &value));
  return push_new(m, TWS_PICKLE_INTEGER, is_signed ? (int64_t)(int32_t)(uint32_t)value : (int64_t)value);
}

static tws_code push_long(machine *m) {
  uint64_t bytes, value;
  TWS_TRY(take_number(m, 1, &bytes));
  if (bytes > 8) return bad(m, NULL, "an integer of more than 64 bits");
  TWS_TRY(take_number(m, (size_t)bytes, &value));
  if (bytes > 0 && bytes < 8 && (value >> (8 * bytes - 1) & 1)) value |= ~UINT64_C(0) << 8 * bytes;
  return push_new(m, TWS_PICKLE_INTEGER, (int64_t)value);
}

static tws_code push_number(machine *m) {
  const unsigned char *from = NULL;
  uint64_t bits = 0;
  tws_pickle_value *value;
  TWS_TRY(take(m, 8, &from));
  for (int i = 0; i < 8; i++) bits = bits << 8 | from[i];
  TWS_TRY(new_value(m, TWS_PICKLE_NUMBER, &value));
  memcpy(&value->number, &bits, sizeof bits);
  return push(m, value);
}

static tws_code push_text(machine *m) {
  const unsigned char *from = NULL;
  uint64_t bytes;
  tws_pickle_value *value;
  TWS_TRY(take_number(m, 4, &bytes));
  TWS_TRY(take(m, (size_t)bytes, &from));
  if (memchr(from, '\0', (size_t)bytes))
    bytes = (uint64_t)((const unsigned char *)memchr(from, '\0', (size_t)bytes) - from);
  TWS_TRY(new_value(m, TWS_PICKLE_TEXT, &value));
  TWS_TRY(copy_text(m, from, (size_t)bytes, &value->text));
  return push(m, value);
}

/* ---- the memo, whose entries are numbered in the order in which values were stored ---- */

static tws_code memo_put(machine *m, size_t bytes) {
  uint64_t number;
  tws_pickle_value **from = top(m, 1);
  TWS_TRY(take_number(m, bytes, &number));
  if (!from || number > m->memo_count) return bad(m, NULL, "a note of something that is not there");
  if (tws_reserve(&m->memo, &m->memo_room, (size_t)number + 1, sizeof *m->memo)) return no_memory(m);
  if (number == m->memo_count) m->memo_count++;
  m->memo[number] = from[0];
  return TWS_OK;
}

static tws_code memo_get(machine *m, size_t bytes) {
  uint64_t number;
  TWS_TRY(take_number(m, bytes, &number));
  return number < m->memo_count ? push(m, m->memo[number]) : bad(m, NULL, "a memo entry that does not exist");
}

/* ---- opcodes ---- */

static tws_code mark(machine *m) {
  if (tws_reserve(&m->marks, &m->mark_room, m->mark_count + 1, sizeof *m->marks)) return no_memory(m);
  m->marks[m->mark_count++] = m->depth;
  return TWS_OK;
}

static tws_code pop(machine *m) {
  if (!top(m, 1)) return bad(m, NULL, "there is nothing on the stack");
  m->depth--;
  return TWS_OK;
}

static tws_code check_protocol(machine *m) {
  uint64_t protocol;
  TWS_TRY(take_number(m, 1, &protocol));
  if (protocol == 2) return TWS_OK;
  return tws_fail(m->err, TWS_UNSUPPORTED, "torch.save writes protocol 2 by default",
                  "%s: opcode 0x80 at byte %zu: pickle protocol %d", m->name, m->opcode_at, (int)protocol);
}

static tws_code step_many(machine *m) {
  size_t count = 0;
  TWS_TRY(pop_mark(m, &count));
  switch (m->opcode) {
    case 't':
      return gather(m, TWS_PICKLE_TUPLE, count);
    case 'e':
      return add_to(m, TWS_PICKLE_LIST, count);
    case 'u':
      return add_to(m, TWS_PICKLE_DICT, count);
    default: /* '1' */
      m->depth -= count;
      return TWS_OK;
  }
}

static tws_code step(machine *m) {
  switch (m->opcode) {
    case 0x80:
      return check_protocol(m);
    case '(':
      return mark(m);
    case 't':
    case 'e':
    case 'u':
    case '1':
      return step_many(m);
    case '0':
      return pop(m);
    case ')':
    case 0x85:
    case 0x86:
    case 0x87:
      return gather(m, TWS_PICKLE_TUPLE, m->opcode == ')' ? 0 : m->opcode - (size_t)0x84);
    case ']':
      return gather(m, TWS_PICKLE_LIST, 0);
    case '}':
      return gather(m, TWS_PICKLE_DICT, 0);
    case 'a':
      return add_to(m, TWS_PICKLE_LIST, 1);
    case 's':
      return add_to(m, TWS_PICKLE_DICT, 2);
    case 'N':
      return push_new(m, TWS_PICKLE_NONE, 0);
    case 0x88:
    case 0x89:
      return push_new(m, TWS_PICKLE_BOOL, m->opcode == 0x88);
    case 'K':
      return push_integer(m, 1, 0);
    case 'M':
      return push_integer(m, 2, 0);
    case 'J':
      return push_integer(m, 4, 1);
    case 0x8a:
      return push_long(m);
    case 'G':
      return push_number(m);
    case 'X':
      return push_text(m);
    case 'q':
      return memo_put(m, 1);
    case 'r':
      return memo_put(m, 4);
    case 'h':
      return memo_get(m, 1);
    case 'j':
      return memo_get(m, 4);
    case 'c':
      return push_name(m);
    case 'R':
    case 0x81:
      return reduce(m);
    case 'b':
      return build(m);
    case 'Q':
      return make_storage(m);
    default:
      return bad(m, NULL, "an opcode that files of weights do not have");
  }
}

static tws_code run(machine *m) {
  for (;;) {
    const unsigned char *opcode = NULL;
    m->opcode_at = m->at;
    TWS_TRY(take(m, 1, &opcode));
    m->opcode = *opcode;
    if (m->opcode == '.') break;
    TWS_TRY(step(m));
  }
  if (m->depth != 1 || m->mark_count != 0) return bad(m, NULL, "it ends with other than one value");
  m->out->root = m->stack[0];
  return TWS_OK;
}

tws_code tws_pickle_parse(const unsigned char *bytes, size_t count, const char *name, tws_arena *arena, tws_pickle *out,
                          tws_error *err) {
  machine m = {.bytes = bytes, .count = count, .name = name, .arena = arena, .out = out, .err = err};
  *out = (tws_pickle){.root = NULL};
  tws_code code = count <= TWS_PICKLE_LIMIT ? run(&m)
                                            : tws_fail(err, TWS_UNSUPPORTED, NULL, "%s: a pickle of more than %d MiB",
                                                       name, TWS_PICKLE_LIMIT >> 20);
  tws_pickle_value **storages = out->storages;
  if (code == TWS_OK) {
    out->storages = tws_arena_alloc(arena, out->storage_count + (size_t)1, sizeof *storages);
    if (!out->storages) code = no_memory(&m);
    if (out->storages && out->storage_count > 0) memcpy(out->storages, storages, out->storage_count * sizeof *storages);
  }
  tws_free(storages);
  tws_free(m.stack);
  tws_free(m.memo);
  tws_free(m.marks);
  return code;
}

const tws_pickle_value *tws_pickle_get(const tws_pickle_value *dict, const char *key) {
  if (!dict || dict->kind != TWS_PICKLE_DICT) return NULL;
  for (uint32_t i = dict->count; i >= 2; i -= 2) {
    const tws_pickle_value *have = dict->items[i - 2];
    if (have->kind == TWS_PICKLE_TEXT && strcmp(have->text, key) == 0) return dict->items[i - 1];
  }
  return NULL;
}

int tws_pickle_integer(const tws_pickle_value *value, int64_t *out) {
  if (!value || value->kind != TWS_PICKLE_INTEGER) return 0;
  *out = value->integer;
  return 1;
}
