// Adafactor's kernels: sums of squares of rows and columns, second moments, the change and its norm, and the update.
#include "real/cuda/kernels/common.cuh"

extern "C" {
#include "models/operator.h"
}

namespace {

// The range of a matrix that one operation processes: elements [first, first + count) of a matrix of rows x columns.
struct Part {
  int64_t rows, columns, first, count;
};

Part part_of(const tws_cuda_call *call) {
  const int64_t *d = call->work->d;
  return {d[0], d[1], (int64_t)call->argument[0], d[2]};
}

template <typename G>
__device__ double square_at(const G *grad, int64_t i, float clip) {
  const float g = to_float(grad[i]) * clip;
  return (double)g * (double)g;
}

// Sums squares of the clipped gradient by rows; a block sums a row.
template <typename G>
__global__ void row_sums(const G *grad, const double *metrics, double *sums, Part m) {
  __shared__ double scratch[BLOCK / WARP];
  const float clip = (float)metrics[TWS_METRIC_CLIP];
  for (int64_t row = blockIdx.x; row < m.rows; row += gridDim.x) {
    double sum = 0;
    for (int64_t j = threadIdx.x; j < m.columns; j += blockDim.x) {
      const int64_t at = row * m.columns + j - m.first;
      if (at >= 0 && at < m.count) sum += square_at(grad, at, clip);
    }
    sum = block_sum(sum, scratch);
    if (threadIdx.x == 0) sums[row] = sum;
  }
}

enum { LINES = BLOCK / WARP };  // rows that a block reads at once

// Sums squares of the clipped gradient by columns. A block sums WARP columns: each of its warps every LINES-th row.
template <typename G>
__global__ void column_sums(const G *grad, const double *metrics, double *sums, Part m) {
  __shared__ double scratch[LINES][WARP];
  const float clip = (float)metrics[TWS_METRIC_CLIP];
  const int lane = (int)threadIdx.x % WARP, line = (int)threadIdx.x / WARP;
  const int64_t rows = m.rows > 0 ? m.rows : 1, groups = (m.columns + WARP - 1) / WARP;
  for (int64_t group = blockIdx.x; group < groups; group += gridDim.x) {
    const int64_t column = group * WARP + lane;
    double sum = 0;
    for (int64_t row = line; row < rows && column < m.columns; row += LINES) {
      const int64_t at = row * m.columns + column - m.first;
      if (at >= 0 && at < m.count) sum += square_at(grad, at, clip);
    }
    scratch[line][lane] = sum;
    __syncthreads();
    if (line == 0) {
      for (int k = 1; k < LINES; ++k) sum += scratch[k][lane];
      if (column < m.columns) sums[m.rows + column] = sum;
    }
    __syncthreads();
  }
}

__global__ void update_moments(float *moments, const double *sums, const float *hyper, const double *metrics,
                               double decay, int64_t rows, int64_t columns) {
  if (metrics[TWS_METRIC_CLIP] == 0) return;
  const float part = (float)pow((double)hyper[TWS_HYPER_STEP], decay);
  EACH_ITEM(i, rows + columns) {
    const int64_t terms = rows == 0 ? 1 : i < rows ? columns : rows;
    moments[i] += part * ((float)(sums[i] / (double)terms) - moments[i]);
  }
}

// One block.
__global__ void mean_of_rows(const float *moments, double *mean, int64_t rows) {
  __shared__ double scratch[BLOCK / WARP];
  double sum = 0;
  for (int64_t i = threadIdx.x; i < rows; i += blockDim.x) sum += (double)moments[i];
  sum = block_sum(sum, scratch);
  if (threadIdx.x == 0) *mean = sum / (double)rows;
}

template <typename G>
__global__ void find_change(const float *moments, const G *grad, const double *metrics, float *change,
                            const double *mean_of, Part m, double epsilon) {
  const float clip = (float)metrics[TWS_METRIC_CLIP], least = (float)(epsilon * epsilon);
  float mean = m.rows > 0 ? (float)*mean_of : 1;
  if (m.rows > 0 && mean < (float)epsilon) mean = (float)epsilon;  // NaN stays
  EACH_ITEM(i, m.count) {
    const int64_t row = (m.first + i) / m.columns, column = (m.first + i) % m.columns;
    const float v = (m.rows > 0 ? moments[row] : 1) * moments[m.rows + column] / mean;
    change[i] = to_float(grad[i]) * clip / sqrtf(v < least ? least : v);
  }
}

__global__ void norm_parts(const float *p, const float *change, int64_t count, double *parts) {
  __shared__ double scratch[BLOCK / WARP];
  double sum[2] = {0, 0};
  EACH_ITEM(i, count) {
    sum[0] += (double)p[i] * (double)p[i];
    sum[1] += (double)change[i] * (double)change[i];
  }
  for (int k = 0; k < 2; ++k) {
    const double all = block_sum(sum[k], scratch);
    if (threadIdx.x == 0) parts[2 * blockIdx.x + k] = all;
  }
}

// One block.
__global__ void add_norms(const double *parts, int count, double share, double *norms) {
  __shared__ double scratch[BLOCK / WARP];
  for (int k = 0; k < 2; ++k) {
    double sum = 0;
    for (int i = (int)threadIdx.x; i < count; i += (int)blockDim.x) sum += parts[2 * i + k];
    sum = block_sum(sum, scratch);
    if (threadIdx.x == 0) norms[k] = share * sum;
  }
}

struct Constants {
  double weight_decay, scale_epsilon, d;
};

template <typename P>
__global__ void update(float *p, const float *change, const float *hyper, const double *metrics, const double *norms,
                       P *p16, Constants c, int64_t count) {
  if (metrics[TWS_METRIC_CLIP] == 0) return;
  const double lr = (double)hyper[TWS_HYPER_LR], rate = fmin(lr, 1 / sqrt((double)hyper[TWS_HYPER_STEP]));
  const float decay = (float)(lr * c.weight_decay);
  const float scale = (float)(fmax(c.scale_epsilon, sqrt(norms[0])) * rate / fmax(1.0, sqrt(norms[1]) / c.d));
  EACH_ITEM(i, count) {
    p[i] = p[i] - decay * p[i] - scale * change[i];
    if (p16) p16[i] = from_float<P>(p[i]);
  }
}

template <typename G>
tws_code run_sums(const tws_cuda_call *call, tws_error *err) {
  const Part m = part_of(call);
  const G *grad = in<G>(call, 0);
  const double *metrics = in<double>(call, 1);
  double *sums = out<double>(call, 2);
  if (m.rows > 0) {
    LAUNCH(row_sums<G>, grid_for(call, m.rows, 1), BLOCK, 0, call, grad, metrics, sums, m);
    TWS_TRY(launched(err));
  }
  LAUNCH(column_sums<G>, grid_for(call, m.columns, WARP), BLOCK, 0, call, grad, metrics, sums, m);
  return launched(err);
}

template <typename G>
tws_code run_change(const tws_cuda_call *call, tws_error *err) {
  const Part m = part_of(call);
  double *mean = static_cast<double *>(call->scratch);
  if (m.rows > 0) {
    LAUNCH(mean_of_rows, 1, BLOCK, 0, call, in<float>(call, 0), mean, m.rows);
    TWS_TRY(launched(err));
  }
  LAUNCH(find_change<G>, grid_for(call, m.count, BLOCK), BLOCK, 0, call, in<float>(call, 0), in<G>(call, 1),
         in<double>(call, 2), out<float>(call, 3), mean, m, call->work->f[0]);
  return launched(err);
}

template <typename P>
tws_code run_update(const tws_cuda_call *call, tws_error *err) {
  const double *f = call->work->f;
  const Constants c = {f[0], f[1], f[2]};
  const int64_t count = call->work->d[0];
  P *p16 = call->count > 5 ? out<P>(call, 5) : nullptr;
  LAUNCH(update<P>, grid_for(call, count, BLOCK), BLOCK, 0, call, out<float>(call, 0), in<float>(call, 1),
         in<float>(call, 2), in<double>(call, 3), in<double>(call, 4), p16, c, count);
  return launched(err);
}

}  // namespace

