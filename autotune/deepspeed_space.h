/* Lists the points that DeepSpeed's autotuner would run in its fast mode (compat/deepspeed_autotuner.h), with an
 * estimate in place of each experiment that DeepSpeed would run. */
#ifndef TWS_AUTOTUNE_DEEPSPEED_SPACE_H
#define TWS_AUTOTUNE_DEEPSPEED_SPACE_H

#include "autotune/autotune.h"

int tws_tune_has_deepspeed_points(const tws_tune_request *request);
/* Lists each point once, in the order in which DeepSpeed would run them; the caller frees *points with tws_free. Fails
 * with TWS_INVALID if DeepSpeed would run no point. */
tws_code tws_tune_deepspeed_points(const tws_tune_request *request, tws_variant **points, int *count, tws_error *err);

#endif
