// Element-wise kernels: activations, sums, fills, casts. Bound by memory: 16-byte accesses where the operands allow
// them.
#include "models/dropout.h"
#include "real/cuda/kernels/codes.cuh"

namespace {

// ---- activations ----

// Returns v = 2 u / ln 2 for GELU: 0.5 x (1 + tanh(u)) = x / (1 + 2^-v), which keeps its accuracy for large negative x.
__device__ float gelu_inner(float x) {
  return x * (2.302208198F + 0.1029432396F * x * x);
}
__device__ float sigmoid(float x) {
  return fast_reciprocal(1.0F + expf(-x));
}

struct Gelu {
  static constexpr bool two = false;  // 1: there is a second operand
  __device__ float operator()(float x, float) const { return x * fast_reciprocal(1.0F + fast_exp2(-gelu_inner(x))); }
};

struct GeluGrad {  // (dy, x)
  static constexpr bool two = true;
  __device__ float operator()(float dy, float x) const {
    // Beyond +-10 the derivative is 0 or 1; non-finite values become NaN.
    const float t = fmaf(x, 0.0F, fminf(fmaxf(x, -10.0F), 10.0F));
    const float e = fast_exp2(-gelu_inner(t)), s = fast_reciprocal(1.0F + e);
    const float slope = 1.5957691216057308F * (1.0F + 0.134145F * t * t);
    return dy * (s + t * (s * (e * s)) * slope);
  }
};

struct Relu {
  static constexpr bool two = false;
  __device__ float operator()(float x, float) const { return x < 0.0F ? 0.0F : x; }
};
struct ReluGrad {  // (dy, x)
  static constexpr bool two = true;
  __device__ float operator()(float dy, float x) const { return dy * (x <= 0.0F ? 0.0F : 1.0F); }
};

struct SquaredRelu {
  static constexpr bool two = false;
  __device__ float operator()(float x, float) const { return x < 0.0F ? 0.0F : x * x; }
};
struct SquaredReluGrad {  // (dy, x)
  static constexpr bool two = true;
  __device__ float operator()(float dy, float x) const { return dy * (x < 0.0F ? 0.0F : 2.0F * x); }
};

struct GeluExact {
  static constexpr bool two = false;
  __device__ float operator()(float x, float) const { return x * normcdff(x); }
};
struct GeluExactGrad {  // (dy, x)
  static constexpr bool two = true;
  __device__ float operator()(float dy, float x) const {
    const float near = fmaf(x, 0.0F, fminf(fmaxf(x, -20.0F), 20.0F));  // farther out the density is 0
    return dy * (normcdff(x) + near * expf(-0.5F * near * near) * 0.3989422804F);
  }
};

struct Sigmoid {
  static constexpr bool two = false;
  __device__ float operator()(float x, float) const { return sigmoid(x); }
};
struct SigmoidGrad {  // (dy, x)
  static constexpr bool two = true;
  __device__ float operator()(float dy, float x) const {
    const float e = expf(-fabsf(x)), s = fast_reciprocal(1.0F + e);  // the derivative of x is that of -x
    return dy * (s * (e * s));
  }
};

struct Silu {
  static constexpr bool two = false;
  __device__ float operator()(float x, float) const { return x * sigmoid(x); }
};
struct SiluGrad {  // (dy, x)
  static constexpr bool two = true;
  __device__ float operator()(float dy, float x) const {
    const float s = sigmoid(x);
    return dy * (s + x * s * (1.0F - s));
  }
};

struct LeakyRelu {
  static constexpr bool two = false;
  float slope;
  __device__ float operator()(float x, float) const { return x <= 0.0F ? slope * x : x; }
};
struct LeakyReluGrad {  // (dy, x)
  static constexpr bool two = true;
  float slope;
  __device__ float operator()(float dy, float x) const { return x <= 0.0F ? slope * dy : dy; }
};

struct Clamp {
  static constexpr bool two = false;
  float low, high;
  __device__ float operator()(float x, float) const { return x < low ? low : x > high ? high : x; }
};
struct ClampGrad {  // (dy, x)
  static constexpr bool two = true;
  float low, high;
  __device__ float operator()(float dy, float x) const { return dy * (x <= low || x >= high ? 0.0F : 1.0F); }
};

struct Softcap {
  static constexpr bool two = false;
  float cap;
  __device__ float operator()(float x, float) const { return cap * tanhf(x / cap); }
};
struct SoftcapGrad {  // (dy, x)
  static constexpr bool two = true;
  float cap;
  __device__ float operator()(float dy, float x) const {
    const float t = tanhf(x / cap);
    return dy * (1.0F - t * t);
  }
};

struct Multiply {
  static constexpr bool two = false;
  float factor;
  __device__ float operator()(float x, float) const { return x * factor; }
};

// Activation of the gate of a gated unit, and its derivative.
struct SiluGate {
  __device__ static float value(float x) { return x * sigmoid(x); }
  __device__ static float slope(float x) {
    const float s = sigmoid(x);
    return s + x * s * (1.0F - s);
  }
};
struct GeluGate {
  __device__ static float value(float x) { return Gelu()(x, 0.0F); }
  __device__ static float slope(float x) { return GeluGrad()(1.0F, x); }
};

struct Add {
  static constexpr bool two = true;
  __device__ float operator()(float x, float y) const { return x + y; }
};
struct First {
  static constexpr bool two = false;
  __device__ float operator()(float x, float) const { return x; }
};

enum { DEEP = 2 };  // number of packs of each operand that a thread has in flight

// Computes out[i] = f(a[i], b[i]); out may be a or b. If f has one operand, a is passed twice. A block processes DEEP x
// BLOCK packs.
template <typename A, typename B, typename O, typename F>
__global__ void __launch_bounds__(BLOCK) map(const A *a, const B *b, O *o, int64_t packs, int64_t count, F f) {
  constexpr int N = Width<A, B, O>::value;
  struct Both {
    Pack<A, N> x;
    Pack<B, N> y;
  };
  at_once<DEEP>((int64_t)blockIdx.x * (BLOCK * DEEP) + threadIdx.x, packs, (int64_t)BLOCK,
                [=](int64_t i) {
                  Both both = {reinterpret_cast<const Pack<A, N> *>(a)[i], {}};
                  if (F::two) both.y = reinterpret_cast<const Pack<B, N> *>(b)[i];
                  return both;
                },
                [=](int64_t i, const Both &both) {
                  float z[N];
#pragma unroll
                  for (int j = 0; j < N; ++j) z[j] = f(at(both.x, j), F::two ? at(both.y, j) : at(both.x, j));
                  store<N>(o + i * N, z);
                });
  const int64_t rest = (int64_t)blockIdx.x * BLOCK + threadIdx.x, step = (int64_t)gridDim.x * BLOCK;
  for (int64_t i = packs * N + rest; i < count; i += step) {
    const float u = to_float(a[i]);
    o[i] = from_float<O>(f(u, F::two ? to_float(b[i]) : u));
  }
}

template <typename A, typename B, typename O, typename F>
tws_code run_map(const tws_cuda_call *call, const A *a, const B *b, O *o, F f, tws_error *err) {
  constexpr int N = Width<A, B, O>::value;
  const int64_t count = call->work->d[0];
  if (count == 0) return TWS_OK;
  const bool aligned = packable<N>(a, 0) && packable<N>(b, 0) && packable<N>(o, 0);
  const int64_t packs = aligned ? count / N : 0;
  const unsigned grid = packs ? (unsigned)ceil_div(packs, BLOCK * DEEP) : grid_for(call, count, BLOCK);
  LAUNCH(map, grid, BLOCK, 0, call, a, b, o, packs, count, f);
  return launched(err);
}

template <typename T>
__device__ inline float rounded(float x) {
  return to_float(from_float<T>(x));
}

// The results of map, rounded to T, as a source of the tiles of codes.cuh.
template <typename T, typename F>
struct MapSource {
  static constexpr int PARTS = 1;
  const T *a, *b;
  F f;
  template <bool packs>
  __device__ void get(int64_t row, int64_t column, int64_t width, float (&v)[PARTS][GROUP]) const {
    const int64_t from = row * width + column;
    float x[GROUP], y[GROUP] = {};
    load_group<packs>(a + from, width - column, x);
    if constexpr (F::two) load_group<packs>(b + from, width - column, y);
#pragma unroll
    for (int k = 0; k < GROUP; ++k) v[0][k] = rounded<T>(f(x[k], F::two ? y[k] : x[k]));
  }
};

// Runs an activation, or the gradient of one, whose kernel can write 8-bit codes (TWS_FP8) in place of its result.
template <typename T, typename F>
tws_code run_activation(const tws_cuda_call *call, F f, tws_error *err) {
  constexpr int inputs = F::two ? 2 : 1;
  const T *a = in<T>(call, 0), *b = F::two ? in<T>(call, 1) : nullptr;
  if (!(call->work->flags & TWS_FP8)) return run_map(call, a, b, out<T>(call, inputs), f, err);
  const int64_t width = (int64_t)call->work->f[0], count = call->work->d[0];
  if (count == 0 || width == 0) return TWS_OK;
  const Cast c = cast_of(call, inputs, count / width, width, 1, true);
  return run_cast<F::two>(call, MapSource<T, F>{a, b, f}, c, packable<GROUP>(a, width) && packable<GROUP>(b, width),
                          err);
}

template <typename T>
__global__ void fill(T *x, float value, int64_t packs, int64_t count) {
  constexpr int N = Width<T>::value;
  const int64_t first = (int64_t)blockIdx.x * blockDim.x + threadIdx.x, step = (int64_t)gridDim.x * blockDim.x;
  float values[N];
#pragma unroll
  for (int j = 0; j < N; ++j) values[j] = value;
  for (int64_t i = first; i < packs; i += step) store<N>(x + i * N, values);
  for (int64_t i = packs * N + first; i < count; i += step) x[i] = from_float<T>(value);
}

template <typename T>
tws_code run_fill(const tws_cuda_call *call, tws_error *err) {
  constexpr int N = Width<T>::value;
  T *x = out<T>(call, 0);
  const int64_t count = call->work->d[0], packs = packable<N>(x, 0) ? count / N : 0;
  if (count == 0) return TWS_OK;
  LAUNCH(fill, grid_for(call, packs ? packs : count, BLOCK), BLOCK, 0, call, x, (float)call->argument[0], packs, count);
  return launched(err);
}

// ---- dropout: a thread processes those elements of one run that use the same block of random bits ----

struct Drop {
  uint64_t seed, first, stride;
  int64_t run, blocks;  // run: adjacent elements of a run; blocks: maximum number of random blocks that a run uses
  uint32_t below;
  float kept, jitter;
};

template <typename T>
__global__ void __launch_bounds__(BLOCK) drop(T *x, const float *hyper, int64_t count, Drop d) {
  const uint64_t stream = tws_dropout_stream(bits_of<uint32_t>(hyper[TWS_HYPER_STEP]));
  EACH_ITEM(item, (count + d.run - 1) / d.run * d.blocks) {
    const int64_t number = item / d.blocks, begin = number * d.run;
    const int64_t end = begin + d.run < count ? begin + d.run : count;
    const uint64_t first = d.first + (uint64_t)number * d.stride;
    const uint64_t block = first / TWS_DROPOUT_GROUP + (uint64_t)(item - number * d.blocks);
    uint32_t word[TWS_DROPOUT_GROUP];
    tws_philox_block(d.seed, stream, block, word);
#pragma unroll
    for (int k = 0; k < TWS_DROPOUT_GROUP; ++k) {
      const int64_t i = begin + (int64_t)(block * TWS_DROPOUT_GROUP - first) + k;
      const float factor = d.jitter > 0 ? tws_jitter_factor(word[k], d.jitter) : word[k] < d.below ? 0.0F : d.kept;
      if (i >= begin && i < end) x[i] = from_float<T>(to_float(x[i]) * factor);
    }
  }
}

template <typename T>
tws_code run_drop(const tws_cuda_call *call, tws_error *err) {
  const double probability = call->work->f[0];
  const int64_t count = call->work->d[0], run = call->argument[2] > 0 ? (int64_t)call->argument[2] : count;
  if (count == 0) return TWS_OK;
  const int64_t blocks = ceil_div(run, TWS_DROPOUT_GROUP) + 1;
  const Drop d = {
      (uint64_t)call->argument[0],        (uint64_t)call->argument[1],    (uint64_t)call->argument[3], run, blocks,
      tws_dropout_threshold(probability), (float)(1 / (1 - probability)), (float)call->work->f[1]};
  LAUNCH(drop<T>, grid_for(call, ceil_div(count, run) * blocks, BLOCK), BLOCK, 0, call, out<T>(call, 0),
         in<float>(call, 1), count, d);
  return launched(err);
}

// ---- SwiGLU: rows of gate and up; V is the length of a pack, 1 where rows are not aligned ----

// A block processes DEEP packs per thread of one row; `chunks` blocks process a row.
struct Rows {
  int64_t packs;
  unsigned chunks, blocks;
  unsigned threads;
};

Rows rows_of(int64_t tokens, int64_t packs) {
  Rows r = {};
  r.packs = packs;
  r.chunks = (unsigned)ceil_div(packs, BLOCK * DEEP);
  r.threads = (unsigned)ceil_div(packs, (int64_t)r.chunks * DEEP * WARP) * WARP;
  r.blocks = (unsigned)tokens * r.chunks;
  return r;
}

template <typename T, int V, typename Gate>
__global__ void __launch_bounds__(BLOCK) gated(const T *gate_up, T *y, Rows r, float *largest) {
  const int64_t row = blockIdx.x / r.chunks;
  const int64_t first = (int64_t)(blockIdx.x % r.chunks) * DEEP * blockDim.x + threadIdx.x;
  const Pack<T, V> *gate = reinterpret_cast<const Pack<T, V> *>(gate_up) + row * 2 * r.packs, *up = gate + r.packs;
  struct Both {
    Pack<T, V> gate, up;
  };
  uint32_t most = 0;
  at_once<DEEP>(
      first, r.packs, (int64_t)blockDim.x,
      [=](int64_t i) {
        return Both{gate[i], up[i]};
      },
      [&](int64_t i, const Both &x) {
        float z[V];
#pragma unroll
        for (int j = 0; j < V; ++j) z[j] = Gate::value(at(x.gate, j)) * at(x.up, j);
        const Pack<T, V> written = packed<T>(z);
        reinterpret_cast<Pack<T, V> *>(y)[row * r.packs + i] = written;
        if (largest) most = largest_of(written, most);
      });
  if (largest) raise_largest(largest, most);
}

template <typename T, int V, typename Gate>
__global__ void __launch_bounds__(BLOCK) gated_grad(const T *dy, const T *gate_up, T *dgate_up, Rows r) {
  const int64_t row = blockIdx.x / r.chunks;
  const int64_t first = (int64_t)(blockIdx.x % r.chunks) * DEEP * blockDim.x + threadIdx.x;
  const Pack<T, V> *from = reinterpret_cast<const Pack<T, V> *>(dy) + row * r.packs;
  const Pack<T, V> *gate = reinterpret_cast<const Pack<T, V> *>(gate_up) + row * 2 * r.packs, *up = gate + r.packs;
  struct All {
    Pack<T, V> dy, gate, up;
  };
  at_once<DEEP>(
      first, r.packs, (int64_t)blockDim.x,
      [=](int64_t i) {
        return All{from[i], gate[i], up[i]};
      },
      [=](int64_t i, const All &all) {
        float dg[V], du[V];
#pragma unroll
        for (int j = 0; j < V; ++j) {
          const float x = at(all.gate, j), slope = at(all.dy, j);
          dg[j] = slope * at(all.up, j) * Gate::slope(x);
          du[j] = slope * Gate::value(x);
        }
        store<V>(dgate_up + (row * 2 * r.packs + i) * V, dg);
        store<V>(dgate_up + ((row * 2 + 1) * r.packs + i) * V, du);
      });
}

template <typename T, int V, typename Gate>
tws_code start_gated(const tws_cuda_call *call, bool backward, tws_error *err) {
  const Rows r = rows_of(call->work->d[0], call->work->d[1] / V);
  float *largest = !backward && call->work->flags & TWS_LARGEST ? out<float>(call, 2) : nullptr;
  if (largest) TWS_TRY(clear_largest(call, largest, err));
  if (backward)
    LAUNCH((gated_grad<T, V, Gate>), r.blocks, r.threads, 0, call, in<T>(call, 0), in<T>(call, 1), out<T>(call, 2), r);
  else
    LAUNCH((gated<T, V, Gate>), r.blocks, r.threads, 0, call, in<T>(call, 0), out<T>(call, 1), r, largest);
  return launched(err);
}

// With TWS_FP8 the tiles of codes.cuh: the output, or the gradients of gate and up, are cast to 8 bits as the storage
// type rounds them.
template <typename T, typename Gate>
struct GatedSource {
  static constexpr int PARTS = 1;
  const T *gate_up;
  template <bool packs>
  __device__ void get(int64_t row, int64_t column, int64_t width, float (&v)[PARTS][GROUP]) const {
    const T *from = gate_up + row * 2 * width + column;
    float gate[GROUP], up[GROUP];
    load_group<packs>(from, width - column, gate);
    load_group<packs>(from + width, width - column, up);
#pragma unroll
    for (int k = 0; k < GROUP; ++k) v[0][k] = rounded<T>(Gate::value(gate[k]) * up[k]);
  }
};

template <typename T, typename Gate>
struct GatedGradSource {
  static constexpr int PARTS = 2;  // the gradients of gate and of up
  const T *dy, *gate_up;
  template <bool packs>
  __device__ void get(int64_t row, int64_t column, int64_t width, float (&v)[PARTS][GROUP]) const {
    const T *from = gate_up + row * 2 * width + column;
    float slope[GROUP], gate[GROUP], up[GROUP];
    load_group<packs>(dy + row * width + column, width - column, slope);
    load_group<packs>(from, width - column, gate);
    load_group<packs>(from + width, width - column, up);
#pragma unroll
    for (int k = 0; k < GROUP; ++k) {
      v[0][k] = rounded<T>(slope[k] * up[k] * Gate::slope(gate[k]));
      v[1][k] = rounded<T>(slope[k] * Gate::value(gate[k]));
    }
  }
};

template <typename T, typename Gate>
tws_code cast_gated(const tws_cuda_call *call, bool backward, tws_error *err) {
  const int64_t tokens = call->work->d[0], width = call->work->d[1];
  const T *first = in<T>(call, 0), *second = in<T>(call, 1);
  if (!backward)
    return run_cast<false>(call, GatedSource<T, Gate>{first}, cast_of(call, 1, tokens, width, 1, true),
                           packable<GROUP>(first, width), err);
  return run_cast<true>(call, GatedGradSource<T, Gate>{first, second}, cast_of(call, 2, tokens, width, 2, true),
                        packable<GROUP>(first, width) && packable<GROUP>(second, width), err);
}

template <typename T, typename Gate>
tws_code run_gated(const tws_cuda_call *call, bool backward, tws_error *err) {
  constexpr int N = Width<T>::value;
  const int64_t tokens = call->work->d[0], width = call->work->d[1];
  if (tokens == 0 || width == 0) return TWS_OK;
  if (call->work->flags & TWS_FP8) return cast_gated<T, Gate>(call, backward, err);
  bool aligned = packable<N>(in<T>(call, 0), width) && packable<N>(in<T>(call, 1), width);
  if (backward) aligned = aligned && packable<N>(in<T>(call, 2), width);
  return aligned ? start_gated<T, N, Gate>(call, backward, err) : start_gated<T, 1, Gate>(call, backward, err);
}

}  // namespace

