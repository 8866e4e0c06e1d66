/* Linear layers. The product is divided into one block per thread; each thread multiplies its block with the
 * library's single-threaded routine. bfloat16 uses the processor's bfloat16 instructions if it has them; otherwise
 * it is converted to float32 panels, as half precision is. */
#include "base/float8.h"
#include "base/memory.h"
#include "models/few_rows.h"
#include "models/routing.h"
#include "real/host/kernels/kernels.h"

typedef struct product {
  const tws_host_call *call;
  int transpose_a, transpose_b, accumulate;
  int64_t m, n, k, lda, ldb, ldc; /* C is m x n; ldc 0: contiguous */
  const void *a, *b, *bias;       /* bias: NULL, or [n] in the inputs' type or, if there are scales, in the output's
                                   * type */
  void *c;
  tws_dtype in, out;
  const tws_dtype *codes; /* 8-bit types of a and b, which then have scales; NULL: both have the type `in` */
  const float *scale_a, *scale_b;
  int row_parts, column_parts;
  int row_slices, column_slices; /* slices of a thread's block that are computed one after another, because the
                                  * library's scratch memory is limited */
  int varies;                    /* 1: the shape differs from call to call, so no oneDNN primitive is created for it */
  int failed;                    /* 1: the library call of some thread has failed */
} product;

typedef struct block {
  host_range rows, columns;
} block;

static int64_t row_of(const product *p, int64_t row) {
  return row * (p->ldc ? p->ldc : p->n);
}

enum { PANEL_M = 256, PANEL_N = 256, PANEL_K = 512, GRAIN = 16 };
enum { CONVERT_FLOATS = PANEL_M * PANEL_K + PANEL_K * PANEL_N + PANEL_M * PANEL_N };

static block block_of(const product *p, int thread) {
  const int parts = p->row_parts * p->column_parts;
  if (thread >= parts) return (block){{0, 0}, {0, 0}};
  return (block){share(p->m, GRAIN, thread / p->column_parts, p->row_parts),
                 share(p->n, GRAIN, thread % p->column_parts, p->column_parts)};
}

/* Chooses the grid of blocks in which the largest block takes the least time to compute and to pack; packing one row or
 * column of operands costs about as much as multiplying it with 16 of the other side. */
static void choose_grid(product *p, int threads) {
  double best = INFINITY;
  for (int rows = 1; rows <= threads; ++rows) {
    const int columns = threads / rows;
    const int64_t m = (p->m + rows - 1) / rows, n = (p->n + columns - 1) / columns;
    const double block_m = (double)((m + GRAIN - 1) / GRAIN * GRAIN),
                 block_n = (double)((n + GRAIN - 1) / GRAIN * GRAIN);
    const double cost = block_m * block_n + 16 * (block_m + block_n);
    if (cost < best) {
      best = cost;
      p->row_parts = rows;
      p->column_parts = columns;
    }
  }
}

VECTOR_INLINE const void *operand_a(const product *p, int64_t row, int64_t k) {
  const int64_t index = p->transpose_a ? k * p->lda + row : row * p->lda + k;
  return p->codes ? (const uint8_t *)p->a + index : at(p->in, p->a, index);
}
VECTOR_INLINE const void *operand_b(const product *p, int64_t k, int64_t column) {
  const int64_t index = p->transpose_b ? column * p->ldb + k : k * p->ldb + column;
  return p->codes ? (const uint8_t *)p->b + index : at(p->in, p->b, index);
}

/* ---- float32 ---- */
static void float_task(void *arg, int thread, int threads) {
  product *p = arg;
  (void)threads;
  block b = block_of(p, thread);
  const int64_t rows = b.rows.end - b.rows.begin, columns = b.columns.end - b.columns.begin;
  if (rows <= 0 || columns <= 0) return;
  float *c = (float *)p->c + row_of(p, b.rows.begin) + b.columns.begin;
  tws_host_sgemm(p->transpose_a, p->transpose_b, rows, columns, p->k, operand_a(p, b.rows.begin, 0), p->lda,
                 operand_b(p, 0, b.columns.begin), p->ldb, p->accumulate ? 1.0F : 0.0F, c, row_of(p, 1));
  if (!p->bias) return;
  const float *bias = (const float *)p->bias + b.columns.begin;
  for (int64_t i = 0; i < rows; ++i)
    EACH_VECTOR(
        j, n, 0, columns,
        v_put(TWS_F32, c, row_of(p, i) + j, v_get(TWS_F32, c, row_of(p, i) + j, n) + v_get(TWS_F32, bias, j, n), n));
}

