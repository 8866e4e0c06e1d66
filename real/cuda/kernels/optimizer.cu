// The optimizer step and what precedes it: gradient norm and clipping. Every decision of a step is taken here, on the
// device.
#include "base/philox.h"
#include "real/cuda/kernels/common.cuh"

extern "C" {
#include "models/operator.h"
}

namespace {

// Constants of an update: this step's rates, and the parameters of its work by name.
struct Parameters {
  float epsilon, decay, min_coeff, max_coeff, momentum, dampening;
  int l2, nesterov;
};

struct Rates {
  float lr, beta1, beta2, rest1, rest2, clip, step, inverse_root_bias2, weight_decay, decay, epsilon;
  float scale;            // factor of the change (LAMB): the step size times the limited ratio of the norms of the
                          // parameter and its change
  float momentum, fresh;  // fresh: factor of the gradient in the sum of gradients (SGD)
  int l2, nesterov;
};

// ---- the rules of config/optimizers.def: each replaces the weight and the states of one element; g is the clipped
// gradient ----

template <tws_kernel KERNEL>
__device__ void update_rule(const Rates &r, float g, float *p, float *state);

template <>
__device__ void update_rule<TWS_KERNEL_ADAMW>(const Rates &r, float g, float *p, float *state) {
  if (r.l2) g += r.decay * *p;
  state[0] = r.beta1 * state[0] + r.rest1 * g;
  state[1] = r.beta2 * state[1] + r.rest2 * (g * g);
  float change = r.step * state[0] / (sqrtf(state[1]) * r.inverse_root_bias2 + r.epsilon);
  if (!r.l2) change += r.decay * *p;
  *p -= change;
}

template <>
__device__ void update_rule<TWS_KERNEL_LION>(const Rates &r, float g, float *p, float *state) {
  const float mixed = r.beta1 * state[0] + r.rest1 * g;
  const float sign = mixed > 0 ? 1 : mixed < 0 ? -1 : mixed;  // 0 and NaN stay
  state[0] = r.beta2 * state[0] + r.rest2 * g;
  *p -= r.lr * sign + r.decay * *p;
}

template <>
__device__ void update_rule<TWS_KERNEL_ADAGRAD>(const Rates &r, float g, float *p, float *state) {
  g += r.weight_decay * *p;
  state[0] += g * g;
  *p -= r.lr * g / (sqrtf(state[0]) + r.epsilon);
}

template <>
__device__ void update_rule<TWS_KERNEL_SGD>(const Rates &r, float g, float *p, float *state) {
  g += r.weight_decay * *p;
  state[0] = r.momentum * state[0] + r.fresh * g;
  *p -= r.lr * (r.nesterov ? g + r.momentum * state[0] : state[0]);
}

template <>
__device__ void update_rule<TWS_KERNEL_MUON>(const Rates &r, float g, float *p, float *) {
  *p -= r.lr * g + r.decay * *p;
}

// For an update rule that needs norms of the parameter: returns the change of the weight before scaling.
template <tws_kernel KERNEL>
__device__ float tensor_change(const Rates &r, float g, float p, float *state);

template <>
__device__ float tensor_change<TWS_KERNEL_LAMB>(const Rates &r, float g, float p, float *state) {
  state[0] = r.beta1 * state[0] + r.rest1 * g;
  state[1] = r.beta2 * state[1] + r.rest2 * (g * g);
  return state[0] / (sqrtf(state[1]) + r.epsilon) + r.weight_decay * p;
}

// ---- generated from config/optimizers.def: the number of states of a rule, and whether it needs norms ----

#define UPDATE_RULE(...)
#define TENSOR_UPDATE_RULE(id, ...)                                                                    \
  template <>                                                                                          \
  __device__ void update_rule<TWS_KERNEL_##id>(const Rates &r, float g, float *p, float *state) {      \
    *p -= r.scale * tensor_change<TWS_KERNEL_##id>(r, g, *p, state);                                   \
  }
#include "config/optimizers.def"

template <tws_kernel KERNEL>
struct States;
#define STATE(...) +1
#define STATES(...) __VA_ARGS__
#define UPDATE_RULE(id, name, summary, n, parameters, flops, states) \
  template <>                                                        \
  struct States<TWS_KERNEL_##id> {                                   \
    enum { count = 0 states, norms = 0 };                            \
  };
