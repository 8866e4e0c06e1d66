/* Cases of gradients of embedding tables by rows, part of the table of kernel_cases.h. The last number of
 * EMBEDDING_ROWS is the id of the first row. ADD_ROWS: each row occurs once. */
CASE(EMBEDDING_ROWS, {1, 1, 1}, {0}, 0, F), CASE(EMBEDDING_ROWS, {200, 65, 40}, {0}, 0, F),
    CASE(EMBEDDING_ROWS, {90, 33, 20}, {15}, 0, M), CASE(EMBEDDING_ROWS, {64, 130, 300}, {0}, 0, B),
    CASE(EMBEDDING_ROWS, {64, 12, 3}, {2}, 0, HM), CASE(EMBEDDING_ROWS, {300, 7, 1000}, {0}, 0, TWS_F32, TWS_BF16),
    CASE(ADD_ROWS, {1, 1, 1, 1}, {0}, 0, F), CASE(ADD_ROWS, {40, 65, 200, 3}, {0}, 0, F),
    CASE(ADD_ROWS, {30, 33, 61, 2}, {0}, 0, B), CASE(ADD_ROWS, {9, 130, 300, 4}, {0}, 0, M),
    CASE(ADD_ROWS, {9, 12, 300, 1}, {0}, 0, TWS_F32, TWS_F16),
