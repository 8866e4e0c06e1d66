/* Batch norm: mean and variance of each feature over all rows. Each thread computes some of the features, and reads the
 * rows in order. */
#include "real/host/kernels/kernels.h"

enum { BLOCK = 256 }; /* number of rows that are summed separately, which keeps long sums accurate */

/* Sums over the rows t the expression `term`, for the features of one vector. */
#define SUM_OF_ROWS(total, rows, t, term)                     \
  do {                                                        \
    vf part_ = v_zero();                                      \
    for (int64_t t = 0; t < (rows); ++t) {                    \
      if (t % BLOCK == 0) (total) += part_, part_ = v_zero(); \
      part_ += (term);                                        \
    }                                                         \
    (total) += part_;                                         \
  } while (0)

VECTOR_INLINE vf square_of(vf x) {
  return x * x;
}

VECTOR_INLINE void follow_statistic(const tws_host_call *call, int64_t place, vf value, int n) {
  float *running = call->operand[5];
  const float momentum = (float)call->work->f[1], share = (float)call->argument[0];
  v_put(TWS_F32, running, place, share * ((1 - momentum) * v_get(TWS_F32, running, place, n) + momentum * value), n);
}

VECTOR_INLINE void norm_features(tws_dtype T, const tws_host_call *call, int64_t i, int n) {
  const int64_t rows = call->work->d[0], width = call->work->d[1];
  const void *x = call->operand[0];
  float *stats = call->operand[4];
  vf mean = v_zero(), squares = v_zero();
  SUM_OF_ROWS(mean, rows, t, v_get(T, x, t * width + i, n));
  mean /= (float)rows;
  SUM_OF_ROWS(squares, rows, t, square_of(v_get(T, x, t * width + i, n) - mean));
  const vf inverse = 1.0F / v_sqrt(squares / (float)rows + (float)call->work->f[0]);
  v_put(TWS_F32, stats, i, mean, n);
  v_put(TWS_F32, stats, width + i, inverse, n);
  if (call->work->flags & TWS_RUNNING) {
    follow_statistic(call, i, mean, n);
    follow_statistic(call, width + i, squares / (float)(rows > 1 ? rows - 1 : 1), n);
  }
}

static void norm_features_task(void *arg, int thread, int threads) {
  const tws_host_call *call = arg;
  const host_range r = share(call->work->d[1], LANES, thread, threads);
  FOR_TYPE(call->dtype[0], T, EACH_VECTOR(i, n, r.begin, r.end, norm_features(T, call, i, n)));
}

/* Normalizes a row with the batch's mean and 1/std, or with the running mean and variance. */
VECTOR_INLINE void norm_row(tws_dtype T, const tws_host_call *call, int64_t t) {
  const int evaluates = call->work->code == TWS_KERNEL_BATCH_NORM_EVALUATION;
  const int64_t width = call->work->d[1];
  const float *stats = call->operand[evaluates ? 3 : 4], epsilon = (float)call->work->f[0];
  void *y = call->operand[evaluates ? 4 : 3];
  EACH_VECTOR(i, n, 0, width, {
    const vf second = v_get(TWS_F32, stats, width + i, n);
    const vf inverse = evaluates ? 1.0F / v_sqrt(second + epsilon) : second;
    const vf z = (v_get(T, call->operand[0], t * width + i, n) - v_get(TWS_F32, stats, i, n)) * inverse;
    v_put(T, y, t * width + i, z * v_get(T, call->operand[1], i, n) + v_get(T, call->operand[2], i, n), n);
  });
}

static void norm_row_task(void *arg, int thread, int threads) {
  const tws_host_call *call = arg;
  const host_range r = share(call->work->d[0], 1, thread, threads);
  FOR_TYPE(call->dtype[0], T, for (int64_t t = r.begin; t < r.end; ++t) norm_row(T, call, t));
}

HOST_KERNEL(batch_norm) {
  (void)err;
  const double bytes = 8.0 * (double)(call->work->d[0] * call->work->d[1]);
  run_parallel(call, bytes, norm_features_task, (void *)(uintptr_t)call);
  run_parallel(call, bytes, norm_row_task, (void *)(uintptr_t)call);
  return TWS_OK;
}
HOST_KERNEL(batch_norm_evaluation) {
  (void)err;
  run_parallel(call, 8.0 * (double)(call->work->d[0] * call->work->d[1]), norm_row_task, (void *)(uintptr_t)call);
  return TWS_OK;
}

VECTOR_INLINE void put_sum(tws_dtype G, const tws_host_call *call, int operand, int64_t i, vf sum, int n) {
  if (call->work->flags & TWS_ACCUMULATE_PARAM) sum += v_get(G, call->operand[operand], i, n);
  v_put(G, call->operand[operand], i, sum, n);
}

/* Computes, with z = (x - mean)/std: dx = weight/std (dy - mean(dy) - z mean(dy z)), both means over the rows. */
VECTOR_INLINE void grad_features(tws_dtype T, tws_dtype G, const tws_host_call *call, int64_t i, int n) {
  const int64_t rows = call->work->d[0], width = call->work->d[1];
  const void *dy = call->operand[0], *x = call->operand[1];
  void *dx = call->operand[4];
  const int keep = (call->work->flags & TWS_ACCUMULATE) != 0;
  const vf mean = v_get(TWS_F32, call->operand[3], i, n), inverse = v_get(TWS_F32, call->operand[3], width + i, n);
  vf sum = v_zero(), product = v_zero();
  SUM_OF_ROWS(sum, rows, t, v_get(T, dy, t * width + i, n));
  SUM_OF_ROWS(product, rows, t, v_get(T, dy, t * width + i, n) * ((v_get(T, x, t * width + i, n) - mean) * inverse));
  put_sum(G, call, 5, i, product, n);
  put_sum(G, call, 6, i, sum, n);
  const vf scale = v_get(T, call->operand[2], i, n) * inverse;
  for (int64_t t = 0; t < rows; ++t) {
    const vf z = (v_get(T, x, t * width + i, n) - mean) * inverse;
    vf v = (v_get(T, dy, t * width + i, n) - (sum + z * product) / (float)rows) * scale;
    if (keep) v += v_get(T, dx, t * width + i, n);
    v_put(T, dx, t * width + i, v, n);
  }
}

static void grad_features_task(void *arg, int thread, int threads) {
  const tws_host_call *call = arg;
  const host_range r = share(call->work->d[1], LANES, thread, threads);
  FOR_TYPE(call->dtype[0], T,
           FOR_TYPE(call->dtype[5], G, EACH_VECTOR(i, n, r.begin, r.end, grad_features(T, G, call, i, n))));
}
HOST_KERNEL(batch_norm_grad) {
  (void)err;
  run_parallel(call, 24.0 * (double)(call->work->d[0] * call->work->d[1]), grad_features_task, (void *)(uintptr_t)call);
  return TWS_OK;
}
