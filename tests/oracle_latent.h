/* The kernels of latent attention in float64. Part of oracle.h. */
#ifndef TWS_TESTS_ORACLE_LATENT_H
#define TWS_TESTS_ORACLE_LATENT_H

#include "models/latent.h"

static inline double oracle_latent_angle(const tws_work *w, double *const *o, int64_t token, int64_t pair) {
  const double begins = w->flags & TWS_DOCUMENTS ? o[4][2 * token] : 0;
  return ((double)(token % w->d[6]) - begins) * tws_latent_frequency(w->f, w->d[3], pair);
}

static inline double oracle_turned(const double *x, int64_t j, double angle) {
  return j % 2 ? x[0] * sin(angle) + x[1] * cos(angle) : x[0] * cos(angle) - x[1] * sin(angle);
}

static inline void oracle_latent(const tws_work *w, double **o) {
  const int64_t heads = w->d[1], nope = w->d[2], rope = w->d[3], value = w->d[4], rank = w->d[5], head = nope + rope;
  for (int64_t t = 0; t < w->d[0]; ++t)
    for (int64_t h = 0; h < heads; ++h)
      for (int64_t j = 0; j < head; ++j) {
        double *to = o[3] + t * 3 * heads * head + h * head + j;
        const double *q = o[0] + (t * heads + h) * head, *kv = o[2] + (t * heads + h) * (nope + value);
        const int64_t pair = j < nope ? 0 : (j - nope) / 2 * 2;
        const double angle = oracle_latent_angle(w, o, t, pair / 2), *key = o[1] + t * (rank + rope) + rank;
        to[0] = w->f[4] * (j < nope ? q[j] : oracle_turned(q + nope + pair, j - nope, angle));
        to[heads * head] = j < nope ? kv[j] : oracle_turned(key + pair, j - nope, angle);
        to[2 * heads * head] = j < value ? kv[nope + j] : 0;
      }
}

static inline void oracle_latent_grad(const tws_work *w, double **o) {
  const int64_t heads = w->d[1], nope = w->d[2], rope = w->d[3], value = w->d[4], rank = w->d[5], head = nope + rope;
  memset(o[2], 0, sizeof(double) * (size_t)(w->d[0] * (rank + rope)));
  for (int64_t t = 0; t < w->d[0]; ++t)
    for (int64_t h = 0; h < heads; ++h)
      for (int64_t j = 0; j < head; ++j) {
        const double *from = o[0] + t * 3 * heads * head + h * head;
        double *dq = o[1] + (t * heads + h) * head, *dkv = o[3] + (t * heads + h) * (nope + value);
        const int64_t pair = j < nope ? 0 : (j - nope) / 2 * 2;
        const double angle = -oracle_latent_angle(w, o, t, pair / 2);
        dq[j] = w->f[4] * (j < nope ? from[j] : oracle_turned(from + nope + pair, j - nope, angle));
        if (j < nope)
          dkv[j] = from[heads * head + j];
        else
          o[2][t * (rank + rope) + rank + j - nope] +=
              oracle_turned(from + heads * head + nope + pair, j - nope, angle);
        if (j < value) dkv[nope + j] = from[2 * heads * head + j];
      }
}

static inline void oracle_part(const tws_work *w, const double *a, double **o) {
  const int64_t first = (int64_t)a[0];
  for (int64_t i = 0; i < w->d[0] * w->d[1] * w->d[3]; ++i) o[1][i] = o[0][i / w->d[3] * w->d[2] + first + i % w->d[3]];
}

static inline void oracle_part_grad(const tws_work *w, const double *a, double **o) {
  for (int64_t i = 0; i < w->d[0] * w->d[1] * w->d[2]; ++i) {
    const int64_t column = i % w->d[2] - (int64_t)a[0];
    const double slope = column >= 0 && column < w->d[3] ? o[0][i / w->d[2] * w->d[3] + column] : 0;
    o[1][i] = slope + (w->flags & TWS_ACCUMULATE ? o[1][i] : 0);
  }
}

#endif
