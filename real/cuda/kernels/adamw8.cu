// AdamW with moments of 8 bits: a block of threads updates blocks of elements, one element in each thread. The threads
// decode their element's moments, update it, find the largest magnitudes together, and encode the moments again.
#include "base/dynamic_map.h"
#include "real/cuda/kernels/common.cuh"

extern "C" {
#include "models/operator.h"
}

namespace {

static_assert((int)BLOCK == (int)TWS_DYNAMIC_BLOCK, "a thread for each element of a block of states");

enum { P, M, V, M_SCALES, V_SCALES, GRAD, HYPER, METRICS, COPY };  // operands

// The magnitudes of a map in ascending order, and the means of adjacent ones; what is beyond the last is infinite.
struct Map {
  float magnitude[TWS_DYNAMIC_CODES], border[TWS_DYNAMIC_CODES];
};

// All threads of a block call it together.
__device__ void make_map(Map &map, int is_signed) {
  const int most = is_signed ? TWS_DYNAMIC_SIGNED_MOST : TWS_DYNAMIC_UNSIGNED_MOST;
  for (int k = (int)threadIdx.x; k < TWS_DYNAMIC_CODES; k += (int)blockDim.x) {
    map.magnitude[k] = k <= most ? tws_dynamic_magnitude(k, is_signed) : CUDART_INF_F;
    map.border[k] = k < most ? (map.magnitude[k] + tws_dynamic_magnitude(k + 1, is_signed)) * 0.5F : CUDART_INF_F;
  }
}

// Returns the number of the magnitude that is nearest to x: the number of borders below x.
__device__ int nearest(const Map &map, float x) {
  int k = 0;
#pragma unroll
  for (int step = TWS_DYNAMIC_CODES / 2; step > 0; step /= 2)
    if (x > map.border[k + step - 1]) k += step;
  return k;
}

__device__ float signed_value(const Map &map, int code) {
  return code < TWS_DYNAMIC_ZERO ? -map.magnitude[TWS_DYNAMIC_ZERO - code] : map.magnitude[code - TWS_DYNAMIC_ZERO];
}

struct Moments {
  uint8_t *m, *v;
  float *m_scales, *v_scales;
};

template <typename W, typename G, typename C>
__global__ void update(W *p, Moments x, const G *grad, const float *hyper, const double *metrics, C *copy,
                       float epsilon, float decay, int64_t count) {
  __shared__ Map signed_map, unsigned_map;
  __shared__ float scratch[BLOCK / WARP];
  if (metrics[TWS_METRIC_CLIP] == 0) return;
  make_map(signed_map, 1);
  make_map(unsigned_map, 0);
  __syncthreads();
  const float lr = hyper[TWS_HYPER_LR], step = lr / hyper[TWS_HYPER_BIAS1], clip = (float)metrics[TWS_METRIC_CLIP];
  const float inverse_root_bias2 = 1.0F / sqrtf(hyper[TWS_HYPER_BIAS2]);
  const float kept = (float)(1.0 - (double)lr * (double)decay);
  const int64_t blocks = (count + BLOCK - 1) / BLOCK;
  for (int64_t b = blockIdx.x; b < blocks; b += gridDim.x) {
    const int64_t i = b * BLOCK + threadIdx.x;
    float m = 0, v = 0;
    if (i < count) {
      const float g = to_float(grad[i]) * clip;
      m = hyper[TWS_HYPER_BETA1] * (signed_value(signed_map, x.m[i]) * x.m_scales[b]) + hyper[TWS_HYPER_REST1] * g;
      v = hyper[TWS_HYPER_BETA2] * (unsigned_map.magnitude[x.v[i]] * x.v_scales[b]) + hyper[TWS_HYPER_REST2] * (g * g);
      const float weight = (to_float(p[i]) - step * m / (sqrtf(v) * inverse_root_bias2 + epsilon)) * kept;
      p[i] = from_float<W>(weight);
      if (copy) copy[i] = from_float<C>(weight);
    }
    const float most_m = block_max(fabsf(m), scratch), most_v = block_max(v, scratch);
    if (threadIdx.x == 0) x.m_scales[b] = most_m, x.v_scales[b] = most_v;
    if (i >= count) continue;
    const int of_m = nearest(signed_map, fabsf(m) / (most_m > 0 ? most_m : 1));
    x.m[i] = (uint8_t)tws_dynamic_signed_code(of_m, m < 0);
    x.v[i] = (uint8_t)nearest(unsigned_map, v / (most_v > 0 ? most_v : 1));
  }
}

template <typename W, typename G, typename C>
tws_code run_update(const tws_cuda_call *call, tws_error *err) {
  const int64_t count = call->work->d[0];
  if (count == 0) return TWS_OK;
  const Moments x = {out<uint8_t>(call, M), out<uint8_t>(call, V), out<float>(call, M_SCALES),
                     out<float>(call, V_SCALES)};
  C *copy = call->count > COPY ? out<C>(call, COPY) : nullptr;
  LAUNCH((update<W, G, C>), grid_for(call, count, BLOCK), BLOCK, 0, call, out<W>(call, P), x, in<G>(call, GRAD),
         in<float>(call, HYPER), in<double>(call, METRICS), copy, (float)call->work->f[0], (float)call->work->f[1],
         count);
  return launched(err);
}

template <typename G>
tws_code run_with_masters(const tws_cuda_call *call, tws_error *err) {
  const int copy = call->count > COPY;
  if (copy && call->dtype[COPY] == TWS_F16) return run_update<float, G, f16>(call, err);
  return run_update<float, G, bf16>(call, err);
}

}  // namespace

tws_code tws_cuda_adamw8(const tws_cuda_call *call, tws_error *err) {
  if (call->dtype[P] == TWS_BF16) return run_update<bf16, bf16, bf16>(call, err);
  if (call->dtype[P] == TWS_F16) return run_update<f16, f16, f16>(call, err);
  FOR_TYPE(call->dtype[GRAD], G, return run_with_masters<G>(call, err));
}
