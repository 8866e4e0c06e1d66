/* Attention by tiles of 64 queries and 64 keys (after Dao, "FlashAttention-2", 2023): the softmax is kept as a running
 * maximum and sum, tiles that no query sees are skipped, and the backward pass computes the probabilities again from
 * the log-sum-exp of each row. A thread owns a key-value head of one sequence with all the query heads that share it,
 * so nothing is summed across threads and the result does not depend on their number.
 *
 * Heads are copied to float32 scratch, padded with zeros to whole vectors; keys (and values, backward) are transposed
 * there, so that every product has the form C += A B with rows of B as vectors and elements of A as broadcasts. */
#include "models/attention.h"
#include "real/host/kernels/kernels.h"
#include "real/host/kernels/philox.h"

enum { TILE = TWS_HOST_ATTENTION_TILE, STRIP = 8 };
#if defined(__AVX512F__)
enum { BLOCK_ROWS = 8, BLOCK_VECTORS = 2 };
#elif defined(__AVX2__)
enum { BLOCK_ROWS = 4, BLOCK_VECTORS = 2 };
#else
enum { BLOCK_ROWS = 4, BLOCK_VECTORS = 2 };
#endif

/* Shape of the operand or result of a product with a tile on the diagonal; other elements are skipped. */
typedef enum triangle {
  FULL,
  C_LOWER, /* only columns of C up to the row are computed */
  A_LOWER, /* A(i, l) is 0 for l > i */
  A_UPPER  /* A(i, l) is 0 for l < i */
} triangle;

/* Computes C[rows, vectors x LANES] += A[rows, l0..l1) B, where A(i, l) is a[i row_step + l step]. */
VECTOR_INLINE void micro_product(int rows, int vectors, int64_t l0, int64_t l1, const float *a, int64_t row_step,
                                 int64_t step, const float *b, int64_t ldb, float *c, int64_t ldc, int add) {
  vf sum[BLOCK_ROWS][BLOCK_VECTORS];
#pragma GCC unroll 8
  for (int i = 0; i < rows; ++i)
#pragma GCC unroll 2
    for (int j = 0; j < vectors; ++j) sum[i][j] = add ? v_load(c + i * ldc + j * LANES) : v_zero();
  for (int64_t l = l0; l < l1; ++l) {
    vf line[BLOCK_VECTORS];
#pragma GCC unroll 2
    for (int j = 0; j < vectors; ++j) line[j] = v_load(b + l * ldb + j * LANES);
#pragma GCC unroll 8
    for (int i = 0; i < rows; ++i) {
      const vf x = v_set(a[i * row_step + l * step]);
#pragma GCC unroll 2
      for (int j = 0; j < vectors; ++j) sum[i][j] += x * line[j];
    }
  }
#pragma GCC unroll 8
  for (int i = 0; i < rows; ++i)
#pragma GCC unroll 2
    for (int j = 0; j < vectors; ++j) v_store(c + i * ldc + j * LANES, sum[i][j]);
}

/* Computes C[m, n] (+)= A[m, k] B[k, n]; m is a multiple of 8, n of LANES. */
VECTOR_INLINE void tile_product(triangle part, int64_t m, int64_t n, int64_t k, const float *a, int64_t row_step,
                                int64_t step, const float *b, int64_t ldb, float *c, int64_t ldc, int add) {
  for (int64_t j = 0; j < n; j += BLOCK_VECTORS * LANES) {
    const int whole = j + BLOCK_VECTORS * LANES <= n;
    for (int64_t i = 0; i < m; i += BLOCK_ROWS) {
      if (part == C_LOWER && j > i + BLOCK_ROWS - 1) continue;
      const int64_t l0 = part == A_UPPER ? i : 0;
      const int64_t l1 = part == A_LOWER && i + BLOCK_ROWS < k ? i + BLOCK_ROWS : k;
      const float *rows = a + i * row_step;
      if (whole)
        micro_product(BLOCK_ROWS, BLOCK_VECTORS, l0, l1, rows, row_step, step, b + j, ldb, c + i * ldc + j, ldc, add);
      else
        micro_product(BLOCK_ROWS, 1, l0, l1, rows, row_step, step, b + j, ldb, c + i * ldc + j, ldc, add);
    }
  }
}
static void product_scores(int diagonal, int64_t m, int64_t k, const float *a, int64_t lda, const float *b, float *c) {
  if (diagonal)
    tile_product(C_LOWER, m, TILE, k, a, lda, 1, b, TILE, c, TILE, 0);
  else
    tile_product(FULL, m, TILE, k, a, lda, 1, b, TILE, c, TILE, 0);
}
/* Computes C[m, width] += P[m, keys] B. */
static void product_rows(int diagonal, int64_t m, int64_t width, int64_t keys, const float *p, const float *b,
                         float *c) {
  if (diagonal)
    tile_product(A_LOWER, m, width, keys, p, TILE, 1, b, width, c, width, 1);
  else
    tile_product(FULL, m, width, keys, p, TILE, 1, b, width, c, width, 1);
}
/* Computes C[keys, width] += P[queries, keys]^T B. */
static void product_columns(int diagonal, int64_t keys, int64_t width, int64_t queries, const float *p, const float *b,
                            float *c) {
  if (diagonal)
    tile_product(A_UPPER, keys, width, queries, p, 1, TILE, b, width, c, width, 1);
  else
    tile_product(FULL, keys, width, queries, p, 1, TILE, b, width, c, width, 1);
}