/* ---- bfloat16 instructions ---- */
static tws_host_bf16_gemm native_shape(const product *p, block b) {
  return (tws_host_bf16_gemm){.m = b.rows.end - b.rows.begin,
                              .n = b.columns.end - b.columns.begin,
                              .k = p->k,
                              .lda = p->lda,
                              .ldb = p->ldb,
                              .ldc = row_of(p, 1),
                              .transpose_a = p->transpose_a,
                              .transpose_b = p->transpose_b,
                              .accumulate = p->accumulate,
                              .bias = p->bias != NULL,
                              .c_is_f32 = p->out == TWS_F32};
}

static host_range slice_range(host_range whole, int slice, int slices) {
  const host_range r = share(whole.end - whole.begin, GRAIN, slice, slices);
  return (host_range){whole.begin + r.begin, whole.begin + r.end};
}

/* Returns a slice of a thread's block; it is empty if less than the slice's grain remains. */
static block slice_of(const product *p, int thread, int slice) {
  const block whole = block_of(p, thread);
  return (block){slice_range(whole.rows, slice / p->column_slices, p->row_slices),
                 slice_range(whole.columns, slice % p->column_slices, p->column_slices)};
}

static int is_empty(block b) {
  return b.rows.end <= b.rows.begin || b.columns.end <= b.columns.begin;
}

static void native_task(void *arg, int thread, int threads) {
  product *p = arg;
  (void)threads;
  for (int slice = 0; slice < p->row_slices * p->column_slices; ++slice) {
    const block b = slice_of(p, thread, slice);
    if (is_empty(b)) continue;
    tws_host_bf16_gemm shape = native_shape(p, b);
    if (tws_host_bf16_multiply(p->call->backend->bf16, thread, &shape, operand_a(p, b.rows.begin, 0),
                               operand_b(p, 0, b.columns.begin),
                               at_mutable(p->out, p->c, row_of(p, b.rows.begin) + b.columns.begin),
                               p->bias ? at(p->in, p->bias, b.columns.begin) : NULL) != 0)
      __atomic_store_n(&p->failed, 1, __ATOMIC_RELAXED);
  }
}

static tws_code prepare_slices(const product *p, int parts, tws_error *err) {
  for (int i = 0; i < parts; ++i)
    for (int slice = 0; slice < p->row_slices * p->column_slices; ++slice) {
      const block b = slice_of(p, i, slice);
      if (is_empty(b)) continue;
      tws_host_bf16_gemm shape = native_shape(p, b);
      TWS_TRY(tws_host_bf16_prepare(p->call->backend->bf16, &shape, err));
    }
  return TWS_OK;
}

/* Divides the block into as few slices of rows, or else of columns, as the scratch memory permits. */
static tws_code native_prepare(product *p, int parts, tws_error *err) {
  static const int slices[][2] = {{1, 1}, {2, 1}, {1, 2}, {4, 1}, {1, 4}, {8, 1}, {1, 8}};
  tws_code code = TWS_UNSUPPORTED;
  if (!p->call->backend->bf16 || p->in != TWS_BF16 || p->varies) return TWS_UNSUPPORTED;
  for (size_t i = 0; i < sizeof slices / sizeof *slices && code == TWS_UNSUPPORTED; ++i) {
    p->row_slices = slices[i][0];
    p->column_slices = slices[i][1];
    code = prepare_slices(p, parts, err);
  }
  return code;
}

/* ---- any types, through float32 panels ---- */
/* Converts 8-bit codes to float32, without their scale. */
static void widen_codes(tws_dtype type, float *to, int64_t to_stride, const uint8_t *from, int64_t from_stride,
                        int64_t rows, int64_t columns) {
  float meaning[256];
  for (int code = 0; code < 256; ++code)
    meaning[code] = type == TWS_E5M2 ? tws_from_e5m2((uint8_t)code) : tws_from_e4m3((uint8_t)code);
  for (int64_t i = 0; i < rows; ++i)
    for (int64_t j = 0; j < columns; ++j) to[i * to_stride + j] = meaning[from[i * from_stride + j]];
}

static void widen(tws_dtype type, float *to, int64_t to_stride, const void *from, int64_t from_stride, int64_t rows,
                  int64_t columns) {
  FOR_TYPE(
      type, T, for (int64_t i = 0; i < rows; ++i) {
        EACH_VECTOR(j, n, 0, columns, v_put(TWS_F32, to, i * to_stride + j, v_get(T, from, i * from_stride + j, n), n));
      });
}

