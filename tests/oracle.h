/* Every kernel of models/kernel.h in float64, as plainly as it can be written: loops in the order of the formulas, no
 * tiles, no threads. Operands are arrays of doubles whatever their type (token ids too). */
#ifndef TWS_TESTS_ORACLE_H
#define TWS_TESTS_ORACLE_H

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/float8.h"
#include "base/random.h"
#include "models/kernel.h"
#include "tests/oracle_columns.h"
#include "tests/oracle_compressed.h"
#include "tests/oracle_pictures.h"

/* Returns x as the storage type rounds it. */
static inline double stored(tws_dtype type, double x) {
  if (type == TWS_BF16) return tws_from_bf16(tws_to_bf16((float)x));
  if (type == TWS_F16) return tws_from_f16(tws_to_f16((float)x));
  if (type == TWS_E4M3) return tws_from_e4m3(tws_to_e4m3((float)x));
  if (type == TWS_E5M2) return tws_from_e5m2(tws_to_e5m2((float)x));
  return type == TWS_F32 ? (double)(float)x : x;
}

/* Returns the position of token `t` in a sequence whose second half lies `gap` positions later. */
static inline int64_t oracle_place(int64_t t, int64_t seq, double gap) {
  return t >= (seq + 1) / 2 ? t + (int64_t)gap : t;
}

static inline void oracle_embedding(const tws_work *w, const double *a, double **o) {
  const int64_t tokens = w->d[0], width = w->d[1], positions = w->d[3], seq = w->d[4];
  double *x = o[positions ? 3 : 2];
  for (int64_t t = 0; t < tokens; ++t) {
    const int64_t row = (int64_t)o[0][t] - (int64_t)a[0];
    for (int64_t i = 0; i < width; ++i) {
      if (!(w->flags & TWS_ACCUMULATE)) x[t * width + i] = 0;
      if (positions) x[t * width + i] += o[2][oracle_place(t % seq, seq, a[1]) * width + i];
      if (row >= 0 && row < w->d[2]) x[t * width + i] += o[1][row * width + i];
    }
  }
}

static inline void oracle_embedding_grad(const tws_work *w, const double *a, double **o) {
  const int64_t tokens = w->d[0], width = w->d[1];
  if (!(w->flags & TWS_ACCUMULATE)) memset(o[2], 0, (size_t)(w->d[2] * width) * sizeof(double));
  for (int64_t t = 0; t < tokens; ++t) {
    const int64_t row = (int64_t)o[0][t] - (int64_t)a[0];
    for (int64_t i = 0; i < width && row >= 0 && row < w->d[2]; ++i) o[2][row * width + i] += o[1][t * width + i];
  }
}

static inline void oracle_position_grad(const tws_work *w, const double *a, double **o) {
  const int64_t tokens = w->d[0], width = w->d[1], positions = w->d[2], seq = w->d[3];
  if (!(w->flags & TWS_ACCUMULATE)) memset(o[1], 0, (size_t)(positions * width) * sizeof(double));
  for (int64_t t = 0; t < tokens; ++t)
    for (int64_t i = 0; i < width; ++i) o[1][oracle_place(t % seq, seq, a[0]) * width + i] += o[0][t * width + i];
}

static inline void oracle_norm(const tws_work *w, double **o) {
  const int64_t tokens = w->d[0], width = w->d[1];
  const int rms = (w->flags & TWS_RMS) != 0, bias = !rms && (w->flags & TWS_BIAS);
  const int plain = (w->flags & TWS_PLAIN) != 0, first = plain ? 1 : bias ? 3 : 2;
  double *y = o[first], *stats = o[first + 1];
  const int residual = w->flags & TWS_RESIDUAL ? first + 2 : 0;
  for (int64_t i = 0; i < tokens * width && residual; ++i)
    o[residual + 1][i] = stored((tws_dtype)w->dtype, o[0][i] + o[residual][i]);
  for (int64_t t = 0; t < tokens; ++t) {
    const double *x = o[residual ? residual + 1 : 0] + t * width;
    double mean = 0, variance = 0;
    for (int64_t i = 0; i < width && !rms; ++i) mean += x[i] / (double)width;
    for (int64_t i = 0; i < width; ++i) variance += (x[i] - mean) * (x[i] - mean) / (double)width;
    const double inverse = 1 / sqrt(variance + w->f[0]);
    for (int64_t i = 0; i < width; ++i)
      y[t * width + i] = (x[i] - mean) * inverse * (plain ? 1 : o[1][i] + w->f[1]) + (bias ? o[2][i] : 0);
    if (rms) {
      stats[t] = inverse;
    } else {
      stats[2 * t] = mean;
      stats[2 * t + 1] = inverse;
    }
  }
}

/* Sums the rows of x, which kernels that compute gradients of inputs add to sums where the flags say so. */
static inline void oracle_sums(const tws_work *w, const double *x, int64_t rows, int64_t columns, double *sums) {
  for (int64_t i = 0; i < columns && !(w->flags & TWS_ACCUMULATE_PARAM); ++i) sums[i] = 0;
  for (int64_t t = 0; t < rows; ++t)
    for (int64_t i = 0; i < columns; ++i) sums[i] += x[t * columns + i];
}

