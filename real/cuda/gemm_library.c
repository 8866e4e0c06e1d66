#include "real/cuda/gemm_library.h"

tws_code tws_gemm_failed(cublasStatus_t status, const char *what, tws_error *err) {
  tws_code code = status == CUBLAS_STATUS_ALLOC_FAILED ? TWS_MEMORY : TWS_RANK;
  return tws_fail(err, code, NULL, "cuBLASLt: %s: %s", what, cublasLtGetStatusString(status));
}

static void clear_described(tws_gemm_described *described) {
  if (described->a) cublasLtMatrixLayoutDestroy(described->a);
  if (described->b) cublasLtMatrixLayoutDestroy(described->b);
  if (described->d) cublasLtMatrixLayoutDestroy(described->d);
  if (described->operation) cublasLtMatmulDescDestroy(described->operation);
  *described = (tws_gemm_described){NULL, NULL, NULL, NULL};
}

void tws_gemm_clear(tws_gemm_choice *c) {
  for (int form = 0; form < TWS_GEMM_FORMS; form++) clear_described(&c->described[form]);
}

enum { MOST_ALIGNED = 16 };

static uint32_t alignment_of(const void *address) {
  const uintptr_t bits = (uintptr_t)address | MOST_ALIGNED;
  return (uint32_t)(bits & (~bits + 1));
}

/* Returns an address with the least alignment of all addresses in this one's alignment class. */
static const void *least_aligned(const void *address) {
  const uintptr_t bits = (uintptr_t)address;
  return bits % MOST_ALIGNED ? address : (const void *)(bits | MOST_ALIGNED); /* the address is never read from */
}

void *tws_gemm_target(const tws_cuda_product *p, tws_gemm_form form) {
  return form == TWS_GEMM_ALONE && p->activation == TWS_CUDA_GELU ? p->z : p->c;
}

int64_t tws_gemm_sum_count(const tws_cuda_product *p) {
  return p->sums_of_result ? p->columns : p->rows;
}

void *tws_gemm_sums(const tws_cuda_call *call, const tws_cuda_product *p) {
  return p->sums_accumulate ? call->scratch : p->sums;
}

tws_gemm_alignment tws_gemm_alignment_of(const tws_cuda_call *call, const tws_cuda_product *p) {
  return (tws_gemm_alignment){alignment_of(p->b), alignment_of(p->a), alignment_of(p->c),
                              alignment_of(p->sums ? tws_gemm_sums(call, p) : p->bias), alignment_of(p->z)};
}

/* ---- descriptions of products ---- */

static cudaDataType_t data_type(tws_dtype type) {
  if (type == TWS_E4M3) return CUDA_R_8F_E4M3;
  if (type == TWS_E5M2) return CUDA_R_8F_E5M2;
  return type == TWS_F32 ? CUDA_R_32F : type == TWS_BF16 ? CUDA_R_16BF : CUDA_R_16F;
}

/* Creates a matrix layout. A matrix of one column may have a stride that is shorter than the column. */
static tws_code make_layout(cublasLtMatrixLayout_t *layout, tws_dtype type, uint64_t rows, uint64_t columns,
                            int64_t stride, tws_error *err) {
  if (columns == 1 && (uint64_t)stride < rows) stride = (int64_t)rows;
  TRY_LT(cublasLtMatrixLayoutCreate(layout, data_type(type), rows, columns, stride), "layout of a matrix");
  return TWS_OK;
}

static tws_code set(cublasLtMatmulDesc_t operation, cublasLtMatmulDescAttributes_t name, const void *value,
                    size_t bytes, tws_error *err) {
  TRY_LT(cublasLtMatmulDescSetAttribute(operation, name, value, bytes), "describing a product");
  return TWS_OK;
}

/* Returns the library's epilogue for this form. A is the library's right factor, so sums over its inner index are those
 * of "B". */
static cublasLtEpilogue_t epilogue_of(const tws_cuda_product *p, tws_gemm_form form) {
  if (form == TWS_GEMM_WHOLE && p->activation == TWS_CUDA_GELU)
    return p->bias ? CUBLASLT_EPILOGUE_GELU_AUX_BIAS : CUBLASLT_EPILOGUE_GELU_AUX;
  if (form == TWS_GEMM_WHOLE && p->activation == TWS_CUDA_GELU_GRAD)
    return p->sums ? CUBLASLT_EPILOGUE_DGELU_BGRAD : CUBLASLT_EPILOGUE_DGELU;
  if (form == TWS_GEMM_ACTIVATED) return CUBLASLT_EPILOGUE_DGELU;
  if (form == TWS_GEMM_WHOLE && p->sums) return CUBLASLT_EPILOGUE_BGRADB;
  return p->bias ? CUBLASLT_EPILOGUE_BIAS : CUBLASLT_EPILOGUE_DEFAULT;
}

