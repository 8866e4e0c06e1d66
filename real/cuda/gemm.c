/* Matrix products by cuBLASLt. The library is column-major; a row-major matrix is its transpose there, so the product
 * Y[m,n] = X W^T becomes D(n x m) = W^T(n x k) X(k x m). Algorithms are asked for once for each work and alignment and
 * kept, so equal work runs equal code. Split sums are combined in float32 in a fixed order. */
#include <cublasLt.h>
#include <string.h>
#include "base/memory.h"
#include "real/cuda/internal.h"

enum { ALGORITHMS = 8 };

typedef struct choice {
  tws_work work;
  uint32_t alignment[4]; /* of A, B, C, bias: the largest power of two up to 256 that divides the address */
  uint8_t out;           /* tws_dtype of the result */
  uint8_t found;         /* 0: the library has nothing for this; plain arithmetic instead */
  uint8_t sums;          /* found, and it gives the column sums too */
  cublasLtMatmulDesc_t operation;
  cublasLtMatrixLayout_t a, b, d;
  cublasLtMatmulAlgo_t algorithm;
} choice;

struct tws_cuda_gemm {
  cublasLtHandle_t handle;
  choice **choices;
  size_t count, capacity;
};

static tws_code library_failed(cublasStatus_t status, const char *what, tws_error *err) {
  tws_code code = status == CUBLAS_STATUS_ALLOC_FAILED ? TWS_MEMORY : TWS_RANK;
  return tws_fail(err, code, NULL, "cuBLASLt: %s: %s", what, cublasLtGetStatusString(status));
}
#define TRY_LT(call, what)                                                           \
  do {                                                                               \
    const cublasStatus_t status_ = (call);                                           \
    if (status_ != CUBLAS_STATUS_SUCCESS) return library_failed(status_, what, err); \
  } while (0)

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
    return library_failed(status, "creating a handle", err);
  }
  *out = gemm;
  return TWS_OK;
}

static void clear_choice(choice *c) {
  if (c->a) cublasLtMatrixLayoutDestroy(c->a);
  if (c->b) cublasLtMatrixLayoutDestroy(c->b);
  if (c->d) cublasLtMatrixLayoutDestroy(c->d);
  if (c->operation) cublasLtMatmulDescDestroy(c->operation);
  c->a = c->b = c->d = NULL;
  c->operation = NULL;
}

static void free_choice(choice *c) {
  clear_choice(c);
  tws_free(c);
}

void tws_cuda_gemm_destroy(tws_cuda_gemm *gemm) {
  if (!gemm) return;
  for (size_t i = 0; i < gemm->count; i++) free_choice(gemm->choices[i]);
  tws_free(gemm->choices);
  cublasLtDestroy(gemm->handle);
  tws_free(gemm);
}

/* ---- the three products of a linear layer ---- */

/* C = sum over inner of A(row, i) B(column, i), row-major, in the terms of tws_cuda_product. */
static tws_cuda_product product_of(const tws_cuda_call *call) {
  const tws_work *w = call->work;
  const int64_t m = w->d[0], n = w->d[1], k = w->d[2];
  const int bias = (w->flags & TWS_BIAS) != 0, linear = w->code == TWS_KERNEL_LINEAR;
  const int c = (linear && bias ? 3 : 2) + (linear && w->flags & TWS_GELU ? 1 : 0); /* z, not y */
  tws_cuda_product p = {.a = call->operand[0],
                        .b = call->operand[1],
                        .c = call->operand[c],
                        .in = call->dtype[0],
                        .out = call->dtype[c],
                        .accumulate = w->code != TWS_KERNEL_LINEAR && (w->flags & TWS_ACCUMULATE)};
  if (w->code == TWS_KERNEL_LINEAR) { /* y = x weight^T */
    p.rows = m, p.columns = n, p.inner = k;
    p.a_row = k, p.a_inner = 1, p.b_column = k, p.b_inner = 1;
    if (bias) p.bias = call->operand[2];
  } else if (w->code == TWS_KERNEL_LINEAR_GRAD_INPUT) { /* dx = dy weight */
    p.rows = m, p.columns = k, p.inner = n;
    p.a_row = n, p.a_inner = 1, p.b_column = 1, p.b_inner = k;
  } else { /* dweight = dy^T x */
    p.rows = n, p.columns = k, p.inner = m;
    p.a_row = 1, p.a_inner = n, p.b_column = 1, p.b_inner = k;
    if (bias && (size_t)n * sizeof(float) <= call->scratch_bytes) {
      p.sums = p.accumulate ? call->scratch : call->operand[3]; /* the library only overwrites */
      p.sums_type = call->dtype[3];
    }
  }
  return p;
}

