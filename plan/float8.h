/* What of a plan is in 8 bits (twinspeed.matmul_dtype fp8). */
#ifndef TWS_PLAN_FLOAT8_H
#define TWS_PLAN_FLOAT8_H

#include "plan/plan.h"

/* Products of linear layers in the forward pass of the first micro-batch, parts of one counted apart: all, and those in
 * 8 bits. */
typedef struct tws_float8_products {
  uint32_t all, eight;
} tws_float8_products;
tws_float8_products tws_plan_float8_products(const tws_plan *plan);

#endif