/* ---- copies between tensors and scratch ---- */
typedef struct shape {
  tws_attention_form form;
  int64_t batch, seq, kv_seq, heads, kv_heads, head; /* head: number of elements of a head */
  int64_t group, width, padded;                      /* group: query heads per key head; width: head rounded up to whole
                                                      * vectors; padded: kv_seq rounded up to whole tiles */
  float scale;
} shape;

static shape shape_of(const tws_host_call *call) {
  const int64_t *d = call->work->d;
  const tws_attention_form form = tws_attention_form_of(call->work, call->argument);
  return (shape){.form = form,
                 .batch = d[0],
                 .seq = d[1],
                 .kv_seq = form.kv_seq,
                 .heads = d[2],
                 .kv_heads = d[3],
                 .head = d[4],
                 .group = d[2] / d[3],
                 .width = (d[4] + LANES - 1) / LANES * LANES,
                 .padded = (form.kv_seq + TILE - 1) / TILE * TILE,
                 .scale = form.scale};
}

/* The heads of a tensor: element c of head h of token t has the index first + t row + h head + c. */
typedef struct heads_view {
  void *data;
  int64_t first, row;
} heads_view;
enum { QUERIES, KEYS, VALUES, VIEWS };

/* Finds queries, keys and values, or their gradients, among the operands from `at` on; returns the number of these
 * operands. */
static int view_operands(const tws_host_call *call, const shape *s, int at, heads_view view[VIEWS]) {
  void *const *o = call->operand + at;
  const int64_t q = s->heads * s->head, kv = s->kv_heads * s->head;
  if (call->work->flags & TWS_Q_K_V) {
    view[QUERIES] = (heads_view){o[0], 0, q};
    view[KEYS] = (heads_view){o[1], 0, kv};
    view[VALUES] = (heads_view){o[2], 0, kv};
    return 3;
  }
  if (call->work->flags & TWS_Q_KV) {
    view[QUERIES] = (heads_view){o[0], 0, q};
    view[KEYS] = (heads_view){o[1], 0, 2 * kv};
    view[VALUES] = (heads_view){o[1], kv, 2 * kv};
    return 2;
  }
  view[QUERIES] = (heads_view){o[0], 0, q + 2 * kv};
  view[KEYS] = (heads_view){o[0], q, q + 2 * kv};
  view[VALUES] = (heads_view){o[0], q + kv, q + 2 * kv};
  return 1;
}
static int64_t head_at(const heads_view *view, const shape *s, int64_t token, int64_t h) {
  return view->first + token * view->row + h * s->head;
}

/* The optional operands, which follow the others. */
typedef struct extras {
  const int32_t *lengths;   /* [sequence] number of tokens; NULL: whole sequences */
  const int32_t *documents; /* NULL: each sequence is one document */
  const void *biases;       /* table of relative biases, or NULL */
  void *bias_gradients;
  tws_dtype biases_type, bias_gradients_type;
  float *bias_parts; /* parts of the biases' gradient: [batch][heads][buckets] */
  float *workspace;
} extras;

/* Reads the optional operands from operand `at` on; also sets the step number, from which dropout draws its random
 * bits. */
static extras extra_operands(const tws_host_call *call, shape *s, int at) {
  extras e = {.lengths = NULL};
  const int gradient = call->work->code == TWS_KERNEL_ATTENTION_GRAD;
  if (call->work->flags & TWS_LENGTHS) e.lengths = call->operand[at++];
  if (call->work->flags & TWS_DOCUMENTS) e.documents = call->operand[at++];
  if (call->work->flags & TWS_RELATIVE) {
    e.biases_type = call->dtype[at];
    e.biases = call->operand[at++];
    e.bias_gradients_type = call->dtype[at];
    if (gradient) e.bias_gradients = call->operand[at++];
  }
  if (call->work->flags & TWS_DROPOUT) {
    uint32_t bits;
    memcpy(&bits, (const float *)call->operand[at++] + TWS_HYPER_STEP, sizeof bits);
    s->form.step_bits = bits;
  }
  e.bias_parts = call->operand[at];
  e.workspace = e.bias_parts + tws_attention_bias_parts(call->work, TWS_BACKEND_HOST);
  return e;
}

/* Converts rows x head elements, `stride` apart, to floats with rows_padded x width elements. */
static void load_rows(tws_dtype type, const void *from, int64_t first, int64_t stride, int64_t rows,
                      int64_t rows_padded, const shape *s, float scale, float *to) {
  FOR_TYPE(
      type, T, for (int64_t i = 0; i < rows; ++i) {
        float *out = to + i * s->width;
        EACH_VECTOR(c, n, 0, s->head, v_store(out + c, v_get(T, from, first + i * stride + c, n) * scale));
      });
  if (rows < rows_padded) memset(to + rows * s->width, 0, (size_t)((rows_padded - rows) * s->width) * sizeof(float));
}

