#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/json.h"
#include "base/log.h"
#include "base/memory.h"

static tws_code system_error(tws_error *err, const char *what, const char *path) {
  const int reason = errno;
  if (!*path)
    return tws_fail(err, TWS_IO, "is a variable of the shell empty?", "cannot %s a file: its name is empty", what);
  return tws_fail(err, TWS_IO, NULL, "cannot %s %.400s: %s", what, path, strerror(reason));
}

static tws_code read_all(int fd, const char *path, size_t limit, tws_text *text, tws_error *err) {
  char block[65536];
  for (;;) {
    ssize_t n = read(fd, block, sizeof block);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return system_error(err, "read", path);
    if (n == 0) break;
    if ((size_t)n > limit - text->length)
      return tws_fail(err, TWS_INVALID, NULL, "%.400s: larger than the limit of %zu bytes", path, limit);
    tws_text_add_bytes(text, block, (size_t)n);
    if (text->failed) break;
  }
  tws_text_add_bytes(text, "", 0); /* text->data of an empty file becomes an empty string instead of NULL */
  return text->failed ? tws_fail(err, TWS_MEMORY, NULL, "%.400s: out of memory while reading", path) : TWS_OK;
}

/* Fails unless the file is regular or a folder: reading a pipe, which the caller has opened with O_NONBLOCK, could
 * block for ever; `path` is used in messages. */
static tws_code check_regular(int fd, const char *path, tws_error *err) {
  struct stat info;
  if (fstat(fd, &info) == 0 && (S_ISREG(info.st_mode) || S_ISDIR(info.st_mode)))
    return TWS_OK; /* a read of a folder fails with EISDIR */
  return tws_fail(err, TWS_INVALID, "name a regular file, or copy it to one",
                  "%.400s: a pipe or a device, and a regular file is expected", path);
}

static tws_code open_regular(int folder, const char *name, const char *path, int flags, int *fd, tws_error *err) {
  *fd = openat(folder, name, O_RDONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC | flags);
  if (*fd < 0) return system_error(err, "open", path);
  const tws_code code = check_regular(*fd, path, err);
  if (code == TWS_OK) return code;
  close(*fd);
  *fd = -1;
  return code;
}

tws_code tws_open_regular(const char *path, int *fd, tws_error *err) {
  return open_regular(AT_FDCWD, path, path, 0, fd, err);
}

/* ---- files that may be pipes ---- */

static const double writer_s = 5.0; /* seconds within which another process must open a pipe for writing */

/* Returns 1 if a process has the pipe open for writing, or has written to it. The function does not consume data of the
 * pipe. */
static int has_writer(int fd) {
  struct pollfd state = {.fd = fd, .events = POLLIN};
  int copy[2];
  if (poll(&state, 1, 0) > 0) return 1;
  if (pipe2(copy, O_CLOEXEC) != 0) return 1; /* the test is impossible: assume a writer */
  const int has =
      /* 0: no process has the pipe open for writing; -1 with EAGAIN: one has, but it has not written yet */
      tee(fd, copy[1], 1, SPLICE_F_NONBLOCK) != 0;
  close(copy[0]);
  close(copy[1]);
  return has;
}

static tws_code wait_for_writer(int fd, const char *path, tws_error *err) {
  struct stat info;
  if (fstat(fd, &info) != 0 || !S_ISFIFO(info.st_mode)) return TWS_OK;
  for (const double until = tws_clock_s() + writer_s; !has_writer(fd); usleep(10000))
    if (tws_clock_s() > until)
      return tws_fail(err, TWS_INVALID, "name a regular file, or start what writes to the pipe first",
                      "%.400s: a pipe that no process has written to within %.3g s", path, writer_s);
  return TWS_OK;
}

tws_code tws_open_stream(const char *path, int *fd, tws_error *err) {
  *fd = open(path, O_RDONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
  if (*fd < 0) return system_error(err, "open", path);
  const tws_code code = wait_for_writer(*fd, path, err);
  if (code == TWS_OK) {
    fcntl(*fd, F_SETFL, fcntl(*fd, F_GETFL) & ~O_NONBLOCK); /* from here on, reads block until the writer writes */
    return TWS_OK;
  }
  close(*fd);
  *fd = -1;
  return code;
}

static tws_code take_text(tws_text *all, tws_code code, char **text, size_t *length) {
  if (code != TWS_OK) {
    tws_text_free(all);
    return code;
  }
  *text = all->data;
  *length = all->length;
  return TWS_OK;
}

static tws_code read_and_close(int fd, const char *path, size_t limit, char **text, size_t *length, tws_error *err) {
  tws_text all = {0};
  const tws_code code = read_all(fd, path, limit ? limit : (size_t)64 << 20, &all, err);
  close(fd);
  return take_text(&all, code, text, length);
}

tws_code tws_read_regular(const char *path, size_t limit, char **text, size_t *length, tws_error *err) {
  int fd;
  *text = NULL;
  *length = 0;
  TWS_TRY(tws_open_regular(path, &fd, err));
  return read_and_close(fd, path, limit, text, length, err);
}

tws_code tws_read_regular_in(int folder, const char *name, const char *path, size_t limit, char **text, size_t *length,
                             tws_error *err) {
  int fd;
  *text = NULL;
  *length = 0;
  TWS_TRY(open_regular(folder, name, path, O_NOFOLLOW, &fd, err));
  return read_and_close(fd, path, limit, text, length, err);
}

/* Copies the text that was read from a pipe on standard input to a file in memory, which then replaces standard input.
 * A pipe can be read only once, but the program reads its input again for hints and comparisons. */
static tws_code keep_input(const tws_text *all, tws_error *err) {
  const int kept = memfd_create("twinspeed-input", MFD_CLOEXEC);
  size_t done = 0;
  while (kept >= 0 && done < all->length) {
    const ssize_t n = write(kept, all->data + done, all->length - done);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) break;
    done += (size_t)n;
  }
  tws_code code = TWS_OK;
  if (kept < 0 || done < all->length || lseek(kept, 0, SEEK_SET) != 0 || dup2(kept, STDIN_FILENO) < 0)
    code = system_error(err, "keep", "what standard input has");
  if (kept >= 0) close(kept);
  return code;
}

static tws_code read_input(size_t limit, char **text, size_t *length, tws_error *err) {
  tws_text all = {0};
  tws_code code = read_all(STDIN_FILENO, "-", limit, &all, err);
  if (code == TWS_OK) code = keep_input(&all, err);
  return take_text(&all, code, text, length);
}

tws_code tws_read_file(const char *path, size_t limit, char **text, size_t *length, tws_error *err) {
  *text = NULL;
  *length = 0;
  if (strcmp(path, "-") == 0) return read_input(limit ? limit : (size_t)64 << 20, text, length, err);
  int fd;
  TWS_TRY(tws_open_stream(path, &fd, err));
  return read_and_close(fd, path, limit, text, length, err);
}
