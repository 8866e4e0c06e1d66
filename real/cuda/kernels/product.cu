// Matrix products with plain arithmetic, for shapes, types and alignments that cuBLASLt declines. Tiles of 64 by 64.
#include "real/cuda/kernels/common.cuh"
#include "base/float8.h"

namespace {

struct E4M3 {
  uint8_t code;
};
struct E5M2 {
  uint8_t code;
};
__device__ inline float to_float(E4M3 x) {
  return tws_from_e4m3(x.code);
}
__device__ inline float to_float(E5M2 x) {
  return tws_from_e5m2(x.code);
}
using ::to_float;

enum { TILE = 64, DEPTH = 16, SIDE = 4 };  // a thread has SIDE x SIDE elements, 16 apart in each direction

// D: of the bias
template <typename A, typename B, typename D, typename C>
__global__ void product(tws_cuda_product p) {
  __shared__ float left[DEPTH][TILE + 1], right[DEPTH][TILE + 1];
  const A *a = static_cast<const A *>(p.a);
  const B *b = static_cast<const B *>(p.b);
  const D *bias = static_cast<const D *>(p.bias);
  const float scale = p.a_scale ? *p.a_scale * *p.b_scale : 1.0F;
  C *c = static_cast<C *>(p.c);
  const int64_t row0 = (int64_t)blockIdx.y * TILE, column0 = (int64_t)blockIdx.x * TILE;
  const int x = (int)threadIdx.x % 16, y = (int)threadIdx.x / 16;
  float sum[SIDE][SIDE] = {};
  for (int64_t l = 0; l < p.inner; l += DEPTH) {
    for (int i = (int)threadIdx.x; i < TILE * DEPTH; i += BLOCK) {
      const int r = i / DEPTH, k = i % DEPTH;
      const bool inside = l + k < p.inner;
      left[k][r] = inside && row0 + r < p.rows ? to_float(a[(row0 + r) * p.a_row + (l + k) * p.a_inner]) : 0.0F;
      right[k][r] =
          inside && column0 + r < p.columns ? to_float(b[(column0 + r) * p.b_column + (l + k) * p.b_inner]) : 0.0F;
    }
    __syncthreads();
#pragma unroll
    for (int k = 0; k < DEPTH; ++k)
#pragma unroll
      for (int i = 0; i < SIDE; ++i)
#pragma unroll
        for (int j = 0; j < SIDE; ++j) sum[i][j] += left[k][y + 16 * i] * right[k][x + 16 * j];
    __syncthreads();
  }
#pragma unroll
  for (int i = 0; i < SIDE; ++i)
#pragma unroll
    for (int j = 0; j < SIDE; ++j) {
      const int64_t row = row0 + y + 16 * i, column = column0 + x + 16 * j;
      if (row >= p.rows || column >= p.columns) continue;
      C *to = c + row * p.columns + column;
      float value = sum[i][j] * scale;
      if (bias) value += to_float(bias[column]);
      if (p.accumulate) value += to_float(*to);
      *to = from_float<C>(value);
    }
}

}  // namespace

tws_code tws_cuda_plain_product(const tws_cuda_call *call, const tws_cuda_product *p, tws_error *err) {
  if (p->rows == 0 || p->columns == 0) return TWS_OK;
  const int64_t rows = ceil_div(p->rows, TILE);
  if (rows > 65535)
    return tws_fail(err, TWS_UNSUPPORTED, "use a smaller micro batch", "a product of %lld rows", (long long)p->rows);
  const dim3 grid((unsigned)ceil_div(p->columns, TILE), (unsigned)rows);
  if (p->a_scale && p->in == TWS_E5M2)
    FOR_TYPE(p->out, C, LAUNCH((product<E5M2, E4M3, C, C>), grid, BLOCK, 0, call, *p));
  else if (p->a_scale)
    FOR_TYPE(p->out, C, LAUNCH((product<E4M3, E4M3, C, C>), grid, BLOCK, 0, call, *p));
  else
    FOR_TYPE(p->in, A, FOR_TYPE(p->out, C, LAUNCH((product<A, A, A, C>), grid, BLOCK, 0, call, *p)));
  return launched(err);
}