static void store_rows(tws_dtype type, void *to, int64_t first, int64_t stride, int64_t rows, const shape *s,
                       const float *from) {
  FOR_TYPE(
      type, T, for (int64_t i = 0; i < rows; ++i) {
        const float *in = from + i * s->width;
        EACH_VECTOR(c, n, 0, s->head, v_put(T, to, first + i * stride + c, v_load(in + c), n));
      });
}

/* Swap the off-diagonal quarters of ever smaller blocks; `d` is the distance of lanes and of rows. */
#define SWAP_LOW(l, d) ((l) & (d) ? LANES + (l) - (d) : (l))
#define SWAP_HIGH(l, d) ((l) & (d) ? LANES + (l) : (l) + (d))
#define SWAP_STAGE(r, d)                                                        \
  for (int i = 0; i < LANES; ++i) {                                             \
    if (i & (d)) continue;                                                      \
    const vf low = r[i], high = r[i + (d)];                                     \
    r[i] = __builtin_shufflevector(low, high, V_EACH_LANE(SWAP_LOW, d));        \
    r[i + (d)] = __builtin_shufflevector(low, high, V_EACH_LANE(SWAP_HIGH, d)); \
  }

/* Transposes each tile of keys to [tile][head][64], from rows that were copied to scratch, or directly from the
 * tensor. */
static void load_transposed(tws_dtype type, const void *from, int64_t first, int64_t stride, const shape *s,
                            float *to) {
  for (int64_t key = 0; key < s->padded; key += LANES) {
    float *tile = to + key / TILE * TILE * s->width + key % TILE;
    for (int64_t c = 0; c < s->head; c += LANES) {
      const int n = s->head - c < LANES ? (int)(s->head - c) : LANES;
      vf r[LANES];
      for (int i = 0; i < LANES; ++i) {
        const int64_t index = first + (key + i) * stride + c;
        if (key + i >= s->kv_seq)
          r[i] = v_zero();
        else
          FOR_TYPE(type, T, r[i] = v_get(T, from, index, n));
      }
#if defined(__AVX512F__)
      SWAP_STAGE(r, 8)
#endif
#if defined(__AVX2__)
      SWAP_STAGE(r, 4)
#endif
      SWAP_STAGE(r, 2)
      SWAP_STAGE(r, 1)
      for (int i = 0; i < n; ++i) v_store(tile + (c + i) * TILE, r[i]);
    }
  }
}

/* Returns the scores with -infinity for keys that the query does not see; `limit`: number of the tile's keys that it
 * sees. */
VECTOR_INLINE vf masked_scores(const float *row, int64_t column, int64_t limit) {
  const vi lane = V_LANE_NUMBERS;
  vf x = v_load(row + column);
  if (column + LANES <= limit) return x;
  return v_select(lane < (int32_t)(limit - column), x, v_set(-INFINITY));
}
VECTOR_INLINE vf exp_of_difference(vf x) { /* x <= 0, or NaN */
  return (vf)((vi)v_exp_finite(x) & ~(x < -87.3F));
}

/* ---- masks, biases and dropout of one tile of scores ---- */

/* One tile of queries and one tile of keys. */
typedef struct score_tile {
  int64_t batch, head, query, key, rows; /* batch, head, and the first query and key of the tile; rows: number of
                                          * queries */
  int64_t length;                        /* number of keys in the sequence */
  const int32_t *documents;              /* documents of the sequence, or NULL */
  float slope;                           /* slope of the linear bias of this head */
  const float *biases;   /* relative biases by distance, starting with that of the first query and the first key; or
                          * NULL */
  float *bias_gradients; /* gradients of `biases`, or NULL */
  int diagonal;          /* 1: causal attention on the diagonal, where a query sees keys up to its own position */
} score_tile;

/* Returns 1 if the products skip the part of the tile above the diagonal. */
static int is_diagonal(const shape *s, const score_tile *t) {
  return !s->form.bidirectional && t->key == t->query + s->form.offset;
}

static void seen_keys(const shape *s, const score_tile *t, int64_t query, int64_t *begin, int64_t *end) {
  tws_attention_keys(&s->form, query, t->length, begin, end);
  tws_attention_within(t->documents, query, begin, end);
}

/* Sets the range of columns [*from, *to) of the tile that row i sees. */
VECTOR_INLINE void row_limits(const shape *s, const score_tile *t, const int plain, int64_t i, int64_t *from,
                              int64_t *to) {
  *from = 0;
  if (plain) {
    *to = t->diagonal ? i + 1 : TILE;
    return;
  }
  int64_t begin, end;
  seen_keys(s, t, t->query + i, &begin, &end);
  begin -= t->key, end -= t->key;
  *from = begin < 0 ? 0 : begin < TILE ? begin : TILE;
  *to = end < *from ? *from : end < TILE ? end : TILE;
}

static const vi LANE = V_LANE_NUMBERS;

/* Returns the position of a key relative to the query of row i, which is the index of their bias; `column`: the key's
 * column in the tile. */
VECTOR_INLINE int64_t distance_at(const score_tile *t, int64_t i, int64_t column) {
  return t->key + column - t->query - i;
}

/* Returns scores from `column` on, -infinity for keys that are not seen. factor: 1, or a factor by which the scores
 * still have to be multiplied. */