static inline void oracle_norm_grad(const tws_work *w, double **o) {
  const int64_t tokens = w->d[0], width = w->d[1];
  const int rms = (w->flags & TWS_RMS) != 0, bias = !rms && (w->flags & TWS_BIAS);
  const int plain = (w->flags & TWS_PLAIN) != 0;
  const double *stats = o[plain ? 2 : 3], *weight = plain ? NULL : o[2];
  double *dx = o[plain ? 3 : 4];
  if (!(w->flags & TWS_ACCUMULATE)) memset(dx, 0, (size_t)(tokens * width) * sizeof(double));
  if (!plain && !(w->flags & TWS_ACCUMULATE_PARAM)) {
    memset(o[5], 0, (size_t)width * sizeof(double));
    if (bias) memset(o[6], 0, (size_t)width * sizeof(double));
  }
  for (int64_t t = 0; t < tokens; ++t) {
    const double mean = rms ? 0 : stats[2 * t], inverse = rms ? stats[t] : stats[2 * t + 1];
    const double *dy = o[0] + t * width, *x = o[1] + t * width;
    double mean_g = 0, mean_gz = 0;
    for (int64_t i = 0; i < width; ++i) {
      const double z = (x[i] - mean) * inverse, g = dy[i] * (weight ? weight[i] + w->f[1] : 1);
      mean_g += g / (double)width;
      mean_gz += g * z / (double)width;
      if (weight) o[5][i] += dy[i] * z;
      if (bias) o[6][i] += dy[i];
    }
    for (int64_t i = 0; i < width; ++i)
      dx[t * width + i] +=
          (dy[i] * (weight ? weight[i] + w->f[1] : 1) - (rms ? 0 : mean_g) - (x[i] - mean) * inverse * mean_gz) *
          inverse;
  }
  if (w->flags & TWS_SUMS) oracle_sums(w, dx, tokens, width, o[plain ? 4 : bias ? 7 : 6]);
}

/* Normalises the queries and keys of each head (RMSNorm) or, with `grad`, computes the gradient. */
static inline void oracle_heads_norm(const tws_work *w, double **o, int grad) {
  const int64_t heads[2] = {w->d[1], w->d[2]}, head = w->d[3], token = (w->d[1] + 2 * w->d[2]) * head;
  const int together = (w->flags & TWS_TOGETHER) != 0;
  for (int i = 0; i < 2 && grad && !(w->flags & TWS_ACCUMULATE_PARAM); ++i)
    memset(o[6 + i], 0, (size_t)(together ? heads[i] * head : head) * sizeof(double));
  for (int64_t t = 0; t < w->d[0]; ++t) {
    int64_t at = t * token, stat = t * (together ? 2 : heads[0] + heads[1]);
    for (int i = 0; i < 2; ++i)
      for (int64_t h = 0; h < (together ? 1 : heads[i]); ++h) {
        const int64_t width = together ? heads[i] * head : head;
        const double *x = o[grad ? 1 : 0] + at, *weight = o[(grad ? 2 : 1) + i];
        double squares = 0, product = 0;
        for (int64_t c = 0; c < width; ++c) squares += x[c] * x[c] / (double)width;
        const double inverse = grad ? o[4][stat] : 1 / sqrt(squares + w->f[0]);
        for (int64_t c = 0; c < width && grad; ++c) {
          product += o[0][at + c] * (weight[c] + w->f[1]) * x[c] * inverse / (double)width;
          o[6 + i][c] += o[0][at + c] * x[c] * inverse;
        }
        for (int64_t c = 0; c < width; ++c)
          if (grad)
            o[5][at + c] = (o[0][at + c] * (weight[c] + w->f[1]) - x[c] * inverse * product) * inverse;
          else
            o[3][at + c] = x[c] * inverse * (weight[c] + w->f[1]);
        if (!grad) o[4][stat] = inverse;
        at += width, stat++;
      }
    for (; at < (t + 1) * token; ++at) o[grad ? 5 : 3][at] = o[0][at];
  }
}

static inline double oracle_gelu(double x) {
  return 0.5 * x * (1 + tanh(sqrt(2 / M_PI) * (x + 0.044715 * x * x * x)));
}
static inline double oracle_gelu_slope(double x) {
  const double t = tanh(sqrt(2 / M_PI) * (x + 0.044715 * x * x * x));
  return 0.5 * (1 + t) + 0.5 * x * (1 - t * t) * sqrt(2 / M_PI) * (1 + 3 * 0.044715 * x * x);
}

static inline double oracle_gelu_exact(double x) {
  return 0.5 * x * erfc(-x / sqrt(2));
}
static inline double oracle_gelu_exact_slope(double x) {
  return 0.5 * erfc(-x / sqrt(2)) + x * exp(-x * x / 2) / sqrt(2 * M_PI);
}

static inline void oracle_linear(const tws_work *w, double **o) {
  const int64_t m = w->d[0], n = w->d[1], k = w->d[2];
  const int bias = (w->flags & TWS_BIAS) != 0, gelu = (w->flags & TWS_GELU) != 0;
  for (int64_t i = 0; i < m; ++i)
    for (int64_t j = 0; j < n; ++j) {
      double sum = bias ? o[2][j] : 0;
      for (int64_t l = 0; l < k; ++l) sum += o[0][i * k + l] * o[1][j * k + l];
      o[bias ? 3 : 2][i * n + j] = gelu ? oracle_gelu(sum) : sum;
      if (gelu) o[bias ? 4 : 3][i * n + j] = sum;
    }
}

static inline void oracle_linear_grad_input(const tws_work *w, double **o) {
  const int64_t m = w->d[0], n = w->d[1], k = w->d[2];
  if (!(w->flags & TWS_ACCUMULATE)) memset(o[2], 0, (size_t)(m * k) * sizeof(double));
  for (int64_t i = 0; i < m; ++i)
    for (int64_t j = 0; j < n; ++j)
      for (int64_t l = 0; l < k; ++l) o[2][i * k + l] += o[0][i * n + j] * o[1][j * k + l];
  for (int64_t i = 0; i < m * k && w->flags & TWS_GELU; ++i) o[2][i] *= oracle_gelu_slope(o[3][i]);
  if (w->flags & TWS_SUMS) oracle_sums(w, o[2], m, k, o[w->flags & TWS_GELU ? 4 : 3]);
}

