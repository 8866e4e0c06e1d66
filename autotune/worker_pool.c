#include "autotune/worker_pool.h"

#include <signal.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/memory.h"
#ifdef __GLIBC__
#include <malloc.h>
#endif

int tws_worker_pool_size(int wanted) {
  const long cores = wanted > 0 ? wanted : sysconf(_SC_NPROCESSORS_ONLN);
  return cores < 1 ? 1 : cores < TWS_WORKER_POOL_MOST ? (int)cores : TWS_WORKER_POOL_MOST;
}

void *tws_worker_pool_memory(size_t bytes) {
  void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  return memory == MAP_FAILED ? NULL : memory;
}

void tws_worker_pool_memory_free(void *memory, size_t bytes) {
  if (memory) munmap(memory, bytes);
}

/* ---- processes ---- */

static double seconds_of(const struct rusage *use) {
  return (double)(use->ru_utime.tv_sec + use->ru_stime.tv_sec) +
         1e-6 * (double)(use->ru_utime.tv_usec + use->ru_stime.tv_usec);
}

tws_code tws_worker_pool_start(tws_worker_pool *crew, int count, void (*body)(void *user, int index), void *user,
                               tws_error *err) {
  const pid_t parent = getpid();
  for (crew->count = 0; crew->count < count; crew->count++) {
    const pid_t pid = fork();
    if (pid < 0) {
      tws_worker_pool_join(crew, 1, NULL, NULL);
      return tws_fail(err, TWS_ENVIRONMENT, "use fewer --workers",
                      "the process of worker %d of the search could not be started", crew->count);
    }
    if (pid == 0) {
      signal(SIGINT, SIG_DFL);
      signal(SIGTERM, SIG_DFL);
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      if (getppid() == parent) body(user, crew->count);
      _exit(0);
    }
    crew->pids[crew->count] = pid;
  }
  return TWS_OK;
}

int tws_worker_pool_running(const tws_worker_pool *crew) {
  int left = 0;
  for (int i = 0; i < crew->count; i++) {
    siginfo_t info = {0};
    left += waitid(P_PID, (id_t)crew->pids[i], &info, WEXITED | WNOHANG | WNOWAIT) == 0 && info.si_pid == 0;
  }
  return left;
}

tws_code tws_worker_pool_join(tws_worker_pool *crew, int stop, double *cpu_s, tws_error *err) {
  tws_code code = TWS_OK;
  for (int i = 0; i < crew->count && stop; i++) kill(crew->pids[i], SIGKILL);
  for (int i = 0; i < crew->count; i++) {
    struct rusage use = {0};
    int status = 0;
    wait4(crew->pids[i], &status, 0, &use);
    if (cpu_s) *cpu_s += seconds_of(&use);
    if (code == TWS_OK && !stop && (!WIFEXITED(status) || WEXITSTATUS(status)))
      code = tws_fail(err, TWS_ENVIRONMENT, NULL, "worker %d of the search exited before its work was done", i);
  }
  crew->count = 0;
  return code;
}

/* ---- a list ---- */

typedef struct slot { /* header of an item's slot, which the bytes of the item's answer follow in memory */
  _Alignas(16) atomic_int done;
  tws_code code;
  tws_error err;
} slot;

typedef struct shared {
  atomic_int next;
  const tws_worker_pool_list *list;
  size_t slot_bytes;
  char *slots;
} shared;

static slot *slot_of(const shared *s, int item) {
  return (slot *)(void *)(s->slots + (size_t)item * s->slot_bytes);
}

/* Returns freed memory to the system, so that the workers do not all retain the largest amount that any item needed. */
static void give_back(void) {
#ifdef __GLIBC__
  malloc_trim(0);
#endif
}

static void take_items(void *user, int index) {
  shared *s = user;
  (void)index;
  for (int item; (item = atomic_fetch_add(&s->next, 1)) < s->list->items;) {
    slot *own = slot_of(s, item);
    own->code = s->list->work(s->list->user, item, own + 1, &own->err);
    atomic_store(&own->done, 1);
    if (s->list->large) give_back();
    if (own->code != TWS_OK) break;
  }
}

static tws_code read_answers(shared *s, const tws_worker_pool *crew, int *stop, tws_error *err) {
  for (int item = 0; item < s->list->items && !*stop; item++) {
    slot *own = slot_of(s, item);
    while (!atomic_load(&own->done)) {
      const int left = tws_worker_pool_running(crew);
      if (!left && !atomic_load(&own->done))
        return tws_fail(err, TWS_ENVIRONMENT, NULL, "the workers of the search exited before their work was done");
      if (left) usleep(2000);
    }
    if (own->code != TWS_OK) {
      if (err) *err = own->err;
      return own->code;
    }
    TWS_TRY(s->list->read(s->list->user, item, own + 1, stop, err));
  }
  return TWS_OK;
}

static tws_code do_alone(const tws_worker_pool_list *list, double *cpu_s, tws_error *err) {
  const clock_t started = clock();
  void *answer = tws_calloc(1, list->answer_bytes);
  tws_code code = answer ? TWS_OK : tws_fail(err, TWS_MEMORY, NULL, "no memory for an answer of the search");
  int stop = 0;
  for (int item = 0; item < list->items && code == TWS_OK && !stop; item++) {
    memset(answer, 0, list->answer_bytes);
    code = list->work(list->user, item, answer, err);
    if (code == TWS_OK) code = list->read(list->user, item, answer, &stop, err);
  }
  tws_free(answer);
  *cpu_s += (double)(clock() - started) / CLOCKS_PER_SEC;
  return code;
}

tws_code tws_worker_pool_process(const tws_worker_pool_list *list, int workers, double *cpu_s, tws_error *err) {
  if (workers > list->items) workers = list->items;
  if (workers < 2) return do_alone(list, cpu_s, err);
  const size_t slot_bytes = (sizeof(slot) + list->answer_bytes + 15) / 16 * 16, head = (sizeof(shared) + 15) / 16 * 16;
  const size_t bytes = head + slot_bytes * (size_t)list->items;
  shared *s = tws_worker_pool_memory(bytes);
  if (!s) return tws_fail(err, TWS_MEMORY, NULL, "no memory for the answers of the search");
  s->list = list;
  s->slot_bytes = slot_bytes;
  s->slots = (char *)s + head;
  tws_worker_pool crew;
  int stop = 0;
  tws_code code = tws_worker_pool_start(&crew, workers, take_items, s, err);
  if (code == TWS_OK) {
    code = read_answers(s, &crew, &stop, err);
    const tws_code end = tws_worker_pool_join(&crew, stop || code != TWS_OK, cpu_s, err);
    if (code == TWS_OK) code = end;
  }
  tws_worker_pool_memory_free(s, bytes);
  return code;
}