static void pack(const product *p, int of_b, float *to, int64_t to_stride, const void *from, int64_t from_stride,
                 int64_t rows, int64_t columns) {
  if (p->codes)
    widen_codes(p->codes[of_b], to, to_stride, from, from_stride, rows, columns);
  else
    widen(p->in, to, to_stride, from, from_stride, rows, columns);
}

static void panel_store(const product *p, const float *panel, int64_t row, int64_t column, int64_t rows,
                        int64_t columns) {
  const float scale = p->codes ? *p->scale_a * *p->scale_b : 1.0F;
  for (int64_t i = 0; i < rows; ++i) {
    const int64_t out = row_of(p, row + i) + column;
    FOR_TYPE(p->out, C, EACH_VECTOR(j, n, 0, columns, {
               vf v = v_load_part(panel + i * PANEL_N + j, n) * scale;
               if (p->bias) FOR_TYPE(p->in, B, v += v_get(B, p->bias, column + j, n));
               if (p->accumulate) v += v_get(C, p->c, out + j, n);
               v_put(C, p->c, out + j, v, n);
             }));
  }
}

static void panel_task(void *arg, int thread, int threads) {
  product *p = arg;
  (void)threads;
  block b = block_of(p, thread);
  float *a_panel = p->call->backend->convert + (int64_t)thread * CONVERT_FLOATS;
  float *b_panel = a_panel + PANEL_M * PANEL_K, *c_panel = b_panel + PANEL_K * PANEL_N;
  for (int64_t i = b.rows.begin; i < b.rows.end; i += PANEL_M) {
    const int64_t m = b.rows.end - i < PANEL_M ? b.rows.end - i : PANEL_M;
    for (int64_t j = b.columns.begin; j < b.columns.end; j += PANEL_N) {
      const int64_t n = b.columns.end - j < PANEL_N ? b.columns.end - j : PANEL_N;
      for (int64_t l = 0; l < p->k; l += PANEL_K) {
        const int64_t k = p->k - l < PANEL_K ? p->k - l : PANEL_K;
        const int64_t a_columns = p->transpose_a ? m : k, b_columns = p->transpose_b ? k : n;
        pack(p, 0, a_panel, a_columns, operand_a(p, i, l), p->lda, p->transpose_a ? k : m, a_columns);
        pack(p, 1, b_panel, b_columns, operand_b(p, l, j), p->ldb, p->transpose_b ? n : k, b_columns);
        tws_host_sgemm(p->transpose_a, p->transpose_b, m, n, k, a_panel, a_columns, b_panel, b_columns, l ? 1.0F : 0.0F,
                       c_panel, PANEL_N);
      }
      panel_store(p, c_panel, i, j, m, n);
    }
  }
}

/* ---- products with few rows of A, as in decoding ---- */

/* AHEAD: bytes of B that are prefetched before they are read, as the hardware's prefetcher stops at the end of a page.
 * With one or two rows of A the time is that of reading B, of which each row is read alone: several rows at a time
 * reach two thirds of the bandwidth. With more rows the time is that of the instructions: two rows of B are read
 * together, so that an element of A is loaded and widened once for both. */
enum { AHEAD = 4096, LINE = 64, MOST_SUMS = 8 };

/* The shape of one pass over rows of B: `columns` outputs of each of `tokens` rows of A, with `steps` independent sums
 * each. All numbers are constants of the caller; AVX2 has registers for MOST_SUMS sums and the operands. */
typedef struct few_rows {
  int tokens, columns, steps;
} few_rows;

/* Adds products of 2 LANES adjacent bfloat16 numbers: the lower and the upper halves of 32 bits become float32 without
 * being moved to other lanes. */
VECTOR_INLINE void add_bf16_pairs(const product *p, few_rows f, int64_t column, int64_t from, int step, vf *sum) {
  vu a, b[2];
  for (int j = 0; j < f.columns; ++j) memcpy(&b[j], at(TWS_BF16, p->b, (column + j) * p->ldb + from), sizeof a);
  for (int t = 0; t < f.tokens; ++t) {
    vf *to = sum + (t * f.columns) * f.steps + step;
    memcpy(&a, at(TWS_BF16, p->a, t * p->lda + from), sizeof a);
    for (int j = 0; j < f.columns; ++j) to[j * f.steps] += (vf)(b[j] << 16) * (vf)(a << 16);
    for (int j = 0; j < f.columns; ++j)
      to[j * f.steps] += (vf)(b[j] & 0xffff0000u) * (vf)(a & 0xffff0000u);
  }
}