VECTOR_INLINE vf seen_scores(const shape *s, const score_tile *t, const float *row, int64_t i, int64_t column,
                             int64_t from, int64_t to, float factor) {
  vf x = v_load(row + column) * factor;
  if (s->form.cap != 0) x = s->form.cap * v_tanh(x * (1.0F / s->form.cap));
  if (t->slope != 0) {
    const float distance = (float)(t->query + i + s->form.offset - t->key - column);
    const vf apart = distance - __builtin_convertvector(LANE, vf);
    x -= t->slope * v_select(apart < 0, -apart, apart);
  }
  if (t->biases) x += v_load(t->biases + distance_at(t, i, column));
  const vi seen = (LANE >= (int32_t)(from - column)) & (LANE < (int32_t)(to - column));
  return v_select(seen, x, v_set(-INFINITY));
}

/* Returns the random words of row i of the tile, one for each key. `words` keeps the words of the last draw: on the
 * diagonal the first rows see few keys, and one draw has enough words for two or four of these rows. */
_Static_assert((int)TILE == (int)PHILOX_WORDS, "a row of a tile is what is drawn at once");
VECTOR_INLINE philox_stream stream_of(const shape *s, const int dropped) {
  if (!dropped) return (philox_stream){.c1 = 0};
  return philox_stream_of(s->form.seed, tws_dropout_stream(s->form.step_bits));
}
VECTOR_INLINE const uint32_t *draw_row(const shape *s, const philox_stream *stream, const score_tile *t, int64_t i,
                                       uint32_t words[TILE]) {
  const int bits = !t->diagonal || i >= TILE / 2 ? 0 : i >= TILE / 4 ? 1 : 2; /* 2^bits rows share one draw */
  const int64_t within = i & ((1 << bits) - 1), keys = TILE >> bits;
  if (within == 0) {
    const uint64_t row = tws_attention_block(&s->form, t->batch, t->head, t->query + i);
    const uint64_t next = tws_attention_block(&s->form, t->batch, t->head, t->query + i + 1);
    v_philox_at(stream, row + (uint64_t)t->key / TWS_DROPOUT_GROUP, bits, (uint32_t)(next - row), words);
  }
  return words + within * keys;
}

/* Returns 0 for probabilities that are dropped, and 1 / (1 - p) for the others. */
VECTOR_INLINE vf dropout_factors(const shape *s, const uint32_t *words) {
  const vu bits = (vu) * (const vi_unaligned *)words;
  return (vf)((vi)v_set(s->form.kept) & (vi)(bits >= s->form.dropped_below));
}

/* Variant of the code that computes a tile of probabilities. SPECIAL also reads biases, caps, windows and masks from
 * the tws_attention_form. */
typedef enum kind_of_scores {
  PLAIN,
  PLAIN_DROPPED, /* plain scores with the flag TWS_DROPOUT */
  SPECIAL
} kind_of_scores;
static kind_of_scores kind_of(const shape *s) {
  return !s->form.ordinary ? SPECIAL : s->form.dropped_below ? PLAIN_DROPPED : PLAIN;
}

/* Computes the range of keys [*begin, *end), in whole tiles, that a tile of queries sees at least partly. */
static void tile_limits(const shape *s, const score_tile *t, int64_t *begin, int64_t *end) {
  int64_t unused;
  seen_keys(s, t, t->query, begin, &unused);
  seen_keys(s, t, t->query + t->rows - 1, &unused, end);
  *begin = *begin / TILE * TILE;
}

static score_tile first_tile(const shape *s, const extras *e, int64_t batch, int64_t h, int64_t query) {
  score_tile t = {.batch = batch,
                  .head = h,
                  .query = query,
                  .rows = s->seq - query < TILE ? s->seq - query : TILE,
                  .length = s->kv_seq,
                  .slope = tws_attention_slope(&s->form, h)};
  if (e->documents) t.documents = e->documents + 2 * batch * s->seq;
  if (e->lengths) t.length = e->lengths[batch] < 0 ? 0 : e->lengths[batch] < s->kv_seq ? e->lengths[batch] : s->kv_seq;
  return t;
}

/* ---- relative biases ---- */

/* Loads a head's biases by distance into `distances` floats at `to`; returns the address of distance 0, that of the
 * first query and the first key. */
static float *load_biases(const shape *s, const extras *e, int64_t h, float *to, size_t distances) {
  float *const middle = to + s->seq - 1 + TWS_HOST_ATTENTION_LEAD;
  if (!e->biases) return NULL;
  memset(to, 0, distances * sizeof *to);
  for (int64_t d = 1 - s->seq; d < s->kv_seq; ++d) {
    const int64_t at = tws_attention_bucket(&s->form, d - s->form.offset) * s->heads + h;
    FOR_TYPE(e->biases_type, T, middle[d] = v_get(T, e->biases, at, 1)[0]);
  }
  return middle;
}

/* Sums the gradients by distance into the rows of the bias table. `by_distance`: as load_biases() has returned it. */
static void keep_bias_gradients(const shape *s, const extras *e, int64_t batch, int64_t h, const float *by_distance) {
  float *part = e->bias_parts + (batch * s->heads + h) * s->form.buckets;
  memset(part, 0, (size_t)s->form.buckets * sizeof *part);
  for (int64_t d = 1 - s->seq; d < s->kv_seq; ++d)
    part[tws_attention_bucket(&s->form, d - s->form.offset)] += by_distance[d];
}

