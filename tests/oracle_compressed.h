/* Compression to signs with error feedback, and the optimizer updates that use it, in float64:
 * models/operators_compressed.def. */
#ifndef TESTS_ORACLE_COMPRESSED_H
#define TESTS_ORACLE_COMPRESSED_H

#include <math.h>

#include "models/kernel.h"

/* Compresses e[count] to its signs and one scale, and leaves the compression errors in e. The scale is rounded to
 * float32, because the errors depend on it. */
static inline void oracle_take_signs(double *e, int64_t count, double *codes, double *scale) {
  double sum = 0;
  for (int64_t i = 0; i < count; ++i) sum += e[i] * e[i];
  *scale = (double)(float)sqrt(sum / (double)count);
  for (int64_t i = 0; i < count; ++i) {
    const int sign = e[i] >= 0;
    if (i % 8 == 0) codes[i / 8] = 0;
    codes[i / 8] += sign * (128 >> i % 8);
    e[i] -= sign ? *scale : -*scale;
  }
}

static inline double oracle_sign(const double *codes, int64_t i) {
  return (int)codes[i / 8] >> (7 - i % 8) & 1 ? 1 : -1;
}

static inline void oracle_sign_pack(const tws_work *w, double **o) {
  for (int64_t i = 0; i < w->d[0]; ++i) o[1][i] = (double)((float)o[1][i] + (float)o[0][i]);
  oracle_take_signs(o[1], w->d[1] * w->d[2], o[3], o[4]);
}

static inline void oracle_sign_average(const tws_work *w, const tws_arguments *a, double **o) {
  for (int64_t i = 0; i < w->d[0]; ++i)
    for (int64_t r = 0; r < w->d[1]; ++r)
      o[2][i] += oracle_sign(o[0] + r * (w->d[0] / 8), i) * o[1][r * w->d[2] + (int64_t)a->a[0]] / (double)w->d[1];
  oracle_take_signs(o[2], w->d[0], o[4], o[5]);
}

static inline void oracle_sign_unpack(const tws_work *w, const tws_arguments *a, double **o) {
  for (int64_t i = 0; i < w->d[0]; ++i) o[3][i] = oracle_sign(o[0], i) * o[1][i / w->d[1] * w->d[3] + (int64_t)a->a[0]];
}

static inline void oracle_momentum(const tws_work *w, const tws_arguments *a, double **o) {
  const double factor = a->a[0] * (a->a[1] > 0 ? o[2][TWS_METRIC_CLIP] : 1);
  const int adds = (w->flags & TWS_ACCUMULATE) != 0;
  for (int64_t i = 0; i < w->d[0]; ++i)
    o[3][i] = adds ? o[1][TWS_HYPER_BETA1] * o[3][i] + o[1][TWS_HYPER_REST1] * factor * o[0][i] : factor * o[0][i];
}

static inline void oracle_frozen_adam(const tws_work *w, double **o) {
  const int local = (w->flags & TWS_ACCUMULATE) != 0;
  for (int64_t i = 0; i < w->d[0]; ++i) {
    const double change = o[3][TWS_HYPER_LR] * (o[1][i] / (sqrt(o[2][i]) + w->f[0]) + w->f[1] * o[0][i]);
    o[0][i] -= change;
    if (local) o[5][i] -= change;
    if (w->dtype2 != TWS_F32) o[5 + local][i] = o[0][i];
  }
}

static inline void oracle_local_undo(const tws_work *w, double **o) {
  for (int64_t i = 0; i < w->d[0]; ++i) {
    o[0][i] -= o[1][i];
    o[1][i] *= sqrt(o[2][i]) + w->f[0];
  }
}

static inline void oracle_local_merge(const tws_work *w, double **o) {
  for (int64_t i = 0; i < w->d[0]; ++i) {
    o[1][i] = -o[2][i] / o[4][TWS_HYPER_SUMMED_LR];
    o[0][i] += o[2][i] / (sqrt(o[3][i]) + w->f[0]);
    o[2][i] = 0;
    if (w->dtype2 != TWS_F32) o[6][i] = o[0][i];
  }
}

