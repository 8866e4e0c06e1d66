/* The optimizer's step and what precedes it: gradient norm and clipping. */
#include "base/philox.h"
#include "real/host/kernels/kernels.h"

enum { MAX_THREADS = 256 };

typedef struct adamw_constants {
  float beta1, beta2, rest1, rest2, epsilon, decay, step, inverse_root_bias2, clip;
  int l2;
  uint32_t number; /* of the update, a float's bits; with the seed for random bits */
  uint64_t seed;
} adamw_constants;

/* AdamW (Loshchilov and Hutter, "Decoupled weight decay regularization", ICLR 2019):
 * p <- p - lr (m/bias1 / (sqrt(v/bias2) + epsilon) + decay p). With l2 the decay joins the gradient instead. Returns
 * the new p; m and v become theirs. */
VECTOR_INLINE vf adamw_vector(const adamw_constants *c, vf weight, vf *m, vf *v, vf g) {
  g = g * c->clip;
  if (c->l2) g += c->decay * weight;
  *m = c->beta1 * *m + c->rest1 * g;
  *v = c->beta2 * *v + c->rest2 * (g * g);
  vf change = c->step * *m / (v_sqrt(*v) * c->inverse_root_bias2 + c->epsilon);
  if (!c->l2) change += c->decay * weight;
  return weight - change;
}

VECTOR_INLINE void adamw_range(tws_dtype G, tws_dtype P, const tws_host_call *call, const adamw_constants *c,
                               host_range r) {
  float *p = call->operand[0], *m = call->operand[1], *v = call->operand[2];
  const void *grad = call->operand[3];
  uint16_t *p16 = call->count > 6 ? call->operand[6] : NULL;
  EACH_VECTOR(i, n, r.begin, r.end, {
    vf m1 = v_get(TWS_F32, m, i, n), v1 = v_get(TWS_F32, v, i, n);
    const vf weight = adamw_vector(c, v_get(TWS_F32, p, i, n), &m1, &v1, v_get(G, grad, i, n));
    v_put(TWS_F32, m, i, m1, n);
    v_put(TWS_F32, v, i, v1, n);
    v_put(TWS_F32, p, i, weight, n);
    if (p16) v_put(P, p16, i, weight, n);
  });
}

/* ---- bfloat16 weights without a float32 copy ---- */

/* Random bits are made for so many elements at once: one philox block in each lane. */
enum { DRAWN = LANES * TWS_ROUNDING_GROUP };

/* The upper half of each product. */
VECTOR_INLINE vu multiply_high(vu x, uint32_t by) {
#ifdef __AVX512F__
  const __m512i factor = _mm512_set1_epi32((int)by), in = (__m512i)x;
  const __m512i even = _mm512_mul_epu32(in, factor), odd = _mm512_mul_epu32(_mm512_srli_epi64(in, 32), factor);
  return (vu)_mm512_mask_blend_epi32(0xaaaa, _mm512_srli_epi64(even, 32), odd);
#else
  for (int i = 0; i < LANES; ++i) x[i] = (uint32_t)((uint64_t)x[i] * by >> 32);
  return x;
#endif
}

/* Sixteen tws_philox_block() from `index` on, one after the other. */
VECTOR_INLINE void draw_blocks(uint64_t seed, uint64_t stream, uint64_t index, uint16_t out[DRAWN]) {
  vu c0, c1, c2 = (vu){0} + (uint32_t)stream, c3 = (vu){0} + (uint32_t)(stream >> 32);
  uint32_t key0 = (uint32_t)seed, key1 = (uint32_t)(seed >> 32), words[4][LANES];
  for (int i = 0; i < LANES; ++i) {
    c0[i] = (uint32_t)(index + (uint64_t)i);
    c1[i] = (uint32_t)((index + (uint64_t)i) >> 32);
  }
  for (int round = 0; round < TWS_PHILOX_ROUNDS; ++round) {
    const vu high0 = multiply_high(c0, TWS_PHILOX_MULTIPLIER_0), low0 = c0 * TWS_PHILOX_MULTIPLIER_0;
    const vu high1 = multiply_high(c2, TWS_PHILOX_MULTIPLIER_1), low1 = c2 * TWS_PHILOX_MULTIPLIER_1;
    c0 = high1 ^ c1 ^ key0;
    c1 = low1;
    c2 = high0 ^ c3 ^ key1;
    c3 = low0;
    key0 += TWS_PHILOX_WEYL_0;
    key1 += TWS_PHILOX_WEYL_1;
  }
  memcpy(words[0], &c0, sizeof c0);
  memcpy(words[1], &c1, sizeof c1);
  memcpy(words[2], &c2, sizeof c2);
  memcpy(words[3], &c3, sizeof c3);
  for (int i = 0; i < LANES; ++i)
    for (int k = 0; k < 4; ++k) {
      out[TWS_ROUNDING_GROUP * i + 2 * k] = (uint16_t)words[k][i];
      out[TWS_ROUNDING_GROUP * i + 2 * k + 1] = (uint16_t)(words[k][i] >> 16);
    }
}

