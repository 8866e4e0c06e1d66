// 8-bit operands of products: the largest magnitude of a tensor, and its codes, in row-major order and transposed. All
// kernels are bound by memory bandwidth. With delayed scaling the cast finds the largest magnitude too, and the cast of
// the gradient of a layer's output also sums it over the tokens, for the gradient of the layer's bias.
#include "real/cuda/kernels/codes.cuh"

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

// Reads a tensor.
template <typename T>
struct Stored {
  static constexpr int PARTS = 1;
  const T *x;
  template <bool packs>
  __device__ void get(int64_t row, int64_t column, int64_t width, float (&v)[PARTS][GROUP]) const {
    load_group<packs>(x + row * width + column, width - column, v[0]);
  }
};

template <typename T, bool e5m2>
tws_code run_quantize(const tws_cuda_call *call, tws_error *err) {
  const int64_t width = call->work->d[1];
  const Stored<T> x = {in<T>(call, 0)};
  const Cast c = cast_of(call, 1, call->work->d[0], width, 1, (call->work->flags & TWS_LARGEST) != 0);
  return run_cast<e5m2>(call, x, c, packable<GROUP>(x.x, width), err);
}

// Casts to e5m2 and sums the columns in two stages: each of `ranges` blocks sums the rows of some tiles of the same
// columns, and another kernel adds these partial sums. The blocks of all columns fill the device.
template <typename T>
tws_code run_quantize_sum(const tws_cuda_call *call, tws_error *err) {
  const int64_t rows = call->work->d[0], width = call->work->d[1], row_tiles = ceil_div(rows, SIDE);
  const int sums = call->count - 1;
  const Stored<T> x = {in<T>(call, 0)};
  if (width == 0) return TWS_OK;
  Cast c = cast_of(call, 1, rows, width, 1, (call->work->flags & TWS_LARGEST) != 0);
  const int64_t most = (int64_t)(call->scratch_bytes / sizeof(float)) / width;
  c.ranges = ceil_div((int64_t)call->multiprocessors * 8, c.across);
  if (c.ranges > row_tiles) c.ranges = row_tiles;
  if (c.ranges > most) c.ranges = most;
  if (c.ranges < 1 && most > 0) c.ranges = 1;  // no rows: one range of zeros
  if (c.ranges < 1)
    return tws_fail(err, TWS_UNSUPPORTED, NULL, "column sums of %lld columns do not fit the scratch memory",
                    (long long)width);
  c.sums = static_cast<float *>(call->scratch);
  TWS_TRY((run_cast<true, true>(call, x, c, packable<GROUP>(x.x, width), err)));
  return tws_cuda_finish_columns(call, (int)c.ranges, width, call->operand[sums], call->dtype[sums],
                                 (call->work->flags & TWS_ACCUMULATE) != 0, err);
}

// Transposes codes by tiles through shared memory. packs: row sizes and addresses are multiples of GROUP.
template <bool packs>
__global__ void __launch_bounds__(BLOCK) transpose(const uint8_t *x, Cast c) {
  __shared__ CodeTile tile;
  const int group = (int)threadIdx.x % GROUPS * GROUP, first = (int)threadIdx.x / GROUPS;
  for (int64_t t = blockIdx.x; t < c.tiles; t += gridDim.x) {
    const int64_t row0 = t / c.across * SIDE, column0 = t % c.across * SIDE, column = column0 + group;
    for (int r = first; r < SIDE; r += BLOCK / GROUPS) {
      const uint8_t *from = x + (row0 + r) * c.width + column;
      uint32_t codes = 0;
      if (row0 + r >= c.rows || column >= c.width) continue;
      if (packs) codes = *reinterpret_cast<const uint32_t *>(from);
      for (int k = 0; !packs && k < GROUP && column + k < c.width; ++k) codes |= (uint32_t)from[k] << (8 * k);
      *reinterpret_cast<uint32_t *>(&tile[r][group]) = codes;
    }
    __syncthreads();
    put_columns<packs>(tile, c, row0, column0, 0);
    __syncthreads();
  }
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

tws_code tws_cuda_transpose_codes(const tws_cuda_call *call, tws_error *err) {
  Cast c = tiles_of(call->work->d[0], call->work->d[1], 1);
  const uint8_t *x = in<uint8_t>(call, 0);
  c.y_t = out<uint8_t>(call, 1);
  if (packable<GROUP>(x, c.width) && packable<GROUP>(c.y_t, c.rows))
    LAUNCH(transpose<true>, grid_for(call, c.tiles, 1), BLOCK, 0, call, x, c);
  else
    LAUNCH(transpose<false>, grid_for(call, c.tiles, 1), BLOCK, 0, call, x, c);
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

tws_code tws_cuda_quantize_sum(const tws_cuda_call *call, tws_error *err) {
  FOR_TYPE(call->dtype[0], T, return run_quantize_sum<T>(call, err));
}
