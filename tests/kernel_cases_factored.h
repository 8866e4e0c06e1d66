/* Cases of Adafactor's kernels, part of the table of kernel_cases.h: whole matrices, parts that begin and end within
 * rows, vectors (rows 0), and parts without an element. The last number of a matrix's parameters is the part's first
 * element. */
CASE(FACTOR_SUMS, {1, 1, 1}, {0}, 0, F), CASE(FACTOR_SUMS, {130, 300, 39000}, {0}, 0, F),
    CASE(FACTOR_SUMS, {33, 77, 1000}, {1003}, 0, B), CASE(FACTOR_SUMS, {5, 400, 30}, {790}, 0, H),
    CASE(FACTOR_SUMS, {0, 4001, 4001}, {0}, 0, F), CASE(FACTOR_SUMS, {0, 300, 40}, {77}, 0, B),
    CASE(FACTOR_SUMS, {40, 1, 13}, {5}, 0, F), CASE(FACTOR_MOMENTS, {1, 1}, {-0.8}, 0, F),
    CASE(FACTOR_MOMENTS, {300, 700}, {-0.8}, 0, F), CASE(FACTOR_MOMENTS, {0, 4001}, {-0.5}, 0, F),
    CASE(FACTOR_CHANGE, {1, 1, 1}, {1e-7, 0}, 0, F), CASE(FACTOR_CHANGE, {130, 300, 39000}, {1e-7, 0}, 0, F),
    CASE(FACTOR_CHANGE, {33, 77, 1000}, {0.3, 1003}, 0, B), CASE(FACTOR_CHANGE, {0, 300, 40}, {0.1, 77}, 0, H),
    CASE(FACTOR_CHANGE, {40, 1, 13}, {1e-3, 5}, 0, F), CASE(FACTOR_NORMS, {1}, {1}, 0, F),
    CASE(FACTOR_NORMS, {40011}, {0.5}, 0, F), CASE(ADAFACTOR, {1}, {0.1, 1e-3, 1}, 0, F),
    CASE(ADAFACTOR, {20011}, {0.1, 5, 1}, 0, F), CASE(ADAFACTOR, {4001}, {0, 1e-3, 3}, 0, TWS_F32, TWS_BF16),
    CASE(ADAFACTOR, {4001}, {0.1, 1e-3, 1}, 0, TWS_F32, TWS_F16),
