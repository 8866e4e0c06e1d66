// Low-rank adapters: products in which one matrix has few rows or columns, for some of the column ranges of a row
// (queries, keys, values), with plain arithmetic. A block computes a tile of 32 by 32 of the result; memory bandwidth
// bounds the kernel.
#include "real/cuda/kernels/common.cuh"

namespace {

enum { SIDE = 32, DEEP = 32 };

struct Part {
  int64_t column, width, row, slot;
};

int parts_of(const int64_t *d, Part part[3]) {
  int count = 0;
  int64_t column = 0, row = 0;
  for (int i = 0; i < 3; ++i) {
    if (!d[5 + i] && d[2 + i] > 0) {
      part[count] = {column, d[2 + i], row, count * d[1]};
      row += part[count++].width;
    }
    column += d[2 + i];
  }
  return count;
}

// One factor of a product: element (i, k), where k is summed over, is at i across + k along.
struct Side {
  int64_t count, across, along;
};

template <typename A, typename B, typename C>
__global__ void strided_product(const A *a, Side rows, const B *b, Side columns, int64_t inner, C *c, int64_t stride,
                                int adds) {
  __shared__ float left[DEEP][SIDE + 1], right[DEEP][SIDE + 1];
  const int64_t row0 = (int64_t)blockIdx.y * SIDE, column0 = (int64_t)blockIdx.x * SIDE;
  const int x = (int)threadIdx.x % SIDE, y = (int)threadIdx.x / SIDE;
  float sum[4] = {0, 0, 0, 0};
  for (int64_t l = 0; l < inner; l += DEEP) {
    for (int i = (int)threadIdx.x; i < SIDE * DEEP; i += BLOCK) {
      const int r = i / DEEP, k = i % DEEP;
      const bool inside = l + k < inner;
      left[k][r] =
          inside && row0 + r < rows.count ? to_float(a[(row0 + r) * rows.across + (l + k) * rows.along]) : 0.0F;
      right[k][r] = inside && column0 + r < columns.count
                        ? to_float(b[(column0 + r) * columns.across + (l + k) * columns.along])
                        : 0.0F;
    }
    __syncthreads();
    for (int k = 0; k < DEEP; ++k)
      for (int i = 0; i < 4; ++i) sum[i] += left[k][y + 8 * i] * right[k][x];
    __syncthreads();
  }
  for (int i = 0; i < 4; ++i) {
    const int64_t row = row0 + y + 8 * i, column = column0 + x;
    if (row >= rows.count || column >= columns.count) continue;
    C *to = c + row * stride + column;
    *to = from_float<C>(sum[i] + (adds ? to_float(*to) : 0.0F));
  }
}

tws_code grid_of(int64_t columns, int64_t rows, dim3 *grid, tws_error *err) {
  const int64_t down = ceil_div(rows, SIDE);
  if (down > 65535)
    return tws_fail(err, TWS_UNSUPPORTED, "use a smaller micro batch", "an adapter's product of %lld rows",
                    (long long)rows);
  *grid = dim3((unsigned)ceil_div(columns, SIDE), (unsigned)down);
  return TWS_OK;
}

}  // namespace

tws_code tws_cuda_low_rank(const tws_cuda_call *call, tws_error *err) {
  const int64_t *d = call->work->d, width = d[2] + d[3] + d[4];
  Part part[3];
  const int count = parts_of(d, part);
  for (int i = 0; i < count; ++i) {
    dim3 grid;
    TWS_TRY(grid_of(part[i].width, d[0], &grid, err));
    const Side rows = {d[0], count * d[1], 1}, columns = {part[i].width, d[1], 1};
    FOR_TYPE(call->dtype[0], T,
             LAUNCH((strided_product<T, T, T>), grid, BLOCK, 0, call, in<T>(call, 0) + part[i].slot, rows,
                    in<T>(call, 1) + part[i].row * d[1], columns, d[1], out<T>(call, 2) + part[i].column, width, 1));
    TWS_TRY(launched(err));
  }
  return TWS_OK;
}

tws_code tws_cuda_low_rank_grad_input(const tws_cuda_call *call, tws_error *err) {
  const int64_t *d = call->work->d, width = d[2] + d[3] + d[4];
  Part part[3];
  const int count = parts_of(d, part);
  for (int i = 0; i < count; ++i) {
    dim3 grid;
    TWS_TRY(grid_of(d[1], d[0], &grid, err));
    const Side rows = {d[0], width, 1}, columns = {d[1], 1, d[1]};
    FOR_TYPE(call->dtype[0], T,
             LAUNCH((strided_product<T, T, T>), grid, BLOCK, 0, call, in<T>(call, 0) + part[i].column, rows,
                    in<T>(call, 1) + part[i].row * d[1], columns, part[i].width, out<T>(call, 2) + part[i].slot,
                    count * d[1], 0));
    TWS_TRY(launched(err));
  }
  return TWS_OK;
}

tws_code tws_cuda_low_rank_grad_weight(const tws_cuda_call *call, tws_error *err) {
  const int64_t *d = call->work->d, width = d[2] + d[3] + d[4];
  const int adds = (call->work->flags & TWS_ACCUMULATE) != 0;
  Part part[3];
  const int count = parts_of(d, part);
  for (int i = 0; i < count; ++i) {
    dim3 grid;
    TWS_TRY(grid_of(d[1], part[i].width, &grid, err));
    const Side rows = {part[i].width, 1, width}, columns = {d[1], 1, count * d[1]};
    FOR_TYPE(call->dtype[0], T,
             FOR_TYPE(call->dtype[2], G,
                      LAUNCH((strided_product<T, T, G>), grid, BLOCK, 0, call, in<T>(call, 0) + part[i].column, rows,
                             in<T>(call, 1) + part[i].slot, columns, d[0], out<G>(call, 2) + part[i].row * d[1], d[1],
                             adds)));
    TWS_TRY(launched(err));
  }
  return TWS_OK;
}