/* Addresses of the epilogue operands of the product in this form: the bias or the sums, and the auxiliary matrix; NULL:
 * none. */
typedef struct epilogue_operands {
  const void *vector, *auxiliary;
} epilogue_operands;

static epilogue_operands epilogue_of_call(const tws_cuda_call *call, const tws_cuda_product *p, tws_gemm_form form) {
  const int whole = form == TWS_GEMM_WHOLE, activated = form != TWS_GEMM_ALONE && p->activation;
  return (epilogue_operands){whole && p->sums ? tws_gemm_sums(call, p) : p->bias, activated ? p->z : NULL};
}

/* Sets the scales of 8-bit operands; A is the library's right factor. Fast accumulation stays off, because it would
 * drop low bits of the sums. */
static tws_code scale_by(const tws_cuda_product *p, cublasLtMatmulDesc_t operation, tws_error *err) {
  const int8_t fast = 0;
  if (!p->a_scale) return TWS_OK;
  TWS_TRY(set(operation, CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, &p->b_scale, sizeof p->b_scale, err));
  TWS_TRY(set(operation, CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, &p->a_scale, sizeof p->a_scale, err));
  return set(operation, CUBLASLT_MATMUL_DESC_FAST_ACCUM, &fast, sizeof fast, err);
}

static tws_code point_to(const epilogue_operands *to, cublasLtMatmulDesc_t operation, tws_error *err) {
  if (to->vector) TWS_TRY(set(operation, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &to->vector, sizeof to->vector, err));
  if (!to->auxiliary) return TWS_OK;
  return set(operation, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, &to->auxiliary, sizeof to->auxiliary, err);
}

tws_code tws_gemm_set_addresses(const tws_cuda_call *call, const tws_cuda_product *p, tws_gemm_form form,
                                cublasLtMatmulDesc_t operation, tws_error *err) {
  const epilogue_operands to = epilogue_of_call(call, p, form);
  TWS_TRY(scale_by(p, operation, err));
  return point_to(&to, operation, err);
}

/* Describes the epilogue. The auxiliary matrix has the layout and type of the result, which is the library's default.
 * The heuristics take the alignment of vectors and the auxiliary matrix from their addresses, which later calls need
 * not share. */
static tws_code describe_epilogue(const tws_cuda_call *call, const tws_cuda_product *p, tws_gemm_form form,
                                  cublasLtMatmulDesc_t operation, tws_error *err) {
  const cublasLtEpilogue_t epilogue = epilogue_of(p, form);
  const int32_t vector_type = (int32_t)data_type(!p->bias ? p->sums_type : p->a_scale ? p->out : p->in);
  if (epilogue == CUBLASLT_EPILOGUE_DEFAULT) return TWS_OK;
  TWS_TRY(set(operation, CUBLASLT_MATMUL_DESC_EPILOGUE, &epilogue, sizeof epilogue, err));
  if (p->bias || epilogue == CUBLASLT_EPILOGUE_BGRADB || epilogue == CUBLASLT_EPILOGUE_DGELU_BGRAD)
    TWS_TRY(set(operation, CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, &vector_type, sizeof vector_type, err));
  if (form != TWS_GEMM_ALONE && p->activation)
    TWS_TRY(set(operation, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, &p->columns, sizeof p->columns, err));
  epilogue_operands to = epilogue_of_call(call, p, form);
  if (to.vector) to.vector = least_aligned(to.vector);
  if (to.auxiliary) to.auxiliary = least_aligned(to.auxiliary);
  return point_to(&to, operation, err);
}

/* Describes the product to the library. In column-major order, D is columns x rows. Its left factor is B: columns x
 * inner, stored inner x columns when b_inner is 1; its right factor is A: inner x rows, stored rows x inner when
 * a_inner is not 1. */
static tws_code describe(const tws_cuda_call *call, const tws_cuda_product *p, tws_gemm_form form,
                         tws_gemm_described *to, tws_error *err) {
  const int b_contiguous = p->b_inner == 1, a_contiguous = p->a_inner == 1;
  const cublasOperation_t left = b_contiguous ? CUBLAS_OP_T : CUBLAS_OP_N;
  const cublasOperation_t right = a_contiguous ? CUBLAS_OP_N : CUBLAS_OP_T;
  const uint64_t rows = (uint64_t)p->rows, columns = (uint64_t)p->columns, inner = (uint64_t)p->inner;
  TRY_LT(cublasLtMatmulDescCreate(&to->operation, CUBLAS_COMPUTE_32F, CUDA_R_32F), "describing a product");
  TWS_TRY(set(to->operation, CUBLASLT_MATMUL_DESC_TRANSA, &left, sizeof left, err));
  TWS_TRY(set(to->operation, CUBLASLT_MATMUL_DESC_TRANSB, &right, sizeof right, err));
  TWS_TRY(describe_epilogue(call, p, form, to->operation, err));
  TWS_TRY(scale_by(p, to->operation, err));
  TWS_TRY(make_layout(&to->a, p->b_in, b_contiguous ? inner : columns, b_contiguous ? columns : inner,
                      b_contiguous ? p->b_column : p->b_inner, err));
  TWS_TRY(make_layout(&to->b, p->in, a_contiguous ? inner : rows, a_contiguous ? rows : inner,
                      a_contiguous ? p->a_row : p->a_inner, err));
  return make_layout(&to->d, p->out, columns, rows, p->columns, err);
}