static cudaDataType_t data_type(tws_dtype type) {
  return type == TWS_F32 ? CUDA_R_32F : type == TWS_BF16 ? CUDA_R_16BF : CUDA_R_16F;
}

static uint32_t alignment_of(const void *address) {
  const uintptr_t bits = (uintptr_t)address | 256;
  return (uint32_t)(bits & (~bits + 1));
}

/* A matrix of one column may have a stride that is shorter than the column. */
static tws_code make_layout(cublasLtMatrixLayout_t *layout, tws_dtype type, uint64_t rows, uint64_t columns,
                            int64_t stride, tws_error *err) {
  if (columns == 1 && (uint64_t)stride < rows) stride = (int64_t)rows;
  TRY_LT(cublasLtMatrixLayoutCreate(layout, data_type(type), rows, columns, stride), "layout of a matrix");
  return TWS_OK;
}

/* Column-major, D is columns x rows. Its left factor is B: columns x inner, stored inner x columns when b_inner is 1;
 * its right factor is A: inner x rows, stored rows x inner when a_inner is not 1. */
static tws_code describe(const tws_cuda_product *p, choice *c, tws_error *err) {
  const int b_contiguous = p->b_inner == 1, a_contiguous = p->a_inner == 1;
  const cublasOperation_t left = b_contiguous ? CUBLAS_OP_T : CUBLAS_OP_N;
  const cublasOperation_t right = a_contiguous ? CUBLAS_OP_N : CUBLAS_OP_T;
  const uint64_t rows = (uint64_t)p->rows, columns = (uint64_t)p->columns, inner = (uint64_t)p->inner;
  TRY_LT(cublasLtMatmulDescCreate(&c->operation, CUBLAS_COMPUTE_32F, CUDA_R_32F), "describing a product");
  TRY_LT(cublasLtMatmulDescSetAttribute(c->operation, CUBLASLT_MATMUL_DESC_TRANSA, &left, sizeof left), "transpose");
  TRY_LT(cublasLtMatmulDescSetAttribute(c->operation, CUBLASLT_MATMUL_DESC_TRANSB, &right, sizeof right), "transpose");
  if (p->bias || p->sums) { /* A is the library's right factor */
    const cublasLtEpilogue_t epilogue = p->bias ? CUBLASLT_EPILOGUE_BIAS : CUBLASLT_EPILOGUE_BGRADB;
    const int32_t type = (int32_t)data_type(p->bias ? p->in : p->sums_type);
    const void *vector = p->bias ? p->bias : p->sums;
    TRY_LT(cublasLtMatmulDescSetAttribute(c->operation, CUBLASLT_MATMUL_DESC_EPILOGUE, &epilogue, sizeof epilogue),
           "epilogue");
    TRY_LT(cublasLtMatmulDescSetAttribute(c->operation, CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, &type, sizeof type),
           "type of the bias");
    TRY_LT(cublasLtMatmulDescSetAttribute(c->operation, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &vector, sizeof vector),
           "bias");
  }
  TWS_TRY(make_layout(&c->a, p->in, b_contiguous ? inner : columns, b_contiguous ? columns : inner,
                      b_contiguous ? p->b_column : p->b_inner, err));
  TWS_TRY(make_layout(&c->b, p->in, a_contiguous ? inner : rows, a_contiguous ? rows : inner,
                      a_contiguous ? p->a_row : p->a_inner, err));
  return make_layout(&c->d, p->out, columns, rows, p->columns, err);
}