static inline void oracle_linear_grad_weight(const tws_work *w, double **o) {
  const int64_t m = w->d[0], n = w->d[1], k = w->d[2];
  const int bias = (w->flags & TWS_BIAS) != 0;
  if (!(w->flags & TWS_ACCUMULATE)) {
    memset(o[2], 0, (size_t)(n * k) * sizeof(double));
    if (bias) memset(o[3], 0, (size_t)n * sizeof(double));
  }
  for (int64_t i = 0; i < m; ++i)
    for (int64_t j = 0; j < n; ++j) {
      for (int64_t l = 0; l < k; ++l) o[2][j * k + l] += o[0][i * n + j] * o[1][i * k + l];
      if (bias) o[3][j] += o[0][i * n + j];
    }
}

/* Rotates the pairs of each query and key head by position x frequency; direction -1 is the transposed rotation, for
 * the gradient. */
static inline void oracle_rope(const tws_work *w, const double *a, double **o, double direction) {
  const int64_t tokens = w->d[0], q = w->d[1], kv = w->d[2], head = w->d[3], seq = w->d[4];
  const int64_t rotary = w->d[5] > 0 ? w->d[5] : head, neighbours = (w->flags & TWS_INTERLEAVED) != 0;
  const double gain = w->f[5] > 0 ? w->f[5] : 1;
  const double *documents = w->flags & TWS_DOCUMENTS ? o[w->flags & TWS_RUNNING ? 2 : 1] : NULL;
  for (int64_t t = 0; t < tokens; ++t)
    for (int64_t h = 0; h < q + kv; ++h)
      for (int64_t i = 0; i < rotary / 2; ++i) {
        double frequency = pow(w->f[0], -2.0 * (double)i / (double)rotary);
        if (w->flags & TWS_RUNNING) {
          frequency /= o[1][(double)seq > w->f[4] ? rotary / 2 + i : i];
        } else if (w->f[1] > 0 && w->f[4] == 0) { /* all frequencies are divided, or those of a ramp from low to high */
          const double whole = frequency, ramp = ((double)i - w->f[2]) / (w->f[3] - w->f[2]);
          frequency /= w->f[1];
          if (w->f[3] > w->f[2] && ramp < 1) frequency += (whole - frequency) * (ramp < 0 ? 1 : 1 - ramp);
        } else if (w->f[1] > 0) {
          const double length = 2 * M_PI / frequency, low = w->f[4] / w->f[2], high = w->f[4] / w->f[3];
          if (length > low) {
            frequency /= w->f[1];
          } else if (length > high) {
            const double blend = (w->f[4] / length - w->f[2]) / (w->f[3] - w->f[2]);
            frequency = (1 - blend) * frequency / w->f[1] + blend * frequency;
          }
        }
        const double angle = direction * frequency *
                             (a[0] + (double)oracle_place(t % seq, seq, a[1]) - (documents ? documents[2 * t] : 0));
        double *x = o[0] + (t * (q + 2 * kv) + h) * head + (neighbours ? 2 * i : i);
        double *y = x + (neighbours ? 1 : rotary / 2);
        const double was = *x;
        *x = gain * (was * cos(angle) - *y * sin(angle));
        *y = gain * (*y * cos(angle) + was * sin(angle));
      }
}

static inline double oracle_silu(double x) {
  return x / (1 + exp(-x));
}
static inline double oracle_silu_slope(double x) {
  const double s = 1 / (1 + exp(-x));
  return s + x * s * (1 - s);
}
static inline void oracle_gated(const tws_work *w, double (*act)(double x), double **o) {
  for (int64_t t = 0; t < w->d[0]; ++t)
    for (int64_t i = 0; i < w->d[1]; ++i) {
      const double g = o[0][2 * t * w->d[1] + i], u = o[0][(2 * t + 1) * w->d[1] + i];
      o[1][t * w->d[1] + i] = act(g) * u;
    }
}
static inline void oracle_gated_grad(const tws_work *w, double (*act)(double x), double (*slope)(double x),
                                     double **o) {
  for (int64_t t = 0; t < w->d[0]; ++t)
    for (int64_t i = 0; i < w->d[1]; ++i) {
      const int64_t gate = 2 * t * w->d[1] + i, up = gate + w->d[1];
      const double g = o[1][gate], u = o[1][up], d = o[0][t * w->d[1] + i];
      o[2][gate] = d * u * slope(g);
      o[2][up] = d * act(g);
    }
}

/* Returns the weight divided by the share of the targets that count, where metrics hold that share. */
static inline double oracle_counted(const tws_work *w, double weight, const double *metrics) {
  const double kept = w->flags & TWS_COUNTED ? 1 - metrics[1] : 1;
  return kept < 1e-9 ? 0 : weight / kept;
}

static inline void oracle_cross_entropy(const tws_work *w, const double *a, double **o) {
  const int64_t columns = w->d[1], padded = w->d[2];
  const double weight = oracle_counted(w, a[0] * (w->flags & TWS_SCALED ? o[3][TWS_HYPER_SCALE] : 1), o[2]);
  for (int64_t t = 0; t < w->d[0]; ++t) {
    double *row = o[0] + t * padded, largest = -INFINITY, sum = 0;
    const int64_t target = (int64_t)o[1][t];
    for (int64_t i = 0; i < columns; ++i) largest = row[i] > largest ? row[i] : largest;
    for (int64_t i = 0; i < columns; ++i) sum += exp(row[i] - largest);
    if (target >= 0) o[2][0] += a[1] * (largest + log(sum) - row[target]);
    if (target < 0 && !(w->flags & TWS_COUNTED)) o[2][1] += a[1];
    for (int64_t i = 0; i < padded; ++i)
      row[i] = i < columns && target >= 0 ? weight * (exp(row[i] - largest) / sum - (i == target)) : 0;
  }
}