#define TENSOR_UPDATE_RULE(id, name, summary, n, parameters, flops, states) \
  template <>                                                               \
  struct States<TWS_KERNEL_##id> {                                          \
    enum { count = 0 states, norms = 1 };                                   \
  };
#include "config/optimizers.def"

template <int COUNT, typename T>
struct Pointers {
  T *at[COUNT];
};

__device__ Rates rates_of(const Parameters &c, const float *hyper, const double *metrics, const double *norms) {
  Rates r;
  r.lr = hyper[TWS_HYPER_LR];
  r.beta1 = hyper[TWS_HYPER_BETA1], r.rest1 = hyper[TWS_HYPER_REST1];
  r.beta2 = hyper[TWS_HYPER_BETA2], r.rest2 = hyper[TWS_HYPER_REST2];
  r.clip = (float)metrics[TWS_METRIC_CLIP];
  r.step = hyper[TWS_HYPER_LR] / hyper[TWS_HYPER_BIAS1];
  r.inverse_root_bias2 = 1.0F / sqrtf(hyper[TWS_HYPER_BIAS2]);
  r.decay = c.l2 ? c.decay : hyper[TWS_HYPER_LR] * c.decay;
  r.weight_decay = c.decay;
  r.epsilon = c.epsilon;
  r.l2 = c.l2;
  r.momentum = c.momentum;
  r.fresh = c.momentum != 0 && hyper[TWS_HYPER_STEP] != 1 ? 1 - c.dampening : 1;  // the sum begins undamped
  r.nesterov = c.nesterov;
  r.scale = r.step / r.inverse_root_bias2;
  if (norms && norms[0] > 0 && norms[1] > 0)
    r.scale *= fminf(fmaxf((float)sqrt(norms[0] / norms[1]), c.min_coeff), c.max_coeff);
  return r;
}

// Updates element j of the elements that a thread holds: its weight p and its states.
template <tws_kernel KERNEL, int N>
__device__ void update_one(const Rates &r, float g, float *p, float (&state)[States<KERNEL>::count][N], int j) {
  constexpr int S = States<KERNEL>::count;
  float one[S];
#pragma unroll
  for (int k = 0; k < S; ++k) one[k] = state[k][j];
  update_rule<KERNEL>(r, KERNEL == TWS_KERNEL_MUON ? g : g * r.clip, p, one);
#pragma unroll
  for (int k = 0; k < S; ++k) state[k][j] = one[k];
}

// Updates float32 weights and states. A clip coefficient of 0 means that the gradients are not finite: weights and
// states stay unchanged.
template <tws_kernel KERNEL, typename G, typename P>
__global__ void update(float *p, Pointers<States<KERNEL>::count, float> states, const G *grad, const float *hyper,
                       const double *metrics, const double *norms, P *p16, Parameters c, int64_t packs, int64_t count) {
  constexpr int N = 4, S = States<KERNEL>::count;
  if (metrics[TWS_METRIC_CLIP] == 0) return;
  const Rates r = rates_of(c, hyper, metrics, norms);
  const int64_t first = (int64_t)blockIdx.x * blockDim.x + threadIdx.x, stride = (int64_t)gridDim.x * blockDim.x;
  for (int64_t i = first; i < packs; i += stride) {
    float w[N], state[S][N], g[N];
    load<N>(p + i * N, w);
#pragma unroll
    for (int k = 0; k < S; ++k) load<N>(states.at[k] + i * N, state[k]);
    load<N>(grad + i * N, g);
#pragma unroll
    for (int j = 0; j < N; ++j) update_one<KERNEL>(r, g[j], &w[j], state, j);
    store<N>(p + i * N, w);
#pragma unroll
    for (int k = 0; k < S; ++k) store<N>(states.at[k] + i * N, state[k]);
    if (p16) store<N>(p16 + i * N, w);
  }
  for (int64_t i = packs * N + first; i < count; i += stride) {
    float state[S][1];
#pragma unroll
    for (int k = 0; k < S; ++k) state[k][0] = states.at[k][i];
    update_one<KERNEL>(r, to_float(grad[i]), p + i, state, 0);
#pragma unroll
    for (int k = 0; k < S; ++k) states.at[k][i] = state[k][0];
    if (p16) p16[i] = from_float<P>(p[i]);
  }
}

