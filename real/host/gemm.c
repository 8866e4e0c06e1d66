/* Matrix products from oneDNN (faster than OpenBLAS on the processors measured, and it has bfloat16), or from OpenBLAS
 * if oneDNN is not installed. Each thread of the backend multiplies a block of its own, and the library must not start
 * threads itself: they would compete with the backend's threads for cores. */
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "base/memory.h"
#include "real/host/host.h"
#include "real/host/internal.h"

#ifdef TWS_HAVE_DNNL
#include <dnnl.h>

/* The OpenMP runtime that oneDNN may use; the setting applies to the calling thread. */
extern void omp_set_num_threads(int) __attribute__((weak));
extern int omp_get_max_threads(void) __attribute__((weak));

void tws_host_gemm_thread_setup(void) {
  if (omp_set_num_threads) omp_set_num_threads(1);
}

int tws_host_gemm_enter(void) {
  if (!omp_set_num_threads || !omp_get_max_threads) return 0;
  int previous = omp_get_max_threads();
  if (previous != 1) omp_set_num_threads(1);
  return previous;
}

void tws_host_gemm_leave(int previous) {
  if (previous > 1 && omp_set_num_threads) omp_set_num_threads(previous);
}

void tws_host_sgemm(int transpose_a, int transpose_b, int64_t m, int64_t n, int64_t k, const float *a, int64_t lda,
                    const float *b, int64_t ldb, float beta, float *c, int64_t ldc) {
  dnnl_sgemm(transpose_a ? 'T' : 'N', transpose_b ? 'T' : 'N', m, n, k, 1.0F, a, lda, b, ldb, beta, c, ldc);
}

const char *tws_host_gemm_library(char *buffer, int size) {
  const dnnl_version_t *version = dnnl_version();
  snprintf(buffer, (size_t)size, "oneDNN %d.%d.%d", version->major, version->minor, version->patch);
  return buffer;
}

int tws_host_bf16_native(void) {
  /* Bits of the enumeration are cumulative: this tests for the bfloat16 instructions, not for their emulation. */
  return (dnnl_get_effective_cpu_isa() & dnnl_cpu_isa_avx512_core_bf16) == dnnl_cpu_isa_avx512_core_bf16;
}

typedef struct prepared {
  tws_host_bf16_gemm shape;
  dnnl_primitive_t primitive;
  dnnl_memory_desc_t a, b, c, bias, scratch;
} prepared;

struct tws_host_bf16_cache {
  dnnl_engine_t engine;
  dnnl_stream_t *stream; /* [thread] */
  void **scratch;        /* [thread] memory of scratch_bytes bytes */
  size_t scratch_bytes;
  int threads;
  prepared *items;
  size_t count, capacity;
};

tws_code tws_host_bf16_cache_create(int threads, tws_host_bf16_cache **out, tws_error *err) {
  tws_host_bf16_cache *cache = tws_calloc(1, sizeof *cache);
  *out = cache;
  if (!cache) return tws_fail(err, TWS_MEMORY, NULL, "host backend: no memory");
  cache->threads = threads;
  cache->stream = tws_calloc((size_t)threads, sizeof *cache->stream);
  cache->scratch = tws_calloc((size_t)threads, sizeof *cache->scratch);
  int failed = !cache->stream || !cache->scratch || dnnl_engine_create(&cache->engine, dnnl_cpu, 0) != dnnl_success;
  for (int i = 0; i < threads && !failed; ++i)
    failed = dnnl_stream_create(&cache->stream[i], cache->engine, dnnl_stream_in_order) != dnnl_success;
  if (!failed) return TWS_OK;
  tws_host_bf16_cache_destroy(cache);
  *out = NULL;
  return tws_fail(err, TWS_ENVIRONMENT, NULL, "host backend: oneDNN could not create its engine");
}

void tws_host_bf16_cache_destroy(tws_host_bf16_cache *cache) {
  if (!cache) return;
  for (size_t i = 0; i < cache->count; ++i)
    if (cache->items[i].primitive) dnnl_primitive_destroy(cache->items[i].primitive);
  for (int i = 0; i < cache->threads; ++i) {
    if (cache->stream && cache->stream[i]) dnnl_stream_destroy(cache->stream[i]);
    if (cache->scratch) tws_free(cache->scratch[i]);
  }
  if (cache->engine) dnnl_engine_destroy(cache->engine);
  tws_free(cache->items);
  tws_free(cache->stream);
  tws_free(cache->scratch);
  tws_free(cache);
}

static const prepared *find(const tws_host_bf16_cache *cache, const tws_host_bf16_gemm *gemm) {
  for (size_t i = 0; i < cache->count; ++i)
    if (memcmp(&cache->items[i].shape, gemm, sizeof *gemm) == 0) return &cache->items[i];
  return NULL;
}

