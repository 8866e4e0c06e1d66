/* What the files of the CUDA backend share; read by C and by CUDA C++. */
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

/* One kernel call. Operands have been counted and their types checked. */
typedef struct tws_cuda_call {
  const tws_work *work;
  const double *argument; /* TWS_ARGUMENTS of them */
  void *const *operand;
  const tws_dtype *dtype;
  int count; /* operands */
  cudaStream_t stream;
  void *scratch; /* scratch_bytes of this stream, for partial sums */
  size_t scratch_bytes;
  int multiprocessors;
  int shared_bytes;           /* the most that a block can have on this device */
  int capability;             /* its compute capability, times ten */
  struct tws_cuda_gemm *gemm; /* for matrix products */
  const struct tws_cuda_gemm_workspace *gemm_workspace;
} tws_cuda_call;
typedef tws_code (*tws_cuda_function)(const tws_cuda_call *call, tws_error *err);

/* A launcher for each row of models/operators.def, in kernels/ and for matrix products in gemm.c. They start work and
 * return. */
#define OPERATOR(id, name, ...) tws_code tws_cuda_##name(const tws_cuda_call *call, tws_error *err);
#include "models/operators.def"

typedef enum tws_cuda_activation { TWS_CUDA_NO_ACTIVATION, TWS_CUDA_GELU, TWS_CUDA_GELU_GRAD } tws_cuda_activation;

/* A matrix product C[rows, columns] = sum over i of A(row, i) B(column, i) (+ bias[column]) (+ C); C is
 * contiguous. A(row, i) is at a[row a_row + i a_inner]; so B. What follows `accumulate` is for gemm.c; the plain
 * product has none. */
typedef struct tws_cuda_product {
  const void *a, *b, *bias;       /* bias: of the inputs' type, with scales of C's, or NULL */
  const float *a_scale, *b_scale; /* of codes of 8 bits; NULL: a and b are of 16 bits or more */
  void *c;
  int64_t rows, columns, inner, a_row, a_inner, b_column, b_inner;
  tws_dtype in, b_in, out; /* in: of a, and without scales of b too */
  int accumulate;
  tws_cuda_activation activation; /* GELU: Z = the product, C = gelu(Z); GELU_GRAD: C = the product times gelu'(Z) */
  void *z;                        /* [rows, columns] of C's type */
  void *sums; /* or NULL: gets the sums of A over the inner index, one for each row; or of C, one for each column */
  tws_dtype sums_type;
  int sums_of_result, sums_accumulate;
} tws_cuda_product;
/* Any shape, types and alignment, with plain arithmetic: for what cuBLASLt declines. */
tws_code tws_cuda_plain_product(const tws_cuda_call *call, const tws_cuda_product *product, tws_error *err);
/* out[columns] (+)= column sums of x[rows, columns]. Partial sums go to scratch. */
tws_code tws_cuda_column_sums(const tws_cuda_call *call, const void *x, tws_dtype in, int64_t rows, int64_t columns,
                              void *out, tws_dtype type, int accumulate, tws_error *err);

/* ---- gemm.c: products by cuBLASLt ---- */
typedef struct tws_cuda_gemm tws_cuda_gemm; /* a library handle and the chosen algorithms */
typedef struct tws_cuda_gemm_workspace {
  void *data; /* the library's */
  size_t bytes;
  int timed; /* a work that is new is done in each way that the library proposes, and the fastest is kept: not while a
                step is recorded. Otherwise its first proposal is */
} tws_cuda_gemm_workspace;
tws_code tws_cuda_gemm_create(tws_cuda_gemm **out, tws_error *err);
void tws_cuda_gemm_destroy(tws_cuda_gemm *gemm);
size_t tws_cuda_gemm_version(void);

/* ---- backend.c ---- */
typedef struct tws_backend tws_backend;
tws_code tws_cuda_fail(tws_error *err, cudaError_t status, const char *what);
/* The CUDA stream of a plan's stream (a tws_stream), made on first use. */
tws_code tws_cuda_stream(tws_backend *backend, int stream, cudaStream_t *out, tws_error *err);
/* Drops the recorded step: before communicators that it uses are closed. */
void tws_cuda_forget(tws_backend *backend);
/* Whether the environment variable is there, and neither empty nor 0. */
int tws_cuda_wanted(const char *variable);
/* Device memory of the arenas that are allocated from now on comes from somebody else; NULL: the driver. take() leaves
 * *base NULL where it has none to give. Arenas go back to who gave them, which must outlive them. */
typedef struct tws_cuda_lender {
  tws_code (*take)(void *user, size_t bytes, void **base, tws_error *err);
  void (*give_back)(void *user, void *base);
  void *user;
} tws_cuda_lender;
void tws_cuda_borrow(tws_backend *backend, const tws_cuda_lender *lender);
/* `look` is asked again and again while the host waits for the device; an error ends the wait. NULL: nobody. */
void tws_cuda_watch(tws_backend *backend, tws_code (*look)(void *user, tws_error *err), void *user);

#ifdef __cplusplus
}
#endif
#endif