Parameters parameters_of(const tws_work *work) {
  return {(float)tws_work_parameter(work, "epsilon"), (float)tws_work_parameter(work, "weight_decay"),
          (float)tws_work_parameter(work, "min_coeff"), (float)tws_work_parameter(work, "max_coeff"),
          (float)tws_work_parameter(work, "momentum"), (float)tws_work_parameter(work, "dampening"),
          (work->flags & TWS_L2) != 0, tws_work_parameter(work, "nesterov") != 0};
}

template <tws_kernel KERNEL, typename S>
Pointers<States<KERNEL>::count, S> states_of(const tws_cuda_call *call) {
  Pointers<States<KERNEL>::count, S> states;
  for (int k = 0; k < States<KERNEL>::count; ++k) states.at[k] = out<S>(call, k + 1);
  return states;
}

template <tws_kernel KERNEL, typename G, typename P>
tws_code run_update(const tws_cuda_call *call, tws_error *err) {
  constexpr int N = 4, S = States<KERNEL>::count;
  const int64_t count = call->work->d[0];
  const Parameters c = parameters_of(call->work);
  float *p = out<float>(call, 0);
  const auto states = states_of<KERNEL, float>(call);
  const G *grad = in<G>(call, S + 1);
  constexpr int COPY = S + 4 + States<KERNEL>::norms;
  const double *norms = States<KERNEL>::norms ? in<double>(call, S + 4) : nullptr;
  P *p16 = call->count > COPY ? out<P>(call, COPY) : nullptr;
  if (count == 0) return TWS_OK;
  bool aligned = packable<N>(p, 0) && packable<N>(grad, 0) && packable<N>(p16, 0);
  for (int k = 0; k < S; ++k) aligned = aligned && packable<N>(states.at[k], 0);
  const int64_t packs = aligned ? count / N : 0;
  LAUNCH((update<KERNEL, G, P>), grid_for(call, packs ? packs : count, BLOCK), BLOCK, 0, call, p, states, grad,
         in<float>(call, S + 2), in<double>(call, S + 3), norms, p16, c, packs, count);
  return launched(err);
}

// ---- update of float32 weights in two halves: tws_join_halves() and tws_low_half() of base/dtype.h ----

// Joins a bfloat16 number, as a float, and lower bits, which are the upper 16 bits of the float `low`.
__device__ float join_halves(float upper, float low) {
  return bits_of<float>(bits_of<uint32_t>(upper) + (uint32_t)((int32_t)bits_of<uint32_t>(low) >> 16));
}

// Returns the bits of p or, where their lower half has no code, of the next number towards 0.
__device__ uint32_t with_low_half(float p) {
  const uint32_t bits = bits_of<uint32_t>(p);
  return bits - ((bits & 0x1ffffU) == 0x8000U ? 1U : 0U);
}

template <tws_kernel KERNEL, typename G>
__global__ void update_split(bf16 *low, Pointers<States<KERNEL>::count, float> states, const G *grad,
                             const float *hyper, const double *metrics, bf16 *upper, Parameters c, int64_t packs,
                             int64_t count) {
  constexpr int N = 4, S = States<KERNEL>::count;
  if (metrics[TWS_METRIC_CLIP] == 0) return;
  const Rates r = rates_of(c, hyper, metrics, nullptr);
  const int64_t first = (int64_t)blockIdx.x * blockDim.x + threadIdx.x, stride = (int64_t)gridDim.x * blockDim.x;
  for (int64_t i = first; i < packs; i += stride) {
    float w[N], lower[N], state[S][N], g[N];
    load<N>(upper + i * N, w);
    load<N>(low + i * N, lower);
#pragma unroll
    for (int k = 0; k < S; ++k) load<N>(states.at[k] + i * N, state[k]);
    load<N>(grad + i * N, g);
    Pack<bf16, N> halves;
#pragma unroll
    for (int j = 0; j < N; ++j) {
      w[j] = join_halves(w[j], lower[j]);
      update_one<KERNEL>(r, g[j], &w[j], state, j);
      const uint32_t half = with_low_half(w[j]) & 0xffffU;
      halves.w[j / 2] = j % 2 ? halves.w[j / 2] | half << 16 : half;
    }
    store<N>(upper + i * N, w);
    *reinterpret_cast<Pack<bf16, N> *>(low + i * N) = halves;
#pragma unroll
    for (int k = 0; k < S; ++k) store<N>(states.at[k] + i * N, state[k]);
  }
  for (int64_t i = packs * N + first; i < count; i += stride) {
    float state[S][1], p = join_halves(to_float(upper[i]), bits_of<float>((uint32_t)bits_of<uint16_t>(low[i]) << 16));
#pragma unroll
    for (int k = 0; k < S; ++k) state[k][0] = states.at[k][i];
    update_one<KERNEL>(r, to_float(grad[i]), &p, state, 0);
#pragma unroll
    for (int k = 0; k < S; ++k) states.at[k][i] = state[k][0];
    upper[i] = from_float<bf16>(p);
    low[i] = bits_of<bf16>((uint16_t)(with_low_half(p) & 0xffffU));
  }
}

