/* Disentangled attention in float64. Part of oracle.h. */
#ifndef TWS_TESTS_ORACLE_DISENTANGLED_H
#define TWS_TESTS_ORACLE_DISENTANGLED_H

/* Returns the row of the table of positions as Hugging Face's DeBERTa computes it: buckets of
 * make_log_bucket_position(), then clamp(). */
static inline int64_t oracle_position_row(const tws_work *w, int64_t behind) {
  const int64_t span = w->d[3] / 2, mid = span / 2;
  double bucket = (double)behind;
  if (w->f[2] > 0 && llabs(behind) > mid)
    bucket =
        copysign(1, (double)behind) *
        (ceil(log((double)llabs(behind) / (double)mid) / log((w->f[2] - 1) / (double)mid) * (double)(mid - 1) - 1e-9) +
         (double)mid);
  return (int64_t)fmax(0, fmin(bucket + (double)span, (double)(w->d[3] - 1)));
}

/* Returns part `part` of a head in a row of positions, or NULL where the kinds leave this part out. */
static inline double *oracle_position(const tws_work *w, double *p, int64_t row, int part, int64_t h) {
  const int64_t parts = w->f[3] > 0 ? (int64_t)w->f[3] : 3, kinds = w->f[4] > 0 ? (int64_t)w->f[4] : 3;
  if (!(kinds & (part ? 1 : 2))) return NULL;
  return p + ((row * parts + (parts > 1 ? part : 0)) * w->d[2] + h) * w->d[4];
}

/* Handles one pair of a query and a key: with dqkv adds the gradients of its score, times slope, to the outputs; with
 * dqkv NULL returns the score. */
static inline double oracle_pair(const tws_work *w, double *qkv, double *p, const int64_t at[3], int64_t key,
                                 double *dqkv, double *dp, double slope) {
  const int64_t heads = w->d[2], head = w->d[4], b = at[0], h = at[1], i = at[2], row = oracle_position_row(w, i - key);
  const int64_t qs = ((b * w->d[1] + i) * 3 * heads + h) * head,
                ks = ((b * w->d[1] + key) * 3 + 1) * heads * head + h * head;
  const double *pq = oracle_position(w, p, row, 0, h), *pk = oracle_position(w, p, row, 1, h);
  const double scale = w->f[0] != 0 ? w->f[0] : 1 / sqrt((double)head);
  double sum = 0;
  for (int64_t c = 0; c < head; ++c) {
    const double q = qkv[qs + c], k = qkv[ks + c];
    sum += scale * (q * k + (pk ? q * pk[c] : 0) + (pq ? pq[c] * k : 0));
    if (!dqkv) continue;
    dqkv[qs + c] += slope * scale * (k + (pk ? pk[c] : 0));
    dqkv[ks + c] += slope * scale * (q + (pq ? pq[c] : 0));
    if (pq) dp[pq - p + c] += slope * scale * k;
    if (pk) dp[pk - p + c] += slope * scale * q;
  }
  return sum;
}

/* Computes the probabilities of a query's keys, and after them in p those after dropout. Returns the logarithm of their
 * normaliser. */
static inline double oracle_disentangled_row(const tws_work *w, const double *a, double *qkv, double *positions,
                                             int64_t keys, const double *hyper, const int64_t at[3], double *p) {
  double largest = -INFINITY, sum = 0;
  tws_work attention = *w;
  attention.d[5] = 0;
  for (int64_t k = 0; k < keys; ++k) {
    p[k] = oracle_pair(w, qkv, positions, at, k, NULL, NULL, 0);
    if (!(p[k] <= largest)) largest = p[k];
  }
  for (int64_t k = 0; k < keys; ++k) sum += p[k] = exp(p[k] - largest);
  for (int64_t k = 0; k < keys; ++k) {
    p[k] /= sum;
    p[w->d[1] + k] = p[k] * (hyper ? oracle_kept(&attention, a, hyper, at[0], at[1], at[2], k) : 1);
  }
  return keys > 0 ? largest + log(sum) : 0;
}

static inline void oracle_disentangled(const tws_work *w, const double *a, double **o, int gradient) {
  const int64_t seq = w->d[1], heads = w->d[2], head = w->d[4], parts = w->f[3] > 0 ? (int64_t)w->f[3] : 3;
  double *qkv = o[gradient], *positions = o[1 + gradient], *p = calloc(2 * (size_t)seq + 1, sizeof *p);
  int n = gradient ? 7 : 4;
  const double *lengths = w->flags & TWS_LENGTHS ? o[n++] : NULL, *hyper = w->flags & TWS_DROPOUT ? o[n++] : NULL;
  for (int64_t i = 0; gradient && i < w->d[0] * seq * 3 * heads * head; ++i) o[5][i] = 0;
  for (int64_t i = 0; gradient && i < w->d[3] * parts * heads * head; ++i) o[6][i] = 0;
  for (int64_t query = 0; query < w->d[0] * heads * seq; ++query) {
    const int64_t i = query % seq, h = query / seq % heads, b = query / seq / heads, at[] = {b, h, i};
    const int64_t keys = lengths ? (int64_t)lengths[b] : seq, out = ((b * seq + i) * heads + h) * head;
    const double lse = oracle_disentangled_row(w, a, qkv, positions, keys, hyper, at, p);
    double dot = 0;
    if (!gradient) o[3][query] = lse;
    for (int64_t c = 0; c < head && !gradient; ++c) o[2][out + c] = 0;
    for (int64_t c = 0; c < head && gradient; ++c) dot += o[0][out + c] * o[3][out + c];
    for (int64_t k = 0; k < keys; ++k) {
      const int64_t v = ((b * seq + k) * 3 + 2) * heads * head + h * head;
      double dp = 0;
      for (int64_t c = 0; c < head; ++c) {
        if (!gradient) o[2][out + c] += p[seq + k] * qkv[v + c];
        if (gradient) dp += o[0][out + c] * qkv[v + c], o[5][v + c] += p[seq + k] * o[0][out + c];
      }
      if (gradient) oracle_pair(w, qkv, positions, at, k, o[5], o[6], p[seq + k] * dp - p[k] * dot);
    }
  }
  free(p);
}

#endif
