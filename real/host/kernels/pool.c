/* Pooling: the largest number, or the mean, of each channel in windows over pictures. */
#include "models/windows.h"
#include "real/host/kernels/kernels.h"

typedef struct pool {
  const tws_host_call *call;
  tws_windows w;
  int average, accumulate;
} pool;

static pool begin_pool(const tws_host_call *call) {
  const tws_kernel kernel = (tws_kernel)call->work->code;
  return (pool){.call = call,
                .w = tws_windows_of(call->work),
                .average = kernel == TWS_KERNEL_AVERAGE_POOL || kernel == TWS_KERNEL_AVERAGE_POOL_GRAD,
                .accumulate = (call->work->flags & TWS_ACCUMULATE) != 0};
}

/* The pixels of a window that are there. */
typedef struct frame {
  int64_t y, y_end, x, x_end;
} frame;

static frame frame_of(const tws_windows *w, int64_t oy, int64_t ox) {
  const int64_t y = oy * w->stride - w->padding, x = ox * w->stride - w->padding;
  return (frame){y < 0 ? 0 : y, y + w->rows < w->height ? y + w->rows : w->height, x < 0 ? 0 : x,
                 x + w->columns < w->width ? x + w->columns : w->width};
}
static float share_of(frame f) {
  return 1.0F / (float)((f.y_end - f.y) * (f.x_end - f.x));
}

/* Lanes in which x is larger than the largest so far; NaN counts as the largest. */
VECTOR_INLINE vi is_larger(vf x, vf largest) {
  return (x > largest) | ((x != x) & (largest == largest));
}

VECTOR_INLINE void pool_window(tws_dtype T, const pool *p, int64_t row) {
  const tws_windows *w = &p->w;
  const int64_t sample = row / (w->out_height * w->out_width) * w->height;
  const frame f = frame_of(w, row / w->out_width % w->out_height, row % w->out_width);
  const void *from = p->call->operand[0];
  EACH_VECTOR(i, n, 0, w->in, {
    vf y = p->average ? v_zero() : v_set(-INFINITY);
    for (int64_t v = f.y; v < f.y_end; ++v)
      for (int64_t u = f.x; u < f.x_end; ++u) {
        const vf x = v_get(T, from, ((sample + v) * w->width + u) * w->in + i, n);
        y = p->average ? y + x : v_select(is_larger(x, y), x, y);
      }
    v_put(T, p->call->operand[1], row * w->in + i, p->average ? y * share_of(f) : y, n);
  });
}

/* Mask of the lanes whose largest element of the window is at (y, x). */
VECTOR_INLINE vi is_chosen(tws_dtype T, const pool *p, int64_t sample, frame f, int64_t y, int64_t x, int64_t i,
                           int n) {
  const tws_windows *w = &p->w;
  const void *from = p->call->operand[1];
  vf largest = v_set(-INFINITY);
  vi chosen = (vi)v_zero();
  for (int64_t v = f.y; v < f.y_end; ++v)
    for (int64_t u = f.x; u < f.x_end; ++u) {
      const vf other = v_get(T, from, ((sample + v) * w->width + u) * w->in + i, n);
      const int first = v == f.y && u == f.x; /* -infinity is chosen if all elements are */
      const vi takes = first ? (vi)(v_zero() == v_zero()) : is_larger(other, largest);
      largest = v_select(takes, other, largest);
      chosen = v == y && u == x ? takes : chosen & ~takes;
    }
  return chosen;
}

VECTOR_INLINE void pool_pixel(tws_dtype T, const pool *p, int64_t pixel) {
  const tws_windows *w = &p->w;
  const int64_t sample = pixel / (w->height * w->width), y = pixel / w->width % w->height, x = pixel % w->width;
  void *dx = p->call->operand[p->average ? 1 : 2];
  int64_t row, row_end, column, column_end;
  tws_windows_over(y, w->rows, w->stride, w->padding, w->out_height, &row, &row_end);
  tws_windows_over(x, w->columns, w->stride, w->padding, w->out_width, &column, &column_end);
  EACH_VECTOR(i, n, 0, w->in, {
    vf sum = p->accumulate ? v_get(T, dx, pixel * w->in + i, n) : v_zero();
    for (int64_t oy = row; oy < row_end; ++oy)
      for (int64_t ox = column; ox < column_end; ++ox) {
        const frame f = frame_of(w, oy, ox);
        const int64_t window = ((sample * w->out_height + oy) * w->out_width + ox) * w->in + i;
        const vf dy = v_get(T, p->call->operand[0], window, n);
        sum +=
            p->average ? dy * share_of(f) : v_select(is_chosen(T, p, sample * w->height, f, y, x, i, n), dy, v_zero());
      }
    v_put(T, dx, pixel * w->in + i, sum, n);
  });
}

static void window_task(void *arg, int thread, int threads) {
  const pool *p = arg;
  const host_range r = share(p->w.samples * p->w.out_height * p->w.out_width, 1, thread, threads);
  FOR_TYPE(p->call->dtype[0], T, for (int64_t row = r.begin; row < r.end; ++row) pool_window(T, p, row));
}
static void pixel_task(void *arg, int thread, int threads) {
  const pool *p = arg;
  const host_range r = share(p->w.samples * p->w.height * p->w.width, 1, thread, threads);
  FOR_TYPE(p->call->dtype[0], T, for (int64_t pixel = r.begin; pixel < r.end; ++pixel) pool_pixel(T, p, pixel));
}

static tws_code run_pool(const tws_host_call *call, tws_host_task task, tws_error *err) {
  pool p = begin_pool(call);
  if (2 * p.w.padding > p.w.rows)
    return tws_fail(err, TWS_INVALID, NULL, "padding of %lld for windows of %lld pixels", (long long)p.w.padding,
                    (long long)p.w.rows);
  run_parallel(call, 8.0 * (double)(p.w.samples * p.w.height * p.w.width * p.w.in), task, &p);
  return TWS_OK;
}

HOST_KERNEL(max_pool) {
  return run_pool(call, window_task, err);
}
HOST_KERNEL(max_pool_grad) {
  return run_pool(call, pixel_task, err);
}
HOST_KERNEL(average_pool) {
  return run_pool(call, window_task, err);
}
HOST_KERNEL(average_pool_grad) {
  return run_pool(call, pixel_task, err);
}