VECTOR_INLINE void add_vectors(tws_dtype T, const product *p, few_rows f, int64_t column, int64_t from, int count,
                               int step, vf *sum) {
  vf b[2];
  for (int j = 0; j < f.columns; ++j) b[j] = v_get(T, p->b, (column + j) * p->ldb + from, count);
  for (int t = 0; t < f.tokens; ++t) {
    const vf a = v_get(T, p->a, t * p->lda + from, count);
    for (int j = 0; j < f.columns; ++j) sum[(t * f.columns + j) * f.steps + step] += b[j] * a;
  }
}

/* Read and write one element. A vector of which one lane is used takes three times as many instructions, which were a
 * tenth of the time of products with four rows. */
VECTOR_INLINE float get_one(tws_dtype type, const void *base, int64_t index) {
  if (type == TWS_F32) return ((const float *)base)[index];
  const uint16_t half = ((const uint16_t *)base)[index];
  return type == TWS_BF16 ? tws_from_bf16(half) : tws_from_f16(half);
}
VECTOR_INLINE void put_one(tws_dtype type, void *base, int64_t index, float value) {
  if (type == TWS_F32)
    ((float *)base)[index] = value;
  else
    ((uint16_t *)base)[index] = type == TWS_BF16 ? tws_to_bf16(value) : tws_to_f16(value);
}

/* Computes outputs `column` and, of two columns, the next one. */
VECTOR_INLINE void dot_rows(tws_dtype T, const product *p, few_rows f, int64_t column) {
  const int64_t each = T == TWS_BF16 ? 2 * LANES : LANES, bytes = each * (T == TWS_F32 ? 4 : 2);
  const int64_t chunk = (int64_t)f.steps * each, whole = p->k / chunk * chunk;
  vf sum[MOST_SUMS];
  for (int i = 0; i < f.tokens * f.columns * f.steps; ++i) sum[i] = v_zero();
  for (int64_t c = 0; c < whole; c += chunk)
    for (int i = 0; i < f.steps; ++i) {
      const int64_t from = c + i * each;
      for (int j = 0; j < f.columns && i * bytes % LINE == 0; ++j)
        __builtin_prefetch((const char *)at(T, p->b, (column + j) * p->ldb + from) + AHEAD, 0, 3);
      if (T == TWS_BF16)
        add_bf16_pairs(p, f, column, from, i, sum);
      else
        add_vectors(T, p, f, column, from, LANES, i, sum);
    }
  EACH_VECTOR(c, n, whole, p->k, add_vectors(T, p, f, column, c, n, 0, sum));
  for (int t = 0; t < f.tokens; ++t)
    for (int j = 0; j < f.columns; ++j) {
      const vf *of = sum + (t * f.columns + j) * f.steps;
      vf all = of[0];
      for (int i = 1; i < f.steps; ++i) all += of[i];
      float total = v_sum(all);
      if (p->bias) total += get_one(T, p->bias, column + j);
      put_one(p->out, p->c, row_of(p, t) + column + j, total);
    }
}

/* Computes the outputs of a range of columns, two at a time and the last of an odd number alone. */
VECTOR_INLINE void dot_pairs(tws_dtype T, const product *p, int tokens, host_range r) {
  int64_t j = r.begin;
  for (; j + 1 < r.end; j += 2) dot_rows(T, p, (few_rows){tokens, 2, 1}, j);
  if (j < r.end) dot_rows(T, p, (few_rows){tokens, 1, 2}, j);
}

static void few_rows_task(void *arg, int thread, int threads) {
  const product *p = arg;
  const host_range r = share(p->n, GRAIN, thread, threads);
  FOR_TYPE(
      p->in, T, switch (p->m) {
        case 1:
          for (int64_t j = r.begin; j < r.end; ++j) dot_rows(T, p, (few_rows){1, 1, 8}, j);
          break;
        case 2:
          for (int64_t j = r.begin; j < r.end; ++j) dot_rows(T, p, (few_rows){2, 1, 4}, j);
          break;
        case 3:
          dot_pairs(T, p, 3, r);
          break;
        default:
          dot_pairs(T, p, TWS_FEW_ROWS, r);
      });
}

