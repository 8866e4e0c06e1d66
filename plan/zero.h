/* What the optimizer pass needs of ZeRO beyond plan/lower.h. Internal to plan/. */
#ifndef TWS_PLAN_ZERO_H
#define TWS_PLAN_ZERO_H

#include "plan/lower.h"

/* Padding at the end of a rank's part must be finite before norm and update read it. */
void tws_zero_pad_gradients(tws_lower *l);

#endif