template <tws_kernel KERNEL, typename G>
tws_code run_update_split(const tws_cuda_call *call, tws_error *err) {
  constexpr int N = 4, S = States<KERNEL>::count;
  const int64_t count = call->work->d[0];
  bf16 *low = out<bf16>(call, 0), *upper = out<bf16>(call, S + 4);
  const auto states = states_of<KERNEL, float>(call);
  const G *grad = in<G>(call, S + 1);
  if (count == 0) return TWS_OK;
  bool aligned = packable<N>(low, 0) && packable<N>(upper, 0) && packable<N>(grad, 0);
  for (int k = 0; k < S; ++k) aligned = aligned && packable<N>(states.at[k], 0);
  const int64_t packs = aligned ? count / N : 0;
  LAUNCH((update_split<KERNEL, G>), grid_for(call, packs ? packs : count, BLOCK), BLOCK, 0, call, low, states, grad,
         in<float>(call, S + 2), in<double>(call, S + 3), upper, parameters_of(call->work), packs, count);
  return launched(err);
}

// ---- update of bfloat16 weights that have no float32 copy ----

struct Draw {
  uint64_t seed;
  int64_t first;  // number of the first element
};

// Rounds to bfloat16 stochastically: adds the j-th random 16-bit word of `block` to the lower 16 bits of x, and then
// truncates them. NaN stays unchanged.
__device__ float cut(float x, const uint32_t (&block)[4], int j) {
  const uint32_t half = j % 2 ? block[j / 2] >> 16 : block[j / 2] & 0xffffU;
  return isnan(x) ? x : bits_of<float>((bits_of<uint32_t>(x) + half) & 0xffff0000U);
}

// Updates bfloat16 weights without a float32 copy. A thread processes, one after another, the groups of elements that
// share a block of random bits; the first and the last group may extend beyond the operands.
template <tws_kernel KERNEL, bool STOCHASTIC, typename T>
__global__ void update_bf16(bf16 *p, Pointers<States<KERNEL>::count, T> states, const bf16 *grad, const float *hyper,
                            const double *metrics, const double *norms, Parameters c, Draw draw, int64_t groups,
                            int64_t count, bool packed) {
  constexpr int N = TWS_ROUNDING_GROUP, S = States<KERNEL>::count, DRAWS = sizeof(T) == 2 ? 1 + S : 1;
  if (metrics[TWS_METRIC_CLIP] == 0) return;
  const Rates r = rates_of(c, hyper, metrics, norms);
  const uint32_t step = bits_of<uint32_t>(hyper[TWS_HYPER_STEP]);
  const int64_t first = (int64_t)blockIdx.x * blockDim.x + threadIdx.x, stride = (int64_t)gridDim.x * blockDim.x;
  for (int64_t i = first; i < groups; i += stride) {
    const int64_t group = draw.first / N + i, at = group * N - draw.first;
    const bool whole = packed && at >= 0 && at + N <= count;
    float w[N] = {}, g[N] = {}, state[S][N] = {};
    if (whole) {
      load<N>(p + at, w);
      load<N>(grad + at, g);
#pragma unroll
      for (int k = 0; k < S; ++k) load<N>(states.at[k] + at, state[k]);
    } else {
#pragma unroll
      for (int j = 0; j < N; ++j) {
        if (at + j < 0 || at + j >= count) continue;
        w[j] = to_float(p[at + j]), g[j] = to_float(grad[at + j]);
#pragma unroll
        for (int k = 0; k < S; ++k) state[k][j] = to_float(states.at[k][at + j]);
      }
    }
#pragma unroll
    for (int j = 0; j < N; ++j) update_one<KERNEL>(r, g[j], &w[j], state, j);
    if (STOCHASTIC) {
      uint32_t bits[1 + S][4] = {};
#pragma unroll
      for (int k = 0; k < DRAWS; ++k)
        tws_philox_block(draw.seed, tws_rounding_stream(step, k), (uint64_t)group, bits[k]);
#pragma unroll
      for (int j = 0; j < N; ++j) {
        w[j] = cut(w[j], bits[0], j);
#pragma unroll
        for (int k = 1; k < DRAWS; ++k) state[k - 1][j] = cut(state[k - 1][j], bits[k], j);
      }
    }
    if (whole) {  // the values are truncated to bfloat16 already, so rounding to nearest keeps them
      store<N>(p + at, w);
#pragma unroll
      for (int k = 0; k < S; ++k) store<N>(states.at[k] + at, state[k]);
    } else {
#pragma unroll
      for (int j = 0; j < N; ++j) {
        if (at + j < 0 || at + j >= count) continue;
        p[at + j] = from_float<bf16>(w[j]);
#pragma unroll
        for (int k = 0; k < S; ++k) states.at[k][at + j] = from_float<T>(state[k][j]);
      }
    }
  }
}

