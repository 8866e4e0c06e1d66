// Muon's kernels before the update, except matrix products: momentum, norm and polynomial of a matrix.
#include "real/cuda/kernels/common.cuh"

extern "C" {
#include "models/operator.h"
}

namespace {

template <typename G>
__global__ void momentum_of(float *m, const G *grad, const double *metrics, float *change, float momentum, float rest,
                            int64_t count) {
  const float clip = (float)metrics[TWS_METRIC_CLIP];
  const int64_t first = (int64_t)blockIdx.x * blockDim.x + threadIdx.x, stride = (int64_t)gridDim.x * blockDim.x;
  for (int64_t i = first; i < count; i += stride) {
    if (clip == 0) {
      change[i] = 0;
      continue;
    }
    const float g = rest * (to_float(grad[i]) * clip), kept = momentum * m[i] + g;
    m[i] = kept;
    change[i] = momentum * kept + g;
  }
}

template <typename G>
tws_code run_momentum(const tws_cuda_call *call, tws_error *err) {
  const int64_t count = call->work->d[0];
  const double momentum = call->work->f[0];
  if (count == 0) return TWS_OK;
  LAUNCH(momentum_of<G>, grid_for(call, count, BLOCK), BLOCK, 0, call, out<float>(call, 0), in<G>(call, 1),
         in<double>(call, 2), out<float>(call, 3), (float)momentum, (float)(1 - momentum), count);
  return launched(err);
}

__global__ void square_parts(const float *x, int64_t count, double *parts) {
  __shared__ double shared[BLOCK / WARP];
  const int64_t first = (int64_t)blockIdx.x * blockDim.x + threadIdx.x, stride = (int64_t)gridDim.x * blockDim.x;
  double sum = 0;
  for (int64_t i = first; i < count; i += stride) sum += (double)x[i] * (double)x[i];
  sum = block_sum(sum, shared);
  if (threadIdx.x == 0) parts[blockIdx.x] = sum;
}

// Replaces the first partial sum of squares by the factor that scales x to norm 1.
__global__ void find_factor(double *parts, int count) {
  __shared__ double shared[BLOCK / WARP];
  double sum = 0;
  for (int i = (int)threadIdx.x; i < count; i += (int)blockDim.x) sum += parts[i];
  sum = block_sum(sum, shared);
  if (threadIdx.x == 0) parts[0] = 1.0 / (sqrt(sum) + 1e-7);
}

__global__ void scale(const float *x, const double *factor, float *y, int64_t count) {
  const float by = (float)*factor;
  const int64_t first = (int64_t)blockIdx.x * blockDim.x + threadIdx.x, stride = (int64_t)gridDim.x * blockDim.x;
  for (int64_t i = first; i < count; i += stride) y[i] = x[i] * by;
}

__global__ void polynomial(const float *gram, float *square, float factor, int64_t count, int64_t columns) {
  const int64_t first = (int64_t)blockIdx.x * blockDim.x + threadIdx.x, stride = (int64_t)gridDim.x * blockDim.x;
  for (int64_t i = first; i < count; i += stride) {
    const float sum = factor * (2.0315F * square[i] - 4.7750F * gram[i]);
    square[i] = i / columns == i % columns ? sum + factor * 3.4445F : sum;
  }
}

}  // namespace

tws_code tws_cuda_muon_momentum(const tws_cuda_call *call, tws_error *err) {
  FOR_TYPE(call->dtype[1], G, return run_momentum<G>(call, err));
}

tws_code tws_cuda_unit_norm(const tws_cuda_call *call, tws_error *err) {
  const int64_t count = call->work->d[0];
  double *parts = static_cast<double *>(call->scratch);
  if (count == 0) return TWS_OK;
  const unsigned blocks = grid_for(call, count, BLOCK);
  LAUNCH(square_parts, blocks, BLOCK, 0, call, in<float>(call, 0), count, parts);
  TWS_TRY(launched(err));
  LAUNCH(find_factor, 1, BLOCK, 0, call, parts, (int)blocks);
  TWS_TRY(launched(err));
  LAUNCH(scale, blocks, BLOCK, 0, call, in<float>(call, 0), parts, out<float>(call, 1), count);
  return launched(err);
}

tws_code tws_cuda_newton_schulz(const tws_cuda_call *call, tws_error *err) {
  const int64_t columns = call->work->d[1], count = call->work->d[0] * columns;
  if (count == 0) return TWS_OK;
  LAUNCH(polynomial, grid_for(call, count, BLOCK), BLOCK, 0, call, in<float>(call, 0), out<float>(call, 1),
         (float)call->work->f[0], count, columns);
  return launched(err);
}
