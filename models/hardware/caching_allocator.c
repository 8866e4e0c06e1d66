/* PyTorch's caching allocator (c10/cuda/CUDACachingAllocator.cpp and AllocatorConfig.h, 2.1 to 2.15), for one stream:
 *
 *   - Requests are rounded up to 512 bytes. Requests of at most 1 MiB are served by the small pool, others by the large
 *     one.
 *   - A request takes the smallest free block of its pool that is large enough, of equal blocks the one with the lowest
 *     address. The rest of the block becomes a free block of its own if it has at least 512 bytes, in the large pool of
 *     fixed segments if it has more than 1 MiB; otherwise the block is handed out whole.
 *   - Without such a block the allocator asks CUDA for a segment: 2 MiB for the small pool, 20 MiB for requests below
 *     10 MiB, otherwise the request rounded up to 2 MiB.
 *   - A freed block is joined with adjacent free blocks of its segment and stays reserved.
 *   - If CUDA has no memory left, segments that are free as a whole are returned to it, and the request is tried again.
 *     Segments with one block in use are not returned: their free blocks are the fragmentation at a failure.
 *   - With expandable segments a pool has one address range, to whose end pages of 2 MiB (small pool) or 20 MiB are
 *     mapped. A free block at the end is extended by what a request lacks, and is the last choice for a request that
 *     another block could serve. Whole free pages are returned to CUDA before an allocation fails.
 *
 * Each block is linked with the two adjacent blocks of its segment. The free blocks of a pool are an array that is
 * sorted by size and address, so that a request finds its block by bisection. */
#include "models/hardware/caching_allocator.h"

#include <string.h>

#include "base/memory.h"

#define MIB 1048576u
enum { SMALL, LARGE, POOLS };
static const uint64_t ROUNDING = 512, SMALL_MOST = MIB, SMALL_SEGMENT = 2 * MIB, LARGE_SEGMENT = 20 * MIB;
static const uint64_t OWN_SEGMENT_FROM = 10 * MIB, SEGMENT_ROUNDING = 2 * MIB;
static const uint32_t NO_BLOCK = UINT32_MAX;

typedef struct block {
  uint64_t offset, bytes; /* offset: bytes from the start of the segment */
  uint32_t segment;
  uint32_t is_free; /* 1: it is in the list of free blocks of its pool */
  /* numbers of the adjacent blocks of the segment; of a number that is not in use: after is the next such number */
  uint32_t before, after;
} block;

typedef struct segment {
  uint64_t bytes;
  int pool;
} segment;

typedef struct pool {
  uint32_t *free; /* free blocks in ascending order of size and address */
  size_t count, capacity;
  uint32_t range, last; /* expandable: the segment of the pool, and its last block; NO_BLOCK: there is none yet */
} pool;

struct tws_caching_allocator {
  int expandable, short_of_memory;
  block *blocks;
  segment *segments;
  size_t block_count, block_capacity, segment_count, segment_capacity;
  uint32_t unused; /* first of the block numbers that are not in use; NO_BLOCK: all are */
  pool pools[POOLS];
  tws_allocator_use use;
};

static uint64_t rounded(uint64_t bytes, uint64_t unit) {
  return (bytes + unit - 1) / unit * unit;
}

tws_caching_allocator *tws_caching_allocator_create(tws_allocator_kind kind, int short_of_memory) {
  tws_caching_allocator *a = tws_calloc(1, sizeof *a);
  if (!a) return NULL;
  a->expandable = kind == TWS_ALLOCATOR_EXPANDABLE;
  a->short_of_memory = short_of_memory;
  a->unused = NO_BLOCK;
  for (int p = 0; p < POOLS; p++) a->pools[p].range = a->pools[p].last = NO_BLOCK;
  return a;
}

void tws_caching_allocator_destroy(tws_caching_allocator *a) {
  if (!a) return;
  for (int p = 0; p < POOLS; p++) tws_free(a->pools[p].free);
  tws_free(a->blocks);
  tws_free(a->segments);
  tws_free(a);
}

/* Returns the array with room for one more element of `size` bytes; NULL: no host memory. A full array doubles. */
static void *grown(void *array, size_t *capacity, size_t count, size_t size) {
  if (count < *capacity) return array;
  const size_t wanted = *capacity ? 2 * *capacity : 256;
  void *larger = tws_realloc(array, wanted, size);
  if (larger) *capacity = wanted;
  return larger;
}

/* Returns the number of a new block between these adjacent blocks and links them to it; NO_BLOCK: no host memory. */
static uint32_t add_block(tws_caching_allocator *a, block b) {
  uint32_t at = a->unused;
  if (at != NO_BLOCK) {
    a->unused = a->blocks[at].after;
  } else {
    block *blocks = grown(a->blocks, &a->block_capacity, a->block_count, sizeof *blocks);
    if (!blocks) return NO_BLOCK;
    a->blocks = blocks;
    at = (uint32_t)a->block_count++;
  }
  a->blocks[at] = b;
  if (b.before != NO_BLOCK) a->blocks[b.before].after = at;
  if (b.after != NO_BLOCK) a->blocks[b.after].before = at;
  return at;
}

