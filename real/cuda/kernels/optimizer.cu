// The optimizer's step and what precedes it: gradient norm and clipping. Everything that a step decides is decided
// here, on the device.
#include "base/philox.h"
#include "real/cuda/kernels/common.cuh"

namespace {

struct AdamW {
  float epsilon, decay;
  int l2;
};

struct Rates {
  float beta1, beta2, rest1, rest2, clip, step, inverse_root_bias2, decay;
};

__device__ void update(const AdamW &c, const Rates &r, float g, float *p, float *m, float *v) {
  g *= r.clip;
  if (c.l2) g += r.decay * *p;
  *m = r.beta1 * *m + r.rest1 * g;
  *v = r.beta2 * *v + r.rest2 * (g * g);
  float change = r.step * *m / (sqrtf(*v) * r.inverse_root_bias2 + c.epsilon);
  if (!c.l2) change += r.decay * *p;
  *p -= change;
}

__device__ Rates rates_of(const AdamW &c, const float *hyper, const double *metrics) {
  Rates r;
  r.beta1 = hyper[TWS_HYPER_BETA1], r.rest1 = hyper[TWS_HYPER_REST1];
  r.beta2 = hyper[TWS_HYPER_BETA2], r.rest2 = hyper[TWS_HYPER_REST2];
  r.clip = (float)metrics[TWS_METRIC_CLIP];
  r.step = hyper[TWS_HYPER_LR] / hyper[TWS_HYPER_BIAS1];
  r.inverse_root_bias2 = 1.0F / sqrtf(hyper[TWS_HYPER_BIAS2]);
  r.decay = c.l2 ? c.decay : hyper[TWS_HYPER_LR] * c.decay;
  return r;
}

// AdamW (Loshchilov and Hutter, "Decoupled weight decay regularization", ICLR 2019). A clip coefficient of 0 says that
// the gradients are not finite: nothing may change.
template <typename G, typename P>
__global__ void adamw(float *p, float *m, float *v, const G *grad, const float *hyper, const double *metrics, P *p16,
                      AdamW c, int64_t packs, int64_t count) {
  constexpr int N = 4;
  if (metrics[TWS_METRIC_CLIP] == 0) return;
  const Rates r = rates_of(c, hyper, metrics);
  const int64_t first = (int64_t)blockIdx.x * blockDim.x + threadIdx.x, stride = (int64_t)gridDim.x * blockDim.x;
  for (int64_t i = first; i < packs; i += stride) {
    float w[N], m1[N], v1[N], g[N];
    load<N>(p + i * N, w);
    load<N>(m + i * N, m1);
    load<N>(v + i * N, v1);
    load<N>(grad + i * N, g);
#pragma unroll
    for (int j = 0; j < N; ++j) update(c, r, g[j], &w[j], &m1[j], &v1[j]);
    store<N>(p + i * N, w);
    store<N>(m + i * N, m1);
    store<N>(v + i * N, v1);
    if (p16) store<N>(p16 + i * N, w);
  }
  for (int64_t i = packs * N + first; i < count; i += stride) {
    update(c, r, to_float(grad[i]), p + i, m + i, v + i);
    if (p16) p16[i] = from_float<P>(p[i]);
  }
}

AdamW constants_of(const tws_work *work) {
  const double *f = work->f;
  return {(float)f[0], (float)f[1], (work->flags & TWS_L2) != 0};
}

template <typename G, typename P>
tws_code run_adamw(const tws_cuda_call *call, tws_error *err) {
  constexpr int N = 4;
  const int64_t count = call->work->d[0];
  const AdamW c = constants_of(call->work);
  float *p = out<float>(call, 0), *m = out<float>(call, 1), *v = out<float>(call, 2);
  const G *grad = in<G>(call, 3);
  P *p16 = call->count > 6 ? out<P>(call, 6) : nullptr;
  if (count == 0) return TWS_OK;
  const bool aligned =
      packable<N>(p, 0) && packable<N>(m, 0) && packable<N>(v, 0) && packable<N>(grad, 0) && packable<N>(p16, 0);
  const int64_t packs = aligned ? count / N : 0;
  LAUNCH(adamw, grid_for(call, packs ? packs : count, BLOCK), BLOCK, 0, call, p, m, v, grad, in<float>(call, 4),
         in<double>(call, 5), p16, c, packs, count);
  return launched(err);
}

// ---- bfloat16 weights without a float32 copy ----

struct Draw {
  uint64_t seed;
  int64_t first;  // number of the first element
};

// Cut to what bfloat16 holds, after the j-th half-word of a block was added to what is cut off. NaN stays as it is.
__device__ float cut(float x, const uint32_t (&block)[4], int j) {
  const uint32_t half = j % 2 ? block[j / 2] >> 16 : block[j / 2] & 0xffffU;
  return isnan(x) ? x : bits_of<float>((bits_of<uint32_t>(x) + half) & 0xffff0000U);
}

// A thread takes the elements of one block of random bits after the other; the first and the last of these may reach
// beyond the operands.
template <bool STOCHASTIC, typename S>
__global__ void adamw_bf16(bf16 *p, S *m, S *v, const bf16 *grad, const float *hyper, const double *metrics, AdamW c,
                           Draw draw, int64_t groups, int64_t count, bool packed) {
  constexpr int N = TWS_ROUNDING_GROUP, DRAWS = sizeof(S) == 2 ? 3 : 1;
  if (metrics[TWS_METRIC_CLIP] == 0) return;
  const Rates r = rates_of(c, hyper, metrics);
  const uint32_t step = bits_of<uint32_t>(hyper[TWS_HYPER_STEP]);
  const int64_t first = (int64_t)blockIdx.x * blockDim.x + threadIdx.x, stride = (int64_t)gridDim.x * blockDim.x;
  for (int64_t i = first; i < groups; i += stride) {
    const int64_t group = draw.first / N + i, at = group * N - draw.first;
    const bool whole = packed && at >= 0 && at + N <= count;
    float w[N] = {}, g[N] = {}, m1[N] = {}, v1[N] = {};
    if (whole) {
      load<N>(p + at, w);
      load<N>(grad + at, g);
      load<N>(m + at, m1);
      load<N>(v + at, v1);
    } else {
#pragma unroll
      for (int j = 0; j < N; ++j) {
        if (at + j < 0 || at + j >= count) continue;
        w[j] = to_float(p[at + j]), g[j] = to_float(grad[at + j]);
        m1[j] = to_float(m[at + j]), v1[j] = to_float(v[at + j]);
      }
    }
#pragma unroll
    for (int j = 0; j < N; ++j) update(c, r, g[j], &w[j], &m1[j], &v1[j]);
    if (STOCHASTIC) {
      uint32_t bits[3][4] = {};
#pragma unroll
      for (int k = 0; k < DRAWS; ++k)
        tws_philox_block(draw.seed, tws_rounding_stream(step, k), (uint64_t)group, bits[k]);
#pragma unroll
      for (int j = 0; j < N; ++j) {
        w[j] = cut(w[j], bits[0], j);
        if (DRAWS > 1) m1[j] = cut(m1[j], bits[1], j), v1[j] = cut(v1[j], bits[2], j);
      }
    }
    if (whole) {  // rounding to nearest changes nothing that was cut
      store<N>(p + at, w);
      store<N>(m + at, m1);
      store<N>(v + at, v1);
    } else {
#pragma unroll
      for (int j = 0; j < N; ++j) {
        if (at + j < 0 || at + j >= count) continue;
        p[at + j] = from_float<bf16>(w[j]);
        m[at + j] = from_float<S>(m1[j]), v[at + j] = from_float<S>(v1[j]);
      }
    }
  }
}

template <typename S>
tws_code run_adamw_bf16(const tws_cuda_call *call, tws_error *err) {
  constexpr int N = TWS_ROUNDING_GROUP;
  const AdamW c = constants_of(call->work);
  const int64_t count = call->work->d[0];
  const Draw draw = {(uint64_t)call->argument[0], (int64_t)call->argument[1]};
  bf16 *p = out<bf16>(call, 0);
  S *m = out<S>(call, 1), *v = out<S>(call, 2);
  const bf16 *grad = in<bf16>(call, 3);
  if (count == 0) return TWS_OK;
  const int64_t lead = (N - draw.first % N) % N;  // where the first whole group begins
  const bool packed =
      packable<N>(p + lead, 0) && packable<N>(m + lead, 0) && packable<N>(v + lead, 0) && packable<N>(grad + lead, 0);
  const int64_t groups = ceil_div(draw.first + count, N) - draw.first / N;
  const unsigned grid = grid_for(call, groups, BLOCK);
  if (call->work->flags & TWS_STOCHASTIC)
    LAUNCH((adamw_bf16<true, S>), grid, BLOCK, 0, call, p, m, v, grad, in<float>(call, 4), in<double>(call, 5), c, draw,
           groups, count, packed);
  else
    LAUNCH((adamw_bf16<false, S>), grid, BLOCK, 0, call, p, m, v, grad, in<float>(call, 4), in<double>(call, 5), c,
           draw, groups, count, packed);
  return launched(err);
}

// ---- sum of squares, in two stages ----

enum { DEEP = 4 };  // packs that a thread has under way at once

template <typename T>
__global__ void square_parts(const T *x, int64_t packs, int64_t count, double *parts) {
  constexpr int N = Width<T>::value;
  __shared__ double scratch[BLOCK / WARP];
  const int64_t first = (int64_t)blockIdx.x * blockDim.x + threadIdx.x, stride = (int64_t)gridDim.x * blockDim.x;
  double sum = 0;
  for (int64_t i = first; i < packs; i += DEEP * stride) {
    Pack<T, N> v[DEEP];
#pragma unroll
    for (int k = 0; k < DEEP; ++k)
      if (i + k * stride < packs) v[k] = reinterpret_cast<const Pack<T, N> *>(x)[i + k * stride];
#pragma unroll
    for (int k = 0; k < DEEP; ++k) {
      if (i + k * stride >= packs) break;
#pragma unroll
      for (int j = 0; j < N; ++j) sum += (double)at(v[k], j) * (double)at(v[k], j);
    }
  }
  for (int64_t i = packs * N + first; i < count; i += stride) sum += (double)to_float(x[i]) * (double)to_float(x[i]);
  sum = block_sum(sum, scratch);
  if (threadIdx.x == 0) parts[blockIdx.x] = sum;
}

__global__ void square_finish(const double *parts, int count, double weight, double *to) {
  __shared__ double scratch[BLOCK / WARP];
  double sum = 0;
  for (int i = (int)threadIdx.x; i < count; i += (int)blockDim.x) sum += parts[i];
  sum = block_sum(sum, scratch);
  if (threadIdx.x == 0) *to += weight * sum;
}

template <typename T>
tws_code run_squares(const tws_cuda_call *call, tws_error *err) {
  constexpr int N = Width<T>::value;
  const T *x = in<T>(call, 0);
  double *parts = static_cast<double *>(call->scratch);
  const int64_t count = call->work->d[0], packs = packable<N>(x, 0) ? count / N : 0;
  if (count == 0) return TWS_OK;
  const unsigned blocks = grid_for(call, packs ? packs : count, BLOCK);
  LAUNCH(square_parts, blocks, BLOCK, 0, call, x, packs, count, parts);
  TWS_TRY(launched(err));
  LAUNCH(square_finish, 1, BLOCK, 0, call, parts, (int)blocks, call->argument[0], out<double>(call, 1));
  return launched(err);
}

// The coefficient of torch.nn.utils.clip_grad_norm_, over the share of tokens that count, and for gradients that the
// loss scale multiplied; 0 tells ADAMW that the gradients are not finite, or that there are none.
__global__ void clip(double *metrics, const float *hyper, double max_norm) {
  const double kept = 1.0 - metrics[TWS_METRIC_IGNORED], scale = hyper ? (double)hyper[TWS_HYPER_SCALE] : 1.0;
  if (hyper)
    metrics[TWS_METRIC_OVERFLOW] = !isfinite(metrics[TWS_METRIC_SQUARES]) || !isfinite(metrics[TWS_METRIC_LOSS]);
  if (kept < 1e-9) {  // what rounding leaves where nothing counts
    metrics[TWS_METRIC_LOSS] = metrics[TWS_METRIC_NORM] = metrics[TWS_METRIC_CLIP] = 0.0;
    return;
  }
  const double norm = sqrt(metrics[TWS_METRIC_SQUARES]) / (kept * scale);
  double coefficient = max_norm > 0 ? max_norm / (norm + 1e-6) : 1.0;
  if (coefficient > 1.0) coefficient = 1.0;
  metrics[TWS_METRIC_LOSS] /= kept;
  metrics[TWS_METRIC_NORM] = norm;
  metrics[TWS_METRIC_CLIP] = isfinite(norm) && metrics[TWS_METRIC_OVERFLOW] == 0 ? coefficient / (kept * scale) : 0.0;
}

}  // namespace

tws_code tws_cuda_adamw(const tws_cuda_call *call, tws_error *err) {
  if (call->work->flags & TWS_HALF_MOMENTS) return run_adamw_bf16<bf16>(call, err);
  if (call->work->flags & TWS_HALF_WEIGHTS) return run_adamw_bf16<float>(call, err);
  if (call->count > 6 && call->dtype[6] == TWS_F16)
    FOR_TYPE(call->dtype[3], G, return run_adamw<G, f16>(call, err));
  else
    FOR_TYPE(call->dtype[3], G, return run_adamw<G, bf16>(call, err));
}
tws_code tws_cuda_squared_norm(const tws_cuda_call *call, tws_error *err) {
  FOR_TYPE(call->dtype[0], T, return run_squares<T>(call, err));
}
tws_code tws_cuda_clip(const tws_cuda_call *call, tws_error *err) {
  const float *hyper = call->work->flags & TWS_SCALED ? in<float>(call, 1) : nullptr;
  LAUNCH(clip, 1, 1, 0, call, out<double>(call, 0), hyper, call->work->f[0]);
  return launched(err);
}
