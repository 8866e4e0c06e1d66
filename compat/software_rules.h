/* Rules by which other software refuses a configuration, so that exported files are never refused there.
 *
 * DeepSpeed 0.19.8: runtime/config.py, runtime/engine.py, runtime/pipe/module.py. Megatron-LM: validate_args() of
 * megatron/training/arguments.py, commit 000c4ac24f61159c138b0975def722c65245983c. */
#ifndef TWS_COMPAT_SOFTWARE_RULES_H
#define TWS_COMPAT_SOFTWARE_RULES_H

#include <stdint.h>
#include "base/json.h"
#include "base/status.h"

/* Fails with TWS_INVALID, and the rule, if a ds_config.json breaks a rule of DeepSpeed. world: number of all ranks. */
tws_code tws_deepspeed_check(const cJSON *config, int64_t world, tws_error *err);
/* Fails with TWS_INVALID, and the rule, if arguments break a rule of Megatron: {"tensor_model_parallel_size": 2,
 * "bf16": true}. world: number of all ranks. */
tws_code tws_megatron_check(const cJSON *arguments, int64_t world, tws_error *err);

#endif