/* Sums the parts of the biases' gradient over the sequences, in order. */
static void add_bias_parts(const tws_host_call *call, const shape *s, const extras *e) {
  const int keep = (call->work->flags & TWS_ACCUMULATE_PARAM) != 0;
  for (int64_t h = 0; h < s->heads; ++h)
    for (int64_t row = 0; row < s->form.buckets; ++row) {
      const int64_t at = row * s->heads + h;
      float sum = 0;
      for (int64_t b = 0; b < s->batch; ++b) sum += e->bias_parts[(b * s->heads + h) * s->form.buckets + row];
      FOR_TYPE(e->bias_gradients_type, G, {
        vf x = v_set(sum);
        if (keep) x += v_get(G, e->bias_gradients, at, 1);
        v_put(G, e->bias_gradients, at, x, 1);
      });
    }
}

/* ---- forward ---- */
typedef struct forward_scratch {
  float *kt, *v, *q, *o, *p, *largest, *sum, *biases;
} forward_scratch;

/* Converts the scores of one tile to probabilities relative to the running maximum; O is rescaled if the maximum has
 * grown. */
VECTOR_INLINE void online_softmax(const shape *s, const forward_scratch *w, const score_tile *t, int64_t rows,
                                  const kind_of_scores kind) {
  const int plain = kind != SPECIAL, dropped = kind == PLAIN_DROPPED || (kind == SPECIAL && s->form.dropped_below);
  uint32_t words[TILE];
  const philox_stream stream = stream_of(s, dropped);
  for (int64_t i = 0; i < rows; ++i) {
    float *row = w->p + i * TILE;
    int64_t from, to;
    row_limits(s, t, plain, i, &from, &to);
    const int64_t begin = from / LANES * LANES, end = from < to ? (to + LANES - 1) / LANES * LANES : begin;
    for (int64_t j = 0; j < begin; j += LANES) v_store(row + j, v_zero());
    for (int64_t j = end; j < TILE; j += LANES) v_store(row + j, v_zero());
    /* dropout draws random words for several adjacent rows together; in the block on the diagonal some of these rows
     * see no key */
    if (!plain && from == to) continue;
    vf top = v_set(w->largest[i]);
    const uint32_t *drawn = NULL;
    if (dropped) drawn = draw_row(s, &stream, t, i, words);
    for (int64_t j = begin; j < end; j += LANES) {
      vf x = plain ? masked_scores(row, j, to) : seen_scores(s, t, row, i, j, from, to, 1);
      if (!plain) v_store(row + j, x);
      top = v_max(x, top);
    }
    const float largest = v_largest(top);
    vf sum = v_zero();
    for (int64_t j = begin; j < end; j += LANES) {
      vf x = plain ? masked_scores(row, j, to) : v_load(row + j);
      vf p = exp_of_difference(x - largest);
      sum += p;
      if (dropped) p *= dropout_factors(s, drawn + j);
      v_store(row + j, p);
    }
    if (largest > w->largest[i]) {
      const float shrink = exp_of_difference(v_set(w->largest[i] - largest))[0];
      w->sum[i] *= shrink;
      for (int64_t c = 0; c < s->width; c += LANES)
        v_store(w->o + i * s->width + c, v_load(w->o + i * s->width + c) * shrink);
      w->largest[i] = largest;
    }
    w->sum[i] += v_sum(sum);
  }
}

static void softmax_plain(const shape *s, const forward_scratch *w, const score_tile *t, int64_t rows) {
  online_softmax(s, w, t, rows, PLAIN);
}
static void softmax_dropped(const shape *s, const forward_scratch *w, const score_tile *t, int64_t rows) {
  online_softmax(s, w, t, rows, PLAIN_DROPPED);
}
static void softmax_special(const shape *s, const forward_scratch *w, const score_tile *t, int64_t rows) {
  online_softmax(s, w, t, rows, SPECIAL);
}
static void (*const softmax_of[])(const shape *s, const forward_scratch *w, const score_tile *t, int64_t rows) = {
    softmax_plain, softmax_dropped, softmax_special};

/* Computes one tile of queries of a head against all keys that it sees; the output is in w->o. */
static void forward_tile(const shape *s, const forward_scratch *w, score_tile *t, int64_t m) {
  const kind_of_scores kind = kind_of(s);
  int64_t begin, end;
  tile_limits(s, t, &begin, &end);
  memset(w->o, 0, (size_t)(m * s->width) * sizeof(float));
  for (int64_t i = 0; i < m; ++i) {
    w->largest[i] = -INFINITY;
    w->sum[i] = 0;
  }
  for (t->key = begin; t->key < end; t->key += TILE) {
    t->diagonal = is_diagonal(s, t);
    product_scores(t->diagonal, m, s->head, w->q, s->width, w->kt + t->key * s->width, w->p);
    softmax_of[kind](s, w, t, m);
    product_rows(t->diagonal, m, s->width, TILE, w->p, w->v + t->key * s->width, w->o);
  }
}