template <tws_kernel KERNEL, typename T>
tws_code run_update_bf16(const tws_cuda_call *call, tws_error *err) {
  constexpr int N = TWS_ROUNDING_GROUP, S = States<KERNEL>::count;
  const Parameters c = parameters_of(call->work);
  const int64_t count = call->work->d[0];
  const Draw draw = {(uint64_t)call->argument[0], (int64_t)call->argument[1]};
  bf16 *p = out<bf16>(call, 0);
  const auto states = states_of<KERNEL, T>(call);
  const bf16 *grad = in<bf16>(call, S + 1);
  const float *hyper = in<float>(call, S + 2);
  const double *metrics = in<double>(call, S + 3);
  const double *norms = States<KERNEL>::norms ? in<double>(call, S + 4) : nullptr;
  if (count == 0) return TWS_OK;
  const int64_t lead = (N - draw.first % N) % N;  // index of the first element of the first whole group
  bool packed = packable<N>(p + lead, 0) && packable<N>(grad + lead, 0);
  for (int k = 0; k < S; ++k) packed = packed && packable<N>(states.at[k] + lead, 0);
  const int64_t groups = ceil_div(draw.first + count, N) - draw.first / N;
  const unsigned grid = grid_for(call, groups, BLOCK);
  if (call->work->flags & TWS_STOCHASTIC)
    LAUNCH((update_bf16<KERNEL, true, T>), grid, BLOCK, 0, call, p, states, grad, hyper, metrics, norms, c, draw,
           groups, count, packed);
  else
    LAUNCH((update_bf16<KERNEL, false, T>), grid, BLOCK, 0, call, p, states, grad, hyper, metrics, norms, c, draw,
           groups, count, packed);
  return launched(err);
}

// ---- update of float16 weights that have no float32 copy ----

template <tws_kernel KERNEL>
__global__ void update_f16(f16 *p, Pointers<States<KERNEL>::count, float> states, const f16 *grad, const float *hyper,
                           const double *metrics, const double *norms, Parameters c, int64_t count) {
  constexpr int S = States<KERNEL>::count;
  if (metrics[TWS_METRIC_CLIP] == 0) return;
  const Rates r = rates_of(c, hyper, metrics, norms);
  EACH_ITEM(i, count) {
    float weight = to_float(p[i]), state[S][1];
#pragma unroll
    for (int k = 0; k < S; ++k) state[k][0] = states.at[k][i];
    update_one<KERNEL>(r, to_float(grad[i]), &weight, state, 0);
#pragma unroll
    for (int k = 0; k < S; ++k) states.at[k][i] = state[k][0];
    p[i] = from_float<f16>(weight);
  }
}