static tws_code set_preference(cublasLtMatmulPreference_t preference, const choice *c, size_t workspace,
                               tws_error *err) {
  static const cublasLtMatmulPreferenceAttributes_t minimum[] = {
      CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
      CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES};
  const uint32_t alignment[] = {c->alignment[0], c->alignment[1], c->alignment[2], c->alignment[2]};
  const uint32_t reductions = CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE; /* and none; never in the type of the result */
  const uint64_t bytes = workspace;
  TRY_LT(
      cublasLtMatmulPreferenceSetAttribute(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &bytes, sizeof bytes),
      "workspace");
  TRY_LT(cublasLtMatmulPreferenceSetAttribute(preference, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, &reductions,
                                              sizeof reductions),
         "reductions");
  for (int i = 0; i < 4; i++)
    TRY_LT(cublasLtMatmulPreferenceSetAttribute(preference, minimum[i], &alignment[i], sizeof alignment[i]),
           "alignment");
  return TWS_OK;
}

/* The library's first proposal that it then accepts. None is no error. */
static tws_code ask(const tws_cuda_gemm *gemm, choice *c, size_t workspace, tws_error *err) {
  cublasLtMatmulPreference_t preference = NULL;
  cublasLtMatmulHeuristicResult_t results[ALGORITHMS];
  int count = 0;
  TRY_LT(cublasLtMatmulPreferenceCreate(&preference), "preferences");
  tws_code code = set_preference(preference, c, workspace, err);
  cublasStatus_t status = CUBLAS_STATUS_SUCCESS;
  if (code == TWS_OK)
    status = cublasLtMatmulAlgoGetHeuristic(gemm->handle, c->operation, c->a, c->b, c->d, c->d, preference, ALGORITHMS,
                                            results, &count);
  cublasLtMatmulPreferenceDestroy(preference);
  TWS_TRY(code);
  if (status == CUBLAS_STATUS_NOT_SUPPORTED || status == CUBLAS_STATUS_INVALID_VALUE) return TWS_OK;
  if (status != CUBLAS_STATUS_SUCCESS) return library_failed(status, "choosing an algorithm", err);
  for (int i = 0; i < count && !c->found; i++)
    if (results[i].state == CUBLAS_STATUS_SUCCESS && results[i].workspaceSize <= workspace) {
      c->algorithm = results[i].algo;
      c->found = 1;
    }
  return TWS_OK;
}

/* With the sums where the library has that, else without. */
static tws_code choose(const tws_cuda_gemm *gemm, const tws_cuda_product *p, size_t workspace, choice *c,
                       tws_error *err) {
  tws_cuda_product product = *p;
  TWS_TRY(describe(&product, c, err));
  TWS_TRY(ask(gemm, c, workspace, err));
  c->sums = c->found && product.sums;
  if (c->found || !product.sums) return TWS_OK;
  product.sums = NULL;
  clear_choice(c);
  TWS_TRY(describe(&product, c, err));
  return ask(gemm, c, workspace, err);
}

static tws_code find(tws_cuda_gemm *gemm, const tws_cuda_call *call, const tws_cuda_product *p, size_t workspace,
                     choice **out, tws_error *err) {
  const uint32_t alignment[4] = {alignment_of(p->b), alignment_of(p->a), alignment_of(p->c),
                                 alignment_of(p->sums ? p->sums : p->bias)};
  for (size_t i = 0; i < gemm->count; i++) {
    choice *c = gemm->choices[i];
    if (c->out == p->out && memcmp(c->alignment, alignment, sizeof alignment) == 0 &&
        memcmp(&c->work, call->work, sizeof c->work) == 0) {
      *out = c;
      return TWS_OK;
    }
  }
  if (tws_reserve(&gemm->choices, &gemm->capacity, gemm->count + 1, sizeof *gemm->choices) != 0)
    return tws_fail(err, TWS_MEMORY, NULL, "out of memory");
  choice *c = tws_calloc(1, sizeof *c);
  if (!c) return tws_fail(err, TWS_MEMORY, NULL, "out of memory");
  c->work = *call->work;
  c->out = (uint8_t)p->out;
  memcpy(c->alignment, alignment, sizeof alignment);
  const tws_code code = choose(gemm, p, workspace, c, err);
  if (code != TWS_OK) {
    free_choice(c);
    return code;
  }
  gemm->choices[gemm->count++] = *out = c;
  return TWS_OK;
}

