/* Counts of matrix products in 8-bit floating point (twinspeed.matmul_dtype fp8). */
#ifndef TWS_PLAN_FLOAT8_H
#define TWS_PLAN_FLOAT8_H

#include "plan/plan.h"

/* Matrix products of linear layers in the forward pass of the first micro-batch: all, and those in 8 bits. The parts of
 * a fused layer (query, key, value) are counted separately. */
typedef struct tws_float8_products {
  uint32_t all, eight;
} tws_float8_products;
tws_float8_products tws_plan_float8_products(const tws_plan *plan);

#endif
