/* AdamW with moments of 8 bits, block by block: the moments of a block are decoded to float32 and updated together with
 * the weights; then the block's largest magnitudes are its new scales, and the moments are encoded again. */
#include "base/dynamic_map.h"
#include "models/operator.h"
#include "plan/plan.h"
#include "real/host/kernels/kernels.h"

enum { P, M, V, M_SCALES, V_SCALES, GRAD, HYPER, METRICS, COPY }; /* operands */
enum { BLOCK = TWS_DYNAMIC_BLOCK };

typedef struct adamw8_job {
  const tws_host_call *call;
  float beta1, beta2, rest1, rest2, step, inverse_root_bias2, epsilon, clip;
  float kept; /* factor by which weight decay multiplies a weight */
} adamw8_job;

typedef struct moments {
  _Alignas(64) float m[BLOCK], v[BLOCK];
} moments;

VECTOR_INLINE vf magnitude_of(vf x) {
  return (vf)((vi)x & INT32_MAX); /* without the sign, that of -0 too */
}

/* Updates the elements [first, first + count) and the moments in *x. Returns the largest magnitudes of the moments. */
VECTOR_INLINE void update_block(tws_dtype W, tws_dtype G, tws_dtype C, const adamw8_job *job, int64_t first,
                                int64_t count, moments *x, float *most_m, float *most_v) {
  const tws_host_call *call = job->call;
  void *p = call->operand[P], *copy = call->count > COPY ? call->operand[COPY] : NULL;
  const void *grad = call->operand[GRAD];
  vf largest_m = v_zero(), largest_v = v_zero();
  EACH_VECTOR(i, n, 0, count, {
    const vf g = v_get(G, grad, first + i, n) * job->clip;
    const vf m = job->beta1 * v_load(x->m + i) + job->rest1 * g;
    const vf v = job->beta2 * v_load(x->v + i) + job->rest2 * (g * g);
    const vf change = job->step * m / (v_sqrt(v) * job->inverse_root_bias2 + job->epsilon);
    const vf weight = (v_get(W, p, first + i, n) - change) * job->kept;
    v_put(W, p, first + i, weight, n);
    if (copy) v_put(C, copy, first + i, weight, n);
    v_store(x->m + i, m);
    v_store(x->v + i, v);
    largest_m = v_max(largest_m, magnitude_of(m));
    largest_v = v_max(largest_v, v);
  });
  *most_m = v_largest(largest_m);
  *most_v = v_largest(largest_v);
}

static void decode_block(const tws_dynamic_map *map, const uint8_t *codes, int64_t count, float scale, float *numbers) {
  for (int64_t i = 0; i < count; ++i) numbers[i] = map->value[codes[i]] * scale;
  for (int64_t i = count; i < BLOCK; ++i) numbers[i] = 0;
}

static void encode_block(const tws_dynamic_map *map, int is_signed, const float *numbers, int64_t count, float most,
                         uint8_t *codes) {
  const float scale = most > 0 ? most : 1;
  _Alignas(64) float ratios[BLOCK];
  for (int64_t i = 0; i < BLOCK; i += LANES) v_store(ratios + i, magnitude_of(v_load(numbers + i)) / scale);
  for (int64_t i = 0; i < count; ++i) {
    const int k = tws_dynamic_nearest(map, ratios[i]);
    codes[i] = (uint8_t)(is_signed ? tws_dynamic_signed_code(k, numbers[i] < 0) : k);
  }
}

VECTOR_INLINE void update_blocks(tws_dtype W, tws_dtype G, tws_dtype C, const adamw8_job *job, host_range blocks) {
  const tws_host_call *call = job->call;
  const tws_dynamic_map *signed_map = tws_dynamic_map_of(1), *unsigned_map = tws_dynamic_map_of(0);
  uint8_t *m_codes = call->operand[M], *v_codes = call->operand[V];
  float *m_scales = call->operand[M_SCALES], *v_scales = call->operand[V_SCALES];
  const int64_t all = call->work->d[0];
  for (int64_t b = blocks.begin; b < blocks.end; ++b) {
    const int64_t first = b * BLOCK, count = all - first < BLOCK ? all - first : BLOCK;
    moments x;
    decode_block(signed_map, m_codes + first, count, m_scales[b], x.m);
    decode_block(unsigned_map, v_codes + first, count, v_scales[b], x.v);
    update_block(W, G, C, job, first, count, &x, &m_scales[b], &v_scales[b]);
    encode_block(signed_map, 1, x.m, count, m_scales[b], m_codes + first);
    encode_block(unsigned_map, 0, x.v, count, v_scales[b], v_codes + first);
  }
}

static void adamw8_task(void *arg, int thread, int threads) {
  const adamw8_job *job = arg;
  const tws_host_call *call = job->call;
  const host_range blocks = share((call->work->d[0] + BLOCK - 1) / BLOCK, 1, thread, threads);
  const tws_dtype of_copy = call->count > COPY ? call->dtype[COPY] : TWS_F32;
  if (call->dtype[P] == TWS_BF16)
    update_blocks(TWS_BF16, TWS_BF16, TWS_F32, job, blocks);
  else if (call->dtype[P] == TWS_F16)
    update_blocks(TWS_F16, TWS_F16, TWS_F32, job, blocks);
  else
    FOR_TYPE(call->dtype[GRAD], G, FOR_TYPE(of_copy, C, update_blocks(TWS_F32, G, C, job, blocks)));
}

HOST_KERNEL(adamw8) {
  (void)err;
  const float *hyper = call->operand[HYPER];
  const double *metrics = call->operand[METRICS], lr = (double)hyper[TWS_HYPER_LR];
  if (metrics[TWS_METRIC_CLIP] == 0) return TWS_OK; /* the gradients are not finite: nothing changes */
  adamw8_job job = {.call = call,
                    .beta1 = hyper[TWS_HYPER_BETA1],
                    .beta2 = hyper[TWS_HYPER_BETA2],
                    .rest1 = hyper[TWS_HYPER_REST1],
                    .rest2 = hyper[TWS_HYPER_REST2],
                    .step = hyper[TWS_HYPER_LR] / hyper[TWS_HYPER_BIAS1],
                    .inverse_root_bias2 = 1.0F / sqrtf(hyper[TWS_HYPER_BIAS2]),
                    .epsilon = (float)call->work->f[0],
                    .clip = (float)metrics[TWS_METRIC_CLIP],
                    .kept = (float)(1 - lr * call->work->f[1])};
  run_parallel(call, tws_work_bytes(call->work), adamw8_task, &job);
  return TWS_OK;
}
