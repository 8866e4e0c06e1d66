#include "real/shared_comm.h"
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <linux/futex.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>
#include "base/host_memory.h"
#include "base/memory.h"
#include "base/units.h"
#include "models/collective.h"
#include "real/mpi_wait.h"

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif
#ifndef MADV_COLLAPSE
#define MADV_COLLAPSE 25
#endif

enum { MAX_ARENAS = 16, SEGMENTS = TWS_SHARED_SEGMENTS, CACHE_LINE = 64, HUGE_PAGE = 2 << 20 };
/* GRAIN: minimum number of elements that a member sums; MAX_MEMBERS: maximum number of ranks of one node; LEAST_SPINS
 * and MOST_SPINS: limits of how often a barrier polls before it sleeps */
enum { GRAIN = 2048, MAX_MEMBERS = 512, LEAST_SPINS = 20, MOST_SPINS = 4000 };

typedef struct place {
  uint32_t arena, pad;
  uint64_t offset;
} place;

/* Addresses that a rank publishes for the others before a collective: written before the opening barrier, read until
 * the closing one. */
typedef struct rank_slot {
  _Alignas(
      CACHE_LINE) _Atomic uint32_t waiting; /* 1 + id of the group that the rank waits in; UINT32_MAX: it waits for a
                                             * message; 0: it does not wait */
  place send[SEGMENTS], receive[SEGMENTS];
} rank_slot;

typedef struct group_slot {
  _Alignas(CACHE_LINE) _Atomic uint32_t arrived;
  _Atomic uint32_t sleepers;
  _Alignas(CACHE_LINE) _Atomic uint32_t generation;
} group_slot;

typedef struct shared_arena {
  uint64_t *bytes; /* [place] */
  char **map;      /* [place] address of the rank's memory in this process */
} shared_arena;

/* `rank` is a rank of the world; `place` is its index among the ranks of the node, by which all arrays here are
 * indexed. */
struct tws_shared {
  MPI_Comm node;
  int rank, size;        /* rank: place of this rank; size: ranks of the node */
  int spins, most_spins; /* how often a barrier polls before it sleeps: now, and at most */
  unsigned slept;        /* number of barriers in which this rank slept */
  int is_whole;          /* 1: all ranks of the world are on this node */
  int *place_of;         /* [rank of the world] its place; -1: it is on another node */
  int *rank_of;          /* [place] the rank of the world */
  uint32_t group_count;
  void *control;
  size_t control_bytes;
  rank_slot *ranks;
  group_slot *groups;
  int arena_count;
  shared_arena arena[MAX_ARENAS];
};

/* ---- memory ---- */

static int make_memory(uint64_t bytes) {
  int fd = memfd_create("twinspeed", MFD_CLOEXEC);
  if (fd >= 0 && ftruncate(fd, (off_t)bytes) != 0) {
    close(fd);
    fd = -1;
  }
  return fd;
}

/* Opens another process's memory file through /proc/PID/fd; this requires only that both processes belong to the same
 * user. */
static int open_memory(long pid, long fd) {
  char path[64];
  snprintf(path, sizeof path, "/proc/%ld/fd/%ld", pid, fd);
  return open(path, O_RDWR | O_CLOEXEC);
}

/* Maps a memory file. Large mappings begin at a multiple of a huge page, so that the kernel can use huge pages: a
 * larger range is reserved, the mapping is placed inside it, and the rest is unmapped. */