static inline void oracle_independent_loss(const tws_work *w, const double *a, double **o) {
  const int64_t columns = w->d[1], padded = w->d[2];
  const int squares = w->code == TWS_KERNEL_MEAN_SQUARED_ERROR;
  const double weight = oracle_counted(w, a[0] * (w->flags & TWS_SCALED ? o[3][TWS_HYPER_SCALE] : 1), o[2]);
  for (int64_t t = 0; t < w->d[0]; ++t)
    for (int64_t i = 0; i < padded; ++i) {
      double *z = &o[0][t * padded + i];
      const double target = o[1][t], wanted = columns > 1 ? (double)i == target : target;
      const double part = (squares ? pow(*z - wanted, 2) : log(1 + exp(-*z)) + (1 - wanted) * *z) / (double)columns;
      const double slope = (squares ? 2 * (*z - wanted) : 1 / (1 + exp(-*z)) - wanted) / (double)columns;
      if (i < columns && target >= 0) o[2][0] += a[1] * part;
      if (i == 0 && target < 0 && !(w->flags & TWS_COUNTED)) o[2][1] += a[1];
      *z = i < columns && target >= 0 ? weight * slope : 0;
    }
}

static inline void oracle_vocabulary_stats(const tws_work *w, const double *a, double **o) {
  const int64_t columns = w->d[1], padded = w->d[2];
  for (int64_t t = 0; t < w->d[0]; ++t) {
    const double *row = o[0] + t * padded, target = o[1][t] - a[0];
    double largest = -INFINITY, sum = 0;
    for (int64_t i = 0; i < columns; ++i) largest = row[i] > largest ? row[i] : largest;
    for (int64_t i = 0; i < columns; ++i) sum += exp(row[i] - largest);
    o[2][3 * t] = largest;
    o[2][3 * t + 1] = sum;
    o[2][3 * t + 2] = o[1][t] >= 0 && target >= 0 && target < (double)columns ? row[(int64_t)target] : 0;
  }
}

/* Computes loss and gradient where each rank has some columns of the vocabulary. Sums of e^x are added without
 * subtracting a maximum: test data keeps them in range. */
static inline void oracle_vocabulary_loss(const tws_work *w, const double *a, double **o) {
  const int64_t tokens = w->d[0], columns = w->d[1], padded = w->d[2];
  const double weight = oracle_counted(w, a[0] * (w->flags & TWS_SCALED ? o[4][TWS_HYPER_SCALE] : 1), o[3]);
  for (int64_t t = 0; t < tokens; ++t) {
    double *row = o[0] + t * padded, sum = 0, logit = 0;
    for (int64_t r = 0; r < w->d[3]; ++r) {
      const double *part = o[2] + 3 * (r * tokens + t);
      sum += part[1] * exp(part[0]);
      logit += part[2];
    }
    if (o[1][t] < 0)
      o[3][1] += w->flags & TWS_COUNTED ? 0 : a[1];
    else
      o[3][0] += a[1] * (log(sum) - logit);
    for (int64_t i = 0; i < padded; ++i) {
      /* the target's probability comes from the ranks' statistics, as its loss does */
      const int is_target = (double)i == o[1][t] - a[2];
      const double p = exp(is_target ? logit : row[i]) / sum;
      row[i] = i < columns && o[1][t] >= 0 ? weight * (p - is_target) : 0;
    }
  }
}

/* Splits the whole into packed tensors (y = x[source]) or, with join 1, adds them to it (x[source] += y). */
static inline void oracle_split(const tws_work *w, double **o, int join) {
  const int64_t q = w->d[1] * w->d[3], kv = 2 * w->d[2] * w->d[3];
  for (int64_t t = 0; t < w->d[0]; ++t)
    for (int64_t i = 0; i < q + kv; ++i) {
      double *part = i < q ? &o[join ? 0 : 1][t * q + i] : &o[join ? 1 : 2][t * kv + i - q];
      double *whole = &o[join ? 2 : 0][t * (q + kv) + i];
      if (join)
        *whole += *part;
      else
        *part = *whole;
    }
}

static inline void oracle_merge(const tws_work *w, double **o) {
  const int64_t seq = w->d[1], heads = w->d[2], head = w->d[3], rows = w->d[4];
  for (int64_t b = 0; b < w->d[0]; ++b)
    for (int64_t h = 0; h < heads; ++h)
      for (int64_t r = 0; r < rows; ++r) {
        const int64_t token = seq - rows + r;
        double *lse = &o[3][(b * heads + h) * seq + token];
        const double whole = exp(*lse), part = exp(o[1][(b * heads + h) * rows + r]);
        for (int64_t c = 0; c < head; ++c) {
          double *x = &o[2][((b * seq + token) * heads + h) * head + c];
          *x = (whole * *x + part * o[0][((b * rows + r) * heads + h) * head + c]) / (whole + part);
        }
        *lse = log(whole + part);
      }
}

static inline void oracle_heads(const tws_work *w, double *whole, double *packed, int unpack) {
  const int64_t tokens = w->d[0], ranks = w->d[1], q = w->d[2], kv = w->d[3], head = w->d[4];
  const int64_t share = kv == 0 ? 0 : kv < ranks ? 1 : kv / ranks;
  if (unpack) memset(whole, 0, (size_t)(tokens * (q + 2 * kv) * head) * sizeof(double));
  for (int64_t r = 0; r < ranks; ++r)
    for (int64_t t = 0; t < tokens; ++t)
      for (int64_t h = 0; h < q / ranks + 2 * share; ++h)
        for (int64_t c = 0; c < head; ++c, ++packed) {
          const int64_t key = h - q / ranks, value = key - share;
          int64_t from = r * (q / ranks) + h;
          if (key >= 0) from = q + r * kv / ranks + key;
          if (value >= 0) from = q + kv + r * kv / ranks + value;
          double *at = whole + (t * (q + 2 * kv) + from) * head + c;
          if (unpack)
            *at += *packed;
          else
            *packed = *at;
        }
}

