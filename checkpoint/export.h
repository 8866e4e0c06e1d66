/* A checkpoint's weights as one safetensors file with Hugging Face's names and shapes, in float32. */
#ifndef TWS_CHECKPOINT_EXPORT_H
#define TWS_CHECKPOINT_EXPORT_H

#include "checkpoint/index.h"
#include "checkpoint/weights.h"
#include "models/network/huggingface.h"

/* Writes PATH anew, through a temporary file in the same folder. Tensors are read one after another in blocks, and
 * whole only where they are stored transposed: the largest of those bounds the memory. Every tensor is then looked up
 * in the file, with its shape. TWS_UNSUPPORTED: parameters of which each rank has its own. */
tws_code tws_saved_export(const tws_saved_index *index, const char *path, tws_export_result *result, tws_error *err);
/* The saved entry that has the parameters in the widest type; TWS_NONE: none does. */
uint32_t tws_saved_weights(const tws_saved_index *index);
/* Lists the names of the checkpoint's parameters in Hugging Face's files, as tws_hf_tensors() does. */
tws_code tws_saved_names(const tws_saved_index *index, tws_arena *arena, tws_hf_tensor **tensors, uint32_t *count,
                         tws_error *err);

#endif
