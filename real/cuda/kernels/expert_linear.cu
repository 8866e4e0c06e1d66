// Linear layers of experts on the filled slots. Products of 16-bit types whose rows are multiples of 16 bytes run on
// tensor cores (expert_tiles.cu); the kernels below compute all others with float32 arithmetic. Only the device knows
// the number of filled slots, so the grid covers the tiles of all slots, and blocks of tiles beyond the filled slots
// return at once. Tiles are 64 by 64.
#include "real/cuda/kernels/experts.cuh"

namespace {

enum {
  TILE = 64,
  DEPTH = 16,
  SIDE = 4
};  // a thread computes SIDE x SIDE elements, which are 16 apart in rows and
    // columns

struct Tile {
  float sum[SIDE][SIDE];
  int x, y;
};

// Adds the product over `inner`: A(row, i) is at a[row a_row + i a_inner], B(column, i) at b with its own strides.
template <typename T>
__device__ void multiply(Tile &tile, const T *a, int64_t a_row, int64_t a_inner, int64_t rows, const T *b,
                         int64_t b_column, int64_t b_inner, int64_t columns, int64_t inner) {
  __shared__ float left[DEPTH][TILE + 1], right[DEPTH][TILE + 1];
  for (int64_t l = 0; l < inner; l += DEPTH) {
    for (int i = (int)threadIdx.x; i < TILE * DEPTH; i += BLOCK) {
      const int r = i / DEPTH, k = i % DEPTH;
      const bool inside = l + k < inner;
      left[k][r] = inside && r < rows ? to_float(a[r * a_row + (l + k) * a_inner]) : 0.0F;
      right[k][r] = inside && r < columns ? to_float(b[r * b_column + (l + k) * b_inner]) : 0.0F;
    }
    __syncthreads();
#pragma unroll
    for (int k = 0; k < DEPTH; ++k)
#pragma unroll
      for (int i = 0; i < SIDE; ++i)
#pragma unroll
        for (int j = 0; j < SIDE; ++j) tile.sum[i][j] += left[k][tile.y + 16 * i] * right[k][tile.x + 16 * j];
    __syncthreads();
  }
}

__device__ Tile empty_tile() {
  Tile tile = {};
  tile.x = (int)threadIdx.x % 16, tile.y = (int)threadIdx.x / 16;
  return tile;
}

// Computes y[slot, n] = sum over k of x[slot, k] weight(n, k). Unfilled slots become 0, or stay when adding.
template <typename T>
__global__ void slots_product(Experts e, const T *x, const T *weight, int64_t weight_column, int64_t weight_inner,
                              const T *bias, T *y, int64_t columns, int64_t inner, int adds) {
  const int64_t block = blockIdx.z, expert = block % e.experts, filled = filled_of(e, block);
  const int64_t row0 = (int64_t)blockIdx.y * TILE, column0 = (int64_t)blockIdx.x * TILE;
  // maximum number of rows of this expert's slots: if experts share a pack of slots, the last one clears the unused
  // slots
  const int64_t most = filled + tws_slots_left(e.counts, block, e.capacity, e.shared), first = first_of(e, block);
  if (row0 >= most) return;
  const T *a = x + (first + row0) * inner;
  const T *b = weight + expert * e.out * e.in + column0 * weight_column;
  T *c = y + (first + row0) * columns + column0;
  Tile tile = empty_tile();
  if (row0 < filled)
    multiply(tile, a, inner, 1, filled - row0, b, weight_column, weight_inner, columns - column0, inner);
#pragma unroll
  for (int i = 0; i < SIDE; ++i)
#pragma unroll
    for (int j = 0; j < SIDE; ++j) {
      const int64_t row = tile.y + 16 * i, column = tile.x + 16 * j;
      if (row0 + row >= most || column0 + column >= columns) continue;
      const bool is_filled = row0 + row < filled;
      if (!is_filled && adds) continue;
      float value = is_filled ? tile.sum[i][j] : 0.0F;
      if (is_filled && bias) value += to_float(bias[expert * columns + column0 + column]);
      if (adds) value += to_float(c[row * columns + column]);
      c[row * columns + column] = from_float<T>(value);
    }
}

template <typename T, typename G>
__global__ void weight_gradient(Experts e, const T *dy, const T *x, G *dweight, int adds) {
  const int64_t expert = blockIdx.z, row0 = (int64_t)blockIdx.y * TILE, column0 = (int64_t)blockIdx.x * TILE;
  Tile tile = empty_tile();
  for (int64_t block = expert; block < e.sources * e.experts; block += e.experts)
    multiply(tile, dy + first_of(e, block) * e.out + row0, 1, e.out, e.out - row0,
             x + first_of(e, block) * e.in + column0, 1, e.in, e.in - column0, filled_of(e, block));
  G *c = dweight + expert * e.out * e.in;
#pragma unroll
  for (int i = 0; i < SIDE; ++i)
#pragma unroll
    for (int j = 0; j < SIDE; ++j) {
      const int64_t row = row0 + tile.y + 16 * i, column = column0 + tile.x + 16 * j;
      if (row >= e.out || column >= e.in) continue;
      G *to = c + row * e.in + column;
      *to = from_float<G>(tile.sum[i][j] + (adds ? to_float(*to) : 0.0F));
    }
}

template <typename T, typename G>
__global__ void bias_gradient(Experts e, const T *dy, G *dbias, int adds) {
  const int64_t all = e.experts * e.out, step = (int64_t)gridDim.x * blockDim.x;
  for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < all; i += step) {
    float sum = adds ? to_float(dbias[i]) : 0.0F;
    for (int64_t block = i / e.out; block < e.sources * e.experts; block += e.experts) {
      const T *column = dy + first_of(e, block) * e.out + i % e.out;
      const int64_t rows = filled_of(e, block);
#pragma unroll 8
      for (int64_t row = 0; row < rows; ++row) sum += to_float(column[row * e.out]);
    }
    dbias[i] = from_float<G>(sum);
  }
}

