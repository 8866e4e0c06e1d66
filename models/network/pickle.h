/* Reads a pickle of torch.save (protocol 2) without executing anything: lists, dictionaries, numbers, texts, tensors
 * and the storages that they are views of. Classes and functions are names of a fixed list, of which some are
 * understood (OrderedDict, torch.Size, _rebuild_tensor_v2 ...) and the others kept as names with their arguments; every
 * other name, and every opcode that such files do not have, is an error with its place. Opcodes:
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
  TWS_PICKLE_LIST,   /* sets too */
  TWS_PICKLE_DICT,   /* items: key, value, key, value ... */
  TWS_PICKLE_NAME,   /* of a class or function: text is "torch.float32" */
  TWS_PICKLE_OBJECT, /* of the class `text`: items are its arguments */
  TWS_PICKLE_STORAGE,
  TWS_PICKLE_TENSOR
} tws_pickle_kind;

/* Values may hold each other, and themselves: who walks through them goes to known depths only. */
typedef struct tws_pickle_value tws_pickle_value;
struct tws_pickle_value {
  tws_pickle_kind kind;
  uint32_t count;   /* of items; of a tensor's dimensions */
  const char *text; /* without a NUL inside; of a storage: its key */
  union {
    int64_t integer; /* and 0 or 1 of a BOOL; elements of a storage */
    double number;
    struct { /* of a tensor: a run of its storage's elements, row by row */
      uint64_t first, elements;
      uint8_t contiguous; /* 0: not such a run */
    };
  };
  union {
    tws_pickle_value **items;
    int64_t *shape;    /* of a tensor */
    const char *dtype; /* of a storage: "BF16", as safetensors files call it */
  };
  tws_pickle_value *storage; /* of a tensor */
};

typedef struct tws_pickle {
  tws_pickle_value *root;
  tws_pickle_value **storages; /* each that is named, in the arena */
  uint32_t storage_count;
} tws_pickle;

/* TWS_INVALID: damaged, or a name or opcode that is not taken, with `name`, offset and opcode; TWS_UNSUPPORTED:
 * another protocol. Tensors lie inside their storages. *out is in the arena. */
tws_code tws_pickle_parse(const unsigned char *bytes, size_t count, const char *name, tws_arena *arena, tws_pickle *out,
                          tws_error *err);
/* The value of a dictionary's key that was set last; NULL: none, or no dictionary. */
const tws_pickle_value *tws_pickle_get(const tws_pickle_value *dict, const char *key);
/* 1 and *out of an INTEGER; NULL is allowed. */
int tws_pickle_integer(const tws_pickle_value *value, int64_t *out);
#endif
