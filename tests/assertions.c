/* Counts the assertions of a suite that hold, and the places of the source that they are at, in all processes that its
 * cases run in, and prints both at the end. Check's macros call _mark_point() for each assertion; the linker's
 * --wrap=_mark_point leads the calls here. tests/run.sh adds up the numbers of a run.
 *
 * _mark_point() sends the place to the process that waits for the case, so that it can name the last one before a
 * crash: an assertion in a loop that is still at the same place need not send it again. */
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/mman.h>
#include <unistd.h>

void __real__mark_point(const char *file, int line);
void __wrap__mark_point(const char *file, int line);

enum { PLACES = 8192 };
typedef struct counts { /* in memory that all processes of the suite share */
  _Atomic unsigned long long held;
  _Atomic unsigned places;
  _Atomic uint64_t place[PLACES]; /* a hash table; 0: free */
} counts;
static counts *counted;
static pid_t suite;
static _Atomic uint64_t last; /* the place that this process last reported to Check */

static void forget_last(void) {
  atomic_store(&last, 0);
}

__attribute__((constructor)) static void begin(void) {
  void *memory = mmap(NULL, sizeof *counted, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (memory != MAP_FAILED) counted = memory;
  suite = getpid();
  pthread_atfork(NULL, NULL, forget_last);
}

__attribute__((destructor)) static void end(void) {
  if (counted && getpid() == suite)
    printf("assertions: %llu at %u places\n", atomic_load(&counted->held), atomic_load(&counted->places));
}

static void count_place(uint64_t place) {
  const uint64_t from = place * 0x9e3779b97f4a7c15u >> 51; /* 13 bits */
  for (uint64_t i = 0; i < PLACES; i++) {
    uint64_t there = 0;
    _Atomic uint64_t *entry = &counted->place[(from + i) % PLACES];
    if (atomic_load_explicit(entry, memory_order_relaxed) == place) return;
    if (atomic_compare_exchange_strong(entry, &there, place)) {
      atomic_fetch_add(&counted->places, 1);
      return;
    }
    if (there == place) return;
  }
}

void __wrap__mark_point(const char *file, int line) {
  const uint64_t place = (uint64_t)(uintptr_t)file << 16 ^ (uint64_t)line;
  if (counted) {
    atomic_fetch_add_explicit(&counted->held, 1, memory_order_relaxed);
    if (atomic_load_explicit(&last, memory_order_relaxed) == place) return;
    count_place(place);
    atomic_store_explicit(&last, place, memory_order_relaxed);
  }
  __real__mark_point(file, line);
}
