/* The kernels on pictures in float64, as plainly as they can be written; part of tests/oracle.h. */
#ifndef TWS_TESTS_ORACLE_PICTURES_H
#define TWS_TESTS_ORACLE_PICTURES_H

#include <math.h>
#include <stdint.h>
#include <string.h>

#include "models/kernel.h"

static inline int64_t oracle_windows(int64_t extent, int64_t pixels, int64_t stride, int64_t padding) {
  int64_t count = 0;
  for (int64_t at = -padding; at + pixels <= extent + padding; at += stride) ++count;
  return count;
}

/* Calls `each` for every product that contributes to y, with its positions in x, weight and y. */
typedef void (*oracle_term)(double **o, int64_t x, int64_t weight, int64_t y);
static inline void oracle_convolve(const tws_work *w, double **o, oracle_term each) {
  const int64_t *d = w->d, height = d[1], width = d[2], in = d[3], out = d[4], side = d[5], stride = d[6],
                groups = d[7] > 0 ? d[7] : 1, padding = (int64_t)w->f[0];
  const int64_t rows = oracle_windows(height, side, stride, padding),
                columns = oracle_windows(width, side, stride, padding), own = in / groups;
  for (int64_t s = 0; s < d[0]; ++s)
    for (int64_t row = 0; row < rows; ++row)
      for (int64_t column = 0; column < columns; ++column)
        for (int64_t v = 0; v < side; ++v)
          for (int64_t u = 0; u < side; ++u) {
            const int64_t y = row * stride - padding + v, x = column * stride - padding + u;
            if (y < 0 || y >= height || x < 0 || x >= width) continue;
            for (int64_t to = 0; to < out; ++to)
              for (int64_t i = 0; i < own; ++i)
                each(o, ((s * height + y) * width + x) * in + to / (out / groups) * own + i,
                     ((to * side + v) * side + u) * own + i, ((s * rows + row) * columns + column) * out + to);
          }
}

static inline void oracle_term_forward(double **o, int64_t x, int64_t weight, int64_t y) {
  o[3][y] += o[0][x] * o[1][weight];
}
static inline void oracle_term_input(double **o, int64_t x, int64_t weight, int64_t y) {
  o[2][x] += o[0][y] * o[1][weight];
}
static inline void oracle_term_weight(double **o, int64_t x, int64_t weight, int64_t y) {
  o[2][weight] += o[0][y] * o[1][x];
}

static inline void oracle_convolution(const tws_work *w, double **o) {
  const int64_t *d = w->d, rows = oracle_windows(d[1], d[5], d[6], (int64_t)w->f[0]),
                columns = oracle_windows(d[2], d[5], d[6], (int64_t)w->f[0]), pixels = d[0] * rows * columns;
  const int64_t own = d[3] / (d[7] > 0 ? d[7] : 1), bias = (w->flags & TWS_BIAS) != 0;
  double *terms[4] = {o[0], o[1], NULL, o[bias ? 3 : 2]};
  if (w->code == TWS_KERNEL_CONVOLUTION) {
    for (int64_t i = 0; i < pixels * d[4]; ++i) terms[3][i] = bias ? o[2][i % d[4]] : 0;
    oracle_convolve(w, terms, oracle_term_forward);
    return;
  }
  const int is_input = w->code == TWS_KERNEL_CONVOLUTION_GRAD_INPUT;
  if (!(w->flags & TWS_ACCUMULATE))
    memset(o[2], 0, (size_t)(is_input ? d[0] * d[1] * d[2] * d[3] : d[4] * d[5] * d[5] * own) * sizeof(double));
  oracle_convolve(w, o, is_input ? oracle_term_input : oracle_term_weight);
  if (is_input || !bias) return;
  if (!(w->flags & TWS_ACCUMULATE)) memset(o[3], 0, (size_t)d[4] * sizeof(double));
  for (int64_t i = 0; i < pixels * d[4]; ++i) o[3][i % d[4]] += o[0][i];
}

