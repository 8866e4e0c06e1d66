#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/json.h"
#include "base/memory.h"

static tws_code system_error(tws_error *err, const char *what, const char *path) {
  return tws_fail(err, TWS_IO, NULL, "cannot %s %.400s: %s", what, path, strerror(errno));
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
  tws_text_add_bytes(text, "", 0); /* an empty file gives an empty string */
  return text->failed ? tws_fail(err, TWS_MEMORY, NULL, "%.400s: out of memory while reading", path) : TWS_OK;
}

tws_code tws_read_file(const char *path, size_t limit, char **text, size_t *length, tws_error *err) {
  int standard_input = strcmp(path, "-") == 0;
  *text = NULL;
  *length = 0;
  int fd = standard_input ? STDIN_FILENO : open(path, O_RDONLY | O_CLOEXEC);
  if (fd < 0) return system_error(err, "open", path);
  tws_text all = {0};
  tws_code code = read_all(fd, path, limit ? limit : (size_t)64 << 20, &all, err);
  if (!standard_input) close(fd);
  if (code != TWS_OK) {
    tws_text_free(&all);
    return code;
  }
  *text = all.data;
  *length = all.length;
  return TWS_OK;
}

static int write_all(int fd, const char *text, size_t length) {
  while (length > 0) {
    ssize_t n = write(fd, text, length);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return -1;
    text += n;
    length -= (size_t)n;
  }
  return 0;
}

/* Devices, pipes and the like are written to; only a regular file can be replaced. */
static tws_code write_through(const char *path, const char *text, size_t length, tws_error *err) {
  int fd = open(path, O_WRONLY | O_CLOEXEC);
  if (fd < 0) return system_error(err, "open", path);
  int bad = write_all(fd, text, length);
  tws_code code = bad ? system_error(err, "write", path) : TWS_OK;
  if (close(fd) && !bad) code = system_error(err, "write", path);
  return code;
}

/* Signals that end the program wait until the file is whole: nothing unfinished is left behind. */
static void hold_signals(sigset_t *before) {
  sigset_t mask;
  sigemptyset(&mask);
  sigaddset(&mask, SIGINT);
  sigaddset(&mask, SIGTERM);
  sigaddset(&mask, SIGHUP);
  pthread_sigmask(SIG_BLOCK, &mask, before);
}

static tws_code replace_file(const char *path, const char *target, const char *text, size_t length, tws_error *err) {
  char temporary[PATH_MAX + 32];
  snprintf(temporary, sizeof temporary, "%s.%ld.new", target, (long)getpid());
  int fd = open(temporary, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
  if (fd < 0) return system_error(err, "create", temporary);
  int bad = write_all(fd, text, length) || fsync(fd);
  int saved = errno;
  if (close(fd) && !bad) bad = 1, saved = errno;
  if (!bad && rename(temporary, target)) bad = 1, saved = errno;
  if (!bad) return TWS_OK;
  unlink(temporary);
  errno = saved;
  return system_error(err, "write", path);
}

tws_code tws_write_file(const char *path, const char *text, size_t length, tws_error *err) {
  struct stat status;
  char target[PATH_MAX];
  if (!realpath(path, target)) { /* follows links, so that a link stays one */
    if (errno != ENOENT || strlen(path) >= sizeof target) return system_error(err, "write", path);
    strcpy(target, path);
  } else if (stat(target, &status) == 0 && !S_ISREG(status.st_mode)) {
    return write_through(path, text, length, err);
  }
  sigset_t before;
  hold_signals(&before);
  tws_code code = replace_file(path, target, text, length, err);
  pthread_sigmask(SIG_SETMASK, &before, NULL);
  return code;
}

char *tws_temporary_path(char *path, size_t size, const char *name) {
  const char *folder = getenv("TMPDIR");
  snprintf(path, size, "%.4000s/twinspeed-%s-XXXXXX", folder && *folder ? folder : "/tmp", name);
  return path;
}

tws_code tws_temporary_file(char *path, size_t size, const char *name, tws_error *err) {
  const int fd = mkstemp(tws_temporary_path(path, size, name));
  if (fd < 0) return tws_fail(err, TWS_IO, "set TMPDIR", "%s: %s", path, strerror(errno));
  close(fd);
  return TWS_OK;
}
