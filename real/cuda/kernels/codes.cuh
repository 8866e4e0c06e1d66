// Casts to 8-bit floating point of tensors that a kernel reads or computes: codes in the row-major and in the
// transposed layout, and the largest magnitude (models/operators_float8.def: QUANTIZE; models/operators_gated.def).
#ifndef TWS_REAL_CUDA_KERNELS_CODES_CUH
#define TWS_REAL_CUDA_KERNELS_CODES_CUH

#include "real/cuda/kernels/common.cuh"
#ifdef __CUDACC__
#include <cuda_fp8.h>
#endif
#include "base/float8.h"

extern "C" {
#include "models/operator.h"
}

namespace {

template <bool e5m2>
__device__ inline uint32_t code_of(float x) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 890
  return __nv_cvt_float_to_fp8(x, __NV_SATFINITE, e5m2 ? __NV_E5M2 : __NV_E4M3);
#else
  return e5m2 ? tws_to_e5m2(x) : tws_to_e4m3(x);
#endif
}

// Returns x, or NaN in place of infinity, which has to stay visible where the scale is that of earlier steps and
// therefore finite. *most: raised to the magnitude of x.
__device__ inline float only_finite(float x, uint32_t *most) {
  const uint32_t bits = bits_of<uint32_t>(x) & 0x7fffffffU;
  *most = bits > *most ? bits : *most;
  return bits == 0x7f800000U ? bits_of<float>(0x7fc00000U) : x;
}

enum {
  SIDE = 64,
  GROUP = 4,
  GROUPS = SIDE / GROUP
};  // SIDE: rows and columns of a tile; GROUP: columns that a thread
    // processes at once
typedef uint8_t CodeTile[SIDE][SIDE + GROUP];

// The cast of a tensor of rows x (parts width) elements. Its columns are `parts` ranges of `width` columns each, and a
// block casts the same tile of all parts.
struct Cast {
  int64_t rows, width, across, tiles;
  int parts;
  const float *amax;
  float *scale;
  uint8_t *y, *y_t;  // row-major codes and transposed codes, or null
  float *largest;    // raised to the largest magnitude, or null
  // Partial sums of the columns: a row of `width` numbers for each of `ranges` sets of rows; only with SUMS.
  int64_t ranges;
  float *sums;
};

inline Cast tiles_of(int64_t rows, int64_t width, int parts) {
  Cast c = {};
  c.rows = rows, c.width = width, c.parts = parts;
  c.across = ceil_div(width, SIDE);
  c.tiles = c.across * ceil_div(rows, SIDE);
  return c;
}

// Operand `first` of the call is amax; the scale, the codes of the layouts of the work's flags, and with `raises` the
// largest magnitude follow.
inline Cast cast_of(const tws_cuda_call *call, int first, int64_t rows, int64_t width, int parts, bool raises) {
  Cast c = tiles_of(rows, width, parts);
  c.amax = in<float>(call, first), c.scale = out<float>(call, first + 1);
  int n = first + 2;
  if (call->work->flags & TWS_ROWS) c.y = out<uint8_t>(call, n++);
  if (call->work->flags & TWS_COLUMNS) c.y_t = out<uint8_t>(call, n++);
  if (raises) c.largest = out<float>(call, n);
  return c;
}

// Loads GROUP elements, or those that are left of a row. packs: rows and addresses are multiples of GROUP elements.
template <bool packs, typename T>
__device__ inline void load_group(const T *from, int64_t left, float (&v)[GROUP]) {
  if constexpr (packs) {
    load(from, v);
  } else {
#pragma unroll
    for (int k = 0; k < GROUP; ++k) v[k] = k < left ? to_float(from[k]) : 0.0F;
  }
}

// Writes the transposed codes of a tile, of one part of the columns.
template <bool packs>
__device__ inline void put_columns(const CodeTile &tile, const Cast &c, int64_t row0, int64_t column0, int part) {
  const int group = (int)threadIdx.x % GROUPS * GROUP, first = (int)threadIdx.x / GROUPS;
  const int64_t row = row0 + group;
  for (int i = first; i < SIDE; i += BLOCK / GROUPS) {
    const int64_t column = column0 + i;
    if (column >= c.width || row >= c.rows) continue;
    uint8_t *to = c.y_t + (part * c.width + column) * c.rows + row;
    uint32_t codes = 0;
#pragma unroll
    for (int k = 0; k < GROUP; ++k) codes |= (uint32_t)tile[group + k][i] << (8 * k);
    if (packs) *reinterpret_cast<uint32_t *>(to) = codes;
    for (int k = 0; !packs && k < GROUP && row + k < c.rows; ++k) to[k] = (uint8_t)(codes >> (8 * k));
  }
}

