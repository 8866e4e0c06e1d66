/* The arithmetic of encoders' small kernels in float64. */
#ifndef TWS_TESTS_ORACLE_ENCODERS_H
#define TWS_TESTS_ORACLE_ENCODERS_H

#include "models/operator.h"

static inline void oracle_part_bias(const tws_work *w, double **o, int backward) {
  const int64_t parts = w->d[1], width = w->d[2];
  for (int64_t part = 0; part < parts; part += 2)
    for (int64_t i = 0; i < width; ++i) {
      const int64_t bias = part / 2 * width + i;
      double sum = backward && w->flags & TWS_ACCUMULATE ? o[1][bias] : 0;
      for (int64_t t = 0; t < w->d[0]; ++t) {
        const int64_t x = (t * parts + part) * width + i;
        if (backward)
          sum += o[0][x];
        else
          o[1][x] += o[0][bias];
      }
      if (backward) o[1][bias] = sum;
    }
}

static inline int64_t oracle_length(const tws_work *w, double *const *o, int64_t sample) {
  return w->flags & TWS_LENGTHS ? (int64_t)o[1][sample] : w->d[1];
}

static inline void oracle_token_unfold(const tws_work *w, double **o, int backward) {
  const int64_t seq = w->d[1], width = w->d[2], side = w->d[3];
  double *last = o[w->flags & TWS_LENGTHS ? 2 : 1];
  for (int64_t i = 0; i < w->d[0] * seq * width && backward && !(w->flags & TWS_ACCUMULATE); ++i) last[i] = 0;
  for (int64_t s = 0; s < w->d[0]; ++s)
    for (int64_t t = 0; t < seq; ++t)
      for (int64_t j = 0; j < side; ++j) {
        const int64_t from = t + j - (side - 1) / 2;
        const int there = from >= 0 && from < oracle_length(w, o, s);
        for (int64_t i = 0; i < width; ++i) {
          const int64_t y = ((s * seq + t) * width + i) * side + j, x = (s * seq + from) * width + i;
          if (!backward)
            last[y] = there ? o[0][x] : 0;
          else if (there)
            last[x] += o[0][y];
        }
      }
}

static inline void oracle_spans(const tws_work *w, double **o, int backward) {
  const int64_t seq = w->d[1], ends = w->d[2];
  double *last = o[w->flags & TWS_LENGTHS ? 2 : 1];
  for (int64_t s = 0; s < w->d[0]; ++s)
    for (int64_t t = 0; t < seq; ++t)
      for (int64_t e = 0; e < ends; ++e) {
        const int64_t x = (s * seq + t) * ends + e, y = (s * ends + e) * seq + t;
        const int there = t < oracle_length(w, o, s);
        if (backward)
          last[x] = there ? o[0][y] : 0;
        else
          last[y] = there ? o[0][x] : -65504;
      }
}

#endif
