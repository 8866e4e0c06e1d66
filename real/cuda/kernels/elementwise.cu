// Element-wise kernels: activations, sums, fills, casts. Bound by memory: 16-byte accesses where the operands allow
// them.
#include "real/cuda/kernels/common.cuh"

namespace {

// ---- activations ----

// 0.5 x (1 + tanh(u)) = x / (1 + e^-2u), which keeps its accuracy for large negative x.
__device__ float gelu_inner(float x) {
  return 1.5957691216057308F * (x + 0.044715F * x * x * x);
}
__device__ float sigmoid(float x) {
  return 1.0F / (1.0F + expf(-x));
}

struct Gelu {
  __device__ float operator()(float x, float) const {
    const float inner = gelu_inner(x);
    if (inner < -80.0F) return x == -CUDART_INF_F ? CUDART_NAN_F : 0.0F;
    return x * sigmoid(inner);
  }
};

struct GeluGrad {  // (dy, x)
  __device__ float operator()(float dy, float x) const {
    const float inner = gelu_inner(x);
    if (!(fabsf(inner) < 80.0F)) {  // saturated: slope 0 or 1
      if (isnan(x) || isinf(x)) return CUDART_NAN_F;
      return inner > 0.0F ? dy : dy * 0.0F;
    }
    const float e = expf(-inner), s = 1.0F / (1.0F + e);
    const float slope = 1.5957691216057308F * (1.0F + 0.134145F * x * x);
    return dy * (s + x * (s * (e * s)) * slope);
  }
};

struct Add {
  __device__ float operator()(float x, float y) const { return x + y; }
};
struct First {
  __device__ float operator()(float x, float) const { return x; }
};

// out[i] = f(a[i], b[i]); out may be a or b. b NULL: f gets a twice.
template <typename A, typename B, typename O, typename F>
__global__ void map(const A *a, const B *b, O *o, int64_t packs, int64_t count, F f) {
  constexpr int N = Width<A, B, O>::value;
  const int64_t first = (int64_t)blockIdx.x * blockDim.x + threadIdx.x, step = (int64_t)gridDim.x * blockDim.x;
  for (int64_t i = first; i < packs; i += step) {
    float x[N], y[N], z[N];
    load<N>(a + i * N, x);
    if (b) load<N>(b + i * N, y);
#pragma unroll
    for (int j = 0; j < N; ++j) z[j] = f(x[j], b ? y[j] : x[j]);
    store<N>(o + i * N, z);
  }
  for (int64_t i = packs * N + first; i < count; i += step) {
    const float x = to_float(a[i]);
    o[i] = from_float<O>(f(x, b ? to_float(b[i]) : x));
  }
}

template <typename A, typename B, typename O, typename F>
tws_code run_map(const tws_cuda_call *call, const A *a, const B *b, O *o, F f, tws_error *err) {
  constexpr int N = Width<A, B, O>::value;
  const int64_t count = call->work->d[0];
  if (count == 0) return TWS_OK;
  const bool aligned = packable<N>(a, 0) && packable<N>(b, 0) && packable<N>(o, 0);
  const int64_t packs = aligned ? count / N : 0;
  LAUNCH(map, grid_for(call, packs ? packs : count, BLOCK), BLOCK, 0, call, a, b, o, packs, count, f);
  return launched(err);
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
  LAUNCH(fill, grid_for(call, packs ? packs : count, BLOCK), BLOCK, 0, call, x, (float)call->work->f[0], packs, count);
  return launched(err);
}

// ---- SwiGLU: rows of gate and up; V is the length of a pack, 1 where rows are not aligned ----

__device__ float silu(float gate) {
  return gate / (1.0F + expf(-gate));
}

template <typename T, int V>
__global__ void swiglu(const T *gate_up, T *y, int64_t tokens, int64_t width) {
  const int64_t packs = width / V, all = tokens * packs, step = (int64_t)gridDim.x * blockDim.x;
  for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < all; i += step) {
    const int64_t row = i / packs, column = i % packs * V;
    float g[V], u[V];
    load<V>(gate_up + row * 2 * width + column, g);
    load<V>(gate_up + row * 2 * width + width + column, u);
#pragma unroll
    for (int j = 0; j < V; ++j) g[j] = silu(g[j]) * u[j];
    store<V>(y + row * width + column, g);
  }
}

template <typename T, int V>
__global__ void swiglu_grad(const T *dy, const T *gate_up, T *dgate_up, int64_t tokens, int64_t width) {
  const int64_t packs = width / V, all = tokens * packs, step = (int64_t)gridDim.x * blockDim.x;
  for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < all; i += step) {
    const int64_t row = i / packs, column = i % packs * V, gate = row * 2 * width + column, up = gate + width;
    float d[V], g[V], u[V];
    load<V>(dy + row * width + column, d);
    load<V>(gate_up + gate, g);
    load<V>(gate_up + up, u);
#pragma unroll
    for (int j = 0; j < V; ++j) {
      const float s = sigmoid(g[j]), x = g[j];
      g[j] = d[j] * u[j] * (s + x * s * (1.0F - s));
      u[j] = d[j] * (x * s);
    }
    store<V>(dgate_up + gate, g);
    store<V>(dgate_up + up, u);
  }
}

template <typename T>
tws_code run_swiglu(const tws_cuda_call *call, bool backward, tws_error *err) {
  constexpr int N = Width<T>::value;
  const int64_t tokens = call->work->d[0], width = call->work->d[1];
  if (tokens == 0 || width == 0) return TWS_OK;
  bool aligned = packable<N>(in<T>(call, 0), width) && packable<N>(in<T>(call, 1), width);
  if (backward) aligned = aligned && packable<N>(in<T>(call, 2), width);
  const unsigned grid = grid_for(call, tokens * width / (aligned ? N : 1), BLOCK);
  if (backward && aligned)
    LAUNCH((swiglu_grad<T, N>), grid, BLOCK, 0, call, in<T>(call, 0), in<T>(call, 1), out<T>(call, 2), tokens, width);
  else if (backward)
    LAUNCH((swiglu_grad<T, 1>), grid, BLOCK, 0, call, in<T>(call, 0), in<T>(call, 1), out<T>(call, 2), tokens, width);
  else if (aligned)
    LAUNCH((swiglu<T, N>), grid, BLOCK, 0, call, in<T>(call, 0), out<T>(call, 1), tokens, width);
  else
    LAUNCH((swiglu<T, 1>), grid, BLOCK, 0, call, in<T>(call, 0), out<T>(call, 1), tokens, width);
  return launched(err);
}

}  // namespace

tws_code tws_cuda_gelu(const tws_cuda_call *call, tws_error *err) {
  FOR_TYPE(call->dtype[0], T, return run_map(call, in<T>(call, 0), (const T *)nullptr, out<T>(call, 1), Gelu(), err));
}
tws_code tws_cuda_gelu_grad(const tws_cuda_call *call, tws_error *err) {
  FOR_TYPE(call->dtype[0], T, return run_map(call, in<T>(call, 0), in<T>(call, 1), out<T>(call, 2), GeluGrad(), err));
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
tws_code tws_cuda_swiglu(const tws_cuda_call *call, tws_error *err) {
  FOR_TYPE(call->dtype[0], T, return run_swiglu<T>(call, false, err));
}
tws_code tws_cuda_swiglu_grad(const tws_cuda_call *call, tws_error *err) {
  FOR_TYPE(call->dtype[0], T, return run_swiglu<T>(call, true, err));
}

// Equal types keep every bit.
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
