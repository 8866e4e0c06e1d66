/* LayerNorm and RMSNorm, forward and backward. */
#include "real/host/kernels/codes.h"

/* Normalises row t; returns the larger of `largest` and the row's largest output, with TWS_LARGEST. cast: with TWS_FP8,
 * the cast of the output, else NULL. */
VECTOR_INLINE int32_t norm_row(tws_dtype T, const tws_host_call *call, const cast_job *cast, int64_t t,
                               int32_t largest) {
  const int64_t width = call->work->d[1], row = t * width;
  const int rms = (call->work->flags & TWS_RMS) != 0;
  const int biased = !rms && (call->work->flags & TWS_BIAS);
  /* first: index of the first output */
  const int plain = (call->work->flags & TWS_PLAIN) != 0, first = plain ? 1 : biased ? 3 : 2;
  const void *x = call->operand[0], *weight = plain ? NULL : call->operand[1], *bias = biased ? call->operand[2] : NULL;
  void *y = call->operand[first];
  float *stats = call->operand[first + 1];
  if (call->work->flags & TWS_RESIDUAL) {
    const void *residual = call->operand[first + 2];
    void *sum = call->operand[first + 3];
    EACH_VECTOR(i, n, 0, width, v_put(T, sum, row + i, v_get(T, x, row + i, n) + v_get(T, residual, row + i, n), n));
    x = sum;
  }
  const float offset = (float)call->work->f[1];
  float mean = 0;
  if (!rms) {
    vf sum = v_zero();
    EACH_VECTOR(i, n, 0, width, sum += v_get(T, x, row + i, n));
    mean = v_sum(sum) / (float)width;
  }
  vf squares = v_zero();
  EACH_VECTOR(i, n, 0, width, {
    vf v = v_keep(v_get(T, x, row + i, n) - mean, n);
    squares += v * v;
  });
  const float inverse = 1.0F / sqrtf(v_sum(squares) / (float)width + (float)call->work->f[0]);
  const int finds = (call->work->flags & TWS_LARGEST) != 0;
  vi most = {0};
  EACH_VECTOR(i, n, 0, width, {
    vf v = (v_get(T, x, row + i, n) - mean) * inverse;
    if (weight) v *= v_get(T, weight, i, n) + offset;
    if (bias) v += v_get(T, bias, i, n);
    if (cast) {
      most = put_codes(TWS_E4M3, cast, t, i, v_stored(T, v), n, most);
    } else {
      v_put(T, y, row + i, v, n);
      if (finds) most = v_larger_magnitude(most, v_keep(v_stored(T, v), n));
    }
  });
  if (rms) {
    stats[t] = inverse;
  } else {
    stats[2 * t] = mean;
    stats[2 * t + 1] = inverse;
  }
  if (!finds && !cast) return largest;
  const int32_t own = v_largest_bits(most);
  return own > largest ? own : largest;
}

static void norm_task(void *arg, int thread, int threads) {
  cast_job *job = arg;
  const tws_host_call *call = job->found.call;
  host_range r = share(call->work->d[0], 1, thread, threads);
  const cast_job *cast = call->work->flags & TWS_FP8 ? job : NULL;
  int32_t largest = 0;
  FOR_TYPE(call->dtype[0], T,
           for (int64_t t = r.begin; t < r.end; ++t) largest = norm_row(T, call, cast, t, largest));
  job->found.largest[thread] = largest;
}
HOST_KERNEL(norm) {
  (void)err;
  const tws_work *work = call->work;
  const int plain = (work->flags & TWS_PLAIN) != 0, biased = !(work->flags & TWS_RMS) && work->flags & TWS_BIAS;
  cast_job job = {.found = {.call = call}};
  if (work->flags & TWS_FP8) {
    job = begin_cast(call, TWS_E4M3, call->count - 3, work->d[0], work->d[1], 1);
    job.y = call->operand[plain ? 1 : biased ? 3 : 2];
  }
  run_parallel(call, 8.0 * (double)(work->d[0] * work->d[1]), norm_task, &job);
  if (work->flags & TWS_FP8)
    end_cast(&job);
  else if (work->flags & TWS_LARGEST)
    put_largest(&job.found, call->operand[call->count - 1]);
  return TWS_OK;
}

/* Computes some columns of dweight and dbias: each thread sums all tokens in order, so no partial sums are added
 * between threads. */
