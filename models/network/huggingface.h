/* Which tensors of a Hugging Face model a network's parameters are made of.
 *
 * A parameter has the name of its tensor, except where several are one here: query, key and value, or gate and up,
 * whose rows lie one below the other (tws_param.fused), expert by expert where it has experts. GPT-2's linear layers
 * are kept [in, out] there (Conv1D) and [out, in] here. Rows that padding adds to the vocabulary are in no file. */
#ifndef TWS_MODELS_NETWORK_HUGGINGFACE_H
#define TWS_MODELS_NETWORK_HUGGINGFACE_H

#include "models/network/network.h"

typedef struct tws_hf_tensor {
  const char *name; /* "model.layers.0.self_attn.k_proj.weight" */
  uint32_t param;
  int64_t first_row, rows, columns; /* of the parameter; a vector's elements are its rows, in one column */
  int transposed;                   /* the file has [columns, rows] */
  int dims;                         /* in the file: of a vector 1 */
  int64_t shape[4];                 /* in the file, where it has others than these two; or 0 */
  int64_t groups, fused[3];         /* tws_param's, where the file has the rows in more than one group */
} tws_hf_tensor;

typedef struct tws_hf_request {
  const char *architecture; /* "gpt2", "llama" */
  const tws_param *params;
  uint32_t param_count;
  int64_t vocabulary, padded_vocabulary;
} tws_hf_request;

/* Its dimensions in files; returns how many. */
int tws_hf_shape(const tws_hf_tensor *tensor, int64_t shape[4]);
/* Which row of the file's tensor the row is. */
int64_t tws_hf_row(const tws_hf_tensor *tensor, int64_t row);
/* *tensors is in the arena, by parameter and row. TWS_UNSUPPORTED: parts whose names are not known. */
tws_code tws_hf_tensors(const tws_hf_request *request, tws_arena *arena, tws_hf_tensor **tensors, uint32_t *count,
                        tws_error *err);

#endif
