/* The host backend: arenas, checks of operands, and dispatch of kernels. */
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <stdlib.h>
#include <unistd.h>
#include <fcntl.h>
#include <sys/mman.h>

#include "base/json.h"
#include "base/memory.h"
#include "real/host/bind.h"
#include "real/host/host.h"
#include "real/host/internal.h"
#include "real/operands.h"

/* ---- instruction sets ---- */
#if defined(TWS_HOST_HAS_avx2) || defined(TWS_HOST_HAS_avx512)
static int have_avx2(void) {
  __builtin_cpu_init();
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
}
#endif
#ifdef TWS_HOST_HAS_avx512
static int have_avx512(void) {
  return have_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512cd");
}
#endif

/* Returns the kernels of this level, or of the best one for level 0, among those that the build has
 * (TWINSPEED_HOST_ISAS) and the processor supports; NULL if there are none. */
static const tws_host_kernels *find_kernels(int level) {
#ifdef TWS_HOST_HAS_avx512
  if ((level == 3 || level == 0) && have_avx512()) return &tws_host_kernels_avx512;
#endif
#ifdef TWS_HOST_HAS_avx2
  if ((level == 2 || level == 0) && have_avx2()) return &tws_host_kernels_avx2;
#endif
  return level <= 1 ? &tws_host_kernels_base : NULL;
}

/* ---- life ---- */
static void host_destroy(tws_backend *backend) {
  if (!backend) return;
  tws_host_pool_destroy(backend->pool);
  tws_host_bf16_cache_destroy(backend->bf16);
  for (size_t i = 0; i < backend->arena_count; ++i) munmap(backend->arenas[i].base, backend->arenas[i].bytes);
  tws_free(backend->arenas);
  tws_free(backend->convert);
  pthread_mutex_destroy(&backend->lock);
  tws_free(backend);
}

static tws_code host_create(int device, int threads, tws_backend **out, tws_error *err) {
  *out = NULL;
  if (threads == 0) threads = tws_host_available_processors();
  if (threads < 1 || threads > MAX_THREADS)
    return tws_fail(err, TWS_INVALID, NULL, "host backend: %d threads; 1 to %d are possible", threads, MAX_THREADS);
  const tws_host_kernels *kernels = device >= 0 && device <= 3 ? find_kernels(device) : NULL;
  if (!kernels)
    return tws_fail(err, TWS_UNSUPPORTED, "use device 0", "host backend: instruction set %d is not available", device);
  tws_backend *backend = tws_calloc(1, sizeof *backend);
  if (!backend) return tws_fail(err, TWS_MEMORY, NULL, "host backend: no memory");
  backend->threads = threads;
  backend->kernels = kernels;
  pthread_mutex_init(&backend->lock, NULL);
  tws_code code = tws_host_pool_create(threads, &backend->pool, err);
  if (code == TWS_OK && tws_host_bf16_native() && device != 1 && device != 2)
    code = tws_host_bf16_cache_create(threads, &backend->bf16, err);
  if (code != TWS_OK) {
    host_destroy(backend);
    return code;
  }
  *out = backend;
  return TWS_OK;
}

/* ---- memory ---- */

static tws_code host_allocate(tws_backend *backend, tws_tier tier, uint64_t bytes, void **base, tws_error *err) {
  *base = NULL;
  if (bytes == 0) bytes = 1;
  if (tws_reserve(&backend->arenas, &backend->arena_capacity, backend->arena_count + 1, sizeof *backend->arenas) != 0)
    return tws_fail(err, TWS_MEMORY, NULL, "host backend: no memory");
  void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED)
    return tws_fail(err, TWS_MEMORY, "use a smaller micro batch, recomputation, a higher ZeRO stage or more ranks",
                    "cannot allocate the %s arena of %.3f GiB", tws_tier_name(tier), (double)bytes / 1073741824.0);
  madvise(memory, bytes, MADV_HUGEPAGE); /* only an optimization: a failure is ignored */
  backend->arenas[backend->arena_count++] = (tws_host_arena){memory, bytes};
  *base = memory;
  return TWS_OK;
}

