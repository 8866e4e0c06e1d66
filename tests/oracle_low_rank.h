/* The arithmetic of adapters' kernels in float64. */
#ifndef TWS_TESTS_ORACLE_LOW_RANK_H
#define TWS_TESTS_ORACLE_LOW_RANK_H

#include <string.h>

#include "models/operator.h"

static inline void oracle_low_rank(const tws_work *w, double **o) {
  const int64_t rank = w->d[1], width = w->d[2] + w->d[3] + w->d[4];
  int64_t column = 0, row = 0, slot = 0, slots = 0;
  for (int part = 0; part < 3; ++part) slots += w->d[5 + part] || !w->d[2 + part] ? 0 : rank;
  if (w->code == TWS_KERNEL_LOW_RANK_GRAD_INPUT) memset(o[2], 0, sizeof(double) * (size_t)(w->d[0] * slots));
  for (int part = 0; part < 3; column += w->d[2 + part++]) {
    if (w->d[5 + part] || !w->d[2 + part]) continue;
    for (int64_t i = 0; i < w->d[2 + part]; ++i, ++row)
      for (int64_t r = 0; r < rank; ++r) {
        double sum = w->flags & TWS_ACCUMULATE ? o[2][row * rank + r] : 0;
        for (int64_t t = 0; t < w->d[0]; ++t) {
          const int64_t y = t * width + column + i, h = t * slots + slot + r;
          if (w->code == TWS_KERNEL_LOW_RANK) o[2][y] += o[0][h] * o[1][row * rank + r];
          if (w->code == TWS_KERNEL_LOW_RANK_GRAD_INPUT) o[2][h] += o[0][y] * o[1][row * rank + r];
          if (w->code == TWS_KERNEL_LOW_RANK_GRAD_WEIGHT) sum += o[0][y] * o[1][h];
        }
        if (w->code == TWS_KERNEL_LOW_RANK_GRAD_WEIGHT) o[2][row * rank + r] = sum;
      }
    slot += rank;
  }
}

#endif