static void forward_item(const tws_host_call *call, const shape *s, const extras *e, int64_t batch, int64_t kv,
                         float *scratch) {
  const tws_dtype type = call->dtype[0];
  heads_view view[VIEWS];
  const int out = view_operands(call, s, 0, view);
  float *lse = call->operand[out + 1];
  forward_scratch w = {.kt = scratch};
  w.v = w.kt + s->padded * s->width;
  w.q = w.v + s->padded * s->width;
  w.o = w.q + TILE * s->width;
  w.p = w.o + TILE * s->width;
  w.largest = w.p + TILE * TILE;
  w.sum = w.largest + TILE;
  w.biases = w.sum + TILE;
  const heads_view *q = &view[QUERIES], *k = &view[KEYS], *v = &view[VALUES];
  load_transposed(type, k->data, head_at(k, s, batch * s->kv_seq, kv), k->row, s, w.kt);
  load_rows(type, v->data, head_at(v, s, batch * s->kv_seq, kv), v->row, s->kv_seq, s->padded, s, 1, w.v);
  for (int64_t h = kv * s->group; h < (kv + 1) * s->group; ++h) {
    const float *biases = load_biases(s, e, h, w.biases, tws_host_attention_distances(call->work));
    for (int64_t first = 0; first < s->seq; first += TILE) {
      score_tile t = first_tile(s, e, batch, h, first);
      const int64_t rows = t.rows, m = (rows + STRIP - 1) / STRIP * STRIP;
      t.biases = biases;
      load_rows(type, q->data, head_at(q, s, batch * s->seq + first, h), q->row, rows, m, s, s->scale, w.q);
      forward_tile(s, &w, &t, m);
      for (int64_t i = 0; i < rows; ++i) {
        const int none = w.sum[i] == 0; /* 1: the query sees no key */
        const float inverse = none ? 0 : 1.0F / w.sum[i];
        for (int64_t c = 0; c < s->width; c += LANES)
          v_store(w.o + i * s->width + c, v_load(w.o + i * s->width + c) * inverse);
        lse[(batch * s->heads + h) * s->seq + first + i] = none ? 0 : w.largest[i] + logf(w.sum[i]);
      }
      store_rows(call->dtype[out], call->operand[out], ((batch * s->seq + first) * s->heads + h) * s->head,
                 s->heads * s->head, rows, s, w.o);
    }
  }
}

/* ---- backward ---- */
typedef struct backward_scratch {
  float *k, *kt, *vt, *dk, *dv, *q, *d_o, *dq, *p, *dp, *lse, *dot, *biases, *bias_gradients;
} backward_scratch;

/* Computes P = e^(scale S - lse) and dS = scale P (dP - rowsum(dO O)), which replace S and dP. With dropout factors M
 * the output is (M P) V: then M P replaces S, and M dP takes the place of dP in the formula. */
VECTOR_INLINE void gradient_of_softmax(const shape *s, const backward_scratch *w, const score_tile *t, int64_t rows,
                                       const kind_of_scores kind) {
  const int plain = kind != SPECIAL, dropped = kind == PLAIN_DROPPED || (kind == SPECIAL && s->form.dropped_below);
  uint32_t words[TILE];
  const philox_stream stream = stream_of(s, dropped);
  for (int64_t i = 0; i < rows; ++i) {
    float *p = w->p + i * TILE, *dp = w->dp + i * TILE;
    int64_t from, to;
    row_limits(s, t, plain, i, &from, &to);
    const int64_t begin = from / LANES * LANES, end = from < to ? (to + LANES - 1) / LANES * LANES : begin;
    const uint32_t *drawn = NULL;
    if (dropped) drawn = draw_row(s, &stream, t, i, words);
    for (int64_t j = begin; j < end; j += LANES) {
      vf x = plain ? masked_scores(p, j, to) * s->scale - w->lse[i]
                   : seen_scores(s, t, p, i, j, from, to, s->scale) - w->lse[i];
      vf probability = v_exp(x), slope = v_load(dp + j), kept = probability;
      if (dropped) {
        const vf factors = dropout_factors(s, drawn + j);
        slope *= factors;
        kept *= factors;
      }
      vf d = slope - w->dot[i], steep = v_set(s->scale);
      if (!plain && t->bias_gradients) {
        float *sum = t->bias_gradients + distance_at(t, i, j);
        v_store(sum, v_load(sum) + probability * d);
      }
      if (!plain && s->form.cap != 0) steep *= v_tanh_slope(v_load(p + j) * (s->scale / s->form.cap));
      v_store(p + j, kept);
      v_store(dp + j, probability * d * steep);
    }
    for (int64_t j = 0; j < TILE; j += LANES) {
      if (j >= begin && j < end) continue;
      v_store(p + j, v_zero());
      v_store(dp + j, v_zero());
    }
  }
}

static void gradient_plain(const shape *s, const backward_scratch *w, const score_tile *t, int64_t rows) {
  gradient_of_softmax(s, w, t, rows, PLAIN);
}
static void gradient_dropped(const shape *s, const backward_scratch *w, const score_tile *t, int64_t rows) {
  gradient_of_softmax(s, w, t, rows, PLAIN_DROPPED);
}
static void gradient_special(const shape *s, const backward_scratch *w, const score_tile *t, int64_t rows) {
  gradient_of_softmax(s, w, t, rows, SPECIAL);
}
static void (*const gradient_of[])(const shape *s, const backward_scratch *w, const score_tile *t, int64_t rows) = {
    gradient_plain, gradient_dropped, gradient_special};

