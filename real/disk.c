#include "real/disk.h"

#include <errno.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#ifdef TWS_HAVE_AIO
#include <libaio.h>
#endif

#include "base/output_file.h"
#include "base/log.h"
#include "base/memory.h"
#include "real/swap.h"

enum { ALIGNMENT = TWS_DISK_ALIGNMENT, QUEUE = 64, MOST_THREADS = 64 };

/* A block in flight: its range in the file, and the range of the transfer within it. */
typedef struct slot {
#ifdef TWS_HAVE_AIO
  struct iocb request; /* must be the first member: completions refer to it */
#endif
  char *buffer;         /* aligned buffer for blocks that cannot be transferred directly; allocated when it is needed
                         * first */
  char *memory;         /* address of the block in the memory of the transfer */
  uint64_t at;          /* offset in the file at which the request begins, a multiple of ALIGNMENT */
  uint64_t bytes;       /* length of the request, a multiple of ALIGNMENT */
  uint64_t skip, count; /* skip: bytes of the request before the transfer's range; count: bytes of the request that
                         * belong to the transfer */
  int through;          /* 1: the block goes through `buffer` */
} slot;

typedef struct worker {
  struct tws_disk *disk;
  pthread_t thread;
  int index;
  slot *slots;
  slot **unused;
  int unused_count;
#ifdef TWS_HAVE_AIO
  io_context_t context;
  struct io_event *events;
  struct iocb **batch;
#endif
  int asynchronous;
  tws_disk_count moved;
} worker;

struct tws_disk {
  tws_disk_setup setup;
  tws_swap_file file;
  uint64_t bytes, block;
  int depth, threads, started_threads;
  worker *workers;
  pthread_mutex_t lock;
  pthread_cond_t more, done;
  tws_disk_transfer queue[QUEUE]; /* indexed by ticket modulo QUEUE */
  uint64_t started, ended;        /* tickets of the last transfer that was started, and of the last that has ended */
  int working;                    /* number of threads that have not finished transfer number `ended` + 1 */
  int ending;
  tws_disk_count moved;
  tws_error failure; /* code TWS_OK: no transfer has failed */
};

/* ---- one block ---- */

static tws_code fail(const worker *w, const tws_disk_transfer *t, const slot *s, const char *why, tws_error *err) {
  const char *hint = strstr(why, "space") ? "make room, or give another nvme_path" : "is the disk in order?";
  return tws_fail(err, TWS_IO, hint, "%s '%s' (%" PRIu64 " bytes at %" PRIu64 " of swap file %.400s): %s",
                  t->writes ? "writing" : "reading", t->what, s->count, s->at + s->skip, w->disk->file.path, why);
}

/* Transfers all bytes by blocking calls; returns the result of the last call, which is less than requested at the end
 * of the file. */
static ssize_t move_plainly(int fd, int writes, char *memory, uint64_t bytes, uint64_t at) {
  uint64_t done = 0;
  while (done < bytes) {
    const ssize_t n = writes ? pwrite(fd, memory + done, bytes - done, (off_t)(at + done))
                             : pread(fd, memory + done, bytes - done, (off_t)(at + done));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return -errno;
    if (n == 0) break;
    done += (uint64_t)n;
  }
  return (ssize_t)done;
}

static tws_code check_moved(worker *w, const tws_disk_transfer *t, const slot *s, ssize_t moved, tws_error *err) {
  char why[128];
  if (moved == (ssize_t)s->bytes) return TWS_OK;
  if (moved < 0)
    snprintf(why, sizeof why, "%s", strerror((int)-moved));
  else
    snprintf(why, sizeof why, "%zd of %" PRIu64 " bytes, was the file cut?", moved, s->bytes);
  return fail(w, t, s, why, err);
}

static tws_code begin_block(worker *w, const tws_disk_transfer *t, slot *s, tws_error *err) {
  s->through = s->skip || s->count != s->bytes || (uintptr_t)s->memory % ALIGNMENT != 0;
  if (!s->through) return TWS_OK;
  if (!s->buffer) s->buffer = aligned_alloc(ALIGNMENT, w->disk->block);
  if (!s->buffer) return tws_fail(err, TWS_MEMORY, NULL, "no memory for blocks of the disk");
  if (!t->writes) return TWS_OK;
  if (s->count != s->bytes) { /* reads the remaining bytes of the block first, because they belong to other data */
    const ssize_t moved = move_plainly(w->disk->file.fd, 0, s->buffer, s->bytes, s->at);
    TWS_TRY(check_moved(w, t, s, moved, err));
    w->moved.read += s->bytes;
  }
  memcpy(s->buffer + s->skip, s->memory, s->count);
  return TWS_OK;
}