tws_code tws_cuda_gelu(const tws_cuda_call *call, tws_error *err) {
  FOR_TYPE(call->dtype[0], T, return run_activation<T>(call, Gelu(), err));
}
tws_code tws_cuda_gelu_grad(const tws_cuda_call *call, tws_error *err) {
  FOR_TYPE(call->dtype[0], T, return run_map(call, in<T>(call, 0), in<T>(call, 1), out<T>(call, 2), GeluGrad(), err));
}
tws_code tws_cuda_relu(const tws_cuda_call *call, tws_error *err) {
  FOR_TYPE(call->dtype[0], T, return run_activation<T>(call, Relu(), err));
}
tws_code tws_cuda_relu_grad(const tws_cuda_call *call, tws_error *err) {
  FOR_TYPE(call->dtype[0], T, return run_activation<T>(call, ReluGrad(), err));
}
tws_code tws_cuda_squared_relu(const tws_cuda_call *call, tws_error *err) {
  FOR_TYPE(call->dtype[0], T, return run_activation<T>(call, SquaredRelu(), err));
}
tws_code tws_cuda_squared_relu_grad(const tws_cuda_call *call, tws_error *err) {
  FOR_TYPE(call->dtype[0], T, return run_activation<T>(call, SquaredReluGrad(), err));
}
tws_code tws_cuda_gelu_exact(const tws_cuda_call *call, tws_error *err) {
  FOR_TYPE(call->dtype[0], T, return run_activation<T>(call, GeluExact(), err));
}
tws_code tws_cuda_gelu_exact_grad(const tws_cuda_call *call, tws_error *err) {
  FOR_TYPE(call->dtype[0], T, return run_activation<T>(call, GeluExactGrad(), err));
}
tws_code tws_cuda_sigmoid(const tws_cuda_call *call, tws_error *err) {
  FOR_TYPE(call->dtype[0], T,
           return run_map(call, in<T>(call, 0), (const T *)nullptr, out<T>(call, 1), Sigmoid(), err));
}
tws_code tws_cuda_sigmoid_grad(const tws_cuda_call *call, tws_error *err) {
  FOR_TYPE(call->dtype[0], T,
           return run_map(call, in<T>(call, 0), in<T>(call, 1), out<T>(call, 2), SigmoidGrad(), err));
}
tws_code tws_cuda_silu(const tws_cuda_call *call, tws_error *err) {
  FOR_TYPE(call->dtype[0], T, return run_map(call, in<T>(call, 0), (const T *)nullptr, out<T>(call, 1), Silu(), err));
}
tws_code tws_cuda_silu_grad(const tws_cuda_call *call, tws_error *err) {
  FOR_TYPE(call->dtype[0], T, return run_map(call, in<T>(call, 0), in<T>(call, 1), out<T>(call, 2), SiluGrad(), err));
}
tws_code tws_cuda_leaky_relu(const tws_cuda_call *call, tws_error *err) {
  const LeakyRelu f = {(float)call->work->f[0]};
  FOR_TYPE(call->dtype[0], T, return run_map(call, in<T>(call, 0), (const T *)nullptr, out<T>(call, 1), f, err));
}
tws_code tws_cuda_leaky_relu_grad(const tws_cuda_call *call, tws_error *err) {
  const LeakyReluGrad f = {(float)call->work->f[0]};
  FOR_TYPE(call->dtype[0], T, return run_map(call, in<T>(call, 0), in<T>(call, 1), out<T>(call, 2), f, err));
}
tws_code tws_cuda_clamp(const tws_cuda_call *call, tws_error *err) {
  const Clamp f = {(float)call->work->f[0], (float)call->work->f[1]};
  FOR_TYPE(call->dtype[0], T, return run_map(call, in<T>(call, 0), (const T *)nullptr, out<T>(call, 1), f, err));
}
tws_code tws_cuda_clamp_grad(const tws_cuda_call *call, tws_error *err) {
  const ClampGrad f = {(float)call->work->f[0], (float)call->work->f[1]};
  FOR_TYPE(call->dtype[0], T, return run_map(call, in<T>(call, 0), in<T>(call, 1), out<T>(call, 2), f, err));
}
tws_code tws_cuda_softcap(const tws_cuda_call *call, tws_error *err) {
  const Softcap f = {(float)call->work->f[0]};
  FOR_TYPE(call->dtype[0], T, return run_map(call, in<T>(call, 0), (const T *)nullptr, out<T>(call, 1), f, err));
}
tws_code tws_cuda_softcap_grad(const tws_cuda_call *call, tws_error *err) {
  const SoftcapGrad f = {(float)call->work->f[0]};
  FOR_TYPE(call->dtype[0], T, return run_map(call, in<T>(call, 0), in<T>(call, 1), out<T>(call, 2), f, err));
}
tws_code tws_cuda_multiply(const tws_cuda_call *call, tws_error *err) {
  const Multiply f = {(float)call->work->f[0]};
  FOR_TYPE(call->dtype[0], T, return run_map(call, in<T>(call, 0), (const T *)nullptr, out<T>(call, 0), f, err));
}
tws_code tws_cuda_geglu(const tws_cuda_call *call, tws_error *err) {
  FOR_TYPE(call->dtype[0], T, return (run_gated<T, GeluGate>(call, false, err)));
}
tws_code tws_cuda_geglu_grad(const tws_cuda_call *call, tws_error *err) {
  FOR_TYPE(call->dtype[0], T, return (run_gated<T, GeluGate>(call, true, err)));
}
tws_code tws_cuda_add(const tws_cuda_call *call, tws_error *err) {
  FOR_TYPE(call->dtype[0], T, return run_map(call, in<T>(call, 0), in<T>(call, 1), out<T>(call, 2), Add(), err));
}
tws_code tws_cuda_accumulate(const tws_cuda_call *call, tws_error *err) {
  FOR_TYPE(
      call->dtype[0], X,
      FOR_TYPE(call->dtype[1], Y, return run_map(call, in<X>(call, 0), in<Y>(call, 1), out<Y>(call, 1), Add(), err)));
}
tws_code tws_cuda_fill(const tws_cuda_call *call, tws_error *err) {
  FOR_TYPE(call->dtype[0], T, return run_fill<T>(call, err));
}
tws_code tws_cuda_dropout(const tws_cuda_call *call, tws_error *err) {
  FOR_TYPE(call->dtype[0], T, return run_drop<T>(call, err));
}
tws_code tws_cuda_swiglu(const tws_cuda_call *call, tws_error *err) {
  FOR_TYPE(call->dtype[0], T, return (run_gated<T, SiluGate>(call, false, err)));
}
tws_code tws_cuda_swiglu_grad(const tws_cuda_call *call, tws_error *err) {
  FOR_TYPE(call->dtype[0], T, return (run_gated<T, SiluGate>(call, true, err)));
}

// Converts elements to another type. If the types are equal, all bits are copied.
tws_code tws_cuda_cast(const tws_cuda_call *call, tws_error *err) {
  const size_t count = (size_t)call->work->d[0];
  if (call->dtype[0] == call->dtype[1]) {
    const cudaError_t status =
        cudaMemcpyAsync(call->operand[1], call->operand[0], count * (call->dtype[0] == TWS_F32 ? 4U : 2U),
                        cudaMemcpyDeviceToDevice, call->stream);
    return status == cudaSuccess ? TWS_OK : tws_cuda_fail(err, status, "cast");
  }
  FOR_TYPE(call->dtype[0], X,
           FOR_TYPE(call->dtype[1], Y,
                    return run_map(call, in<X>(call, 0), (const X *)nullptr, out<Y>(call, 1), First(), err)));
}
