/* Declarations that the files of the CUDA backend share; read by C and by CUDA C++. */
#ifndef TWS_REAL_CUDA_INTERNAL_H
#define TWS_REAL_CUDA_INTERNAL_H

#include <cuda_runtime_api.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif
#include "base/status.h"
#include "models/kernel.h"

/* One kernel call. The number and types of its operands have been checked. */
typedef struct tws_cuda_call {
  const tws_work *work;
  const double *argument; /* [TWS_ARGUMENTS] */
  void *const *operand;
  const tws_dtype *dtype;
  int count; /* number of operands */
  cudaStream_t stream;
  void *scratch; /* scratch_bytes bytes of this stream, for partial sums */
  size_t scratch_bytes;
  int multiprocessors;
  int shared_bytes;           /* maximum shared memory per block on this device, bytes */
  int capability;             /* compute capability times ten: 90 for 9.0 */
  struct tws_cuda_gemm *gemm; /* state of matrix products */
  const struct tws_cuda_gemm_workspace *gemm_workspace;
} tws_cuda_call;
typedef tws_code (*tws_cuda_function)(const tws_cuda_call *call, tws_error *err);

/* Declares one launcher for each row of models/operators.def, defined in kernels/ and, for matrix products, in gemm.c.
 * Launchers are asynchronous. */
#define OPERATOR(id, name, ...) tws_code tws_cuda_##name(const tws_cuda_call *call, tws_error *err);
#include "models/operators.def"

typedef enum tws_cuda_activation { TWS_CUDA_NO_ACTIVATION, TWS_CUDA_GELU, TWS_CUDA_GELU_GRAD } tws_cuda_activation;

/* A matrix product C[rows, columns] = sum over i of A(row, i) B(column, i) (+ bias[column]) (+ C); C is contiguous.
 * A(row, i) is at a[row a_row + i a_inner], B at b. The members after `accumulate` are for gemm.c; the plain
 * product ignores them. */
typedef struct tws_cuda_product {
  const void *a, *b, *bias;       /* bias: in the inputs' type or, with scales, in C's type; or NULL */
  const float *a_scale, *b_scale; /* scales of 8-bit codes; NULL: a and b have 16 bits or more */
  void *c;
  int64_t rows, columns, inner, a_row, a_inner, b_column, b_inner;
  tws_dtype in, b_in, out; /* in: type of a, and also of b unless there are scales */
  int accumulate;
  tws_cuda_activation activation; /* GELU: Z = the product, C = gelu(Z); GELU_GRAD: C = the product times gelu'(Z) */
  void *z;                        /* [rows, columns] of C's type */
  void *sums; /* NULL, or receives the sums of A over the inner index, one for each row; or the sums of C over its rows,
               * one for each column */
  tws_dtype sums_type;
  int sums_of_result, sums_accumulate;
} tws_cuda_product;
/* Computes a product of any shape, types and alignment by a plain kernel; used for products that cuBLASLt declines. */
tws_code tws_cuda_plain_product(const tws_cuda_call *call, const tws_cuda_product *product, tws_error *err);
/* Computes out[columns] (+)= column sums of x[rows, columns]. Partial sums are stored in scratch memory. */
tws_code tws_cuda_column_sums(const tws_cuda_call *call, const void *x, tws_dtype in, int64_t rows, int64_t columns,
                              void *out, tws_dtype type, int accumulate, tws_error *err);
/* The second stage of such sums: computes out[columns] (+)= column sums of the scratch memory's float[parts, columns],
 * in an order that depends on `parts` alone. */
tws_code tws_cuda_finish_columns(const tws_cuda_call *call, int parts, int64_t columns, void *out, tws_dtype type,
                                 int accumulate, tws_error *err);

/* ---- gemm.c: products by cuBLASLt ---- */
typedef struct tws_cuda_gemm tws_cuda_gemm; /* a library handle and the chosen algorithms */
typedef struct tws_cuda_gemm_workspace {
  void *data; /* workspace for the library */
  size_t bytes;
  int timed; /* 1: a new work is timed with each algorithm that the library proposes, and the fastest is kept; not
              * allowed while a step is being recorded. 0: the library's first proposal is used */
} tws_cuda_gemm_workspace;
tws_code tws_cuda_gemm_create(tws_cuda_gemm **out, tws_error *err);
void tws_cuda_gemm_destroy(tws_cuda_gemm *gemm);
size_t tws_cuda_gemm_version(void);

/* ---- environment.c ---- */
/* Returns 1 if the environment variable is set to a value other than "" and 0. */
int tws_cuda_env_is_set(const char *variable);

/* ---- backend.c ---- */
typedef struct tws_backend tws_backend;
tws_code tws_cuda_fail(tws_error *err, cudaError_t status, const char *what);
/* Returns the CUDA stream of a plan's stream (a tws_stream), which is created on first use. */
tws_code tws_cuda_stream(tws_backend *backend, int stream, cudaStream_t *out, tws_error *err);
/* Destroys the recorded step; to be called before communicators that it uses are closed. */
void tws_cuda_destroy_graph(tws_backend *backend);
/* Allocator of the device memory of future arenas; NULL: the driver. take() leaves *base NULL if it has no memory.
 * Arenas are returned to the allocator that they came from, which must outlive them. */
typedef struct tws_cuda_arena_allocator {
  tws_code (*take)(void *user, size_t bytes, void **base, tws_error *err);
  void (*give_back)(void *user, void *base);
  void *user;
} tws_cuda_arena_allocator;
void tws_cuda_set_arena_allocator(tws_backend *backend, const tws_cuda_arena_allocator *allocator);
/* Sets a function `look` that is called repeatedly while the host waits for the device; its error ends the wait. NULL:
 * none. */
void tws_cuda_watch(tws_backend *backend, tws_code (*look)(void *user, tws_error *err), void *user);

#ifdef __cplusplus
}
#endif
#endif
