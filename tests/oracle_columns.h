/* Kernels of selected columns (models/operators_columns.def) in float64: see tests/oracle.h. */
#ifndef TWS_TESTS_ORACLE_COLUMNS_H
#define TWS_TESTS_ORACLE_COLUMNS_H

#include <math.h>

#include "models/kernel.h"

static inline void oracle_column_norms(const tws_work *w, const double *a, double **o) {
  for (int64_t c = 0; c < w->d[1]; ++c) o[1][c] = 0;
  for (int64_t i = 0; i < w->d[0]; ++i) o[1][(i + (int64_t)a[0]) % w->d[1]] += fabs(o[0][i]);
}

/* Lists the columns with the largest sums: a column is chosen when fewer than `kept` columns precede it. */
static inline void oracle_top_columns(const tws_work *w, double **o) {
  const double *sums = o[0];
  int64_t n = 0;
  for (int64_t c = 0; c < w->d[0]; ++c) {
    int64_t before = 0;
    for (int64_t k = 0; k < w->d[0]; ++k) before += sums[k] > sums[c] || (sums[k] == sums[c] && k < c);
    if (before < w->d[1]) o[1][n++] = (double)(c + 1);
  }
}

static inline void oracle_move_columns(const tws_work *w, const double *a, double *x, const double *chosen, double *y,
                                       int back) {
  for (int64_t r = 0; r < w->d[3]; ++r)
    for (int64_t i = 0; i < w->d[2]; ++i) {
      const int64_t column = (int64_t)chosen[i] - (int64_t)a[1], at = r * w->d[1] + column - 1 - (int64_t)a[0];
      const int there = chosen[i] > 0 && column > 0 && column <= w->d[1] && at >= 0 && at < w->d[0];
      if (back && there) x[at] = y[r * w->d[2] + i];
      if (!back) y[r * w->d[2] + i] = there ? x[at] : 0;
    }
}

#endif