static inline void oracle_clip(const tws_work *w, double **o) {
  const int scaled = (w->flags & TWS_SCALED) != 0;
  double *heads = o[0] + TWS_METRIC_HEADS, sum = 0, any = 0;
  for (int h = 0; h < (int)w->f[1]; ++h) {
    const double share = 1 - heads[2 * h + 1];
    heads[2 * h] = share < 1e-9 ? 0 : heads[2 * h] / share;
    sum += heads[2 * h];
    any = share >= 1e-9 ? 1 : any;
  }
  if (w->f[1] > 0) o[0][TWS_METRIC_LOSS] = sum;
  const double kept = w->f[1] > 0 ? any : 1 - o[0][TWS_METRIC_IGNORED], some = kept >= 1e-9;
  const double scale = scaled ? o[1][TWS_HYPER_SCALE] : 1;
  const int overflow = scaled && (!isfinite(o[0][TWS_METRIC_SQUARES]) || !isfinite(o[0][TWS_METRIC_LOSS]));
  const double norm = sqrt(o[0][TWS_METRIC_SQUARES]) / kept / scale, coefficient = w->f[0] / (norm + 1e-6);
  const double clip = !isfinite(norm) || overflow ? 0 : w->f[0] > 0 && coefficient < 1 ? coefficient : 1;
  o[0][TWS_METRIC_LOSS] = some ? o[0][TWS_METRIC_LOSS] / kept : 0;
  o[0][TWS_METRIC_NORM] = some ? norm : 0;
  o[0][TWS_METRIC_CLIP] = some ? clip / kept / scale : 0;
  if (scaled) o[0][TWS_METRIC_OVERFLOW] = overflow;
}

#include "tests/oracle_attention.h"
#include "tests/oracle_cache.h"
#include "tests/oracle_disentangled.h"
#include "tests/oracle_encoders.h"
#include "tests/oracle_float8.h"
#include "tests/oracle_latent.h"
#include "tests/oracle_low_rank.h"
#include "tests/oracle_eight_bit.h"
#include "tests/oracle_factored.h"
#include "tests/oracle_sparse.h"
#include "tests/oracle_optimizers.h"
#include "tests/oracle_quantized.h"
#include "tests/oracle_routing.h"

static inline void oracle_dropout(const tws_work *w, const double *a, double **o) {
  const float step = (float)o[1][TWS_HYPER_STEP];
  uint32_t bits, word[4];
  memcpy(&bits, &step, sizeof bits);
  for (int64_t i = 0; i < w->d[0]; ++i) {
    const int64_t run = a[2] > 0 ? (int64_t)a[2] : w->d[0];
    const uint64_t e = (uint64_t)a[1] + (uint64_t)(i / run) * (uint64_t)a[3] + (uint64_t)(i % run);
    tws_philox((uint64_t)a[0], 0x4000000000000000U + bits, e / 4, word);
    if (w->f[1] > 0)
      o[0][i] *= 1 + w->f[1] * (((double)(word[e % 4] >> 9) + 0.5) * 0x1p-22 - 1);
    else
      o[0][i] *= word[e % 4] < floor(w->f[0] * 0x1p32 + 0.5) ? 0 : 1 / (1 - w->f[0]);
  }
}

