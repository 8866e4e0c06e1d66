/* Muon's kernels before the update, except matrix products: momentum, norm and polynomial of a matrix. */
#include <math.h>

#include "models/operator.h"
#include "plan/plan.h"
#include "real/host/kernels/kernels.h"

typedef struct momentum_job {
  const tws_host_call *call;
  float momentum, rest, clip;
} momentum_job;

VECTOR_INLINE void momentum_range(tws_dtype G, const momentum_job *job, host_range r) {
  float *m = job->call->operand[0], *change = job->call->operand[3];
  const float momentum = job->momentum, rest = job->rest, clip = job->clip;
  EACH_VECTOR(i, n, r.begin, r.end, {
    const vf g = rest * (v_get(G, job->call->operand[1], i, n) * clip);
    const vf kept = momentum * v_get(TWS_F32, m, i, n) + g;
    v_put(TWS_F32, m, i, kept, n);
    v_put(TWS_F32, change, i, momentum * kept + g, n);
  });
}

static void momentum_task(void *arg, int thread, int threads) {
  const momentum_job *job = arg;
  const host_range r = share(job->call->work->d[0], 64, thread, threads);
  FOR_TYPE(job->call->dtype[1], G, momentum_range(G, job, r));
}

static void no_change_task(void *arg, int thread, int threads) {
  const tws_host_call *call = arg;
  const host_range r = share(call->work->d[0], 64, thread, threads);
  float *change = call->operand[3];
  for (int64_t i = r.begin; i < r.end; ++i) change[i] = 0;
}

HOST_KERNEL(muon_momentum) {
  (void)err;
  const double *metrics = call->operand[2], momentum = call->work->f[0];
  momentum_job job = {call, (float)momentum, (float)(1 - momentum), (float)metrics[TWS_METRIC_CLIP]};
  if (metrics[TWS_METRIC_CLIP] == 0)
    run_parallel(call, tws_work_bytes(call->work), no_change_task, (void *)(uintptr_t)call);
  else
    run_parallel(call, tws_work_bytes(call->work), momentum_task, &job);
  return TWS_OK;
}

typedef struct norm_job {
  const tws_host_call *call;
  double sum[MAX_THREADS];
  float factor;
} norm_job;

static void norm_task(void *arg, int thread, int threads) {
  norm_job *job = arg;
  const host_range r = share(job->call->work->d[0], 64, thread, threads);
  const float *x = job->call->operand[0];
  double sum = 0;
  for (int64_t i = r.begin; i < r.end; ++i) sum += (double)x[i] * (double)x[i];
  job->sum[thread] = sum;
}

static void divide_task(void *arg, int thread, int threads) {
  const norm_job *job = arg;
  const host_range r = share(job->call->work->d[0], 64, thread, threads);
  const float *x = job->call->operand[0], factor = job->factor;
  float *y = job->call->operand[1];
  for (int64_t i = r.begin; i < r.end; ++i) y[i] = x[i] * factor;
}

HOST_KERNEL(unit_norm) {
  (void)err;
  norm_job job = {.call = call};
  double sum = 0;
  run_parallel(call, 4.0 * (double)call->work->d[0], norm_task, &job);
  for (int i = 0; i < call->backend->threads; ++i) sum += job.sum[i];
  job.factor = (float)(1 / (sqrt(sum) + 1e-7));
  run_parallel(call, tws_work_bytes(call->work), divide_task, &job);
  return TWS_OK;
}

static void polynomial_task(void *arg, int thread, int threads) {
  const tws_host_call *call = arg;
  const int64_t columns = call->work->d[1];
  const host_range r = share(call->work->d[0], 1, thread, threads);
  const float *gram = call->operand[0];
  float *square = call->operand[1];
  const float scale = (float)call->work->f[0];
  for (int64_t i = r.begin; i < r.end; ++i) {
    for (int64_t j = i * columns; j < (i + 1) * columns; ++j)
      square[j] = scale * (2.0315F * square[j] - 4.7750F * gram[j]);
    if (i < columns) square[i * columns + i] += scale * 3.4445F;
  }
}

HOST_KERNEL(newton_schulz) {
  (void)err;
  run_parallel(call, tws_work_bytes(call->work), polynomial_task, (void *)(uintptr_t)call);
  return TWS_OK;
}
