/* Reads a pickle of torch.save (protocol 2) without executing anything: lists, dictionaries, numbers, texts, tensors,
 * and the storages of which tensors are views. Classes and functions must be names of a fixed list. Some of these are
 * evaluated (OrderedDict, torch.Size, _rebuild_tensor_v2, ...), the others are only recorded with their arguments.
 * Every other name, and every opcode that such files do not have, is an error with its position. Opcodes:
 * https://github.com/python/cpython/blob/main/Lib/pickletools.py. */
#ifndef TWS_MODELS_NETWORK_PICKLE_H
#define TWS_MODELS_NETWORK_PICKLE_H

#include <stddef.h>
#include <stdint.h>
#include "base/memory.h"
#include "base/status.h"

enum { TWS_TORCH_DIMS = 8, TWS_PICKLE_LIMIT = 64 << 20 /* bytes */ };

typedef enum tws_pickle_kind {
  TWS_PICKLE_NONE,
  TWS_PICKLE_BOOL,
  TWS_PICKLE_INTEGER,
  TWS_PICKLE_NUMBER,
  TWS_PICKLE_TEXT,
  TWS_PICKLE_TUPLE,
  TWS_PICKLE_LIST,   /* sets are lists too */
  TWS_PICKLE_DICT,   /* items: key, value, key, value ... */
  TWS_PICKLE_NAME,   /* a class or function: text is its name, such as "torch.float32" */
  TWS_PICKLE_OBJECT, /* an object of the class `text`: items are its arguments */
  TWS_PICKLE_STORAGE,
  TWS_PICKLE_TENSOR
} tws_pickle_kind;

/* A value of a pickle. Values may contain each other, and themselves, so code that traverses values must limit the
 * depth. */
typedef struct tws_pickle_value tws_pickle_value;
struct tws_pickle_value {
  tws_pickle_kind kind;
  uint32_t count;   /* number of items, or of a tensor's dimensions */
  const char *text; /* zero-terminated text of a string, without zero bytes inside; STORAGE: its key */
  union {
    int64_t integer; /* value of an INTEGER or BOOL (0 or 1); number of elements of a storage */
    double number;
    struct { /* a tensor: consecutive elements of its storage, in row-major order */
      uint64_t first, elements;
      uint8_t contiguous; /* 0: the elements are not consecutive */
    };
  };
  union {
    tws_pickle_value **items;
    int64_t *shape;    /* [count] dimensions of a tensor */
    const char *dtype; /* element type of a storage, as safetensors files name it: "BF16" */
  };
  tws_pickle_value *storage; /* the storage of a tensor */
};

typedef struct tws_pickle {
  tws_pickle_value *root;
  tws_pickle_value **storages; /* all storages of the file, in the arena */
  uint32_t storage_count;
} tws_pickle;

/* Parses a pickle into *out, whose values are in the arena, and checks that tensors lie inside their storages. Fails
 * with TWS_INVALID, naming offset and opcode, if the pickle is damaged or has a name or opcode that is not accepted,
 * and with TWS_UNSUPPORTED for another protocol. */
tws_code tws_pickle_parse(const unsigned char *bytes, size_t count, const char *name, tws_arena *arena, tws_pickle *out,
                          tws_error *err);
/* Returns the last value of a key in a dictionary, which may have a key several times; NULL: there is none, or `dict`
 * is no dictionary. */
const tws_pickle_value *tws_pickle_get(const tws_pickle_value *dict, const char *key);
/* Returns 1 and sets *out if the value is an INTEGER, else 0; NULL is allowed. */
int tws_pickle_integer(const tws_pickle_value *value, int64_t *out);
#endif
