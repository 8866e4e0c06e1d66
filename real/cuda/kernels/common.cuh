// Loads, stores and reductions that the kernels share.
#ifndef TWS_REAL_CUDA_KERNELS_COMMON_CUH
#define TWS_REAL_CUDA_KERNELS_COMMON_CUH

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <math_constants.h>
#include <cstring>
#include <type_traits>
#include "real/cuda/internal.h"

typedef __nv_bfloat16 bf16;
typedef __half f16;

// tests/emulator redefines the following macros and functions, and runs the kernels on the host.
#ifndef LAUNCH
#define LAUNCH(kernel, grid, block, shared, call, ...) kernel<<<grid, block, shared, (call)->stream>>>(__VA_ARGS__)
#define BLOCK_MEMORY(name) extern __shared__ float4 name[]
// Each of these functions is one instruction, with an error of one or two units in the last place; results below 2^-126
// become 0.
__device__ inline float fast_exp2(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
__device__ inline float fast_reciprocal(float x) {
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
#endif

enum { WARP = 32, BLOCK = 256 };

__device__ inline float to_float(float x) {
  return x;
}
__device__ inline float to_float(bf16 x) {
  return __bfloat162float(x);
}
__device__ inline float to_float(f16 x) {
  return __half2float(x);
}
template <typename T>
__device__ inline T from_float(float x);
template <>
__device__ inline float from_float<float>(float x) {
  return x;
}
template <>
__device__ inline bf16 from_float<bf16>(float x) {
  return __float2bfloat16_rn(x);
}
template <>
__device__ inline f16 from_float<f16>(float x) {
  return __float2half_rn(x);
}

// N elements that are loaded and stored by one access; the address must be a multiple of the pack's size. They stay in
// 32-bit words, so that 16-bit elements do not take a register each.
template <typename T, int N>
struct alignas(sizeof(T) * N) Pack {
  typedef std::conditional_t<sizeof(T) * N % 4 == 0, uint32_t, uint16_t> Word;
  Word w[sizeof(T) * N / sizeof(Word)];
};
template <typename To, typename From>
__device__ inline To bits_of(From x) {
  static_assert(sizeof(To) == sizeof(From), "other sizes have other bits");
  To y;
  memcpy(static_cast<void *>(&y), &x, sizeof y);
  return y;
}

// Returns element j of a pack; j is a compile-time constant after unrolling.
template <int N>
__device__ inline float at(const Pack<float, N> &pack, int j) {
  return bits_of<float>(pack.w[j]);
}
template <int N>
__device__ inline float at(const Pack<bf16, N> &pack, int j) {
  const uint32_t word = pack.w[j / 2];
  return bits_of<float>(j % 2 ? word & 0xffff0000U : word << 16);
}
template <int N>
__device__ inline float at(const Pack<f16, N> &pack, int j) {
  const uint32_t word = pack.w[j / 2];
  return to_float(bits_of<f16>((uint16_t)(j % 2 ? word >> 16 : word)));
}

__device__ inline uint32_t pair(bf16, float x, float y) {
  return bits_of<uint32_t>(__floats2bfloat162_rn(x, y));
}
__device__ inline uint32_t pair(f16, float x, float y) {
  return bits_of<uint32_t>(__floats2half2_rn(x, y));
}
template <typename T, int N>
__device__ inline Pack<T, N> packed(const float (&x)[N]) {
  Pack<T, N> pack;
  if constexpr (sizeof(T) == 4 || N == 1) {
#pragma unroll
    for (int i = 0; i < N; ++i) pack.w[i] = bits_of<typename Pack<T, N>::Word>(from_float<T>(x[i]));
  } else {
#pragma unroll
    for (int i = 0; i < N / 2; ++i) pack.w[i] = pair(T(), x[2 * i], x[2 * i + 1]);
  }
  return pack;
}
template <int N, typename T>
__device__ inline void load(const T *from, float (&out)[N]) {
  const Pack<T, N> pack = *reinterpret_cast<const Pack<T, N> *>(from);
#pragma unroll
  for (int i = 0; i < N; ++i) out[i] = at(pack, i);
}
template <typename T, int N>
__device__ inline void add_to(float (&sum)[N], const Pack<T, N> &pack) {
#pragma unroll
  for (int i = 0; i < N; ++i) sum[i] += at(pack, i);
}
template <int N, typename T>
__device__ inline void store(T *to, const float (&x)[N]) {
  *reinterpret_cast<Pack<T, N> *>(to) = packed<T>(x);
}

// Returns the bits of the larger of `most` and the largest magnitude of a pack; magnitudes compare as their bits do,
// and NaN is larger than all others.
template <typename T, int N>
__device__ inline uint32_t largest_of(const Pack<T, N> &pack, uint32_t most) {
#pragma unroll
  for (int j = 0; j < N; ++j) {
    const uint32_t bits = bits_of<uint32_t>(at(pack, j)) & 0x7fffffffU;
    most = bits > most ? bits : most;
  }
  return most;
}
// Raises *largest, which holds bits of a magnitude, to the largest of a warp, all of whose threads have to call this.
// Most warps find a larger number there and write nothing.
__device__ inline void raise_largest(float *largest, uint32_t most) {
#pragma unroll
  for (int d = WARP / 2; d > 0; d /= 2) {
    const uint32_t other = __shfl_xor_sync(0xffffffffU, most, d);
    most = other > most ? other : most;
  }
  int *bits = reinterpret_cast<int *>(largest);
  if (threadIdx.x % WARP == 0 && (int)most > *static_cast<volatile int *>(bits)) atomicMax(bits, (int)most);
}

// Loads the items first, first + step, ... below end, at most DEEP of them in flight at once, then processes them one
// after another: use(index, loaded).
template <int DEEP, typename I, typename Load, typename Use>
__device__ inline void at_once(I first, I end, I step, Load load, Use use) {
  decltype(load(first)) loaded[DEEP];
#pragma unroll
  for (int k = 0; k < DEEP; ++k)
    if (first + k * step < end) loaded[k] = load(first + k * step);
#pragma unroll
  for (int k = 0; k < DEEP; ++k) {
    if (first + k * step >= end) break;
    use(first + k * step, loaded[k]);
  }
}

// Number of elements of a pack: 16 bytes of the widest type.
template <typename A, typename B = A, typename C = A>
struct Width {
  static constexpr int largest = sizeof(A) > sizeof(B) ? sizeof(A) : sizeof(B);
  static constexpr int value = 16 / (largest > (int)sizeof(C) ? largest : (int)sizeof(C));
};

// Returns true if rows of `count` elements of type T at the address can be accessed in packs of N.
template <int N, typename T>
inline bool packable(const T *address, int64_t count) {
  return reinterpret_cast<uintptr_t>(address) % (sizeof(T) * N) == 0 && count % N == 0;
}

__device__ inline float warp_sum(float x) {
#pragma unroll
  for (int d = WARP / 2; d > 0; d /= 2) x += __shfl_xor_sync(0xffffffffU, x, d);
  return x;
}

// Reduces over a block of whole warps (at most 32); every thread gets the same bits, and the order does not depend on
// timing. `scratch` has one element for each warp and may be reused at once.
template <typename T>
__device__ inline T block_sum(T x, T *scratch) {
#pragma unroll
  for (int d = WARP / 2; d > 0; d /= 2) x += __shfl_xor_sync(0xffffffffU, x, d);
  if (threadIdx.x % WARP == 0) scratch[threadIdx.x / WARP] = x;
  __syncthreads();
  x = threadIdx.x % WARP < blockDim.x / WARP ? scratch[threadIdx.x % WARP] : T(0);
#pragma unroll
  for (int d = WARP / 2; d > 0; d /= 2) x += __shfl_xor_sync(0xffffffffU, x, d);
  __syncthreads();
  return x;
}
__device__ inline float block_max(float x, float *scratch) {
#pragma unroll
  for (int d = WARP / 2; d > 0; d /= 2) x = fmaxf(x, __shfl_xor_sync(0xffffffffU, x, d));
  if (threadIdx.x % WARP == 0) scratch[threadIdx.x / WARP] = x;
  __syncthreads();
  x = scratch[threadIdx.x % WARP < blockDim.x / WARP ? threadIdx.x % WARP : 0];
#pragma unroll
  for (int d = WARP / 2; d > 0; d /= 2) x = fmaxf(x, __shfl_xor_sync(0xffffffffU, x, d));
  __syncthreads();
  return x;
}

inline int64_t ceil_div(int64_t a, int64_t b) {
  return (a + b - 1) / b;
}

// Returns the number of blocks for a grid-stride loop over `items`.
inline unsigned grid_for(const tws_cuda_call *call, int64_t items, int per_block) {
  const int64_t blocks = ceil_div(items, per_block), most = (int64_t)call->multiprocessors * 8;
  return (unsigned)(blocks < 1 ? 1 : blocks < most ? blocks : most);
}

// Grid-stride loop over `count` items, with BLOCK threads in a block.
#define EACH_ITEM(i, count)                                                                                    \
  for (int64_t i = (int64_t)blockIdx.x * BLOCK + threadIdx.x, step_ = (int64_t)gridDim.x * BLOCK; i < (count); \
       i += step_)

// Allows a kernel `bytes` bytes of dynamic shared memory per block: more than 48 KiB must be requested for each kernel.
template <typename K>
inline tws_code allow_shared(K kernel, size_t bytes, tws_error *err) {
  const cudaError_t status = cudaFuncSetAttribute(reinterpret_cast<const void *>(kernel),
                                                  cudaFuncAttributeMaxDynamicSharedMemorySize, (int)bytes);
  return status == cudaSuccess ? TWS_OK : tws_cuda_fail(err, status, "shared memory");
}

// Returns the error of the last kernel launch.
inline tws_code launched(tws_error *err) {
  const cudaError_t status = cudaGetLastError();
  return status == cudaSuccess ? TWS_OK : tws_cuda_fail(err, status, "launch");
}

// Sets a largest magnitude to 0, before kernels raise it.
inline tws_code clear_largest(const tws_cuda_call *call, float *largest, tws_error *err) {
  const cudaError_t status = cudaMemsetAsync(largest, 0, sizeof *largest, call->stream);
  return status == cudaSuccess ? TWS_OK : tws_cuda_fail(err, status, "clearing a largest number");
}

// Runs the statement with T as the storage type.
#define FOR_TYPE(type, T, ...)       \
  do {                               \
    if ((type) == TWS_F32) {         \
      typedef float T;               \
      __VA_ARGS__;                   \
    } else if ((type) == TWS_BF16) { \
      typedef bf16 T;                \
      __VA_ARGS__;                   \
    } else {                         \
      typedef f16 T;                 \
      __VA_ARGS__;                   \
    }                                \
  } while (0)

template <typename T>
inline const T *in(const tws_cuda_call *call, int index) {
  return static_cast<const T *>(call->operand[index]);
}
template <typename T>
inline T *out(const tws_cuda_call *call, int index) {
  return static_cast<T *>(call->operand[index]);
}

#endif
