/* Selected columns of matrices, and sums of clipped gradients: models/operators_columns.def. */
#include "models/operator.h"
#include "real/host/kernels/kernels.h"

/* ---- sums of |x| by column: a thread sums whole columns, so that the order of a sum does not depend on the number of
 * threads ---- */

enum { TILE = 256 }; /* number of columns that are summed at once */

VECTOR_INLINE void add_sizes(tws_dtype T, const void *x, int64_t count, double *sums) {
  EACH_VECTOR(i, n, 0, count, {
    const vf v = v_get(T, x, i, n);
    for (int lane = 0; lane < n; ++lane) sums[i + lane] += fabs((double)v[lane]);
  });
}

static void sum_tile(const tws_host_call *call, int64_t from, int64_t to, double *sums) {
  const int64_t count = call->work->d[0], columns = call->work->d[1];
  for (int64_t row = -(int64_t)call->argument[0]; row < count; row += columns) {
    const int64_t begin = row + from > 0 ? row + from : 0, end = row + to < count ? row + to : count;
    if (begin >= end) continue;
    FOR_TYPE(call->dtype[0], T, add_sizes(T, at(T, call->operand[0], begin), end - begin, sums + (begin - row - from)));
  }
}

static double sum_vector(const tws_host_call *call) {
  double lanes[LANES] = {0}, sum = 0;
  const int64_t count = call->work->d[0];
  for (int64_t i = 0; i < count; i += LANES)
    FOR_TYPE(call->dtype[0], T, add_sizes(T, at(T, call->operand[0], i), count - i < LANES ? count - i : LANES, lanes));
  for (int lane = 0; lane < LANES; ++lane) sum += lanes[lane];
  return sum;
}

static void norms_task(void *arg, int thread, int threads) {
  const tws_host_call *call = arg;
  const int64_t columns = call->work->d[1];
  const host_range r = share(columns, LANES, thread, threads);
  float *norms = call->operand[1];
  if (columns == 1) {
    if (thread == 0) norms[0] = (float)sum_vector(call);
    return;
  }
  for (int64_t from = r.begin; from < r.end; from += TILE) {
    const int64_t to = from + TILE < r.end ? from + TILE : r.end;
    double sums[TILE] = {0};
    sum_tile(call, from, to, sums);
    for (int64_t c = from; c < to; ++c) norms[c] = (float)sums[c - from];
  }
}
HOST_KERNEL(column_norms) {
  (void)err;
  run_parallel(call, tws_work_bytes(call->work), norms_task, (void *)(uintptr_t)call);
  return TWS_OK;
}

/* ---- the largest norms: non-negative floats are ordered as their bits are, so the bits of the smallest chosen norm
 * are determined from the highest bit down ---- */

static uint32_t bits_of(const float *norms, int64_t column) {
  uint32_t bits;
  memcpy(&bits, norms + column, sizeof bits);
  return bits & 0x7fffffffU;
}

HOST_KERNEL(top_columns) {
  (void)err;
  const int64_t columns = call->work->d[0], kept = call->work->d[1];
  const float *norms = call->operand[0];
  int32_t *chosen = call->operand[1];
  uint32_t least = 0;
  int64_t above = 0, n = 0;
  for (int bit = 30; bit >= 0; --bit) {
    const uint32_t wanted = least | 1U << bit;
    int64_t as_large = 0;
    for (int64_t c = 0; c < columns; ++c) as_large += bits_of(norms, c) >= wanted;
    if (as_large >= kept) least = wanted;
  }
  for (int64_t c = 0; c < columns; ++c) above += bits_of(norms, c) > least;
  int64_t equal = kept - above; /* number of chosen columns whose norm equals the smallest chosen one */
  for (int64_t c = 0; c < columns && n < kept; ++c) {
    const uint32_t bits = bits_of(norms, c);
    if (bits > least || (bits == least && equal-- > 0)) chosen[n++] = (int32_t)(c + 1);
  }
  while (n < kept) chosen[n++] = 0;
  return TWS_OK;
}

/* ---- elements of chosen columns ---- */

/* Copies the elements of chosen columns from a block x of a matrix to y, whose rows have only these columns; back: 1 to
 * copy them from y to x. */
#define MOVE_COLUMNS(E, x, y, back)                                                         \
  for (int64_t row = r.begin; row < r.end; ++row)                                           \
    for (int64_t i = 0; i < kept; ++i) {                                                    \
      const int64_t column = chosen[i] - before, from = row * columns + column - 1 - first; \
      const int there = column > 0 && column <= columns && from >= 0 && from < count;       \
      if (back && there) ((E *)(x))[from] = ((const E *)(y))[row * kept + i];               \
      if (!(back)) ((E *)(y))[row * kept + i] = there ? ((const E *)(x))[from] : (E)0;      \
    }

static void move_columns(const tws_host_call *call, void *x, void *y, int back, int thread, int threads) {
  const int64_t *d = call->work->d;
  const int64_t count = d[0], columns = d[1], kept = d[2], first = (int64_t)call->argument[0],
                before = (int64_t)call->argument[1];
  const int32_t *chosen = call->operand[1];
  const host_range r = share(d[3], 1, thread, threads);
  if (call->dtype[0] == TWS_F32)
    MOVE_COLUMNS(uint32_t, x, y, back)
  else
    MOVE_COLUMNS(uint16_t, x, y, back)
}

static void gather_task(void *arg, int thread, int threads) {
  const tws_host_call *call = arg;
  move_columns(call, call->operand[0], call->operand[2], 0, thread, threads);
}
HOST_KERNEL(gather_columns) {
  (void)err;
  run_parallel(call, tws_work_bytes(call->work), gather_task, (void *)(uintptr_t)call);
  return TWS_OK;
}

static void scatter_task(void *arg, int thread, int threads) {
  const tws_host_call *call = arg;
  move_columns(call, call->operand[2], call->operand[0], 1, thread, threads);
}
HOST_KERNEL(scatter_columns) {
  (void)err;
  run_parallel(call, tws_work_bytes(call->work), scatter_task, (void *)(uintptr_t)call);
  return TWS_OK;
}

/* ---- sums of gradients ---- */

static void clipped_task(void *arg, int thread, int threads) {
  const tws_host_call *call = arg;
  const host_range r = share(call->work->d[0], 64, thread, threads);
  const void *x = call->operand[0];
  void *y = call->operand[2];
  const vf clip = v_set((float)((const double *)call->operand[1])[TWS_METRIC_CLIP]);
  FOR_TYPE(
      call->dtype[0], X,
      FOR_TYPE(call->dtype[2], Y,
               EACH_VECTOR(i, n, r.begin, r.end, v_put(Y, y, i, v_get(Y, y, i, n) + clip * v_get(X, x, i, n), n))));
}
HOST_KERNEL(accumulate_clipped) {
  (void)err;
  if (((const double *)call->operand[1])[TWS_METRIC_CLIP] == 0) return TWS_OK; /* the gradients are not finite */
  run_parallel(call, tws_work_bytes(call->work), clipped_task, (void *)(uintptr_t)call);
  return TWS_OK;
}
