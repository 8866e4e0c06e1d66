/* The part of cuBLASLt that real/cuda/gemm*.c uses, with plain loops: checks that descriptions fit together, that what
 * the library may rely on holds, and that the product they describe is the one that is meant. Mistakes end the program,
 * since much that a library declines is done by other means. Of several proposals the first is slow, and some it does
 * not do after all. */
#include <cublasLt.h>
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "base/float8.h"
#include "tests/emulator/runtime.h"

namespace {

struct Operation {
  int left_transposed, right_transposed, epilogue, bias_type, aux_type;
  const float *left_scale, *right_scale;
  const void *bias;
  void *aux;
  int64_t aux_stride;
};
struct Layout {
  int type;
  uint64_t rows, columns;
  int64_t stride;
};
struct Preference {
  uint64_t workspace;
  uint32_t alignment[4], reductions;
};

/* The content of a cublasLtMatmulAlgo_t: the algorithm and the problem that it was chosen for. */
struct Algorithm {
  uint32_t id;
  int32_t epilogue;
  uint64_t shape, workspace;
  uint32_t alignment[6]; /* A, B, C, D, vector, auxiliary matrix */
};
static_assert(sizeof(Algorithm) <= sizeof(cublasLtMatmulAlgo_t), "an algorithm is opaque");

/* The emulated algorithms. Odd ones sum from the end, so that they can be told apart. */
struct Kind {
  bool possible, works;
  double milliseconds;
  uint64_t workspace;
};
const Kind kinds[] = {{true, true, 4, 0},        {false, true, 1, 0},  {true, false, 1, 0},
                      {true, true, 2, 1U << 20}, {true, true, 1.5, 0}, {true, true, 1, 256}};

/* An algorithm's kernels are loaded by its first run. Products take longer until the device has done some. */
const double load_milliseconds = 200, cold_milliseconds = 80, cold_factor = 3;
double busy_milliseconds;
bool loaded[sizeof kinds / sizeof *kinds];

double milliseconds_of(uint32_t id, bool slow) {
  const double running =
      (kinds[id].milliseconds + (slow ? 8 : 0)) * (busy_milliseconds < cold_milliseconds ? cold_factor : 1);
  const double loading = loaded[id] ? 0 : load_milliseconds;
  loaded[id] = true;
  busy_milliseconds += running;
  return loading + running;
}

[[noreturn]] void refuse(const char *what) {
  fprintf(stderr, "cuBLASLt is misused: %s\n", what);
  abort();
}
void require(bool holds, const char *what) {
  if (!holds) refuse(what);
}

bool is_code(int type) {
  return type == CUDA_R_8F_E4M3 || type == CUDA_R_8F_E5M2;
}
size_t size_of(int type) {
  return type == CUDA_R_32F ? 4 : is_code(type) ? 1 : 2;
}
inline float get(const void *from, int type, uint64_t i) {
  if (type == CUDA_R_8F_E4M3) return tws_from_e4m3(static_cast<const uint8_t *>(from)[i]);
  if (type == CUDA_R_8F_E5M2) return tws_from_e5m2(static_cast<const uint8_t *>(from)[i]);
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
// Rows of the matrix, or of its transpose, one after another.
template <typename T>
std::vector<float> rows_as(const T &at, const Layout *l, bool transpose) {
  const uint64_t rows = transpose ? l->columns : l->rows, columns = transpose ? l->rows : l->columns;
  const uint64_t down = transpose ? (uint64_t)l->stride : 1, along = transpose ? 1 : (uint64_t)l->stride;
  std::vector<float> x(rows * columns);
  for (uint64_t i = 0; i < rows; ++i)
    for (uint64_t j = 0; j < columns; ++j) x[i * columns + j] = at(i * down + j * along);
  return x;
}
std::vector<float> rows_of(const void *matrix, const Layout *l, bool transpose) {
  const int type = l->type;
  if (type == CUDA_R_32F) return rows_as([=](uint64_t i) { return get(matrix, CUDA_R_32F, i); }, l, transpose);
  if (type == CUDA_R_16BF) return rows_as([=](uint64_t i) { return get(matrix, CUDA_R_16BF, i); }, l, transpose);
  return rows_as([=](uint64_t i) { return get(matrix, type, i); }, l, transpose);
}
float gelu(float x) {
  return 0.5F * x * (1 + std::tanh(0.7978845608F * (x + 0.044715F * x * x * x)));
}
float gelu_slope(float x) {
  const float t = std::tanh(0.7978845608F * (x + 0.044715F * x * x * x));
  return 0.5F * (1 + t) + 0.5F * x * (1 - t * t) * 0.7978845608F * (1 + 0.134145F * x * x);
}
template <typename H, typename T>
cublasStatus_t make(H *handle, const T &value) {
  *handle = reinterpret_cast<H>(new T(value));
  return CUBLAS_STATUS_SUCCESS;
}

bool adds_bias(int epilogue) {
  return epilogue == CUBLASLT_EPILOGUE_BIAS || epilogue == CUBLASLT_EPILOGUE_GELU_AUX_BIAS;
}
bool has_aux(int epilogue) {
  return epilogue == CUBLASLT_EPILOGUE_GELU_AUX || epilogue == CUBLASLT_EPILOGUE_GELU_AUX_BIAS ||
         epilogue == CUBLASLT_EPILOGUE_DGELU || epilogue == CUBLASLT_EPILOGUE_DGELU_BGRAD;
}
bool makes_sums(int epilogue) {
  return epilogue == CUBLASLT_EPILOGUE_BGRADB || epilogue == CUBLASLT_EPILOGUE_DGELU_BGRAD;
}
uint32_t alignment_of(const void *address) {
  const uintptr_t bits = (uintptr_t)address | 256;
  return (uint32_t)(bits & (~bits + 1));
}

struct Problem {
  const Operation *o;
  const Layout *left, *right, *to;
};

/* Factors of 8 bits: what the library's table of them has. Both lie along the sum, in whole units of 16 bytes. */
void check_codes(const Problem &p) {
  require(p.left->type == CUDA_R_8F_E4M3 || p.right->type == CUDA_R_8F_E4M3, "two factors of e5m2");
  require(p.o->left_transposed && !p.o->right_transposed, "factors of 8 bits that do not lie along the sum");
  require(p.left->stride % 16 == 0 && p.right->stride % 16 == 0, "rows of 8 bits that are no multiple of 16 bytes");
  require(p.left->rows % 16 == 0 && p.to->rows % 16 == 0, "sizes of factors of 8 bits that are no multiple of 16");
  require((size_t)p.to->stride * size_of(p.to->type) % 16 == 0, "rows of the result that are no multiple of 16 bytes");
  require(p.o->left_scale && p.o->right_scale, "no scale");
  require(p.o->epilogue != CUBLASLT_EPILOGUE_BGRADB, "sums of factors of 8 bits");
}

/* As the header says: shapes that match, vectors and auxiliary matrices that are there and as long as they must be. */
void check(const Problem &p) {
  const Operation &o = *p.o;
  const uint64_t rows = o.left_transposed ? p.left->columns : p.left->rows;
  const uint64_t inner = o.left_transposed ? p.left->rows : p.left->columns;
  const uint64_t columns = o.right_transposed ? p.right->rows : p.right->columns;
  require(rows == p.to->rows && columns == p.to->columns, "factors and result do not match");
  require(inner == (o.right_transposed ? p.right->columns : p.right->rows), "factors do not match");
  require(is_code(p.left->type) == is_code(p.right->type), "factors of 8 and of more bits");
  require(is_code(p.left->type) || p.left->type == p.right->type, "factors of two types");
  if (is_code(p.left->type)) check_codes(p);
  if (adds_bias(o.epilogue) || makes_sums(o.epilogue)) {
    require(o.bias, "no bias");
    require(o.bias_type == p.to->type, "a bias of another type than the result");
  }
  if (!has_aux(o.epilogue)) return;
  require(o.aux, "no auxiliary matrix");
  require(o.aux_stride % 8 == 0, "a leading dimension of the auxiliary matrix that is not a multiple of 8");
  require(o.aux_stride >= (int64_t)p.to->rows, "a leading dimension of the auxiliary matrix that is too short");
  require(o.aux_type == -1 || o.aux_type == p.to->type, "an auxiliary matrix of another type than the result");
}

uint64_t shape_of(const Problem &p) {
  uint64_t hash = (uint64_t)(p.o->left_transposed * 2 + p.o->right_transposed);
  for (const Layout *l : {p.left, p.right, p.to})
    for (uint64_t x : {(uint64_t)l->type, l->rows, l->columns, (uint64_t)l->stride})
      hash = (hash ^ x) * 0x9e3779b97f4a7c15;
  return hash;
}

/* Types and alignments that it has nothing for, and results of an odd number of rows, so that what stands in for the
 * library is tested as well. */
bool is_supported(const Problem &p) {
  const int epilogue = p.o->epilogue;
  if (p.to->rows % 2) return false;
  if (epilogue == CUBLASLT_EPILOGUE_BGRADB) return p.to->type == p.right->type;
  return !has_aux(epilogue) || (p.to->type != CUDA_R_32F && alignment_of(p.o->aux) >= 16);
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
  Operation o = Operation();
  o.epilogue = CUBLASLT_EPILOGUE_DEFAULT;
  o.bias_type = o.aux_type = -1;
  return make(out, o);
}
cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t operation) {
  delete reinterpret_cast<Operation *>(operation);
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t operation, cublasLtMatmulDescAttributes_t name,
                                              const void *value, size_t bytes) {
  Operation *o = reinterpret_cast<Operation *>(operation);
  void *to = nullptr;
  size_t wanted = sizeof(int);
  int transposed = -1;
  int8_t fast = 0;
  switch (name) {
    case CUBLASLT_MATMUL_DESC_TRANSA:
    case CUBLASLT_MATMUL_DESC_TRANSB:
      to = &transposed;
      break;
    case CUBLASLT_MATMUL_DESC_EPILOGUE:
      to = &o->epilogue;
      break;
    case CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE:
      to = &o->bias_type;
      break;
    case CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_DATA_TYPE:
      to = &o->aux_type;
      break;
    case CUBLASLT_MATMUL_DESC_BIAS_POINTER:
      to = &o->bias;
      wanted = sizeof o->bias;
      break;
    case CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER:
      to = &o->aux;
      wanted = sizeof o->aux;
      break;
    case CUBLASLT_MATMUL_DESC_A_SCALE_POINTER:
      to = &o->left_scale;
      wanted = sizeof o->left_scale;
      break;
    case CUBLASLT_MATMUL_DESC_B_SCALE_POINTER:
      to = &o->right_scale;
      wanted = sizeof o->right_scale;
      break;
    case CUBLASLT_MATMUL_DESC_FAST_ACCUM:
      to = &fast;
      wanted = sizeof fast;
      break;
    case CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD:
      to = &o->aux_stride;
      wanted = sizeof o->aux_stride;
      break;
    default:
      refuse("an attribute of products that is not known here");
  }
  require(bytes == wanted, "an attribute of another size");
  memcpy(to, value, bytes);
  if (name == CUBLASLT_MATMUL_DESC_TRANSA) o->left_transposed = transposed == CUBLAS_OP_T;
  if (name == CUBLASLT_MATMUL_DESC_TRANSB) o->right_transposed = transposed == CUBLAS_OP_T;
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t *out, cudaDataType type, uint64_t rows,
                                          uint64_t columns, int64_t stride) {
  require(stride >= (int64_t)rows, "a leading dimension that is too short");
  return make(out, Layout{(int)type, rows, columns, stride});
}
cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t layout) {
  delete reinterpret_cast<Layout *>(layout);
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t *out) {
  return make(out, Preference{0, {256, 256, 256, 256}, CUBLASLT_REDUCTION_SCHEME_MASK});
}
cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t preference) {
  delete reinterpret_cast<Preference *>(preference);
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t preference,
                                                    cublasLtMatmulPreferenceAttributes_t name, const void *value,
                                                    size_t bytes) {
  Preference *p = reinterpret_cast<Preference *>(preference);
  void *to = name == CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES     ? (void *)&p->workspace
             : name == CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK ? (void *)&p->reductions
             : name == CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES ? (void *)&p->alignment[0]
             : name == CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES ? (void *)&p->alignment[1]
             : name == CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES ? (void *)&p->alignment[2]
             : name == CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES ? (void *)&p->alignment[3]
                                                                  : nullptr;
  require(to, "a preference that is not known here");
  require(bytes == (to == &p->workspace ? sizeof p->workspace : sizeof p->reductions), "a preference of another size");
  memcpy(to, value, bytes);
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t, cublasLtMatmulDesc_t operation,
                                              cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                                              cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                                              cublasLtMatmulPreference_t preference, int most,
                                              cublasLtMatmulHeuristicResult_t *results, int *count) {
  const Problem p = {reinterpret_cast<Operation *>(operation), reinterpret_cast<Layout *>(a),
                     reinterpret_cast<Layout *>(b), reinterpret_cast<Layout *>(d)};
  const Preference *wish = reinterpret_cast<Preference *>(preference);
  require(most > 0 && c == d, "no room for proposals, or two layouts of the result");
  require(!(wish->reductions & CUBLASLT_REDUCTION_SCHEME_OUTPUT_TYPE), "sums in the type of the result");
  check(p);
  *count = 0;
  if (!is_supported(p)) return CUBLAS_STATUS_NOT_SUPPORTED;
  for (uint32_t alignment : wish->alignment)
    if (is_code(p.left->type) && alignment < 16) return CUBLAS_STATUS_NOT_SUPPORTED;
  for (uint32_t id = 0; id < sizeof kinds / sizeof *kinds && *count < most; ++id) {
    if (kinds[id].workspace > wish->workspace) continue;
    Algorithm algorithm = {id, p.o->epilogue, shape_of(p), kinds[id].workspace, {0}};
    memcpy(algorithm.alignment, wish->alignment, sizeof wish->alignment);
    algorithm.alignment[4] = alignment_of(p.o->bias);
    algorithm.alignment[5] = alignment_of(p.o->aux);
    cublasLtMatmulHeuristicResult_t *result = &results[(*count)++];
    memset(result, 0, sizeof *result);
    memcpy(&result->algo, &algorithm, sizeof algorithm);
    result->workspaceSize = kinds[id].workspace;
    result->state = kinds[id].possible ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_NOT_SUPPORTED;
  }
  return CUBLAS_STATUS_SUCCESS;
}

