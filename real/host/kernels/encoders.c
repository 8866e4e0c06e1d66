/* Small kernels of encoders: biases of some column ranges of a row, convolution of adjacent tokens, scores of spans. */
#include "real/host/kernels/kernels.h"

/* ---- a bias for every second column range ---- */

static void part_bias_task(void *arg, int thread, int threads) {
  const tws_host_call *call = arg;
  const int64_t parts = call->work->d[1], width = call->work->d[2];
  const void *bias = call->operand[0];
  void *x = call->operand[1];
  const host_range r = share(call->work->d[0], 1, thread, threads);
  for (int64_t t = r.begin; t < r.end; ++t)
    for (int64_t part = 0; part < parts; part += 2) {
      const int64_t at = (t * parts + part) * width, from = part / 2 * width;
      FOR_TYPE(
          call->dtype[1], T,
          EACH_VECTOR(i, n, 0, width, v_put(T, x, at + i, v_get(T, x, at + i, n) + v_get(T, bias, from + i, n), n)));
    }
}
HOST_KERNEL(part_bias) {
  (void)err;
  run_parallel(call, tws_work_bytes(call->work), part_bias_task, (void *)(uintptr_t)call);
  return TWS_OK;
}

/* Sums the rows of some columns in order; threads share the columns. */
VECTOR_INLINE void sum_columns(tws_dtype T, tws_dtype G, const tws_host_call *call, int64_t part, int64_t column,
                               int n) {
  const int64_t *d = call->work->d, out = part / 2 * d[2] + column;
  vf sum = v_zero();
  for (int64_t t = 0; t < d[0]; ++t) sum += v_get(T, call->operand[0], (t * d[1] + part) * d[2] + column, n);
  if (call->work->flags & TWS_ACCUMULATE) sum += v_get(G, call->operand[1], out, n);
  v_put(G, call->operand[1], out, sum, n);
}

static void part_bias_grad_task(void *arg, int thread, int threads) {
  const tws_host_call *call = arg;
  const host_range r = share(call->work->d[2], 64, thread, threads);
  for (int64_t part = 0; part < call->work->d[1]; part += 2)
    FOR_TYPE(call->dtype[0], T,
             FOR_TYPE(call->dtype[1], G, EACH_VECTOR(i, n, r.begin, r.end, sum_columns(T, G, call, part, i, n))));
}
HOST_KERNEL(part_bias_grad) {
  (void)err;
  run_parallel(call, tws_work_bytes(call->work), part_bias_grad_task, (void *)(uintptr_t)call);
  return TWS_OK;
}

/* ---- tokens ---- */

/* Returns the number of tokens of a sample that are not padding; lengths are the second operand. */
static int64_t length_of(const tws_host_call *call, int64_t sample) {
  return call->work->flags & TWS_LENGTHS ? ((const int32_t *)call->operand[1])[sample] : call->work->d[1];
}

static void *last_of(const tws_host_call *call) {
  return call->operand[call->work->flags & TWS_LENGTHS ? 2 : 1];
}

VECTOR_INLINE void token_unfold_of(tws_dtype T, const tws_host_call *call, int64_t sample, int64_t t) {
  const int64_t *d = call->work->d, seq = d[1], width = d[2], side = d[3], length = length_of(call, sample);
  const void *x = call->operand[0];
  void *y = last_of(call);
  for (int64_t j = 0; j < side; ++j) {
    const int64_t from = t + j - side / 2, row = sample * seq + from, inside = from >= 0 && from < length;
    for (int64_t i = 0; i < width; ++i)
      v_put(T, y, ((sample * seq + t) * width + i) * side + j, inside ? v_get(T, x, row * width + i, 1) : v_zero(), 1);
  }
}

static void token_unfold_task(void *arg, int thread, int threads) {
  const tws_host_call *call = arg;
  const int64_t seq = call->work->d[1];
  const host_range r = share(call->work->d[0] * seq, 1, thread, threads);
  FOR_TYPE(call->dtype[0], T,
           for (int64_t row = r.begin; row < r.end; ++row) token_unfold_of(T, call, row / seq, row % seq));
}
HOST_KERNEL(token_unfold) {
  (void)err;
  run_parallel(call, tws_work_bytes(call->work), token_unfold_task, (void *)(uintptr_t)call);
  return TWS_OK;
}

VECTOR_INLINE void token_unfold_slope(tws_dtype T, const tws_host_call *call, int64_t sample, int64_t t) {
  const int64_t *d = call->work->d, seq = d[1], width = d[2], side = d[3];
  const int adds = (call->work->flags & TWS_ACCUMULATE) != 0, counts = t < length_of(call, sample);
  void *dx = last_of(call);
  for (int64_t i = 0; i < width; ++i) {
    const int64_t at = (sample * seq + t) * width + i;
    float sum = adds ? v_get(T, dx, at, 1)[0] : 0;
    for (int64_t j = 0; j < side && counts; ++j) {
      const int64_t reader = t - j + side / 2;
      if (reader >= 0 && reader < seq)
        sum += v_get(T, call->operand[0], ((sample * seq + reader) * width + i) * side + j, 1)[0];
    }
    v_put(T, dx, at, v_set(sum), 1);
  }
}

static void token_unfold_grad_task(void *arg, int thread, int threads) {
  const tws_host_call *call = arg;
  const int64_t seq = call->work->d[1];
  const host_range r = share(call->work->d[0] * seq, 1, thread, threads);
  FOR_TYPE(call->dtype[0], T,
           for (int64_t row = r.begin; row < r.end; ++row) token_unfold_slope(T, call, row / seq, row % seq));
}
HOST_KERNEL(token_unfold_grad) {
  (void)err;
  run_parallel(call, tws_work_bytes(call->work), token_unfold_grad_task, (void *)(uintptr_t)call);
  return TWS_OK;
}

static void spans_task(void *arg, int thread, int threads) {
  const tws_host_call *call = arg;
  const int64_t seq = call->work->d[1], ends = call->work->d[2];
  const int backward = call->work->code == TWS_KERNEL_SPANS_GRAD;
  const vf absent = v_set(backward ? 0 : -65504.0F);
  void *to = last_of(call);
  const host_range r = share(call->work->d[0] * seq, 1, thread, threads);
  for (int64_t row = r.begin; row < r.end; ++row)
    for (int64_t e = 0; e < ends; ++e) {
      const int64_t sample = row / seq, counts = row % seq < length_of(call, sample);
      const int64_t of_token = row * ends + e, of_end = (sample * ends + e) * seq + row % seq;
      FOR_TYPE(call->dtype[0], T,
               v_put(T, to, backward ? of_token : of_end,
                     counts ? v_get(T, call->operand[0], backward ? of_end : of_token, 1) : absent, 1));
    }
}
HOST_KERNEL(spans) {
  (void)err;
  run_parallel(call, tws_work_bytes(call->work), spans_task, (void *)(uintptr_t)call);
  return TWS_OK;
}
HOST_KERNEL(spans_grad) {
  (void)err;
  run_parallel(call, tws_work_bytes(call->work), spans_task, (void *)(uintptr_t)call);
  return TWS_OK;
}