/* ---- OneBitLamb ---- */

static inline void oracle_scaled_momentum(const tws_work *w, const tws_arguments *a, double **o) {
  const double factor = a->a[0] * o[4][TWS_METRIC_CLIP];
  for (int64_t i = 0; i < w->d[0]; ++i)
    o[5][i] = o[2][0] * (o[3][TWS_HYPER_BETA1] * o[1][i] + o[3][TWS_HYPER_REST1] * factor * o[0][i]);
}

static inline void oracle_fresh_moments(const tws_work *w, const tws_arguments *a, double **o) {
  double *figures = o[8];
  figures[0] = figures[1] = figures[2] = 0;
  for (int64_t i = 0; i < w->d[0]; ++i) {
    const double m = o[0][i] / o[5][0], g = (m - o[6][TWS_HYPER_BETA1] * o[2][i]) / o[6][TWS_HYPER_REST1];
    const double root = sqrt(o[3][i]) + w->f[0], u = m / root, whole = u + w->f[1] * o[1][i];
    o[2][i] = m;
    o[4][i] = o[6][TWS_HYPER_BETA2] * o[4][i] + o[6][TWS_HYPER_REST2] * g * g;
    figures[0] += a->a[0] * u * u;
    figures[1] += a->a[0] * whole * whole;
    figures[2] = fmax(figures[2], root / (sqrt(o[4][i]) + w->f[0]));
  }
}

static inline void oracle_lamb_factors(const tws_work *w, double **o) {
  for (int64_t t = 0; t < w->d[0]; ++t) {
    double sum[3] = {0};
    for (int64_t part = 0; part < w->d[1]; ++part) {
      const double *own = o[0] + 3 * (part * w->d[0] + t);
      sum[0] += own[0], sum[1] += own[1], sum[2] = fmax(sum[2], own[2]);
    }
    const double weight = fmin(1, sqrt(sum[0] / sum[1])), last = o[2][t];
    const double factor = fmin(fmax(weight * sum[2] + 1 - weight, w->f[1]), w->f[0]);
    o[2][t] = fmin(fmax(factor, last * (1 - w->f[2])), last * (1 + w->f[2]));
  }
}

static inline void oracle_frozen_lamb(const tws_work *w, double **o) {
  const double by = o[5][TWS_HYPER_LR] * o[3][0] * o[4][0];
  for (int64_t i = 0; i < w->d[0]; ++i) {
    o[0][i] -= by * (o[1][i] / (sqrt(o[2][i]) + w->f[0]) + w->f[1] * o[0][i]);
    if (w->dtype2 != TWS_F32) o[7][i] = o[0][i];
  }
}

static inline void oracle_lamb_ratios(const tws_work *w, double **o) {
  for (int64_t t = 0; t < w->d[0]; ++t) {
    const double ratio = fmin(fmax(sqrt(o[0][2 * t] / o[0][2 * t + 1]), w->f[1]), w->f[0]);
    if (ratio != 1) o[3][t] = w->f[2] * o[3][t] + (1 - w->f[2]) * ratio;
  }
}

static inline void oracle_mean_square(const tws_work *w, const tws_arguments *a, double **o) {
  o[1][0] = 0;
  for (int64_t i = 0; i < w->d[0]; ++i) o[1][0] += a->a[0] * o[0][i] * o[0][i];
}

static inline void oracle_momentum_scales(const tws_work *w, double **o) {
  double sum = 0;
  for (int64_t t = 0; t < w->d[0]; ++t) sum += sqrt(o[0][t]);
  for (int64_t t = 0; t < w->d[0]; ++t) o[1][t] = sum / (double)w->d[0] / sqrt(o[0][t]), o[2][t] = 1;
}

#endif