// Adds the sums of threads that processed the same columns, in the order of the threads, and writes one number for each
// of the block's columns.
__device__ inline void put_sums(const float (&sum)[GROUP], const Cast &c) {
  __shared__ float sums[BLOCK / GROUPS][SIDE];
  const int group = (int)threadIdx.x % GROUPS * GROUP, first = (int)threadIdx.x / GROUPS;
#pragma unroll
  for (int k = 0; k < GROUP; ++k) sums[first][group + k] = sum[k];
  __syncthreads();
  const int64_t column = blockIdx.x % c.across * SIDE + threadIdx.x;
  if (threadIdx.x >= SIDE || column >= c.width) return;
  float all = 0.0F;
  for (int i = 0; i < BLOCK / GROUPS; ++i) all += sums[i][threadIdx.x];
  c.sums[blockIdx.x / c.across * c.width + column] = all;
}

// Tiles of SIDE x SIDE: codes go to memory row by row, and through shared memory column by column. Source::get()
// returns GROUP elements of each of Source::PARTS parts, as the storage type rounds them. packs: row sizes and
// addresses are multiples of GROUP. SUMS: the elements are also summed over the rows. The number of blocks is then a
// multiple of the number of tiles in a row, so that all tiles of a block have the same columns, of which each thread
// sums some rows in order; which rows these are follows from the shape and the number of multiprocessors.
template <typename Source, bool e5m2, bool packs, bool SUMS>
__global__ void __launch_bounds__(BLOCK) cast(Source source, Cast c) {
  constexpr int PARTS = Source::PARTS;
  static_assert(!SUMS || PARTS == 1, "a thread sums one group of columns");
  __shared__ CodeTile tile[PARTS];
  const float multiplier = tws_float8_multiplier(*c.amax, e5m2 ? TWS_E5M2 : TWS_E4M3);
  const int group = (int)threadIdx.x % GROUPS * GROUP, first = (int)threadIdx.x / GROUPS;
  uint32_t most = 0;
  [[maybe_unused]] float sum[GROUP] = {};
  if (blockIdx.x == 0 && threadIdx.x == 0) *c.scale = 1.0F / multiplier;
  for (int64_t t = blockIdx.x; t < c.tiles; t += gridDim.x) {
    const int64_t row0 = t / c.across * SIDE, column0 = t % c.across * SIDE;
    for (int r = first; r < SIDE; r += BLOCK / GROUPS) {
      const int64_t row = row0 + r, column = column0 + group;
      if (row >= c.rows || column >= c.width) continue;
      float v[PARTS][GROUP];
      source.template get<packs>(row, column, c.width, v);
#pragma unroll
      for (int p = 0; p < PARTS; ++p) {
        uint8_t *to = c.y + (row * PARTS + p) * c.width + column;
        uint32_t codes = 0;
#pragma unroll
        for (int k = 0; k < GROUP; ++k) {
          if constexpr (SUMS) sum[k] += v[p][k];
          const float x = c.largest ? only_finite(v[p][k], &most) : v[p][k];
          codes |= code_of<e5m2>(x * multiplier) << (8 * k);
        }
        if (c.y_t) *reinterpret_cast<uint32_t *>(&tile[p][r][group]) = codes;
        if (packs && c.y) *reinterpret_cast<uint32_t *>(to) = codes;
        for (int k = 0; !packs && c.y && k < GROUP && column + k < c.width; ++k) to[k] = (uint8_t)(codes >> (8 * k));
      }
    }
    if (!c.y_t) continue;
    __syncthreads();
#pragma unroll
    for (int p = 0; p < PARTS; ++p) put_columns<packs>(tile[p], c, row0, column0, p);
    __syncthreads();
  }
  if constexpr (SUMS) put_sums(sum, c);
  if (c.largest) raise_largest(c.largest, most);
}

// Runs the cast. packed: the source can be read in packs of GROUP elements.
template <bool e5m2, bool SUMS = false, typename Source>
tws_code run_cast(const tws_cuda_call *call, const Source &source, const Cast &c, bool packed, tws_error *err) {
  const unsigned blocks = SUMS ? (unsigned)(c.across * c.ranges) : grid_for(call, c.tiles, 1);
  if (packed && packable<GROUP>(c.y, c.width) && packable<GROUP>(c.y_t, c.rows))
    LAUNCH((cast<Source, e5m2, true, SUMS>), blocks, BLOCK, 0, call, source, c);
  else
    LAUNCH((cast<Source, e5m2, false, SUMS>), blocks, BLOCK, 0, call, source, c);
  return launched(err);
}

}  // namespace

#endif
