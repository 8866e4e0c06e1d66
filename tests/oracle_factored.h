/* Adafactor's kernels in float64; included by tests/oracle.h after its helpers. */
#ifndef TESTS_ORACLE_FACTORED_H
#define TESTS_ORACLE_FACTORED_H

#include <math.h>

#include "models/kernel.h"

static inline void oracle_factor_sums(const tws_work *w, const double *a, double **o) {
  const int64_t rows = w->d[0], columns = w->d[1];
  for (int64_t i = 0; i < rows + columns; ++i) o[2][i] = 0;
  for (int64_t i = 0; i < w->d[2]; ++i) {
    const int64_t at = (int64_t)a[0] + i;
    const double g = o[0][i] * o[1][TWS_METRIC_CLIP];
    if (rows > 0) o[2][at / columns] += g * g;
    o[2][rows + at % columns] += g * g;
  }
}

static inline void oracle_factor_moments(const tws_work *w, double **o) {
  const double rows = (double)w->d[0], columns = (double)w->d[1], part = pow(o[2][TWS_HYPER_STEP], w->f[0]);
  for (int64_t i = 0; i < w->d[0] + w->d[1] && o[3][TWS_METRIC_CLIP] != 0; ++i)
    o[0][i] += part * (o[1][i] / (w->d[0] == 0 ? 1 : i < w->d[0] ? columns : rows) - o[0][i]);
}

static inline void oracle_factor_change(const tws_work *w, const double *a, double **o) {
  const int64_t rows = w->d[0], columns = w->d[1];
  double mean = 0;
  for (int64_t i = 0; i < rows; ++i) mean += o[0][i] / (double)rows;
  if (mean < w->f[0]) mean = w->f[0];
  for (int64_t i = 0; i < w->d[2]; ++i) {
    const int64_t at = (int64_t)a[0] + i;
    const double v = rows > 0 ? o[0][at / columns] * o[0][rows + at % columns] / mean : o[0][at];
    o[3][i] = o[1][i] * o[2][TWS_METRIC_CLIP] / sqrt(fmax(v, w->f[0] * w->f[0]));
  }
}

static inline void oracle_factor_norms(const tws_work *w, const double *a, double **o) {
  o[2][0] = o[2][1] = 0;
  for (int64_t i = 0; i < w->d[0]; ++i)
    for (int k = 0; k < 2; ++k) o[2][k] += a[0] * o[k][i] * o[k][i];
}

static inline void oracle_adafactor(const tws_work *w, double **o, int count) {
  const double lr = o[2][TWS_HYPER_LR], rate = fmin(lr, 1 / sqrt(o[2][TWS_HYPER_STEP]));
  const double alpha = fmax(w->f[1], sqrt(o[4][0])) * rate / fmax(1, sqrt(o[4][1]) / w->f[2]);
  for (int64_t i = 0; i < w->d[0] && o[3][TWS_METRIC_CLIP] != 0; ++i) {
    o[0][i] = o[0][i] * (1 - lr * w->f[0]) - alpha * o[1][i];
    if (count > 5) o[5][i] = o[0][i];
  }
}

/* Runs the kernel if it is one of Adafactor's. Returns 1 if it has run. */
static inline int oracle_factored(const tws_work *w, const double *a, double **o, int count) {
  switch (w->code) {
    case TWS_KERNEL_FACTOR_SUMS:
      oracle_factor_sums(w, a, o);
      return 1;
    case TWS_KERNEL_FACTOR_MOMENTS:
      oracle_factor_moments(w, o);
      return 1;
    case TWS_KERNEL_FACTOR_CHANGE:
      oracle_factor_change(w, a, o);
      return 1;
    case TWS_KERNEL_FACTOR_NORMS:
      oracle_factor_norms(w, a, o);
      return 1;
    case TWS_KERNEL_ADAFACTOR:
      oracle_adafactor(w, o, count);
      return 1;
    default:
      return 0;
  }
}

#endif
