/* Signs with error feedback and updates that use them, in float64: models/operators_compressed.def. */
#ifndef TESTS_ORACLE_COMPRESSED_H
#define TESTS_ORACLE_COMPRESSED_H

#include <math.h>

#include "models/kernel.h"

/* Takes the signs of e[count] out of it; the scale is rounded to float32, as errors follow from it. */
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

#endif