template <tws_kernel KERNEL>
tws_code run_update_f16(const tws_cuda_call *call, tws_error *err) {
  constexpr int S = States<KERNEL>::count;
  const int64_t count = call->work->d[0];
  const double *norms = States<KERNEL>::norms ? in<double>(call, S + 4) : nullptr;
  LAUNCH((update_f16<KERNEL>), grid_for(call, count, BLOCK), BLOCK, 0, call, out<f16>(call, 0),
         (states_of<KERNEL, float>(call)), in<f16>(call, S + 1), in<float>(call, S + 2), in<double>(call, S + 3), norms,
         parameters_of(call->work), count);
  return launched(err);
}

template <tws_kernel KERNEL>
tws_code start_update(const tws_cuda_call *call, tws_error *err) {
  if (call->work->flags & TWS_HALF_WEIGHTS && call->work->dtype == TWS_F16) return run_update_f16<KERNEL>(call, err);
  if (call->work->flags & TWS_HALF_MOMENTS) return run_update_bf16<KERNEL, bf16>(call, err);
  if (call->work->flags & TWS_HALF_WEIGHTS) return run_update_bf16<KERNEL, float>(call, err);
  constexpr int S = States<KERNEL>::count, COPY = S + 4 + States<KERNEL>::norms;
  if constexpr (!States<KERNEL>::norms) {
    if (call->work->flags & TWS_SPLIT_WEIGHTS)
      FOR_TYPE(call->dtype[S + 1], G, return run_update_split<KERNEL, G>(call, err));
  }
  if (call->count > COPY && call->dtype[COPY] == TWS_F16)
    FOR_TYPE(call->dtype[S + 1], G, return run_update<KERNEL, G, f16>(call, err));
  else
    FOR_TYPE(call->dtype[S + 1], G, return run_update<KERNEL, G, bf16>(call, err));
}

// ---- sum of squares, in two stages ----

enum { DEEP = 4 };  // packs that a thread has in flight