/* ---- free blocks ---- */

static int precedes(const tws_caching_allocator *a, uint32_t x, uint32_t y) {
  const block *p = &a->blocks[x], *q = &a->blocks[y];
  if (p->bytes != q->bytes) return p->bytes < q->bytes;
  return p->segment != q->segment ? p->segment < q->segment : p->offset < q->offset;
}

/* Returns the position of a free block in its pool, or the one that it would have. */
static size_t position_of(const tws_caching_allocator *a, const pool *p, uint32_t at) {
  size_t low = 0, high = p->count;
  while (low < high) {
    const size_t middle = low + (high - low) / 2;
    if (precedes(a, p->free[middle], at))
      low = middle + 1;
    else
      high = middle;
  }
  return low;
}

/* Returns the bytes of a free block that can be returned to CUDA. */
static uint64_t idle_bytes(const tws_caching_allocator *a, const block *b) {
  const segment *s = &a->segments[b->segment];
  if (!a->expandable) return b->bytes == s->bytes ? b->bytes : 0;
  const uint64_t page = s->pool == SMALL ? SMALL_SEGMENT : LARGE_SEGMENT;
  const uint64_t first = rounded(b->offset, page), end = (b->offset + b->bytes) / page * page;
  return end > first ? end - first : 0;
}

static int insert_free(tws_caching_allocator *a, uint32_t at) {
  pool *p = &a->pools[a->segments[a->blocks[at].segment].pool];
  uint32_t *free_blocks = grown(p->free, &p->capacity, p->count, sizeof *free_blocks);
  if (!free_blocks) return 0;
  p->free = free_blocks;
  const size_t position = position_of(a, p, at);
  memmove(p->free + position + 1, p->free + position, (p->count - position) * sizeof *p->free);
  p->free[position] = at;
  p->count++;
  a->blocks[at].is_free = 1;
  a->use.idle += idle_bytes(a, &a->blocks[at]);
  return 1;
}

static void remove_free(tws_caching_allocator *a, uint32_t at) {
  pool *p = &a->pools[a->segments[a->blocks[at].segment].pool];
  const size_t position = position_of(a, p, at);
  memmove(p->free + position, p->free + position + 1, (p->count - position - 1) * sizeof *p->free);
  p->count--;
  a->blocks[at].is_free = 0;
  a->use.idle -= idle_bytes(a, &a->blocks[at]);
}

static int is_free(const tws_caching_allocator *a, uint32_t at) {
  return at != NO_BLOCK && a->blocks[at].is_free;
}

/* Returns the smallest free block of at least `bytes` bytes; NO_BLOCK: there is none. */
static uint32_t best_fit(const tws_caching_allocator *a, const pool *p, uint64_t bytes) {
  size_t low = 0, high = p->count;
  while (low < high) {
    const size_t middle = low + (high - low) / 2;
    if (a->blocks[p->free[middle]].bytes < bytes)
      low = middle + 1;
    else
      high = middle;
  }
  /* the end of the range is the last choice */
  if (a->expandable && low + 1 < p->count && p->free[low] == p->last) low++;
  return low < p->count ? p->free[low] : NO_BLOCK;
}

/* ---- memory from CUDA ---- */

/* Returns a new free block for a request, in a segment of its own. */
static uint32_t add_segment(tws_caching_allocator *a, int pool_index, uint64_t bytes) {
  segment *segments = grown(a->segments, &a->segment_capacity, a->segment_count, sizeof *segments);
  if (!segments) return NO_BLOCK;
  a->segments = segments;
  const uint32_t index = (uint32_t)a->segment_count++;
  a->segments[index] = (segment){.bytes = bytes, .pool = pool_index};
  a->use.reserved += bytes;
  return add_block(a, (block){.bytes = bytes, .segment = index, .before = NO_BLOCK, .after = NO_BLOCK});
}

/* Returns a free block at the end of the pool's address range, which is extended by whole pages; the block is in no
 * list of free blocks. */
static uint32_t extend_range(tws_caching_allocator *a, int pool_index, uint64_t bytes) {
  const uint64_t page = pool_index == SMALL ? SMALL_SEGMENT : LARGE_SEGMENT;
  pool *p = &a->pools[pool_index];
  if (p->range == NO_BLOCK) {
    const uint32_t first = add_segment(a, pool_index, rounded(bytes, page));
    if (first != NO_BLOCK) p->range = a->blocks[first].segment;
    return p->last = first;
  }
  segment *s = &a->segments[p->range];
  const int joins = is_free(a, p->last);
  const uint64_t lacks = joins ? bytes - a->blocks[p->last].bytes : bytes, more = rounded(lacks, page);
  if (joins) {
    remove_free(a, p->last);
    a->blocks[p->last].bytes += more;
  } else {
    const uint32_t at = add_block(
        a, (block){.offset = s->bytes, .bytes = more, .segment = p->range, .before = p->last, .after = NO_BLOCK});
    if (at == NO_BLOCK) return NO_BLOCK;
    p->last = at;
  }
  s->bytes += more;
  a->use.reserved += more;
  return p->last;
}

