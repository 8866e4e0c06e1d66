/* The kernels of the cache of keys and values in float64. Part of oracle.h. */
#ifndef TWS_TESTS_ORACLE_CACHE_H
#define TWS_TESTS_ORACLE_CACHE_H

#include "tests/oracle_latent.h"

/* The number of the row of a position of sequence b, among rows of all heads. */
static inline int64_t oracle_cache_row(const tws_work *w, int64_t block, const double *blocks, int64_t b, int64_t head,
                                       int64_t position) {
  const int64_t kv = w->d[3], rows = w->d[5], row = position % rows;
  if (!(w->flags & TWS_PAGED)) return (b * 2 * kv + head) * rows + row;
  return ((int64_t)blocks[b * ((rows + block - 1) / block) + row / block] * 2 * kv + head) * block + row % block;
}

static inline void oracle_cache_write(const tws_work *w, double **o) {
  const int64_t seq = w->d[1], q = w->flags & TWS_Q_KV ? 0 : w->d[2], kv = w->d[3], head = w->d[4];
  for (int64_t b = 0; b < w->d[0]; ++b)
    for (int64_t t = 0; t < (int64_t)o[2][b]; ++t)
      for (int64_t h = 0; h < 2 * kv; ++h)
        for (int64_t c = 0; c < head; ++c)
          o[3][oracle_cache_row(w, w->d[6], o[4], b, h, (int64_t)o[1][b] + t) * head + c] =
              o[0][((b * seq + t) * (q + 2 * kv) + q + h) * head + c];
}

static inline void oracle_cached_attention(const tws_work *w, const double *a, double **o) {
  const int64_t seq = w->d[1], heads = w->d[2], kv = w->d[3], head = w->d[4], rows = w->d[5], block = (int64_t)w->f[5];
  const int64_t window = w->flags & TWS_PAGED ? 0 : w->d[7];
  const double *blocks = o[w->flags & TWS_RELATIVE ? 6 : 5];
  const double scale = w->f[0] != 0 ? w->f[0] : 1 / sqrt((double)head), factor = w->f[2] != 0 ? w->f[2] : 1;
  tws_work relative = {.flags = TWS_RELATIVE}; /* as a work of ATTENTION has the sizes of the table */
  relative.d[7] = (int64_t)w->f[3], relative.f[3] = w->f[4];
  const int64_t others = w->flags & TWS_Q_KV ? 0 : 2 * kv;
  for (int64_t i = 0; i < w->d[0] * seq * heads; ++i) {
    const int64_t h = i % heads, t = i / heads % seq, b = i / heads / seq, position = (int64_t)o[2][b] + t;
    const double *q = o[0] + ((b * seq + t) * (heads + others) + h) * head;
    const double slope =
        w->flags & TWS_ALIBI ? factor * oracle_slope((int64_t)a[0] + h, a[1] > 0 ? (int64_t)a[1] : heads) : 0;
    double sum = 0;
    for (int64_t c = 0; c < head; ++c) o[4][i * head + c] = 0;
    if (t >= (int64_t)o[3][b]) continue;
    for (int64_t p = position; p >= 0 && p > position - rows && (!window || p > position - window); --p) {
      double x = 0;
      const double *key = o[1] + oracle_cache_row(w, block, blocks, b, h / (heads / kv), p) * head;
      const double *v = o[1] + oracle_cache_row(w, block, blocks, b, kv + h / (heads / kv), p) * head;
      for (int64_t c = 0; c < head; ++c) x += q[c] * key[c] * scale;
      if (w->f[1] != 0) x = w->f[1] * tanh(x / w->f[1]);
      if (w->flags & TWS_RELATIVE) x += o[5][oracle_bucket(&relative, p - position) * heads + h];
      const double e = exp(x - slope * (double)(position - p));
      sum += e;
      for (int64_t c = 0; c < head; ++c) o[4][i * head + c] += e * v[c];
    }
    for (int64_t c = 0; c < head; ++c) o[4][i * head + c] /= sum;
  }
}

static inline double oracle_cache_angle(const tws_work *w, int64_t rope, int64_t position, int64_t pair) {
  return (double)position * tws_latent_frequency(w->f, rope, pair);
}

static inline void oracle_latent_write(const tws_work *w, double **o) {
  const int64_t seq = w->d[1], rank = w->d[2], rope = w->d[3], rows = w->d[4], width = rank + rope;
  for (int64_t b = 0; b < w->d[0]; ++b)
    for (int64_t t = 0; t < (int64_t)o[3][b]; ++t)
      for (int64_t c = 0; c < width; ++c) {
        const int64_t position = (int64_t)o[2][b] + t, pair = c < rank ? 0 : (c - rank) / 2;
        const double *row = o[0] + (b * seq + t) * rank, *key = o[1] + (b * seq + t) * width + rank;
        o[4][(b * rows + position % rows) * width + c] =
            c < rank ? row[c] : oracle_turned(key + 2 * pair, c - rank, oracle_cache_angle(w, rope, position, pair));
      }
}

static inline void oracle_latent_attention(const tws_work *w, double **o) {
  const int64_t seq = w->d[1], heads = w->d[2], nope = w->d[3], rope = w->d[4], value = w->d[5], rank = w->d[6];
  const int64_t rows = w->d[7], head = nope + rope, width = rank + rope;
  for (int64_t i = 0; i < w->d[0] * seq * heads; ++i) {
    const int64_t h = i % heads, t = i / heads % seq, b = i / heads / seq, position = (int64_t)o[3][b] + t;
    const double *q = o[0] + i * head, *weight = o[1] + h * (nope + value) * rank;
    double sum = 0, *mean = calloc((size_t)rank, sizeof *mean);
    for (int64_t p = position; t < (int64_t)o[4][b] && p >= 0 && p > position - rows; --p) {
      const double *row = o[2] + (b * rows + p % rows) * width;
      double x = 0;
      for (int64_t j = 0; j < nope; ++j) { /* the key that the row would be expanded to */
        double key = 0;
        for (int64_t c = 0; c < rank; ++c) key += weight[j * rank + c] * row[c];
        x += q[j] * key;
      }
      for (int64_t j = 0; j < rope; ++j)
        x += oracle_turned(q + nope + j / 2 * 2, j, oracle_cache_angle(w, rope, position, j / 2)) * row[rank + j];
      const double e = exp(x * w->f[4]);
      sum += e;
      for (int64_t c = 0; c < rank; ++c) mean[c] += e * row[c];
    }
    for (int64_t j = 0; j < head; ++j) {
      o[5][i * head + j] = 0;
      for (int64_t c = 0; j < value && sum > 0 && c < rank; ++c)
        o[5][i * head + j] += weight[(nope + j) * rank + c] * mean[c] / sum;
    }
    free(mean);
  }
}

#endif
