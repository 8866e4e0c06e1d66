/* Matrix products by cuBLASLt. The library is column-major; a row-major matrix is its transpose there, so the product
 * Y[m,n] = X W^T becomes D(n x m) = W^T(n x k) X(k x m). The algorithm is chosen once for each work and alignment and
 * kept, so equal work runs equal code. Partial sums of split-K are combined in float32 in a fixed order. */
#include <cublasLt.h>
#include <string.h>
#include "base/memory.h"
#include "real/cuda/gemm_library.h"
#include "real/cuda/internal.h"

struct tws_cuda_gemm {
  cublasLtHandle_t handle;
  tws_gemm_clock clock;
  tws_gemm_choice **choices;
  size_t count, capacity;
};

size_t tws_cuda_gemm_version(void) {
  return cublasLtGetVersion();
}

tws_code tws_cuda_gemm_create(tws_cuda_gemm **out, tws_error *err) {
  *out = NULL;
  tws_cuda_gemm *gemm = tws_calloc(1, sizeof *gemm);
  if (!gemm) return tws_fail(err, TWS_MEMORY, NULL, "out of memory");
  const cublasStatus_t status = cublasLtCreate(&gemm->handle);
  if (status != CUBLAS_STATUS_SUCCESS) {
    tws_free(gemm);
    return tws_gemm_failed(status, "creating a handle", err);
  }
  *out = gemm;
  return TWS_OK;
}

static void free_choice(tws_gemm_choice *c) {
  tws_gemm_clear(c);
  tws_free(c);
}

void tws_cuda_gemm_destroy(tws_cuda_gemm *gemm) {
  if (!gemm) return;
  for (size_t i = 0; i < gemm->count; i++) free_choice(gemm->choices[i]);
  tws_free(gemm->choices);
  tws_gemm_clock_destroy(&gemm->clock);
  cublasLtDestroy(gemm->handle);
  tws_free(gemm);
}

/* ---- the three products of a linear layer ---- */

enum { EIGHT_BITS_SINCE = 89 }; /* compute capability, times ten, from which 8-bit products are supported */

/* Describes a linear layer's product: C = sum over inner of A(row, i) B(column, i), row-major, in the terms of
 * tws_cuda_product. */
static tws_cuda_product product_of(const tws_cuda_call *call) {
  const tws_work *w = call->work;
  const int64_t m = w->d[0], n = w->d[1], k = w->d[2];
  const int bias = (w->flags & TWS_BIAS) != 0, c = w->code == TWS_KERNEL_LINEAR && bias ? 3 : 2;
  tws_cuda_product p = {.a = call->operand[0],
                        .b = call->operand[1],
                        .c = call->operand[c],
                        .in = call->dtype[0],
                        .b_in = call->dtype[1],
                        .out = call->dtype[c],
                        .accumulate = w->code != TWS_KERNEL_LINEAR && (w->flags & TWS_ACCUMULATE)};
  const int codes = (w->flags & TWS_FP8) != 0;
  if (w->code == TWS_KERNEL_LINEAR) { /* y = x weight^T */
    p.rows = m, p.columns = n, p.inner = k;
    p.a_row = k, p.a_inner = 1, p.b_column = k, p.b_inner = 1;
    if (bias) p.bias = call->operand[2];
    if (w->flags & TWS_GELU) p.activation = TWS_CUDA_GELU;
  } else if (w->code == TWS_KERNEL_LINEAR_GRAD_INPUT) { /* dx = dy weight */
    p.rows = m, p.columns = k, p.inner = n;
    p.a_row = n, p.a_inner = 1, p.b_column = codes ? n : 1, p.b_inner = codes ? 1 : k;
    if (w->flags & TWS_GELU) p.activation = TWS_CUDA_GELU_GRAD;
    if (w->flags & TWS_SUMS) {
      const int sums = p.activation ? 4 : 3;
      p.sums = call->operand[sums], p.sums_type = call->dtype[sums], p.sums_of_result = 1;
      p.sums_accumulate = (w->flags & TWS_ACCUMULATE_PARAM) != 0;
    }
  } else { /* dweight = dy^T x */
    p.rows = n, p.columns = k, p.inner = m;
    p.a_row = codes ? m : 1, p.a_inner = codes ? 1 : n, p.b_column = codes ? m : 1, p.b_inner = codes ? 1 : k;
    if (bias) p.sums = call->operand[3], p.sums_type = call->dtype[3], p.sums_accumulate = p.accumulate;
  }
  if (p.activation) p.z = call->operand[c + 1];
  if (codes) p.a_scale = call->operand[call->count - 2], p.b_scale = call->operand[call->count - 1];
  return p;
}

/* ---- epilogues of a product by the backend's own kernels ---- */

