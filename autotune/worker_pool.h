/* Runs worker processes that divide work on one machine. Workers are forked, so that they have the search's data, and
 * write their results into shared memory. Workers exit when their parent exits. Internal to autotune/. */
#ifndef TWS_AUTOTUNE_WORKER_POOL_H
#define TWS_AUTOTUNE_WORKER_POOL_H

#include <sys/types.h>

#include "base/status.h"

enum { TWS_WORKER_POOL_MOST = 64 };

/* Returns `wanted`, or one worker per core of this machine if `wanted` is 0. */
int tws_worker_pool_size(int wanted);

/* Allocates zeroed memory that forked processes share; untouched pages use no memory. NULL: the allocation failed. */
void *tws_worker_pool_memory(size_t bytes);
void tws_worker_pool_memory_free(void *memory, size_t bytes);

typedef struct tws_worker_pool {
  pid_t pids[TWS_WORKER_POOL_MOST];
  int count;
} tws_worker_pool;
/* Starts `count` worker processes; process number `index` runs body(user, index). */
tws_code tws_worker_pool_start(tws_worker_pool *crew, int count, void (*body)(void *user, int index), void *user,
                               tws_error *err);
int tws_worker_pool_running(const tws_worker_pool *crew); /* returns the number of workers that are still running */
/* Waits for all workers; if `stop` is set, terminates them first. Adds their CPU seconds to *cpu_s. Fails with
 * TWS_ENVIRONMENT if a worker exited before its work was done, unless it was stopped. */
tws_code tws_worker_pool_join(tws_worker_pool *crew, int stop, double *cpu_s, tws_error *err);

/* A list of items that idle workers take in order. Results are read in the order of the list, so that they do not
 * depend on which worker computed them. */
typedef struct tws_worker_pool_list {
  int items;
  size_t answer_bytes;
  /* computes the answer of an item, in a worker; *answer is zeroed before the call */
  tws_code (*work)(void *user, int item, void *answer, tws_error *err);
  /* Receives the answers in the caller's process; sets *stop to 1 if no further item is needed. */
  tws_code (*read)(void *user, int item, const void *answer, int *stop, tws_error *err);
  void *user;
  int large; /* items need much memory: a worker returns it to the system after each item */
} tws_worker_pool_list;
/* Processes the items of the list. With one worker or one item everything runs in the caller's process. Adds the CPU
 * seconds of all processes to *cpu_s. */
tws_code tws_worker_pool_process(const tws_worker_pool_list *list, int workers, double *cpu_s, tws_error *err);

#endif
