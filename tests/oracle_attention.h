/* The kernels of attention in float64. Part of oracle.h. */
#ifndef TWS_TESTS_ORACLE_ATTENTION_H
#define TWS_TESTS_ORACLE_ATTENTION_H

typedef struct oracle_view {
  double *x;
  int64_t row; /* between tokens */
} oracle_view;
typedef struct oracle_attention_operands {
  oracle_view q, k, v;
  int64_t count; /* of operands that they are in */
} oracle_attention_operands;

static inline oracle_attention_operands oracle_operands(const tws_work *w, double **o) {
  const int64_t q = w->d[2] * w->d[4], kv = w->d[3] * w->d[4], all = q + 2 * kv;
  if (w->flags & TWS_Q_K_V) return (oracle_attention_operands){{o[0], q}, {o[1], kv}, {o[2], kv}, 3};
  if (w->flags & TWS_Q_KV) return (oracle_attention_operands){{o[0], q}, {o[1], 2 * kv}, {o[1] + kv, 2 * kv}, 2};
  return (oracle_attention_operands){{o[0], all}, {o[0] + q, all}, {o[0] + q + kv, all}, 1};
}

static inline int64_t oracle_keys(const tws_work *w) {
  return w->d[5] > 0 ? w->d[5] : w->d[1];
}

/* Returns ALiBi's slope of a head as its authors define it: the slopes of a power of two of heads, then every other
 * slope of twice that number. */
static inline double oracle_slope(int64_t h, int64_t heads) {
  const double power = pow(2, floor(log2((double)heads)));
  if ((double)h < power) return pow(pow(2, -8 / power), (double)h + 1);
  return pow(pow(2, -4 / power), 2 * ((double)h - power) + 1);
}

/* Returns the row of the table of relative biases as Hugging Face's T5 computes it; distance: the key's position less
 * the query's. */
static inline int64_t oracle_bucket(const tws_work *w, int64_t distance) {
  const int both = (w->flags & TWS_BIDIRECTIONAL) != 0;
  const int64_t rows = both ? w->d[7] / 2 : w->d[7], first = both && distance > 0 ? rows : 0, single = rows / 2;
  const int64_t away = both ? llabs(distance) : distance < 0 ? -distance : 0;
  if (away < single) return first + away;
  const double share = log((double)away / (double)single) / log(w->f[3] / (double)single);
  const int64_t row = single + (int64_t)floor(share * (double)(rows - single) + 1e-6);
  return first + (row < rows - 1 ? row : rows - 1);
}

/* Returns the factor of key j, or 0 if it is dropped, computed from the random number generator alone as
 * models/attention.h states. */
static inline double oracle_kept(const tws_work *w, const double *a, const double *hyper, int64_t b, int64_t h,
                                 int64_t i, int64_t j) {
  const int64_t heads = a[3] > 0 ? (int64_t)a[3] : w->d[2], blocks = (oracle_keys(w) + 3) / 4;
  const uint64_t row = (uint64_t)((((int64_t)a[1] + b) * heads + (int64_t)a[2] + h) * w->d[1] + i);
  const float step = (float)hyper[TWS_HYPER_STEP];
  uint32_t bits, word[4];
  memcpy(&bits, &step, sizeof bits);
  tws_philox((uint64_t)a[0], 0x4000000000000000U + bits, row * (uint64_t)blocks + (uint64_t)j / 4, word);
  return word[j % 4] / 0x1p32 < floor(w->f[1] * 0x1p32 + 0.5) / 0x1p32 ? 0 : 1 / (1 - w->f[1]);
}

/* Computes for query i the probabilities p of all keys, and in `kept` those after dropout. Returns the log of their
 * normaliser. lengths NULL: no padding; hyper NULL: no dropout; steep, where not NULL: receives the slopes of the cap
 * of the scores. */
static inline double oracle_probabilities(const tws_work *w, const double *a, const oracle_attention_operands *x,
                                          const double *lengths, const double *documents, const double *hyper,
                                          const double *biases, const int64_t at[3], double *p, double *kept,
                                          double *steep) {
  const int64_t b = at[0], h = at[1], i = at[2], keys = oracle_keys(w), head = w->d[4], window = w->d[6];
  const double *q = x->q.x + (b * w->d[1] + i) * x->q.row + h * head, position = (double)(i + keys - w->d[1]);
  const double *k = x->k.x + b * keys * x->k.row + h / (w->d[2] / w->d[3]) * head;
  const double scale = w->f[0] != 0 ? w->f[0] : 1 / sqrt((double)head);
  const double factor = w->f[5] != 0 ? w->f[5] : 1;
  const double slope =
      w->flags & TWS_ALIBI ? factor * oracle_slope((int64_t)a[2] + h, a[3] > 0 ? (int64_t)a[3] : w->d[2]) : 0;
  double largest = -INFINITY, sum = 0;
  for (int64_t j = 0; j < keys; ++j) {
    const double distance = position - (double)j;
    const int seen =
        (w->flags & TWS_BIDIRECTIONAL || distance >= 0) && (!window || fabs(distance) < (double)window) &&
        (!lengths || (double)j < lengths[b]) &&
        (!documents || ((double)j >= documents[2 * (b * keys + i)] && (double)j < documents[2 * (b * keys + i) + 1]));
    p[j] = seen ? 0 : -INFINITY;
    for (int64_t c = 0; c < head && seen; ++c) p[j] += q[c] * k[j * x->k.row + c] * scale;
    if (steep) steep[j] = seen && w->f[2] != 0 ? 1 / pow(cosh(p[j] / w->f[2]), 2) : 1;
    if (seen && w->f[2] != 0) p[j] = w->f[2] * tanh(p[j] / w->f[2]);
    p[j] -= slope * fabs(distance);
    if (seen && biases) p[j] += biases[oracle_bucket(w, -(int64_t)distance) * w->d[2] + h];
    if (!(p[j] <= largest)) largest = p[j];
  }
  for (int64_t j = 0; j < keys; ++j) sum += p[j] = p[j] == -INFINITY ? 0 : exp(p[j] - largest);
  for (int64_t j = 0; j < keys; ++j) {
    p[j] = sum == 0 ? 0 : p[j] / sum;
    kept[j] = p[j] * (hyper ? oracle_kept(w, a, hyper, b, h, i, j) : 1);
  }
  return sum == 0 ? 0 : largest + log(sum);
}

