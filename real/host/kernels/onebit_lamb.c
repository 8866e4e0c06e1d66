/* OneBitLamb's kernels: models/operators_compressed.def. */
#include "models/operator.h"
#include "plan/plan.h"
#include "real/host/kernels/kernels.h"

enum { GRAIN = 1024, FIGURES = 3 };

static int is_skipped(const tws_host_call *call, int metrics) {
  return ((const double *)call->operand[metrics])[TWS_METRIC_CLIP] == 0;
}

/* Returns the larger number, or NaN if one of them is NaN. */
static double larger_of(double a, double b) {
  return b > a || isnan(b) ? b : a;
}

/* Limits a number to [least, most]; NaN stays NaN. */
static double cut_to(double x, double least, double most) {
  return x > most ? most : x < least ? least : x;
}

/* ---- the scaled momentum ---- */

static void scaled_task(void *arg, int thread, int threads) {
  const tws_host_call *call = arg;
  const float *hyper = call->operand[3];
  const double clip = ((const double *)call->operand[4])[TWS_METRIC_CLIP];
  const vf factor = v_set((float)(call->argument[0] * clip)), scale = v_set(*(const float *)call->operand[2]);
  const vf beta = v_set(hyper[TWS_HYPER_BETA1]), rest = v_set(hyper[TWS_HYPER_REST1]);
  const host_range r = share(call->work->d[0], 64, thread, threads);
  FOR_TYPE(call->dtype[0], T, EACH_VECTOR(i, n, r.begin, r.end, {
             const vf g = v_get(T, call->operand[0], i, n) * factor;
             v_put(TWS_F32, call->operand[5], i, (beta * v_get(TWS_F32, call->operand[1], i, n) + rest * g) * scale, n);
           }));
}

HOST_KERNEL(scaled_momentum) {
  (void)err;
  if (is_skipped(call, 4))
    memset(call->operand[5], 0, (size_t)call->work->d[0] * sizeof(float));
  else
    run_parallel(call, tws_work_bytes(call->work), scaled_task, (void *)(uintptr_t)call);
  return TWS_OK;
}

/* ---- fresh second moments ---- */

typedef struct fresh_job {
  const tws_host_call *call;
  double figure[MAX_THREADS][8]; /* [thread]: the first FIGURES are its figures; a cache line for each thread */
} fresh_job;

static void fresh_task(void *arg, int thread, int threads) {
  fresh_job *job = arg;
  const tws_host_call *call = job->call;
  const float *x = call->operand[0], *p = call->operand[1], *v = call->operand[3], *hyper = call->operand[6];
  float *m = call->operand[2], *f = call->operand[4];
  const float scale = *(const float *)call->operand[5], beta1 = hyper[TWS_HYPER_BETA1], rest1 = hyper[TWS_HYPER_REST1];
  const float beta2 = hyper[TWS_HYPER_BETA2], rest2 = hyper[TWS_HYPER_REST2];
  const float epsilon = (float)tws_work_parameter(call->work, "epsilon");
  const float decay = (float)tws_work_parameter(call->work, "weight_decay");
  const host_range r = share(call->work->d[0], GRAIN, thread, threads);
  double plain = 0, whole = 0;
  float largest = 0;
  for (int64_t i = r.begin; i < r.end; ++i) {
    const float momentum = x[i] / scale, g = (momentum - m[i] * beta1) / rest1;
    const float second = beta2 * f[i] + rest2 * (g * g), root = sqrtf(v[i]) + epsilon;
    const float change = momentum / root, decayed = change + decay * p[i], quotient = root / (sqrtf(second) + epsilon);
    m[i] = momentum;
    f[i] = second;
    plain += (double)change * (double)change;
    whole += (double)decayed * (double)decayed;
    largest = quotient > largest || isnan(quotient) ? quotient : largest;
  }
  job->figure[thread][0] = plain;
  job->figure[thread][1] = whole;
  job->figure[thread][2] = (double)largest;
}

HOST_KERNEL(fresh_moments) {
  (void)err;
  double *figures = call->operand[8];
  fresh_job job = {.call = call};
  figures[0] = figures[1] = figures[2] = 0;
  if (is_skipped(call, 7)) return TWS_OK;
  run_parallel(call, tws_work_bytes(call->work), fresh_task, &job);
  for (int i = 0; i < call->backend->threads; ++i) {
    figures[0] += call->argument[0] * job.figure[i][0];
    figures[1] += call->argument[0] * job.figure[i][1];
    figures[2] = larger_of(figures[2], job.figure[i][2]);
  }
  return TWS_OK;
}

/* ---- kernels whose operands have a few numbers for each parameter of the model, and so are short ---- */

