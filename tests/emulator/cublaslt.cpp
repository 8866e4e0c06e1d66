/* The part of cuBLASLt that real/cuda/gemm.c uses, with plain loops: checks that descriptions fit together and that
 * the product they describe is the one that is meant. */
#include <cublasLt.h>
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>

cudaError_t emulated_submit(cudaStream_t stream, const std::function<void()> &work); /* emulator.cpp */

namespace {

struct Operation {
  int left_transposed, right_transposed, epilogue, bias_type;
  const void *bias;
};
struct Layout {
  int type;
  uint64_t rows, columns;
  int64_t stride;
};

float get(const void *from, int type, uint64_t i) {
  if (type == CUDA_R_32F) return static_cast<const float *>(from)[i];
  if (type == CUDA_R_16F) return __half2float(static_cast<const __half *>(from)[i]);
  return __bfloat162float(static_cast<const __nv_bfloat16 *>(from)[i]);
}
void put(void *to, int type, uint64_t i, float x) {
  if (type == CUDA_R_32F)
    static_cast<float *>(to)[i] = x;
  else if (type == CUDA_R_16F)
    static_cast<__half *>(to)[i] = __float2half_rn(x);
  else
    static_cast<__nv_bfloat16 *>(to)[i] = __float2bfloat16_rn(x);
}
float element(const void *matrix, const Layout *l, int transposed, uint64_t row, uint64_t column) {
  const uint64_t stride = (uint64_t)l->stride;
  return get(matrix, l->type, transposed ? row * stride + column : column * stride + row);
}
template <typename H, typename T>
cublasStatus_t make(H *handle, const T &value) {
  *handle = reinterpret_cast<H>(new T(value));
  return CUBLAS_STATUS_SUCCESS;
}

}  // namespace

extern "C" {

size_t cublasLtGetVersion(void) {
  return 0;
}
const char *cublasLtGetStatusString(cublasStatus_t) {
  return "emulated";
}
cublasStatus_t cublasLtCreate(cublasLtHandle_t *out) {
  return make(out, 0);
}
cublasStatus_t cublasLtDestroy(cublasLtHandle_t handle) {
  delete reinterpret_cast<int *>(handle);
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t *out, cublasComputeType_t compute, cudaDataType_t scale) {
  if (compute != CUBLAS_COMPUTE_32F || scale != CUDA_R_32F) return CUBLAS_STATUS_NOT_SUPPORTED;
  return make(out, Operation());
}
cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t operation) {
  delete reinterpret_cast<Operation *>(operation);
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t operation, cublasLtMatmulDescAttributes_t name,
                                              const void *value, size_t bytes) {
  Operation *o = reinterpret_cast<Operation *>(operation);
  int number = 0;
  if (name == CUBLASLT_MATMUL_DESC_BIAS_POINTER) {
    if (bytes != sizeof o->bias) return CUBLAS_STATUS_INVALID_VALUE;
    memcpy(&o->bias, value, sizeof o->bias);
    return CUBLAS_STATUS_SUCCESS;
  }
  if (bytes != sizeof number) return CUBLAS_STATUS_INVALID_VALUE;
  memcpy(&number, value, sizeof number);
  if (name == CUBLASLT_MATMUL_DESC_TRANSA)
    o->left_transposed = number == CUBLAS_OP_T;
  else if (name == CUBLASLT_MATMUL_DESC_TRANSB)
    o->right_transposed = number == CUBLAS_OP_T;
  else if (name == CUBLASLT_MATMUL_DESC_EPILOGUE)
    o->epilogue = number;
  else if (name == CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE)
    o->bias_type = number;
  else
    return CUBLAS_STATUS_INVALID_VALUE;
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t *out, cudaDataType type, uint64_t rows,
                                          uint64_t columns, int64_t stride) {
  if (stride < (int64_t)rows) return CUBLAS_STATUS_INVALID_VALUE;
  return make(out, Layout{(int)type, rows, columns, stride});
}
cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t layout) {
  delete reinterpret_cast<Layout *>(layout);
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t *out) {
  return make(out, 0);
}
cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t preference) {
  delete reinterpret_cast<int *>(preference);
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t, cublasLtMatmulPreferenceAttributes_t,
                                                    const void *, size_t) {
  return CUBLAS_STATUS_SUCCESS;
}
/* Declines results of an odd number of rows, and column sums of bfloat16 for results of float32, so that what stands in
 * for the library is tested as well. */
cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t, cublasLtMatmulDesc_t operation, cublasLtMatrixLayout_t,
                                              cublasLtMatrixLayout_t b, cublasLtMatrixLayout_t,
                                              cublasLtMatrixLayout_t d, cublasLtMatmulPreference_t, int,
                                              cublasLtMatmulHeuristicResult_t *results, int *count) {
  *count = 0;
  const Layout *to = reinterpret_cast<Layout *>(d);
  if (to->rows % 2) return CUBLAS_STATUS_NOT_SUPPORTED;
  if (reinterpret_cast<Operation *>(operation)->epilogue == CUBLASLT_EPILOGUE_BGRADB &&
      to->type != reinterpret_cast<Layout *>(b)->type)
    return CUBLAS_STATUS_NOT_SUPPORTED;
  memset(results, 0, sizeof *results);
  results->state = CUBLAS_STATUS_SUCCESS;
  *count = 1;
  return CUBLAS_STATUS_SUCCESS;
}

static void multiply(const Operation &o, const void *a, const Layout *left, const void *b, const Layout *right,
                     const void *c, void *d, const Layout *to, float scale, float keep) {
  const uint64_t inner = o.left_transposed ? left->rows : left->columns;
  for (uint64_t j = 0; j < to->columns; ++j)
    for (uint64_t i = 0; i < to->rows; ++i) {
      const uint64_t at = j * (uint64_t)to->stride + i;
      float sum = 0;
      for (uint64_t k = 0; k < inner; ++k)
        sum += element(a, left, o.left_transposed, i, k) * element(b, right, o.right_transposed, k, j);
      sum *= scale;
      if (keep != 0) sum += keep * get(c, to->type, at);
      if (o.epilogue == CUBLASLT_EPILOGUE_BIAS) sum += get(o.bias, o.bias_type, i);
      put(d, to->type, at, sum);
    }
  if (o.epilogue != CUBLASLT_EPILOGUE_BGRADB) return;
  for (uint64_t j = 0; j < to->columns; ++j) {
    float sum = 0;
    for (uint64_t k = 0; k < inner; ++k) sum += element(b, right, o.right_transposed, k, j);
    put(const_cast<void *>(o.bias), o.bias_type, j, sum);
  }
}

cublasStatus_t cublasLtMatmul(cublasLtHandle_t, cublasLtMatmulDesc_t operation, const void *alpha, const void *a,
                              cublasLtMatrixLayout_t a_layout, const void *b, cublasLtMatrixLayout_t b_layout,
                              const void *beta, const void *c, cublasLtMatrixLayout_t, void *d,
                              cublasLtMatrixLayout_t d_layout, const cublasLtMatmulAlgo_t *, void *, size_t,
                              cudaStream_t stream) {
  const Operation o = *reinterpret_cast<Operation *>(operation);
  const Layout *left = reinterpret_cast<Layout *>(a_layout), *right = reinterpret_cast<Layout *>(b_layout),
               *to = reinterpret_cast<Layout *>(d_layout);
  const uint64_t rows = o.left_transposed ? left->columns : left->rows;
  const uint64_t inner = o.left_transposed ? left->rows : left->columns;
  const uint64_t columns = o.right_transposed ? right->rows : right->columns;
  if (rows != to->rows || columns != to->columns || inner != (o.right_transposed ? right->columns : right->rows))
    return CUBLAS_STATUS_INVALID_VALUE;
  const float scale = *static_cast<const float *>(alpha), keep = *static_cast<const float *>(beta);
  const cudaError_t status = emulated_submit(stream, [=] { multiply(o, a, left, b, right, c, d, to, scale, keep); });
  return status == cudaSuccess ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_EXECUTION_FAILED;
}
}