static inline void oracle_attention(const tws_work *w, const double *a, double **o) {
  const int64_t batch = w->d[0], seq = w->d[1], q = w->d[2], head = w->d[4], keys = oracle_keys(w);
  const oracle_attention_operands x = oracle_operands(w, o);
  double **rest = o + x.count, *p = calloc(2 * (size_t)keys, sizeof *p);
  int64_t n = 2;
  const double *lengths = w->flags & TWS_LENGTHS ? rest[n++] : NULL;
  const double *documents = w->flags & TWS_DOCUMENTS ? rest[n++] : NULL;
  const double *biases = w->flags & TWS_RELATIVE ? rest[n++] : NULL;
  const double *hyper = w->flags & TWS_DROPOUT ? rest[n++] : NULL;
  for (int64_t b = 0; b < batch; ++b)
    for (int64_t h = 0; h < q; ++h)
      for (int64_t i = 0; i < seq; ++i) {
        const double *v = x.v.x + b * keys * x.v.row + h / (q / w->d[3]) * head;
        double *out = rest[0] + ((b * seq + i) * q + h) * head, *kept = p + keys;
        const int64_t at[] = {b, h, i};
        rest[1][(b * q + h) * seq + i] =
            oracle_probabilities(w, a, &x, lengths, documents, hyper, biases, at, p, kept, NULL);
        for (int64_t c = 0; c < head; ++c) out[c] = 0;
        for (int64_t j = 0; j < keys; ++j)
          for (int64_t c = 0; c < head && p[j] != 0; ++c) out[c] += kept[j] * v[j * x.v.row + c];
      }
  free(p);
}

static inline void oracle_attention_grad(const tws_work *w, const double *a, double **o) {
  const int64_t batch = w->d[0], seq = w->d[1], q = w->d[2], head = w->d[4], keys = oracle_keys(w);
  const double scale = w->f[0] != 0 ? w->f[0] : 1 / sqrt((double)head);
  const oracle_attention_operands x = oracle_operands(w, o + 1), d = oracle_operands(w, o + 3 + x.count);
  double **rest = o + 3 + 2 * x.count, *p = calloc(3 * (size_t)keys, sizeof *p);
  int64_t n = 0;
  const double *lengths = w->flags & TWS_LENGTHS ? rest[n++] : NULL;
  const double *documents = w->flags & TWS_DOCUMENTS ? rest[n++] : NULL;
  const double *biases = w->flags & TWS_RELATIVE ? rest[n++] : NULL;
  double *dbiases = biases ? rest[n++] : NULL;
  const double *hyper = w->flags & TWS_DROPOUT ? rest[n++] : NULL;
  for (int64_t b = 0; b < batch; ++b)
    for (int64_t h = 0; h < q; ++h)
      for (int64_t i = 0; i < seq; ++i) {
        const int64_t key = b * keys, share = h / (q / w->d[3]) * head, at[] = {b, h, i};
        const double *d_o = o[0] + ((b * seq + i) * q + h) * head, *out = o[1 + x.count] + (d_o - o[0]);
        double *kept = p + keys, dot = 0; /* dot uses the output as it was stored, which the backward kernel reads */
        oracle_probabilities(w, a, &x, lengths, documents, hyper, biases, at, p, kept, kept + keys);
        for (int64_t c = 0; c < head; ++c) dot += out[c] * d_o[c];
        for (int64_t j = 0; j < keys; ++j) {
          const double *qs = x.q.x + (b * seq + i) * x.q.row + h * head, *ks = x.k.x + (key + j) * x.k.row + share;
          double dp = 0;
          if (p[j] == 0) continue;
          for (int64_t c = 0; c < head; ++c) dp += d_o[c] * x.v.x[(key + j) * x.v.row + share + c];
          const double ds = (kept[j] * dp - p[j] * dot) * scale * kept[keys + j];
          if (dbiases) dbiases[oracle_bucket(w, j - i - (keys - seq)) * q + h] += kept[j] * dp - p[j] * dot;
          for (int64_t c = 0; c < head; ++c) {
            d.v.x[(key + j) * d.v.row + share + c] += kept[j] * d_o[c];
            d.q.x[(b * seq + i) * d.q.row + h * head + c] += ds * ks[c];
            d.k.x[(key + j) * d.k.row + share + c] += ds * qs[c];
          }
        }
      }
  free(p);
}

#endif
