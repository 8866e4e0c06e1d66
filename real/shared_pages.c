#include "real/shared_pages.h"

#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/memory.h"

enum {
  LEAST_PAGES = 16,       /* minimum pages of a shared range: fewer are not worth a mapping */
  MOST_RUNS = 40000,      /* maximum number of mappings of this process; the system allows 65530 */
  MOST_CANDIDATES = 64,   /* maximum number of candidates that a range is compared with */
  HOPELESS_AFTER = 4096,  /* after this number of comparisons without a match, ranges at this position are not compared
                           * any more */
  NO_EXTENT = 0xffffffffu /* the page is private to its rank */
};

/* A range of pages of the file. They do not change while a page of an arena is mapped from them. */
typedef struct extent {
  uint64_t first, pages; /* range in the file, pages */
  uint64_t mapped;       /* number of arena pages that are mapped from it */
  void *window;          /* a second, writable mapping of the same pages, through which they are read and filled; NULL:
                          * the extent is free */
} extent;

typedef struct arena {
  unsigned char *base;
  uint64_t bytes, pages;
  uint32_t *extent_of;
  int number; /* index of the arena among those of its rank */
} arena;

/* Data that ranks have written at one position: live memory of one rank, or an extent of the file. */
typedef struct candidate {
  uint32_t extent; /* index of the extent; NO_EXTENT: the data are in memory of a rank */
  uint32_t arena;
} candidate;

typedef struct place {
  int number; /* index of the arena */
  uint32_t writer;
  uint64_t first, pages, misses;
  int hits, count, next; /* hits: number of matches; next: candidate to be replaced when the list is full */
  candidate candidates[MOST_CANDIDATES];
} place;

struct tws_shared_pages {
  int file;
  uint64_t page, file_pages;
  arena *arenas; /* ordered by rank and index, which is the order of allocation */
  size_t arena_count, arena_capacity;
  size_t *first_arena; /* [rank] index of its first arena */
  size_t rank_count, rank_capacity;
  extent *extents;
  size_t extent_count, extent_capacity;
  place **places; /* hash table of positions, open addressing */
  size_t place_count, place_room;
  uint64_t runs;
  tws_shared_count count;
};

static tws_code no_memory(tws_error *err) {
  return tws_fail(err, TWS_MEMORY, "run with --share off", "no memory for sharing the ranks' storage");
}

tws_code tws_shared_pages_create(tws_shared_pages **out, tws_error *err) {
  tws_shared_pages *p = tws_calloc(1, sizeof *p);
  *out = NULL;
  if (!p) return no_memory(err);
  p->page = (uint64_t)sysconf(_SC_PAGESIZE);
  p->file = memfd_create("twinspeed-ranks", MFD_CLOEXEC);
  if (p->file < 0) {
    tws_free(p);
    return tws_fail(err, TWS_ENVIRONMENT, "run with --share off", "this system has no files in memory");
  }
  *out = p;
  return TWS_OK;
}

void tws_shared_pages_destroy(tws_shared_pages *p) {
  if (!p) return;
  for (size_t i = 0; i < p->arena_count; i++) {
    munmap(p->arenas[i].base, p->arenas[i].bytes);
    tws_free(p->arenas[i].extent_of);
  }
  for (size_t i = 0; i < p->extent_count; i++)
    if (p->extents[i].window) munmap(p->extents[i].window, p->extents[i].pages * p->page);
  for (size_t i = 0; i < p->place_room; i++) tws_free(p->places[i]);
  close(p->file);
  tws_free(p->places);
  tws_free(p->arenas);
  tws_free(p->first_arena);
  tws_free(p->extents);
  tws_free(p);
}

/* ---- arenas ---- */

tws_code tws_shared_pages_begin_rank(tws_shared_pages *p, tws_error *err) {
  if (tws_reserve(&p->first_arena, &p->rank_capacity, p->rank_count + 1, sizeof *p->first_arena) != 0)
    return no_memory(err);
  p->first_arena[p->rank_count++] = p->arena_count;
  return TWS_OK;
}

