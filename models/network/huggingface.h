/* Maps a network's parameters to the tensors of a Hugging Face model. A parameter has the name of its tensor.
 * Exceptions are parameters that join several tensors: query, key and value, or gate and up, whose rows follow each
 * other (tws_param.fused), and experts, which follow each other. GPT-2's linear layers are stored as [in, out] in files
 * (Conv1D) and as [out, in] here. Files do not contain the rows that padding adds to the vocabulary. */
#ifndef TWS_MODELS_NETWORK_HUGGINGFACE_H
#define TWS_MODELS_NETWORK_HUGGINGFACE_H

#include "models/network/network.h"

typedef struct tws_hf_tensor {
  const char *name; /* "model.layers.0.self_attn.k_proj.weight" */
  uint32_t param;
  int64_t first_row, rows, columns; /* the part of the parameter; elements of a vector are rows of one column */
  int transposed;                   /* 1: the file has [columns, rows] */
  int dims;                         /* number of dimensions in the file; 1 for a vector */
  int64_t shape[4];                 /* dimensions in the file if they are not rows and columns; else 0 */
  int64_t groups, fused[3];         /* as in tws_param, if the file has the rows in several groups */
} tws_hf_tensor;

typedef struct tws_hf_request {
  const char *architecture; /* such as "gpt2", "llama" */
  const tws_param *params;
  uint32_t param_count;
  int64_t vocabulary, padded_vocabulary;
} tws_hf_request;

/* Writes the tensor's dimensions in files into `shape`; returns their number. */
int tws_hf_shape(const tws_hf_tensor *tensor, int64_t shape[4]);
/* Returns the row of the file's tensor that corresponds to this row of the parameter. */
int64_t tws_hf_row(const tws_hf_tensor *tensor, int64_t row);
/* Lists the tensors of all parameters in *tensors (in the arena), sorted by parameter and row. Fails with
 * TWS_UNSUPPORTED if the names of a joined parameter's tensors are not known. */
tws_code tws_hf_tensors(const tws_hf_request *request, tws_arena *arena, tws_hf_tensor **tensors, uint32_t *count,
                        tws_error *err);

#endif
