#include "real/remote_files.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/memory.h"
#include "checkpoint/folder.h"

typedef struct request {
  uint64_t file, offset, count; /* a request of bytes; count 0: the rank's last request */
} request;

static tws_code send(const tws_training *t, int to, const void *data, uint64_t bytes, tws_error *err) {
  return tws_mpi_comm_ops()->send(t->comm, to, data, bytes, err);
}

static tws_code receive(const tws_training *t, int from, void *data, uint64_t bytes, tws_error *err) {
  return tws_mpi_comm_ops()->receive(t->comm, from, data, bytes, err);
}

static tws_code get_block(void **block, tws_error *err) {
  *block = tws_calloc(TWS_CHECKPOINT_BLOCK, 1);
  return *block ? TWS_OK : tws_fail(err, TWS_MEMORY, NULL, "no memory for other ranks' part of a checkpoint");
}

/* ---- reading ---- */

static void say_read(tws_training *t, uint64_t bytes) {
  char text[64];
  snprintf(text, sizeof text, "loading the checkpoint, %" PRIu64 " MiB", bytes >> 20);
  tws_watchdog_progress(t->watchdog, text);
}

tws_code tws_remote_file_fetch(void *training, uint32_t file, uint64_t offset, void *to, size_t count, tws_error *err) {
  tws_training *t = training;
  const request wanted = {file, offset, count};
  TWS_TRY(send(t, 0, &wanted, sizeof wanted, err));
  TWS_TRY(receive(t, 0, to, count, err));
  t->fetched += count;
  say_read(t, t->fetched);
  return TWS_OK;
}

tws_code tws_remote_file_fetch_end(tws_training *t, tws_error *err) {
  const request none = {0};
  return send(t, 0, &none, sizeof none, err);
}

typedef struct source {
  uint32_t file; /* index of the file that is open; TWS_NONE: none */
  int fd;
  void *block;
} source;

static tws_code read_block(const tws_saved_index *x, source *s, const request *wanted, tws_error *err) {
  char path[TWS_FOLDER_SIZE + 256];
  if (wanted->file >= x->file_count || wanted->count > TWS_CHECKPOINT_BLOCK)
    return tws_fail(err, TWS_INTERNAL, NULL, "a rank asks for what %s does not have", x->path);
  snprintf(path, sizeof path, "%s/%s", x->path, x->files[wanted->file].name);
  if (s->file != wanted->file) {
    if (s->fd >= 0) close(s->fd);
    s->file = TWS_NONE;
    TWS_TRY(tws_saved_explain_missing(x->path, tws_open_regular(path, &s->fd, err), err));
    s->file = (uint32_t)wanted->file;
  }
  for (uint64_t done = 0; done < wanted->count;) {
    const ssize_t n = pread(s->fd, (char *)s->block + done, wanted->count - done, (off_t)(wanted->offset + done));
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return tws_fail(err, TWS_IO, NULL, "%s: %s", path, n < 0 ? strerror(errno) : "it ends too early");
    done += (uint64_t)n;
  }
  return TWS_OK;
}

static tws_code serve_rank(tws_training *t, int rank, source *s, uint64_t *sent, tws_error *err) {
  for (;;) {
    request wanted;
    TWS_TRY(receive(t, rank, &wanted, sizeof wanted, err));
    if (wanted.count == 0) return TWS_OK;
    TWS_TRY(read_block(t->resumed, s, &wanted, err));
    TWS_TRY(send(t, rank, s->block, wanted.count, err));
    *sent += wanted.count;
    say_read(t, *sent);
  }
}

tws_code tws_remote_file_serve(tws_training *t, tws_error *err) {
  source s = {.file = TWS_NONE, .fd = -1};
  uint64_t sent = 0;
  TWS_TRY(get_block(&s.block, err));
  tws_code code = TWS_OK;
  for (int r = 1; r < t->world && code == TWS_OK; r++)
    if (t->far_readers[r]) code = serve_rank(t, r, &s, &sent, err);
  if (s.fd >= 0) close(s.fd);
  tws_free(s.block);
  return code;
}

/* ---- writing ---- */

tws_code tws_remote_file_write(void *training, const void *bytes, size_t count, tws_error *err) {
  const tws_training *t = training;
  tws_watchdog_count_progress(t->watchdog);
  for (size_t done = 0; done < count;) {
    const uint64_t n = count - done < TWS_CHECKPOINT_BLOCK ? count - done : TWS_CHECKPOINT_BLOCK;
    TWS_TRY(send(t, 0, &n, sizeof n, err));
    TWS_TRY(send(t, 0, (const char *)bytes + done, n, err));
    done += n;
  }
  return TWS_OK;
}

tws_code tws_remote_file_write_end(tws_training *t, tws_error *err) {
  const uint64_t none = 0;
  return send(t, 0, &none, sizeof none, err);
}

static tws_code receive_blocks(tws_training *t, int rank, int fd, const char *path, void *block, tws_error *err) {
  for (;;) {
    uint64_t n = 0;
    tws_watchdog_count_progress(t->watchdog);
    TWS_TRY(receive(t, rank, &n, sizeof n, err));
    if (n == 0) return TWS_OK;
    if (n > TWS_CHECKPOINT_BLOCK) return tws_fail(err, TWS_INTERNAL, NULL, "%s: a block is too large", path);
    TWS_TRY(receive(t, rank, block, n, err));
    TWS_TRY(tws_write_all(fd, path, block, n, err));
  }
}

tws_code tws_remote_file_receive(tws_training *t, int rank, const char *path, tws_error *err) {
  void *block;
  int fd;
  TWS_TRY(get_block(&block, err));
  tws_code code = tws_file_begin(path, &fd, err);
  if (code == TWS_OK) code = tws_file_end(fd, path, receive_blocks(t, rank, fd, path, block, err), err);
  tws_free(block);
  return code;
}
