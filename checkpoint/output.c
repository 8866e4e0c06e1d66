#include "checkpoint/output.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <string.h>
#include <unistd.h>

#include "base/memory.h"
#include "base/system.h"

enum { ALIGNMENT = 4096, SLOT = 8 << 20, SLOTS = 4 };

typedef struct slot {
  unsigned char *bytes;
  size_t count;
} slot;

struct tws_output {
  const char *path;
  int fd, is_stream, direct;
  uint64_t written, given; /* written: bytes that the thread has written; given: bytes that the caller has passed,
                            * including those in the slot that it is filling */
  unsigned char *memory;
  slot slots[SLOTS];
  int first, full; /* first: index of the first slot that waits for the thread; full: number of waiting slots */
  int fills;       /* index of the slot that the caller is filling; it follows the waiting slots */
  pthread_t thread;
  int started, ends;
  pthread_mutex_t lock;
  pthread_cond_t changed;
  tws_code code; /* result of the thread's writes */
  tws_error err;
};

/* Writes one slot to the file. If the page cache is bypassed, only whole blocks can be written; tws_output_close() then
 * truncates the file to its size. */
static tws_code write_slot(tws_output *o, const slot *s, tws_error *err) {
  const size_t count = o->direct ? (s->count + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT : s->count;
  for (size_t done = 0; done < count;) {
    const ssize_t n = o->is_stream ? write(o->fd, s->bytes + done, count - done)
                                   : pwrite(o->fd, s->bytes + done, count - done, (off_t)(o->written + done));
    if (n < 0 && errno == EINTR) continue;
    /* The file system refuses O_DIRECT, or the offset is unaligned after a short write: use the page cache from here
     * on. */
    if (n < 0 && errno == EINVAL && o->direct) {
      (void)fcntl(o->fd, F_SETFL, fcntl(o->fd, F_GETFL) & ~O_DIRECT);
      o->direct = 0;
      return write_slot(o, s, err);
    }
    if (n < 0) return tws_output_failed(o->path, "write", err);
    done += (size_t)n;
  }
  if (!o->direct && !o->is_stream) (void)sync_file_range(o->fd, (off_t)o->written, (off_t)count, SYNC_FILE_RANGE_WRITE);
  o->written += s->count;
  return TWS_OK;
}

static void *write_slots(void *user) {
  tws_output *o = user;
  pthread_mutex_lock(&o->lock);
  for (;;) {
    while (o->full == 0 && !o->ends) pthread_cond_wait(&o->changed, &o->lock);
    if (o->full == 0) break;
    slot *s = &o->slots[o->first];
    if (o->code == TWS_OK) {
      pthread_mutex_unlock(&o->lock);
      tws_error err = {0};
      const tws_code code = write_slot(o, s, &err);
      pthread_mutex_lock(&o->lock);
      o->code = code;
      o->err = err;
    }
    s->count = 0;
    o->first = (o->first + 1) % SLOTS;
    o->full--;
    pthread_cond_signal(&o->changed);
  }
  pthread_mutex_unlock(&o->lock);
  return NULL;
}

static tws_code start_thread(tws_output *o, tws_error *err) {
  sigset_t before;
  tws_hold_signals(&before);
  o->started = pthread_create(&o->thread, NULL, write_slots, o) == 0;
  tws_release_signals(&before);
  return o->started ? TWS_OK : tws_fail(err, TWS_ENVIRONMENT, NULL, "cannot start a thread");
}

static tws_code prepare(tws_output *o, uint64_t bytes, tws_error *err) {
  o->memory = tws_calloc((size_t)SLOT * SLOTS + ALIGNMENT, 1);
  if (!o->memory) return tws_fail(err, TWS_MEMORY, NULL, "%s: no memory to write it with", o->path);
  const size_t over = (size_t)((uintptr_t)o->memory % ALIGNMENT);
  for (int i = 0; i < SLOTS; i++) o->slots[i].bytes = o->memory + (ALIGNMENT - over) + (size_t)i * SLOT;
  if (o->is_stream) return start_thread(o, err);
  o->direct = fcntl(o->fd, F_SETFL, fcntl(o->fd, F_GETFL) | O_DIRECT) == 0;
  if (bytes > 0 && fallocate(o->fd, 0, 0, (off_t)bytes) != 0 && errno != EOPNOTSUPP && errno != ENOSYS)
    return tws_output_failed(o->path, "reserve room", err);
  return start_thread(o, err);
}

tws_code tws_output_open(const tws_new_file *file, uint64_t bytes, tws_output **out, tws_error *err) {
  tws_output *o = tws_calloc(1, sizeof *o);
  *out = NULL;
  if (!o) return tws_fail(err, TWS_MEMORY, NULL, "%s: no memory to write it with", file->path);
  o->path = file->path;
  o->fd = file->fd;
  o->is_stream = file->is_stream;
  pthread_mutex_init(&o->lock, NULL);
  pthread_cond_init(&o->changed, NULL);
  const tws_code code = prepare(o, bytes, err);
  if (code != TWS_OK) return tws_output_close(o, code, err);
  *out = o;
  return TWS_OK;
}

/* Waits for a free slot that the caller can fill, and returns it; NULL: a write has failed. */
static slot *free_slot(tws_output *o) {
  pthread_mutex_lock(&o->lock);
  while (o->full == SLOTS && o->code == TWS_OK) pthread_cond_wait(&o->changed, &o->lock);
  slot *s = o->code == TWS_OK ? &o->slots[o->fills] : NULL;
  pthread_mutex_unlock(&o->lock);
  return s;
}

static void hand_over(tws_output *o) {
  pthread_mutex_lock(&o->lock);
  o->full++;
  o->fills = (o->fills + 1) % SLOTS;
  pthread_cond_signal(&o->changed);
  pthread_mutex_unlock(&o->lock);
}

static tws_code failed(const tws_output *o, tws_error *err) {
  if (err) *err = o->err;
  return o->code;
}

tws_code tws_output_room(tws_output *o, void **room, size_t *bytes, tws_error *err) {
  const slot *s = free_slot(o);
  if (!s) return failed(o, err);
  *bytes = SLOT - s->count;
  *room = s->bytes + s->count;
  return TWS_OK;
}

void tws_output_take(tws_output *o, size_t bytes) {
  slot *s = &o->slots[o->fills];
  s->count += bytes;
  o->given += bytes;
  if (s->count == SLOT) hand_over(o);
}

tws_code tws_output_write(tws_output *o, const void *bytes, size_t count, tws_error *err) {
  for (size_t done = 0; done < count;) {
    size_t n;
    void *room;
    TWS_TRY(tws_output_room(o, &room, &n, err));
    if (n > count - done) n = count - done;
    memcpy(room, (const char *)bytes + done, n);
    tws_output_take(o, n);
    done += n;
  }
  return TWS_OK;
}

tws_code tws_output_close(tws_output *o, tws_code code, tws_error *err) {
  if (code == TWS_OK) {
    const slot *s = free_slot(o);
    if (s && s->count > 0) hand_over(o);
  }
  pthread_mutex_lock(&o->lock);
  o->ends = 1;
  pthread_cond_signal(&o->changed);
  pthread_mutex_unlock(&o->lock);
  if (o->started) pthread_join(o->thread, NULL);
  if (code == TWS_OK && o->code != TWS_OK) code = failed(o, err);
  if (code == TWS_OK && !o->is_stream && ftruncate(o->fd, (off_t)o->given) != 0)
    code = tws_output_failed(o->path, "write", err);
  pthread_cond_destroy(&o->changed);
  pthread_mutex_destroy(&o->lock);
  tws_free(o->memory);
  tws_free(o);
  return code;
}
