/* Causal attention by tiles of 64 queries and 64 keys (after Dao, "FlashAttention-2", 2023): the softmax is kept as a
 * running maximum and sum, tiles above the diagonal are skipped, and the backward pass computes the probabilities again
 * from the log-sum-exp of each row. A thread owns a key-value head of one sequence with all the query heads that share
 * it, so nothing is summed across threads and the result does not depend on their number.
 *
 * Heads are copied to float32 scratch, padded with zeros to whole vectors; keys (and values, backward) are transposed
 * there, so that every product has the form C += A B with rows of B as vectors and elements of A as broadcasts. */
#include "real/host/kernels/kernels.h"

enum { TILE = TWS_HOST_ATTENTION_TILE, STRIP = 8 };
#if defined(__AVX512F__)
enum { BLOCK_ROWS = 8, BLOCK_VECTORS = 2 };
#elif defined(__AVX2__)
enum { BLOCK_ROWS = 4, BLOCK_VECTORS = 1 };
#else
enum { BLOCK_ROWS = 2, BLOCK_VECTORS = 1 };
#endif

/* Which part of a tile on the diagonal matters. */
typedef enum triangle {
  FULL,
  C_LOWER, /* columns of C up to the row */
  A_LOWER, /* A(i, l) is 0 for l > i */
  A_UPPER  /* A(i, l) is 0 for l < i */
} triangle;

/* C[rows, 16 vectors] += A[rows, l0..l1) B; A(i, l) is a[i row_step + l step]. */
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

/* C[m, n] (+)= A[m, k] B[k, n]; m is a multiple of 8, n of 16. */
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
/* C[m, width] += P[m, keys] B */
static void product_rows(int diagonal, int64_t m, int64_t width, int64_t keys, const float *p, const float *b,
                         float *c) {
  if (diagonal)
    tile_product(A_LOWER, m, width, keys, p, TILE, 1, b, width, c, width, 1);
  else
    tile_product(FULL, m, width, keys, p, TILE, 1, b, width, c, width, 1);
}
/* C[keys, width] += P[queries, keys]^T B */
static void product_columns(int diagonal, int64_t keys, int64_t width, int64_t queries, const float *p, const float *b,
                            float *c) {
  if (diagonal)
    tile_product(A_UPPER, keys, width, queries, p, 1, TILE, b, width, c, width, 1);
  else
    tile_product(FULL, keys, width, queries, p, 1, TILE, b, width, c, width, 1);
}

/* ---- copies between tensors and scratch ---- */
typedef struct shape {
  int64_t batch, seq, heads, kv_heads, head; /* head: elements of one */
  int64_t group, width, padded, row;         /* width: head, padded: seq, in whole vectors and tiles; row: of qkv */
  float scale;
} shape;

static shape shape_of(const tws_work *work) {
  const int64_t *d = work->d;
  return (shape){.batch = d[0],
                 .seq = d[1],
                 .heads = d[2],
                 .kv_heads = d[3],
                 .head = d[4],
                 .group = d[2] / d[3],
                 .width = (d[4] + LANES - 1) / LANES * LANES,
                 .padded = (d[1] + TILE - 1) / TILE * TILE,
                 .row = (d[2] + 2 * d[3]) * d[4],
                 .scale = 1.0F / sqrtf((float)d[4])};
}

/* rows x head elements, `stride` apart, to rows_padded x width floats */
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
#define SWAP_LOW(d)                                                                                           \
  SWAP_LANE(0, d), SWAP_LANE(1, d), SWAP_LANE(2, d), SWAP_LANE(3, d), SWAP_LANE(4, d), SWAP_LANE(5, d),       \
      SWAP_LANE(6, d), SWAP_LANE(7, d), SWAP_LANE(8, d), SWAP_LANE(9, d), SWAP_LANE(10, d), SWAP_LANE(11, d), \
      SWAP_LANE(12, d), SWAP_LANE(13, d), SWAP_LANE(14, d), SWAP_LANE(15, d)