static int describe_matrix(dnnl_memory_desc_t *desc, int64_t rows, int64_t columns, int64_t row_stride,
                           int64_t column_stride, dnnl_data_type_t type) {
  dnnl_dims_t dims = {rows, columns}, strides = {row_stride, column_stride};
  return dnnl_memory_desc_init_by_strides(desc, 2, dims, type, strides) != dnnl_success;
}

static int make_primitive(const tws_host_bf16_cache *cache, const tws_host_bf16_gemm *gemm, prepared *item) {
  dnnl_data_type_t c_type = gemm->c_is_f32 ? dnnl_f32 : dnnl_bf16;
  int failed = describe_matrix(&item->a, gemm->m, gemm->k, gemm->transpose_a ? 1 : gemm->lda,
                               gemm->transpose_a ? gemm->lda : 1, dnnl_bf16);
  failed |= describe_matrix(&item->b, gemm->k, gemm->n, gemm->transpose_b ? 1 : gemm->ldb,
                            gemm->transpose_b ? gemm->ldb : 1, dnnl_bf16);
  failed |= describe_matrix(&item->c, gemm->m, gemm->n, gemm->ldc, 1, c_type);
  failed |= describe_matrix(&item->bias, 1, gemm->n, gemm->n, 1, dnnl_bf16);
  if (failed) return -1;
  dnnl_matmul_desc_t desc;
  if (dnnl_matmul_desc_init(&desc, &item->a, &item->b, gemm->bias ? &item->bias : NULL, &item->c) != dnnl_success)
    return -1;
  dnnl_primitive_attr_t attr = NULL;
  dnnl_post_ops_t sum = NULL;
  dnnl_primitive_desc_t primitive_desc = NULL;
  if (dnnl_primitive_attr_create(&attr) != dnnl_success) return -1;
  failed = dnnl_primitive_attr_set_scratchpad_mode(attr, dnnl_scratchpad_mode_user) != dnnl_success;
  if (!failed && gemm->accumulate)
    failed = dnnl_post_ops_create(&sum) != dnnl_success || dnnl_post_ops_append_sum(sum, 1.0F) != dnnl_success ||
             dnnl_primitive_attr_set_post_ops(attr, sum) != dnnl_success;
  if (!failed) failed = dnnl_primitive_desc_create(&primitive_desc, &desc, attr, cache->engine, NULL) != dnnl_success;
  if (!failed) {
    item->scratch = *dnnl_primitive_desc_query_md(primitive_desc, dnnl_query_scratchpad_md, 0);
    failed = dnnl_primitive_create(&item->primitive, primitive_desc) != dnnl_success;
  }
  if (primitive_desc) dnnl_primitive_desc_destroy(primitive_desc);
  if (sum) dnnl_post_ops_destroy(sum);
  dnnl_primitive_attr_destroy(attr);
  return failed ? -1 : 0;
}

tws_code tws_host_bf16_prepare(tws_host_bf16_cache *cache, const tws_host_bf16_gemm *gemm, tws_error *err) {
  const prepared *known = find(cache, gemm);
  if (known) return known->primitive ? TWS_OK : TWS_UNSUPPORTED;
  if (tws_reserve(&cache->items, &cache->capacity, cache->count + 1, sizeof *cache->items) != 0)
    return tws_fail(err, TWS_MEMORY, NULL, "host backend: no memory");
  prepared *item = &cache->items[cache->count];
  memset(item, 0, sizeof *item);
  item->shape = *gemm;
  if (make_primitive(cache, gemm, item) != 0) item->primitive = NULL;
  size_t bytes = item->primitive ? dnnl_memory_desc_get_size(&item->scratch) : 0;
  if (bytes > TWS_HOST_SCRATCH_LIMIT / 2) /* the other half of the limit is for conversions */ {
    dnnl_primitive_destroy(item->primitive);
    item->primitive = NULL;
  }
  if (!item->primitive) { /* failures are cached too: creating a primitive takes as long as a product */
    cache->count++;
    return TWS_UNSUPPORTED; /* the caller computes the product in another way */
  }
  if (bytes > cache->scratch_bytes) {
    for (int i = 0; i < cache->threads; ++i) {
      void *grown = tws_realloc(cache->scratch[i], bytes, 1);
      if (!grown) {
        dnnl_primitive_destroy(item->primitive);
        return tws_fail(err, TWS_MEMORY, NULL, "host backend: no memory for %zu bytes of scratch", bytes);
      }
      cache->scratch[i] = grown;
    }
    cache->scratch_bytes = bytes;
  }
  cache->count++;
  return TWS_OK;
}

