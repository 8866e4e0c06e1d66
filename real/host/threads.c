/* A pool of threads for data-parallel loops. Between loops the workers spin for a few microseconds, since kernels
 * follow each other closely, and then sleep on a futex, so that ranks that share cores do not starve each other. */
#include <linux/futex.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/memory.h"
#include "real/host/host.h"
#include "real/host/internal.h"

enum { SPINS = 2000 };

struct tws_host_pool {
  int threads, started, spins;
  pthread_t *worker;
  tws_host_task task;
  void *arg;
  _Alignas(64) _Atomic uint32_t generation; /* counts loops; workers wait for it to change */
  _Atomic int sleepers;                     /* workers in futex_wait, or about to enter it */
  _Alignas(64) _Atomic uint32_t remaining;  /* workers that have not finished the loop */
  _Atomic int caller_sleeps;
  _Atomic int stop;
};

typedef struct worker_start {
  tws_host_pool *pool;
  int index;
} worker_start;

static void relax_processor(void) {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#endif
}

static void futex_wait(_Atomic uint32_t *word, uint32_t while_equal) {
  syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, while_equal, NULL, NULL, 0);
}

static void futex_wake(_Atomic uint32_t *word, int count) {
  syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, count, NULL, NULL, 0);
}

int tws_host_available_processors(void) {
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof set, &set) == 0) {
    int count = CPU_COUNT(&set);
    if (count > 0) return count;
  }
  long online = sysconf(_SC_NPROCESSORS_ONLN);
  return online > 0 ? (int)online : 1;
}

static uint32_t await_generation(tws_host_pool *pool, uint32_t seen) {
  for (int i = 0; i < pool->spins; ++i) {
    uint32_t now = atomic_load_explicit(&pool->generation, memory_order_acquire);
    if (now != seen) return now;
    relax_processor();
  }
  for (;;) {
    /* The increment comes before the kernel compares the word, and run() changes the word before it looks for
     * sleepers: either it sees us, or we see the change. */
    atomic_fetch_add(&pool->sleepers, 1);
    futex_wait(&pool->generation, seen);
    atomic_fetch_sub(&pool->sleepers, 1);
    uint32_t now = atomic_load(&pool->generation);
    if (now != seen) return now;
  }
}

static void *worker_main(void *start) {
  worker_start my = *(worker_start *)start;
  tws_free(start);
  tws_host_pool *pool = my.pool;
  tws_host_gemm_thread_setup();
  uint32_t seen = 0;
  for (;;) {
    seen = await_generation(pool, seen);
    if (atomic_load(&pool->stop)) return NULL;
    pool->task(pool->arg, my.index, pool->threads);
    if (atomic_fetch_sub(&pool->remaining, 1) == 1 && atomic_load(&pool->caller_sleeps))
      futex_wake(&pool->remaining, 1);
  }
}

void tws_host_pool_run(tws_host_pool *pool, tws_host_task task, void *arg) {
  if (pool->threads == 1) {
    task(arg, 0, 1);
    return;
  }
  pool->task = task;
  pool->arg = arg;
  atomic_store(&pool->remaining, (uint32_t)pool->threads - 1);
  atomic_fetch_add(&pool->generation, 1);
  if (atomic_load(&pool->sleepers) > 0) futex_wake(&pool->generation, pool->threads);
  task(arg, 0, pool->threads);
  for (int i = 0; i < pool->spins; ++i) {
    if (atomic_load_explicit(&pool->remaining, memory_order_acquire) == 0) return;
    relax_processor();
  }
  atomic_store(&pool->caller_sleeps, 1);
  for (uint32_t left; (left = atomic_load(&pool->remaining)) != 0;) futex_wait(&pool->remaining, left);
  atomic_store(&pool->caller_sleeps, 0);
}

tws_code tws_host_pool_create(int threads, tws_host_pool **out, tws_error *err) {
  *out = NULL;
  tws_host_pool *pool = aligned_alloc(64, (sizeof *pool + 63) / 64 * 64);
  if (!pool) return tws_fail(err, TWS_MEMORY, NULL, "host backend: no memory for a pool of %d threads", threads);
  *pool = (tws_host_pool){.threads = threads};
  /* Spinning only helps when every thread has a processor of its own. */
  pool->spins = threads <= tws_host_available_processors() ? SPINS : 0;
  pool->worker = tws_calloc((size_t)threads, sizeof *pool->worker);
  tws_code code = pool->worker ? TWS_OK : TWS_MEMORY;
  for (int i = 1; i < threads && code == TWS_OK; ++i) {
    worker_start *start = tws_calloc(1, sizeof *start);
    if (!start) {
      code = TWS_MEMORY;
      break;
    }
    *start = (worker_start){pool, i};
    if (pthread_create(&pool->worker[i], NULL, worker_main, start) != 0) {
      tws_free(start);
      code = TWS_ENVIRONMENT;
      break;
    }
    pool->started = i;
  }
  if (code != TWS_OK) {
    int started = pool->started;
    tws_host_pool_destroy(pool);
    return tws_fail(err, code, "use fewer threads", "host backend: could start only %d of %d threads", started + 1,
                    threads);
  }
  *out = pool;
  return TWS_OK;
}

void tws_host_pool_destroy(tws_host_pool *pool) {
  if (!pool) return;
  atomic_store(&pool->stop, 1);
  atomic_fetch_add(&pool->generation, 1);
  futex_wake(&pool->generation, pool->threads);
  for (int i = 1; i <= pool->started; ++i) pthread_join(pool->worker[i], NULL);
  tws_free(pool->worker);
  free(pool);
}
