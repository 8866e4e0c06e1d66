#include "base/output_file.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/system.h"
#include "base/unfinished.h"

enum { TRIES = 16 };
static const tws_new_file no_file = {.fd = -1, .folder = -1, .slot = -1};

tws_code tws_output_failed(const char *path, const char *what, tws_error *err) {
  const int reason = errno;
  return tws_fail(
      err, TWS_IO,
      reason == ENOSPC || reason == EDQUOT || reason == EFBIG ? "make room there, or write to another disk" : NULL,
      "%.400s: cannot %s: %s", path, what, strerror(reason));
}

tws_code tws_write_all(int fd, const char *path, const void *bytes, size_t count, tws_error *err) {
  for (size_t done = 0; done < count;) {
    const ssize_t n = write(fd, (const char *)bytes + done, count - done);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return tws_output_failed(path, "write", err);
    done += (size_t)n;
  }
  return TWS_OK;
}

/* ---- kinds of existing paths ---- */

/* Returns 1 if the path lies below /dev or /proc, where symbolic links must not be replaced, because that would damage
 * the system. */
static int is_system_path(const char *path) {
  return strncmp(path, "/dev/", 5) == 0 || strncmp(path, "/proc/", 6) == 0;
}

static tws_path_kind kind_of_mode(mode_t mode) {
  return S_ISREG(mode) ? TWS_PATH_FILE : S_ISDIR(mode) ? TWS_PATH_FOLDER : TWS_PATH_STREAM;
}

tws_path_kind tws_path_kind_of(const char *path) {
  struct stat info;
  if (lstat(path, &info) != 0) return errno == ENOENT ? TWS_PATH_FREE : TWS_PATH_UNKNOWN;
  if (!S_ISLNK(info.st_mode)) return kind_of_mode(info.st_mode);
  const tws_path_kind to = stat(path, &info) == 0 ? kind_of_mode(info.st_mode) : TWS_PATH_FREE;
  if (to == TWS_PATH_FOLDER) return to;
  if (!is_system_path(path)) return TWS_PATH_LINK;
  return to == TWS_PATH_STREAM ? to : TWS_PATH_SYSTEM;
}

void tws_parent_of(const char *path, char *parent, size_t size) {
  const char *slash = strrchr(path, '/');
  if (!slash)
    snprintf(parent, size, ".");
  else if (slash == path)
    snprintf(parent, size, "/");
  else
    snprintf(parent, size, "%.*s", (int)(slash - path), path);
}

/* ---- new files ---- */

static uint64_t random_number(void) {
  uint64_t number = 0;
  if (getrandom(&number, sizeof number, 0) == (ssize_t)sizeof number) return number;
  struct timespec now;
  clock_gettime(CLOCK_REALTIME, &now); /* O_EXCL prevents reuse of a file; the time only makes equal names unlikely */
  return (uint64_t)now.tv_nsec * UINT64_C(0x9e3779b97f4a7c15) ^ (uint64_t)getpid();
}

/* Creates the temporary file. It is registered before it is created, so that a signal at any moment removes it. */
static tws_code make_temporary(tws_new_file *file, tws_error *err) {
  enum { TAIL = 200 };
  const size_t length = strlen(file->name);
  const char *tail =
      file->name + (length > TAIL ? length - TAIL : 0); /* keep the extension, which identifies the kind of file */
  for (int i = 0; i < TRIES; i++) {
    snprintf(file->temporary, sizeof file->temporary, ".new-%016" PRIx64 "-%s", random_number(), tail);
    file->slot = tws_unfinished_add(file->folder, file->temporary);
    file->fd = openat(file->folder, file->temporary, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0666);
    if (file->fd >= 0) return TWS_OK;
    const int reason = errno;
    tws_unfinished_release(file->slot);
    file->slot = -1;
    errno = reason;
    if (reason != EEXIST) break;
  }
  return tws_output_failed(file->path, "write", err);
}

/* Opens a device, pipe or socket for writing. Nothing is written before the path is known to be no regular file. */
static tws_code open_stream(tws_new_file *file, tws_error *err) {
  struct stat info;
  const int flags = O_WRONLY | O_CLOEXEC | O_NOCTTY | (is_system_path(file->path) ? 0 : O_NOFOLLOW);
  file->is_stream = 1;
  file->fd = open(file->path, flags);
  if (file->fd < 0) return tws_output_failed(file->path, "open", err);
  if (fstat(file->fd, &info) == 0 && !S_ISREG(info.st_mode)) return TWS_OK;
  close(file->fd);
  file->fd = -1;
  return tws_fail(err, TWS_IO, NULL, "%.400s: it was a device or a pipe, and has become a file", file->path);
}

static void forget(tws_new_file *file) {
  if (file->folder >= 0) close(file->folder);
  *file = no_file;
}