static tws_code allocate(tws_comm *comm, uint64_t bytes, void **base, tws_error *err) {
  tws_shared_pages *p = (tws_shared_pages *)comm;
  *base = NULL;
  if (bytes == 0) return TWS_OK;
  if (tws_reserve(&p->arenas, &p->arena_capacity, p->arena_count + 1, sizeof *p->arenas) != 0) return no_memory(err);
  arena a = {.bytes = bytes,
             .pages = (bytes + p->page - 1) / p->page,
             .number = (int)(p->arena_count - p->first_arena[p->rank_count - 1])};
  a.extent_of = tws_calloc(a.pages, sizeof *a.extent_of);
  if (!a.extent_of) return no_memory(err);
  memset(a.extent_of, 0xff, a.pages * sizeof *a.extent_of); /* all pages are NO_EXTENT */
  a.base = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (a.base == MAP_FAILED) {
    tws_free(a.extent_of);
    return no_memory(err);
  }
  madvise(a.base, bytes, MADV_NOHUGEPAGE); /* a huge page of which half is mapped elsewhere would keep all of its
                                            * memory */
  p->arenas[p->arena_count++] = a;
  *base = a.base;
  return TWS_OK;
}

const tws_comm_ops *tws_shared_pages_ops(void) {
  static const tws_comm_ops ops = {.name = "shared pages", .allocate = allocate};
  return &ops;
}

tws_comm *tws_shared_pages_comm(tws_shared_pages *p) {
  return (tws_comm *)p;
}

static arena *arena_at(tws_shared_pages *p, uint32_t rank, const unsigned char *at) {
  const size_t end = rank + 1 < p->rank_count ? p->first_arena[rank + 1] : p->arena_count;
  for (size_t i = p->first_arena[rank]; i < end; i++) {
    arena *a = &p->arenas[i];
    if (at >= a->base && (uint64_t)(at - a->base) < a->bytes) return a;
  }
  return NULL;
}

/* ---- extents ---- */

static tws_code new_extent(tws_shared_pages *p, uint64_t pages, const void *from, uint32_t *out, tws_error *err) {
  size_t at = 0;
  while (at < p->extent_count && (p->extents[at].window || p->extents[at].pages != pages)) at++;
  if (at == p->extent_count) {
    if (tws_reserve(&p->extents, &p->extent_capacity, at + 1, sizeof *p->extents) != 0) return no_memory(err);
    p->extents[at] = (extent){.first = p->file_pages, .pages = pages};
    if (ftruncate(p->file, (off_t)((p->file_pages + pages) * p->page)) != 0) return no_memory(err);
    p->extent_count++;
    p->file_pages += pages;
  }
  extent *e = &p->extents[at];
  void *window = mmap(NULL, pages * p->page, PROT_READ | PROT_WRITE, MAP_SHARED, p->file, (off_t)(e->first * p->page));
  if (window == MAP_FAILED) return no_memory(err);
  memcpy(window, from, pages * p->page);
  e->window = window;
  e->mapped = 0;
  p->count.held_bytes += pages * p->page;
  *out = (uint32_t)at;
  return TWS_OK;
}

static void release(tws_shared_pages *p, extent *e) {
  munmap(e->window, e->pages * p->page);
  fallocate(p->file, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, (off_t)(e->first * p->page),
            (off_t)(e->pages * p->page));
  e->window = NULL;
  p->count.held_bytes -= e->pages * p->page;
}

/* Returns the number of maximal ranges of pages in [first, end), counted from the start of the arena, of which each is
 * mapped from a single extent (a contiguous range of the shared file) or from none. */
static uint64_t runs_of(const arena *a, uint64_t first, uint64_t end) {
  uint64_t runs = 1;
  for (uint64_t i = first + 1; i < end; i++) runs += a->extent_of[i] != a->extent_of[i - 1];
  return runs;
}

static tws_code map(tws_shared_pages *p, arena *a, uint64_t first, uint32_t index, tws_error *err) {
  extent *e = &p->extents[index];
  const uint64_t end = first + e->pages, low = first > 0 ? first - 1 : 0, high = end < a->pages ? end + 1 : end;
  const uint64_t before = runs_of(a, low, high);
  if (mmap(a->base + first * p->page, e->pages * p->page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_FIXED, p->file,
           (off_t)(e->first * p->page)) == MAP_FAILED)
    return no_memory(err);
  e->mapped += e->pages;
  p->count.mapped_bytes += e->pages * p->page;
  for (uint64_t i = first; i < end; i++) {
    const uint32_t old = a->extent_of[i];
    a->extent_of[i] = index;
    if (old == NO_EXTENT) continue;
    p->count.mapped_bytes -= p->page;
    if (--p->extents[old].mapped == 0) release(p, &p->extents[old]);
  }
  p->runs += runs_of(a, low, high) - before;
  return TWS_OK;
}

/* ---- candidates by position ---- */