/* Returns all segments that are free as a whole to CUDA. */
static void return_segments(tws_caching_allocator *a) {
  for (int i = 0; i < POOLS; i++) {
    pool *p = &a->pools[i];
    size_t kept = 0;
    for (size_t f = 0; f < p->count; f++) {
      block *b = &a->blocks[p->free[f]];
      const uint64_t idle = idle_bytes(a, b);
      if (idle == 0) {
        p->free[kept++] = p->free[f];
        continue;
      }
      a->use.idle -= idle;
      a->use.reserved -= idle;
      a->use.returned += idle;
      b->is_free = 0;
      b->after = a->unused;
      a->unused = p->free[f];
    }
    p->count = kept;
  }
}

static uint32_t new_block(tws_caching_allocator *a, int pool_index, uint64_t bytes) {
  if (a->expandable) return extend_range(a, pool_index, bytes);
  if (a->short_of_memory) return_segments(a);
  const uint64_t own = bytes < OWN_SEGMENT_FROM ? LARGE_SEGMENT : rounded(bytes, SEGMENT_ROUNDING);
  return add_segment(a, pool_index, pool_index == SMALL ? SMALL_SEGMENT : own);
}

/* ---- requests ---- */

/* Makes what a request leaves of a block a free block. */
static int split(tws_caching_allocator *a, uint32_t at, uint64_t bytes) {
  const block b = a->blocks[at];
  pool *p = &a->pools[a->segments[b.segment].pool];
  const uint64_t rest = b.bytes - bytes;
  const int cuts_fine = a->expandable || p == &a->pools[SMALL];
  if (cuts_fine ? rest < ROUNDING : rest <= SMALL_MOST) return 1;
  const uint32_t left = add_block(a, (block){.offset = b.offset + bytes,
                                             .bytes = rest,
                                             .segment = b.segment,
                                             .before = at,
                                             .after = b.after});
  if (left == NO_BLOCK) return 0;
  a->blocks[at].bytes = bytes;
  if (p->last == at) p->last = left;
  return insert_free(a, left);
}

static void keep_most(tws_allocator_use *use) {
  if (use->allocated > use->most_allocated) use->most_allocated = use->allocated;
  if (use->reserved > use->most_reserved) use->most_reserved = use->reserved;
  if (use->reserved - use->idle > use->most_held) use->most_held = use->reserved - use->idle;
}

tws_code tws_caching_allocator_allocate(tws_caching_allocator *a, uint64_t bytes, uint32_t *out, tws_error *err) {
  const uint64_t size = rounded(bytes ? bytes : 1, ROUNDING);
  const int pool_index = size <= SMALL_MOST ? SMALL : LARGE;
  uint32_t at = best_fit(a, &a->pools[pool_index], size);
  if (at != NO_BLOCK)
    remove_free(a, at);
  else
    at = new_block(a, pool_index, size);
  if (at == NO_BLOCK || !split(a, at, size))
    return tws_fail(err, TWS_MEMORY, NULL, "no memory to simulate an allocator");
  a->use.allocated += a->blocks[at].bytes;
  keep_most(&a->use);
  *out = at;
  return TWS_OK;
}

/* Joins a block with the free block after it; the number of the latter is not in use afterwards. */
static void join_next(tws_caching_allocator *a, uint32_t at) {
  pool *p = &a->pools[a->segments[a->blocks[at].segment].pool];
  const uint32_t next = a->blocks[at].after;
  a->blocks[at].bytes += a->blocks[next].bytes;
  a->blocks[at].after = a->blocks[next].after;
  if (a->blocks[at].after != NO_BLOCK) a->blocks[a->blocks[at].after].before = at;
  if (p->last == next) p->last = at;
  a->blocks[next].after = a->unused;
  a->unused = next;
}

tws_code tws_caching_allocator_free(tws_caching_allocator *a, uint32_t at, tws_error *err) {
  const uint32_t before = a->blocks[at].before, after = a->blocks[at].after;
  a->use.allocated -= a->blocks[at].bytes;
  if (is_free(a, after)) {
    remove_free(a, after);
    join_next(a, at);
  }
  if (is_free(a, before)) {
    remove_free(a, before);
    join_next(a, before);
    at = before;
  }
  return insert_free(a, at) ? TWS_OK : tws_fail(err, TWS_MEMORY, NULL, "no memory to simulate an allocator");
}

tws_allocator_use tws_caching_allocator_use(const tws_caching_allocator *a) {
  return a->use;
}
