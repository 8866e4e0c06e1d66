/* Weights whose data are ranges of elements in existing files, and functions that write weights into one safetensors
 * file. */
#ifndef TWS_CHECKPOINT_WEIGHTS_H
#define TWS_CHECKPOINT_WEIGHTS_H

#include <stdint.h>
#include "base/memory.h"
#include "checkpoint/output.h"

enum { TWS_WEIGHT_DIMS = 8 };
typedef struct tws_weight {
  const char *name, *dtype; /* dtype: as the written file names it ("F32") */
  int64_t shape[TWS_WEIGHT_DIMS];
  int dims;
} tws_weight;

typedef struct tws_export_result {
  int64_t tensors, parameters;
  uint64_t bytes; /* size of the tensor in the written file */
} tws_export_result;

typedef struct tws_weights_request {
  const tws_weight *weights; /* with unique names; those with larger elements come first, for alignment */
  uint32_t count;
  /* appends all elements of the weight to the output, in order */
  tws_code (*write)(void *user, uint32_t weight, tws_output *to, tws_error *err);
  void *user;
} tws_weights_request;

/* Writes the weights to the file `path`, through a temporary file in the same folder. Afterwards every tensor is looked
 * up in the file, and its shape is checked. result->parameters is the number of elements of all weights. */
tws_code tws_weights_write(const tws_weights_request *request, const char *path, tws_export_result *result,
                           tws_error *err);

/* ---- weights that consist of ranges of elements in other files ---- */

typedef struct tws_weight_run {
  const char *path, *dtype; /* dtype: name of the type in safetensors files ("BF16") */
  uint64_t at, elements;    /* at: offset of the range in the file, bytes; elements: number of elements */
} tws_weight_run;

typedef struct tws_gathered {
  tws_weight weight;
  tws_weight_run *runs; /* the ranges, whose concatenation is the weight */
  uint32_t run_count;
} tws_gathered;

typedef struct tws_gathering { /* a list of weights to write; all except `gathered` is in the arena */
  tws_arena *arena;
  tws_gathered *gathered; /* freed with tws_free() */
  uint32_t count;
  size_t room;
} tws_gathering;

/* Adds a weight that consists of the given ranges; the array is copied. Floating-point weights are written as float32,
 * and others in their own type. */
tws_code tws_gathering_add(tws_gathering *g, const char *name, const int64_t *shape, uint32_t dims,
                           const tws_weight_run *runs, uint32_t count, tws_error *err);
/* Writes the weights as tws_weights_write() does, in memory that does not depend on their sizes. Fails with TWS_INVALID
 * if two weights have the same name. */
tws_code tws_gathering_write(tws_gathering *g, const char *path, tws_export_result *result, tws_error *err);

/* Converts the weights of a Hugging Face model, in safetensors or torch.save format, to one safetensors file. `from` is
 * a file, an index or a folder. CRC-32 checksums in files of torch.save are verified. */
tws_code tws_weights_convert(const char *from, const char *path, tws_export_result *result, tws_error *err);
/* Returns 1 if the path is a file, or a folder that contains a weight file with a name that Transformers uses. */
int tws_weights_is(const char *path);

#endif