#define SWAP_LANE(l, d) ((l) & (d) ? 16 + (l) - (d) : (l))
#define SWAP_HIGH(d)                                                                                                \
  SWAP_LANE2(0, d), SWAP_LANE2(1, d), SWAP_LANE2(2, d), SWAP_LANE2(3, d), SWAP_LANE2(4, d), SWAP_LANE2(5, d),       \
      SWAP_LANE2(6, d), SWAP_LANE2(7, d), SWAP_LANE2(8, d), SWAP_LANE2(9, d), SWAP_LANE2(10, d), SWAP_LANE2(11, d), \
      SWAP_LANE2(12, d), SWAP_LANE2(13, d), SWAP_LANE2(14, d), SWAP_LANE2(15, d)
#define SWAP_LANE2(l, d) ((l) & (d) ? 16 + (l) : (l) + (d))
#define SWAP_STAGE(r, d)                                           \
  for (int i = 0; i < LANES; ++i) {                                \
    if (i & (d)) continue;                                         \
    const vf low = r[i], high = r[i + (d)];                        \
    r[i] = __builtin_shufflevector(low, high, SWAP_LOW(d));        \
    r[i + (d)] = __builtin_shufflevector(low, high, SWAP_HIGH(d)); \
  }

/* Tiles of keys, each transposed: [tile][head][64], from rows already copied to scratch or straight from the tensor. */
static void load_transposed(tws_dtype type, const void *from, int64_t first, int64_t stride, const shape *s,
                            float *to) {
  for (int64_t key = 0; key < s->padded; key += LANES) {
    float *tile = to + key / TILE * TILE * s->width + key % TILE;
    for (int64_t c = 0; c < s->head; c += LANES) {
      const int n = s->head - c < LANES ? (int)(s->head - c) : LANES;
      vf r[LANES];
      for (int i = 0; i < LANES; ++i) {
        const int64_t index = first + (key + i) * stride + c;
        if (key + i >= s->seq)
          r[i] = v_zero();
        else
          FOR_TYPE(type, T, r[i] = v_get(T, from, index, n));
      }
      SWAP_STAGE(r, 8)
      SWAP_STAGE(r, 4)
      SWAP_STAGE(r, 2)
      SWAP_STAGE(r, 1)
      for (int i = 0; i < n; ++i) v_store(tile + (c + i) * TILE, r[i]);
    }
  }
}

/* -infinity where the key comes after the query; `limit`: keys of this tile that the query sees */
VECTOR_INLINE vf masked_scores(const float *row, int64_t column, int64_t limit) {
  const vi lane = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
  vf x = v_load(row + column);
  if (column + LANES <= limit) return x;
  return v_select(lane < (int32_t)(limit - column), x, v_set(-INFINITY));
}
VECTOR_INLINE vf exp_of_difference(vf x) { /* x <= 0, or NaN */
  return (vf)((vi)v_exp_finite(x) & ~(x < -87.3F));
}

/* ---- forward ---- */
typedef struct forward_scratch {
  float *kt, *v, *q, *o, *p, *largest, *sum;
} forward_scratch;