/* `bits` NULL: to nearest. */
VECTOR_INLINE void put_bf16(void *base, int64_t index, vf x, int n, const uint16_t *bits) {
  uint16_t *p = (uint16_t *)base + index;
  if (bits)
    v_put_half(p, v_cut_bf16(x, __builtin_convertvector(*(const vh_unaligned *)bits, vu)), n);
  else
    v_put_half(p, v_to_bf16(x), n);
}

/* `S`: the type of moments. Elements in runs whose bits are drawn together. */
VECTOR_INLINE void adamw_bf16_range(tws_dtype S, int stochastic, const tws_host_call *call,
                                    const adamw_constants *constants, host_range r) {
  const adamw_constants copy = *constants, *c = &copy; /* no store can change it */
  void *p = call->operand[0], *m = call->operand[1], *v = call->operand[2];
  const void *grad = call->operand[3];
  uint16_t bits[3][DRAWN + LANES]; /* a vector may be loaded beyond the last element */
  memset(bits, 0, sizeof bits);
  for (int64_t begin = r.begin, end; begin < r.end; begin = end) {
    const uint64_t element = (uint64_t)((int64_t)call->argument[1] + begin), into = element % DRAWN;
    end = begin + (int64_t)(DRAWN - into) < r.end ? begin + (int64_t)(DRAWN - into) : r.end;
    for (int k = 0; stochastic && k < (S == TWS_BF16 ? 3 : 1); ++k)
      draw_blocks(c->seed, tws_rounding_stream(c->number, k), (element - into) / TWS_ROUNDING_GROUP, bits[k]);
    EACH_VECTOR(i, n, begin, end, {
      vf m1 = v_get(S, m, i, n), v1 = v_get(S, v, i, n);
      const vf weight = adamw_vector(c, v_get(TWS_BF16, p, i, n), &m1, &v1, v_get(TWS_BF16, grad, i, n));
      const uint64_t at = into + (uint64_t)(i - begin);
      put_bf16(p, i, weight, n, stochastic ? bits[0] + at : NULL);
      if (S == TWS_BF16) {
        put_bf16(m, i, m1, n, stochastic ? bits[1] + at : NULL);
        put_bf16(v, i, v1, n, stochastic ? bits[2] + at : NULL);
      } else {
        v_put(S, m, i, m1, n);
        v_put(S, v, i, v1, n);
      }
    });
  }
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

static void adamw_bf16_task(void *arg, int thread, int threads) {
  const adamw_job *job = arg;
  const tws_host_call *call = job->call;
  const adamw_constants *c = &job->constants;
  host_range r = share(call->work->d[0], DRAWN, thread, threads);
  const int half_moments = (call->work->flags & TWS_HALF_MOMENTS) != 0;
  if (call->work->flags & TWS_STOCHASTIC) {
    if (half_moments)
      adamw_bf16_range(TWS_BF16, 1, call, c, r);
    else
      adamw_bf16_range(TWS_F32, 1, call, c, r);
  } else if (half_moments) {
    adamw_bf16_range(TWS_BF16, 0, call, c, r);
  } else {
    adamw_bf16_range(TWS_F32, 0, call, c, r);
  }
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
                   {.beta1 = hyper[TWS_HYPER_BETA1],
                    .beta2 = hyper[TWS_HYPER_BETA2],
                    .rest1 = hyper[TWS_HYPER_REST1],
                    .rest2 = hyper[TWS_HYPER_REST2],
                    .epsilon = (float)f[0],
                    .decay = l2 ? (float)f[1] : (float)((double)lr * f[1]),
                    .step = lr / hyper[TWS_HYPER_BIAS1],
                    .inverse_root_bias2 = 1.0F / sqrtf(hyper[TWS_HYPER_BIAS2]),
                    .clip = (float)metrics[TWS_METRIC_CLIP],
                    .l2 = l2,
                    .seed = (uint64_t)call->argument[0]}};
  memcpy(&job.constants.number, &hyper[TWS_HYPER_STEP], sizeof job.constants.number);
  run_parallel(call, tws_work_bytes(call->work), call->work->flags & TWS_HALF_WEIGHTS ? adamw_bf16_task : adamw_task,
               &job);
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
  *(double *)call->operand[1] += call->argument[0] * sum;
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