static tws_code end_block(worker *w, const tws_disk_transfer *t, const slot *s, ssize_t moved, tws_error *err) {
  TWS_TRY(check_moved(w, t, s, moved, err));
  *(t->writes ? &w->moved.written : &w->moved.read) += s->bytes;
  if (s->through && !t->writes) memcpy(s->memory, s->buffer + s->skip, s->count);
  return TWS_OK;
}

/* ---- a thread's share of a transfer ---- */

typedef struct share {
  const tws_disk_transfer *of;
  uint64_t next, end; /* range of bytes in the file */
} share;

/* Divides whole blocks among the threads, as evenly as possible. */
static share share_of(const worker *w, const tws_disk_transfer *t) {
  const tws_disk *d = w->disk;
  const uint64_t first = t->offset / ALIGNMENT * ALIGNMENT, end = t->offset + t->bytes;
  const uint64_t blocks = (end - first + d->block - 1) / d->block, threads = (uint64_t)d->threads;
  share s = {.of = t, .next = first + blocks * (uint64_t)w->index / threads * d->block};
  s.end = first + blocks * ((uint64_t)w->index + 1) / threads * d->block;
  if (s.next < t->offset) s.next = t->offset;
  if (s.end > end) s.end = end;
  return s;
}

/* Determines the next block, which ends at the next block boundary of the file. */
static void cut_block(const worker *w, share *of, slot *s) {
  const tws_disk_transfer *t = of->of;
  const uint64_t block = w->disk->block, from = of->next;
  s->at = from / ALIGNMENT * ALIGNMENT;
  uint64_t to = s->at + block < of->end ? s->at + block : of->end;
  s->skip = from - s->at;
  s->count = to - from;
  /* whole pages are transferred directly, and the remainder as a block of its own */
  if (s->skip == 0 && s->count > ALIGNMENT) s->count = s->count / ALIGNMENT * ALIGNMENT;
  if (s->skip && s->count > ALIGNMENT - s->skip) s->count = ALIGNMENT - s->skip;
  s->bytes = (s->skip + s->count + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
  s->memory = (char *)t->memory + (from - t->offset);
  of->next = from + s->count;
}

static tws_code run_plainly(worker *w, share *of, tws_error *err) {
  const tws_disk_transfer *t = of->of;
  slot *s = &w->slots[0];
  while (of->next < of->end) {
    cut_block(w, of, s);
    TWS_TRY(begin_block(w, t, s, err));
    char *memory = s->through ? s->buffer : s->memory;
    TWS_TRY(end_block(w, t, s, move_plainly(w->disk->file.fd, t->writes, memory, s->bytes, s->at), err));
  }
  return TWS_OK;
}

#ifdef TWS_HAVE_AIO
/* Submits the blocks into which a transfer was divided. Requests that could not be submitted are executed at once by
 * blocking calls. */
static tws_code submit(worker *w, const tws_disk_transfer *t, int count, int *under_way, tws_error *err) {
  int done = 0;
  while (done < count) {
    const int one = w->disk->setup.aio.single_submit ? 1 : count - done;
    const int n = io_submit(w->context, one, w->batch + done);
    if (n == -EINTR || (n == -EAGAIN && *under_way + done > 0)) break; /* the remaining requests are submitted later */
    if (n <= 0) {
      slot *s = (slot *)w->batch[done];
      return fail(w, t, s, strerror(-n), err);
    }
    done += n;
  }
  *under_way += done;
  memmove(w->batch, w->batch + done, (size_t)(count - done) * sizeof *w->batch);
  return TWS_OK;
}

static tws_code collect(worker *w, const tws_disk_transfer *t, int least, int *under_way, tws_error *err) {
  tws_code code = TWS_OK;
  int n;
  do n = io_getevents(w->context, least, *under_way, w->events, NULL);
  while (n == -EINTR);
  if (n < 0) return tws_fail(err, TWS_IO, NULL, "waiting for %.400s: %s", w->disk->file.path, strerror(-n));
  for (int i = 0; i < n; i++) {
    slot *s = (slot *)w->events[i].obj;
    const tws_code one = end_block(w, t, s, (ssize_t)(long)w->events[i].res, code == TWS_OK ? err : NULL);
    if (code == TWS_OK) code = one;
    w->unused[w->unused_count++] = s;
  }
  *under_way -= n;
  return code;
}

static tws_code run_asynchronously(worker *w, share *of, tws_error *err) {
  const tws_disk_transfer *t = of->of;
  const int overlaps = w->disk->setup.aio.overlap_events;
  int under_way = 0, waiting = 0; /* under_way: submitted requests; waiting: blocks that are cut and not submitted
                                   * yet */
  tws_code code = TWS_OK;
  while (code == TWS_OK && (of->next < of->end || waiting > 0 || under_way > 0)) {
    while (code == TWS_OK && of->next < of->end && w->unused_count > 0) {
      slot *s = w->unused[--w->unused_count];
      cut_block(w, of, s);
      code = begin_block(w, t, s, err);
      char *memory = s->through ? s->buffer : s->memory;
      if (t->writes)
        io_prep_pwrite(&s->request, w->disk->file.fd, memory, s->bytes, (long long)s->at);
      else
        io_prep_pread(&s->request, w->disk->file.fd, memory, s->bytes, (long long)s->at);
      w->batch[waiting++] = &s->request;
    }
    const int before = under_way;
    if (code == TWS_OK) code = submit(w, t, waiting, &under_way, err);
    waiting -= under_way - before;
    if (code == TWS_OK && under_way > 0) code = collect(w, t, overlaps ? 1 : under_way, &under_way, err);
  }
  /* after a failure, waits for submitted requests, which still use the memory */
  for (int before = 0; under_way > 0 && under_way != before;) {
    before = under_way;
    collect(w, t, under_way, &under_way, NULL);
  }
  w->unused_count = 0;
  for (int i = 0; i < w->disk->depth; i++) w->unused[w->unused_count++] = &w->slots[i];
  return code;
}
#endif

static tws_code run_share(worker *w, const tws_disk_transfer *t, tws_error *err) {
  struct stat status;
  share of = share_of(w, t);
  if (of.next >= of.end) return TWS_OK;
  if (fstat(w->disk->file.fd, &status) != 0 || status.st_nlink == 0)
    return tws_fail(err, TWS_IO, "leave the swap folder of a running job alone",
                    "%s '%s': swap file %.400s was removed", t->writes ? "writing" : "reading", t->what,
                    w->disk->file.path);
#ifdef TWS_HAVE_AIO
  if (w->asynchronous) return run_asynchronously(w, &of, err);
#endif
  return run_plainly(w, &of, err);
}

/* ---- the queue ---- */

/* Marks a transfer as ended; the caller holds the lock. */
static void end_transfer(tws_disk *d, const tws_disk_transfer *t) {
  for (int i = 0; i < d->threads; i++) {
    d->moved.read += d->workers[i].moved.read;
    d->moved.written += d->workers[i].moved.written;
    d->workers[i].moved = (tws_disk_count){0, 0};
  }
  if (t->times) t->times[1] = tws_clock_s();
  d->ended++;
  d->working = d->threads;
  pthread_cond_broadcast(&d->done);
  pthread_cond_broadcast(&d->more);
}

static void *serve(void *arg) {
  worker *w = arg;
  tws_disk *d = w->disk;
  pthread_mutex_lock(&d->lock);
  for (uint64_t ticket = 1;; ticket++) {
    while (ticket != d->ended + 1 || (d->started < ticket && !d->ending)) pthread_cond_wait(&d->more, &d->lock);
    if (d->started < ticket) break;
    const tws_disk_transfer *t = &d->queue[ticket % QUEUE];
    if (t->times && d->working == d->threads) t->times[0] = tws_clock_s();
    const int sound = d->failure.code == TWS_OK;
    tws_error err = {.code = TWS_OK};
    pthread_mutex_unlock(&d->lock);
    const tws_code code = sound ? run_share(w, t, &err) : TWS_OK;
    pthread_mutex_lock(&d->lock);
    if (code != TWS_OK && d->failure.code == TWS_OK) d->failure = err;
    if (--d->working == 0) end_transfer(d, t);
  }
  pthread_mutex_unlock(&d->lock);
  return NULL;
}

tws_code tws_disk_start(tws_disk *d, const tws_disk_transfer *transfer, uint64_t *ticket, tws_error *err) {
  if (transfer->offset > d->bytes || transfer->bytes > d->bytes - transfer->offset)
    return tws_fail(err, TWS_INTERNAL, NULL, "'%s' is not in the swap file of %" PRIu64 " bytes", transfer->what,
                    d->bytes);
  pthread_mutex_lock(&d->lock);
  while (d->started - d->ended == QUEUE) pthread_cond_wait(&d->done, &d->lock);
  *ticket = ++d->started;
  d->queue[*ticket % QUEUE] = *transfer;
  pthread_cond_broadcast(&d->more);
  pthread_mutex_unlock(&d->lock);
  return TWS_OK;
}

tws_code tws_disk_wait(tws_disk *d, uint64_t ticket, tws_error *err) {
  pthread_mutex_lock(&d->lock);
  while (d->ended < ticket) pthread_cond_wait(&d->done, &d->lock);
  const tws_code code = d->failure.code;
  if (code != TWS_OK && err) *err = d->failure;
  pthread_mutex_unlock(&d->lock);
  return code;
}

uint64_t tws_disk_started(const tws_disk *d) {
  return d->started; /* only one thread starts transfers, so no lock is needed */
}

tws_disk_count tws_disk_transferred(tws_disk *d) {
  pthread_mutex_lock(&d->lock);
  const tws_disk_count moved = d->moved;
  pthread_mutex_unlock(&d->lock);
  return moved;
}

const char *tws_disk_path(const tws_disk *d) {
  return d->file.path;
}

int tws_disk_is_direct(const tws_disk *d) {
  return d->file.direct;
}

/* ---- creation and destruction ---- */

static tws_code make_worker(tws_disk *d, int index, tws_error *err) {
  worker *w = &d->workers[index];
  const size_t depth = (size_t)d->depth;
  w->disk = d;
  w->index = index;
  w->slots = tws_calloc(depth, sizeof *w->slots);
  w->unused = tws_calloc(depth, sizeof *w->unused);
  if (!w->slots || !w->unused) return tws_fail(err, TWS_MEMORY, NULL, "out of memory");
  while (w->unused_count < d->depth) {
    w->unused[w->unused_count] = &w->slots[w->unused_count];
    w->unused_count++;
  }
#ifdef TWS_HAVE_AIO
  w->events = tws_calloc(depth, sizeof *w->events);
  w->batch = tws_calloc(depth, sizeof *w->batch);
  if (!w->events || !w->batch) return tws_fail(err, TWS_MEMORY, NULL, "out of memory");
  /* 0: the system lacks asynchronous I/O, or has no free context */
  w->asynchronous = io_setup(d->depth, &w->context) == 0;
#endif
  if (pthread_create(&w->thread, NULL, serve, w) != 0)
    return tws_fail(err, TWS_ENVIRONMENT, NULL, "cannot start a thread for the disk");
  d->started_threads++;
  return TWS_OK;
}

static void free_worker(tws_disk *d, worker *w) {
#ifdef TWS_HAVE_AIO
  if (w->asynchronous) io_destroy(w->context);
  tws_free(w->events);
  tws_free(w->batch);
#endif
  for (int i = 0; w->slots && i < d->depth; i++) free(w->slots[i].buffer);
  tws_free(w->slots);
  tws_free(w->unused);
}

tws_code tws_disk_create(const tws_disk_setup *setup, const char *name, uint64_t bytes, tws_disk **out,
                         tws_error *err) {
  static const tws_aio usual = {.block_size = 1 << 20, .queue_depth = 8, .threads = 1, .overlap_events = 1};
  int cleared = 0;
  *out = NULL;
  tws_disk *d = tws_calloc(1, sizeof *d);
  if (!d) return tws_fail(err, TWS_MEMORY, NULL, "out of memory");
  d->setup = *setup;
  if (d->setup.aio.block_size <= 0) d->setup.aio = usual;
  d->block = ((uint64_t)d->setup.aio.block_size + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
  d->bytes = (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
  d->depth = (int)d->setup.aio.queue_depth;
  d->threads = d->working = (int)d->setup.aio.threads < MOST_THREADS ? (int)d->setup.aio.threads : MOST_THREADS;
  d->file.fd = -1;
  pthread_mutex_init(&d->lock, NULL);
  pthread_cond_init(&d->more, NULL);
  pthread_cond_init(&d->done, NULL);
  tws_code code =
      tws_swap_create(setup->folder ? setup->folder : tws_temporary_place(), name, d->bytes, &d->file, &cleared, err);
  d->workers = tws_calloc((size_t)d->threads, sizeof *d->workers);
  if (code == TWS_OK && !d->workers) code = tws_fail(err, TWS_MEMORY, NULL, "out of memory");
  for (int i = 0; i < d->threads && code == TWS_OK; i++) code = make_worker(d, i, err);
  if (code == TWS_OK)
    *out = d;
  else
    tws_disk_destroy(d);
  return code;
}

void tws_disk_destroy(tws_disk *d) {
  if (!d) return;
  pthread_mutex_lock(&d->lock);
  d->ending = 1;
  pthread_cond_broadcast(&d->more);
  pthread_mutex_unlock(&d->lock);
  for (int i = 0; i < d->started_threads; i++) pthread_join(d->workers[i].thread, NULL);
  for (int i = 0; d->workers && i < d->threads; i++) free_worker(d, &d->workers[i]);
  tws_swap_remove(&d->file);
  pthread_cond_destroy(&d->done);
  pthread_cond_destroy(&d->more);
  pthread_mutex_destroy(&d->lock);
  tws_free(d->workers);
  tws_free(d);
}