static char *map_memory(int fd, uint64_t bytes) {
  uint64_t spare = bytes >= HUGE_PAGE ? HUGE_PAGE : 0;
  char *window = mmap(NULL, bytes + spare, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (window == MAP_FAILED) return NULL;
  uint64_t head = spare ? (spare - (uintptr_t)window % HUGE_PAGE) % HUGE_PAGE : 0;
  uint64_t used = (bytes + 4095) / 4096 * 4096, window_used = (bytes + spare + 4095) / 4096 * 4096;
  void *base = mmap(window + head, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd, 0);
  if (base == MAP_FAILED) {
    munmap(window, window_used);
    return NULL;
  }
  if (head > 0) munmap(window, head);
  if (head + used < window_used) munmap(window + head + used, window_used - head - used);
  return base;
}

/* Touches every page now, so that no step has page faults. Touching one page of each huge page and then collapsing
 * these (Linux 6.1, independent of the system's setting for shared memory) takes a tenth of the time of 512 small
 * faults; remaining pages, or all pages if that is refused, are populated as small pages. */
static void populate(char *base, uint64_t bytes) {
  for (uint64_t i = 0; i + HUGE_PAGE <= bytes; i += HUGE_PAGE) base[i] = 0;
  (void)madvise(base, bytes, MADV_COLLAPSE);
  if (madvise(base, bytes, MADV_POPULATE_WRITE) != 0)
    for (uint64_t i = 0; i < bytes; i += 4096) base[i] = 0;
}

static int all_agree(MPI_Comm among, int ok) {
  int all = 0;
  tws_mpi_allreduce(&ok, &all, MPI_INT, MPI_MIN, among);
  return all;
}

static tws_code map_control(tws_shared *shared) {
  size_t ranks = (size_t)shared->size * sizeof(rank_slot);
  shared->control_bytes = ranks + (size_t)shared->group_count * sizeof(group_slot);
  long where[2] = {0, 0};
  int fd = -1;
  if (shared->rank == 0) {
    fd = make_memory(shared->control_bytes);
    where[0] = (long)getpid();
    where[1] = fd;
  }
  tws_mpi_bcast(where, 2, MPI_LONG, shared->node);
  if (shared->rank != 0 && where[1] >= 0) fd = open_memory(where[0], where[1]);
  char *base = fd >= 0 ? map_memory(fd, shared->control_bytes) : NULL;
  int ok = all_agree(shared->node, base != NULL);
  if (fd >= 0) close(fd);
  shared->control = base;
  if (!ok) return TWS_NO;
  shared->ranks = (rank_slot *)(void *)base;
  shared->groups = (group_slot *)(void *)(base + ranks);
  return TWS_OK;
}

static tws_code list_places(tws_shared *shared, int rank, int world_size, tws_error *err) {
  shared->rank_of = tws_calloc((size_t)shared->size, sizeof *shared->rank_of);
  shared->place_of = tws_calloc((size_t)world_size, sizeof *shared->place_of);
  if (!shared->rank_of || !shared->place_of) return tws_fail(err, TWS_MEMORY, NULL, "out of memory");
  tws_mpi_allgather(&rank, shared->rank_of, 1, MPI_INT, shared->node);
  for (int r = 0; r < world_size; r++) shared->place_of[r] = -1;
  for (int i = 0; i < shared->size; i++) shared->place_of[shared->rank_of[i]] = i;
  return TWS_OK;
}

tws_code tws_shared_create(MPI_Comm world, MPI_Comm node, uint32_t group_count, int busy, tws_shared **out,
                           tws_error *err) {
  int rank, world_size;
  *out = NULL;
  MPI_Comm_rank(world, &rank);
  MPI_Comm_size(world, &world_size);
  tws_shared *shared = tws_calloc(1, sizeof *shared);
  if (!shared) return tws_fail(err, TWS_MEMORY, NULL, "out of memory");
  shared->node = node;
  MPI_Comm_rank(node, &shared->rank);
  MPI_Comm_size(node, &shared->size);
  shared->is_whole = shared->size == world_size;
  shared->group_count = group_count;
  shared->most_spins = busy ? LEAST_SPINS : MOST_SPINS;
  shared->spins = shared->most_spins;
  const tws_code code = list_places(shared, rank, world_size, err);
  const int ok = code == TWS_OK && shared->size <= MAX_MEMBERS;
  /* All ranks must agree: first those of a node, which map each other's memory, then all nodes. */
  const int mapped = all_agree(node, ok) && map_control(shared) == TWS_OK;
  if (!all_agree(world, mapped)) {
    tws_shared_destroy(shared);
    return code;
  }
  *out = shared;
  return TWS_OK;
}

void tws_shared_destroy(tws_shared *shared) {
  if (!shared) return;
  for (int k = 0; k < shared->arena_count; k++) {
    for (int r = 0; r < shared->size; r++)
      if (shared->arena[k].map[r]) munmap(shared->arena[k].map[r], shared->arena[k].bytes[r]);
    tws_free(shared->arena[k].map);
    tws_free(shared->arena[k].bytes);
  }
  if (shared->control) munmap(shared->control, shared->control_bytes);
  tws_free(shared->place_of);
  tws_free(shared->rank_of);
  tws_free(shared);
}

/* Checks that the machine's memory has room for the sum of the bytes of all ranks' arenas. The first rank at which the
 * sum over the ranks up to it exceeds the memory reports the error. */
static tws_code check_room(const tws_shared *shared, const uint64_t *bytes, tws_error *err) {
  tws_host_memory memory = tws_host_memory_read();
  uint64_t sum = 0;
  for (int r = 0; r <= shared->rank; r++) sum += bytes[r];
  if (memory.available_bytes == 0 || sum <= memory.available_bytes) return TWS_OK;
  char want[32], left[32];
  return tws_fail(err, TWS_MEMORY, "use fewer ranks, a smaller micro batch, recomputation or a higher ZeRO stage",
                  "cannot allocate an arena of %s: ranks %d to %d together exceed the %s this machine has left",
                  tws_format_bytes((double)bytes[shared->rank], want, sizeof want), shared->rank_of[0],
                  shared->rank_of[shared->rank], tws_format_bytes((double)memory.available_bytes, left, sizeof left));
}

static tws_code map_peers(tws_shared *shared, shared_arena *arena, const long *where) {
  int ok = 1;
  for (int r = 0; r < shared->size; r++) {
    if (r == shared->rank || arena->bytes[r] == 0) continue;
    int fd = open_memory(where[2 * r], where[2 * r + 1]);
    arena->map[r] = fd >= 0 ? map_memory(fd, arena->bytes[r]) : NULL;
    if (fd >= 0) close(fd);
    if (!arena->map[r]) ok = 0;
  }
  return ok ? TWS_OK : TWS_ENVIRONMENT;
}

static tws_code fill_arena(tws_shared *shared, shared_arena *arena, uint64_t bytes, long *where, tws_error *err) {
  tws_mpi_allgather(&bytes, arena->bytes, 1, MPI_UINT64_T, shared->node);
  TWS_TRY(check_room(shared, arena->bytes, err));
  int fd = -1;
  if (bytes > 0) {
    fd = make_memory(bytes);
    char *base = fd >= 0 ? map_memory(fd, bytes) : NULL;
    if (!base) {
      int reason = errno;
      char want[32];
      if (fd >= 0) close(fd);
      return tws_fail(err, TWS_MEMORY, "use a smaller micro batch, recomputation or a higher ZeRO stage",
                      "cannot allocate an arena of %s: %s", tws_format_bytes((double)bytes, want, sizeof want),
                      strerror(reason));
    }
    arena->map[shared->rank] = base;
    populate(base, bytes);
  }
  long mine[2] = {(long)getpid(), fd};
  tws_mpi_allgather(mine, where, 2, MPI_LONG, shared->node);
  tws_code code = map_peers(shared, arena, where);
  int ok = all_agree(shared->node, code == TWS_OK);
  if (fd >= 0) close(fd);
  if (!ok)
    return tws_fail(err, TWS_ENVIRONMENT, "is /proc mounted, and are all ranks of one user?",
                    "cannot map the memory of another rank");
  return TWS_OK;
}

tws_code tws_shared_allocate(tws_shared *shared, uint64_t bytes, void **base, tws_error *err) {
  *base = NULL;
  if (shared->arena_count == MAX_ARENAS) return tws_fail(err, TWS_INTERNAL, NULL, "more than %d arenas", MAX_ARENAS);
  size_t size = (size_t)shared->size;
  shared_arena *arena = &shared->arena[shared->arena_count];
  long *where = tws_calloc(size, 2 * sizeof *where);
  arena->bytes = tws_calloc(size, sizeof *arena->bytes);
  arena->map = tws_calloc(size, sizeof *arena->map);
  shared->arena_count++;
  tws_code code = where && arena->bytes && arena->map ? fill_arena(shared, arena, bytes, where, err)
                                                      : tws_fail(err, TWS_MEMORY, NULL, "out of memory");
  tws_free(where);
  if (code == TWS_OK) *base = arena->map[shared->rank];
  return code;
}

/* ---- waiting ---- */

static void futex(_Atomic uint32_t *word, int operation, uint32_t value, const struct timespec *limit) {
  syscall(SYS_futex, (void *)word, operation, value, limit, NULL, 0);
}

static void relax_processor(void) {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#endif
}

/* Sleeps until another process changes the word. MPI may hold back the end of a message whose send is complete, until
 * the sender's next call of MPI. The ranks in this barrier may wait, directly or indirectly, for a rank of another node
 * that waits for that message. So if there are other nodes, a sleeping rank calls MPI every millisecond. */
static void sleep_until_changed(const tws_shared *shared, _Atomic uint32_t *word, uint32_t value) {
  static const struct timespec often = {.tv_nsec = 1000000};
  int arrived;
  while (atomic_load(word) == value) {
    futex(word, FUTEX_WAIT, value, shared->is_whole ? NULL : &often);
    if (!shared->is_whole) MPI_Iprobe(MPI_ANY_SOURCE, MPI_ANY_TAG, shared->node, &arrived, MPI_STATUS_IGNORE);
  }
}

/* Polls until the word has changed; returns 0 if it has not after the limit, which follows from how earlier barriers
 * ended. Polling is worth its time where the other ranks run on cores of their own and arrive within microseconds.
 * Where they do not, because other processes need the cores or because their work takes longer, polling takes a core
 * from them: each barrier that ends in sleep halves the limit, each that does not doubles it, and after 31 sleeps one
 * polls up to the largest limit, since the cores may be free again. */
static int poll_until_changed(tws_shared *shared, _Atomic uint32_t *word, uint32_t value) {
  const int limit = shared->slept % 32 == 31 ? shared->most_spins : shared->spins;
  for (int i = 0; i < limit; i++) {
    if (atomic_load_explicit(word, memory_order_acquire) != value) {
      shared->spins = limit * 2 < shared->most_spins ? limit * 2 : shared->most_spins;
      shared->slept += shared->slept % 32 == 31;
      return 1;
    }
    relax_processor();
  }
  shared->spins = shared->spins / 2 > LEAST_SPINS ? shared->spins / 2 : LEAST_SPINS;
  shared->slept++;
  return 0;
}

/* Enters a barrier: the last rank to arrive increments the generation. All atomics are sequentially consistent: a rank
 * that was not counted as sleeping in time sees that the generation has changed, and does not sleep. */
void tws_shared_barrier(tws_shared *shared, const tws_shared_group *group) {
  group_slot *slot = &shared->groups[group->id];
  uint32_t generation = atomic_load(&slot->generation);
  if (atomic_fetch_add(&slot->arrived, 1) + 1 == (uint32_t)group->size) {
    atomic_store(&slot->arrived, 0);
    atomic_fetch_add(&slot->generation, 1);
    if (atomic_load(&slot->sleepers) > 0) futex(&slot->generation, FUTEX_WAKE, INT_MAX, NULL);
    return;
  }
  if (poll_until_changed(shared, &slot->generation, generation)) return;
  rank_slot *mine = &shared->ranks[shared->rank];
  atomic_store(&mine->waiting, group->id + 1);
  atomic_fetch_add(&slot->sleepers, 1);
  sleep_until_changed(shared, &slot->generation, generation);
  atomic_fetch_sub(&slot->sleepers, 1);
  atomic_store(&mine->waiting, 0);
}

void tws_shared_waits(tws_shared *shared, int waits) {
  atomic_store(&shared->ranks[shared->rank].waiting, waits ? UINT32_MAX : 0);
}

int tws_shared_is_waiting(const tws_shared *shared) {
  return atomic_load(&shared->ranks[shared->rank].waiting) != 0;
}

/* Returns a rank that does not wait: every chain of waiting ranks ends at one, whatever group or message they wait
 * for. */
int tws_shared_missing(const tws_shared *shared) {
  uint32_t waiting = atomic_load(&shared->ranks[shared->rank].waiting);
  if (waiting == 0) return -1;
  for (int r = 0; r < shared->size; r++)
    if (atomic_load(&shared->ranks[r].waiting) == 0) return shared->rank_of[r];
  return -1;
}

/* ---- addresses ---- */

static int find_place(const tws_shared *shared, const void *address, uint64_t bytes, place *where) {
  uintptr_t at = (uintptr_t)address;
  for (int k = 0; k < shared->arena_count; k++) {
    uintptr_t base = (uintptr_t)shared->arena[k].map[shared->rank];
    uint64_t size = shared->arena[k].bytes[shared->rank];
    if (base && at >= base && at - base <= size && bytes <= size - (at - base)) {
      *where = (place){.arena = (uint32_t)k, .offset = at - base};
      return 1;
    }
  }
  return 0;
}

static char *peer_address(const tws_shared *shared, int peer, const place *where) {
  return shared->arena[where->arena].map[peer] + where->offset;
}

char *tws_shared_sent(const tws_shared *shared, int rank, int segment) {
  const int peer = shared->place_of[rank];
  return peer_address(shared, peer, &shared->ranks[peer].send[segment]);
}

char *tws_shared_received(const tws_shared *shared, int rank, int segment) {
  const int peer = shared->place_of[rank];
  return peer_address(shared, peer, &shared->ranks[peer].receive[segment]);
}

/* Finds where a segment's send and receive buffers are in shared memory; returns 0 if one is elsewhere. A buffer
 * without elements needs no place. */
static int find_places(const tws_shared *shared, tws_collective_parts parts, const tws_comm_segment *s, place *send,
                       place *receive) {
  const uint64_t bytes = s->count * tws_dtype_bytes(s->dtype);
  return (!parts.send || find_place(shared, s->send, bytes * parts.send, send)) &&
         (!parts.receive || find_place(shared, s->receive, bytes * parts.receive, receive));
}

int tws_shared_covers(const tws_shared *shared, tws_collective collective, const tws_shared_group *group, int root,
                      const tws_comm_segment *segments, int count) {
  const tws_collective_parts parts = tws_collective_parts_of(collective, group->size, group->index, root);
  place send, receive;
  for (int i = 0; i < count; i++)
    if (!find_places(shared, parts, &segments[i], &send, &receive)) return 0;
  return 1;
}

/* ---- collectives ---- */

typedef struct batch {
  tws_shared *shared;
  const tws_shared_group *group;
  const tws_collective_row *row;
  tws_collective_parts parts; /* the sides of segments that this rank uses */
  int root;
} batch;

static char *sent_by(const batch *b, int member, int segment) {
  return tws_shared_sent(b->shared, b->group->ranks[member], segment);
}

static char *received_by(const batch *b, int member, int segment) {
  return tws_shared_received(b->shared, b->group->ranks[member], segment);
}

/* Sums for all-reduce and reduce: each member sums its own share of every segment and writes it to all receivers. Small
 * segments are assigned whole to one member each, round-robin. */
static void reduce_parts(const batch *b, int segment, const tws_comm_segment *s) {
  const uint64_t count = s->count, size = tws_dtype_bytes(s->dtype);
  int n = b->group->size;
  uint64_t part = (count + (uint64_t)n - 1) / (uint64_t)n;
  part = (part + GRAIN - 1) / GRAIN * GRAIN;
  uint64_t turn = (uint64_t)((b->group->index + segment) % n), first = turn * part;
  if (first >= count) return;
  uint64_t length = count - first < part ? count - first : part;
  const void *from[MAX_MEMBERS];
  void *to[MAX_MEMBERS];
  int receivers = 0;
  for (int m = 0; m < n; m++) {
    from[m] = sent_by(b, m, segment) + first * size;
    if (b->row->root == TWS_ROOT_NONE || m == b->root) to[receivers++] = received_by(b, m, segment) + first * size;
  }
  tws_ordered_sum(s->dtype, from, n, to, receivers, length);
}

static void scatter_parts(const batch *b, int segment, const tws_comm_segment *s) {
  const void *from[MAX_MEMBERS];
  uint64_t first = (uint64_t)b->group->index * s->count * tws_dtype_bytes(s->dtype);
  for (int m = 0; m < b->group->size; m++) from[m] = sent_by(b, m, segment) + first;
  tws_ordered_sum(s->dtype, from, b->group->size, &(void *){s->receive}, 1, s->count);
}

void tws_shared_copy(const tws_shared *shared, const tws_shared_group *group, const tws_collective_row *row, int root,
                     int first, int last, int segment, const tws_comm_segment *s) {
  const uint64_t size = tws_dtype_bytes(s->dtype), bytes = s->count * size;
  const int n = last - first, index = group->index;
  for (int i = 0; i < n; i++) {
    const int m = first + (index - first + i) % n; /* starts with this member's own source, so that members read
                                                    * different sources at the same time */
    if (!tws_collective_moves(row, group->size, m, index, root)) continue;
    const char *from = tws_shared_sent(shared, group->ranks[m], segment);
    if (row->sends_parts) from += (uint64_t)index * bytes;
    char *to = s->receive;
    if (row->receives_parts) to += (uint64_t)m * bytes;
    if (from != to) memcpy(to, from, s->counts ? (uint64_t)s->counts[group->size + m] * size : bytes);
  }
}

void tws_shared_expose(tws_shared *shared, tws_collective_parts parts, const tws_comm_segment *segments, int count) {
  rank_slot *mine = &shared->ranks[shared->rank];
  for (int i = 0; i < count; i++) find_places(shared, parts, &segments[i], &mine->send[i], &mine->receive[i]);
}

static void run_batch(const batch *b, const tws_comm_segment *segments, int count) {
  tws_shared_expose(b->shared, b->parts, segments, count);
  tws_shared_barrier(b->shared, b->group);
  for (int i = 0; i < count; i++) {
    if (!b->row->reduces)
      tws_shared_copy(b->shared, b->group, b->row, b->root, 0, b->group->size, i, &segments[i]);
    else if (b->row->sends_parts)
      scatter_parts(b, i, &segments[i]);
    else
      reduce_parts(b, i, &segments[i]);
  }
  tws_shared_barrier(b->shared, b->group);
}

void tws_shared_collective(tws_shared *shared, const tws_shared_group *group, tws_collective collective, int root,
                           const tws_comm_segment *segments, int count) {
  const tws_collective_parts parts = tws_collective_parts_of(collective, group->size, group->index, root);
  const batch b = {shared, group, tws_collective_of(collective), parts, root};
  for (int first = 0; first < count; first += SEGMENTS)
    run_batch(&b, segments + first, count - first < SEGMENTS ? count - first : SEGMENTS);
}