static dnnl_exec_arg_t argument(int index, const dnnl_memory_desc_t *desc, dnnl_engine_t engine, const void *data) {
  dnnl_exec_arg_t arg = {.arg = index};
  if (dnnl_memory_create(&arg.memory, desc, engine, (void *)(uintptr_t)data) != dnnl_success) arg.memory = NULL;
  return arg;
}

int tws_host_bf16_multiply(tws_host_bf16_cache *cache, int thread, const tws_host_bf16_gemm *gemm, const void *a,
                           const void *b, void *c, const void *bias) {
  const prepared *item = find(cache, gemm);
  if (!item || !item->primitive) return -1;
  dnnl_exec_arg_t args[5];
  int count = 0, failed = 0;
  args[count++] = argument(DNNL_ARG_SRC, &item->a, cache->engine, a);
  args[count++] = argument(DNNL_ARG_WEIGHTS, &item->b, cache->engine, b);
  args[count++] = argument(DNNL_ARG_DST, &item->c, cache->engine, c);
  args[count++] = argument(DNNL_ARG_SCRATCHPAD, &item->scratch, cache->engine, cache->scratch[thread]);
  if (gemm->bias) args[count++] = argument(DNNL_ARG_BIAS, &item->bias, cache->engine, bias);
  for (int i = 0; i < count; ++i) failed |= !args[i].memory;
  if (!failed) failed = dnnl_primitive_execute(item->primitive, cache->stream[thread], count, args) != dnnl_success;
  if (!failed) failed = dnnl_stream_wait(cache->stream[thread]) != dnnl_success;
  for (int i = 0; i < count; ++i)
    if (args[i].memory) dnnl_memory_destroy(args[i].memory);
  return failed ? -1 : 0;
}

#else
/* The Fortran interface is used, because GSL's reference BLAS, which the program loads too, also defines the C
 * names. */
extern void sgemm_(const char *transpose_a, const char *transpose_b, const int *m, const int *n, const int *k,
                   const float *alpha, const float *a, const int *lda, const float *b, const int *ldb,
                   const float *beta, float *c, const int *ldc);
extern void openblas_set_num_threads(int threads);
extern char *openblas_get_corename(void);

/* OpenBLAS has one thread count for the whole process. */
static pthread_once_t single_thread = PTHREAD_ONCE_INIT;
static void use_single_thread(void) {
  openblas_set_num_threads(1);
}

void tws_host_gemm_thread_setup(void) {
  pthread_once(&single_thread, use_single_thread);
}
int tws_host_gemm_enter(void) {
  pthread_once(&single_thread, use_single_thread);
  return 0;
}
void tws_host_gemm_leave(int previous) {
  (void)previous;
}

void tws_host_sgemm(int transpose_a, int transpose_b, int64_t m, int64_t n, int64_t k, const float *a, int64_t lda,
                    const float *b, int64_t ldb, float beta, float *c, int64_t ldc) {
  /* Row-major C is column-major C^T = op(B)^T op(A)^T. */
  const int rows = (int)m, columns = (int)n, depth = (int)k, a_step = (int)lda, b_step = (int)ldb, c_step = (int)ldc;
  const float one = 1.0F;
  sgemm_(transpose_b ? "T" : "N", transpose_a ? "T" : "N", &columns, &rows, &depth, &one, b, &b_step, a, &a_step, &beta,
         c, &c_step);
}

const char *tws_host_gemm_library(char *buffer, int size) {
  snprintf(buffer, (size_t)size, "OpenBLAS (%s)", openblas_get_corename());
  return buffer;
}

int tws_host_bf16_native(void) {
  return 0;
}
tws_code tws_host_bf16_cache_create(int threads, tws_host_bf16_cache **out, tws_error *err) {
  (void)threads;
  *out = NULL;
  return tws_fail(err, TWS_UNSUPPORTED, NULL, "host backend: built without bfloat16 products");
}
void tws_host_bf16_cache_destroy(tws_host_bf16_cache *cache) {
  (void)cache;
}
tws_code tws_host_bf16_prepare(tws_host_bf16_cache *cache, const tws_host_bf16_gemm *gemm, tws_error *err) {
  (void)cache, (void)gemm, (void)err;
  return TWS_UNSUPPORTED;
}
int tws_host_bf16_multiply(tws_host_bf16_cache *cache, int thread, const tws_host_bf16_gemm *gemm, const void *a,
                           const void *b, void *c, const void *bias) {
  (void)cache, (void)thread, (void)gemm, (void)a, (void)b, (void)c, (void)bias;
  return -1;
}
#endif