/* Prepares one tile of queries: loads dO and Q into scratch, and computes the row sums of dO * O. `o`: index of operand
 * O; lse is the next operand. */
static void load_queries(const tws_host_call *call, const shape *s, const heads_view *q, const backward_scratch *w,
                         const score_tile *t, int o, int64_t m) {
  const tws_dtype type = call->dtype[0];
  const int64_t token = t->batch * s->seq + t->query, rows = t->rows;
  const int64_t out = (token * s->heads + t->head) * s->head, out_row = s->heads * s->head;
  load_rows(type, q->data, head_at(q, s, token, t->head), q->row, rows, m, s, 1, w->q);
  load_rows(type, call->operand[o], out, out_row, rows, m, s, 1, w->dq); /* w->dq holds O temporarily */
  load_rows(type, call->operand[0], out, out_row, rows, m, s, 1, w->d_o);
  const float *lse = (const float *)call->operand[o + 1] + (t->batch * s->heads + t->head) * s->seq + t->query;
  for (int64_t i = 0; i < m; ++i) {
    vf sum = v_zero();
    for (int64_t c = 0; c < s->width; c += LANES)
      sum += v_load(w->dq + i * s->width + c) * v_load(w->d_o + i * s->width + c);
    w->dot[i] = v_sum(sum);
    w->lse[i] = i < rows ? lse[i] : 0;
  }
  memset(w->dq, 0, (size_t)(m * s->width) * sizeof(float));
}

/* Computes the gradients of one tile of queries of a head against all keys that it sees: adds to dK and dV; dQ is in
 * w->dq. */
static void backward_tile(const shape *s, const backward_scratch *w, score_tile *t, int64_t m) {
  const kind_of_scores kind = kind_of(s);
  int64_t begin, end;
  tile_limits(s, t, &begin, &end);
  for (t->key = begin; t->key < end; t->key += TILE) {
    const int diagonal = t->diagonal = is_diagonal(s, t);
    const int64_t keys = diagonal ? m : TILE, at_key = t->key * s->width;
    product_scores(diagonal, m, s->head, w->q, s->width, w->kt + at_key, w->p);
    product_scores(diagonal, m, s->head, w->d_o, s->width, w->vt + at_key, w->dp);
    gradient_of[kind](s, w, t, m);
    product_columns(diagonal, keys, s->width, m, w->p, w->d_o, w->dv + at_key);
    product_columns(diagonal, keys, s->width, m, w->dp, w->q, w->dk + at_key);
    product_rows(diagonal, m, s->width, keys, w->dp, w->k + at_key, w->dq);
  }
}

static void backward_item(const tws_host_call *call, const shape *s, const extras *e, int64_t batch, int64_t kv,
                          float *scratch) {
  const tws_dtype type = call->dtype[0];
  heads_view view[VIEWS], gradient[VIEWS];
  const int o = 1 + view_operands(call, s, 1, view);
  view_operands(call, s, o + 2, gradient);
  const int64_t all = s->padded * s->width, tile = TILE * s->width;
  backward_scratch w = {.k = scratch, .kt = scratch + all, .vt = scratch + 2 * all};
  w.dk = w.vt + all;
  w.dv = w.dk + all;
  w.q = w.dv + all;
  w.d_o = w.q + tile;
  w.dq = w.d_o + tile;
  w.p = w.dq + tile;
  w.dp = w.p + TILE * TILE;
  w.lse = w.dp + TILE * TILE;
  w.dot = w.lse + TILE;
  w.biases = w.dot + TILE;
  w.bias_gradients = w.biases + tws_host_attention_distances(call->work);
  const heads_view *k = &view[KEYS], *v = &view[VALUES], *dq = &gradient[QUERIES];
  const int64_t key = batch * s->kv_seq;
  load_rows(type, k->data, head_at(k, s, key, kv), k->row, s->kv_seq, s->padded, s, 1, w.k);
  load_transposed(type, k->data, head_at(k, s, key, kv), k->row, s, w.kt);
  load_transposed(type, v->data, head_at(v, s, key, kv), v->row, s, w.vt);
  memset(w.dk, 0, (size_t)(2 * all) * sizeof(float));
  for (int64_t h = kv * s->group; h < (kv + 1) * s->group; ++h) {
    const size_t distances = tws_host_attention_distances(call->work);
    const float *biases = load_biases(s, e, h, w.biases, distances);
    memset(w.bias_gradients, 0, distances * sizeof(float));
    for (int64_t first = 0; first < s->seq; first += TILE) {
      score_tile t = first_tile(s, e, batch, h, first);
      const int64_t m = (t.rows + STRIP - 1) / STRIP * STRIP;
      t.biases = biases;
      if (biases) t.bias_gradients = w.bias_gradients + (biases - w.biases);
      load_queries(call, s, &view[QUERIES], &w, &t, o, m);
      backward_tile(s, &w, &t, m);
      store_rows(type, dq->data, head_at(dq, s, batch * s->seq + first, h), dq->row, t.rows, s, w.dq);
    }
    if (biases) keep_bias_gradients(s, e, batch, h, w.bias_gradients + (biases - w.biases));
  }
  const heads_view *dk = &gradient[KEYS], *dv = &gradient[VALUES];
  store_rows(type, dk->data, head_at(dk, s, key, kv), dk->row, s->kv_seq, s, w.dk);
  store_rows(type, dv->data, head_at(dv, s, key, kv), dv->row, s->kv_seq, s, w.dv);
}

