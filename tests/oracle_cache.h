/* The kernels of the cache of keys and values in float64. Part of oracle.h. */
#ifndef TWS_TESTS_ORACLE_CACHE_H
#define TWS_TESTS_ORACLE_CACHE_H

static inline void oracle_cache_write(const tws_work *w, double **o) {
  const int64_t seq = w->d[1], q = w->d[2], kv = w->d[3], head = w->d[4], rows = w->d[5];
  for (int64_t b = 0; b < w->d[0]; ++b)
    for (int64_t t = 0; t < (int64_t)o[2][b]; ++t)
      for (int64_t h = 0; h < 2 * kv; ++h)
        for (int64_t c = 0; c < head; ++c)
          o[3][((b * 2 * kv + h) * rows + ((int64_t)o[1][b] + t) % rows) * head + c] =
              o[0][((b * seq + t) * (q + 2 * kv) + q + h) * head + c];
}

static inline void oracle_cached_attention(const tws_work *w, const double *a, double **o) {
  const int64_t seq = w->d[1], heads = w->d[2], kv = w->d[3], head = w->d[4], rows = w->d[5], window = w->d[7];
  const double scale = w->f[0] != 0 ? w->f[0] : 1 / sqrt((double)head), factor = w->f[2] != 0 ? w->f[2] : 1;
  for (int64_t i = 0; i < w->d[0] * seq * heads; ++i) {
    const int64_t h = i % heads, t = i / heads % seq, b = i / heads / seq, position = (int64_t)o[2][b] + t;
    const double *q = o[0] + ((b * seq + t) * (heads + 2 * kv) + h) * head;
    const double *keys = o[1] + (b * 2 * kv + h / (heads / kv)) * rows * head, *values = keys + kv * rows * head;
    const double slope =
        w->flags & TWS_ALIBI ? factor * oracle_slope((int64_t)a[0] + h, a[1] > 0 ? (int64_t)a[1] : heads) : 0;
    double sum = 0;
    for (int64_t c = 0; c < head; ++c) o[4][i * head + c] = 0;
    if (t >= (int64_t)o[3][b]) continue;
    for (int64_t p = position; p >= 0 && p > position - rows && (!window || p > position - window); --p) {
      double x = 0;
      for (int64_t c = 0; c < head; ++c) x += q[c] * keys[p % rows * head + c] * scale;
      if (w->f[1] != 0) x = w->f[1] * tanh(x / w->f[1]);
      const double e = exp(x - slope * (double)(position - p));
      sum += e;
      for (int64_t c = 0; c < head; ++c) o[4][i * head + c] += e * values[p % rows * head + c];
    }
    for (int64_t c = 0; c < head; ++c) o[4][i * head + c] /= sum;
  }
}

#endif
