/* Declarations that the files of the host backend share. Kernels (kernels/) are compiled once per instruction set,
 * with TWS_HOST_ISA naming it; the rest is compiled once. */
#ifndef TWS_REAL_HOST_INTERNAL_H
#define TWS_REAL_HOST_INTERNAL_H

#include <pthread.h>
#include <stdint.h>
#include "base/status.h"
#include "models/kernel.h" /* no header of plans is included, so that a change of those does not recompile every
                              kernel */

typedef struct tws_backend tws_backend;

enum { MAX_THREADS = 256 }; /* the most threads of a backend */

/* ---- threads.c: a pool that spins briefly, then sleeps ---- */
typedef struct tws_host_pool tws_host_pool;
typedef void (*tws_host_task)(void *arg, int thread, int threads);
tws_code tws_host_pool_create(int threads, tws_host_pool **out, tws_error *err);
void tws_host_pool_destroy(tws_host_pool *pool);
/* Runs the task on every thread of the pool (the caller is thread 0), and returns when all have finished. */
void tws_host_pool_run(tws_host_pool *pool, tws_host_task task, void *arg);
int tws_host_available_processors(void);

/* ---- gemm.c: single-threaded products from a library; C = op(A) op(B) + beta C, row-major ---- */
void tws_host_gemm_thread_setup(void);  /* to be called once in every thread that calls the products below */
int tws_host_gemm_enter(void);          /* limits the library to the calling thread; returns the previous number of
                                         * threads */
void tws_host_gemm_leave(int previous); /* restores the number that tws_host_gemm_enter() returned */
void tws_host_sgemm(int transpose_a, int transpose_b, int64_t m, int64_t n, int64_t k, const float *a, int64_t lda,
                    const float *b, int64_t ldb, float beta, float *c, int64_t ldc);
const char *tws_host_gemm_library(char *buffer, int size);

/* One block of a bfloat16 product by the processor's bfloat16 instructions. */
typedef struct tws_host_bf16_gemm {
  int64_t m, n, k, lda, ldb, ldc;
  int32_t transpose_a, transpose_b, accumulate, bias; /* bias: bfloat16[n], added before rounding */
  int32_t c_is_f32, pad_;
} tws_host_bf16_gemm;
typedef struct tws_host_bf16_cache tws_host_bf16_cache;
int tws_host_bf16_native(void); /* returns 1 if the library has fast bfloat16 products on this processor */
tws_code tws_host_bf16_cache_create(int threads, tws_host_bf16_cache **out, tws_error *err);
void tws_host_bf16_cache_destroy(tws_host_bf16_cache *cache);
/* Creates the kernel that multiply() then uses; not to be called within a task. TWS_UNSUPPORTED: the library
 * declines this shape. */
tws_code tws_host_bf16_prepare(tws_host_bf16_cache *cache, const tws_host_bf16_gemm *gemm, tws_error *err);
int tws_host_bf16_multiply(tws_host_bf16_cache *cache, int thread, const tws_host_bf16_gemm *gemm, const void *a,
                           const void *b, void *c, const void *bias); /* returns 0 if the product was computed, else
                                                                       * -1 */

/* ---- backend.c ---- */
typedef struct tws_host_call {
  tws_backend *backend;
  const tws_work *work;
  const double *argument; /* [TWS_ARGUMENTS] */
  void *const *operand;
  const tws_dtype *dtype;
  int count; /* number of operands */
} tws_host_call;
typedef tws_code (*tws_host_function)(const tws_host_call *call, tws_error *err);
typedef struct tws_host_kernels {
  const char *name;
  tws_host_function function[TWS_KERNEL_COUNT];
} tws_host_kernels;

typedef struct tws_host_arena {
  void *base;
  size_t bytes;
} tws_host_arena;

struct tws_backend {
  int threads;
  const tws_host_kernels *kernels;
  tws_host_pool *pool;
  tws_host_bf16_cache *bf16; /* NULL if the library has no fast bfloat16 products */
  float *convert;            /* memory for float32 panels, to which operands of 16-bit products are converted; allocated
                              * on first use */
  size_t convert_bytes;
  tws_host_arena *arenas;
  size_t arena_count, arena_capacity;
  pthread_mutex_t lock; /* held while a kernel runs, so that kernels run one after another */
};

/* ---- kernels/: the table of one instruction set ---- */
#define TWS_HOST_JOIN2(a, b) a##_##b
#define TWS_HOST_JOIN(a, b) TWS_HOST_JOIN2(a, b)
#define TWS_HOST(name) TWS_HOST_JOIN(tws_host_##name, TWS_HOST_ISA)

extern const tws_host_kernels tws_host_kernels_base, tws_host_kernels_avx2, tws_host_kernels_avx512;

#endif
