/* Enough of CUDA to run real/cuda on the host, one thread at a time: tests of what the kernels compute, on machines
 * without a GPU. Included before the kernels' own headers. Threads of a block are contexts that run until they meet a
 * barrier, in an order drawn anew at each turn, so that a missing barrier shows. The emulation shows nothing about
 * speed, memory ordering, or the behaviour of the real libraries. */
#ifndef TWS_TESTS_EMULATOR_EMULATOR_H
#define TWS_TESTS_EMULATOR_EMULATOR_H

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime_api.h>
#include <vector_types.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <functional>

#include "tests/emulator/runtime.h"

using std::isfinite;
using std::isinf;
using std::isnan;

#undef __global__
#undef __device__
#undef __host__
#undef __shared__
#undef __launch_bounds__
#define __global__
#define __device__
#define __host__
#define __shared__ static
#define __launch_bounds__(...)

#include <math_constants.h>
#undef CUDART_INF_F
#undef CUDART_NAN_F
#define CUDART_INF_F __builtin_inff()
#define CUDART_NAN_F __builtin_nanf("")

extern dim3 emulated_block, emulated_block_size, emulated_grid_size;
extern float4 *emulated_memory;
extern const dim3 *emulated_thread;
#define threadIdx (*emulated_thread)
#define blockIdx emulated_block
#define blockDim emulated_block_size
#define gridDim emulated_grid_size

void emulated_start(cudaStream_t stream, dim3 grid, dim3 block, size_t shared_bytes, bool *loaded,
                    const std::function<void()> &kernel);
template <typename K, typename... A>
void emulated_launch(cudaStream_t stream, dim3 grid, dim3 block, size_t shared_bytes, K kernel, A... arguments) {
  static bool loaded; /* 1: the driver has loaded this kernel, which it does at the first launch */
  emulated_start(stream, grid, block, shared_bytes, &loaded, [=] { kernel(arguments...); });
}
#define LAUNCH(kernel, grid, block, shared, call, ...)               \
  emulated_launch((call)->stream, dim3(grid), dim3(block), (shared), \
                  [](auto... arguments) { (kernel)(arguments...); }, __VA_ARGS__)
#define BLOCK_MEMORY(name) float4 *name = emulated_memory

void __syncthreads();
void __syncwarp();
unsigned __ballot_sync(unsigned mask, bool vote);
uint64_t emulated_exchange(uint64_t mine, int distance);

template <typename T>
T __shfl_xor_sync(unsigned, T x, int distance) {
  uint64_t bits = 0;
  memcpy(&bits, &x, sizeof x);
  bits = emulated_exchange(bits, distance);
  memcpy(&x, &bits, sizeof x);
  return x;
}

/* The instructions of real/cuda/kernels/tensor_cores.cuh, with the layouts of fragments that the PTX ISA describes. All
 * lanes of a warp have to call them together. */
void emulated_load_matrices(uint32_t *to, const void *row, bool turned);
void emulated_multiply_add(float *sum, const uint32_t *a, uint32_t b0, uint32_t b1, float (*value)(uint16_t));
template <bool turned>
void load_matrices(uint32_t (&to)[4], const void *row) {
  emulated_load_matrices(to, row, turned);
}
template <typename T>
void multiply_add(T, float (&sum)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  emulated_multiply_add(sum, a, b0, b1, [](uint16_t bits) {
    T x;
    memcpy(static_cast<void *>(&x), &bits, sizeof bits);
    return (float)x;
  });
}
/* An asynchronous copy is done at once or when its thread waits for it, at random. */
void copy_chunk(float4 *to, const void *from, bool inside);
void commit_copies();
void emulated_wait_for_copies(int but);
template <int N>
void wait_for_copies() {
  emulated_wait_for_copies(N);
}

inline float normcdff(float x) {
  return 0.5F * erfcf(-0.70710678F * x);
}
inline float fast_exp2(float x) {
  return exp2f(x);
}
inline float fast_reciprocal(float x) {
  return 1.0F / x;
}
inline int __popc(unsigned x) {
  return __builtin_popcount(x);
}
inline int atomicAdd(int *to, int x) {
  const int was = *to;
  *to += x;
  return was;
}
inline int atomicMax(int *to, int x) {
  const int was = *to;
  if (x > was) *to = x;
  return was;
}

#endif
