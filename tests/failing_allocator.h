/* An allocator that fails at a chosen call and counts what is still held: SQLite's and curl's way of testing that every
 * allocation may fail. */
#ifndef TWS_TESTS_FAILING_ALLOCATOR_H
#define TWS_TESTS_FAILING_ALLOCATOR_H

#include <stdlib.h>
#include "base/memory.h"
#include "base/status.h"

typedef struct failing_allocator {
  long countdown; /* number of further allocations that succeed; below 0: all do */
  long calls, held;
} failing_allocator;

static void *failing_resize(void *user, void *pointer, size_t bytes) {
  failing_allocator *f = user;
  if (!bytes) {
    if (pointer) f->held--;
    free(pointer);
    return NULL;
  }
  f->calls++;
  if (f->countdown == 0) return NULL;
  if (f->countdown > 0) f->countdown--;
  void *fresh = realloc(pointer, bytes);
  if (fresh && !pointer) f->held++;
  return fresh;
}

/* Runs body(user) with the n-th allocation failing, for n = 0, 1, ... until no allocation fails. The body returns a
 * code and frees all that it allocated. Returns the number of failures that were tried; *bad receives how many runs
 * leaked or failed with another code than TWS_MEMORY. Once allocation n has failed, all later ones fail as well. */
static inline long fail_every_allocation(tws_code (*body)(void *user), void *user, long *bad) {
  long tried = 0;
  *bad = 0;
  for (long n = 0;; n++) {
    failing_allocator f = {.countdown = n};
    tws_set_allocator(&(tws_allocator){failing_resize, &f});
    tws_code code = body(user);
    tws_set_allocator(NULL);
    if (f.held != 0) (*bad)++;
    if (code == TWS_OK) return tried;
    if (code != TWS_MEMORY) (*bad)++;
    tried++;
  }
}

#endif