template <typename T>
__global__ void square_parts(const T *x, int64_t packs, int64_t count, double *parts) {
  constexpr int N = Width<T>::value;
  __shared__ double scratch[BLOCK / WARP];
  const int64_t first = (int64_t)blockIdx.x * blockDim.x + threadIdx.x, stride = (int64_t)gridDim.x * blockDim.x;
  double sum = 0;
  for (int64_t i = first; i < packs; i += DEEP * stride)
    at_once<DEEP>(
        i, packs, stride, [=](int64_t at_pack) { return reinterpret_cast<const Pack<T, N> *>(x)[at_pack]; },
        [&](int64_t, const Pack<T, N> &v) {
#pragma unroll
          for (int j = 0; j < N; ++j) sum += (double)at(v, j) * (double)at(v, j);
        });
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

// ---- norms of a parameter and of its change, in two stages ----

template <tws_kernel KERNEL, typename W, typename T, typename G>
__global__ void norm_parts(const W *p, Pointers<States<KERNEL>::count, T> states, const G *grad, const float *hyper,
                           const double *metrics, Parameters c, int64_t count, double *parts) {
  constexpr int S = States<KERNEL>::count;
  __shared__ double shared[BLOCK / WARP];
  if (metrics[TWS_METRIC_CLIP] == 0) return;
  const Rates r = rates_of(c, hyper, metrics, nullptr);
  const int64_t first = (int64_t)blockIdx.x * blockDim.x + threadIdx.x, stride = (int64_t)gridDim.x * blockDim.x;
  double sum[2] = {0, 0};
  for (int64_t i = first; i < count; i += stride) {
    float state[S];
#pragma unroll
    for (int k = 0; k < S; ++k) state[k] = to_float(states.at[k][i]);
    const double weight = (double)to_float(p[i]);
    const double change = (double)tensor_change<KERNEL>(r, to_float(grad[i]) * r.clip, (float)weight, state);
    sum[0] += weight * weight;
    sum[1] += change * change;
  }
  for (int k = 0; k < 2; ++k) {
    const double all = block_sum(sum[k], shared);
    if (threadIdx.x == 0) parts[2 * blockIdx.x + k] = all;
  }
}

__global__ void norm_finish(const double *parts, const double *metrics, int count, double share, double *norms) {
  __shared__ double shared[BLOCK / WARP];
  const bool some = metrics[TWS_METRIC_CLIP] != 0;
  for (int k = 0; k < 2; ++k) {
    double sum = 0;
    for (int i = (int)threadIdx.x; some && i < count; i += (int)blockDim.x) sum += parts[2 * i + k];
    sum = block_sum(sum, shared);
    if (threadIdx.x == 0) norms[k] = share * sum;
  }
}

template <tws_kernel KERNEL, typename W, typename T, typename G>
tws_code run_norms(const tws_cuda_call *call, tws_error *err) {
  constexpr int S = States<KERNEL>::count;
  const int64_t count = call->work->d[0];
  const double *metrics = in<double>(call, S + 3);
  double *parts = static_cast<double *>(call->scratch);
  const unsigned blocks = grid_for(call, count > 0 ? count : 1, BLOCK);
  LAUNCH((norm_parts<KERNEL, W, T, G>), blocks, BLOCK, 0, call, in<W>(call, 0), states_of<KERNEL, T>(call),
         in<G>(call, S + 1), in<float>(call, S + 2), metrics, parameters_of(call->work), count, parts);
  TWS_TRY(launched(err));
  LAUNCH(norm_finish, 1, BLOCK, 0, call, parts, metrics, (int)blocks, call->argument[0],
         out<double>(call, S + 4));
  return launched(err);
}

template <tws_kernel KERNEL>
tws_code start_norms(const tws_cuda_call *call, tws_error *err) {
  if (call->work->flags & TWS_HALF_MOMENTS) return run_norms<KERNEL, bf16, bf16, bf16>(call, err);
  if (call->work->flags & TWS_HALF_WEIGHTS && call->work->dtype == TWS_F16)
    return run_norms<KERNEL, f16, float, f16>(call, err);
  if (call->work->flags & TWS_HALF_WEIGHTS) return run_norms<KERNEL, bf16, float, bf16>(call, err);
  FOR_TYPE(call->dtype[States<KERNEL>::count + 1], G, return run_norms<KERNEL, float, float, G>(call, err));
}

// With several losses: each becomes a mean over its counted targets, and the reported loss is their sum. Returns false
// if no target counts.
__device__ bool join_heads(double *metrics, int heads) {
  bool any = false;
  metrics[TWS_METRIC_LOSS] = 0.0;
  for (int h = 0; h < heads; ++h) {
    double *head = metrics + TWS_METRIC_HEADS + 2 * h;
    const double kept = 1.0 - head[1];
    head[0] = kept < 1e-9 ? 0.0 : head[0] / kept;
    metrics[TWS_METRIC_LOSS] += head[0];
    any |= kept >= 1e-9;
  }
  return any;
}

// Computes the coefficient of torch.nn.utils.clip_grad_norm_, for gradients that are divided by the share of tokens
// that count and by the loss scale; 0 means that the gradients are not finite, or that there are none.
__global__ void clip(double *metrics, const float *hyper, double max_norm, int heads) {
  const double kept = heads > 0 ? (double)join_heads(metrics, heads) : 1.0 - metrics[TWS_METRIC_IGNORED];
  const double scale = hyper ? (double)hyper[TWS_HYPER_SCALE] : 1.0;
  if (hyper)
    metrics[TWS_METRIC_OVERFLOW] = !isfinite(metrics[TWS_METRIC_SQUARES]) || !isfinite(metrics[TWS_METRIC_LOSS]);
  if (kept < 1e-9) {  // no target counts: the remainder comes from rounding errors
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

#define UPDATE_RULE(id, name, ...)                                        \
  tws_code tws_cuda_##name(const tws_cuda_call *call, tws_error *err) {   \
    return start_update<TWS_KERNEL_##id>(call, err);                      \
  }
#include "config/optimizers.def"

#define UPDATE_RULE(...)
#define TENSOR_UPDATE_RULE(id, name, ...)                                       \
  tws_code tws_cuda_##name##_norms(const tws_cuda_call *call, tws_error *err) { \
    return start_norms<TWS_KERNEL_##id>(call, err);                             \
  }
#include "config/optimizers.def"

tws_code tws_cuda_squared_norm(const tws_cuda_call *call, tws_error *err) {
  FOR_TYPE(call->dtype[0], T, return run_squares<T>(call, err));
}
tws_code tws_cuda_clip(const tws_cuda_call *call, tws_error *err) {
  const float *hyper = call->work->flags & TWS_SCALED ? in<float>(call, 1) : nullptr;
  LAUNCH(clip, 1, 1, 0, call, out<double>(call, 0), hyper, call->work->f[0], (int)call->work->f[1]);
  return launched(err);
}