/* Opens a temporary file; tws_new_file_close() renames it to `name` in the open directory `folder`; messages name it
 * `path`. */
static tws_code open_in(int folder, const char *name, const char *path, tws_new_file *file, tws_error *err) {
  *file = no_file;
  file->path = path;
  if (strlen(name) >= sizeof file->name) {
    errno = ENAMETOOLONG;
    return tws_output_failed(path, "write", err);
  }
  snprintf(file->name, sizeof file->name, "%s", name);
  file->folder = fcntl(folder, F_DUPFD_CLOEXEC, 3);
  if (file->folder < 0) return tws_output_failed(path, "write", err);
  const tws_code code = make_temporary(file, err);
  if (code != TWS_OK) forget(file);
  return code;
}

tws_code tws_new_file_open(const char *path, tws_new_file *file, tws_error *err) {
  char parent[PATH_MAX];
  const char *slash = strrchr(path, '/');
  *file = no_file;
  file->path = path;
  switch (tws_path_kind_of(path)) {
    case TWS_PATH_STREAM:
      return open_stream(file, err);
    case TWS_PATH_SYSTEM:
      return tws_fail(err, TWS_IO, "name the file itself", "%.400s: a link of the system to a regular file", path);
    case TWS_PATH_FOLDER:
      errno = EISDIR;
      return tws_output_failed(path, "write", err);
    default:
      break;
  }
  if (strlen(path) >= sizeof parent) {
    errno = ENAMETOOLONG;
    return tws_output_failed(path, "write", err);
  }
  tws_parent_of(path, parent, sizeof parent);
  const int folder = open(parent, O_PATH | O_DIRECTORY | O_CLOEXEC);
  if (folder < 0) return tws_output_failed(path, "write", err);
  const tws_code code = open_in(folder, slash ? slash + 1 : path, path, file, err);
  close(folder);
  return code;
}

const char *tws_new_file_temporary(const tws_new_file *file, char *path, size_t size) {
  const char *slash = strrchr(file->path, '/');
  if (file->is_stream)
    *path = '\0';
  else
    snprintf(path, size, "%.*s%s", slash ? (int)(slash + 1 - file->path) : 0, file->path, file->temporary);
  return path;
}

tws_code tws_new_file_close(tws_new_file *file, tws_code code, tws_error *err) {
  if (file->fd < 0) return code;
  if (code == TWS_OK && !file->is_stream && fsync(file->fd) != 0) code = tws_output_failed(file->path, "write", err);
  if (close(file->fd) != 0 && code == TWS_OK) code = tws_output_failed(file->path, "write", err);
  if (!file->is_stream) {
    if (code == TWS_OK && renameat(file->folder, file->temporary, file->folder, file->name) != 0)
      code = tws_output_failed(file->path, "write", err);
    if (code != TWS_OK) unlinkat(file->folder, file->temporary, 0);
    tws_unfinished_release(file->slot);
  }
  forget(file);
  return code;
}

/* Writes the text and closes the file. Signals that end the program are blocked until the file is complete, even if the
 * program handles none. They are not blocked for a stream, because the write blocks as long as the reader does not
 * read. */
static tws_code write_and_close(tws_new_file *file, const char *text, size_t length, tws_error *err) {
  sigset_t before;
  const int holds = !file->is_stream;
  if (holds) tws_hold_signals(&before);
  const tws_code code = tws_new_file_close(file, tws_write_all(file->fd, file->path, text, length, err), err);
  if (holds) tws_release_signals(&before);
  return code;
}

tws_code tws_write_file(const char *path, const char *text, size_t length, tws_error *err) {
  tws_new_file file;
  TWS_TRY(tws_new_file_open(path, &file, err));
  return write_and_close(&file, text, length, err);
}

tws_code tws_write_file_in(int folder, const char *name, const char *path, const char *text, size_t length,
                           tws_error *err) {
  tws_new_file file;
  TWS_TRY(open_in(folder, name, path, &file, err));
  return write_and_close(&file, text, length, err);
}

/* ---- files that are written over time ---- */

tws_code tws_growing_file(const char *path, int *fd, tws_error *err) {
  tws_new_file file;
  *fd = -1;
  TWS_TRY(tws_new_file_open(path, &file, err));
  const int kept = fcntl(file.fd, F_DUPFD_CLOEXEC, 3);
  tws_code code = kept >= 0 ? TWS_OK : tws_output_failed(path, "write", err);
  if (code == TWS_OK && !file.is_stream) (void)fcntl(kept, F_SETFL, fcntl(kept, F_GETFL) | O_APPEND);
  code = tws_new_file_close(&file, code, err);
  if (code == TWS_OK)
    *fd = kept;
  else if (kept >= 0)
    close(kept);
  return code;
}