HOST_KERNEL(lamb_factors) {
  (void)err;
  const double *figures = call->operand[0];
  float *factors = call->operand[2];
  const int64_t tensors = call->work->d[0], parts = call->work->d[1];
  const double most = tws_work_parameter(call->work, "factor_max"),
               least = tws_work_parameter(call->work, "factor_min");
  const double threshold = tws_work_parameter(call->work, "factor_threshold");
  for (int64_t t = 0; t < tensors && !is_skipped(call, 1); ++t) {
    double plain = 0, whole = 0, largest = 0;
    for (int64_t part = 0; part < parts; ++part) {
      const double *own = figures + (part * tensors + t) * FIGURES;
      plain += own[0], whole += own[1], largest = larger_of(largest, own[2]);
    }
    const double weight = whole == 0 ? 1 : cut_to(sqrt(plain / whole), 0, 1), before = (double)factors[t];
    const double factor = cut_to(largest * weight + (1 - weight), least, most);
    factors[t] = (float)cut_to(factor, before * (1 - threshold), before * (1 + threshold));
  }
  return TWS_OK;
}

HOST_KERNEL(lamb_ratios) {
  (void)err;
  const double *norms = call->operand[0];
  float *ratios = call->operand[3];
  const double most = tws_work_parameter(call->work, "max_coeff"), least = tws_work_parameter(call->work, "min_coeff");
  const double beta = tws_work_parameter(call->work, "coeff_beta");
  if (is_skipped(call, 2) || ((const float *)call->operand[1])[TWS_HYPER_REST1] == 0) return TWS_OK;
  for (int64_t t = 0; t < call->work->d[0]; ++t) {
    if (norms[2 * t] == 0 || norms[2 * t + 1] == 0) continue;
    const double ratio = cut_to(sqrt(norms[2 * t] / norms[2 * t + 1]), least, most);
    if (ratio != 1) ratios[t] = (float)(beta * (double)ratios[t] + (1 - beta) * ratio);
  }
  return TWS_OK;
}

HOST_KERNEL(momentum_scales) {
  (void)err;
  const double *squares = call->operand[0];
  float *scales = call->operand[1], *factors = call->operand[2];
  double sum = 0;
  int64_t counted = 0;
  for (int64_t t = 0; t < call->work->d[0]; ++t) {
    sum += sqrt(squares[t]);
    counted += squares[t] != 0;
  }
  for (int64_t t = 0; t < call->work->d[0]; ++t) {
    scales[t] = squares[t] != 0 ? (float)(sum / (double)counted / sqrt(squares[t])) : 1;
    factors[t] = 1;
  }
  return TWS_OK;
}

typedef struct square_job {
  const tws_host_call *call;
  double sum[MAX_THREADS][8];
} square_job;

static void square_task(void *arg, int thread, int threads) {
  square_job *job = arg;
  const float *x = job->call->operand[0];
  const host_range r = share(job->call->work->d[0], GRAIN, thread, threads);
  double sum[4] = {0};
  for (int64_t i = r.begin; i < r.end; ++i) sum[i % 4] += (double)x[i] * (double)x[i];
  job->sum[thread][0] = sum[0] + sum[1] + (sum[2] + sum[3]);
}

HOST_KERNEL(mean_square) {
  (void)err;
  square_job job = {.call = call};
  double sum = 0;
  run_parallel(call, tws_work_bytes(call->work), square_task, &job);
  for (int i = 0; i < call->backend->threads; ++i) sum += job.sum[i][0];
  *(double *)call->operand[1] = call->argument[0] * sum;
  return TWS_OK;
}

/* ---- the update ---- */

static void frozen_task(void *arg, int thread, int threads) {
  const tws_host_call *call = arg;
  const float *hyper = call->operand[5];
  float *p = call->operand[0];
  const float by = hyper[TWS_HYPER_LR] * *(const float *)call->operand[3] * *(const float *)call->operand[4];
  const float epsilon = (float)tws_work_parameter(call->work, "epsilon");
  const float decay = (float)tws_work_parameter(call->work, "weight_decay");
  const host_range r = share(call->work->d[0], 64, thread, threads);
  EACH_VECTOR(i, n, r.begin, r.end, {
    const vf weight = v_get(TWS_F32, p, i, n), m = v_get(TWS_F32, call->operand[1], i, n);
    const vf root = v_sqrt(v_get(TWS_F32, call->operand[2], i, n));
    v_put(TWS_F32, p, i, weight - by * (m / (root + epsilon) + decay * weight), n);
  });
  if (call->count <= 7) return;
  FOR_TYPE(call->dtype[7], P,
           EACH_VECTOR(i, n, r.begin, r.end, { v_put(P, call->operand[7], i, v_get(TWS_F32, p, i, n), n); }));
}

HOST_KERNEL(frozen_lamb) {
  (void)err;
  if (!is_skipped(call, 6)) run_parallel(call, tws_work_bytes(call->work), frozen_task, (void *)(uintptr_t)call);
  return TWS_OK;
}
