/* Merges adapters into the base weights with which they were trained, and writes one safetensors file, in float32, with
 * the names and shapes of the base. */
#ifndef TWS_CHECKPOINT_MERGE_H
#define TWS_CHECKPOINT_MERGE_H

#include "checkpoint/export.h"

/* Merges adapters into a base. base: the path of a file, index or folder, as tws_safetensors_open() accepts it.
 * adapter: a folder with PEFT's adapter_config.json and adapter_model.safetensors, or the latter file with the former
 * in the same folder. Computes W + (lora_alpha / r) B A, or W + (lora_alpha / sqrt(r)) B A with use_rslora; with
 * fan_in_fan_out W is [in, out]. One tensor at a time is in memory. Fails with TWS_INVALID if the base lacks the weight
 * of an adapter or shapes do not match, and with TWS_UNSUPPORTED for adapters of another kind. */
tws_code tws_adapter_merge(const char *base, const char *adapter, const char *path, tws_export_result *result,
                           tws_error *err);
/* The name of a file next to an adapter whose base was quantized. It has "weights" (the weights' names in the base's
 * files), "bits" and "block_size". If it exists, merging first rounds these weights to the quantized values that the
 * adapter was trained with. */
#define TWS_ROUNDING_FILE "frozen_quantization.json"
/* Appends the text of TWS_ROUNDING_FILE for a checkpoint with quantized frozen parameters. */
void tws_adapter_rounding(const tws_saved_index *index, tws_text *out);
/* Appends the text of adapter_config.json for a checkpoint with adapters. */
void tws_adapter_config(const tws_saved_index *index, tws_text *out);

#endif