/* Pools x into y or, with `backward`, adds the gradient dy to the positions of x that y was computed from. */
static inline void oracle_pool(const tws_work *w, double **o, int average, int backward) {
  const int64_t *d = w->d, height = d[1], width = d[2], channels = d[3], padding = d[4] > 0 ? (int64_t)w->f[0] : 0;
  const int64_t tall = d[4] > 0 ? d[4] : height, wide = d[4] > 0 ? d[4] : width, stride = d[5] > 0 ? d[5] : 1;
  const int64_t rows = oracle_windows(height, tall, stride, padding),
                columns = oracle_windows(width, wide, stride, padding);
  double *to = o[backward && !average ? 2 : 1];
  const double *x = o[backward ? 1 : 0];
  if (backward && !(w->flags & TWS_ACCUMULATE))
    memset(to, 0, (size_t)(d[0] * height * width * channels) * sizeof(double));
  for (int64_t k = 0; k < d[0] * rows * columns * channels; ++k) {
    const int64_t c = k % channels, column = k / channels % columns, row = k / channels / columns % rows,
                  sample = k / channels / columns / rows;
    int64_t best = -1, count = 0;
    double sum = 0;
    for (int pass = 0; pass < 2; ++pass)
      for (int64_t v = 0; v < tall * wide; ++v) {
        const int64_t i = row * stride - padding + v / wide, j = column * stride - padding + v % wide;
        if (i < 0 || i >= height || j < 0 || j >= width) continue;
        const int64_t place = ((sample * height + i) * width + j) * channels + c;
        if (pass == 0 && average) {
          ++count;
          if (!backward) sum += x[place];
        } else if (pass == 0) {
          if (best < 0 || x[place] > x[best]) best = place;
        } else if (average && backward) {
          to[place] += o[0][k] / (double)count;
        }
      }
    if (average && !backward) to[k] = sum / (double)count;
    if (!average && !backward) to[k] = x[best];
    if (!average && backward) to[best] += o[0][k];
  }
}

static inline void oracle_batch_norm(const tws_work *w, const double *a, double **o) {
  const int64_t rows = w->d[0], width = w->d[1];
  for (int64_t i = 0; i < width; ++i) {
    double mean = 0, variance = 0;
    for (int64_t t = 0; t < rows; ++t) mean += o[0][t * width + i] / (double)rows;
    for (int64_t t = 0; t < rows; ++t) variance += pow(o[0][t * width + i] - mean, 2) / (double)rows;
    const double inverse = 1 / sqrt(variance + w->f[0]);
    for (int64_t t = 0; t < rows; ++t) o[3][t * width + i] = (o[0][t * width + i] - mean) * inverse * o[1][i] + o[2][i];
    o[4][i] = mean, o[4][width + i] = inverse;
    if (!(w->flags & TWS_RUNNING)) continue;
    const double sample = variance * (double)rows / (double)(rows > 1 ? rows - 1 : 1);
    o[5][i] = a[0] * ((1 - w->f[1]) * o[5][i] + w->f[1] * mean);
    o[5][width + i] = a[0] * ((1 - w->f[1]) * o[5][width + i] + w->f[1] * sample);
  }
}

static inline void oracle_batch_norm_evaluation(const tws_work *w, double **o) {
  const int64_t width = w->d[1];
  for (int64_t k = 0; k < w->d[0] * width; ++k) {
    const int64_t i = k % width;
    o[4][k] = (o[0][k] - o[3][i]) / sqrt(o[3][width + i] + w->f[0]) * o[1][i] + o[2][i];
  }
}

static inline void oracle_batch_norm_grad(const tws_work *w, double **o) {
  const int64_t rows = w->d[0], width = w->d[1];
  for (int64_t i = 0; i < width; ++i) {
    const double mean = o[3][i], inverse = o[3][width + i];
    double sum = 0, product = 0;
    for (int64_t t = 0; t < rows; ++t) {
      sum += o[0][t * width + i];
      product += o[0][t * width + i] * (o[1][t * width + i] - mean) * inverse;
    }
    o[5][i] = product + (w->flags & TWS_ACCUMULATE_PARAM ? o[5][i] : 0);
    o[6][i] = sum + (w->flags & TWS_ACCUMULATE_PARAM ? o[6][i] : 0);
    for (int64_t t = 0; t < rows; ++t) {
      const double z = (o[1][t * width + i] - mean) * inverse;
      const double dx = o[2][i] * inverse * (o[0][t * width + i] - (sum + z * product) / (double)rows);
      o[4][t * width + i] = dx + (w->flags & TWS_ACCUMULATE ? o[4][t * width + i] : 0);
    }
  }
}

#endif
