// Selected columns of matrices, and sums of clipped gradients: models/operators_columns.def.
#include "real/cuda/kernels/common.cuh"

namespace {

// ---- sums of |x| by column: a block processes adjacent columns, and each row of its threads adds every LINES-th row
// of x, so that the order of a sum is fixed ----

enum { LINES = BLOCK / WARP };

template <typename T>
__global__ void column_norms(const T *x, float *norms, int64_t count, int64_t columns, int64_t first) {
  __shared__ double part[LINES][WARP];
  const int lane = (int)threadIdx.x % WARP, line = (int)threadIdx.x / WARP;
  for (int64_t tile = blockIdx.x; tile * WARP < columns; tile += gridDim.x) {
    const int64_t column = tile * WARP + lane;
    double sum = 0;
    for (int64_t i = column - first + line * columns; column < columns && i < count; i += LINES * columns)
      if (i >= 0) sum += fabs((double)to_float(x[i]));
    part[line][lane] = sum;
    __syncthreads();
    if (line == 0 && column < columns) {
      for (int k = 1; k < LINES; ++k) sum += part[k][lane];
      norms[column] = (float)sum;
    }
    __syncthreads();
  }
}

// ---- the largest norms, found by one block: non-negative floats are ordered as their bits are, so the bits of the
// smallest chosen norm are determined from the highest bit down ----

__device__ inline uint32_t size_bits(const float *norms, int64_t column) {
  return bits_of<uint32_t>(norms[column]) & 0x7fffffffU;
}

// Returns the sum over all threads; `scratch` has BLOCK counts.
__device__ inline int64_t count_all(int64_t mine, int64_t *scratch) {
  scratch[threadIdx.x] = mine;
  __syncthreads();
  for (int width = BLOCK / 2; width > 0; width /= 2) {
    if ((int)threadIdx.x < width) scratch[threadIdx.x] += scratch[threadIdx.x + width];
    __syncthreads();
  }
  const int64_t all = scratch[0];
  __syncthreads();
  return all;
}

// Writes the indices of the `kept` columns with the largest norms. Each thread examines adjacent columns, and writes
// the chosen ones after those of the threads before it.
__global__ void top_columns(const float *norms, int32_t *chosen, int64_t columns, int64_t kept) {
  __shared__ int64_t scratch[BLOCK], equals[BLOCK];
  const int64_t share = (columns + BLOCK - 1) / BLOCK, begin = share * threadIdx.x;
  const int64_t end = begin + share < columns ? begin + share : columns;
  uint32_t least = 0;
  for (int bit = 30; bit >= 0; --bit) {
    const uint32_t wanted = least | 1U << bit;
    int64_t as_large = 0;
    for (int64_t c = begin; c < end; ++c) as_large += size_bits(norms, c) >= wanted;
    if (count_all(as_large, scratch) >= kept) least = wanted;
  }
  int64_t above = 0, equal = 0;
  for (int64_t c = begin; c < end; ++c) {
    above += size_bits(norms, c) > least;
    equal += size_bits(norms, c) == least;
  }
  scratch[threadIdx.x] = above;
  equals[threadIdx.x] = equal;
  __syncthreads();
  int64_t all_above = 0, before = 0, equals_before = 0;
  for (int k = 0; k < BLOCK; ++k) {
    all_above += scratch[k];
    if (k < (int)threadIdx.x) before += scratch[k], equals_before += equals[k];
  }
  const int64_t wanted = kept - all_above;  // number of chosen columns whose norm equals the smallest chosen one
  int64_t at = before + (equals_before < wanted ? equals_before : wanted);
  for (int64_t c = begin; c < end; ++c) {
    const uint32_t bits = size_bits(norms, c);
    if (bits > least || (bits == least && equals_before++ < wanted)) chosen[at++] = (int32_t)(c + 1);
  }
  for (int64_t i = columns + threadIdx.x; i < kept; i += BLOCK) chosen[i] = 0;
}

// ---- elements of chosen columns ----

template <typename E, bool BACK>
__global__ void move_columns(E *x, const int32_t *chosen, E *y, int64_t count, int64_t columns, int64_t kept,
                             int64_t rows, int64_t first, int64_t before) {
  EACH_ITEM(i, rows * kept) {
    const int64_t column = chosen[i % kept] - before, at = i / kept * columns + column - 1 - first;
    const bool there = column > 0 && column <= columns && at >= 0 && at < count;
    if (BACK && there) x[at] = y[i];
    if (!BACK) y[i] = there ? x[at] : E(0);
  }
}

template <typename E, bool BACK>
tws_code run_move(const tws_cuda_call *call, tws_error *err) {
  const int64_t *d = call->work->d;
  E *x = static_cast<E *>(call->operand[BACK ? 2 : 0]), *y = static_cast<E *>(call->operand[BACK ? 0 : 2]);
  LAUNCH((move_columns<E, BACK>), grid_for(call, d[3] * d[2], BLOCK), BLOCK, 0, call, x, in<int32_t>(call, 1), y, d[0],
         d[1], d[2], d[3], (int64_t)call->argument[0], (int64_t)call->argument[1]);
  return launched(err);
}

// ---- sums of gradients ----

template <typename X, typename Y>
__global__ void accumulate_clipped(const X *x, const double *metrics, Y *y, int64_t count) {
  const float clip = (float)metrics[TWS_METRIC_CLIP];
  if (metrics[TWS_METRIC_CLIP] == 0) return;  // the gradients are not finite
  EACH_ITEM(i, count) y[i] = from_float<Y>(to_float(y[i]) + clip * to_float(x[i]));
}

template <typename X, typename Y>
tws_code run_clipped(const tws_cuda_call *call, tws_error *err) {
  const int64_t count = call->work->d[0];
  LAUNCH((accumulate_clipped<X, Y>), grid_for(call, count, BLOCK), BLOCK, 0, call, in<X>(call, 0), in<double>(call, 1),
         out<Y>(call, 2), count);
  return launched(err);
}

}  // namespace

extern "C" {

tws_code tws_cuda_column_norms(const tws_cuda_call *call, tws_error *err) {
  const int64_t *d = call->work->d;
  FOR_TYPE(call->dtype[0], T, {
    LAUNCH(column_norms<T>, grid_for(call, d[1], WARP), BLOCK, 0, call, in<T>(call, 0), out<float>(call, 1), d[0], d[1],
           (int64_t)call->argument[0]);
    return launched(err);
  });
}
tws_code tws_cuda_top_columns(const tws_cuda_call *call, tws_error *err) {
  const int64_t *d = call->work->d;
  LAUNCH(top_columns, 1, BLOCK, 0, call, in<float>(call, 0), out<int32_t>(call, 1), d[0], d[1]);
  return launched(err);
}
tws_code tws_cuda_gather_columns(const tws_cuda_call *call, tws_error *err) {
  return call->dtype[0] == TWS_F32 ? run_move<uint32_t, false>(call, err) : run_move<uint16_t, false>(call, err);
}
tws_code tws_cuda_scatter_columns(const tws_cuda_call *call, tws_error *err) {
  return call->dtype[0] == TWS_F32 ? run_move<uint32_t, true>(call, err) : run_move<uint16_t, true>(call, err);
}
tws_code tws_cuda_accumulate_clipped(const tws_cuda_call *call, tws_error *err) {
  FOR_TYPE(call->dtype[0], X, FOR_TYPE(call->dtype[2], Y, return (run_clipped<X, Y>(call, err))));
}

}  // extern "C"
