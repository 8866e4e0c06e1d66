/* 8-bit operands of products: computes the largest magnitude of a tensor, and its 8-bit codes. */
#include "base/float8.h"
#include "models/operator.h"
#include "real/host/kernels/kernels.h"

enum { ROW_TILE = 64 };

typedef uint8_t vb __attribute__((vector_size(LANES)));
typedef vb vb_unaligned __attribute__((aligned(1), may_alias));

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

/* Converts to 8-bit codes, with the same results as base/float8.h. */
VECTOR_INLINE vb v_to_float8(tws_dtype type, vf x) {
  const int fraction = type == TWS_E4M3 ? 3 : 2, cut = 23 - fraction;
  const uint32_t unbias = (type == TWS_E4M3 ? 120u : 112u) << 23, most = type == TWS_E4M3 ? 0x7eu : 0x7bu;
  const float place = type == TWS_E4M3 ? 0x1p14F : 0x1p7F;
  const uint32_t place_bits = type == TWS_E4M3 ? 0x46800000u : 0x43000000u;
  const int32_t least = type == TWS_E4M3 ? 0x3c800000 : 0x38800000,
                largest = type == TWS_E4M3 ? 0x43e00000 : 0x47600000;
  const vu bits = (vu)x, magnitude = bits & 0x7fffffffu;
  const vu normal = (magnitude - unbias + ((1u << (cut - 1)) - 1u) + ((magnitude >> cut) & 1u)) >> cut;
  const vu denormal = (vu)((vf)magnitude + place) - place_bits;
  const vu small = (vu)((vi)magnitude < least), large = (vu)((vi)magnitude >= largest),
           nan = (vu)((vi)magnitude > 0x7f800000);
  const vu finite = (denormal & small) | (normal & ~small);
  const vu code = (0x7fu & nan) | (most & large & ~nan) | (finite & ~large);
  return __builtin_convertvector(code | ((bits >> 24) & 0x80u), vb);
}

typedef struct quantize_job {
  largest_job found; /* with TWS_LARGEST: the call, and the largest magnitudes of the threads */
  float multiplier;
} quantize_job;

/* Returns x with NaN in place of infinity. */
VECTOR_INLINE vf v_only_finite(vf x) {
  return (vf)((vu)x | ((vu)((vi)((vu)x & 0x7fffffffu) >= 0x7f800000) & 0x7fc00000u));
}

/* Quantizes a tile of rows and one vector of columns. The transposed codes are written in contiguous ranges, each with
 * one code for every row of the tile. Returns, with TWS_LARGEST, the larger of `most` and the magnitudes of x. */
VECTOR_INLINE vi quantize_tile(tws_dtype T, tws_dtype C, const quantize_job *job, host_range rows, int64_t column,
                               int n, vi most) {
  const tws_host_call *call = job->found.call;
  const int finds = (call->work->flags & TWS_LARGEST) != 0;
  const int64_t all_rows = call->work->d[0], width = call->work->d[1];
  uint8_t *y = call->work->flags & TWS_ROWS ? call->operand[3] : NULL;
  uint8_t *y_t = call->work->flags & TWS_COLUMNS ? call->operand[y ? 4 : 3] : NULL;
  for (int64_t r = rows.begin; r < rows.end; ++r) {
    vf x = v_get(T, call->operand[0], r * width + column, n);
    if (finds) most = v_larger_magnitude(most, x), x = v_only_finite(x);
    const vb codes = v_to_float8(C, x * job->multiplier);
    if (y && n == LANES) *(vb_unaligned *)(y + r * width + column) = codes;
    for (int i = 0; y && n < LANES && i < n; ++i) y[r * width + column + i] = codes[i];
    for (int i = 0; y_t && i < n; ++i) y_t[(column + i) * all_rows + r] = codes[i];
  }
  return most;
}

/* Quantizes a share of the tiles; threads divide the longer dimension. */
static void quantize_task(void *arg, int thread, int threads) {
  quantize_job *job = arg;
  const tws_work *work = job->found.call->work;
  const int64_t rows = work->d[0], width = work->d[1];
  vi most = {0};
  const host_range mine = rows > width ? share(rows, ROW_TILE, thread, threads) : (host_range){0, rows};
  const host_range columns = rows > width ? (host_range){0, width} : share(width, ROW_TILE, thread, threads);
  for (int64_t first = mine.begin; first < mine.end; first += ROW_TILE) {
    const host_range tile = {first, first + ROW_TILE < mine.end ? first + ROW_TILE : mine.end};
    FOR_TYPE(
        job->found.call->dtype[0], T,
        if (work->dtype2 == TWS_E5M2) {
          EACH_VECTOR(i, n, columns.begin, columns.end, most = quantize_tile(T, TWS_E5M2, job, tile, i, n, most));
        } else {
          EACH_VECTOR(i, n, columns.begin, columns.end, most = quantize_tile(T, TWS_E4M3, job, tile, i, n, most));
        });
  }
  job->found.largest[thread] = v_largest_bits(most);
}

HOST_KERNEL(quantize) {
  (void)err;
  const float amax = *(const float *)call->operand[1];
  quantize_job job = {.found = {.call = call},
                      .multiplier = tws_float8_multiplier(amax, (tws_dtype)call->work->dtype2)};
  *(float *)call->operand[2] = 1.0F / job.multiplier;
  run_parallel(call, tws_work_bytes(call->work), quantize_task, &job);
  if (call->work->flags & TWS_LARGEST) {
    float *largest = call->operand[call->count - 1], found;
    put_largest(&job.found, &found);
    if (found > *largest || isnan(found)) *largest = found; /* NaN is larger than all numbers, and stays */
  }
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
