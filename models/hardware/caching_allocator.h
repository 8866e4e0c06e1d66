/* Simulates a caching allocator of device memory: which blocks it hands out, and which memory it holds for them. */
#ifndef TWS_MODELS_CACHING_ALLOCATOR_H
#define TWS_MODELS_CACHING_ALLOCATOR_H

#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

/* The allocator of a runtime's device memory. */
typedef enum tws_allocator_kind {
  TWS_ALLOCATOR_SEGMENTS,   /* PyTorch's default: memory comes from CUDA in segments, which blocks are cut from */
  TWS_ALLOCATOR_EXPANDABLE, /* PyTorch with expandable_segments:True: one address range to which pages are mapped */
  TWS_ALLOCATOR_AHEAD       /* buffers have the addresses that a plan gives them, so no allocator runs */
} tws_allocator_kind;

/* Bytes that the allocator counts. */
typedef struct tws_allocator_use {
  uint64_t allocated; /* bytes of blocks in use, rounded as the allocator rounds them (memory_allocated()) */
  uint64_t reserved;  /* bytes that it has from CUDA (memory_reserved()) */
  uint64_t idle;      /* bytes of `reserved` that it can return to CUDA: free segments, or whole free pages */
  uint64_t returned;  /* bytes that it has returned so far; 0: no memory was ever short */
  /* the largest values so far of allocated, of reserved, and of reserved - idle: the memory that it could not do
   * without, since it returns what is idle before an allocation fails */
  uint64_t most_allocated, most_reserved, most_held;
} tws_allocator_use;

typedef struct tws_caching_allocator tws_caching_allocator;

/* Returns an allocator without memory; NULL: no host memory. The caller destroys it. `kind` is SEGMENTS or EXPANDABLE.
 * short_of_memory: 1: the device has no memory left whenever the allocator needs more, so that free segments are
 * returned first; 0: the device never runs out of memory. */
tws_caching_allocator *tws_caching_allocator_create(tws_allocator_kind kind, int short_of_memory);
void tws_caching_allocator_destroy(tws_caching_allocator *allocator);
/* Allocates a block of at least `bytes` bytes and writes its number, which stays valid until the block is freed. */
tws_code tws_caching_allocator_allocate(tws_caching_allocator *allocator, uint64_t bytes, uint32_t *block,
                                        tws_error *err);
/* Frees a block; the allocator keeps its memory for later blocks. */
tws_code tws_caching_allocator_free(tws_caching_allocator *allocator, uint32_t block, tws_error *err);
tws_allocator_use tws_caching_allocator_use(const tws_caching_allocator *allocator);

#endif
