/* Rules by which other software refuses a configuration, so that exported files are never refused there.
 *
 * DeepSpeed 0.19: runtime/config.py, runtime/engine.py, runtime/pipe/module.py. Megatron-LM: validate_args() of
 * megatron/training/arguments.py, commit 000c4ac24f61159c138b0975def722c65245983c. */
#ifndef TWS_COMPAT_SOFTWARE_RULES_H
#define TWS_COMPAT_SOFTWARE_RULES_H

#include <stdint.h>
#include "base/json.h"
#include "base/status.h"

/* Checks a ds_config.json by DeepSpeed's rules; world: number of all ranks. Fails with TWS_INVALID, and with the rule
 * that it breaks. */
tws_code tws_deepspeed_check(const cJSON *config, int64_t world, tws_error *err);
/* Checks Megatron's arguments, given as keys such as {"tensor_model_parallel_size": 2, "bf16": true}, in the same
 * way. */
tws_code tws_megatron_check(const cJSON *arguments, int64_t world, tws_error *err);

#endif