struct Factor {
  const void *matrix;
  Layout layout;
};

typedef float Lanes __attribute__((vector_size(16), aligned(4), may_alias));

/* A column of products: x has `rows` numbers for each of the `inner` terms, y one. Each sum adds its terms in the order
 * of their numbers, or in the opposite one. */
static void multiply_column(const float *x, const float *y, uint64_t rows, uint64_t inner, bool backwards, float *to) {
  enum { LANES = 4, WIDE = 4 * LANES };
  const int64_t step = backwards ? -(int64_t)rows : (int64_t)rows, onward = backwards ? -1 : 1;
  const uint64_t begin = backwards && inner ? inner - 1 : 0;
  const float *first = x + begin * rows, *factor = y + begin;
  uint64_t i = 0;
  for (; i + WIDE <= rows; i += WIDE) {
    Lanes sum[4] = {};
    const float *p = first + i, *q = factor;
    for (uint64_t k = 0; k < inner; ++k, p += step, q += onward)
      for (int part = 0; part < 4; ++part) sum[part] += *reinterpret_cast<const Lanes *>(p + LANES * part) * *q;
    memcpy(to + i, sum, sizeof sum);
  }
  for (; i < rows; ++i) {
    const float *p = first + i, *q = factor;
    to[i] = 0;
    for (uint64_t k = 0; k < inner; ++k, p += step, q += onward) to[i] += *p * *q;
  }
}