VECTOR_INLINE void norm_columns(tws_dtype T, tws_dtype G, const tws_host_call *call, int64_t column, int n) {
  const int64_t tokens = call->work->d[0], width = call->work->d[1];
  const int rms = (call->work->flags & TWS_RMS) != 0, keep = (call->work->flags & TWS_ACCUMULATE_PARAM) != 0;
  const void *dy = call->operand[0], *x = call->operand[1];
  const float *stats = call->operand[3];
  void *dweight = call->operand[5], *dbias = !rms && (call->work->flags & TWS_BIAS) ? call->operand[6] : NULL;
  vf weight_sum = v_zero(), bias_sum = v_zero();
  for (int64_t t = 0; t < tokens; ++t) {
    const float mean = rms ? 0 : stats[2 * t], inverse = rms ? stats[t] : stats[2 * t + 1];
    vf d = v_get(T, dy, t * width + column, n);
    weight_sum += d * ((v_get(T, x, t * width + column, n) - mean) * inverse);
    bias_sum += d;
  }
  if (keep) weight_sum += v_get(G, dweight, column, n);
  v_put(G, dweight, column, weight_sum, n);
  if (!dbias) return;
  if (keep) bias_sum += v_get(G, dbias, column, n);
  v_put(G, dbias, column, bias_sum, n);
}

static void norm_grad_param_task(void *arg, int thread, int threads) {
  const tws_host_call *call = arg;
  host_range r = share(call->work->d[1], 64, thread, threads);
  FOR_TYPE(call->dtype[0], T,
           FOR_TYPE(call->dtype[5], G, EACH_VECTOR(i, n, r.begin, r.end, norm_columns(T, G, call, i, n))));
}

/* Computes, with z = (x - mean)/std and g = dy weight: dx = (g - mean(g) - z mean(g z)) / std; RMSNorm has no
 * mean(g). */
VECTOR_INLINE void norm_grad_row(tws_dtype T, const tws_host_call *call, int64_t t) {
  const int64_t width = call->work->d[1], row = t * width;
  const int rms = (call->work->flags & TWS_RMS) != 0, keep = (call->work->flags & TWS_ACCUMULATE) != 0;
  const int plain = (call->work->flags & TWS_PLAIN) != 0;
  const void *dy = call->operand[0], *x = call->operand[1], *weight = plain ? NULL : call->operand[2];
  const float *stats = call->operand[plain ? 2 : 3];
  void *dx = call->operand[plain ? 3 : 4];
  const float mean = rms ? 0 : stats[2 * t], inverse = rms ? stats[t] : stats[2 * t + 1];
  const float offset = (float)call->work->f[1];
  vf sum = v_zero(), product = v_zero();
  EACH_VECTOR(i, n, 0, width, {
    vf g = v_get(T, dy, row + i, n);
    if (weight) g *= v_get(T, weight, i, n) + offset;
    sum += g;
    product += g * ((v_get(T, x, row + i, n) - mean) * inverse);
  });
  const float mean_g = rms ? 0 : v_sum(sum) / (float)width, mean_gz = v_sum(product) / (float)width;
  EACH_VECTOR(i, n, 0, width, {
    vf g = v_get(T, dy, row + i, n);
    if (weight) g *= v_get(T, weight, i, n) + offset;
    vf z = (v_get(T, x, row + i, n) - mean) * inverse;
    vf v = (g - mean_g - z * mean_gz) * inverse;
    if (keep) v += v_get(T, dx, row + i, n);
    v_put(T, dx, row + i, v, n);
  });
}

static void norm_grad_task(void *arg, int thread, int threads) {
  const tws_host_call *call = arg;
  host_range r = share(call->work->d[0], 1, thread, threads);
  FOR_TYPE(call->dtype[0], T, for (int64_t t = r.begin; t < r.end; ++t) norm_grad_row(T, call, t));
}
HOST_KERNEL(norm_grad) {
  (void)err;
  const double bytes = 16.0 * (double)(call->work->d[0] * call->work->d[1]);
  if (!(call->work->flags & TWS_PLAIN)) /* weights are processed first, since dx may overwrite dy */
    run_parallel(call, bytes, norm_grad_param_task, (void *)(uintptr_t)call);
  run_parallel(call, bytes, norm_grad_task, (void *)(uintptr_t)call);
  if (!(call->work->flags & TWS_SUMS)) return TWS_OK;
  const int dx = call->work->flags & TWS_PLAIN ? 3 : 4, sums = call->count - 1;
  const int keep = (call->work->flags & TWS_ACCUMULATE_PARAM) != 0;
  return TWS_HOST(column_sums)(call, (host_sums){call->operand[dx], call->operand[sums], call->dtype[dx],
                                                 call->dtype[sums], call->work->d[0], call->work->d[1], keep});
}
