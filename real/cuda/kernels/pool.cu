// Pooling: a thread computes one element; adjacent threads have adjacent channels.
#include "models/windows.h"
#include "real/cuda/kernels/common.cuh"

namespace {

struct Pool {
  tws_windows w;
  bool accumulate;
};

// The pixels of a window that lie within the picture.
struct Frame {
  int64_t y, y_end, x, x_end;
};
__device__ inline Frame frame_of(const tws_windows &w, int64_t oy, int64_t ox) {
  const int64_t y = oy * w.stride - w.padding, x = ox * w.stride - w.padding;
  Frame f;
  f.y = y < 0 ? 0 : y, f.x = x < 0 ? 0 : x;
  f.y_end = y + w.rows < w.height ? y + w.rows : w.height;
  f.x_end = x + w.columns < w.width ? x + w.columns : w.width;
  return f;
}
__device__ inline float share_of(const Frame &f) {
  return 1.0F / (float)((f.y_end - f.y) * (f.x_end - f.x));
}

// Returns the index of the largest element of a window; of equal elements the first, and NaN counts as the largest.
template <typename T>
__device__ inline int64_t largest_of(const T *x, const tws_windows &w, const Frame &f, int64_t sample,
                                     int64_t channel) {
  int64_t best = ((sample * w.height + f.y) * w.width + f.x) * w.in + channel;
  float largest = to_float(x[best]);
  for (int64_t v = f.y; v < f.y_end; ++v)
    for (int64_t u = f.x; u < f.x_end; ++u) {
      const int64_t place = ((sample * w.height + v) * w.width + u) * w.in + channel;
      const float other = to_float(x[place]);
      if (other > largest || (isnan(other) && !isnan(largest))) largest = other, best = place;
    }
  return best;
}

template <typename T, bool AVERAGE>
__global__ void __launch_bounds__(BLOCK) pool(const T *x, T *y, Pool p) {
  const tws_windows &w = p.w;
  EACH_ITEM(i, w.samples * w.out_height * w.out_width * w.in) {
    const int64_t channel = i % w.in, row = i / w.in, sample = row / (w.out_height * w.out_width);
    const Frame f = frame_of(w, row / w.out_width % w.out_height, row % w.out_width);
    if (!AVERAGE) {
      y[i] = x[largest_of(x, w, f, sample, channel)];
      continue;
    }
    float sum = 0.0F;
    for (int64_t v = f.y; v < f.y_end; ++v)
      for (int64_t u = f.x; u < f.x_end; ++u)
        sum += to_float(x[((sample * w.height + v) * w.width + u) * w.in + channel]);
    y[i] = from_float<T>(sum * share_of(f));
  }
}

// A thread adds the gradients of all windows that contain its pixel in a fixed order.
template <typename T, bool AVERAGE>
__global__ void __launch_bounds__(BLOCK, 1)  // one block per multiprocessor is enough: more registers are faster here
    pool_grad(const T *dy, const T *x, T *dx, Pool p) {
  const tws_windows &w = p.w;
  EACH_ITEM(i, w.samples * w.height * w.width * w.in) {
    const int64_t channel = i % w.in, pixel = i / w.in, sample = pixel / (w.height * w.width);
    int64_t row, row_end, column, column_end;
    tws_windows_over(pixel / w.width % w.height, w.rows, w.stride, w.padding, w.out_height, &row, &row_end);
    tws_windows_over(pixel % w.width, w.columns, w.stride, w.padding, w.out_width, &column, &column_end);
    float sum = p.accumulate ? to_float(dx[i]) : 0.0F;
    for (int64_t oy = row; oy < row_end; ++oy)
      for (int64_t ox = column; ox < column_end; ++ox) {
        const Frame f = frame_of(w, oy, ox);
        const float d = to_float(dy[((sample * w.out_height + oy) * w.out_width + ox) * w.in + channel]);
        if (AVERAGE)
          sum += d * share_of(f);
        else if (largest_of(x, w, f, sample, channel) == i)
          sum += d;
      }
    dx[i] = from_float<T>(sum);
  }
}

tws_code pool_of(const tws_cuda_call *call, Pool *p, tws_error *err) {
  p->w = tws_windows_of(call->work);
  p->accumulate = (call->work->flags & TWS_ACCUMULATE) != 0;
  if (2 * p->w.padding <= p->w.rows) return TWS_OK;
  return tws_fail(err, TWS_INVALID, nullptr, "padding of %lld for windows of %lld pixels", (long long)p->w.padding,
                  (long long)p->w.rows);
}

template <typename T, bool AVERAGE>
tws_code run_pool(const tws_cuda_call *call, tws_error *err) {
  Pool p;
  TWS_TRY(pool_of(call, &p, err));
  const int64_t count = p.w.samples * p.w.out_height * p.w.out_width * p.w.in;
  if (count == 0) return TWS_OK;
  LAUNCH((pool<T, AVERAGE>), grid_for(call, count, BLOCK), BLOCK, 0, call, in<T>(call, 0), out<T>(call, 1), p);
  return launched(err);
}

template <typename T, bool AVERAGE>
tws_code run_pool_grad(const tws_cuda_call *call, tws_error *err) {
  Pool p;
  TWS_TRY(pool_of(call, &p, err));
  const int64_t count = p.w.samples * p.w.height * p.w.width * p.w.in;
  if (count == 0) return TWS_OK;
  LAUNCH((pool_grad<T, AVERAGE>), grid_for(call, count, BLOCK), BLOCK, 0, call, in<T>(call, 0),
         AVERAGE ? nullptr : in<T>(call, 1), out<T>(call, AVERAGE ? 1 : 2), p);
  return launched(err);
}

}  // namespace

tws_code tws_cuda_max_pool(const tws_cuda_call *call, tws_error *err) {
  FOR_TYPE(call->dtype[0], T, return (run_pool<T, false>(call, err)));
}
tws_code tws_cuda_max_pool_grad(const tws_cuda_call *call, tws_error *err) {
  FOR_TYPE(call->dtype[0], T, return (run_pool_grad<T, false>(call, err)));
}
tws_code tws_cuda_average_pool(const tws_cuda_call *call, tws_error *err) {
  FOR_TYPE(call->dtype[0], T, return (run_pool<T, true>(call, err)));
}
tws_code tws_cuda_average_pool_grad(const tws_cuda_call *call, tws_error *err) {
  FOR_TYPE(call->dtype[0], T, return (run_pool_grad<T, true>(call, err)));
}