static inline void oracle_run(const tws_work *w, const tws_arguments *arguments, double **o, int count) {
  const double *a = arguments->a;
  if (w->flags & TWS_FP8) {
    if (w->code >= TWS_KERNEL_LINEAR && w->code <= TWS_KERNEL_LINEAR_GRAD_WEIGHT)
      oracle_linear8(w, o, count);
    else
      oracle_cast_output(w, arguments, o, count);
    return;
  }
  if (oracle_factored(w, a, o, count)) return;
  switch ((tws_kernel)w->code) {
    case TWS_KERNEL_EMBEDDING:
      oracle_embedding(w, a, o);
      break;
    case TWS_KERNEL_EMBEDDING_GRAD:
      oracle_embedding_grad(w, a, o);
      break;
    case TWS_KERNEL_POSITION_GRAD:
      oracle_position_grad(w, a, o);
      break;
    case TWS_KERNEL_NORM:
      oracle_norm(w, o);
      break;
    case TWS_KERNEL_NORM_GRAD:
      oracle_norm_grad(w, o);
      break;
    case TWS_KERNEL_HEADS_NORM:
    case TWS_KERNEL_HEADS_NORM_GRAD:
      oracle_heads_norm(w, o, w->code == TWS_KERNEL_HEADS_NORM_GRAD);
      break;
    case TWS_KERNEL_LINEAR:
      oracle_linear(w, o);
      break;
    case TWS_KERNEL_LINEAR_GRAD_INPUT:
      oracle_linear_grad_input(w, o);
      break;
    case TWS_KERNEL_LINEAR_GRAD_WEIGHT:
      oracle_linear_grad_weight(w, o);
      break;
    case TWS_KERNEL_CONVOLUTION:
    case TWS_KERNEL_CONVOLUTION_GRAD_INPUT:
    case TWS_KERNEL_CONVOLUTION_GRAD_WEIGHT:
      oracle_convolution(w, o);
      break;
    case TWS_KERNEL_BATCH_NORM:
      oracle_batch_norm(w, a, o);
      break;
    case TWS_KERNEL_BATCH_NORM_GRAD:
      oracle_batch_norm_grad(w, o);
      break;
    case TWS_KERNEL_BATCH_NORM_EVALUATION:
      oracle_batch_norm_evaluation(w, o);
      break;
    case TWS_KERNEL_MAX_POOL:
    case TWS_KERNEL_MAX_POOL_GRAD:
      oracle_pool(w, o, 0, w->code == TWS_KERNEL_MAX_POOL_GRAD);
      break;
    case TWS_KERNEL_AVERAGE_POOL:
    case TWS_KERNEL_AVERAGE_POOL_GRAD:
      oracle_pool(w, o, 1, w->code == TWS_KERNEL_AVERAGE_POOL_GRAD);
      break;
    case TWS_KERNEL_ROPE:
      oracle_rope(w, a, o, 1);
      break;
    case TWS_KERNEL_ROPE_GRAD:
      oracle_rope(w, a, o, -1);
      break;
    case TWS_KERNEL_ATTENTION:
      oracle_attention(w, a, o);
      break;
    case TWS_KERNEL_ATTENTION_GRAD:
      oracle_attention_grad(w, a, o);
      break;
    case TWS_KERNEL_CACHE_WRITE:
      oracle_cache_write(w, o);
      break;
    case TWS_KERNEL_CACHED_ATTENTION:
      oracle_cached_attention(w, a, o);
      break;
    case TWS_KERNEL_LATENT_WRITE:
      oracle_latent_write(w, o);
      break;
    case TWS_KERNEL_LATENT_ATTENTION:
      oracle_latent_attention(w, o);
      break;
    case TWS_KERNEL_DISENTANGLED:
    case TWS_KERNEL_DISENTANGLED_GRAD:
      oracle_disentangled(w, a, o, w->code == TWS_KERNEL_DISENTANGLED_GRAD);
      break;
    case TWS_KERNEL_PART_BIAS:
    case TWS_KERNEL_PART_BIAS_GRAD:
      oracle_part_bias(w, o, w->code == TWS_KERNEL_PART_BIAS_GRAD);
      break;
    case TWS_KERNEL_TOKEN_UNFOLD:
    case TWS_KERNEL_TOKEN_UNFOLD_GRAD:
      oracle_token_unfold(w, o, w->code == TWS_KERNEL_TOKEN_UNFOLD_GRAD);
      break;
    case TWS_KERNEL_SPANS:
    case TWS_KERNEL_SPANS_GRAD:
      oracle_spans(w, o, w->code == TWS_KERNEL_SPANS_GRAD);
      break;
    case TWS_KERNEL_DROPOUT:
      oracle_dropout(w, a, o);
      break;
    case TWS_KERNEL_SWIGLU:
      oracle_gated(w, oracle_silu, o);
      break;
    case TWS_KERNEL_SWIGLU_GRAD:
      oracle_gated_grad(w, oracle_silu, oracle_silu_slope, o);
      break;
    case TWS_KERNEL_GEGLU:
      oracle_gated(w, oracle_gelu, o);
      break;
    case TWS_KERNEL_GEGLU_GRAD:
      oracle_gated_grad(w, oracle_gelu, oracle_gelu_slope, o);
      break;
    case TWS_KERNEL_CROSS_ENTROPY:
      oracle_cross_entropy(w, a, o);
      break;
    case TWS_KERNEL_BINARY_CROSS_ENTROPY:
    case TWS_KERNEL_MEAN_SQUARED_ERROR:
      oracle_independent_loss(w, a, o);
      break;
    case TWS_KERNEL_VOCABULARY_STATS:
      oracle_vocabulary_stats(w, a, o);
      break;
    case TWS_KERNEL_VOCABULARY_LOSS:
      oracle_vocabulary_loss(w, a, o);
      break;
    case TWS_KERNEL_HEADS_PACK:
      oracle_heads(w, o[0], o[1], 0);
      break;
    case TWS_KERNEL_HEADS_UNPACK:
      oracle_heads(w, o[1], o[0], 1);
      break;
    case TWS_KERNEL_HEADS_SPLIT:
    case TWS_KERNEL_HEADS_JOIN:
      oracle_split(w, o, w->code == TWS_KERNEL_HEADS_JOIN);
      break;
    case TWS_KERNEL_ATTENTION_MERGE:
      oracle_merge(w, o);
      break;
    case TWS_KERNEL_TRANSPOSE:
      for (int64_t i = 0; i < w->d[0]; ++i)
        for (int64_t j = 0; j < w->d[1]; ++j)
          for (int64_t c = 0; c < w->d[2]; ++c)
            o[1][(j * w->d[0] + i) * w->d[2] + c] = o[0][(i * w->d[1] + j) * w->d[2] + c];
      break;
    case TWS_KERNEL_ADAMW:
      oracle_adamw(w, o, count);
      break;
    case TWS_KERNEL_LION:
      oracle_lion(w, o, count);
      break;
    case TWS_KERNEL_ADAGRAD:
      oracle_adagrad(w, o, count);
      break;
    case TWS_KERNEL_MUON:
      oracle_muon(w, o, count);
      break;
    case TWS_KERNEL_MUON_MOMENTUM:
      oracle_muon_momentum(w, o);
      break;
    case TWS_KERNEL_UNIT_NORM:
      oracle_unit_norm(w, o);
      break;
    case TWS_KERNEL_NEWTON_SCHULZ:
      oracle_newton_schulz(w, o);
      break;
    case TWS_KERNEL_SGD:
      oracle_sgd(w, o, count);
      break;
    case TWS_KERNEL_LAMB:
      oracle_lamb(w, o, count);
      break;
    case TWS_KERNEL_LAMB_NORMS:
      oracle_lamb_norms(w, a, o);
      break;
    case TWS_KERNEL_CLIP:
      oracle_clip(w, o);
      break;
    case TWS_KERNEL_GELU:
      for (int64_t i = 0; i < w->d[0]; ++i) o[1][i] = oracle_gelu(o[0][i]);
      break;
    case TWS_KERNEL_GELU_GRAD:
      for (int64_t i = 0; i < w->d[0]; ++i) o[2][i] = o[0][i] * oracle_gelu_slope(o[1][i]);
      break;
    case TWS_KERNEL_GELU_EXACT:
      for (int64_t i = 0; i < w->d[0]; ++i) o[1][i] = oracle_gelu_exact(o[0][i]);
      break;
    case TWS_KERNEL_GELU_EXACT_GRAD:
      for (int64_t i = 0; i < w->d[0]; ++i) o[2][i] = o[0][i] * oracle_gelu_exact_slope(o[1][i]);
      break;
    case TWS_KERNEL_SIGMOID:
      for (int64_t i = 0; i < w->d[0]; ++i) o[1][i] = 1 / (1 + exp(-o[0][i]));
      break;
    case TWS_KERNEL_SIGMOID_GRAD:
      for (int64_t i = 0; i < w->d[0]; ++i) o[2][i] = o[0][i] / pow(2 * cosh(o[1][i] / 2), 2);
      break;
    case TWS_KERNEL_SILU:
      for (int64_t i = 0; i < w->d[0]; ++i) o[1][i] = o[0][i] / (1 + exp(-o[0][i]));
      break;
    case TWS_KERNEL_SILU_GRAD:
      for (int64_t i = 0; i < w->d[0]; ++i) {
        const double s = 1 / (1 + exp(-o[1][i]));
        o[2][i] = o[0][i] * (s + o[1][i] * s * (1 - s));
      }
      break;
    case TWS_KERNEL_LEAKY_RELU:
      for (int64_t i = 0; i < w->d[0]; ++i) o[1][i] = (o[0][i] > 0 ? 1 : w->f[0]) * o[0][i];
      break;
    case TWS_KERNEL_LEAKY_RELU_GRAD:
      for (int64_t i = 0; i < w->d[0]; ++i) o[2][i] = (o[1][i] > 0 ? 1 : w->f[0]) * o[0][i];
      break;
    case TWS_KERNEL_CLAMP:
      for (int64_t i = 0; i < w->d[0]; ++i) o[1][i] = fmax(w->f[0], fmin(w->f[1], o[0][i]));
      break;
    case TWS_KERNEL_CLAMP_GRAD:
      for (int64_t i = 0; i < w->d[0]; ++i) o[2][i] = w->f[0] < o[1][i] && o[1][i] < w->f[1] ? o[0][i] : 0;
      break;
    case TWS_KERNEL_SOFTCAP:
      for (int64_t i = 0; i < w->d[0]; ++i) o[1][i] = w->f[0] * tanh(o[0][i] / w->f[0]);
      break;
    case TWS_KERNEL_SOFTCAP_GRAD:
      for (int64_t i = 0; i < w->d[0]; ++i) o[2][i] = o[0][i] / pow(cosh(o[1][i] / w->f[0]), 2);
      break;
    case TWS_KERNEL_MULTIPLY:
      for (int64_t i = 0; i < w->d[0]; ++i) o[0][i] *= w->f[0];
      break;
    case TWS_KERNEL_RELU:
      for (int64_t i = 0; i < w->d[0]; ++i) o[1][i] = o[0][i] > 0 ? o[0][i] : 0;
      break;
    case TWS_KERNEL_RELU_GRAD:
      for (int64_t i = 0; i < w->d[0]; ++i) o[2][i] = o[1][i] > 0 ? o[0][i] : 0;
      break;
    case TWS_KERNEL_SQUARED_RELU:
      for (int64_t i = 0; i < w->d[0]; ++i) o[1][i] = o[0][i] > 0 ? o[0][i] * o[0][i] : 0;
      break;
    case TWS_KERNEL_SQUARED_RELU_GRAD:
      for (int64_t i = 0; i < w->d[0]; ++i) o[2][i] = o[1][i] > 0 ? 2 * o[0][i] * o[1][i] : 0;
      break;
    case TWS_KERNEL_ADD:
      for (int64_t i = 0; i < w->d[0]; ++i) o[2][i] = o[0][i] + o[1][i];
      break;
    case TWS_KERNEL_COUNT_IGNORED:
      for (int64_t i = 0; i < w->d[0]; ++i) o[1][0] += o[0][i] < 0 ? a[0] : 0;
      break;
    case TWS_KERNEL_SQUARED_NORM:
      for (int64_t i = 0; i < w->d[0]; ++i) o[1][0] += a[0] * o[0][i] * o[0][i];
      break;
    case TWS_KERNEL_FILL:
      for (int64_t i = 0; i < w->d[0]; ++i) o[0][i] = a[0];
      break;
    case TWS_KERNEL_ACCUMULATE:
      for (int64_t i = 0; i < w->d[0]; ++i) o[1][i] += o[0][i];
      break;
    case TWS_KERNEL_COLUMN_NORMS:
      oracle_column_norms(w, a, o);
      break;
    case TWS_KERNEL_TOP_COLUMNS:
      oracle_top_columns(w, o);
      break;
    case TWS_KERNEL_GATHER_COLUMNS:
      oracle_move_columns(w, a, o[0], o[1], o[2], 0);
      break;
    case TWS_KERNEL_SCATTER_COLUMNS:
      oracle_move_columns(w, a, o[2], o[1], o[0], 1);
      break;
    case TWS_KERNEL_ACCUMULATE_CLIPPED:
      for (int64_t i = 0; i < w->d[0]; ++i) o[2][i] += o[1][TWS_METRIC_CLIP] * o[0][i];
      break;
    case TWS_KERNEL_CAST:
      for (int64_t i = 0; i < w->d[0]; ++i) o[1][i] = o[0][i];
      break;
    case TWS_KERNEL_ROUTER:
      oracle_router(w, a, o);
      break;
    case TWS_KERNEL_LATENT:
      oracle_latent(w, o);
      break;
    case TWS_KERNEL_LATENT_GRAD:
      oracle_latent_grad(w, o);
      break;
    case TWS_KERNEL_PART:
      oracle_part(w, a, o);
      break;
    case TWS_KERNEL_PART_GRAD:
      oracle_part_grad(w, a, o);
      break;
    case TWS_KERNEL_GATE:
      oracle_gate(w, o);
      break;
    case TWS_KERNEL_GATE_GRAD:
      oracle_gate_grad(w, o);
      break;
    case TWS_KERNEL_BALANCE:
      oracle_balance(w, o);
      break;
    case TWS_KERNEL_ROUTER_GRAD:
      oracle_router_grad(w, a, o);
      break;
    case TWS_KERNEL_DISPATCH:
      oracle_dispatch(w, o);
      break;
    case TWS_KERNEL_DISPATCH_GRAD:
      oracle_gather(w, o, NULL, o[2]);
      break;
    case TWS_KERNEL_COMBINE:
      oracle_gather(w, o, o[2], o[3]);
      break;
    case TWS_KERNEL_COMBINE_GRAD:
      oracle_combine_grad(w, o);
      break;
    case TWS_KERNEL_EXPERT_LINEAR:
    case TWS_KERNEL_EXPERT_LINEAR_GRAD_INPUT:
    case TWS_KERNEL_EXPERT_LINEAR_GRAD_WEIGHT:
      oracle_expert_linear(w, o);
      break;
    case TWS_KERNEL_LOW_RANK:
    case TWS_KERNEL_LOW_RANK_GRAD_INPUT:
    case TWS_KERNEL_LOW_RANK_GRAD_WEIGHT:
      oracle_low_rank(w, o);
      break;
    case TWS_KERNEL_AMAX:
      oracle_amax(w, o);
      break;
    case TWS_KERNEL_QUANTIZE:
      oracle_quantize(w, o);
      break;
    case TWS_KERNEL_QUANTIZE_SUM:
      oracle_quantize_sum(w, o, count);
      break;
    case TWS_KERNEL_TRANSPOSE_CODES:
      for (int64_t i = 0; i < w->d[0] * w->d[1]; ++i) o[1][i % w->d[1] * w->d[0] + i / w->d[1]] = o[0][i];
      break;
    case TWS_KERNEL_AMAX_HISTORY:
      oracle_amax_history(w, o);
      break;
    case TWS_KERNEL_DEQUANTIZE:
    case TWS_KERNEL_DEQUANTIZE_TWICE:
      oracle_dequantize(w, o);
      break;
    case TWS_KERNEL_QUANTIZE_PARTS:
      oracle_quantize_parts(w, o);
      break;
    case TWS_KERNEL_CODED_LINEAR:
      oracle_coded_linear(w, o);
      break;
    case TWS_KERNEL_DEQUANTIZE_PARTS:
      oracle_dequantize_parts(w, o);
      break;
    case TWS_KERNEL_SIGN_PACK:
      oracle_sign_pack(w, o);
      break;
    case TWS_KERNEL_SIGN_AVERAGE:
      oracle_sign_average(w, arguments, o);
      break;
    case TWS_KERNEL_SIGN_UNPACK:
      oracle_sign_unpack(w, arguments, o);
      break;
    case TWS_KERNEL_MOMENTUM:
      oracle_momentum(w, arguments, o);
      break;
    case TWS_KERNEL_FROZEN_ADAM:
      oracle_frozen_adam(w, o);
      break;
    case TWS_KERNEL_LOCAL_UNDO:
      oracle_local_undo(w, o);
      break;
    case TWS_KERNEL_LOCAL_MERGE:
      oracle_local_merge(w, o);
      break;
    case TWS_KERNEL_SCALED_MOMENTUM:
      oracle_scaled_momentum(w, arguments, o);
      break;
    case TWS_KERNEL_FRESH_MOMENTS:
      oracle_fresh_moments(w, arguments, o);
      break;
    case TWS_KERNEL_LAMB_FACTORS:
      oracle_lamb_factors(w, o);
      break;
    case TWS_KERNEL_FROZEN_LAMB:
      oracle_frozen_lamb(w, o);
      break;
    case TWS_KERNEL_LAMB_RATIOS:
      oracle_lamb_ratios(w, o);
      break;
    case TWS_KERNEL_MEAN_SQUARE:
      oracle_mean_square(w, arguments, o);
      break;
    case TWS_KERNEL_MOMENTUM_SCALES:
      oracle_momentum_scales(w, o);
      break;
    case TWS_KERNEL_EMBEDDING_ROWS:
      oracle_embedding_rows(w, a, o);
      break;
    case TWS_KERNEL_ADD_ROWS:
      oracle_add_rows(w, o);
      break;
    case TWS_KERNEL_ADAMW8:
      oracle_adamw8(w, o, count);
      break;
    case TWS_KERNEL_FACTOR_SUMS: /* oracle_factored() */
    case TWS_KERNEL_FACTOR_MOMENTS:
    case TWS_KERNEL_FACTOR_CHANGE:
    case TWS_KERNEL_FACTOR_NORMS:
    case TWS_KERNEL_ADAFACTOR:
    case TWS_KERNEL_COUNT:
      break;
  }
}

#endif