static void host_release(tws_backend *backend, tws_tier tier, void *base) {
  (void)tier;
  for (size_t i = 0; i < backend->arena_count; ++i)
    if (backend->arenas[i].base == base) {
      munmap(base, backend->arenas[i].bytes);
      backend->arenas[i] = backend->arenas[--backend->arena_count];
      return;
    }
}

/* ---- work ---- */
static tws_code host_run(tws_backend *backend, const tws_work *work, const tws_arguments *arguments,
                         void *const *operand, const tws_dtype *dtype, int operand_count, tws_stream stream,
                         tws_error *err) {
  (void)stream;
  TWS_TRY(tws_check_operands(work, operand, dtype, operand_count, "the host", err));
  const tws_host_call call = {.backend = backend,
                              .work = work,
                              .argument = (arguments ? arguments : &tws_no_arguments)->a,
                              .operand = operand,
                              .dtype = dtype,
                              .count = operand_count};
  pthread_mutex_lock(&backend->lock);
  const int library_threads = tws_host_gemm_enter();
  tws_code code = backend->kernels->function[work->code](&call, err);
  tws_host_gemm_leave(library_threads);
  pthread_mutex_unlock(&backend->lock);
  if (code != TWS_OK) return tws_fail_in(err, code, "%s", tws_kernel_name((tws_kernel)work->code));
  return TWS_OK;
}

typedef struct copy_job {
  char *to;
  const char *from;
  uint64_t bytes;
} copy_job;

static void copy_task(void *arg, int thread, int threads) {
  const copy_job *job = arg;
  const uint64_t pages = (job->bytes + 4095) / 4096;
  uint64_t begin = pages * (uint64_t)thread / (uint64_t)threads * 4096;
  uint64_t end = pages * ((uint64_t)thread + 1) / (uint64_t)threads * 4096;
  if (end > job->bytes) end = job->bytes;
  if (begin < end) memcpy(job->to + begin, job->from + begin, end - begin);
}

static tws_code host_copy(tws_backend *backend, void *to, const void *from, uint64_t bytes, tws_stream stream,
                          tws_error *err) {
  (void)stream, (void)err;
  const char *a = to, *b = from;
  if (bytes < 256 << 10 || (a < b + bytes && b < a + bytes)) {
    memmove(to, from, bytes);
    return TWS_OK;
  }
  copy_job job = {to, from, bytes};
  pthread_mutex_lock(&backend->lock);
  tws_host_pool_run(backend->pool, copy_task, &job);
  pthread_mutex_unlock(&backend->lock);
  return TWS_OK;
}

static tws_code host_synchronize(tws_backend *backend, tws_error *err) {
  (void)backend, (void)err; /* run() and copy() have completed their work when they return */
  return TWS_OK;
}

const tws_backend_ops *tws_host_backend(void) {
  static const tws_backend_ops ops = {.name = "host",
                                      .create = host_create,
                                      .destroy = host_destroy,
                                      .allocate = host_allocate,
                                      .release = host_release,
                                      .run = host_run,
                                      .copy = host_copy,
                                      .synchronize = host_synchronize,
                                      .supports = tws_operands_supported};
  return &ops;
}

const char *tws_host_describe(const tws_backend *backend, char *buffer, int size) {
  char library[128], binding[32];
  tws_host_gemm_library(library, sizeof library);
  if (*tws_bind_library(binding, sizeof binding))
    snprintf(library + strlen(library), sizeof library - strlen(library), ", %s", binding);
  const char *kernels = backend ? backend->kernels->name : find_kernels(0)->name;
  if (backend)
    snprintf(buffer, (size_t)size, "%s, %d thread%s, %s", kernels, backend->threads, backend->threads == 1 ? "" : "s",
             library);
  else
    snprintf(buffer, (size_t)size, "%s, %s", kernels, library);
  return buffer;
}
