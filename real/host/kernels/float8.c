/* 8-bit operands of products: computes the largest magnitude of a tensor, and its 8-bit codes. */
#include "models/operator.h"
#include "real/host/kernels/codes.h"

/* ---- the largest magnitude ---- */

VECTOR_INLINE int32_t largest_bits(tws_dtype T, const void *x, host_range r) {
  vi most = {0};
  EACH_VECTOR(i, n, r.begin, r.end, most = v_larger_magnitude(most, v_get(T, x, i, n)));
  return v_largest_bits(most);
}

static void amax_task(void *arg, int thread, int threads) {
  largest_job *job = arg;
  const tws_host_call *call = job->call;
  const host_range r = share(call->work->d[0], 64, thread, threads);
  FOR_TYPE(call->dtype[0], T, job->largest[thread] = largest_bits(T, call->operand[0], r));
}

HOST_KERNEL(amax) {
  (void)err;
  largest_job job = {.call = call};
  run_parallel(call, tws_work_bytes(call->work), amax_task, &job);
  put_largest(&job, call->operand[1]);
  return TWS_OK;
}

/* ---- codes ---- */

VECTOR_INLINE void quantize_tiles(tws_dtype T, tws_dtype C, cast_job *job, int thread, int threads) {
  const void *x = job->found.call->operand[0];
  vi most = {0};
  EACH_VECTOR_OF_TILES(r, i, n, job->rows, job->width, thread, threads,
                       most = put_codes(C, job, r, i, v_get(T, x, r * job->width + i, n), n, most));
  job->found.largest[thread] = v_largest_bits(most);
}

static void quantize_task(void *arg, int thread, int threads) {
  cast_job *job = arg;
  FOR_TYPE(
      job->found.call->dtype[0], T,
      if (job->type == TWS_E5M2) { quantize_tiles(T, TWS_E5M2, job, thread, threads); } else {
        quantize_tiles(T, TWS_E4M3, job, thread, threads);
      });
}

static void quantize_to(const tws_host_call *call, tws_dtype type) {
  const tws_work *work = call->work;
  cast_job job = begin_cast(call, type, 1, work->d[0], work->d[1], (work->flags & TWS_LARGEST) != 0);
  run_parallel(call, tws_work_bytes(work), quantize_task, &job);
  end_cast(&job);
}

HOST_KERNEL(quantize) {
  (void)err;
  quantize_to(call, (tws_dtype)call->work->dtype2);
  return TWS_OK;
}

/* Sums in a second pass, in the order of PART_BIAS_GRAD, so that biases' gradients have the bits of that kernel. */
HOST_KERNEL(quantize_sum) {
  (void)err;
  const tws_work *work = call->work;
  const int sums = call->count - 1, keep = (work->flags & TWS_ACCUMULATE) != 0;
  quantize_to(call, TWS_E5M2);
  return TWS_HOST(column_sums)(call, (host_sums){call->operand[0], call->operand[sums], call->dtype[0],
                                                 call->dtype[sums], work->d[0], work->d[1], keep});
}

/* Transposes a share of the codes, in square tiles. */
static void transpose_codes_task(void *arg, int thread, int threads) {
  const tws_host_call *call = arg;
  const int64_t rows = call->work->d[0], width = call->work->d[1];
  const uint8_t *x = call->operand[0];
  uint8_t *y_t = call->operand[1];
  const host_range mine = share(width, ROW_TILE, thread, threads);
  for (int64_t column0 = mine.begin; column0 < mine.end; column0 += ROW_TILE)
    for (int64_t row0 = 0; row0 < rows; row0 += ROW_TILE)
      for (int64_t c = column0; c < column0 + ROW_TILE && c < mine.end; ++c)
        for (int64_t r = row0; r < row0 + ROW_TILE && r < rows; ++r) y_t[c * rows + r] = x[r * width + c];
}

HOST_KERNEL(transpose_codes) {
  (void)err;
  run_parallel(call, tws_work_bytes(call->work), transpose_codes_task, (void *)(uintptr_t)call);
  return TWS_OK;
}

/* ---- delayed scaling ---- */

HOST_KERNEL(amax_history) {
  (void)err;
  const int64_t length = call->work->d[1];
  const int margin = (int)tws_work_parameter(call->work, "margin");
  float *largest = call->operand[0], *amax = call->operand[2];
  for (int64_t t = 0; t < call->work->d[0]; ++t) {
    float *row = (float *)call->operand[1] + t * length;
    const float newest = largest[t] <= FLT_MAX ? largest[t] : row[0];
    float most = 0;
    memmove(row + 1, row, (size_t)(length - 1) * sizeof *row);
    row[0] = newest;
    for (int64_t i = 0; i < length; ++i) most = row[i] > most ? row[i] : most;
    amax[t] = fminf(ldexpf(most, margin), FLT_MAX);
    largest[t] = 0;
  }
  return TWS_OK;
}
