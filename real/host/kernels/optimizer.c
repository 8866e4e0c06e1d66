/* The optimizer's step and what precedes it: gradient norm and clipping. */
#include "real/host/kernels/kernels.h"

enum { MAX_THREADS = 256 };

typedef struct adamw_constants {
  float beta1, beta2, rest1, rest2, epsilon, decay, step, inverse_root_bias2, clip;
  int l2;
} adamw_constants;

/* AdamW (Loshchilov and Hutter, "Decoupled weight decay regularization", ICLR 2019):
 * p <- p - lr (m/bias1 / (sqrt(v/bias2) + epsilon) + decay p). With l2 the decay joins the gradient instead. */
VECTOR_INLINE void adamw_range(tws_dtype G, tws_dtype P, const tws_host_call *call, const adamw_constants *c,
                               host_range r) {
  float *p = call->operand[0], *m = call->operand[1], *v = call->operand[2];
  const void *grad = call->operand[3];
  uint16_t *p16 = call->count > 6 ? call->operand[6] : NULL;
  EACH_VECTOR(i, n, r.begin, r.end, {
    vf weight = v_get(TWS_F32, p, i, n);
    vf g = v_get(G, grad, i, n) * c->clip;
    if (c->l2) g += c->decay * weight;
    vf m1 = c->beta1 * v_get(TWS_F32, m, i, n) + c->rest1 * g;
    vf v1 = c->beta2 * v_get(TWS_F32, v, i, n) + c->rest2 * (g * g);
    v_put(TWS_F32, m, i, m1, n);
    v_put(TWS_F32, v, i, v1, n);
    vf change = c->step * m1 / (v_sqrt(v1) * c->inverse_root_bias2 + c->epsilon);
    if (!c->l2) change += c->decay * weight;
    weight -= change;
    v_put(TWS_F32, p, i, weight, n);
    if (p16) v_put(P, p16, i, weight, n);
  });
}

typedef struct adamw_job {
  const tws_host_call *call;
  adamw_constants constants;
} adamw_job;

static void adamw_task(void *arg, int thread, int threads) {
  const adamw_job *job = arg;
  const tws_host_call *call = job->call;
  host_range r = share(call->work->d[0], 64, thread, threads);
  const tws_dtype type = call->count > 6 ? call->dtype[6] : TWS_F32;
  FOR_TYPE(call->dtype[3], G, FOR_TYPE(type, P, adamw_range(G, P, call, &job->constants, r)));
}

HOST_KERNEL(adamw) {
  (void)err;
  const double *f = call->work->f;
  const float *hyper = call->operand[4];
  const double *metrics = call->operand[5];
  if (metrics[TWS_METRIC_CLIP] == 0) return TWS_OK; /* the gradients are not finite: nothing may change */
  const float lr = hyper[TWS_HYPER_LR];
  const int l2 = (call->work->flags & TWS_L2) != 0;
  adamw_job job = {call,
                   {.beta1 = (float)f[0],
                    .beta2 = (float)f[1],
                    .rest1 = (float)(1 - f[0]),
                    .rest2 = (float)(1 - f[1]),
                    .epsilon = (float)f[2],
                    .decay = l2 ? (float)f[3] : (float)((double)lr * f[3]),
                    .step = lr / hyper[TWS_HYPER_BIAS1],
                    .inverse_root_bias2 = 1.0F / sqrtf(hyper[TWS_HYPER_BIAS2]),
                    .clip = (float)metrics[TWS_METRIC_CLIP],
                    .l2 = l2}};
  run_parallel(call, 28.0 * (double)call->work->d[0], adamw_task, &job);
  return TWS_OK;
}

typedef struct squares_job {
  const tws_host_call *call;
  double sum[MAX_THREADS][8];
} squares_job;

VECTOR_INLINE double squares_of(tws_dtype T, const void *x, host_range r) {
  vd low = {0}, high = {0};
  EACH_VECTOR(i, n, r.begin, r.end, {
    union {
      vf v;
      v8f half[2];
    } u = {.v = v_get(T, x, i, n)};
    vd a = __builtin_convertvector(u.half[0], vd), b = __builtin_convertvector(u.half[1], vd);
    low += a * a;
    high += b * b;
  });
  low += high;
  double sum = 0;
  for (int i = 0; i < 8; ++i) sum += low[i];
  return sum;
}

static void squares_task(void *arg, int thread, int threads) {
  squares_job *job = arg;
  const tws_host_call *call = job->call;
  host_range r = share(call->work->d[0], 64, thread, threads);
  FOR_TYPE(call->dtype[0], T, job->sum[thread][0] = squares_of(T, call->operand[0], r));
}

HOST_KERNEL(squared_norm) {
  (void)err;
  squares_job job = {.call = call};
  run_parallel(call, 4.0 * (double)call->work->d[0], squares_task, &job);
  double sum = 0;
  for (int i = 0; i < call->backend->threads; ++i) sum += job.sum[i][0];
  *(double *)call->operand[1] += call->work->f[0] * sum;
  return TWS_OK;
}

/* The coefficient of torch.nn.utils.clip_grad_norm_, over the share of tokens that count, and for gradients that the
 * loss scale multiplied; 0 tells ADAMW that the gradients are not finite, or that there are none. */
HOST_KERNEL(clip) {
  (void)err;
  double *metrics = call->operand[0];
  const int scaled = (call->work->flags & TWS_SCALED) != 0;
  const double scale = scaled ? ((const float *)call->operand[1])[TWS_HYPER_SCALE] : 1;
  const double kept = 1 - metrics[TWS_METRIC_IGNORED];
  if (scaled)
    metrics[TWS_METRIC_OVERFLOW] = !isfinite(metrics[TWS_METRIC_SQUARES]) || !isfinite(metrics[TWS_METRIC_LOSS]);
  if (kept < 1e-9) { /* what rounding leaves where nothing counts */
    metrics[TWS_METRIC_LOSS] = metrics[TWS_METRIC_NORM] = metrics[TWS_METRIC_CLIP] = 0;
    return TWS_OK;
  }
  const double max_norm = call->work->f[0], norm = sqrt(metrics[TWS_METRIC_SQUARES]) / (kept * scale);
  double coefficient = max_norm > 0 ? max_norm / (norm + 1e-6) : 1;
  if (coefficient > 1) coefficient = 1;
  const int usable = isfinite(norm) && metrics[TWS_METRIC_OVERFLOW] == 0;
  metrics[TWS_METRIC_LOSS] /= kept;
  metrics[TWS_METRIC_NORM] = norm;
  metrics[TWS_METRIC_CLIP] = usable ? coefficient / (kept * scale) : 0;
  return TWS_OK;
}