static tws_code run_part(const tws_cuda_call *call, tws_cuda_function run, tws_kernel kernel, int64_t count,
                         void *const *operand, const tws_dtype *dtype, int operands, tws_error *err) {
  const tws_work work = {.code = (uint8_t)kernel, .d = {count}};
  tws_cuda_call part = *call;
  part.work = &work, part.operand = operand, part.dtype = dtype, part.count = operands;
  return run(&part, err);
}

static tws_code activate(const tws_cuda_call *call, const tws_cuda_product *p, tws_error *err) {
  const tws_dtype dtype[] = {p->out, p->out, p->out};
  const int64_t count = p->rows * p->columns;
  if (p->activation == TWS_CUDA_GELU)
    return run_part(call, tws_cuda_gelu, TWS_KERNEL_GELU, count, (void *const[]){p->z, p->c}, dtype, 2, err);
  return run_part(call, tws_cuda_gelu_grad, TWS_KERNEL_GELU_GRAD, count, (void *const[]){p->c, p->z, p->c}, dtype, 3,
                  err);
}

static tws_code sum_columns(const tws_cuda_call *call, const tws_cuda_product *p, tws_error *err) {
  if (p->sums_of_result)
    return tws_cuda_column_sums(call, p->c, p->out, p->rows, p->columns, p->sums, p->sums_type, p->sums_accumulate,
                                err);
  return tws_cuda_column_sums(call, p->a, p->in, p->inner, p->rows, p->sums, p->sums_type, p->sums_accumulate, err);
}

/* Computes the rest of the epilogue after a product in form ALONE or ACTIVATED. */
static tws_code add_rest(const tws_cuda_call *call, const tws_cuda_product *p, tws_gemm_form form, tws_error *err) {
  if (p->activation && form == TWS_GEMM_ALONE) TWS_TRY(activate(call, p, err));
  return p->sums ? sum_columns(call, p, err) : TWS_OK;
}

/* After a product with its whole epilogue: adds the column sums, which the library wrote to scratch memory, to the
 * existing sums. */
static tws_code add_sums(const tws_cuda_call *call, const tws_cuda_product *p, tws_error *err) {
  const tws_dtype dtype[] = {p->sums_type, p->sums_type};
  if (!p->sums || !p->sums_accumulate) return TWS_OK;
  return run_part(call, tws_cuda_accumulate, TWS_KERNEL_ACCUMULATE, tws_gemm_sum_count(p),
                  (void *const[]){tws_gemm_sums(call, p), p->sums}, dtype, 2, err);
}

static tws_code without_library(const tws_cuda_call *call, const tws_cuda_product *p, tws_error *err) {
  tws_cuda_product alone = *p;
  alone.c = tws_gemm_target(p, TWS_GEMM_ALONE);
  TWS_TRY(tws_cuda_plain_product(call, &alone, err));
  return add_rest(call, p, TWS_GEMM_ALONE, err);
}

/* ---- products by the library ---- */

typedef struct attempt {
  tws_cuda_gemm *gemm;
  const tws_cuda_call *call;
  const tws_cuda_product *product;
  const tws_cuda_gemm_workspace *workspace;
  tws_gemm_choice *choice;
} attempt;

/* Returns 1 if the status means that the library does not support the product. Proposals are no guarantee: some types
 * and shapes of epilogues are refused only when the product is started. */
static int is_declined(cublasStatus_t status, const tws_cuda_product *p, tws_gemm_form form) {
  if (status == CUBLAS_STATUS_INVALID_VALUE) return form != TWS_GEMM_ALONE && (p->activation || p->sums);
  return status == CUBLAS_STATUS_NOT_SUPPORTED || status == CUBLAS_STATUS_ARCH_MISMATCH;
}

static tws_code run_candidate(void *user, const tws_gemm_candidate *candidate, int *declined, tws_error *err) {
  const attempt *t = user;
  const tws_cuda_product *p = t->product;
  const tws_gemm_described *is = &t->choice->described[candidate->form];
  const float alpha = 1.0f, beta = p->accumulate ? 1.0f : 0.0f;
  void *c = tws_gemm_target(p, candidate->form);
  TWS_TRY(tws_gemm_set_addresses(t->call, p, candidate->form, is->operation, err));
  const cublasStatus_t status =
      cublasLtMatmul(t->gemm->handle, is->operation, &alpha, p->b, is->a, p->a, is->b, &beta, c, is->d, c, is->d,
                     &candidate->algorithm, t->workspace->data, t->workspace->bytes, t->call->stream);
  *declined = is_declined(status, p, candidate->form);
  if (*declined) return TWS_OK;
  if (status != CUBLAS_STATUS_SUCCESS) return tws_gemm_failed(status, "a product", err);
  return candidate->form == TWS_GEMM_WHOLE ? add_sums(t->call, p, err) : add_rest(t->call, p, candidate->form, err);
}

/* Ranks the algorithms of a product by timing. An output that the product overwrites may be overwritten repeatedly; one
 * that the product adds to may not, so such a product is timed with a separate output. Without memory for it the first
 * proposal is used. */
