// 8-bit operands of products: the largest magnitude of a tensor, and its codes, in row-major order and transposed. Both
// kernels are bound by memory bandwidth. With delayed scaling the second one finds the largest magnitude too.
#include "real/cuda/kernels/common.cuh"
#ifdef __CUDACC__
#include <cuda_fp8.h>
#endif
#include "base/float8.h"

extern "C" {
#include "models/operator.h"
}

namespace {

// ---- the largest ----

// Returns the larger magnitude; magnitudes compare as their bits do, and NaN is larger than all of them.
__device__ inline uint32_t larger(uint32_t a, uint32_t b) {
  return a > b ? a : b;
}

// Returns the largest number in every thread of a block of BLOCK threads.
__device__ uint32_t block_largest(uint32_t x) {
  __shared__ uint32_t warps[BLOCK / WARP];
#pragma unroll
  for (int d = WARP / 2; d > 0; d /= 2) x = larger(x, __shfl_xor_sync(0xffffffffU, x, d));
  if (threadIdx.x % WARP == 0) warps[threadIdx.x / WARP] = x;
  __syncthreads();
  x = 0;
  for (int i = 0; i < BLOCK / WARP; ++i) x = larger(x, warps[i]);
  return x;
}

// amax_parts: a block computes the largest magnitude of its elements, as bits; amax_of_parts: the largest of `count`
// such results.
template <typename T, int N>
__global__ void amax_parts(const T *x, uint32_t *parts, int64_t packs) {
  uint32_t most = 0;
  EACH_ITEM(i, packs) {
    float v[N];
    load(x + i * N, v);
#pragma unroll
    for (int k = 0; k < N; ++k) most = larger(most, bits_of<uint32_t>(v[k]) & 0x7fffffffU);
  }
  most = block_largest(most);
  if (threadIdx.x == 0) parts[blockIdx.x] = most;
}

__global__ void amax_of_parts(const uint32_t *parts, float *amax, int count) {
  uint32_t most = 0;
  for (int i = (int)threadIdx.x; i < count; i += BLOCK) most = larger(most, parts[i]);
  most = block_largest(most);
  if (threadIdx.x == 0) *amax = bits_of<float>(most);
}

template <typename T, int N>
tws_code run_amax(const tws_cuda_call *call, tws_error *err) {
  const int64_t packs = call->work->d[0] / N;
  unsigned blocks = grid_for(call, packs, BLOCK);
  if (blocks > call->scratch_bytes / sizeof(uint32_t)) blocks = (unsigned)(call->scratch_bytes / sizeof(uint32_t));
  uint32_t *parts = static_cast<uint32_t *>(call->scratch);
  LAUNCH((amax_parts<T, N>), blocks, BLOCK, 0, call, in<T>(call, 0), parts, packs);
  TWS_TRY(launched(err));
  LAUNCH(amax_of_parts, 1, BLOCK, 0, call, parts, out<float>(call, 1), (int)blocks);
  return launched(err);
}

// ---- codes ----

template <bool e5m2>
__device__ inline uint32_t code_of(float x) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 890
  return __nv_cvt_float_to_fp8(x, __NV_SATFINITE, e5m2 ? __NV_E5M2 : __NV_E4M3);
#else
  return e5m2 ? tws_to_e5m2(x) : tws_to_e4m3(x);
#endif
}

enum { SIDE = 64, GROUP = 4, GROUPS = SIDE / GROUP };  // SIDE: rows and columns of a tile; GROUP: columns that a thread
                                                       // processes at once

struct Matrix {
  int64_t rows, width, across, tiles;
  const float *amax;
  float *scale;
  uint8_t *y, *y_t;  // row-major codes and transposed codes, or null
  float *largest;    // raised to the largest magnitude of x, or null
};