/* Scores of one tile become probabilities relative to the running maximum; O is rescaled where the maximum grew. */
static void online_softmax_tile(const shape *s, const forward_scratch *w, int64_t rows, int diagonal) {
  for (int64_t i = 0; i < rows; ++i) {
    float *row = w->p + i * TILE;
    const int64_t limit = diagonal ? i + 1 : TILE, end = (limit + LANES - 1) / LANES * LANES;
    vf top = v_set(w->largest[i]);
    for (int64_t j = 0; j < end; j += LANES) top = v_max(masked_scores(row, j, limit), top);
    const float largest = v_largest(top);
    vf sum = v_zero();
    for (int64_t j = 0; j < end; j += LANES) {
      vf p = exp_of_difference(masked_scores(row, j, limit) - largest);
      v_store(row + j, p);
      sum += p;
    }
    for (int64_t j = end; j < TILE; j += LANES) v_store(row + j, v_zero());
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

static void forward_item(const tws_host_call *call, const shape *s, int64_t batch, int64_t kv, float *scratch) {
  const tws_dtype type = call->dtype[0];
  const void *qkv = call->operand[0];
  float *lse = call->operand[2];
  forward_scratch w = {.kt = scratch};
  w.v = w.kt + s->padded * s->width;
  w.q = w.v + s->padded * s->width;
  w.o = w.q + TILE * s->width;
  w.p = w.o + TILE * s->width;
  w.largest = w.p + TILE * TILE;
  w.sum = w.largest + TILE;
  const int64_t token = batch * s->seq * s->row;
  load_transposed(type, qkv, token + (s->heads + kv) * s->head, s->row, s, w.kt);
  load_rows(type, qkv, token + (s->heads + s->kv_heads + kv) * s->head, s->row, s->seq, s->padded, s, 1, w.v);
  for (int64_t h = kv * s->group; h < (kv + 1) * s->group; ++h)
    for (int64_t first = 0; first < s->seq; first += TILE) {
      const int64_t rows = s->seq - first < TILE ? s->seq - first : TILE, m = (rows + STRIP - 1) / STRIP * STRIP;
      load_rows(type, qkv, token + first * s->row + h * s->head, s->row, rows, m, s, s->scale, w.q);
      memset(w.o, 0, (size_t)(m * s->width) * sizeof(float));
      for (int64_t i = 0; i < m; ++i) {
        w.largest[i] = -INFINITY;
        w.sum[i] = 0;
      }
      for (int64_t key = 0; key <= first; key += TILE) {
        const int diagonal = key == first;
        product_scores(diagonal, m, s->head, w.q, s->width, w.kt + key * s->width, w.p);
        online_softmax_tile(s, &w, m, diagonal);
        product_rows(diagonal, m, s->width, TILE, w.p, w.v + key * s->width, w.o);
      }
      for (int64_t i = 0; i < rows; ++i) {
        const float inverse = 1.0F / w.sum[i];
        for (int64_t c = 0; c < s->width; c += LANES)
          v_store(w.o + i * s->width + c, v_load(w.o + i * s->width + c) * inverse);
        lse[(batch * s->heads + h) * s->seq + first + i] = w.largest[i] + logf(w.sum[i]);
      }
      store_rows(call->dtype[1], call->operand[1], ((batch * s->seq + first) * s->heads + h) * s->head,
                 s->heads * s->head, rows, s, w.o);
    }
}

/* ---- backward ---- */
typedef struct backward_scratch {
  float *k, *kt, *vt, *dk, *dv, *q, *d_o, *dq, *p, *dp, *lse, *dot;
} backward_scratch;

/* P = e^(scale S - lse), dS = scale P (dP - rowsum(dO O)); they replace S and dP. */
static void gradient_tile(const shape *s, const backward_scratch *w, int64_t rows, int diagonal) {
  for (int64_t i = 0; i < rows; ++i) {
    float *p = w->p + i * TILE, *dp = w->dp + i * TILE;
    const int64_t limit = diagonal ? i + 1 : TILE, end = (limit + LANES - 1) / LANES * LANES;
    for (int64_t j = 0; j < end; j += LANES) {
      vf x = masked_scores(p, j, limit) * s->scale - w->lse[i];
      vf probability = v_exp(x);
      vf d = v_load(dp + j) - w->dot[i];
      v_store(p + j, probability);
      v_store(dp + j, probability * d * s->scale);
    }
    for (int64_t j = end; j < TILE; j += LANES) {
      v_store(p + j, v_zero());
      v_store(dp + j, v_zero());
    }
  }
}

/* One tile of queries: lse and the dot products of dO and O, dO and Q in scratch. */
static void load_queries(const tws_host_call *call, const shape *s, const backward_scratch *w, int64_t batch, int64_t h,
                         int64_t first, int64_t rows, int64_t m) {
  const tws_dtype type = call->dtype[0];
  const int64_t out = ((batch * s->seq + first) * s->heads + h) * s->head, out_row = s->heads * s->head;
  load_rows(type, call->operand[1], (batch * s->seq + first) * s->row + h * s->head, s->row, rows, m, s, 1, w->q);
  load_rows(type, call->operand[2], out, out_row, rows, m, s, 1, w->dq); /* O, for a moment */
  load_rows(type, call->operand[0], out, out_row, rows, m, s, 1, w->d_o);
  const float *lse = (const float *)call->operand[3] + (batch * s->heads + h) * s->seq + first;
  for (int64_t i = 0; i < m; ++i) {
    vf sum = v_zero();
    for (int64_t c = 0; c < s->width; c += LANES)
      sum += v_load(w->dq + i * s->width + c) * v_load(w->d_o + i * s->width + c);
    w->dot[i] = v_sum(sum);
    w->lse[i] = i < rows ? lse[i] : 0;
  }
  memset(w->dq, 0, (size_t)(m * s->width) * sizeof(float));
}

static void backward_item(const tws_host_call *call, const shape *s, int64_t batch, int64_t kv, float *scratch) {
  const tws_dtype type = call->dtype[0];
  const void *qkv = call->operand[1];
  void *dqkv = call->operand[4];
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
  const int64_t token = batch * s->seq * s->row;
  const int64_t key_column = (s->heads + kv) * s->head, value_column = key_column + s->kv_heads * s->head;
  load_rows(type, qkv, token + key_column, s->row, s->seq, s->padded, s, 1, w.k);
  load_transposed(type, qkv, token + key_column, s->row, s, w.kt);
  load_transposed(type, qkv, token + value_column, s->row, s, w.vt);
  memset(w.dk, 0, (size_t)(2 * all) * sizeof(float));
  for (int64_t h = kv * s->group; h < (kv + 1) * s->group; ++h)
    for (int64_t first = 0; first < s->seq; first += TILE) {
      const int64_t rows = s->seq - first < TILE ? s->seq - first : TILE, m = (rows + STRIP - 1) / STRIP * STRIP;
      load_queries(call, s, &w, batch, h, first, rows, m);
      for (int64_t key = 0; key <= first; key += TILE) {
        const int diagonal = key == first;
        const int64_t keys = diagonal ? m : TILE, at_key = key * s->width;
        product_scores(diagonal, m, s->head, w.q, s->width, w.kt + at_key, w.p);
        product_scores(diagonal, m, s->head, w.d_o, s->width, w.vt + at_key, w.dp);
        gradient_tile(s, &w, m, diagonal);
        product_columns(diagonal, keys, s->width, m, w.p, w.d_o, w.dv + at_key);
        product_columns(diagonal, keys, s->width, m, w.dp, w.q, w.dk + at_key);
        product_rows(diagonal, m, s->width, keys, w.dp, w.k + at_key, w.dq);
      }
      store_rows(type, dqkv, token + first * s->row + h * s->head, s->row, rows, s, w.dq);
    }
  store_rows(type, dqkv, token + key_column, s->row, s->seq, s, w.dk);
  store_rows(type, dqkv, token + value_column, s->row, s->seq, s, w.dv);
}

/* ---- both ---- */
typedef struct attention_job {
  const tws_host_call *call;
  shape shape;
  float *scratch;
  int64_t scratch_floats; /* of one thread */
  void (*item)(const tws_host_call *call, const shape *s, int64_t batch, int64_t kv, float *scratch);
} attention_job;

static void attention_task(void *arg, int thread, int threads) {
  const attention_job *job = arg;
  const shape *s = &job->shape;
  const int64_t items = s->batch * s->kv_heads, used = items < threads ? items : threads;
  if (thread >= used) return;
  host_range r = share(items, 1, thread, (int)used);
  float *scratch = job->scratch + thread * job->scratch_floats;
  for (int64_t i = r.begin; i < r.end; ++i) job->item(job->call, s, i / s->kv_heads, i % s->kv_heads, scratch);
}

static tws_code attention_either(const tws_host_call *call, int workspace,
                                 void (*item)(const tws_host_call *, const shape *, int64_t, int64_t, float *),
                                 tws_error *err) {
  const int64_t *d = call->work->d;
  for (int i = 0; i < 5; ++i)
    if (d[i] < 1) return tws_fail(err, TWS_INVALID, NULL, "size %d is %lld", i, (long long)d[i]);
  if (d[2] % d[3])
    return tws_fail(err, TWS_INVALID, NULL, "%lld query heads cannot share %lld key-value heads evenly",
                    (long long)d[2], (long long)d[3]);
  attention_job job = {.call = call,
                       .shape = shape_of(call->work),
                       .scratch = call->operand[workspace],
                       .scratch_floats = (int64_t)tws_host_attention_thread_floats(call->work),
                       .item = item};
  run_parallel(call, 4.0 * (double)(d[0] * d[1] * d[2] * d[4]), attention_task, &job);
  return TWS_OK;
}
HOST_KERNEL(attention) {
  return attention_either(call, 3, forward_item, err);
}
HOST_KERNEL(attention_grad) {
  return attention_either(call, 5, backward_item, err);
}
