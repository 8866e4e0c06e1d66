// Batch norm: sums over the rows in parts, which are added in order, then normalizes all elements.
#include "real/cuda/kernels/common.cuh"

namespace {

enum { COLUMN_BLOCK = 64 };

// Computes partial sums over a range of the rows, two for each feature: sums[part][2][width]. Differences from the
// first row's values preserve the variance of features that are far from 0.
template <typename T>
__global__ void __launch_bounds__(COLUMN_BLOCK) moment_parts(const T *x, float *sums, int64_t rows, int64_t width) {
  const int64_t i = (int64_t)blockIdx.x * COLUMN_BLOCK + threadIdx.x;
  if (i >= width) return;
  const float first = to_float(x[i]);
  float sum = 0.0F, squares = 0.0F;
  for (int64_t t = blockIdx.y; t < rows; t += gridDim.y) {
    const float v = to_float(x[t * width + i]) - first;
    sum += v;
    squares += v * v;
  }
  sums[(int64_t)blockIdx.y * 2 * width + i] = sum;
  sums[((int64_t)blockIdx.y * 2 + 1) * width + i] = squares;
}

struct Follow {
  float *running;  // or NULL
  float momentum, share;
};
__device__ inline void follow_statistic(const Follow &f, int64_t place, float value) {
  if (f.running) f.running[place] = f.share * ((1.0F - f.momentum) * f.running[place] + f.momentum * value);
}

__device__ inline void add_parts(const float *sums, int parts, int64_t width, int64_t i, double *first,
                                 double *second) {
  *first = *second = 0;
  for (int p = 0; p < parts; ++p) {
    *first += sums[(int64_t)p * 2 * width + i];
    *second += sums[((int64_t)p * 2 + 1) * width + i];
  }
}

template <typename T>
__global__ void __launch_bounds__(COLUMN_BLOCK) moments(const T *x, const float *sums, int parts, float *stats,
                                                        Follow f, int64_t rows, int64_t width, float epsilon) {
  const int64_t i = (int64_t)blockIdx.x * COLUMN_BLOCK + threadIdx.x;
  if (i >= width) return;
  double sum, squares;
  add_parts(sums, parts, width, i, &sum, &squares);
  const double mean = sum / (double)rows;
  double about = squares - sum * mean;  // of the mean
  if (about < 0) about = 0;
  const float middle = (float)(mean + (double)to_float(x[i]));
  stats[i] = middle;
  stats[width + i] = 1.0F / sqrtf((float)(about / (double)rows) + epsilon);
  follow_statistic(f, i, middle);
  follow_statistic(f, width + i, (float)(about / (double)(rows > 1 ? rows - 1 : 1)));
}

// Normalizes with the batch's means and 1/std, or with the running means and variances.
template <typename T, int V, bool RUNNING>
__global__ void __launch_bounds__(BLOCK) normalise(const T *x, const T *weight, const T *bias, const float *stats, T *y,
                                                   int64_t count, int64_t width, float epsilon) {
  EACH_ITEM(k, count / V) {
    const int64_t i = k * V % width;
    float v[V], w[V], b[V], mean[V], inverse[V];
    load<V>(x + k * V, v);
    load<V>(weight + i, w);
    load<V>(bias + i, b);
#pragma unroll
    for (int j = 0; j < V; ++j) {
      mean[j] = stats[i + j];
      inverse[j] = RUNNING ? 1.0F / sqrtf(stats[width + i + j] + epsilon) : stats[width + i + j];
      v[j] = (v[j] - mean[j]) * inverse[j] * w[j] + b[j];
    }
    store<V>(y + k * V, v);
  }
}

// Computes partial sums as moment_parts() does, of dy and dy z.
template <typename T>
__global__ void __launch_bounds__(COLUMN_BLOCK)
    grad_parts(const T *dy, const T *x, const float *stats, float *sums, int64_t rows, int64_t width) {
  const int64_t i = (int64_t)blockIdx.x * COLUMN_BLOCK + threadIdx.x;
  if (i >= width) return;
  const float mean = stats[i], inverse = stats[width + i];
  float sum = 0.0F, product = 0.0F;
  for (int64_t t = blockIdx.y; t < rows; t += gridDim.y) {
    const float d = to_float(dy[t * width + i]);
    sum += d;
    product += d * ((to_float(x[t * width + i]) - mean) * inverse);
  }
  sums[(int64_t)blockIdx.y * 2 * width + i] = sum;
  sums[((int64_t)blockIdx.y * 2 + 1) * width + i] = product;
}

// Adds the parts; the totals overwrite the first part.
template <typename G>
__global__ void __launch_bounds__(COLUMN_BLOCK)
    grad_totals(float *sums, int parts, G *dweight, G *dbias, int64_t width, bool accumulate) {
  const int64_t i = (int64_t)blockIdx.x * COLUMN_BLOCK + threadIdx.x;
  if (i >= width) return;
  double sum, product;
  add_parts(sums, parts, width, i, &sum, &product);
  sums[i] = (float)sum;
  sums[width + i] = (float)product;
  dweight[i] = from_float<G>((float)product + (accumulate ? to_float(dweight[i]) : 0.0F));
  dbias[i] = from_float<G>((float)sum + (accumulate ? to_float(dbias[i]) : 0.0F));
}

// Computes dx = weight/std (dy - mean(dy) - z mean(dy z)).
template <typename T, int V>
__global__ void __launch_bounds__(BLOCK)
    grad_input(const T *dy, const T *x, const T *weight, const float *stats, const float *totals, T *dx, int64_t rows,
               int64_t width, bool accumulate) {
  const float share = 1.0F / (float)rows;
  EACH_ITEM(k, rows * width / V) {
    const int64_t i = k * V % width;
    float d[V], v[V], w[V], old[V] = {};
    load<V>(dy + k * V, d);
    load<V>(x + k * V, v);
    load<V>(weight + i, w);
    if (accumulate) load<V>(dx + k * V, old);
#pragma unroll
    for (int j = 0; j < V; ++j) {
      const float inverse = stats[width + i + j], z = (v[j] - stats[i + j]) * inverse;
      d[j] = (d[j] - (totals[i + j] + z * totals[width + i + j]) * share) * (w[j] * inverse) + old[j];
    }
    store<V>(dx + k * V, d);
  }
}

unsigned chunks_of(int64_t width) {
  return (unsigned)ceil_div(width, COLUMN_BLOCK);
}

// Sets *parts to a number that fills the device, and whose sums fit into the scratch memory.
tws_code parts_of(const tws_cuda_call *call, int *parts, tws_error *err) {
  const int64_t rows = call->work->d[0], width = call->work->d[1];
  const int64_t fill = ceil_div((int64_t)call->multiprocessors * 16, chunks_of(width));
  const int64_t most = (int64_t)(call->scratch_bytes / sizeof(float)) / (2 * width);
  int64_t count = fill < rows ? fill : rows;
  if (count > most) count = most;
  *parts = (int)(count < 512 ? count : 512);
  if (count > 0) return TWS_OK;
  return tws_fail(err, TWS_UNSUPPORTED, nullptr, "batch norm of %lld features does not fit the scratch memory",
                  (long long)width);
}

template <typename T, int V, bool RUNNING>
tws_code start_normalise(const tws_cuda_call *call, const float *stats, T *y, tws_error *err) {
  const int64_t width = call->work->d[1], count = call->work->d[0] * width;
  LAUNCH((normalise<T, V, RUNNING>), grid_for(call, count / V, BLOCK), BLOCK, 0, call, in<T>(call, 0), in<T>(call, 1),
         in<T>(call, 2), stats, y, count, width, (float)call->work->f[0]);
  return launched(err);
}
template <typename T, bool RUNNING>
tws_code run_normalise(const tws_cuda_call *call, const float *stats, T *y, tws_error *err) {
  constexpr int N = Width<T>::value;
  const int64_t width = call->work->d[1];
  if (packable<N>(in<T>(call, 0), width) && packable<N>(in<T>(call, 1), width) && packable<N>(in<T>(call, 2), width) &&
      packable<N>(y, width))
    return start_normalise<T, N, RUNNING>(call, stats, y, err);
  return start_normalise<T, 1, RUNNING>(call, stats, y, err);
}

template <typename T>
tws_code run_batch_norm(const tws_cuda_call *call, tws_error *err) {
  const int64_t rows = call->work->d[0], width = call->work->d[1];
  const Follow f = {call->work->flags & TWS_RUNNING ? out<float>(call, 5) : nullptr, (float)call->work->f[1],
                    (float)call->argument[0]};
  float *sums = static_cast<float *>(call->scratch), *stats = out<float>(call, 4);
  int parts = 0;
  if (rows == 0 || width == 0) return TWS_OK;
  TWS_TRY(parts_of(call, &parts, err));
  LAUNCH(moment_parts<T>, dim3(chunks_of(width), (unsigned)parts), COLUMN_BLOCK, 0, call, in<T>(call, 0), sums, rows,
         width);
  TWS_TRY(launched(err));
  LAUNCH(moments<T>, chunks_of(width), COLUMN_BLOCK, 0, call, in<T>(call, 0), sums, parts, stats, f, rows, width,
         (float)call->work->f[0]);
  TWS_TRY(launched(err));
  return run_normalise<T, false>(call, stats, out<T>(call, 3), err);
}

template <typename T, int V>
tws_code start_grad_input(const tws_cuda_call *call, const float *totals, tws_error *err) {
  const int64_t rows = call->work->d[0], width = call->work->d[1];
  LAUNCH((grad_input<T, V>), grid_for(call, rows * width / V, BLOCK), BLOCK, 0, call, in<T>(call, 0), in<T>(call, 1),
         in<T>(call, 2), in<float>(call, 3), totals, out<T>(call, 4), rows, width,
         (call->work->flags & TWS_ACCUMULATE) != 0);
  return launched(err);
}

template <typename T>
tws_code run_batch_norm_grad(const tws_cuda_call *call, tws_error *err) {
  constexpr int N = Width<T>::value;
  const int64_t rows = call->work->d[0], width = call->work->d[1];
  float *sums = static_cast<float *>(call->scratch);
  const bool keep = (call->work->flags & TWS_ACCUMULATE_PARAM) != 0;
  int parts = 0;
  if (rows == 0 || width == 0) return TWS_OK;
  TWS_TRY(parts_of(call, &parts, err));
  LAUNCH(grad_parts<T>, dim3(chunks_of(width), (unsigned)parts), COLUMN_BLOCK, 0, call, in<T>(call, 0), in<T>(call, 1),
         in<float>(call, 3), sums, rows, width);
  TWS_TRY(launched(err));
  FOR_TYPE(call->dtype[5], G,
           LAUNCH(grad_totals<G>, chunks_of(width), COLUMN_BLOCK, 0, call, sums, parts, out<G>(call, 5),
                  out<G>(call, 6), width, keep));
  TWS_TRY(launched(err));
  if (packable<N>(in<T>(call, 0), width) && packable<N>(in<T>(call, 1), width) && packable<N>(in<T>(call, 2), width) &&
      packable<N>(in<T>(call, 4), width))
    return start_grad_input<T, N>(call, sums, err);
  return start_grad_input<T, 1>(call, sums, err);
}

template <typename T>
tws_code run_evaluation(const tws_cuda_call *call, tws_error *err) {
  if (call->work->d[0] == 0 || call->work->d[1] == 0) return TWS_OK;
  return run_normalise<T, true>(call, in<float>(call, 3), out<T>(call, 4), err);
}

}  // namespace

tws_code tws_cuda_batch_norm(const tws_cuda_call *call, tws_error *err) {
  FOR_TYPE(call->dtype[0], T, return run_batch_norm<T>(call, err));
}
tws_code tws_cuda_batch_norm_grad(const tws_cuda_call *call, tws_error *err) {
  FOR_TYPE(call->dtype[0], T, return run_batch_norm_grad<T>(call, err));
}
tws_code tws_cuda_batch_norm_evaluation(const tws_cuda_call *call, tws_error *err) {
  FOR_TYPE(call->dtype[0], T, return run_evaluation<T>(call, err));
}
