/* Lists the tensors of safetensors files from their headers, without reading the data. Files of torch.save are listed
 * in the same form. Format: https://github.com/huggingface/safetensors#format. */
#ifndef TWS_MODELS_NETWORK_SAFETENSORS_H
#define TWS_MODELS_NETWORK_SAFETENSORS_H

#include "models/network/network.h"

enum { TWS_SAFETENSOR_DIMS = 4 };
typedef struct tws_safetensor {
  const char *name, *dtype; /* dtype: such as "BF16" */
  int64_t shape[TWS_SAFETENSOR_DIMS];
  int dims; /* number of dimensions, which may exceed the size of `shape` */
  uint32_t file;
  int64_t elements, begin, end; /* begin, end: offsets in the file */
} tws_safetensor;

typedef struct tws_safetensors {
  tws_arena *arena;
  const char **files;      /* paths of the files */
  tws_safetensor *tensors; /* sorted by name; names are unique */
  uint32_t file_count, count;
  size_t capacity;
} tws_safetensors;

/* Opens a file, an index or a folder, with the checks of tws_safetensors_count(). The file, or those that an index
 * names, may be files of torch.save (pytorch_model.bin), whose tensors are in a dictionary or in its member "module" or
 * "state_dict". */
tws_code tws_safetensors_open(const char *path, tws_safetensors **out, tws_error *err);
/* Parses the header in the first `count` bytes of a file of `size` bytes. `name` is used in messages. */
tws_code tws_safetensors_parse(const char *name, const void *bytes, size_t count, int64_t size, tws_safetensors **out,
                               tws_error *err);
void tws_safetensors_close(tws_safetensors *list);                                         /* NULL is allowed */
const tws_safetensor *tws_safetensors_find(const tws_safetensors *list, const char *name); /* or NULL */
/* tws_safetensors_dtype() returns the tws_dtype of a type name in a header such as "BF16", or -1 if there is none;
 * tws_safetensors_dtype_name() returns the name of a tws_dtype. */
int tws_safetensors_dtype(const char *dtype);
const char *tws_safetensors_dtype_name(tws_dtype dtype);
int tws_safetensors_bytes(const char *dtype); /* returns the bytes of an element; 0: unknown type */

/* Builds a file's first bytes: call tws_safetensors_begin(), add the tensors in the order of their data, then call
 * tws_safetensors_end(). The header then consists of its length, the JSON text and spaces up to a multiple of eight
 * bytes. `format` is metadata that readers expect ("pt"). */
typedef struct tws_safetensors_header {
  tws_text text;
  uint64_t data; /* bytes of the tensors added until now */
} tws_safetensors_header;
void tws_safetensors_begin(tws_safetensors_header *header, const char *format);
void tws_safetensors_add(tws_safetensors_header *header, const char *name, const char *dtype, const int64_t *shape,
                         int dims);
void tws_safetensors_end(tws_safetensors_header *header);

#endif