static int has_few_rows(const product *p) {
  return p->m <= TWS_FEW_ROWS && p->transpose_b && !p->transpose_a && !p->accumulate && !p->codes;
}

static tws_code multiply(product *p, tws_error *err) {
  tws_backend *backend = p->call->backend;
  if (p->m <= 0 || p->n <= 0 || p->k <= 0)
    return tws_fail(err, TWS_INVALID, NULL, "matrix product of %lld x %lld x %lld", (long long)p->m, (long long)p->n,
                    (long long)p->k);
  const int threads = (double)p->m * (double)p->n * (double)p->k < 64e3 ? 1 : backend->threads;
  choose_grid(p, threads);
  tws_host_task task = panel_task;
  if (p->codes) {
    task = panel_task;
  } else if (has_few_rows(p)) {
    task = few_rows_task;
  } else if (p->in == TWS_F32 && p->out == TWS_F32) {
    task = float_task;
  } else {
    tws_code code = native_prepare(p, p->row_parts * p->column_parts, err);
    if (code == TWS_OK)
      task = native_task;
    else if (code != TWS_UNSUPPORTED)
      return code;
  }
  if (task == panel_task && !backend->convert) {
    backend->convert = tws_calloc((size_t)backend->threads * CONVERT_FLOATS, sizeof(float));
    if (!backend->convert) return tws_fail(err, TWS_MEMORY, NULL, "host backend: no memory for conversion panels");
    backend->convert_bytes = (size_t)backend->threads * CONVERT_FLOATS * sizeof(float);
  }
  if (threads == 1)
    task(p, 0, 1);
  else
    tws_host_pool_run(backend->pool, task, p);
  if (p->failed) return tws_fail(err, TWS_INTERNAL, NULL, "host backend: oneDNN failed to multiply");
  return TWS_OK;
}

/* Applies the activation to a product's output, or its gradient, by the kernel of the activation. */
static tws_code activate(const tws_host_call *call, tws_kernel kernel, int64_t count, void *const *operands,
                         int operand_count, tws_error *err) {
  const tws_work work = {
      .code = (uint8_t)kernel, .dtype = call->work->dtype, .dtype2 = call->work->dtype, .d = {count}};
  const tws_dtype type = call->work->flags & TWS_FP8 ? (tws_dtype)call->work->dtype : call->dtype[0];
  const tws_dtype types[] = {type, type, type};
  const tws_host_call part = {
      .work = &work, .operand = operands, .dtype = types, .count = operand_count, .backend = call->backend};
  return kernel == TWS_KERNEL_GELU ? TWS_HOST(gelu)(&part, err) : TWS_HOST(gelu_grad)(&part, err);
}

/* Sets the scales of an 8-bit product, which are its last two operands. */
static void take_codes(product *p) {
  const tws_host_call *call = p->call;
  if (!(call->work->flags & TWS_FP8)) return;
  p->codes = call->dtype;
  p->in = p->out;
  p->scale_a = call->operand[call->count - 2];
  p->scale_b = call->operand[call->count - 1];
}

HOST_KERNEL(linear) {
  const int64_t *d = call->work->d;
  const int biased = (call->work->flags & TWS_BIAS) != 0, gelu = (call->work->flags & TWS_GELU) != 0;
  const int y = biased ? 3 : 2, z = gelu ? y + 1 : y;
  product p = {.call = call,
               .transpose_b = 1,
               .m = d[0],
               .n = d[1],
               .k = d[2],
               .lda = d[2],
               .ldb = d[2],
               .a = call->operand[0],
               .b = call->operand[1],
               .bias = biased ? call->operand[2] : NULL,
               .c = call->operand[z],
               .in = call->dtype[0],
               .out = call->dtype[z]};
  take_codes(&p);
  TWS_TRY(multiply(&p, err));
  if (!gelu) return TWS_OK;
  return activate(call, TWS_KERNEL_GELU, d[0] * d[1], (void *const[]){call->operand[z], call->operand[y]}, 2, err);
}

