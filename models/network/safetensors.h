/* Tensors of safetensors files: their headers, without the data. Files of torch.save are read as if they were such.
 * Format: https://github.com/huggingface/safetensors#format. */
#ifndef TWS_MODELS_NETWORK_SAFETENSORS_H
#define TWS_MODELS_NETWORK_SAFETENSORS_H

#include "models/network/network.h"

enum { TWS_SAFETENSOR_DIMS = 4 };
typedef struct tws_safetensor {
  const char *name, *dtype; /* "BF16" */
  int64_t shape[TWS_SAFETENSOR_DIMS];
  int dims; /* may be more than there is room for in shape */
  uint32_t file;
  int64_t elements, begin, end; /* bytes of the file */
} tws_safetensor;

typedef struct tws_safetensors {
  tws_arena *arena;
  const char **files;      /* paths */
  tws_safetensor *tensors; /* by name; names are unique */
  uint32_t file_count, count;
  size_t capacity;
} tws_safetensors;

/* As tws_safetensors_count(), of which this has the checks: one file, an index or a folder. The file, or those that the
 * index names, may be torch.save's (pytorch_model.bin): the tensors of a dictionary, or of its "module" or
 * "state_dict". */
tws_code tws_safetensors_open(const char *path, tws_safetensors **out, tws_error *err);
/* Only what one file's first bytes say; `size` is what the whole file has. `name` is for messages. */
tws_code tws_safetensors_parse(const char *name, const void *bytes, size_t count, int64_t size, tws_safetensors **out,
                               tws_error *err);
void tws_safetensors_close(tws_safetensors *list);                                         /* NULL is allowed */
const tws_safetensor *tws_safetensors_find(const tws_safetensors *list, const char *name); /* NULL: none */
/* The type that a name in a header stands for; -1: none of ours. And back: "BF16". */
int tws_safetensors_dtype(const char *dtype);
const char *tws_safetensors_dtype_name(tws_dtype dtype);
int tws_safetensors_bytes(const char *dtype); /* of an element; 0: no such type */

/* Writing a file's first bytes: begin, then its tensors in the order of their data, then end, after which `header` has
 * the length, the JSON text and blanks up to a multiple of eight. `format` is metadata that readers ask for ("pt"). */
typedef struct tws_safetensors_header {
  tws_text text;
  uint64_t data; /* bytes of the tensors so far */
} tws_safetensors_header;
void tws_safetensors_begin(tws_safetensors_header *header, const char *format);
void tws_safetensors_add(tws_safetensors_header *header, const char *name, const char *dtype, const int64_t *shape,
                         int dims);
void tws_safetensors_end(tws_safetensors_header *header);

#endif