static tws_code rank(const attempt *t, tws_error *err) {
  tws_cuda_product trial = *t->product;
  attempt user = *t;
  void *memory = NULL;
  user.product = &trial;
  const int adds_sums = trial.sums && trial.sums_accumulate;
  if (trial.accumulate || adds_sums) {
    const size_t result = trial.accumulate ? (size_t)(trial.rows * trial.columns) * tws_dtype_bytes(trial.out) : 0;
    const size_t gap = t->choice->alignment.c % 256, sums = (gap + result + 255) / 256 * 256;
    const size_t bytes = sums + (adds_sums ? (size_t)tws_gemm_sum_count(&trial) * sizeof(float) : 0);
    if (cudaMalloc(&memory, bytes) != cudaSuccess) {
      (void)cudaGetLastError();
      return TWS_OK;
    }
    const cudaError_t status = cudaMemsetAsync(memory, 0, bytes, t->call->stream);
    if (status != cudaSuccess) {
      cudaFree(memory);
      return tws_cuda_fail(err, status, "timing a product");
    }
    if (trial.accumulate) trial.c = (char *)memory + gap;
    if (adds_sums) trial.sums = (char *)memory + sums;
  }
  const double flops = 2.0 * (double)trial.rows * (double)trial.columns * (double)trial.inner;
  const tws_code code = tws_gemm_rank(&t->gemm->clock, t->call->stream, t->choice, tws_gemm_budget_ms(flops, trial.in),
                                      run_candidate, &user, err);
  if (memory) cudaFree(memory);
  return code;
}

static tws_code make_choice(attempt *t, const tws_gemm_alignment *alignment, const tws_work *key, tws_error *err) {
  tws_cuda_gemm *gemm = t->gemm;
  if (tws_reserve(&gemm->choices, &gemm->capacity, gemm->count + 1, sizeof *gemm->choices) != 0)
    return tws_fail(err, TWS_MEMORY, NULL, "out of memory");
  tws_gemm_choice *c = tws_calloc(1, sizeof *c);
  if (!c) return tws_fail(err, TWS_MEMORY, NULL, "out of memory");
  c->work = *key;
  c->out = t->product->out;
  c->alignment = *alignment;
  t->choice = c;
  tws_code code = tws_gemm_propose(gemm->handle, t->call, t->product, t->workspace->bytes, c, err);
  if (code == TWS_OK && t->workspace->timed && c->candidates > 1) code = rank(t, err);
  if (code != TWS_OK) {
    free_choice(c);
    return code;
  }
  gemm->choices[gemm->count++] = c;
  return TWS_OK;
}

static tws_code choose(attempt *t, tws_error *err) {
  const tws_gemm_alignment alignment = tws_gemm_alignment_of(t->call, t->product);
  tws_work key = *t->call->work;
  key.flags &= ~(uint32_t)(TWS_ACCUMULATE | TWS_ACCUMULATE_PARAM);
  for (size_t i = 0; i < t->gemm->count; i++) {
    t->choice = t->gemm->choices[i];
    if (t->choice->out == t->product->out && memcmp(&t->choice->alignment, &alignment, sizeof alignment) == 0 &&
        memcmp(&t->choice->work, &key, sizeof key) == 0)
      return TWS_OK;
  }
  return make_choice(t, &alignment, &key, err);
}

static tws_code run_product(const tws_cuda_call *call, tws_error *err) {
  const tws_cuda_product p = product_of(call);
  if (p.a_scale && call->capability < EIGHT_BITS_SINCE)
    return tws_fail(err, TWS_UNSUPPORTED,
                    "leave out twinspeed.matmul_dtype, or use a device that has them (H100, B200)",
                    "products in fp8 need compute capability 8.9, and this device has %d.%d", call->capability / 10,
                    call->capability % 10);
  attempt t = {.gemm = call->gemm, .call = call, .product = &p, .workspace = call->gemm_workspace};
  if (p.rows == 0 || p.columns == 0) return add_rest(call, &p, TWS_GEMM_ALONE, err);
  if (p.inner == 0) return without_library(call, &p, err);
  TWS_TRY(choose(&t, err));
  while (t.choice->candidates > 0) {
    int declined = 0;
    TWS_TRY(run_candidate(&t, &t.choice->candidate[0], &declined, err));
    if (!declined) return TWS_OK;
    tws_gemm_drop(t.choice, 0);
  }
  return without_library(call, &p, err);
}

tws_code tws_cuda_linear(const tws_cuda_call *call, tws_error *err) {
  return run_product(call, err);
}

tws_code tws_cuda_linear_grad_input(const tws_cuda_call *call, tws_error *err) {
  return run_product(call, err);
}

tws_code tws_cuda_linear_grad_weight(const tws_cuda_call *call, tws_error *err) {
  return run_product(call, err);
}