HOST_KERNEL(linear_grad_input) {
  const int64_t *d = call->work->d;
  product p = {.call = call,
               .accumulate = (call->work->flags & TWS_ACCUMULATE) != 0,
               .m = d[0],
               .n = d[2],
               .k = d[1],
               .lda = d[1],
               .ldb = d[2],
               .a = call->operand[0],
               .b = call->operand[1],
               .c = call->operand[2],
               .in = call->dtype[0],
               .out = call->dtype[2]};
  if (call->work->flags & TWS_FP8) p.transpose_b = 1, p.ldb = d[1];
  take_codes(&p);
  TWS_TRY(multiply(&p, err));
  const int gelu = (call->work->flags & TWS_GELU) != 0;
  void *dx = call->operand[2];
  if (gelu)
    TWS_TRY(activate(call, TWS_KERNEL_GELU_GRAD, d[0] * d[2], (void *const[]){dx, call->operand[3], dx}, 3, err));
  if (!(call->work->flags & TWS_SUMS)) return TWS_OK;
  const int sums = 3 + gelu, keep = (call->work->flags & TWS_ACCUMULATE_PARAM) != 0;
  return TWS_HOST(column_sums)(
      call, (host_sums){dx, call->operand[sums], call->dtype[2], call->dtype[sums], d[0], d[2], keep});
}

/* Sums the rows of some columns in order; threads share the columns. */
VECTOR_INLINE void sum_columns(tws_dtype T, tws_dtype G, const host_sums *s, int64_t column, int n) {
  vf sum = v_zero();
  for (int64_t t = 0; t < s->rows; ++t) sum += v_get(T, s->x, t * s->columns + column, n);
  if (s->keep) sum += v_get(G, s->sums, column, n);
  v_put(G, s->sums, column, sum, n);
}
static void sums_task(void *arg, int thread, int threads) {
  const host_sums *s = arg;
  host_range r = share(s->columns, 64, thread, threads);
  FOR_TYPE(s->type, T, FOR_TYPE(s->sums_type, G, EACH_VECTOR(i, n, r.begin, r.end, sum_columns(T, G, s, i, n))));
}
tws_code TWS_HOST(column_sums)(const tws_host_call *call, host_sums s) {
  run_parallel(call, 4.0 * (double)(s.rows * s.columns), sums_task, &s);
  return TWS_OK;
}

HOST_KERNEL(linear_grad_weight) {
  const int64_t *d = call->work->d;
  product p = {.call = call,
               .transpose_a = 1,
               .accumulate = (call->work->flags & TWS_ACCUMULATE) != 0,
               .m = d[1],
               .n = d[2],
               .k = d[0],
               .lda = d[1],
               .ldb = d[2],
               .a = call->operand[0],
               .b = call->operand[1],
               .c = call->operand[2],
               .in = call->dtype[0],
               .out = call->dtype[2]};
  if (call->work->flags & TWS_FP8) p.transpose_a = 0, p.transpose_b = 1, p.lda = p.ldb = d[0];
  take_codes(&p);
  TWS_TRY(multiply(&p, err));
  if (!(call->work->flags & TWS_BIAS)) return TWS_OK;
  return TWS_HOST(column_sums)(
      call, (host_sums){call->operand[0], call->operand[3], call->dtype[0], call->dtype[3], d[0], d[1], p.accumulate});
}

/* ---- experts: products of the filled slots ---- */

typedef struct expert_rows {
  int64_t sources, experts, capacity, out, in, shared;
} expert_rows;

static expert_rows rows_of(const tws_host_call *call) {
  const int64_t *d = call->work->d;
  return (expert_rows){d[0], d[1], d[2], d[3], d[4], d[6]};
}

/* Returns the number of slots of an expert that a source rank fills. at: index of the pair of expert and source. */
static int64_t filled_of(const expert_rows *r, const int32_t *counts, int64_t at) {
  const int64_t filled = counts[at * TWS_EXPERT_COUNTS + TWS_COUNT_FILLED];
  const int64_t most = r->shared > 1 ? r->shared * r->capacity - tws_slots_before(counts, at, r->shared) : r->capacity;
  return filled < 0 || most < 0 ? 0 : filled < most ? filled : most;
}

static int64_t first_of(const expert_rows *r, const int32_t *counts, int64_t at) {
  return tws_first_slot(counts, at, r->capacity, r->shared);
}

typedef struct clear_job {
  const expert_rows *rows;
  const int32_t *counts;
  void *to;
  int64_t width;
  tws_dtype dtype;
} clear_job;

static void clear_task(void *arg, int thread, int threads) {
  const clear_job *job = arg;
  const expert_rows *r = job->rows;
  const host_range range = share(r->sources * r->experts, 1, thread, threads);
  for (int64_t b = range.begin; b < range.end; ++b) {
    const int64_t first = first_of(r, job->counts, b) + filled_of(r, job->counts, b);
    const int64_t left = tws_slots_left(job->counts, b, r->capacity, r->shared);
    if (left > 0)
      memset(at_mutable(job->dtype, job->to, first * job->width), 0,
             (size_t)(left * job->width) * (job->dtype == TWS_F32 ? 4U : 2U));
  }
}

