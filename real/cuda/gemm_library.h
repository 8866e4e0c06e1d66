/* Descriptions of matrix products for cuBLASLt, and the algorithms that it proposes. Internal to gemm*.c. */
#ifndef TWS_REAL_CUDA_GEMM_LIBRARY_H
#define TWS_REAL_CUDA_GEMM_LIBRARY_H

#include <cublasLt.h>
#include "real/cuda/internal.h"

/* A product with an epilogue (an activation or column sums) can be described to the library in several forms: WHOLE
 * with its whole epilogue; ACTIVATED, of an activation and sums, with the activation alone; ALONE, the product
 * without an epilogue. The backend's own kernels then compute the rest. Products without an epilogue are WHOLE. */
typedef enum tws_gemm_form { TWS_GEMM_WHOLE, TWS_GEMM_ACTIVATED, TWS_GEMM_ALONE, TWS_GEMM_FORMS } tws_gemm_form;

typedef struct tws_gemm_described {
  cublasLtMatmulDesc_t operation; /* NULL: the product cannot be described in this form */
  cublasLtMatrixLayout_t a, b, d;
} tws_gemm_described;

typedef struct tws_gemm_candidate {
  tws_gemm_form form;
  cublasLtMatmulAlgo_t algorithm;
} tws_gemm_candidate;

enum { TWS_GEMM_PROPOSALS = 32, TWS_GEMM_CANDIDATES = TWS_GEMM_FORMS * TWS_GEMM_PROPOSALS };

/* Alignment of an address: the largest power of two that divides it, up to 16 bytes, the widest access. */
typedef struct tws_gemm_alignment {
  uint32_t a, b, c, vector, z; /* a, b: of the operands in the library's order; vector: of the bias or of the sums */
} tws_gemm_alignment;

typedef struct tws_gemm_choice {
  tws_work work; /* the work without the flags TWS_ACCUMULATE and TWS_ACCUMULATE_PARAM, which do not affect the
                  * choice */
  tws_dtype out;
  tws_gemm_alignment alignment;
  tws_gemm_described described[TWS_GEMM_FORMS];
  tws_gemm_candidate
      candidate[TWS_GEMM_CANDIDATES]; /* in order of preference: the first is used; if the library declines it when it
                                       * is started, the next */
  int candidates;                     /* number of candidates; 0: the backend's plain kernel is used */
} tws_gemm_choice;

tws_code tws_gemm_failed(cublasStatus_t status, const char *what, tws_error *err);
#define TRY_LT(call, what)                                                            \
  do {                                                                                \
    const cublasStatus_t status_ = (call);                                            \
    if (status_ != CUBLAS_STATUS_SUCCESS) return tws_gemm_failed(status_, what, err); \
  } while (0)

/* Returns the address that the product is written to in this form. */
void *tws_gemm_target(const tws_cuda_product *p, tws_gemm_form form);
int64_t tws_gemm_sum_count(const tws_cuda_product *p);
/* Returns the address for the library's column sums, which it only overwrites: if they are to be added to existing
 * sums, it is in scratch memory. */
void *tws_gemm_sums(const tws_cuda_call *call, const tws_cuda_product *p);
tws_gemm_alignment tws_gemm_alignment_of(const tws_cuda_call *call, const tws_cuda_product *p);
/* Fills in the candidates that the library proposes: alternately one of each form, in each form the best first. It is
 * no error if there are none. */
tws_code tws_gemm_propose(cublasLtHandle_t handle, const tws_cuda_call *call, const tws_cuda_product *p,
                          size_t workspace, tws_gemm_choice *c, tws_error *err);
/* Sets the addresses of this call in the descriptor of a form. */
tws_code tws_gemm_set_addresses(const tws_cuda_call *call, const tws_cuda_product *p, tws_gemm_form form,
                                cublasLtMatmulDesc_t operation, tws_error *err);
void tws_gemm_clear(tws_gemm_choice *c);

/* ---- gemm_rank.c ---- */
typedef struct tws_gemm_clock {
  cudaEvent_t start, stop; /* NULL: the clock was not used yet */
  int warm;                /* 1: the device has executed products before */
} tws_gemm_clock;
void tws_gemm_clock_destroy(tws_gemm_clock *clock);
void tws_gemm_drop(tws_gemm_choice *c, int candidate);
/* Starts the product with this candidate on the stream; sets *declined to 1 if the library does not support it, and
 * nothing was started. */
typedef tws_code (*tws_gemm_start)(void *user, const tws_gemm_candidate *candidate, int *declined, tws_error *err);
/* Returns the device time that may be used for ranking the algorithms of one product, in milliseconds: the larger the
 * product, the more time a better algorithm saves. */
double tws_gemm_budget_ms(double flops, tws_dtype in);
/* Times the candidates on the stream and moves the fastest to index 0; those that the library declines are dropped. */
tws_code tws_gemm_rank(tws_gemm_clock *clock, cudaStream_t stream, tws_gemm_choice *c, double budget_ms,
                       tws_gemm_start start, void *user, tws_error *err);

#endif
