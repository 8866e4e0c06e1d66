/* A checkpoint's weights as one safetensors file with Hugging Face's names and shapes, in float32. */
#ifndef TWS_CHECKPOINT_EXPORT_H
#define TWS_CHECKPOINT_EXPORT_H

#include "checkpoint/index.h"
#include "checkpoint/weights.h"
#include "models/network/huggingface.h"

/* Writes the weights to the file `path`, through a temporary file in the same folder. Tensors are read one after
 * another in blocks, except tensors that are stored transposed, which are read whole: the largest of these determines
 * the memory needed. Afterwards every tensor is looked up in the file, and its shape is checked. Fails with
 * TWS_UNSUPPORTED if each rank has its own copy of some parameters. */
tws_code tws_saved_export(const tws_saved_index *index, const char *path, tws_export_result *result, tws_error *err);
/* Returns the index of the saved state entry that has the parameters in the type with most bits; TWS_NONE if no entry
 * has parameters. */
uint32_t tws_saved_weights(const tws_saved_index *index);
/* Lists the names of the checkpoint's parameters in Hugging Face's files, as tws_hf_tensors() does. */
tws_code tws_saved_names(const tws_saved_index *index, tws_arena *arena, tws_hf_tensor **tensors, uint32_t *count,
                         tws_error *err);

#endif