static void clear_unfilled(const tws_host_call *call, const expert_rows *r, const int32_t *counts, void *to,
                           int64_t width) {
  clear_job job = {r, counts, to, width, call->dtype[0]};
  run_parallel(call, 4.0 * (double)(r->sources * r->experts * r->capacity * width), clear_task, &job);
}

HOST_KERNEL(expert_linear) {
  const expert_rows r = rows_of(call);
  const int biased = (call->work->flags & TWS_BIAS) != 0;
  const int32_t *counts = call->operand[biased ? 3 : 2];
  void *y = call->operand[biased ? 4 : 3];
  const tws_dtype type = call->dtype[0];
  clear_unfilled(call, &r, counts, y, r.out);
  for (int64_t b = 0; b < r.sources * r.experts; ++b) {
    const int64_t expert = b % r.experts;
    product p = {.call = call,
                 .transpose_b = 1,
                 .varies = 1,
                 .m = filled_of(&r, counts, b),
                 .n = r.out,
                 .k = r.in,
                 .lda = r.in,
                 .ldb = r.in,
                 .a = at(type, call->operand[0], first_of(&r, counts, b) * r.in),
                 .b = at(type, call->operand[1], expert * r.out * r.in),
                 .bias = biased ? at(type, call->operand[2], expert * r.out) : NULL,
                 .c = at_mutable(type, y, first_of(&r, counts, b) * r.out),
                 .in = type,
                 .out = type};
    if (p.m > 0) TWS_TRY(multiply(&p, err));
  }
  return TWS_OK;
}

HOST_KERNEL(expert_linear_grad_input) {
  const expert_rows r = rows_of(call);
  const int accumulate = (call->work->flags & TWS_ACCUMULATE) != 0;
  const int32_t *counts = call->operand[2];
  const tws_dtype type = call->dtype[0];
  if (!accumulate) clear_unfilled(call, &r, counts, call->operand[3], r.in);
  for (int64_t b = 0; b < r.sources * r.experts; ++b) {
    product p = {.call = call,
                 .varies = 1,
                 .accumulate = accumulate,
                 .m = filled_of(&r, counts, b),
                 .n = r.in,
                 .k = r.out,
                 .lda = r.out,
                 .ldb = r.in,
                 .a = at(type, call->operand[0], first_of(&r, counts, b) * r.out),
                 .b = at(type, call->operand[1], b % r.experts * r.out * r.in),
                 .c = at_mutable(type, call->operand[3], first_of(&r, counts, b) * r.in),
                 .in = type,
                 .out = type};
    if (p.m > 0) TWS_TRY(multiply(&p, err));
  }
  return TWS_OK;
}

/* Computes column sums of the filled rows of all sources, expert by expert. */
static void expert_bias_task(void *arg, int thread, int threads) {
  const tws_host_call *call = arg;
  const expert_rows r = rows_of(call);
  const int32_t *counts = call->operand[2];
  void *dbias = call->operand[4];
  const host_range range = share(r.experts, 1, thread, threads);
  for (int64_t e = range.begin; e < range.end; ++e)
    FOR_TYPE(call->dtype[0], T, FOR_TYPE(call->dtype[4], G, EACH_VECTOR(i, n, 0, r.out, {
                                           vf sum = v_zero();
                                           for (int64_t b = e; b < r.sources * r.experts; b += r.experts)
                                             for (int64_t row = 0; row < filled_of(&r, counts, b); ++row)
                                               sum += v_get(T, call->operand[0],
                                                            (first_of(&r, counts, b) + row) * r.out + i, n);
                                           if (call->work->flags & TWS_ACCUMULATE)
                                             sum += v_get(G, dbias, e * r.out + i, n);
                                           v_put(G, dbias, e * r.out + i, sum, n);
                                         })));
}

