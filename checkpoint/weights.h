/* Weights that lie in files as runs of elements, and one safetensors file made of them. */
#ifndef TWS_CHECKPOINT_WEIGHTS_H
#define TWS_CHECKPOINT_WEIGHTS_H

#include <stdint.h>
#include "base/memory.h"
#include "checkpoint/output.h"

enum { TWS_WEIGHT_DIMS = 8 };
typedef struct tws_weight {
  const char *name, *dtype; /* of the file that is written: "F32" */
  int64_t shape[TWS_WEIGHT_DIMS];
  int dims;
} tws_weight;

typedef struct tws_export_result {
  int64_t tensors, parameters;
  uint64_t bytes; /* of the file */
} tws_export_result;

typedef struct tws_weights_request {
  const tws_weight *weights; /* names are unique; those of larger elements first, which readers want aligned */
  uint32_t count;
  tws_code (*write)(void *user, uint32_t weight, tws_output *to, tws_error *err); /* all of its elements, in order */
  void *user;
} tws_weights_request;

/* Writes PATH anew, through a temporary file in the same folder. Every tensor is then looked up in the file, with its
 * shape. Parameters of the result are elements of all weights. */
tws_code tws_weights_write(const tws_weights_request *request, const char *path, tws_export_result *result,
                           tws_error *err);

/* ---- weights made of runs of elements of other files ---- */

typedef struct tws_weight_run {
  const char *path, *dtype; /* as safetensors files call it: "BF16" */
  uint64_t at, elements;    /* byte of the file */
} tws_weight_run;

typedef struct tws_gathered {
  tws_weight weight;
  tws_weight_run *runs; /* one after another they are all of its elements */
  uint32_t run_count;
} tws_gathered;

typedef struct tws_gathering { /* all in the arena but `gathered` */
  tws_arena *arena;
  tws_gathered *gathered; /* tws_free() */
  uint32_t count;
  size_t room;
} tws_gathering;

/* One more, of a copy of these runs; it becomes float32 where they are floating point and keeps their type where not.
 */
tws_code tws_gathering_add(tws_gathering *g, const char *name, const int64_t *shape, uint32_t dims,
                           const tws_weight_run *runs, uint32_t count, tws_error *err);
/* Writes them as tws_weights_write() does, in memory that does not depend on their sizes. TWS_INVALID: a name is there
 * twice. */
tws_code tws_gathering_write(tws_gathering *g, const char *path, tws_export_result *result, tws_error *err);

/* Hugging Face's files, safetensors or torch.save's: one, an index, or a folder. Checksums of torch.save's are
 * compared.
 */
tws_code tws_weights_convert(const char *from, const char *path, tws_export_result *result, tws_error *err);
/* Returns 1 for a file, and for a folder with a file of weights by one of the names that Transformers gives it. */
int tws_weights_is(const char *path);

#endif
