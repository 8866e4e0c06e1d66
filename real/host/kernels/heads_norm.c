/* RMSNorm of each query head and key head, or of all query heads together and all key heads together. */
#include "real/host/kernels/kernels.h"

/* The ranges of each token that are normalized: some of queries, then some of keys; ranges of queries have one width,
 * those of keys another. */
typedef struct heads_rows {
  int64_t tokens, token; /* token: elements from one token to the next */
  struct {
    int64_t first, rows, width; /* first: index in a token of the first normalized element; rows, width: number and size
                                 * of the ranges */
    int64_t stat, stats;        /* stat: index of the first statistic; stats: statistics per token, of queries and keys
                                 * together */
  } part[2];
  int64_t normed; /* normalized elements per token */
  float offset;
} heads_rows;

static heads_rows rows_of(const tws_host_call *call) {
  const int64_t *d = call->work->d, heads[2] = {d[1], d[2]};
  const int together = (call->work->flags & TWS_TOGETHER) != 0;
  heads_rows r = {.tokens = d[0], .token = (d[1] + 2 * d[2]) * d[3], .offset = (float)call->work->f[1]};
  for (int i = 0; i < 2; ++i) {
    r.part[i].first = r.normed;
    r.part[i].rows = together ? 1 : heads[i];
    r.part[i].width = together ? heads[i] * d[3] : d[3];
    r.part[i].stat = i == 0 ? 0 : r.part[0].rows;
    r.part[i].stats = together ? 2 : heads[0] + heads[1];
    r.normed += heads[i] * d[3];
  }
  return r;
}

VECTOR_INLINE void norm_token(tws_dtype T, const tws_host_call *call, const heads_rows *r, int64_t t) {
  const void *x = call->operand[0];
  void *y = call->operand[3];
  for (int i = 0; i < 2; ++i) {
    const void *weight = call->operand[1 + i];
    const int64_t width = r->part[i].width;
    for (int64_t h = 0; h < r->part[i].rows; ++h) {
      const int64_t row = t * r->token + r->part[i].first + h * width;
      vf squares = v_zero();
      EACH_VECTOR(c, n, 0, width, {
        const vf v = v_keep(v_get(T, x, row + c, n), n);
        squares += v * v;
      });
      const float inverse = 1.0F / sqrtf(v_sum(squares) / (float)width + (float)call->work->f[0]);
      EACH_VECTOR(c, n, 0, width,
                  v_put(T, y, row + c, v_get(T, x, row + c, n) * inverse * (v_get(T, weight, c, n) + r->offset), n));
      ((float *)call->operand[4])[t * r->part[i].stats + r->part[i].stat + h] = inverse;
    }
  }
  EACH_VECTOR(c, n, r->normed, r->token, v_put(T, y, t * r->token + c, v_get(T, x, t * r->token + c, n), n));
}

static void heads_norm_task(void *arg, int thread, int threads) {
  const tws_host_call *call = arg;
  const heads_rows r = rows_of(call);
  host_range range = share(r.tokens, 1, thread, threads);
  FOR_TYPE(call->dtype[0], T, for (int64_t t = range.begin; t < range.end; ++t) norm_token(T, call, &r, t));
}
HOST_KERNEL(heads_norm) {
  (void)err;
  const heads_rows r = rows_of(call);
  run_parallel(call, 8.0 * (double)(r.tokens * r.token), heads_norm_task, (void *)(uintptr_t)call);
  return TWS_OK;
}

/* Computes, with z = x / rms and g = dy (offset + weight): dx = (g - z mean(g z)) / rms. */
VECTOR_INLINE void norm_grad_token(tws_dtype T, const tws_host_call *call, const heads_rows *r, int64_t t) {
  const void *dy = call->operand[0], *x = call->operand[1];
  void *dx = call->operand[5];
  for (int i = 0; i < 2; ++i) {
    const void *weight = call->operand[2 + i];
    const int64_t width = r->part[i].width;
    for (int64_t h = 0; h < r->part[i].rows; ++h) {
      const int64_t row = t * r->token + r->part[i].first + h * width;
      const float inverse = ((const float *)call->operand[4])[t * r->part[i].stats + r->part[i].stat + h];
      vf product = v_zero();
      EACH_VECTOR(c, n, 0, width, {
        const vf g = v_get(T, dy, row + c, n) * (v_get(T, weight, c, n) + r->offset);
        product += v_keep(g * v_get(T, x, row + c, n), n) * inverse;
      });
      const float mean = v_sum(product) / (float)width;
      EACH_VECTOR(c, n, 0, width, {
        const vf g = v_get(T, dy, row + c, n) * (v_get(T, weight, c, n) + r->offset);
        v_put(T, dx, row + c, (g - v_get(T, x, row + c, n) * inverse * mean) * inverse, n);
      });
    }
  }
  EACH_VECTOR(c, n, r->normed, r->token, v_put(T, dx, t * r->token + c, v_get(T, dy, t * r->token + c, n), n));
}

static void heads_norm_grad_task(void *arg, int thread, int threads) {
  const tws_host_call *call = arg;
  const heads_rows r = rows_of(call);
  host_range range = share(r.tokens, 1, thread, threads);
  FOR_TYPE(call->dtype[0], T, for (int64_t t = range.begin; t < range.end; ++t) norm_grad_token(T, call, &r, t));
}

/* Computes some columns of the weights' gradient: each thread sums all tokens and heads in order, so no partial sums
 * are added between threads. */
VECTOR_INLINE void weight_columns(tws_dtype T, tws_dtype G, const tws_host_call *call, const heads_rows *r, int i,
                                  int64_t column, int n) {
  const void *dy = call->operand[0], *x = call->operand[1];
  void *dweight = call->operand[6 + i];
  vf sum = v_zero();
  for (int64_t t = 0; t < r->tokens; ++t)
    for (int64_t h = 0; h < r->part[i].rows; ++h) {
      const int64_t at = t * r->token + r->part[i].first + h * r->part[i].width + column;
      const float inverse = ((const float *)call->operand[4])[t * r->part[i].stats + r->part[i].stat + h];
      sum += v_get(T, dy, at, n) * (v_get(T, x, at, n) * inverse);
    }
  if (call->work->flags & TWS_ACCUMULATE_PARAM) sum += v_get(G, dweight, column, n);
  v_put(G, dweight, column, sum, n);
}

static void weights_task(void *arg, int thread, int threads) {
  const tws_host_call *call = arg;
  const heads_rows r = rows_of(call);
  for (int i = 0; i < 2; ++i) {
    host_range range = share(r.part[i].width, 64, thread, threads);
    FOR_TYPE(call->dtype[0], T,
             FOR_TYPE(call->dtype[6], G,
                      EACH_VECTOR(c, n, range.begin, range.end, weight_columns(T, G, call, &r, i, c, n))));
  }
}
HOST_KERNEL(heads_norm_grad) {
  (void)err;
  const heads_rows r = rows_of(call);
  const double bytes = 16.0 * (double)(r.tokens * r.token);
  run_parallel(call, bytes, weights_task, (void *)(uintptr_t)call);
  run_parallel(call, bytes, heads_norm_grad_task, (void *)(uintptr_t)call);
  return TWS_OK;
}