HOST_KERNEL(expert_linear_grad_weight) {
  const expert_rows r = rows_of(call);
  const int32_t *counts = call->operand[2];
  const tws_dtype type = call->dtype[0], out = call->dtype[3];
  for (int64_t e = 0; e < r.experts; ++e) {
    int accumulate = (call->work->flags & TWS_ACCUMULATE) != 0;
    void *dweight = at_mutable(out, call->operand[3], e * r.out * r.in);
    for (int64_t b = e; b < r.sources * r.experts; b += r.experts) {
      product p = {.call = call,
                   .transpose_a = 1,
                   .varies = 1,
                   .accumulate = accumulate,
                   .m = r.out,
                   .n = r.in,
                   .k = filled_of(&r, counts, b),
                   .lda = r.out,
                   .ldb = r.in,
                   .a = at(type, call->operand[0], first_of(&r, counts, b) * r.out),
                   .b = at(type, call->operand[1], first_of(&r, counts, b) * r.in),
                   .c = dweight,
                   .in = type,
                   .out = out};
      if (p.k == 0) continue;
      TWS_TRY(multiply(&p, err));
      accumulate = 1;
    }
    if (!accumulate) memset(dweight, 0, (size_t)(r.out * r.in) * (out == TWS_F32 ? 4U : 2U));
  }
  if (call->work->flags & TWS_BIAS)
    run_parallel(call, 4.0 * (double)(r.sources * r.experts * r.capacity * r.out), expert_bias_task,
                 (void *)(uintptr_t)call);
  return TWS_OK;
}

/* ---- adapters: products that read and write column ranges of rows ---- */

typedef struct low_rank_part {
  int64_t column, width; /* range of columns of y */
  int64_t row, slot;     /* row: the layer's first row of b; slot: its first element in a row of h */
} low_rank_part;

/* Lists the layers that have an adapter; returns their number. */
static int low_rank_parts(const int64_t *d, low_rank_part part[3]) {
  int count = 0;
  int64_t column = 0, row = 0;
  for (int i = 0; i < 3; i++) {
    if (!d[5 + i] && d[2 + i] > 0) {
      part[count] = (low_rank_part){column, d[2 + i], row, count * d[1]};
      row += part[count++].width;
    }
    column += d[2 + i];
  }
  return count;
}

HOST_KERNEL(low_rank) {
  const int64_t *d = call->work->d;
  const tws_dtype type = call->dtype[0];
  low_rank_part part[3];
  const int count = low_rank_parts(d, part);
  for (int i = 0; i < count; i++) {
    product p = {.call = call,
                 .transpose_b = 1,
                 .accumulate = 1,
                 .m = d[0],
                 .n = part[i].width,
                 .k = d[1],
                 .lda = count * d[1],
                 .ldb = d[1],
                 .ldc = d[2] + d[3] + d[4],
                 .a = at(type, call->operand[0], part[i].slot),
                 .b = at(type, call->operand[1], part[i].row * d[1]),
                 .c = at_mutable(type, call->operand[2], part[i].column),
                 .in = type,
                 .out = type};
    TWS_TRY(multiply(&p, err));
  }
  return TWS_OK;
}

HOST_KERNEL(low_rank_grad_input) {
  const int64_t *d = call->work->d;
  const tws_dtype type = call->dtype[0];
  low_rank_part part[3];
  const int count = low_rank_parts(d, part);
  for (int i = 0; i < count; i++) {
    product p = {.call = call,
                 .m = d[0],
                 .n = d[1],
                 .k = part[i].width,
                 .lda = d[2] + d[3] + d[4],
                 .ldb = d[1],
                 .ldc = count * d[1],
                 .a = at(type, call->operand[0], part[i].column),
                 .b = at(type, call->operand[1], part[i].row * d[1]),
                 .c = at_mutable(type, call->operand[2], part[i].slot),
                 .in = type,
                 .out = type};
    TWS_TRY(multiply(&p, err));
  }
  return TWS_OK;
}

HOST_KERNEL(low_rank_grad_weight) {
  const int64_t *d = call->work->d;
  const tws_dtype type = call->dtype[0], out = call->dtype[2];
  low_rank_part part[3];
  const int count = low_rank_parts(d, part);
  for (int i = 0; i < count; i++) {
    product p = {.call = call,
                 .transpose_a = 1,
                 .accumulate = (call->work->flags & TWS_ACCUMULATE) != 0,
                 .m = part[i].width,
                 .n = d[1],
                 .k = d[0],
                 .lda = d[2] + d[3] + d[4],
                 .ldb = count * d[1],
                 .a = at(type, call->operand[0], part[i].column),
                 .b = at(type, call->operand[1], part[i].slot),
                 .c = at_mutable(out, call->operand[2], part[i].row * d[1]),
                 .in = type,
                 .out = out};
    TWS_TRY(multiply(&p, err));
  }
  return TWS_OK;
}
