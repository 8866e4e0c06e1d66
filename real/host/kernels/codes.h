/* Casts to 8-bit floating point of a tensor whose vectors a kernel reads or computes: codes in the row-major and in the
 * transposed layout, and the largest magnitude (operators_float8.def: QUANTIZE; operators_gated.def). */
#ifndef TWS_REAL_HOST_KERNELS_CODES_H
#define TWS_REAL_HOST_KERNELS_CODES_H

#include "base/float8.h"
#include "real/host/kernels/kernels.h"

enum { ROW_TILE = 64 };

typedef uint8_t vb __attribute__((vector_size(LANES)));
typedef vb vb_unaligned __attribute__((aligned(1), may_alias));

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

/* Returns x with NaN in place of infinity. */
VECTOR_INLINE vf v_only_finite(vf x) {
  return (vf)((vu)x | ((vu)((vi)((vu)x & 0x7fffffffu) >= 0x7f800000) & 0x7fc00000u));
}

/* The cast of a tensor of rows x width by a kernel. */
typedef struct cast_job {
  largest_job found; /* the call, and the largest magnitudes of the threads */
  tws_dtype type;    /* of the codes */
  float multiplier;
  uint8_t *y, *y_t; /* row-major and transposed codes; NULL: this layout is not written */
  float *raised;    /* raised to the largest magnitude; NULL: none is */
  int64_t rows, width;
} cast_job;

/* Begins the cast to `type`, and writes its scale. Operand `first` of the call is amax; the scale, the codes of the
 * layouts of the work's flags, and with `raises` the largest magnitude follow. */
static inline cast_job begin_cast(const tws_host_call *call, tws_dtype type, int first, int64_t rows, int64_t width,
                                  int raises) {
  cast_job job = {.found = {.call = call}, .type = type, .rows = rows, .width = width};
  int n = first + 2;
  job.multiplier = tws_float8_multiplier(*(const float *)call->operand[first], type);
  *(float *)call->operand[first + 1] = 1.0F / job.multiplier;
  if (call->work->flags & TWS_ROWS) job.y = call->operand[n++];
  if (call->work->flags & TWS_COLUMNS) job.y_t = call->operand[n++];
  if (raises) job.raised = call->operand[n];
  return job;
}

static inline void end_cast(const cast_job *job) {
  float found;
  if (!job->raised) return;
  put_largest(&job->found, &found);
  if (found > *job->raised || isnan(found)) *job->raised = found; /* NaN is larger than all numbers, and stays */
}

/* Writes the codes of the elements [column, column + n) of a row, which are given as they are stored. Returns the
 * larger of `most` and their magnitudes. With a scale of earlier steps infinity becomes NaN, so that it stays
 * visible. */
VECTOR_INLINE vi put_codes(tws_dtype type, const cast_job *job, int64_t row, int64_t column, vf x, int n, vi most) {
  uint8_t *y = job->y, *y_t = job->y_t;
  if (job->raised) most = v_larger_magnitude(most, v_keep(x, n)), x = v_only_finite(x);
  const vb codes = v_to_float8(type, x * job->multiplier);
  if (y && n == LANES) *(vb_unaligned *)(y + row * job->width + column) = codes;
  for (int i = 0; y && n < LANES && i < n; ++i) y[row * job->width + column + i] = codes[i];
  for (int i = 0; y_t && i < n; ++i) y_t[(column + i) * job->rows + row] = codes[i];
  return most;
}

/* Runs the statement for each vector of a thread's share of `rows` x `columns` elements: row r, elements [i, i + n).
 * The rows of a tile are adjacent, so that their transposed codes are contiguous. Threads divide the longer
 * dimension. */
#define EACH_VECTOR_OF_TILES(r, i, n, rows, columns, thread, threads, ...)                                  \
  do {                                                                                                      \
    const int64_t rows_ = (rows), columns_ = (columns);                                                     \
    const host_range all_rows_ = {0, rows_}, all_columns_ = {0, columns_};                                  \
    const host_range mine_ = rows_ > columns_ ? share(rows_, ROW_TILE, thread, threads) : all_rows_;        \
    const host_range along_ = rows_ > columns_ ? all_columns_ : share(columns_, ROW_TILE, thread, threads); \
    for (int64_t tile_ = mine_.begin; tile_ < mine_.end; tile_ += ROW_TILE) {                               \
      const int64_t tile_end_ = tile_ + ROW_TILE < mine_.end ? tile_ + ROW_TILE : mine_.end;                \
      EACH_VECTOR(                                                                                          \
          i, n, along_.begin, along_.end, for (int64_t r = tile_; r < tile_end_; ++r) { __VA_ARGS__; });    \
    }                                                                                                       \
  } while (0)

#endif
