/* Gradients of embedding tables by rows in float64; included by tests/oracle.h after its helpers. */
#ifndef TESTS_ORACLE_SPARSE_H
#define TESTS_ORACLE_SPARSE_H

#include "models/kernel.h"

static inline void oracle_embedding_rows(const tws_work *w, const double *a, double **o) {
  const int64_t width = w->d[1];
  for (int64_t i = 0; i < w->d[2]; ++i) o[2][i] = 0;
  for (int64_t t = 0; t < w->d[0]; ++t) {
    const int64_t row = (int64_t)(o[0][t] - a[0]);
    const int is_first = row >= 0 && row < w->d[2] && o[2][row] == 0;
    if (is_first) o[2][row] = (double)t + 1;
    o[3][t] = is_first ? (double)row + 1 : 0;
    for (int64_t i = 0; i < width; ++i) {
      o[4][t * width + i] = is_first ? o[1][row * width + i] : 0;
      if (is_first) o[1][row * width + i] = 0;
    }
  }
}

static inline void oracle_add_rows(const tws_work *w, double **o) {
  const int64_t width = w->d[1];
  for (int64_t i = 0; i < w->d[0] * w->d[3] * width; ++i)
    if (o[0][i / width] > 0) o[2][((int64_t)o[0][i / width] - 1) * width + i % width] += o[1][i];
}

#endif