/* Checks that the opened file is a regular file; otherwise closes it and sets *fd to -1. */
static tws_code regular_opened(const char *path, int *fd, tws_error *err) {
  struct stat info;
  if (*fd < 0 && errno == ELOOP)
    return tws_fail(err, TWS_IO, "remove the link", "%.400s: a symbolic link, which is not followed", path);
  if (*fd < 0) return tws_output_failed(path, "open", err);
  if (fstat(*fd, &info) == 0 && S_ISREG(info.st_mode)) return TWS_OK;
  close(*fd);
  *fd = -1;
  return tws_fail(err, TWS_IO, "remove it", "%.400s: not a regular file", path);
}

tws_code tws_changed_file(const char *path, int create, int *fd, tws_error *err) {
  *fd = open(path, O_RDWR | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC | (create ? O_CREAT : 0), 0666);
  if (*fd < 0 && errno == ENOENT && !create) return TWS_OK;
  return regular_opened(path, fd, err);
}

tws_code tws_appended_file(int folder, const char *name, const char *path, int *fd, tws_error *err) {
  *fd = openat(folder, name, O_WRONLY | O_APPEND | O_CREAT | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC, 0666);
  return regular_opened(path, fd, err);
}

tws_code tws_make_folder(const char *path, int *fd, tws_error *err) {
  static const char hint[] = "name a folder that can be written to, or one that can be made";
  char part[PATH_MAX];
  *fd = -1;
  if (!*path || snprintf(part, sizeof part, "%s", path) >= (int)sizeof part)
    return tws_fail(err, TWS_IO, hint, "%.400s: no name of a folder", path);
  int failed = 0;
  for (char *at = part + 1; !failed; at++) { /* create each parent folder, then the folder itself */
    const char end = *at;
    if (end && end != '/') continue;
    *at = '\0';
    failed = mkdir(part, 0777) != 0 && errno != EEXIST;
    if (!end) break;
    *at = end;
  }
  if (!failed) *fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (*fd >= 0) return TWS_OK;
  return tws_fail(err, TWS_IO, hint, "%.400s: cannot make the folder: %s", path, strerror(errno));
}

tws_code tws_exclusive_file(int folder, const char *name, const char *path, int *fd, tws_error *err) {
  *fd = openat(folder, name, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0666);
  return *fd >= 0 ? TWS_OK : tws_output_failed(path, "create the file", err);
}

int tws_probe_folder(const char *folder) {
  tws_new_file file;
  const int fd = open(folder, O_PATH | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) return -1;
  const tws_code code = open_in(fd, "probe", folder, &file, NULL);
  const int reason = errno;
  if (code == TWS_OK) (void)tws_new_file_close(&file, TWS_NO, NULL); /* the temporary file is removed and not renamed */
  close(fd);
  errno = reason;
  return code == TWS_OK ? 0 : -1;
}

void tws_remove_file(const char *path) {
  unlink(path);
}

/* ---- scratch files and folders ---- */

const char *tws_temporary_place(void) {
  const char *folder = getenv("TMPDIR");
  return folder && *folder ? folder : "/tmp";
}

static void name_scratch(char *path, size_t size, const char *name) {
  snprintf(path, size, "%.4000s/twinspeed-%s-XXXXXX", tws_temporary_place(), name);
}

static tws_code no_scratch(const char *path, tws_error *err) {
  return tws_fail(err, TWS_IO, "set TMPDIR", "%s: %s", path, strerror(errno));
}

/* Creates a scratch file and then registers its name for removal, with signals blocked in between. */
tws_code tws_temporary_file(char *path, size_t size, const char *name, tws_error *err) {
  sigset_t before;
  name_scratch(path, size, name);
  tws_hold_signals(&before);
  const int fd = mkostemp(path, O_CLOEXEC);
  const tws_code code = fd >= 0 ? TWS_OK : no_scratch(path, err);
  if (fd >= 0) {
    (void)tws_unfinished_add_path(path);
    close(fd);
  }
  tws_release_signals(&before);
  return code;
}

tws_code tws_temporary_folder(char *path, size_t size, const char *name, tws_error *err) {
  sigset_t before;
  name_scratch(path, size, name);
  tws_hold_signals(&before);
  const tws_code code = mkdtemp(path) ? TWS_OK : no_scratch(path, err);
  if (code == TWS_OK) (void)tws_unfinished_add_folder(path);
  tws_release_signals(&before);
  return code;
}

void tws_temporary_remove(const char *path) {
  if (!*path) return;
  if (unlink(path) != 0 && (errno == EISDIR || errno == EPERM)) (void)tws_remove_tree(AT_FDCWD, path);
  tws_unfinished_release_path(path);
}