/* ---- proposals of the library ---- */

static tws_code set_preference(cublasLtMatmulPreference_t preference, const tws_gemm_alignment *is, size_t workspace,
                               tws_error *err) {
  static const cublasLtMatmulPreferenceAttributes_t minimum[] = {
      CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
      CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES};
  const uint32_t alignment[] = {is->a, is->b, is->c, is->c};
  /* allowed reductions of split-K: in the compute type, or none; never in the type of the result */
  const uint32_t reductions = CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;
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

static tws_code propose(cublasLtHandle_t handle, const tws_gemm_described *is, const tws_gemm_alignment *alignment,
                        size_t workspace, cublasLtMatmulAlgo_t *algorithms, int *count, tws_error *err) {
  cublasLtMatmulPreference_t preference = NULL;
  cublasLtMatmulHeuristicResult_t results[TWS_GEMM_PROPOSALS];
  int returned = 0;
  *count = 0;
  TRY_LT(cublasLtMatmulPreferenceCreate(&preference), "preferences");
  tws_code code = set_preference(preference, alignment, workspace, err);
  cublasStatus_t status = CUBLAS_STATUS_SUCCESS;
  if (code == TWS_OK)
    status = cublasLtMatmulAlgoGetHeuristic(handle, is->operation, is->a, is->b, is->d, is->d, preference,
                                            TWS_GEMM_PROPOSALS, results, &returned);
  cublasLtMatmulPreferenceDestroy(preference);
  TWS_TRY(code);
  if (status == CUBLAS_STATUS_NOT_SUPPORTED || status == CUBLAS_STATUS_INVALID_VALUE) return TWS_OK;
  if (status != CUBLAS_STATUS_SUCCESS) return tws_gemm_failed(status, "asking for algorithms", err);
  for (int i = 0; i < returned; i++)
    if (results[i].state == CUBLAS_STATUS_SUCCESS && results[i].workspaceSize <= workspace)
      algorithms[(*count)++] = results[i].algo;
  return TWS_OK;
}

/* Returns 1 if the product can be requested in this form. The library's GELU and its gradient are approximations (off
 * by some 1e-5, seen on an H100), which 16-bit types hide and float32 does not. Auxiliary matrices have a leading
 * dimension that is a multiple of 8. The column sums must fit into the scratch memory, since the library may have to
 * write them there. The library computes column sums of the result only together with an activation's gradient, and in
 * the result's type. */
static int has_form(const tws_cuda_call *call, const tws_cuda_product *p, tws_gemm_form form) {
  const int more = p->activation || p->sums;
  if (form == TWS_GEMM_ALONE) return more;
  if (p->activation && (p->out == TWS_F32 || p->columns % 8 != 0)) return 0;
  if (form == TWS_GEMM_ACTIVATED) return p->activation && p->sums;
  if (p->sums_of_result && !(p->activation == TWS_CUDA_GELU_GRAD && p->sums_type == p->out)) return 0;
  return !p->sums || (size_t)tws_gemm_sum_count(p) * sizeof(float) <= call->scratch_bytes;
}

tws_code tws_gemm_propose(cublasLtHandle_t handle, const tws_cuda_call *call, const tws_cuda_product *p,
                          size_t workspace, tws_gemm_choice *c, tws_error *err) {
  cublasLtMatmulAlgo_t algorithm[TWS_GEMM_FORMS][TWS_GEMM_PROPOSALS];
  int count[TWS_GEMM_FORMS] = {0};
  for (int form = 0; form < TWS_GEMM_FORMS; form++) {
    if (!has_form(call, p, (tws_gemm_form)form)) continue;
    TWS_TRY(describe(call, p, (tws_gemm_form)form, &c->described[form], err));
    tws_gemm_alignment alignment = c->alignment;
    if (tws_gemm_target(p, (tws_gemm_form)form) == p->z) alignment.c = alignment.z;
    TWS_TRY(propose(handle, &c->described[form], &alignment, workspace, algorithm[form], &count[form], err));
  }
  c->candidates = 0;
  for (int i = 0; i < TWS_GEMM_PROPOSALS; i++)
    for (int form = 0; form < TWS_GEMM_FORMS; form++)
      if (i < count[form])
        c->candidate[c->candidates++] = (tws_gemm_candidate){(tws_gemm_form)form, algorithm[form][i]};
  return TWS_OK;
}