/* ---- both ---- */
typedef void (*attention_item)(const tws_host_call *call, const shape *s, const extras *e, int64_t batch, int64_t kv,
                               float *scratch);
typedef struct attention_job {
  const tws_host_call *call;
  shape shape;
  extras extras;
  int64_t scratch_floats; /* scratch memory of one thread, floats */
  attention_item item;
} attention_job;

static void attention_task(void *arg, int thread, int threads) {
  const attention_job *job = arg;
  const shape *s = &job->shape;
  const int64_t items = s->batch * s->kv_heads, used = items < threads ? items : threads;
  if (thread >= used) return;
  host_range r = share(items, 1, thread, (int)used);
  float *scratch = job->extras.workspace + thread * job->scratch_floats;
  for (int64_t i = r.begin; i < r.end; ++i)
    job->item(job->call, s, &job->extras, i / s->kv_heads, i % s->kv_heads, scratch);
}

static tws_code attention_either(const tws_host_call *call, int gradient, attention_item item, tws_error *err) {
  const int64_t *d = call->work->d;
  heads_view unused[VIEWS];
  for (int i = 0; i < 5; ++i)
    if (d[i] < 1) return tws_fail(err, TWS_INVALID, NULL, "size %d is %lld", i, (long long)d[i]);
  if (d[2] % d[3])
    return tws_fail(err, TWS_INVALID, NULL, "%lld query heads cannot share %lld key-value heads evenly",
                    (long long)d[2], (long long)d[3]);
  const int apart = (call->work->flags & (TWS_Q_KV | TWS_Q_K_V)) != 0;
  if (call->work->flags & TWS_DOCUMENTS && d[5] > 0 && d[5] != d[1])
    return tws_fail(err, TWS_INVALID, NULL, "%lld queries and %lld keys are not of the same documents", (long long)d[1],
                    (long long)d[5]);
  if (!apart && d[5] > 0 && d[5] != d[1])
    return tws_fail(err, TWS_INVALID, NULL, "%lld queries and %lld keys cannot be one operand", (long long)d[1],
                    (long long)d[5]);
  attention_job job = {.call = call,
                       .shape = shape_of(call),
                       .scratch_floats = (int64_t)tws_host_attention_thread_floats(call->work),
                       .item = item};
  const int tensors = view_operands(call, &job.shape, 0, unused);
  job.extras = extra_operands(call, &job.shape, gradient ? 3 + 2 * tensors : 2 + tensors);
  run_parallel(call, 4.0 * (double)(d[0] * d[1] * d[2] * d[4]), attention_task, &job);
  if (gradient && job.extras.biases) add_bias_parts(call, &job.shape, &job.extras);
  return TWS_OK;
}
HOST_KERNEL(attention) {
  return attention_either(call, 0, forward_item, err);
}
HOST_KERNEL(attention_grad) {
  return attention_either(call, 1, backward_item, err);
}

/* ---- merging attention results of two ranges of keys ---- */

static void merge_task(void *arg, int thread, int threads) {
  const tws_host_call *call = arg;
  const int64_t *d = call->work->d, seq = d[1], heads = d[2], head = d[3], rows = d[4];
  const tws_dtype type = call->dtype[0];
  const float *lse_part = call->operand[1];
  float *lse = call->operand[3];
  host_range r = share(d[0] * rows, 1, thread, threads);
  for (int64_t i = r.begin; i < r.end; ++i) {
    const int64_t batch = i / rows, row = i % rows, token = seq - rows + row;
    for (int64_t h = 0; h < heads; ++h) {
      float *whole = lse + (batch * heads + h) * seq + token;
      const float a = *whole, b = lse_part[(batch * heads + h) * rows + row], most = a > b ? a : b;
      const float sum = most + log1pf(expf(-fabsf(a - b))), kept = expf(a - sum), added = expf(b - sum);
      const int64_t from = (i * heads + h) * head, to = ((batch * seq + token) * heads + h) * head;
      FOR_TYPE(type, T, EACH_VECTOR(c, n, 0, head, {
                 v_put(T, call->operand[2], to + c,
                       v_get(T, call->operand[2], to + c, n) * kept + v_get(T, call->operand[0], from + c, n) * added,
                       n);
               }));
      *whole = sum;
    }
  }
}
HOST_KERNEL(attention_merge) {
  const int64_t *d = call->work->d;
  if (d[4] > d[1])
    return tws_fail(err, TWS_INVALID, NULL, "%lld queries of a sequence of %lld", (long long)d[4], (long long)d[1]);
  run_parallel(call, 4.0 * tws_work_flops(call->work), merge_task, (void *)(uintptr_t)call);
  return TWS_OK;
}