// Tiles of SIDE x SIDE: codes go to memory row by row, and through shared memory column by column. packs: row sizes and
// addresses are multiples of GROUP.
template <typename T, bool e5m2, bool packs>
__global__ void quantize(const T *x, Matrix m) {
  __shared__ uint8_t tile[SIDE][SIDE + GROUP];
  const float multiplier = tws_float8_multiplier(*m.amax, e5m2 ? TWS_E5M2 : TWS_E4M3);
  const int group = (int)threadIdx.x % GROUPS * GROUP, first = (int)threadIdx.x / GROUPS;
  uint32_t most = 0;
  if (blockIdx.x == 0 && threadIdx.x == 0) *m.scale = 1.0F / multiplier;
  for (int64_t t = blockIdx.x; t < m.tiles; t += gridDim.x) {
    const int64_t row0 = t / m.across * SIDE, column0 = t % m.across * SIDE;
    for (int r = first; r < SIDE; r += BLOCK / GROUPS) {
      const int64_t row = row0 + r, column = column0 + group, at = row * m.width + column;
      if (row >= m.rows || column >= m.width) continue;
      float v[GROUP] = {};
      if constexpr (packs)
        load(x + at, v);
      else
        for (int k = 0; k < GROUP && column + k < m.width; ++k) v[k] = to_float(x[at + k]);
      if (m.largest) {  // infinity has to stay visible although the scale is finite
#pragma unroll
        for (int k = 0; k < GROUP; ++k) {
          const uint32_t bits = bits_of<uint32_t>(v[k]) & 0x7fffffffU;
          most = larger(most, bits);
          if (bits == 0x7f800000U) v[k] = bits_of<float>(0x7fc00000U);
        }
      }
      uint32_t codes = 0;
#pragma unroll
      for (int k = 0; k < GROUP; ++k) codes |= code_of<e5m2>(v[k] * multiplier) << (8 * k);
      if (m.y_t) *reinterpret_cast<uint32_t *>(&tile[r][group]) = codes;
      if (packs && m.y) *reinterpret_cast<uint32_t *>(m.y + at) = codes;
      for (int k = 0; !packs && m.y && k < GROUP && column + k < m.width; ++k)
        m.y[at + k] = (uint8_t)(codes >> (8 * k));
    }
    if (!m.y_t) continue;
    __syncthreads();
    for (int c = first; c < SIDE; c += BLOCK / GROUPS) {
      const int64_t column = column0 + c, row = row0 + group, at = column * m.rows + row;
      if (column >= m.width || row >= m.rows) continue;
      uint32_t codes = 0;
#pragma unroll
      for (int k = 0; k < GROUP; ++k) codes |= (uint32_t)tile[group + k][c] << (8 * k);
      if (packs) *reinterpret_cast<uint32_t *>(m.y_t + at) = codes;
      for (int k = 0; !packs && k < GROUP && row + k < m.rows; ++k) m.y_t[at + k] = (uint8_t)(codes >> (8 * k));
    }
    __syncthreads();
  }
  if (m.largest) raise_largest(m.largest, most);
}

template <typename T, bool e5m2>
tws_code run_quantize(const tws_cuda_call *call, tws_error *err) {
  const int rows = (call->work->flags & TWS_ROWS) != 0, columns = (call->work->flags & TWS_COLUMNS) != 0;
  Matrix m = {};
  m.rows = call->work->d[0], m.width = call->work->d[1], m.across = ceil_div(m.width, SIDE);
  m.tiles = m.across * ceil_div(m.rows, SIDE);
  m.amax = in<float>(call, 1), m.scale = out<float>(call, 2);
  if (rows) m.y = out<uint8_t>(call, 3);
  if (columns) m.y_t = out<uint8_t>(call, rows ? 4 : 3);
  if (call->work->flags & TWS_LARGEST) m.largest = out<float>(call, call->count - 1);
  const bool packs =
      packable<GROUP>(in<T>(call, 0), m.width) && packable<GROUP>(m.y, m.width) && packable<GROUP>(m.y_t, m.rows);
  if (packs) {
    LAUNCH((quantize<T, e5m2, true>), grid_for(call, m.tiles, 1), BLOCK, 0, call, in<T>(call, 0), m);
  } else {
    LAUNCH((quantize<T, e5m2, false>), grid_for(call, m.tiles, 1), BLOCK, 0, call, in<T>(call, 0), m);
  }
  return launched(err);
}

// ---- delayed scaling ----

// One block for each tensor. Its row moves on by one number: a part of BLOCK numbers after another, last part first, is
// read by all threads before one of them writes.
__global__ void __launch_bounds__(BLOCK) history(float *largest, float *rows, float *amax, int64_t length, int margin) {
  float *row = rows + (int64_t)blockIdx.x * length;
  const float found = largest[blockIdx.x], newest = found <= FLT_MAX ? found : row[0];
  uint32_t most = 0;
  for (int64_t part = (length - 1) / BLOCK * BLOCK; part >= 0; part -= BLOCK) {
    const int64_t i = part + threadIdx.x;
    float moved = 0.0F;
    if (i < length) moved = i > 0 ? row[i - 1] : newest;
    __syncthreads();
    if (i < length) row[i] = moved;
    most = larger(most, bits_of<uint32_t>(moved));
  }
  most = block_largest(most);
  if (threadIdx.x > 0) return;
  amax[blockIdx.x] = fminf(ldexpf(bits_of<float>(most), margin), FLT_MAX);
  largest[blockIdx.x] = 0.0F;
}

}  // namespace

tws_code tws_cuda_amax_history(const tws_cuda_call *call, tws_error *err) {
  const tws_work *work = call->work;
  LAUNCH(history, (unsigned)work->d[0], BLOCK, 0, call, out<float>(call, 0), out<float>(call, 1), out<float>(call, 2),
         work->d[1], (int)tws_work_parameter(work, "margin"));
  return launched(err);
}

tws_code tws_cuda_amax(const tws_cuda_call *call, tws_error *err) {
  FOR_TYPE(call->dtype[0], T, {
    constexpr int N = Width<T>::value;
    if (packable<N>(in<T>(call, 0), call->work->d[0])) return run_amax<T, N>(call, err);
    return run_amax<T, 1>(call, err);
  });
}

tws_code tws_cuda_quantize(const tws_cuda_call *call, tws_error *err) {
  FOR_TYPE(
      call->dtype[0], T,
      return call->work->dtype2 == TWS_E5M2 ? run_quantize<T, true>(call, err) : run_quantize<T, false>(call, err));
}
