/* Rules by which DeepSpeed and Megatron-LM refuse a configuration. Exported files are checked, so that they are never
 * refused there. */
#ifndef TWS_COMPAT_SOFTWARE_RULES_H
#define TWS_COMPAT_SOFTWARE_RULES_H

#include <stdint.h>
#include "base/json.h"
#include "base/status.h"

/* Fails with TWS_INVALID and a message with the rule if a ds_config.json breaks a rule of DeepSpeed. world: number of
 * all ranks. */
tws_code tws_deepspeed_check(const cJSON *config, int64_t world, tws_error *err);
/* Fails with TWS_INVALID and a message with the rule if the arguments break a rule of Megatron. Arguments are an object
 * such as {"tensor_model_parallel_size": 2, "bf16": true}. world: number of all ranks. */
tws_code tws_megatron_check(const cJSON *arguments, int64_t world, tws_error *err);

#endif