static size_t hash_of(const place *key, size_t room) {
  uint64_t h = key->first * 0x9e3779b97f4a7c15u ^ key->pages * 0xc2b2ae3d27d4eb4fu ^ (uint64_t)key->writer << 7;
  h = (h ^ (uint64_t)key->number) * 0x9e3779b97f4a7c15u;
  return (size_t)(h >> 20) % room;
}

static size_t slot_of(place *const *places, size_t room, const place *key) {
  size_t at = hash_of(key, room);
  for (const place *x = places[at]; x; x = places[at]) {
    if (x->number == key->number && x->writer == key->writer && x->first == key->first && x->pages == key->pages) break;
    at = (at + 1) % room;
  }
  return at;
}

static int make_room(tws_shared_pages *p) {
  if (2 * p->place_count < p->place_room) return 1;
  const size_t room = p->place_room ? 2 * p->place_room : 256;
  place **places = tws_calloc(room, sizeof *places);
  if (!places) return 0;
  for (size_t i = 0; i < p->place_room; i++)
    if (p->places[i]) places[slot_of(places, room, p->places[i])] = p->places[i];
  tws_free(p->places);
  p->places = places;
  p->place_room = room;
  return 1;
}

static place *place_of(tws_shared_pages *p, const place *key) {
  if (!make_room(p)) return NULL;
  const size_t at = slot_of(p->places, p->place_room, key);
  if (p->places[at]) return p->places[at];
  place *x = tws_calloc(1, sizeof *x);
  if (!x) return NULL;
  *x = *key;
  p->places[at] = x;
  p->place_count++;
  return x;
}

static const unsigned char *bytes_of(const tws_shared_pages *p, const place *x, const candidate *c) {
  if (c->extent == NO_EXTENT) return p->arenas[c->arena].base + x->first * p->page;
  const extent *e = &p->extents[c->extent];
  return e->window && e->pages == x->pages ? e->window : NULL;
}

static void remember(place *x, const candidate *c) {
  if (x->count < MOST_CANDIDATES) {
    x->candidates[x->count++] = *c;
    return;
  }
  x->candidates[x->next] = *c;
  x->next = (x->next + 1) % MOST_CANDIDATES;
}

/* Maps both the candidate's range and this one from the candidate's extent, because their data are equal; the extent is
 * created if the candidate has none. */
static tws_code join(tws_shared_pages *p, place *x, candidate *c, arena *a, tws_error *err) {
  if (c->extent == NO_EXTENT) {
    uint32_t index = NO_EXTENT;
    TWS_TRY(new_extent(p, x->pages, bytes_of(p, x, c), &index, err));
    TWS_TRY(map(p, &p->arenas[c->arena], x->first, index, err));
    c->extent = index;
  }
  return map(p, a, x->first, c->extent, err);
}

tws_code tws_shared_pages_share(tws_shared_pages *p, uint32_t rank, const void *at, uint64_t bytes, uint32_t writer,
                                tws_error *err) {
  arena *a = arena_at(p, rank, at);
  if (!a || bytes < LEAST_PAGES * p->page || p->runs > MOST_RUNS) return TWS_OK;
  const uint64_t offset = (uint64_t)((const unsigned char *)at - a->base), first = (offset + p->page - 1) / p->page;
  const uint64_t end = (offset + bytes) / p->page;
  if (end < first + LEAST_PAGES) return TWS_OK;
  const place key = {.number = a->number, .writer = writer, .first = first, .pages = end - first};
  place *x = place_of(p, &key);
  if (!x) return no_memory(err);
  if (x->hits == 0 && x->misses > HOPELESS_AFTER) return TWS_OK;
  const unsigned char *mine = a->base + first * p->page;
  int kept = 0;
  candidate *same = NULL;
  for (int i = 0; i < x->count; i++) {
    candidate c = x->candidates[i];
    const unsigned char *theirs = bytes_of(p, x, &c);
    if (!theirs || theirs == mine) continue; /* the candidate no longer exists, or is this rank's own earlier data */
    x->candidates[kept] = c;
    if (!same && memcmp(theirs, mine, key.pages * p->page) == 0) same = &x->candidates[kept];
    kept++;
  }
  x->count = kept;
  if (x->next >= kept) x->next = 0;
  if (same) {
    x->hits++;
    return join(p, x, same, a, err);
  }
  x->misses++;
  remember(x, &(candidate){.extent = NO_EXTENT, .arena = (uint32_t)(a - p->arenas)});
  return TWS_OK;
}

tws_shared_count tws_shared_pages_count(const tws_shared_pages *p) {
  return p->count;
}