static void multiply(const Operation &o, bool backwards, const Factor &left, const Factor &right, void *d,
                     const Layout *to, float scale, float keep) {
  if (o.left_scale) scale *= *o.left_scale * *o.right_scale;
  const uint64_t inner = o.left_transposed ? left.layout.rows : left.layout.columns;
  std::vector<float> sums(o.epilogue == CUBLASLT_EPILOGUE_DGELU_BGRAD ? to->rows : to->columns);
  const std::vector<float> x = rows_of(left.matrix, &left.layout, !o.left_transposed),
                           y = rows_of(right.matrix, &right.layout, !o.right_transposed);
  std::vector<float> products(to->rows);
  for (uint64_t j = 0; j < to->columns; ++j) {
    multiply_column(x.data(), y.data() + j * inner, to->rows, inner, backwards, products.data());
    for (uint64_t i = 0; i < to->rows; ++i) {
      const uint64_t at = j * (uint64_t)to->stride + i, aux_at = j * (uint64_t)o.aux_stride + i;
      float sum = products[i];
      sum *= scale;
      if (keep != 0) sum += keep * get(d, to->type, at);
      if (adds_bias(o.epilogue)) sum += get(o.bias, o.bias_type, i);
      if (o.epilogue == CUBLASLT_EPILOGUE_DGELU || o.epilogue == CUBLASLT_EPILOGUE_DGELU_BGRAD) {
        sum *= gelu_slope(get(o.aux, to->type, aux_at));
        if (makes_sums(o.epilogue)) sums[i] += sum;
      } else if (has_aux(o.epilogue)) {
        put(o.aux, to->type, aux_at, sum);
        sum = gelu(sum);
      }
      put(d, to->type, at, sum);
    }
  }
  if (!makes_sums(o.epilogue)) return;
  for (uint64_t j = 0; j < to->columns && o.epilogue == CUBLASLT_EPILOGUE_BGRADB; ++j)
    for (uint64_t k = 0; k < inner; ++k) sums[j] += y[j * inner + k];
  for (uint64_t j = 0; j < sums.size(); ++j) put(const_cast<void *>(o.bias), o.bias_type, j, sums[j]);
}