tws_code tws_cuda_factor_sums(const tws_cuda_call *call, tws_error *err) {
  FOR_TYPE(call->dtype[0], G, return run_sums<G>(call, err));
}

tws_code tws_cuda_factor_moments(const tws_cuda_call *call, tws_error *err) {
  const int64_t rows = call->work->d[0], columns = call->work->d[1];
  LAUNCH(update_moments, grid_for(call, rows + columns, BLOCK), BLOCK, 0, call, out<float>(call, 0),
         in<double>(call, 1), in<float>(call, 2), in<double>(call, 3), call->work->f[0], rows, columns);
  return launched(err);
}

tws_code tws_cuda_factor_change(const tws_cuda_call *call, tws_error *err) {
  FOR_TYPE(call->dtype[1], G, return run_change<G>(call, err));
}

tws_code tws_cuda_factor_norms(const tws_cuda_call *call, tws_error *err) {
  double *parts = static_cast<double *>(call->scratch);
  const unsigned blocks = grid_for(call, call->work->d[0], BLOCK);
  LAUNCH(norm_parts, blocks, BLOCK, 0, call, in<float>(call, 0), in<float>(call, 1), call->work->d[0], parts);
  TWS_TRY(launched(err));
  LAUNCH(add_norms, 1, BLOCK, 0, call, parts, (int)blocks, call->argument[0], out<double>(call, 2));
  return launched(err);
}

tws_code tws_cuda_adafactor(const tws_cuda_call *call, tws_error *err) {
  const int copy = call->count > 5;
  if (copy && call->dtype[5] == TWS_F16) return run_update<f16>(call, err);
  return run_update<bf16>(call, err);
}
