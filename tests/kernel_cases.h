/* The table of kernel operations under test, and random shapes that continue it: work_of(0 .. ALL_CASES - 1). */
#ifndef TWS_TESTS_KERNEL_CASES_H
#define TWS_TESTS_KERNEL_CASES_H

#include <stdint.h>
#include <string.h>

#include "base/random.h"
#include "models/operator.h"

typedef struct test_case {
  tws_kernel kernel;
  int64_t d[TWS_WORK_DIMS];
  double f[11]; /* parameters, then arguments */
  uint32_t flags;
  tws_dtype dtype, dtype2;
} test_case;

#define F TWS_F32, TWS_F32
#define B TWS_BF16, TWS_BF16
#define M TWS_BF16, TWS_F32 /* bfloat16 with float32 accumulation */
#define H TWS_F16, TWS_F16
#define HM TWS_F16, TWS_F32
#define ACC TWS_ACCUMULATE
#define ACC_PARAM TWS_ACCUMULATE_PARAM
#define HALF_ALL (TWS_HALF_WEIGHTS | TWS_HALF_MOMENTS | TWS_STOCHASTIC)
#define BOTH TWS_BIDIRECTIONAL
#define MASKED (TWS_BIDIRECTIONAL | TWS_LENGTHS)
#define DROPPED (TWS_BIDIRECTIONAL | TWS_LENGTHS | TWS_DROPOUT)
#define CASE(kernel, ...) \
  { TWS_KERNEL_##kernel, __VA_ARGS__ }
static const test_case table[] = {
    CASE(EMBEDDING, {17, 24, 31, 0, 0}, {0}, 0, F),
    CASE(EMBEDDING, {30, 48, 50, 16, 10}, {0}, 0, F),
    CASE(EMBEDDING, {30, 7, 5, 10, 10}, {0}, 0, B),
    CASE(EMBEDDING, {30, 37, 5, 10, 10}, {0}, 0, H),
    CASE(EMBEDDING, {1, 1, 1, 1, 1}, {0}, 0, F),
    CASE(EMBEDDING, {300, 129, 257, 150, 150}, {0}, 0, F),
    CASE(EMBEDDING, {60, 40, 30, 0, 0}, {25}, 0, F), /* part of a vocabulary */
    CASE(EMBEDDING, {60, 33, 30, 20, 15}, {100}, 0, B),
    CASE(EMBEDDING, {30, 37, 5, 24, 10}, {0, 14}, 0, F), /* a sequence in two halves */
    CASE(EMBEDDING, {60, 40, 2, 0, 0}, {0}, ACC, F),     /* segments */
    CASE(EMBEDDING, {30, 37, 5, 10, 10}, {0}, ACC, B),
    CASE(EMBEDDING_GRAD, {40, 100, 3}, {0}, 0, F),
    CASE(EMBEDDING_GRAD, {90, 100, 20}, {15}, 0, F),
    CASE(EMBEDDING_GRAD, {200, 65, 40}, {40}, ACC, M),
    CASE(EMBEDDING_GRAD, {40, 1100, 64}, {0}, ACC, F),
    CASE(EMBEDDING_GRAD, {200, 65, 40}, {0}, ACC, M),
    CASE(EMBEDDING_GRAD, {64, 130, 300}, {0}, 0, B),
    CASE(EMBEDDING_GRAD, {64, 130, 300}, {0}, ACC, H),
    CASE(EMBEDDING_GRAD, {200, 65, 40}, {0}, 0, HM),
    CASE(EMBEDDING_GRAD, {1, 1, 1}, {0}, 0, F),
    CASE(EMBEDDING_GRAD, {3000, 72, 5}, {0}, 0, B), /* long lists */
    CASE(EMBEDDING_GRAD, {2600, 33, 140}, {0}, ACC, M),
    CASE(EMBEDDING_GRAD, {2100, 40, 3}, {2}, ACC, F),
    CASE(POSITION_GRAD, {30, 48, 16, 10}, {0}, 0, F),
    CASE(POSITION_GRAD, {32, 200, 300, 8}, {0}, ACC, M),
    CASE(POSITION_GRAD, {30, 48, 26, 10}, {14}, 0, F),
    CASE(POSITION_GRAD, {30, 48, 26, 10}, {14}, ACC, M),
    CASE(POSITION_GRAD, {4, 1, 2, 2}, {0}, 0, B),
    CASE(POSITION_GRAD, {32, 100, 30, 8}, {0}, ACC, H),
    CASE(NORM, {9, 48}, {1e-5}, TWS_BIAS, F),
    CASE(NORM, {70, 257}, {1e-5}, TWS_BIAS, F),
    CASE(NORM, {5, 33}, {1e-6}, TWS_RMS, F),
    CASE(NORM, {5, 24}, {1e-6}, 0, F),
    CASE(NORM, {3, 1}, {1e-5}, TWS_BIAS, F),
    CASE(NORM, {40, 768}, {1e-5}, TWS_BIAS, B),
    CASE(NORM, {40, 770}, {1e-5}, TWS_BIAS, H),
    CASE(NORM, {9, 130}, {1e-6}, TWS_RMS, H),
    CASE(NORM, {9, 48}, {1e-5}, TWS_BIAS | TWS_RESIDUAL, F),
    CASE(NORM, {70, 257}, {1e-5}, TWS_RESIDUAL, F),
    CASE(NORM, {5, 33}, {1e-6}, TWS_RMS | TWS_RESIDUAL, F),
    CASE(NORM, {40, 768}, {1e-5}, TWS_BIAS | TWS_RESIDUAL, B),
    CASE(NORM, {9, 130}, {1e-6}, TWS_RMS | TWS_RESIDUAL, H),
    CASE(NORM, {3, 1600}, {1e-5}, TWS_BIAS | TWS_RESIDUAL, B), /* a block's rows, and those beyond its registers */
    CASE(NORM, {3, 5000}, {1e-6}, TWS_RMS, F),
    CASE(NORM, {2, 16400}, {1e-5}, TWS_BIAS | TWS_RESIDUAL, F),
    CASE(NORM, {9, 48}, {1e-5}, TWS_PLAIN, F),
    CASE(NORM, {70, 257}, {1e-5}, TWS_PLAIN | TWS_RESIDUAL, F),
    CASE(NORM, {40, 770}, {1e-6}, TWS_PLAIN | TWS_RMS, B),
    CASE(NORM, {3, 5000}, {1e-5}, TWS_PLAIN | TWS_RESIDUAL, H),
    CASE(NORM_GRAD, {9, 48}, {1e-5}, TWS_PLAIN, F),
    CASE(NORM_GRAD, {70, 257}, {1e-5}, TWS_PLAIN | ACC, F),
    CASE(NORM_GRAD, {5, 33}, {1e-6}, TWS_PLAIN | TWS_RMS, F),
    CASE(NORM_GRAD, {55, 768}, {1e-5}, TWS_PLAIN | ACC, B),
    CASE(NORM_GRAD, {9, 48}, {1e-5}, TWS_BIAS, F),
    CASE(NORM_GRAD, {70, 257}, {1e-5}, TWS_BIAS | ACC, F),
    CASE(NORM_GRAD, {6, 65}, {1e-5}, TWS_BIAS | ACC | ACC_PARAM, F),
    CASE(NORM_GRAD, {5, 33}, {1e-6}, TWS_RMS | ACC_PARAM, F),
    CASE(NORM_GRAD, {5, 24}, {1e-6}, 0, F),
    CASE(NORM_GRAD, {40, 300}, {1e-5}, TWS_BIAS | ACC, M),
    CASE(NORM_GRAD, {20, 100}, {1e-5}, TWS_RMS, B),
    CASE(NORM_GRAD, {40, 300}, {1e-5}, TWS_BIAS | ACC_PARAM, H),
    CASE(NORM_GRAD, {40, 301}, {1e-5}, TWS_RMS | ACC, HM),
    CASE(NORM_GRAD, {55, 768}, {1e-5}, TWS_BIAS | ACC, B), /* a pack of a row for each thread, two, too many */
    CASE(NORM_GRAD, {20, 1600}, {1e-5}, TWS_RMS | ACC_PARAM, F),
    CASE(NORM_GRAD, {15, 4096}, {1e-5}, TWS_BIAS, M),
    CASE(NORM_GRAD, {3, 5200}, {1e-5}, TWS_BIAS | ACC, F),
    CASE(LINEAR, {1, 1, 1}, {0}, TWS_BIAS, F),
    CASE(LINEAR, {7, 13, 5}, {0}, 0, F),
    CASE(LINEAR, {64, 96, 80}, {0}, TWS_BIAS, F),
    CASE(LINEAR, {130, 300, 70}, {0}, TWS_BIAS, F),
    CASE(LINEAR, {33, 257, 64}, {0}, 0, B),
    CASE(LINEAR, {40, 300, 1100}, {0}, TWS_BIAS, B),
    CASE(LINEAR, {300, 17, 64}, {0}, TWS_BIAS, B),
    CASE(LINEAR, {33, 257, 64}, {0}, 0, H),
    CASE(LINEAR, {40, 300, 1100}, {0}, TWS_BIAS, H),
    CASE(LINEAR, {7, 13, 5}, {0}, TWS_GELU, F),
    CASE(LINEAR, {130, 300, 70}, {0}, TWS_BIAS | TWS_GELU, F),
    CASE(LINEAR, {64, 96, 80}, {0}, TWS_BIAS | TWS_GELU, B),
    CASE(LINEAR, {33, 257, 64}, {0}, TWS_GELU, B),
    CASE(LINEAR, {40, 304, 1100}, {0}, TWS_BIAS | TWS_GELU, H),
    CASE(LINEAR_GRAD_INPUT, {7, 13, 5}, {0}, 0, F),
    CASE(LINEAR_GRAD_INPUT, {130, 70, 300}, {0}, TWS_GELU, F),
    CASE(LINEAR_GRAD_INPUT, {64, 80, 96}, {0}, TWS_GELU, B),
    CASE(LINEAR_GRAD_INPUT, {33, 64, 257}, {0}, TWS_GELU, B),
    CASE(LINEAR_GRAD_INPUT, {65, 600, 48}, {0}, TWS_GELU, H),
    CASE(LINEAR_GRAD_INPUT, {130, 70, 300}, {0}, ACC, F),
    CASE(LINEAR_GRAD_INPUT, {65, 600, 48}, {0}, 0, B),
    CASE(LINEAR_GRAD_INPUT, {33, 257, 64}, {0}, ACC, B),
    CASE(LINEAR_GRAD_INPUT, {65, 600, 48}, {0}, ACC, H),
    CASE(LINEAR_GRAD_WEIGHT, {7, 13, 5}, {0}, TWS_BIAS, F),
    CASE(LINEAR_GRAD_WEIGHT, {130, 70, 300}, {0}, ACC | TWS_BIAS, F),
    CASE(LINEAR_GRAD_WEIGHT, {65, 600, 48}, {0}, ACC | TWS_BIAS, M),
    CASE(LINEAR_GRAD_WEIGHT, {33, 257, 64}, {0}, 0, M),
    CASE(LINEAR_GRAD_WEIGHT, {600, 30, 64}, {0}, TWS_BIAS, B),
    CASE(LINEAR_GRAD_WEIGHT, {50, 30, 64}, {0}, ACC, B),
    CASE(LINEAR_GRAD_WEIGHT, {600, 30, 64}, {0}, ACC | TWS_BIAS, H),
    CASE(LINEAR_GRAD_WEIGHT, {65, 600, 48}, {0}, TWS_BIAS, HM),
    CASE(LINEAR_GRAD_WEIGHT, {2000, 16, 7}, {0}, TWS_BIAS, B),
    CASE(ROPE, {20, 2, 2, 16, 10}, {10000}, 0, F),
    CASE(ROPE, {300, 4, 1, 6, 150}, {500000, 8, 1, 4, 64}, 0, F),
    CASE(ROPE, {12, 3, 1, 160, 6}, {10000}, 0, B),
    CASE(ROPE, {12, 3, 1, 160, 6}, {10000}, 0, H),
    CASE(ROPE_GRAD, {20, 2, 2, 16, 10}, {10000}, 0, F),
    CASE(ROPE_GRAD, {30, 4, 1, 24, 15}, {500000, 8, 1, 4, 16}, 0, F),
    CASE(ROPE_GRAD, {30, 4, 1, 24, 15}, {500000, 8, 1, 4, 16}, 0, H),
    CASE(ATTENTION, {1, 1, 1, 1, 8}, {0}, 0, F),
    CASE(ATTENTION, {2, 10, 2, 2, 16}, {0}, 0, F),
    CASE(ATTENTION, {1, 64, 3, 3, 64}, {0}, 0, F),
    CASE(ATTENTION, {2, 65, 4, 2, 24}, {0}, 0, F),
    CASE(ATTENTION, {1, 200, 6, 1, 64}, {0}, 0, F),
    CASE(ATTENTION, {1, 130, 2, 2, 5}, {0}, 0, F),
    CASE(ATTENTION, {2, 70, 4, 2, 128}, {0}, 0, B),
    CASE(ATTENTION, {1, 64, 3, 3, 64}, {0}, 0, B),
    CASE(ATTENTION, {2, 130, 4, 2, 64}, {0}, 0, H),
    CASE(ATTENTION, {1, 200, 6, 1, 32}, {0}, 0, B),
    CASE(ATTENTION, {2, 70, 4, 2, 70}, {0}, 0, H),
    CASE(ATTENTION_GRAD, {1, 1, 1, 1, 8}, {0}, 0, F),
    CASE(ATTENTION_GRAD, {2, 10, 2, 2, 16}, {0}, 0, F),
    CASE(ATTENTION_GRAD, {1, 64, 3, 3, 64}, {0}, 0, F),
    CASE(ATTENTION_GRAD, {2, 65, 4, 2, 24}, {0}, 0, F),
    CASE(ATTENTION_GRAD, {1, 200, 6, 1, 64}, {0}, 0, F),
    CASE(ATTENTION_GRAD, {1, 130, 2, 2, 5}, {0}, 0, F),
    CASE(ATTENTION_GRAD, {2, 70, 4, 2, 128}, {0}, 0, B),
    CASE(ATTENTION_GRAD, {1, 64, 3, 3, 64}, {0}, 0, B),
    CASE(ATTENTION_GRAD, {2, 130, 4, 2, 64}, {0}, 0, H),
    CASE(ATTENTION_GRAD, {1, 200, 6, 1, 32}, {0}, 0, B),
    CASE(ATTENTION_GRAD, {2, 70, 4, 2, 70}, {0}, 0, H),
    CASE(ATTENTION, {3, 70, 2, 2, 16}, {0}, BOTH, F),
    CASE(ATTENTION, {3, 130, 4, 2, 24}, {0}, MASKED, F),
    CASE(ATTENTION, {2, 200, 2, 1, 16, 0, 50}, {0}, 0, F), /* a window */
    CASE(ATTENTION, {1, 150, 2, 1, 16, 0, 70}, {0}, BOTH, F),
    CASE(ATTENTION, {2, 70, 6, 2, 16}, {0}, TWS_ALIBI, F),
    CASE(ATTENTION, {1, 70, 3, 3, 16}, {0, 0, 0, 0, 0, 0, 5, 12}, TWS_ALIBI | BOTH, F), /* heads 5 to 7 of 12 */
    CASE(ATTENTION, {2, 37, 4, 4, 16, 90}, {0.2}, MASKED | TWS_Q_KV, F),
    CASE(ATTENTION, {2, 90, 4, 2, 16, 37}, {0}, BOTH | TWS_Q_K_V, F),
    CASE(ATTENTION, {2, 37, 4, 2, 16, 90}, {0}, TWS_Q_K_V, F), /* the last queries of the sequence */
    CASE(ATTENTION, {1, 90, 2, 2, 16, 37}, {0}, TWS_Q_KV, F),  /* the first see nothing */
    CASE(ATTENTION, {3, 70, 4, 2, 16}, {0, 0.3, 0, 0, 1e15, 7, 2, 9}, DROPPED, F),
    CASE(ATTENTION, {2, 65, 4, 2, 24}, {0, 0.1, 0, 0, 5}, TWS_DROPOUT, F),
    CASE(ATTENTION, {3, 70, 4, 2, 64}, {0, 0.1, 0, 0, 5}, DROPPED | TWS_Q_KV | TWS_ALIBI, B),
    CASE(ATTENTION, {2, 40, 4, 2, 128, 70, 30}, {0}, MASKED | TWS_Q_K_V, H),
    CASE(ATTENTION, {2, 150, 4, 2, 16, 0, 0, 32}, {1, 0, 0, 128}, MASKED | TWS_RELATIVE, F),
    CASE(ATTENTION, {3, 70, 4, 4, 16, 0, 0, 8}, {1, 0.2, 0, 20, 3}, TWS_RELATIVE | TWS_DROPOUT, F),
    CASE(ATTENTION, {2, 37, 4, 2, 24, 90, 0, 12}, {0, 0, 2, 40}, MASKED | TWS_Q_KV | TWS_RELATIVE, F),
    CASE(ATTENTION, {2, 66, 2, 2, 64, 0, 0, 32}, {1, 0, 0, 128}, TWS_RELATIVE, B),
    CASE(ATTENTION_GRAD, {3, 70, 2, 2, 16}, {0}, BOTH, F),
    CASE(ATTENTION_GRAD, {3, 130, 4, 2, 24}, {0}, MASKED, F),
    CASE(ATTENTION_GRAD, {2, 200, 2, 1, 16, 0, 50}, {0}, 0, F),
    CASE(ATTENTION_GRAD, {1, 150, 2, 1, 16, 0, 70}, {0}, BOTH, F),
    CASE(ATTENTION_GRAD, {2, 70, 6, 2, 16}, {0}, TWS_ALIBI, F),
    CASE(ATTENTION_GRAD, {1, 70, 3, 3, 16}, {0, 0, 0, 0, 0, 0, 5, 12}, TWS_ALIBI | BOTH, F),
    CASE(ATTENTION_GRAD, {2, 37, 4, 4, 16, 90}, {0.2}, MASKED | TWS_Q_KV, F),
    CASE(ATTENTION_GRAD, {2, 90, 4, 2, 16, 37}, {0}, BOTH | TWS_Q_K_V, F),
    CASE(ATTENTION_GRAD, {2, 37, 4, 2, 16, 90}, {0}, TWS_Q_K_V, F),
    CASE(ATTENTION_GRAD, {1, 90, 2, 2, 16, 37}, {0}, TWS_Q_KV, F),
    CASE(ATTENTION_GRAD, {3, 70, 4, 2, 16}, {0, 0.3, 0, 0, 1e15, 7, 2, 9}, DROPPED, F),
    CASE(ATTENTION_GRAD, {2, 65, 4, 2, 24}, {0, 0.1, 0, 0, 5}, TWS_DROPOUT, F),
    CASE(ATTENTION_GRAD, {3, 70, 4, 2, 64}, {0, 0.1, 0, 0, 5}, DROPPED | TWS_Q_KV | TWS_ALIBI, B),
    CASE(ATTENTION_GRAD, {2, 40, 4, 2, 128, 70, 30}, {0}, MASKED | TWS_Q_K_V, H),
    CASE(ATTENTION_GRAD, {2, 150, 4, 2, 16, 0, 0, 32}, {1, 0, 0, 128}, MASKED | TWS_RELATIVE, F),
    CASE(ATTENTION_GRAD, {3, 70, 4, 4, 16, 0, 0, 8}, {1, 0.2, 0, 20, 3}, TWS_RELATIVE | TWS_DROPOUT | ACC_PARAM, F),
    CASE(ATTENTION_GRAD, {2, 37, 4, 2, 24, 90, 0, 12}, {0, 0, 2, 40}, MASKED | TWS_Q_KV | TWS_RELATIVE, F),
    CASE(ATTENTION_GRAD, {2, 66, 2, 2, 64, 0, 0, 32}, {1, 0, 0, 128}, TWS_RELATIVE | ACC_PARAM, M),
    CASE(GELU, {1}, {0}, 0, F),
    CASE(GELU, {20011}, {0}, 0, F),
    CASE(GELU, {515}, {0}, 0, B),
    CASE(GELU, {517}, {0}, 0, H),
    CASE(GELU_EXACT, {20011}, {0}, 0, F),
    CASE(GELU_EXACT, {515}, {0}, 0, B),
    CASE(GELU_EXACT_GRAD, {20011}, {0}, 0, F),
    CASE(GELU_EXACT_GRAD, {517}, {0}, 0, H),
    CASE(SOFTCAP, {20011}, {1.5}, 0, F),
    CASE(SOFTCAP, {515}, {30}, 0, B),
    CASE(SOFTCAP_GRAD, {20011}, {1.5}, 0, F),
    CASE(SOFTCAP_GRAD, {517}, {30}, 0, H),
    CASE(MULTIPLY, {20011}, {2.5}, 0, F),
    CASE(MULTIPLY, {515}, {-0.75}, 0, B),
    CASE(GEGLU, {7, 130}, {0}, 0, F),
    CASE(GEGLU, {9, 96}, {0}, 0, B),
    CASE(GEGLU_GRAD, {7, 130}, {0}, 0, F),
    CASE(GEGLU_GRAD, {9, 96}, {0}, 0, H),
    CASE(NORM, {9, 48}, {1e-6, 1}, TWS_RMS, F),
    CASE(NORM, {40, 768}, {1e-5, 1}, TWS_BIAS | TWS_RESIDUAL, B),
    CASE(NORM_GRAD, {70, 257}, {1e-6, 1}, TWS_RMS | ACC, F),
    CASE(NORM_GRAD, {3, 5000}, {1e-6, 1}, TWS_RMS | ACC_PARAM, F),
    CASE(NORM_GRAD, {20, 100}, {1e-5, 1}, TWS_BIAS, M),
    CASE(HEADS_NORM, {9, 4, 2, 24}, {1e-6}, 0, F),
    CASE(HEADS_NORM, {9, 4, 2, 24}, {1e-6, 1}, TWS_TOGETHER, F),
    CASE(HEADS_NORM, {30, 3, 1, 128}, {1e-6}, 0, B),
    CASE(HEADS_NORM_GRAD, {9, 4, 2, 24}, {1e-6}, 0, F),
    CASE(HEADS_NORM_GRAD, {9, 4, 2, 24}, {1e-6, 1}, TWS_TOGETHER | ACC_PARAM, F),
    CASE(HEADS_NORM_GRAD, {40, 3, 1, 128}, {1e-6}, 0, M),
    CASE(HEADS_NORM_GRAD, {40, 3, 3, 70}, {1e-6}, TWS_TOGETHER, H),
    CASE(ROPE, {20, 2, 2, 16, 10}, {10000, 0, 0, 0, 0, 0, 40, 35}, 0, F), /* a sequence in two halves */
    CASE(ROPE_GRAD, {24, 3, 1, 24, 12}, {10000, 0, 0, 0, 0, 0, 6, 7}, TWS_INTERLEAVED, B),
    CASE(ROPE, {60, 3, 1, 24, 30, 8}, {10000}, 0, F),
    CASE(ROPE, {60, 3, 1, 24, 30, 16}, {10000, 0, 0, 0, 0, 1.2}, TWS_INTERLEAVED, F),
    CASE(ROPE, {40, 2, 2, 300, 20, 280}, {10000, 4, 0, 0, 0}, TWS_INTERLEAVED, F),
    CASE(ROPE, {40, 2, 2, 300, 20}, {10000, 4, 10, 60, 0, 1.14}, 0, F),
    CASE(ROPE, {40, 2, 2, 64, 20, 32}, {10000, 4, 3, 9, 0, 1.14}, TWS_INTERLEAVED, B),
    CASE(ROPE, {60, 3, 1, 24, 30, 16}, {10000, 0, 0, 0, 30, 1.2}, TWS_RUNNING, F), /* factors of short sequences */
    CASE(ROPE, {60, 3, 1, 24, 30}, {10000, 0, 0, 0, 29}, TWS_RUNNING | TWS_INTERLEAVED, F), /* of long ones */
    CASE(ROPE_GRAD, {60, 3, 1, 24, 30, 16}, {10000, 0, 0, 0, 29, 1.2}, TWS_RUNNING, F),
    CASE(ROPE_GRAD, {60, 3, 1, 24, 30, 8}, {10000}, 0, F),
    CASE(ROPE_GRAD, {60, 3, 1, 24, 30, 16}, {10000, 4, 2, 5, 0, 1.2}, TWS_INTERLEAVED, F),
    CASE(ROPE_GRAD, {40, 2, 2, 64, 20, 32}, {10000, 4, 3, 9, 0, 1.14}, TWS_INTERLEAVED, H),
    CASE(ATTENTION, {2, 70, 4, 2, 24}, {0.7, 0, 1.5}, 0, F),
    CASE(ATTENTION, {1, 130, 4, 4, 32, 0, 40}, {0, 0, 0.8}, TWS_ALIBI, F),
    CASE(ATTENTION, {1, 66, 4, 2, 64}, {0, 0, 30}, 0, B),
    CASE(ATTENTION_GRAD, {2, 70, 4, 2, 24}, {0.7, 0, 1.5}, 0, F),
    CASE(ATTENTION_GRAD, {1, 130, 4, 4, 32, 0, 40}, {0, 0, 0.8}, TWS_ALIBI, F),
    CASE(ATTENTION_GRAD, {1, 66, 4, 2, 64}, {0, 0, 30}, 0, M),
    CASE(GELU_GRAD, {17}, {0}, 0, F),
    CASE(GELU_GRAD, {20011}, {0}, 0, F),
    CASE(GELU_GRAD, {515}, {0}, 0, B),
    CASE(GELU_GRAD, {517}, {0}, 0, H),
    CASE(RELU, {1}, {0}, 0, F),
    CASE(RELU, {20011}, {0}, 0, F),
    CASE(RELU, {515}, {0}, 0, B),
    CASE(RELU, {517}, {0}, 0, H),
    CASE(RELU_GRAD, {1}, {0}, 0, F),
    CASE(RELU_GRAD, {20011}, {0}, 0, F),
    CASE(RELU_GRAD, {515}, {0}, 0, B),
    CASE(RELU_GRAD, {517}, {0}, 0, H),
    CASE(SQUARED_RELU, {1}, {0}, 0, F),
    CASE(SQUARED_RELU, {20011}, {0}, 0, F),
    CASE(SQUARED_RELU, {515}, {0}, 0, B),
    CASE(SQUARED_RELU, {517}, {0}, 0, H),
    CASE(SQUARED_RELU_GRAD, {1}, {0}, 0, F),
    CASE(SQUARED_RELU_GRAD, {20011}, {0}, 0, F),
    CASE(SQUARED_RELU_GRAD, {515}, {0}, 0, B),
    CASE(SQUARED_RELU_GRAD, {517}, {0}, 0, H),
    CASE(SWIGLU, {7, 33}, {0}, 0, F),
    CASE(SWIGLU, {64, 128}, {0}, 0, B),
    CASE(SWIGLU, {64, 129}, {0}, 0, H),
    CASE(SWIGLU_GRAD, {7, 33}, {0}, 0, F),
    CASE(SWIGLU_GRAD, {64, 130}, {0}, 0, F),
    CASE(SWIGLU_GRAD, {64, 128}, {0}, 0, B),
    CASE(SWIGLU_GRAD, {64, 129}, {0}, 0, H),
    CASE(ADD, {20011}, {0}, 0, F),
    CASE(ADD, {33}, {0}, 0, B),
    CASE(ADD, {20011}, {0}, 0, H),
    CASE(BATCH_NORM, {1, 1}, {1e-5, 0.1}, 0, F),
    CASE(BATCH_NORM, {9, 48}, {1e-5, 0.1, 1}, TWS_RUNNING, F),
    CASE(BATCH_NORM, {3000, 37}, {1e-5, 0.1, 0.25}, TWS_RUNNING, F),
    CASE(BATCH_NORM, {70, 768}, {1e-5, 0.1, 1}, TWS_RUNNING, B),
    CASE(BATCH_NORM, {300, 33}, {1e-3, 0.01}, 0, H),
    CASE(BATCH_NORM_GRAD, {9, 48}, {1e-5, 0.1}, 0, F),
    CASE(BATCH_NORM_GRAD, {3000, 37}, {1e-5, 0.1}, ACC, F),
    CASE(BATCH_NORM_GRAD, {70, 768}, {1e-5, 0.1}, ACC_PARAM, M),
    CASE(BATCH_NORM_GRAD, {300, 33}, {1e-5, 0.1}, ACC | ACC_PARAM, H),
    CASE(BATCH_NORM_GRAD, {70, 64}, {1e-5, 0.1}, 0, B),
    CASE(BATCH_NORM_GRAD, {70, 64}, {1e-5, 0.1}, ACC, HM),
    CASE(BATCH_NORM_EVALUATION, {9, 48}, {1e-5, 0.1}, 0, F),
    CASE(BATCH_NORM_EVALUATION, {70, 257}, {1e-5, 0.1}, 0, F),
    CASE(BATCH_NORM_EVALUATION, {70, 768}, {1e-5, 0.1}, 0, B),
    CASE(BATCH_NORM_EVALUATION, {70, 33}, {1e-5, 0.1}, 0, H),
    CASE(CONVOLUTION, {1, 1, 1, 1, 1, 1, 1, 1}, {0}, 0, F),
    CASE(CONVOLUTION, {2, 7, 5, 3, 8, 3, 1, 1}, {1}, TWS_BIAS, F),
    CASE(CONVOLUTION, {2, 9, 11, 16, 24, 3, 2, 1}, {1}, TWS_BIAS | ACC, F),
    CASE(CONVOLUTION, {3, 8, 8, 40, 20, 1, 1, 0}, {0}, TWS_BIAS, F),
    CASE(CONVOLUTION, {3, 9, 7, 5, 20, 1, 2, 1}, {0}, ACC, F),
    CASE(CONVOLUTION, {2, 15, 13, 3, 16, 7, 2, 1}, {3}, 0, F),
    CASE(CONVOLUTION, {2, 12, 12, 3, 20, 4, 4, 1}, {0}, TWS_BIAS, F),
    CASE(CONVOLUTION, {10, 12, 12, 32, 2, 5, 1, 1}, {2}, ACC, F), /* some pictures after the other */
    CASE(CONVOLUTION, {2, 9, 8, 24, 24, 3, 1, 24}, {1}, TWS_BIAS | ACC, F),
    CASE(CONVOLUTION, {2, 9, 8, 6, 12, 3, 2, 6}, {1}, TWS_BIAS, F),
    CASE(CONVOLUTION, {2, 7, 8, 36, 40, 3, 1, 2}, {1}, ACC, F),
    CASE(CONVOLUTION, {2, 9, 11, 16, 24, 3, 2, 1}, {1}, TWS_BIAS, M),
    CASE(CONVOLUTION, {2, 9, 8, 64, 64, 1, 1, 1}, {0}, ACC, M),
    CASE(CONVOLUTION, {2, 9, 11, 18, 24, 3, 1, 1}, {1}, ACC, H),
    CASE(CONVOLUTION, {2, 9, 11, 18, 24, 3, 1, 1}, {0}, TWS_BIAS, HM),
    CASE(CONVOLUTION, {2, 9, 8, 48, 48, 3, 1, 48}, {1}, TWS_BIAS, B),
    CASE(CONVOLUTION, {2, 9, 8, 32, 48, 3, 1, 4}, {1}, TWS_BIAS | ACC, M),
    CASE(CONVOLUTION_GRAD_INPUT, {1, 1, 1, 1, 1, 1, 1, 1}, {0}, 0, F),
    CASE(CONVOLUTION_GRAD_INPUT, {2, 7, 5, 3, 8, 3, 1, 1}, {1}, TWS_BIAS, F),
    CASE(CONVOLUTION_GRAD_INPUT, {2, 9, 11, 16, 24, 3, 2, 1}, {1}, TWS_BIAS | ACC, F),
    CASE(CONVOLUTION_GRAD_INPUT, {3, 8, 8, 40, 20, 1, 1, 0}, {0}, TWS_BIAS, F),
    CASE(CONVOLUTION_GRAD_INPUT, {3, 9, 7, 5, 20, 1, 2, 1}, {0}, ACC, F),
    CASE(CONVOLUTION_GRAD_INPUT, {2, 15, 13, 3, 16, 7, 2, 1}, {3}, 0, F),
    CASE(CONVOLUTION_GRAD_INPUT, {2, 12, 12, 3, 20, 4, 4, 1}, {0}, TWS_BIAS, F),
    CASE(CONVOLUTION_GRAD_INPUT, {10, 12, 12, 32, 2, 5, 1, 1}, {2}, ACC, F), /* some pictures after the other */
    CASE(CONVOLUTION_GRAD_INPUT, {2, 9, 8, 24, 24, 3, 1, 24}, {1}, TWS_BIAS | ACC, F),
    CASE(CONVOLUTION_GRAD_INPUT, {2, 9, 8, 6, 12, 3, 2, 6}, {1}, TWS_BIAS, F),
    CASE(CONVOLUTION_GRAD_INPUT, {2, 7, 8, 36, 40, 3, 1, 2}, {1}, ACC, F),
    CASE(CONVOLUTION_GRAD_INPUT, {2, 9, 11, 16, 24, 3, 2, 1}, {1}, TWS_BIAS, M),
    CASE(CONVOLUTION_GRAD_INPUT, {2, 9, 8, 64, 64, 1, 1, 1}, {0}, ACC, M),
    CASE(CONVOLUTION_GRAD_INPUT, {2, 9, 11, 18, 24, 3, 1, 1}, {1}, ACC, H),
    CASE(CONVOLUTION_GRAD_INPUT, {2, 9, 11, 18, 24, 3, 1, 1}, {0}, TWS_BIAS, HM),
    CASE(CONVOLUTION_GRAD_INPUT, {2, 9, 8, 48, 48, 3, 1, 48}, {1}, TWS_BIAS, B),
    CASE(CONVOLUTION_GRAD_INPUT, {2, 9, 8, 32, 48, 3, 1, 4}, {1}, TWS_BIAS | ACC, M),
    CASE(CONVOLUTION_GRAD_WEIGHT, {1, 1, 1, 1, 1, 1, 1, 1}, {0}, 0, F),
    CASE(CONVOLUTION_GRAD_WEIGHT, {2, 7, 5, 3, 8, 3, 1, 1}, {1}, TWS_BIAS, F),
    CASE(CONVOLUTION_GRAD_WEIGHT, {2, 9, 11, 16, 24, 3, 2, 1}, {1}, TWS_BIAS | ACC, F),
    CASE(CONVOLUTION_GRAD_WEIGHT, {3, 8, 8, 40, 20, 1, 1, 0}, {0}, TWS_BIAS, F),
    CASE(CONVOLUTION_GRAD_WEIGHT, {3, 9, 7, 5, 20, 1, 2, 1}, {0}, ACC, F),
    CASE(CONVOLUTION_GRAD_WEIGHT, {2, 15, 13, 3, 16, 7, 2, 1}, {3}, 0, F),
    CASE(CONVOLUTION_GRAD_WEIGHT, {2, 12, 12, 3, 20, 4, 4, 1}, {0}, TWS_BIAS, F),
    CASE(CONVOLUTION_GRAD_WEIGHT, {10, 12, 12, 32, 2, 5, 1, 1}, {2}, ACC, F), /* some pictures after the other */
    CASE(CONVOLUTION_GRAD_WEIGHT, {2, 9, 8, 24, 24, 3, 1, 24}, {1}, TWS_BIAS | ACC, F),
    CASE(CONVOLUTION_GRAD_WEIGHT, {2, 9, 8, 6, 12, 3, 2, 6}, {1}, TWS_BIAS, F),
    CASE(CONVOLUTION_GRAD_WEIGHT, {2, 7, 8, 36, 40, 3, 1, 2}, {1}, ACC, F),
    CASE(CONVOLUTION_GRAD_WEIGHT, {20, 12, 12, 32, 2, 5, 1, 1}, {2}, TWS_BIAS | ACC, B), /* and sums rounded once */
    CASE(CONVOLUTION_GRAD_WEIGHT, {2, 9, 11, 16, 24, 3, 2, 1}, {1}, TWS_BIAS, M),
    CASE(CONVOLUTION_GRAD_WEIGHT, {2, 9, 8, 64, 64, 1, 1, 1}, {0}, ACC, M),
    CASE(CONVOLUTION_GRAD_WEIGHT, {2, 9, 11, 18, 24, 3, 1, 1}, {1}, ACC, H),
    CASE(CONVOLUTION_GRAD_WEIGHT, {2, 9, 11, 18, 24, 3, 1, 1}, {0}, TWS_BIAS, HM),
    CASE(CONVOLUTION_GRAD_WEIGHT, {2, 9, 8, 48, 48, 3, 1, 48}, {1}, TWS_BIAS, B),
    CASE(CONVOLUTION_GRAD_WEIGHT, {2, 9, 8, 32, 48, 3, 1, 4}, {1}, TWS_BIAS | ACC, M),
    CASE(MAX_POOL, {1, 1, 1, 1, 1, 1}, {0}, 0, F),
    CASE(MAX_POOL, {2, 7, 9, 5, 3, 2}, {1}, ACC, F),
    CASE(MAX_POOL, {3, 8, 8, 40, 2, 2}, {0}, 0, F),
    CASE(MAX_POOL, {3, 7, 5, 33}, {0}, ACC, F),
    CASE(MAX_POOL, {2, 8, 6, 24, 3, 1}, {1}, 0, B),
    CASE(MAX_POOL, {2, 7, 9, 37, 3, 2}, {1}, ACC, H),
    CASE(MAX_POOL, {2, 9, 9, 16, 3, 2}, {0}, ACC, B),
    CASE(MAX_POOL_GRAD, {1, 1, 1, 1, 1, 1}, {0}, 0, F),
    CASE(MAX_POOL_GRAD, {2, 7, 9, 5, 3, 2}, {1}, ACC, F),
    CASE(MAX_POOL_GRAD, {3, 8, 8, 40, 2, 2}, {0}, 0, F),
    CASE(MAX_POOL_GRAD, {3, 7, 5, 33}, {0}, ACC, F),
    CASE(MAX_POOL_GRAD, {2, 8, 6, 24, 3, 1}, {1}, 0, B),
    CASE(MAX_POOL_GRAD, {2, 7, 9, 37, 3, 2}, {1}, ACC, H),
    CASE(MAX_POOL_GRAD, {2, 9, 9, 16, 3, 2}, {0}, ACC, B),
    CASE(AVERAGE_POOL, {1, 1, 1, 1, 1, 1}, {0}, 0, F),
    CASE(AVERAGE_POOL, {2, 7, 9, 5, 3, 2}, {1}, ACC, F),
    CASE(AVERAGE_POOL, {3, 8, 8, 40, 2, 2}, {0}, 0, F),
    CASE(AVERAGE_POOL, {3, 7, 5, 33}, {0}, ACC, F),
    CASE(AVERAGE_POOL, {2, 8, 6, 24, 3, 1}, {1}, 0, B),
    CASE(AVERAGE_POOL, {2, 7, 9, 37, 3, 2}, {1}, ACC, H),
    CASE(AVERAGE_POOL, {2, 9, 9, 16, 3, 2}, {0}, ACC, B),
    CASE(AVERAGE_POOL_GRAD, {1, 1, 1, 1, 1, 1}, {0}, 0, F),
    CASE(AVERAGE_POOL_GRAD, {2, 7, 9, 5, 3, 2}, {1}, ACC, F),
    CASE(AVERAGE_POOL_GRAD, {3, 8, 8, 40, 2, 2}, {0}, 0, F),
    CASE(AVERAGE_POOL_GRAD, {3, 7, 5, 33}, {0}, ACC, F),
    CASE(AVERAGE_POOL_GRAD, {2, 8, 6, 24, 3, 1}, {1}, 0, B),
    CASE(AVERAGE_POOL_GRAD, {2, 7, 9, 37, 3, 2}, {1}, ACC, H),
    CASE(AVERAGE_POOL_GRAD, {2, 9, 9, 16, 3, 2}, {0}, ACC, B),
    CASE(DROPOUT, {1}, {0.5, 0, 7}, 0, F),
    CASE(DROPOUT, {20011}, {0.1, 0, 1e15, 1000000000003}, 0, F), /* from within a block of bits on */
    CASE(DROPOUT, {515}, {0, 0, 3}, 0, F),
    CASE(DROPOUT, {600}, {0.3, 0, 3, 1001, 150, 611}, 0, F), /* runs that begin and end within blocks */
    CASE(DROPOUT, {4000}, {0.3, 0, 3, 10, 1000, 3003}, 0, B),
    CASE(DROPOUT, {4001}, {0.25, 0, 3, 6}, 0, B),
    CASE(DROPOUT, {4001}, {0.9, 0, 3}, 0, H),
    CASE(DROPOUT, {601}, {0, 0.01, 3, 1001, 150, 611}, 0, F), /* jitter */
    CASE(CROSS_ENTROPY, {1, 1, 1}, {1, 1}, 0, F),
    CASE(CROSS_ENTROPY, {5, 50, 64}, {0.2, 0.2}, 0, F),
    CASE(CROSS_ENTROPY, {9, 5001, 5056}, {0.125, 0.5}, 0, F),
    CASE(CROSS_ENTROPY, {9, 50, 50}, {0.125, 0.5}, 0, B),
    CASE(CROSS_ENTROPY, {40, 2049, 2112}, {0.025, 1}, 0, B),
    CASE(CROSS_ENTROPY, {2, 59003, 59008}, {0.5, 0.5}, 0, F), /* rows beyond a block's shared memory */
    CASE(CROSS_ENTROPY, {3, 30011, 30016}, {0.5, 0.5}, 0, B),
    CASE(CROSS_ENTROPY, {40, 2049, 2112}, {0.025, 1}, TWS_SCALED, H),
    CASE(CROSS_ENTROPY, {9, 501, 512}, {1e-6, 0.5}, TWS_SCALED, F),
    CASE(CROSS_ENTROPY, {9, 501, 512}, {0.5, 0.5}, 0, H),
    CASE(VOCABULARY_STATS, {1, 1, 1}, {0}, 0, F),
    CASE(VOCABULARY_STATS, {9, 5001, 5056}, {10000}, 0, F),
    CASE(VOCABULARY_STATS, {40, 2049, 2112}, {2049}, 0, B),
    CASE(VOCABULARY_STATS, {40, 2049, 2112}, {2049}, 0, H),
    CASE(VOCABULARY_STATS, {300, 13, 16}, {26}, 0, F),
    CASE(VOCABULARY_STATS, {7, 0, 32}, {64}, 0, F), /* nothing but padding */
    CASE(VOCABULARY_LOSS, {1, 1, 1, 1}, {1, 1, 0}, 0, F),
    CASE(VOCABULARY_LOSS, {9, 5001, 5056, 3}, {0.125, 0.5, 10000}, 0, F),
    CASE(VOCABULARY_LOSS, {40, 2049, 2112, 2}, {0.025, 1, 2049}, 0, B),
    CASE(VOCABULARY_LOSS, {40, 2049, 2112, 2}, {0.025, 1, 2049}, TWS_SCALED, H),
    CASE(VOCABULARY_LOSS, {300, 13, 16, 8}, {0.25, 0.25, 26}, 0, F),
    CASE(VOCABULARY_LOSS, {7, 0, 32, 4}, {0.25, 0.25, 64}, 0, F),
    CASE(ADAMW, {1}, {1e-8, 0.1}, 0, F),
    CASE(ADAMW, {20011}, {1e-8, 0.1}, 0, F),
    CASE(ADAMW, {4001}, {1e-6, 0.01}, TWS_L2, F),
    CASE(ADAMW, {4001}, {1e-8, 0.1}, 0, B),
    CASE(ADAMW, {4001}, {1e-8, 0}, 0, TWS_F32, TWS_BF16),
    CASE(ADAMW, {4001}, {1e-8, 0.1}, 0, H),
    CASE(ADAMW, {4001}, {1e-8, 0}, 0, TWS_F32, TWS_F16),
    CASE(ADAMW, {1}, {1e-8, 0.1}, TWS_HALF_WEIGHTS, B),
    CASE(ADAMW, {4001}, {1e-8, 0.1}, TWS_HALF_WEIGHTS | TWS_L2, B),
    CASE(ADAMW, {4001}, {1e-8, 0.1}, TWS_HALF_WEIGHTS | TWS_HALF_MOMENTS, B),
    CASE(ADAMW, {20011}, {1e-8, 0.1, 1234}, TWS_HALF_WEIGHTS | TWS_STOCHASTIC, B),
    CASE(ADAMW, {4001}, {1e-8, 0.1, 1234, 77}, TWS_HALF_WEIGHTS | TWS_STOCHASTIC | TWS_L2, B),
    CASE(ADAMW, {4001}, {1e-8, 0.1, 1e15, 4096}, HALF_ALL, B),
    CASE(ADAMW, {5}, {1e-8, 0.1, 3, 13}, HALF_ALL, B), /* in two groups of bits, neither of them whole */
    CASE(ADAMW, {3003}, {1e-8, 0.1, 0, 1000000000001}, HALF_ALL, B),
    CASE(LION, {1}, {0.1}, 0, F),
    CASE(LION, {20011}, {0.1}, 0, F),
    CASE(LION, {4001}, {0.1}, 0, B),
    CASE(LION, {4001}, {0}, 0, TWS_F32, TWS_BF16),
    CASE(LION, {4001}, {0.1}, 0, H),
    CASE(LION, {4001}, {0.1}, TWS_HALF_WEIGHTS, B),
    CASE(LION, {4001}, {0.1}, TWS_HALF_WEIGHTS | TWS_HALF_MOMENTS, B),
    CASE(LION, {20011}, {0.1, 1234, 7}, TWS_HALF_WEIGHTS | TWS_STOCHASTIC, B),
    CASE(LION, {4001}, {0.1, 1234, 77}, HALF_ALL, B),
    CASE(LION, {5}, {0.1, 3, 13}, HALF_ALL, B),
    CASE(ADAGRAD, {1}, {1e-10, 0.1}, 0, F),
    CASE(ADAGRAD, {20011}, {1e-10, 0}, 0, F),
    CASE(ADAGRAD, {20011}, {1e-10, 0.1}, 0, F),
    CASE(ADAGRAD, {4001}, {1e-10, 0.1}, 0, B),
    CASE(ADAGRAD, {4001}, {1e-8, 0}, 0, TWS_F32, TWS_BF16),
    CASE(ADAGRAD, {4001}, {1e-8, 0.1}, 0, H),
    CASE(ADAGRAD, {4001}, {1e-8, 0.1}, TWS_HALF_WEIGHTS, B),
    CASE(ADAGRAD, {4001}, {1e-8, 0.1}, TWS_HALF_WEIGHTS | TWS_HALF_MOMENTS, B),
    CASE(ADAGRAD, {20011}, {1e-8, 0.1, 1234, 7}, TWS_HALF_WEIGHTS | TWS_STOCHASTIC, B),
    CASE(ADAGRAD, {4001}, {1e-8, 0.1, 1234, 77}, HALF_ALL, B),
    CASE(LAMB, {1}, {1e-6, 0.1, 10, 0.01}, 0, F),
    CASE(LAMB, {20011}, {1e-6, 0.1, 10, 0.01}, 0, F),
    CASE(LAMB, {4001}, {1e-6, 0, 1.5, 1.25}, 0, F), /* cut at both ends, as the norms are drawn */
    CASE(LAMB, {4001}, {1e-6, 0.1, 10, 0.01}, 0, B),
    CASE(LAMB, {4001}, {1e-6, 0.1, 10, 0.01}, 0, TWS_F32, TWS_BF16),
    CASE(LAMB, {4001}, {1e-6, 0.1, 10, 0.01}, 0, H),
    CASE(LAMB, {4001}, {1e-6, 0.1, 10, 0.01}, TWS_HALF_WEIGHTS, B),
    CASE(LAMB, {4001}, {1e-6, 0.1, 10, 0.01, 1234, 77}, HALF_ALL, B),
    CASE(LAMB_NORMS, {1}, {1e-6, 0.1, 10, 0.01, 1}, 0, F),
    CASE(LAMB_NORMS, {20011}, {1e-6, 0.1, 10, 0.01, 0.25}, 0, F),
    CASE(LAMB_NORMS, {4001}, {1e-6, 0.1, 10, 0.01, 1}, 0, B),
    CASE(LAMB_NORMS, {4001}, {1e-6, 0.1, 10, 0.01, 1}, 0, H),
    CASE(LAMB_NORMS, {4001}, {1e-6, 0.1, 10, 0.01, 1}, TWS_HALF_WEIGHTS, B),
    CASE(LAMB_NORMS, {4001}, {1e-6, 0.1, 10, 0.01, 1}, TWS_HALF_WEIGHTS | TWS_HALF_MOMENTS, B),
    CASE(SQUARED_NORM, {1}, {1}, 0, F),
    CASE(SQUARED_NORM, {40011}, {0.25}, 0, F),
    CASE(SQUARED_NORM, {4011}, {1}, 0, B),
    CASE(SQUARED_NORM, {4011}, {1}, 0, H),
    CASE(CLIP, {0}, {1, 0.25}, 0, F), /* the argument, in tests only: the share of ignored tokens */
    CASE(CLIP, {0}, {4, 0.75}, 0, F),
    CASE(CLIP, {0}, {0, 0.5}, 0, F),
    CASE(CLIP, {0}, {1, 1}, 0, F),
    CASE(CLIP, {0}, {0, 0.9999999999}, 0, F),
    CASE(CLIP, {0}, {1}, 0, F),
    CASE(CLIP, {0}, {1e9}, 0, F),
    CASE(CLIP, {0}, {0}, 0, F),
    CASE(CLIP, {0}, {1e-3, 0.25}, TWS_SCALED, F),
    CASE(CLIP, {0}, {0}, TWS_SCALED, F),
    CASE(CLIP, {0}, {1, 1}, TWS_SCALED, F),
    CASE(FILL, {20011}, {0.5}, 0, F),
    CASE(FILL, {33}, {-1.5}, 0, B),
    CASE(FILL, {33}, {-1.5}, 0, H),
    CASE(ACCUMULATE, {20011}, {0}, 0, F),
    CASE(ACCUMULATE, {65}, {0}, 0, M),
    CASE(ACCUMULATE, {65}, {0}, 0, B),
    CASE(ACCUMULATE, {65}, {0}, 0, H),
    CASE(ACCUMULATE, {65}, {0}, 0, HM),
    CASE(ACCUMULATE_CLIPPED, {20011}, {0}, 0, F),
    CASE(ACCUMULATE_CLIPPED, {65}, {0}, 0, M),
    CASE(ACCUMULATE_CLIPPED, {65}, {0}, 0, HM),
    /* count, columns[, kept, rows]; first */
    CASE(COLUMN_NORMS, {20011, 37}, {5}, 0, F),
    CASE(COLUMN_NORMS, {300, 1}, {0}, 0, B),
    CASE(COLUMN_NORMS, {17, 300}, {290}, 0, F),
    CASE(TOP_COLUMNS, {1, 1}, {0}, 0, F),
    CASE(TOP_COLUMNS, {1000, 100}, {0}, 0, F),
    CASE(TOP_COLUMNS, {77, 77}, {0}, 0, F),
    CASE(GATHER_COLUMNS, {300, 1, 1, 300}, {0}, 0, F),
    CASE(GATHER_COLUMNS, {2000, 65, 9, 32}, {64}, 0, F),
    CASE(GATHER_COLUMNS, {20, 65, 9, 1}, {20}, 0, B),
    CASE(SCATTER_COLUMNS, {300, 1, 1, 300}, {0}, 0, F),
    CASE(SCATTER_COLUMNS, {2000, 65, 9, 32}, {64}, 0, H),
    CASE(SCATTER_COLUMNS, {20, 65, 9, 1}, {20}, 0, F),
    CASE(CAST, {20011}, {0}, 0, TWS_F32, TWS_BF16),
    CASE(CAST, {77}, {0}, 0, M),
    CASE(CAST, {77}, {0}, 0, B),
    CASE(CAST, {77}, {0}, 0, F),
    CASE(CAST, {20011}, {0}, 0, TWS_F32, TWS_F16),
    CASE(CAST, {77}, {0}, 0, HM),
    CASE(CAST, {77}, {0}, 0, H),
    CASE(CAST, {77}, {0}, 0, TWS_F16, TWS_BF16),
    CASE(TRANSPOSE, {1, 1, 1}, {0}, 0, F),
    CASE(TRANSPOSE, {130, 70, 1}, {0}, 0, F),
    CASE(TRANSPOSE, {33, 257, 3}, {0}, 0, B),
    CASE(TRANSPOSE, {33, 25, 3}, {0}, 0, H),
    CASE(TRANSPOSE, {4, 96, 63}, {0}, 0, F),
    CASE(TRANSPOSE, {4, 96, 64}, {0}, 0, B),
    CASE(TRANSPOSE, {50, 3, 200}, {0}, 0, F),
    CASE(HEADS_SPLIT, {5, 3, 1, 8}, {0}, 0, F),
    CASE(HEADS_SPLIT, {70, 8, 2, 24}, {0}, 0, B),
    CASE(HEADS_SPLIT, {33, 4, 4, 5}, {0}, 0, F),
    CASE(HEADS_JOIN, {5, 3, 1, 8}, {0}, 0, F),
    CASE(HEADS_JOIN, {70, 8, 2, 24}, {0}, 0, B),
    CASE(HEADS_JOIN, {33, 4, 4, 5}, {0}, 0, H),
    CASE(ATTENTION_MERGE, {1, 6, 2, 8, 6}, {0}, 0, F),
    CASE(ATTENTION_MERGE, {3, 70, 4, 24, 35}, {0}, 0, F),
    CASE(ATTENTION_MERGE, {2, 40, 3, 5, 20}, {0}, 0, B),
    CASE(ATTENTION_MERGE, {2, 40, 3, 64, 20}, {0}, 0, H),
    CASE(HEADS_PACK, {5, 1, 3, 2, 8}, {0}, 0, F), /* one rank: a copy */
    CASE(HEADS_PACK, {70, 2, 4, 4, 16}, {0}, 0, F),
    CASE(HEADS_PACK, {70, 4, 8, 2, 24}, {0}, 0, B),
    CASE(HEADS_PACK, {33, 4, 4, 1, 5}, {0}, 0, F),
    CASE(HEADS_PACK, {33, 3, 6, 0, 7}, {0}, 0, B),
    CASE(HEADS_PACK, {9, 2, 12, 6, 64}, {0}, 0, F),
    CASE(HEADS_UNPACK, {5, 1, 3, 2, 8}, {0}, 0, F),
    CASE(HEADS_UNPACK, {70, 2, 4, 4, 16}, {0}, 0, F),
    CASE(HEADS_UNPACK, {70, 4, 8, 2, 24}, {0}, 0, B),
    CASE(HEADS_UNPACK, {70, 4, 8, 2, 25}, {0}, 0, H),
    CASE(HEADS_UNPACK, {33, 4, 4, 1, 5}, {0}, 0, F),
    CASE(HEADS_UNPACK, {33, 3, 6, 0, 7}, {0}, 0, B),
    CASE(HEADS_UNPACK, {9, 2, 12, 6, 64}, {0}, 0, F),
    /* tokens, experts, choices, capacity; keeps, by choice, renormalizes, sampled; seed, first token, auxiliary, share
     */
    CASE(ROUTER, {1, 1, 1, 1}, {0, 0, 0, 0, 1}, 0, F),
    CASE(ROUTER, {40, 5, 1, 6}, {0, 1, 0, 0, 1, 0, 0, 0.5, 0.01}, 0, F),
    CASE(ROUTER, {70, 8, 2, 12}, {0, 1, 1, 0, 1, 0, 0, 0.5, 0.01}, 0, F),
    CASE(ROUTER, {300, 70, 6, 20}, {0, 0, 1, 0, 1, 0, 0, 0.01, 0.01}, 0, F),
    CASE(ROUTER, {90, 4, 3, 50}, {1, 0, 1, 0, 1, 0, 0, 0.5, 0.01}, 0, F),
    CASE(ROUTER, {90, 4, 3, 200}, {1, 0, 0, 0, 1, 0, 0, 0.5, 0.01}, 0, F), /* room for all */
    CASE(ROUTER, {130, 3, 1, 11}, {2, 1, 0, 0, 1, 1e15, 1234, 0.5, 0.01}, 0, F),
    CASE(ROUTER, {600, 3, 2, 111}, {2, 1, 1, 0, 1, 77, 5, 0.5, 0.01}, 0, B),
    CASE(ROUTER, {130, 6, 1, 30}, {2, 1, 0, 1, 1, 7, 1000, 0.5, 0.01}, 0, F),
    CASE(ROUTER, {130, 37, 2, 10}, {0, 1, 1, 2, 1, 7, 1000, 0.5, 0.01}, 0, H),
    CASE(ROUTER, {64, 8, 2, 16}, {0, 1, 1, 0, 1, 0, 0, 0.5, 0.01}, 0, B),        /* equal logits */
    CASE(ROUTER, {70, 8, 2, 12, 4, 2}, {0, 0, 0, 0, 16, 0, 0, 0.5, 0.01}, 0, F), /* groups of experts */
    CASE(ROUTER, {90, 64, 6, 30, 8, 3}, {1, 0, 1, 0, 2.5, 0, 0, 0.5, 0.01}, TWS_SIGMOID, F),
    CASE(ROUTER, {40, 6, 2, 40, 6, 2}, {0, 0, 1, 0, 1, 0, 0, 0, 0.01}, TWS_SIGMOID, F),
    CASE(ROUTER, {40, 5, 2, 40}, {0, 0, 1, 0, 1, 0, 0, 0.1, 0.01}, TWS_SIGMOID, B),
    /* shared slots, biases, a z-loss, counted routes */
    CASE(ROUTER, {70, 8, 2, 20, 0, 0, 8}, {0, 1, 1, 0, 1, 0, 0, 0.5, 0.01, 1}, 0, F),
    CASE(ROUTER, {90, 12, 3, 60, 0, 0, 4}, {1, 0, 1, 0, 1, 0, 0, 0.5, 0.01, 0.5}, TWS_BIAS | TWS_Z_LOSS, F),
    CASE(ROUTER, {40, 6, 1, 40, 0, 0, 1}, {2, 1, 0, 1, 1, 7, 9, 0.5, 0.01, 1, 0.3}, TWS_Z_LOSS, B),
    CASE(ROUTER, {90, 64, 6, 30, 8, 3, 0}, {1, 0, 1, 0, 2.5, 0, 0, 0.5, 0.01, 1}, TWS_SIGMOID | TWS_BIAS, F),
    CASE(ROUTER, {40, 6, 2, 40}, {0, 0, 1, 2, 1, 5, 0, 0, 0.01, 1, 0.1}, TWS_BIAS | TWS_Z_LOSS, F),
    CASE(BALANCE, {1}, {0.001}, 0, F),
    CASE(BALANCE, {37}, {0.25}, 0, F),
    CASE(ROUTER_GRAD, {70, 8, 2, 20, 0, 0, 8}, {0, 1, 1, 0, 1, 0.5}, 0, F),
    CASE(ROUTER_GRAD, {90, 12, 3, 60, 0, 0, 4}, {0, 0, 0, 0, 1, 0.5, 0.2}, TWS_Z_LOSS, F),
    CASE(ROUTER_GRAD, {40, 6, 2, 40}, {0, 0, 1, 0, 1, 0.5, 0.2}, TWS_Z_LOSS | TWS_SCALED, H),
    CASE(DISPATCH, {50, 33, 4, 2, 30, 4}, {0}, 0, F),
    CASE(DISPATCH, {50, 64, 6, 2, 50, 3}, {0}, 0, B),
    CASE(COMBINE_GRAD, {50, 33, 6, 2, 40, 6}, {0}, 0, F),
    CASE(EXPERT_LINEAR, {3, 4, 30, 70, 20, 0, 4}, {0}, TWS_BIAS, F),
    CASE(EXPERT_LINEAR, {1, 6, 20, 40, 64, 0, 3}, {0}, 0, B),
    CASE(EXPERT_LINEAR_GRAD_INPUT, {3, 4, 30, 20, 70, 0, 4}, {0}, 0, F),
    CASE(EXPERT_LINEAR_GRAD_INPUT, {2, 6, 20, 40, 64, 0, 3}, {0}, ACC, B),
    CASE(EXPERT_LINEAR_GRAD_WEIGHT, {3, 4, 30, 70, 20, 0, 4}, {0}, ACC | TWS_BIAS, F),
    CASE(ROUTER_GRAD, {70, 9, 2, 12, 3, 2}, {0, 0, 0, 0, 16, 0.3}, 0, F),
    CASE(ROUTER_GRAD, {70, 16, 3, 12, 4, 2}, {0, 0, 1, 0, 2.5, 0.2}, TWS_SIGMOID, F),
    CASE(ROUTER_GRAD, {40, 5, 2, 40}, {0, 0, 0, 0, 1, 0.1}, TWS_SIGMOID, B),
    CASE(LATENT, {1, 1, 1, 2, 1, 1, 1}, {10000, 0, 0, 0, 1}, 0, F),
    CASE(LATENT, {40, 3, 16, 8, 20, 24, 20}, {10000, 40, 1, 3, 1.5}, 0, F),
    CASE(LATENT, {37, 2, 19, 6, 25, 7, 37}, {5000, 4, 0, 0, 1}, 0, B),
    CASE(LATENT_GRAD, {1, 1, 1, 2, 1, 1, 1}, {10000, 0, 0, 0, 1}, 0, F),
    CASE(LATENT_GRAD, {40, 3, 16, 8, 20, 24, 20}, {10000, 40, 1, 3, 1.5}, 0, F),
    CASE(LATENT_GRAD, {37, 2, 19, 6, 25, 7, 37}, {5000, 4, 0, 0, 1}, 0, H),
    CASE(PART, {9, 3, 20, 13}, {0}, 0, F),
    CASE(PART, {9, 1, 64, 64}, {0}, 0, B),
    CASE(PART, {5, 2, 40, 17}, {21}, 0, F),
    CASE(PART_GRAD, {9, 3, 20, 13}, {0}, 0, F),
    CASE(PART_GRAD, {9, 3, 40, 16}, {0}, TWS_ACCUMULATE, H),
    CASE(PART_GRAD, {5, 2, 40, 17}, {21}, 0, B),
    CASE(PART_GRAD, {5, 2, 40, 17}, {23}, TWS_ACCUMULATE, F),
    CASE(GATE, {1, 1, 1}, {0}, 0, F),
    CASE(GATE, {30, 70, 1}, {0}, 0, B),
    CASE(GATE, {30, 64, 2}, {1}, 0, F),
    CASE(LOW_RANK, {9, 4, 20, 12, 12, 0, 1, 0}, {0}, 0, F),
    CASE(LOW_RANK, {70, 8, 33, 0, 0, 0, 0, 0}, {0}, 0, B),
    CASE(LOW_RANK, {40, 3, 17, 40, 0, 1, 0, 0}, {0}, 0, H),
    CASE(LOW_RANK_GRAD_INPUT, {9, 4, 20, 12, 12, 0, 1, 0}, {0}, 0, F),
    CASE(LOW_RANK_GRAD_INPUT, {40, 16, 17, 40, 30, 0, 0, 0}, {0}, 0, B),
    CASE(LOW_RANK_GRAD_WEIGHT, {9, 4, 20, 12, 12, 0, 1, 0}, {0}, ACC, F),
    CASE(LOW_RANK_GRAD_WEIGHT, {70, 8, 33, 40, 0, 0, 0, 0}, {0}, 0, M),
    CASE(DEQUANTIZE, {2, 2, 8}, {0}, 0, F),
    CASE(DEQUANTIZE, {64 * 75, 64, 4}, {0}, 0, F),
    CASE(DEQUANTIZE, {64 * 75, 64, 8}, {0}, 0, B),
    CASE(DEQUANTIZE, {3 * 602, 602, 4}, {0}, 0, B),
    CASE(DEQUANTIZE, {3 * 602, 602, 8}, {0}, 0, H),
    CASE(GATE_GRAD, {1, 1, 1}, {0}, 0, F),
    CASE(GATE_GRAD, {30, 70, 1}, {0}, 0, H),
    CASE(GATE_GRAD, {30, 64, 2}, {0}, 0, F),
    CASE(GATE_GRAD, {30, 65, 2}, {1}, 0, F),
    CASE(ROUTER_GRAD, {1, 2, 1, 1}, {0, 0, 0, 0, 1, 0.5}, 0, F),
    CASE(ROUTER_GRAD, {40, 5, 1, 6}, {0, 1, 0, 0, 1, 0.5}, 0, F),
    CASE(ROUTER_GRAD, {70, 8, 2, 12}, {0, 1, 1, 0, 1, 0.5}, 0, F),
    CASE(ROUTER_GRAD, {300, 70, 6, 20}, {0, 0, 1, 0, 1, 0.5}, 0, F),
    CASE(ROUTER_GRAD, {70, 9, 2, 12}, {0, 0, 0, 0, 1, 0}, 0, B),
    CASE(ROUTER_GRAD, {70, 9, 2, 12}, {0, 0, 1, 0, 1, 1e-4}, TWS_SCALED, H),
    CASE(DISPATCH, {1, 1, 1, 1, 1}, {0}, 0, F),
    CASE(DISPATCH, {50, 33, 4, 2, 20}, {0}, 0, F),
    CASE(DISPATCH, {50, 64, 8, 2, 9}, {0}, 0, B),
    CASE(DISPATCH_GRAD, {50, 33, 4, 2, 20}, {0}, 0, F),
    CASE(DISPATCH_GRAD, {50, 64, 8, 2, 9}, {0}, ACC, B),
    CASE(COMBINE, {1, 1, 1, 1, 1}, {0}, 0, F),
    CASE(COMBINE, {50, 33, 4, 2, 20}, {0}, 0, F),
    CASE(COMBINE, {50, 64, 8, 3, 9}, {0}, 0, H),
    CASE(COMBINE_GRAD, {50, 33, 4, 2, 20}, {0}, 0, F),
    CASE(COMBINE_GRAD, {50, 64, 8, 3, 9}, {0}, 0, B),
    /* sources, experts, slots, out, in */
    CASE(EXPERT_LINEAR, {1, 1, 1, 1, 1}, {0}, 0, F),
    CASE(EXPERT_LINEAR, {1, 4, 30, 33, 17}, {0}, 0, F),
    CASE(EXPERT_LINEAR, {3, 2, 90, 70, 20}, {0}, TWS_BIAS, F),
    CASE(EXPERT_LINEAR, {2, 3, 20, 40, 64}, {0}, TWS_BIAS, B),
    CASE(EXPERT_LINEAR, {2, 3, 20, 40, 64}, {0}, 0, H),
    CASE(EXPERT_LINEAR_GRAD_INPUT, {1, 4, 30, 33, 17}, {0}, 0, F),
    CASE(EXPERT_LINEAR_GRAD_INPUT, {3, 2, 90, 20, 70}, {0}, ACC, F),
    CASE(EXPERT_LINEAR_GRAD_INPUT, {2, 3, 20, 40, 64}, {0}, ACC, B),
    CASE(EXPERT_LINEAR_GRAD_WEIGHT, {1, 4, 30, 33, 17}, {0}, 0, F),
    CASE(EXPERT_LINEAR_GRAD_WEIGHT, {3, 2, 90, 70, 20}, {0}, ACC | TWS_BIAS, F),
    CASE(EXPERT_LINEAR_GRAD_WEIGHT, {2, 3, 20, 40, 64}, {0}, TWS_BIAS, M),
    CASE(EXPERT_LINEAR_GRAD_WEIGHT, {2, 3, 20, 40, 64}, {0}, ACC, HM),
    /* batch, seq, heads, positions, head; scale, dropout, max_distance, parts, kinds */
    CASE(DISENTANGLED, {1, 1, 1, 2, 1}, {0}, 0, F),
    CASE(DISENTANGLED, {2, 70, 2, 16, 20}, {0, 0, 40, 3, 3}, TWS_LENGTHS, F),
    CASE(DISENTANGLED, {1, 130, 3, 512, 16}, {0.1, 0, 0, 2, 3}, 0, F),
    CASE(DISENTANGLED, {2, 20, 2, 24, 33}, {0, 0.3, 0, 1, 1, 7, 2, 1, 5}, TWS_DROPOUT, B),
    CASE(DISENTANGLED_GRAD, {1, 2, 1, 2, 3}, {0}, 0, F),
    CASE(DISENTANGLED_GRAD, {2, 70, 2, 16, 20}, {0, 0, 40, 3, 3}, TWS_LENGTHS, F),
    CASE(DISENTANGLED_GRAD, {1, 66, 3, 140, 16}, {0.1, 0, 0, 2, 3}, 0, F),
    CASE(DISENTANGLED_GRAD, {2, 20, 2, 24, 33}, {0, 0.3, 0, 1, 2, 7, 2, 1, 5}, TWS_DROPOUT, F),
    CASE(DISENTANGLED_GRAD, {2, 20, 2, 24, 32}, {0, 0.3, 16, 2, 1, 7, 2, 1, 5}, TWS_DROPOUT | TWS_LENGTHS, H),
    CASE(PART_BIAS, {9, 3, 20}, {0}, 0, F),
    CASE(PART_BIAS, {70, 2, 33}, {0}, 0, B),
    CASE(PART_BIAS, {5, 1, 64}, {0}, 0, H),
    CASE(PART_BIAS_GRAD, {9, 3, 20}, {0}, ACC, F),
    CASE(PART_BIAS_GRAD, {70, 2, 33}, {0}, 0, M),
    CASE(PART_BIAS_GRAD, {300, 3, 200}, {0}, ACC, HM),
    CASE(NEIGHBOURS, {2, 7, 20, 3}, {0}, TWS_LENGTHS, F),
    CASE(NEIGHBOURS, {3, 2, 33, 5}, {0}, 0, B),
    CASE(NEIGHBOURS_GRAD, {2, 7, 20, 3}, {0}, ACC | TWS_LENGTHS, F),
    CASE(NEIGHBOURS_GRAD, {3, 2, 33, 5}, {0}, 0, H),
    CASE(SPANS, {3, 40, 2}, {0}, TWS_LENGTHS, F),
    CASE(SPANS, {2, 17, 2}, {0}, 0, H),
    CASE(SPANS_GRAD, {3, 40, 2}, {0}, TWS_LENGTHS, F),
    CASE(SPANS_GRAD, {2, 17, 2}, {0}, TWS_LENGTHS, B),
};
#undef F
#undef B
#undef M
#undef H
#undef HM
enum { TABLE_CASES = sizeof table / sizeof *table, RANDOM_PER_KERNEL = 4 };
enum { RANDOM_CASES = RANDOM_PER_KERNEL * TWS_KERNEL_COUNT, ALL_CASES = TABLE_CASES + RANDOM_CASES };

static int64_t draw(uint64_t seed, uint64_t index, int64_t low, int64_t high) {
  return low + (int64_t)(tws_random_uniform(7, seed, index) * (double)(high - low + 1));
}

static test_case random_case(int number) {
  const uint64_t s = 1000 + (uint64_t)number;
  test_case c = {.kernel = (tws_kernel)(number % TWS_KERNEL_COUNT)};
  c.dtype = (const tws_dtype[]){TWS_BF16, TWS_F16, TWS_F32, TWS_F32}[draw(s, 0, 0, 3)];
  c.dtype2 = draw(s, 1, 0, 1) ? c.dtype : TWS_F32;
  c.flags = (uint32_t)(draw(s, 2, 0, 1) * TWS_ACCUMULATE + draw(s, 3, 0, 1) * TWS_ACCUMULATE_PARAM +
                       draw(s, 4, 0, 1) * TWS_BIAS + draw(s, 5, 0, 1) * TWS_RMS + draw(s, 6, 0, 1) * TWS_L2 +
                       draw(s, 7, 0, 1) * TWS_SCALED + draw(s, 8, 0, 1) * TWS_GELU + draw(s, 9, 0, 1) * TWS_RESIDUAL);
  if (c.kernel != TWS_KERNEL_LINEAR && c.kernel != TWS_KERNEL_LINEAR_GRAD_INPUT) c.flags &= ~(uint32_t)TWS_GELU;
  if (c.kernel != TWS_KERNEL_NORM) c.flags &= ~(uint32_t)TWS_RESIDUAL;
  for (int i = 0; i < 5; ++i) c.d[i] = draw(s, 10 + (uint64_t)i, 1, i == 0 ? 70 : 150);
  c.f[0] = 1e-5;
  switch (c.kernel) {
    case TWS_KERNEL_EMBEDDING:
      if (c.d[4] > c.d[3]) c.d[3] = draw(s, 20, 0, 1) ? 0 : c.d[4];
      c.f[0] = (double)(draw(s, 21, 0, 1) * draw(s, 22, 1, 200));
      break;
    case TWS_KERNEL_EMBEDDING_GRAD:
      c.f[0] = (double)(draw(s, 21, 0, 1) * draw(s, 22, 1, 200));
      break;
    case TWS_KERNEL_NORM_GRAD: /* of few features it is a small difference of large numbers, and of one 0 */
      if (c.d[1] < 8) c.d[1] += 8;
      break;
    case TWS_KERNEL_HEADS_NORM:
    case TWS_KERNEL_HEADS_NORM_GRAD:
      c.d[1] = 1 + c.d[1] % 5, c.d[2] = 1 + c.d[2] % 3, c.d[3] += 8, c.f[1] = (double)draw(s, 20, 0, 1);
      c.flags |= (uint32_t)draw(s, 21, 0, 1) * TWS_TOGETHER;
      break;
    case TWS_KERNEL_POSITION_GRAD:
      if (c.d[3] > c.d[2]) c.d[3] = c.d[2];
      break;
    case TWS_KERNEL_LINEAR_GRAD_INPUT:
      if (c.flags & TWS_GELU) c.flags &= ~(uint32_t)TWS_ACCUMULATE;
      break;
    case TWS_KERNEL_ROPE:
    case TWS_KERNEL_ROPE_GRAD:
      c.d[1] = 1 + c.d[1] % 5, c.d[2] = 1 + c.d[2] % 3, c.d[3] *= 2;
      c.d[5] = draw(s, 20, 0, 1) * 2 * draw(s, 21, 1, c.d[3] / 2);
      c.flags |= (uint32_t)draw(s, 22, 0, 1) * TWS_INTERLEAVED;
      c.f[0] = 10000;
      break;
    case TWS_KERNEL_ATTENTION:
    case TWS_KERNEL_ATTENTION_GRAD:
      c.d[0] = 1 + c.d[0] % 3, c.d[3] = 1 + c.d[3] % 3, c.d[2] = c.d[3] * (1 + c.d[2] % 3);
      c.f[0] = 0, c.f[1] = 0.25, c.f[4] = 1, c.f[6] = (double)draw(s, 24, 0, 3), c.f[7] = (double)c.d[2] + c.f[6];
      c.f[2] = draw(s, 25, 0, 3) ? 0 : 2;
      if (!draw(s, 20, 0, 1)) break;
      for (int bit = 11; 1 << bit <= TWS_Q_K_V; ++bit) c.flags |= (uint32_t)draw(s, 20 + (uint64_t)bit, 0, 1) << bit;
      if (c.flags & (TWS_Q_KV | TWS_Q_K_V)) c.d[5] = draw(s, 21, 0, 150);
      c.d[6] = draw(s, 22, 0, 1) * draw(s, 23, 2, 80); /* of 1: gradients that are nothing but rounding */
      if (!draw(s, 40, 0, 1)) break;
      c.flags |= TWS_RELATIVE, c.d[7] = 2 * draw(s, 41, 2, 20), c.f[3] = (double)(c.d[7] + draw(s, 42, 1, 100));
      break;
    case TWS_KERNEL_SOFTCAP:
    case TWS_KERNEL_SOFTCAP_GRAD:
    case TWS_KERNEL_MULTIPLY:
      c.f[0] = 0.5 + 2 * tws_random_uniform(7, s, 20);
      break;
    case TWS_KERNEL_DROPOUT:
      c.f[0] = 0.9 * tws_random_uniform(7, s, 20), c.f[2] = (double)draw(s, 21, 0, 1 << 30),
      c.f[3] = (double)draw(s, 22, 0, 99);
      c.d[0] *= draw(s, 23, 1, 30);
      break;
    case TWS_KERNEL_BATCH_NORM:
      c.f[1] = 0.1, c.f[2] = 0.5, c.flags |= (uint32_t)draw(s, 20, 0, 1) * TWS_RUNNING;
      break;
    case TWS_KERNEL_CONVOLUTION:
    case TWS_KERNEL_CONVOLUTION_GRAD_INPUT:
    case TWS_KERNEL_CONVOLUTION_GRAD_WEIGHT:
      c.d[0] = draw(s, 20, 1, 3), c.d[1] = draw(s, 21, 4, 14), c.d[2] = draw(s, 22, 4, 14), c.d[5] = draw(s, 23, 1, 4);
      c.d[6] = draw(s, 24, 1, 3), c.d[7] = (int64_t[]){0, 1, 2, 6}[draw(s, 25, 0, 3)];
      c.f[0] = (double)draw(s, 26, 0, c.d[5] / 2);
      c.d[3] = (c.d[7] > 0 ? c.d[7] : 1) * draw(s, 27, 1, 20), c.d[4] = (c.d[7] > 0 ? c.d[7] : 1) * draw(s, 28, 1, 20);
      break;
    case TWS_KERNEL_MAX_POOL:
    case TWS_KERNEL_MAX_POOL_GRAD:
    case TWS_KERNEL_AVERAGE_POOL:
    case TWS_KERNEL_AVERAGE_POOL_GRAD:
      c.d[0] = draw(s, 20, 1, 3), c.d[1] = draw(s, 21, 4, 14), c.d[2] = draw(s, 22, 4, 14), c.d[4] = draw(s, 23, 0, 4);
      c.d[5] = draw(s, 24, 1, 3), c.f[0] = (double)draw(s, 26, 0, c.d[4] / 2);
      break;
    case TWS_KERNEL_CROSS_ENTROPY:
      if (c.d[1] < 2) c.d[1] = 2; /* of one word: gradients that are nothing but rounding */
      c.d[2] += c.d[1], c.f[0] = c.f[1] = 0.25;
      break;
    case TWS_KERNEL_VOCABULARY_STATS:
      c.d[2] += c.d[1], c.f[0] = (double)draw(s, 21, 0, 200);
      break;
    case TWS_KERNEL_VOCABULARY_LOSS:
      c.d[2] += c.d[1], c.d[3] = 1 + c.d[3] % 5, c.f[0] = c.f[1] = 0.25, c.f[2] = (double)draw(s, 21, 0, 200);
      break;
    case TWS_KERNEL_SQUARED_NORM:
      c.f[0] = 0.5;
      break;
    case TWS_KERNEL_COLUMN_NORMS:
      c.f[0] = (double)draw(s, 20, 0, c.d[1] - 1), c.d[0] *= draw(s, 21, 1, 30);
      break;
    case TWS_KERNEL_TOP_COLUMNS:
      c.d[0] = c.d[1] * draw(s, 20, 1, 20);
      break;
    case TWS_KERNEL_GATHER_COLUMNS:
    case TWS_KERNEL_SCATTER_COLUMNS:
      c.d[2] = draw(s, 20, 1, c.d[1]), c.f[0] = (double)draw(s, 21, 0, c.d[1] - 1), c.d[0] *= draw(s, 22, 1, 30);
      c.d[3] = ((int64_t)c.f[0] + c.d[0] + c.d[1] - 1) / c.d[1];
      break;
    case TWS_KERNEL_TRANSPOSE:
      c.d[2] = draw(s, 20, 0, 1) ? 1 + c.d[2] % 80 : 1 + c.d[2] % 4;
      break;
    case TWS_KERNEL_HEADS_SPLIT:
    case TWS_KERNEL_HEADS_JOIN:
      c.d[1] = 1 + c.d[1] % 12, c.d[2] = 1 + c.d[2] % 8, c.d[3] = 1 + c.d[3] % 70;
      break;
    case TWS_KERNEL_ATTENTION_MERGE:
      c.d[0] = 1 + c.d[0] % 4, c.d[2] = 1 + c.d[2] % 8, c.d[3] = 1 + c.d[3] % 70, c.d[4] = draw(s, 20, 1, c.d[1]);
      break;
    case TWS_KERNEL_HEADS_PACK:
    case TWS_KERNEL_HEADS_UNPACK:
      c.d[1] = (int64_t)1 << draw(s, 20, 0, 3), c.d[2] = c.d[1] * (1 + c.d[2] % 4), c.d[4] = 1 + c.d[4] % 40;
      c.d[3] = draw(s, 21, 0, 1) ? c.d[1] * draw(s, 22, 0, 2) : (int64_t)1 << draw(s, 22, 0, 3);
      break;
    case TWS_KERNEL_ROUTER:
    case TWS_KERNEL_ROUTER_GRAD:
      c.d[1] = 2 + c.d[1] % 40, c.d[2] = 1 + draw(s, 20, 0, c.d[1] < 6 ? c.d[1] - 1 : 5), c.d[3] = 1 + c.d[3] % 20;
      c.f[0] = (double)draw(s, 21, 0, 2), c.f[1] = (double)draw(s, 22, 0, 1), c.f[2] = (double)draw(s, 23, 0, 1);
      c.f[3] = (double)draw(s, 24, 0, 2), c.f[4] = 1.5, c.f[5] = 0.5;
      if (c.kernel == TWS_KERNEL_ROUTER) c.f[5] = (double)draw(s, 25, 0, 1 << 30), c.f[7] = 0.5, c.f[8] = 0.01;
      c.d[4] = draw(s, 26, 0, 1) && c.d[1] % 2 == 0 && 2 * c.d[2] <= c.d[1] ? 2 : 0, c.d[5] = 1;
      break;
    case TWS_KERNEL_LATENT:
    case TWS_KERNEL_LATENT_GRAD:
      c.d[1] = 1 + c.d[1] % 4, c.d[2] = 1 + c.d[2] % 30, c.d[3] = 2 * (1 + c.d[3] % 9),
      c.d[4] = 1 + c.d[4] % (c.d[2] + c.d[3]);
      c.d[5] = draw(s, 20, 1, 30), c.d[6] = draw(s, 21, 1, c.d[0]), c.f[0] = 10000, c.f[1] = (double)draw(s, 22, 0, 3);
      c.f[2] = 1, c.f[3] = (double)draw(s, 23, 1, 5), c.f[4] = 1.25, c.flags = 0;
      break;
    case TWS_KERNEL_DISENTANGLED:
    case TWS_KERNEL_DISENTANGLED_GRAD:
      c.d[0] = draw(s, 20, 1, 3), c.d[1] = draw(s, 21, 2, 80), c.d[2] = draw(s, 22, 1, 4),
      c.d[3] = 2 * draw(s, 23, 4, 60);
      c.d[4] = draw(s, 24, 2, 40), c.f[2] = (double)(draw(s, 25, 0, 1) * (c.d[3] + draw(s, 26, 0, 50)));
      c.f[4] = (double)draw(s, 27, 1, 3), c.f[3] = (double)draw(s, 28, c.f[4] > 2 ? 2 : 1, 3);
      c.flags = (uint32_t)(draw(s, 29, 0, 1) * TWS_LENGTHS + draw(s, 30, 0, 1) * TWS_DROPOUT);
      c.f[1] = 0.4, c.f[5] = (double)draw(s, 31, 0, 1 << 30);
      break;
    case TWS_KERNEL_PART_BIAS:
    case TWS_KERNEL_PART_BIAS_GRAD:
      c.d[1] = 1 + c.d[1] % 3, c.flags &= c.kernel == TWS_KERNEL_PART_BIAS ? 0 : TWS_ACCUMULATE;
      break;
    case TWS_KERNEL_NEIGHBOURS:
    case TWS_KERNEL_NEIGHBOURS_GRAD:
    case TWS_KERNEL_SPANS:
    case TWS_KERNEL_SPANS_GRAD:
      c.d[0] = 1 + c.d[0] % 4, c.d[1] = 1 + c.d[1] % 40, c.d[2] = 1 + c.d[2] % 40, c.d[3] = 1 + 2 * (c.d[3] % 4);
      c.flags &= c.kernel == TWS_KERNEL_NEIGHBOURS_GRAD ? TWS_ACCUMULATE : 0;
      c.flags |= (uint32_t)draw(s, 20, 0, 1) * TWS_LENGTHS;
      break;
    case TWS_KERNEL_PART:
    case TWS_KERNEL_PART_GRAD:
      c.d[1] = 1 + c.d[1] % 5, c.d[2] = 1 + c.d[2] % 50, c.d[3] = 1 + c.d[3] % c.d[2], c.flags &= TWS_ACCUMULATE;
      c.f[0] = (double)draw(s, 20, 0, c.d[2] - c.d[3]);
      if (c.kernel == TWS_KERNEL_PART) c.flags = 0;
      break;
    case TWS_KERNEL_DEQUANTIZE:
      c.d[1] = 2 * draw(s, 20, 1, 40), c.d[0] = c.d[1] * (1 + c.d[0] % 90), c.d[2] = 4 * draw(s, 21, 1, 2);
      break;
    case TWS_KERNEL_LOW_RANK:
    case TWS_KERNEL_LOW_RANK_GRAD_INPUT:
    case TWS_KERNEL_LOW_RANK_GRAD_WEIGHT:
      c.d[1] = 1 + c.d[1] % 20, c.d[3] = draw(s, 20, 0, 40), c.d[4] = draw(s, 21, 0, 40), c.d[5] = 0;
      c.d[6] = draw(s, 22, 0, 1), c.d[7] = draw(s, 23, 0, 1);
      if (c.kernel != TWS_KERNEL_LOW_RANK_GRAD_WEIGHT) c.flags = 0;
      c.flags &= TWS_ACCUMULATE;
      break;
    case TWS_KERNEL_GATE:
    case TWS_KERNEL_GATE_GRAD:
      c.d[2] = 1 + c.d[2] % 2, c.f[0] = (double)draw(s, 20, 0, 1), c.flags = 0;
      break;
    case TWS_KERNEL_DISPATCH:
    case TWS_KERNEL_DISPATCH_GRAD:
    case TWS_KERNEL_COMBINE:
    case TWS_KERNEL_COMBINE_GRAD:
      c.d[2] = 1 + c.d[2] % 20, c.d[3] = 1 + draw(s, 20, 0, c.d[2] < 6 ? c.d[2] - 1 : 5), c.d[4] = 1 + c.d[4] % 30;
      if (c.kernel != TWS_KERNEL_DISPATCH_GRAD) c.flags = 0;
      break;
    case TWS_KERNEL_EXPERT_LINEAR:
    case TWS_KERNEL_EXPERT_LINEAR_GRAD_INPUT:
    case TWS_KERNEL_EXPERT_LINEAR_GRAD_WEIGHT:
      c.d[0] = 1 + c.d[0] % 3, c.d[1] = 1 + c.d[1] % 6, c.d[2] = 1 + c.d[2] % 80, c.d[5] = draw(s, 20, 0, 1) * c.d[2];
      if (c.dtype2 != TWS_F32) c.d[0] = 1; /* sums over sources are rounded after each of them */
      break;
    case TWS_KERNEL_LAMB:
    case TWS_KERNEL_LAMB_NORMS:
      c.f[0] = 1e-6, c.f[1] = 0.1, c.f[2] = 10, c.f[3] = 0.01, c.f[4] = 1, c.flags = 0;
      c.d[0] *= draw(s, 20, 1, 30);
      break;
    case TWS_KERNEL_ADAGRAD:
    case TWS_KERNEL_LION:
      c.f[0] = 0.1, c.f[1] = (double)draw(s, 21, 0, 1 << 30), c.f[2] = (double)c.d[1], c.flags = 0;
      if (c.kernel == TWS_KERNEL_ADAGRAD) c.f[3] = c.f[2], c.f[2] = c.f[1], c.f[1] = 0.1, c.f[0] = 1e-8;
      c.d[0] *= draw(s, 20, 1, 30);
      if (!draw(s, 22, 0, 1)) break;
      c.flags |=
          (uint32_t)(TWS_HALF_WEIGHTS | draw(s, 23, 0, 1) * TWS_HALF_MOMENTS | draw(s, 24, 0, 1) * TWS_STOCHASTIC);
      c.dtype = c.dtype2 = TWS_BF16;
      break;
    case TWS_KERNEL_ADAMW:
      c.f[0] = 1e-8, c.f[1] = 0.1, c.f[2] = (double)draw(s, 21, 0, 1 << 30), c.f[3] = (double)c.d[1];
      c.flags &= TWS_L2;
      c.d[0] *= draw(s, 20, 1, 30);
      if (!draw(s, 22, 0, 1)) break;
      c.flags |=
          (uint32_t)(TWS_HALF_WEIGHTS | draw(s, 23, 0, 1) * TWS_HALF_MOMENTS | draw(s, 24, 0, 1) * TWS_STOCHASTIC);
      c.dtype = c.dtype2 = TWS_BF16;
      break;
    default:
      break;
  }
  return c;
}

static test_case case_of(int number) {
  return number < TABLE_CASES ? table[number] : random_case(number - TABLE_CASES);
}

static tws_work work_of(int number) {
  const test_case c = case_of(number);
  tws_work w = {.code = (uint8_t)c.kernel, .dtype = (uint8_t)c.dtype, .dtype2 = (uint8_t)c.dtype2, .flags = c.flags};
  memcpy(w.d, c.d, sizeof w.d);
  memcpy(w.f, c.f, (size_t)tws_operator_of(c.kernel)->parameters * sizeof *c.f);
  return w;
}

static tws_arguments arguments_of(int number) {
  const test_case c = case_of(number);
  tws_arguments a = {{0}};
  for (int i = tws_operator_of(c.kernel)->parameters, k = 0; i < 11 && k < TWS_ARGUMENTS; ++i, ++k) a.a[k] = c.f[i];
  return a;
}

#endif
