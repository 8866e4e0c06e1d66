/* Adapters added to the weights that they were trained beside: one safetensors file, in float32, with the names and
 * shapes of the base. */
#ifndef TWS_CHECKPOINT_MERGE_H
#define TWS_CHECKPOINT_MERGE_H

#include "checkpoint/export.h"

/* base: as tws_safetensors_open(). adapter: a folder with PEFT's adapter_config.json and adapter_model.safetensors, or
 * the latter alone with the former beside it. W + (lora_alpha / r) B A, with use_rslora lora_alpha / sqrt(r); where
 * fan_in_fan_out says so W is [in, out]. One tensor at a time is in memory. TWS_INVALID: an adapter without its weight
 * in the base, shapes that do not go together; TWS_UNSUPPORTED: adapters of another kind. */
tws_code tws_adapter_merge(const char *base, const char *adapter, const char *path, tws_export_result *result,
                           tws_error *err);
/* Beside an adapter whose base was in few bits: "weights" (names of the base's files), "bits", "block_size". Where it
 * is there, merging rounds these weights first, to what they were beside the adapter. */
#define TWS_ROUNDING_FILE "frozen_quantization.json"
/* Its text, for a checkpoint with such parameters. */
void tws_adapter_rounding(const tws_saved_index *index, tws_text *out);
/* The text of adapter_config.json for a checkpoint with adapters. */
void tws_adapter_config(const tws_saved_index *index, tws_text *out);

#endif
