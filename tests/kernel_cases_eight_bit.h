/* Cases of ADAMW8, part of the table of kernel_cases.h: one element, whole blocks, blocks that are cut off, all types
 * of weights and gradients. */
CASE(ADAMW8, {1}, {1e-8, 0.1}, 0, F), CASE(ADAMW8, {256}, {1e-8, 0}, 0, F), CASE(ADAMW8, {255}, {1e-3, 0.1}, 0, F),
    CASE(ADAMW8, {20011}, {1e-8, 0.1}, 0, F), CASE(ADAMW8, {4096}, {1e-8, 0.1}, 0, TWS_F32, TWS_BF16),
    CASE(ADAMW8, {1300}, {1e-8, 0.1}, 0, B), CASE(ADAMW8, {1300}, {1e-8, 0.1}, 0, H),
    CASE(ADAMW8, {777}, {1e-8, 0.1}, TWS_HALF_WEIGHTS, B), CASE(ADAMW8, {777}, {1e-8, 0.1}, TWS_HALF_WEIGHTS, H),