/* *summed: whether p->sums was filled. */
static tws_code multiply(tws_cuda_gemm *gemm, const tws_cuda_call *call, const tws_cuda_product *p, void *workspace,
                         size_t workspace_bytes, int *summed, tws_error *err) {
  choice *c = NULL;
  *summed = 0;
  if (p->rows == 0 || p->columns == 0) return TWS_OK;
  if (p->inner == 0) return tws_cuda_plain_product(call, p, err);
  TWS_TRY(find(gemm, call, p, workspace_bytes, &c, err));
  if (!c->found) return tws_cuda_plain_product(call, p, err);
  const void *vector = c->sums ? p->sums : p->bias;
  if (vector)
    TRY_LT(cublasLtMatmulDescSetAttribute(c->operation, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &vector, sizeof vector),
           "bias");
  const float alpha = 1.0f, beta = p->accumulate ? 1.0f : 0.0f;
  const cublasStatus_t status =
      cublasLtMatmul(gemm->handle, c->operation, &alpha, p->b, c->a, p->a, c->b, &beta, p->c, c->d, p->c, c->d,
                     &c->algorithm, workspace, workspace_bytes, call->stream);
  if (status == CUBLAS_STATUS_NOT_SUPPORTED) { /* proposed, but declined: from now on without the library */
    c->found = 0;
    return tws_cuda_plain_product(call, p, err);
  }
  *summed = c->sums;
  return status == CUBLAS_STATUS_SUCCESS ? TWS_OK : library_failed(status, "a product", err);
}

/* The bias' gradient: column sums of dy. */
static tws_code add_sums(const tws_cuda_call *call, const tws_cuda_product *p, int summed, tws_error *err) {
  const tws_work *w = call->work;
  if (!summed)
    return tws_cuda_column_sums(call, call->operand[0], call->dtype[0], w->d[0], w->d[1], call->operand[3],
                                call->dtype[3], p->accumulate, err);
  if (!p->accumulate) return TWS_OK;
  const tws_work add = {.code = TWS_KERNEL_ACCUMULATE, .d = {w->d[1]}};
  void *const operand[] = {p->sums, call->operand[3]};
  const tws_dtype dtype[] = {p->sums_type, call->dtype[3]};
  tws_cuda_call part = *call;
  part.work = &add, part.operand = operand, part.dtype = dtype, part.count = 2;
  return tws_cuda_accumulate(&part, err);
}

/* GELU of a product, or its gradient. */
static tws_code activate(const tws_cuda_call *call, const tws_cuda_product *p, tws_error *err) {
  const int forward = call->work->code == TWS_KERNEL_LINEAR;
  const tws_work work = {.code = forward ? TWS_KERNEL_GELU : TWS_KERNEL_GELU_GRAD, .d = {p->rows * p->columns}};
  void *const operand[] = {p->c, forward ? call->operand[p->bias ? 3 : 2] : call->operand[3], p->c};
  const tws_dtype dtype[] = {p->out, p->out, p->out};
  tws_cuda_call part = *call;
  part.work = &work, part.operand = operand, part.dtype = dtype, part.count = forward ? 2 : 3;
  return forward ? tws_cuda_gelu(&part, err) : tws_cuda_gelu_grad(&part, err);
}

tws_code tws_cuda_linear(tws_cuda_gemm *gemm, const tws_cuda_call *call, void *workspace, size_t workspace_bytes,
                         tws_error *err) {
  const tws_work *w = call->work;
  const tws_cuda_product p = product_of(call);
  int summed = 0;
  TWS_TRY(multiply(gemm, call, &p, workspace, workspace_bytes, &summed, err));
  if (w->flags & TWS_GELU && w->code != TWS_KERNEL_LINEAR_GRAD_WEIGHT) return activate(call, &p, err);
  if (w->code != TWS_KERNEL_LINEAR_GRAD_WEIGHT || !(w->flags & TWS_BIAS)) return TWS_OK;
  return add_sums(call, &p, summed, err);
}