/* The conditions that the heuristics assumed must hold in this call. */
static void check_promises(const Algorithm &algorithm, const Problem &p, const void *a, const void *b, const void *c,
                           const void *d, const void *workspace, size_t bytes) {
  const void *address[] = {a, b, c, d, p.o->bias, p.o->aux};
  require(algorithm.shape == shape_of(p) && algorithm.epilogue == p.o->epilogue, "the algorithm of another product");
  for (int i = 0; i < 6; ++i)
    require(alignment_of(address[i]) >= algorithm.alignment[i], "an address that is less aligned than was promised");
  for (int i = 0; i < 6; ++i)
    require(!address[i] || emulated_is_device(address[i], 1), "an address that is not the device's");
  for (const float *of : {p.o->left_scale, p.o->right_scale})
    require(!of || emulated_is_device(of, sizeof *of), "a scale that is not on the device");
  for (const void *code : {a, b})
    require(!is_code(p.left->type) || (uintptr_t)code % 16 == 0, "a factor of 8 bits that is not aligned");
  require(bytes >= algorithm.workspace && (uintptr_t)workspace % 256 == 0, "a workspace too small, or not aligned");
  if (!has_aux(p.o->epilogue)) return;
  const char *aux = static_cast<const char *>(p.o->aux), *out = static_cast<const char *>(d);
  const size_t size = p.to->rows * p.to->columns * size_of(p.to->type);
  require(aux + size <= out || out + size <= aux, "the auxiliary matrix overlaps the result");
}