int64_t rows_of_pack(const Experts &e) {
  return e.capacity * (e.shared > 1 ? e.shared : 1);
}

tws_code grid_of(int64_t columns, int64_t rows, int64_t blocks, dim3 *grid, tws_error *err) {
  const int64_t down = ceil_div(rows, TILE);
  if (down > 65535 || blocks > 65535)
    return tws_fail(err, TWS_UNSUPPORTED, "use a smaller micro batch", "a product of %lld experts of %lld rows",
                    (long long)blocks, (long long)rows);
  *grid = dim3((unsigned)ceil_div(columns, TILE), (unsigned)down, (unsigned)blocks);
  return TWS_OK;
}

tws_code plain_weight_gradient(const tws_cuda_call *call, const Experts &e, int adds, tws_error *err) {
  dim3 grid;
  TWS_TRY(grid_of(e.in, e.out, e.experts, &grid, err));
  FOR_TYPE(call->dtype[0], T,
           FOR_TYPE(call->dtype[3], G,
                    LAUNCH((weight_gradient<T, G>), grid, BLOCK, 0, call, e, in<T>(call, 0), in<T>(call, 1),
                           out<G>(call, 3), adds)));
  return launched(err);
}

}  // namespace

tws_code tws_cuda_expert_linear(const tws_cuda_call *call, tws_error *err) {
  const int biased = (call->work->flags & TWS_BIAS) != 0;
  const Experts e = experts_of(call, biased ? 3 : 2);
  int done = 0;
  TWS_TRY(tws_cuda_expert_tiles(call, &done, err));
  if (done) return TWS_OK;
  dim3 grid;
  TWS_TRY(grid_of(e.out, rows_of_pack(e), e.sources * e.experts, &grid, err));
  FOR_TYPE(call->dtype[0], T,
           LAUNCH(slots_product<T>, grid, BLOCK, 0, call, e, in<T>(call, 0), in<T>(call, 1), e.in, (int64_t)1,
                  biased ? in<T>(call, 2) : NULL, out<T>(call, biased ? 4 : 3), e.out, e.in, 0));
  return launched(err);
}

tws_code tws_cuda_expert_linear_grad_input(const tws_cuda_call *call, tws_error *err) {
  const Experts e = experts_of(call, 2);
  int done = 0;
  TWS_TRY(tws_cuda_expert_tiles(call, &done, err));
  if (done) return TWS_OK;
  dim3 grid;
  TWS_TRY(grid_of(e.in, rows_of_pack(e), e.sources * e.experts, &grid, err));
  FOR_TYPE(call->dtype[0], T,
           LAUNCH(slots_product<T>, grid, BLOCK, 0, call, e, in<T>(call, 0), in<T>(call, 1), (int64_t)1, e.in,
                  (const T *)NULL, out<T>(call, 3), e.in, e.out, (call->work->flags & TWS_ACCUMULATE) != 0));
  return launched(err);
}

tws_code tws_cuda_expert_linear_grad_weight(const tws_cuda_call *call, tws_error *err) {
  const Experts e = experts_of(call, 2);
  const int adds = (call->work->flags & TWS_ACCUMULATE) != 0;
  int done = 0;
  TWS_TRY(tws_cuda_expert_tiles(call, &done, err));
  if (!done) TWS_TRY(plain_weight_gradient(call, e, adds, err));
  if (!(call->work->flags & TWS_BIAS)) return TWS_OK;
  FOR_TYPE(call->dtype[0], T,
           FOR_TYPE(call->dtype[4], G,
                    LAUNCH((bias_gradient<T, G>), grid_for(call, e.experts * e.out, BLOCK), BLOCK, 0, call, e,
                           in<T>(call, 0), out<G>(call, 4), adds)));
  return launched(err);
}
