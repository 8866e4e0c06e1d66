/* Softmax cross-entropy over a vocabulary; logits become their own gradient. */
#include "real/host/kernels/kernels.h"

enum { MAX_THREADS = 256 };

typedef struct loss_job {
  const tws_host_call *call;
  double sum[MAX_THREADS][8]; /* of each thread, on a cache line of its own */
} loss_job;

/* Maximum and sum of e^(x - maximum) in one pass over memory: blocks that fit the first-level cache are read twice. */
VECTOR_INLINE void online_softmax(tws_dtype T, const void *row, int64_t columns, float *largest, float *sum) {
  enum { BLOCK = 2048 };
  float m = -INFINITY;
  vf s = v_zero();
  for (int64_t b = 0; b < columns; b += BLOCK) {
    const int64_t end = b + BLOCK < columns ? b + BLOCK : columns, whole = b + (end - b) / LANES * LANES;
    vf top = v_set(-INFINITY);
    for (int64_t i = b; i < whole; i += LANES) top = v_max(v_get(T, row, i, LANES), top);
    float block_top = v_largest(top);
    for (int64_t i = whole; i < end; ++i) {
      float x = v_get(T, row, i, 1)[0];
      if (x > block_top) block_top = x;
    }
    if (block_top > m) {
      if (m > -INFINITY) s *= v_exp(v_set(m - block_top));
      m = block_top;
    }
    for (int64_t i = b; i < whole; i += LANES) s += v_exp(v_get(T, row, i, LANES) - m);
    if (whole < end) {
      const int n = (int)(end - whole);
      const vi lane = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
      s += (vf)((vi)v_exp(v_get(T, row, whole, n) - m) & (lane < n));
    }
  }
  *largest = m;
  *sum = v_sum(s);
}

VECTOR_INLINE double loss_row(tws_dtype T, const tws_host_call *call, int64_t t) {
  const int64_t columns = call->work->d[1], padded = call->work->d[2];
  void *row = at_mutable(T, call->operand[0], t * padded);
  const int32_t target = ((const int32_t *)call->operand[1])[t];
  if (target < 0) {
    memset(row, 0, (size_t)padded * (T == TWS_F32 ? 4U : 2U));
    return 0;
  }
  float largest, sum;
  online_softmax(T, row, columns, &largest, &sum);
  const float logit = v_get(T, row, target, 1)[0], scale = (float)call->work->f[0];
  const float weight = scale / sum;
  EACH_VECTOR(i, n, 0, columns, v_put(T, row, i, v_exp(v_get(T, row, i, n) - largest) * weight, n));
  const float p = expf(logit - largest) / sum; /* from the logit again: the stored one may be rounded */
  v_put(T, row, target, v_set(scale * (p - 1.0F)), 1);
  memset(at_mutable(T, row, columns), 0, (size_t)(padded - columns) * (T == TWS_F32 ? 4U : 2U));
  return log((double)sum) + ((double)largest - (double)logit);
}

static void loss_task(void *arg, int thread, int threads) {
  loss_job *job = arg;
  const tws_host_call *call = job->call;
  host_range r = share(call->work->d[0], 1, thread, threads);
  double sum = 0;
  FOR_TYPE(call->dtype[0], T, for (int64_t t = r.begin; t < r.end; ++t) sum += loss_row(T, call, t));
  job->sum[thread][0] = sum;
}

HOST_KERNEL(cross_entropy) {
  const int64_t *d = call->work->d;
  const int32_t *targets = call->operand[1];
  if (d[1] < 1 || d[2] < d[1])
    return tws_fail(err, TWS_INVALID, NULL, "cross entropy over %lld columns in rows of %lld", (long long)d[1],
                    (long long)d[2]);
  for (int64_t t = 0; t < d[0]; ++t)
    if (targets[t] < -1 || targets[t] >= d[1])
      return tws_fail(err, TWS_INVALID, "targets must be token ids, or -1 to ignore a position",
                      "target %lld is %d, outside the vocabulary of %lld", (long long)t, targets[t], (long long)d[1]);
  loss_job job = {.call = call};
  run_parallel(call, 8.0 * (double)(d[0] * d[2]), loss_task, &job);
  double sum = 0;
  for (int i = 0; i < call->backend->threads; ++i) sum += job.sum[i][0];
  *(double *)call->operand[2] += call->work->f[1] * sum;
  return TWS_OK;
}