/* Fused kernels of some shapes are slow, so that both implementations of a product's epilogue are used. */
cublasStatus_t cublasLtMatmul(cublasLtHandle_t, cublasLtMatmulDesc_t operation, const void *alpha, const void *a,
                              cublasLtMatrixLayout_t a_layout, const void *b, cublasLtMatrixLayout_t b_layout,
                              const void *beta, const void *c, cublasLtMatrixLayout_t c_layout, void *d,
                              cublasLtMatrixLayout_t d_layout, const cublasLtMatmulAlgo_t *algo, void *workspace,
                              size_t bytes, cudaStream_t stream) {
  const Operation o = *reinterpret_cast<Operation *>(operation);
  const Layout *left = reinterpret_cast<Layout *>(a_layout), *right = reinterpret_cast<Layout *>(b_layout),
               *to = reinterpret_cast<Layout *>(d_layout);
  const Problem p = {&o, left, right, to};
  const float scale = *static_cast<const float *>(alpha), keep = *static_cast<const float *>(beta);
  Algorithm algorithm;
  memcpy(&algorithm, algo, sizeof algorithm);
  check(p);
  check_promises(algorithm, p, a, b, c, d, workspace, bytes);
  require(c == d && c_layout == d_layout, "a result that is not in the place of its addend");
  const Kind &kind = kinds[algorithm.id];
  if (!kind.possible || !kind.works) return CUBLAS_STATUS_NOT_SUPPORTED;
  const bool slow = (has_aux(o.epilogue) || makes_sums(o.epilogue)) && algorithm.shape >> 63;
  const bool backwards = algorithm.id % 2 != 0;
  const Factor x = {a, *left}, y = {b, *right};
  const Layout z = *to;
  const cudaError_t status = emulated_submit(
      stream,
      [=] {
        memset(workspace, 0xff, algorithm.workspace);
        multiply(o, backwards, x, y, d, &z, scale, keep);
      },
      milliseconds_of(algorithm.id, slow));
  return status == cudaSuccess ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_EXECUTION_FAILED;
}
}
