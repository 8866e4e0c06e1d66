#include "real/swap.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "base/unfinished.h"
#include "base/units.h"

static const char folder_name[] = "twinspeed-swap", ending[] = ".swap";

static tws_code fail(tws_error *err, const char *what, const char *path, const char *hint) {
  return tws_fail(err, TWS_ENVIRONMENT, hint, "cannot %s %.400s: %s", what, path, strerror(errno));
}

static int is_swap(const char *name) {
  const size_t length = strlen(name), end = sizeof ending - 1;
  return length > end && strcmp(name + length - end, ending) == 0;
}

/* Opens the folder, which this program must have created: a link in its place could lead to another user's files. */
static int open_folder(const char *path) {
  return open(path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
}

/* Removes files without a lock, which are left over. The folder is locked meanwhile, so that no file is between its
 * creation and its lock. */
static int clear(int folder) {
  int count = 0;
  const int again = dup(folder);
  DIR *list = again < 0 ? NULL : fdopendir(again);
  if (!list) {
    if (again >= 0) close(again);
    return 0;
  }
  rewinddir(list);
  for (const struct dirent *entry = readdir(list); entry; entry = readdir(list)) {
    const int fd = is_swap(entry->d_name) ? openat(folder, entry->d_name, O_RDWR | O_CLOEXEC | O_NOFOLLOW) : -1;
    if (fd < 0) continue; /* the file belongs to another user */
    if (flock(fd, LOCK_EX | LOCK_NB) == 0 && unlinkat(folder, entry->d_name, 0) == 0) count++;
    close(fd);
  }
  closedir(list);
  return count;
}

static tws_code reserve(tws_swap_file *file, uint64_t bytes, tws_error *err) {
  char need[32], left[32];
  struct statvfs fs;
  if (fallocate(file->fd, 0, 0, (off_t)bytes) == 0) return TWS_OK;
  /* this file system cannot allocate blocks in advance: it allocates them when they are written */
  if (errno == EOPNOTSUPP && ftruncate(file->fd, (off_t)bytes) == 0) return TWS_OK;
  if (errno != ENOSPC && errno != EFBIG && errno != EDQUOT) return fail(err, "reserve the swap file", file->path, NULL);
  const double room = fstatvfs(file->fd, &fs) == 0 ? (double)fs.f_bavail * (double)fs.f_frsize : 0;
  return tws_fail(err, TWS_ENVIRONMENT, "give another nvme_path, use more ranks, or offload to the cpu",
                  "the disk is full: swap file %.400s needs %s, and %s are left", file->path,
                  tws_format_bytes((double)bytes, need, sizeof need), tws_format_bytes(room, left, sizeof left));
}

static tws_code make(int folder, uint64_t bytes, tws_swap_file *file, tws_error *err) {
  const int flags = O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC;
  const char *name = strrchr(file->path, '/') + 1;
  file->direct = 1;
  file->fd = openat(folder, name, flags | O_DIRECT, 0600);
  if (file->fd < 0 && errno == EINVAL) {
    unlinkat(folder, name, 0); /* some file systems report that O_DIRECT is not supported after they have created the
                                * file */
    file->direct = 0;
    file->fd = openat(folder, name, flags, 0600);
  }
  if (file->fd < 0) return fail(err, "make the swap file", file->path, NULL);
  tws_code code = TWS_OK;
  if (flock(file->fd, LOCK_EX | LOCK_NB) != 0) code = fail(err, "lock the swap file", file->path, NULL);
  if (code == TWS_OK) code = reserve(file, bytes, err);
  if (code == TWS_OK) return TWS_OK;
  unlinkat(folder, name, 0);
  close(file->fd);
  file->fd = -1;
  return code;
}

tws_code tws_swap_create(const char *folder, const char *name, uint64_t bytes, tws_swap_file *out, int *cleared,
                         tws_error *err) {
  char host[65] = "host";
  *out = (tws_swap_file){.fd = -1};
  *cleared = 0;
  gethostname(host, sizeof host - 1);
  int length = snprintf(out->path, sizeof out->path, "%s/%s", folder, folder_name);
  if (length < 0 || (size_t)length + 160 > sizeof out->path)
    return tws_fail(err, TWS_ENVIRONMENT, NULL, "nvme_path %.60s... is too long", folder);
  if (mkdir(out->path, 0777) != 0 && errno != EEXIST)
    return fail(err, "make the folder", out->path, "nvme_path has to be a folder that may be written to");
  const int fd = open_folder(out->path);
  if (fd < 0) return fail(err, "open the folder", out->path, NULL);
  flock(fd, LOCK_EX); /* if the folder cannot be locked, two processes that start at the same time may remove each
                       * other's new file */
  *cleared = clear(fd);
  snprintf(out->path + length, sizeof out->path - (size_t)length, "/%s-%ld-%s%s", host, (long)getpid(), name, ending);
  const tws_code code = make(fd, bytes, out, err);
  if (code == TWS_OK) (void)tws_unfinished_add_path(out->path);
  close(fd);
  return code;
}

int tws_swap_clear(const char *folder) {
  char path[TWS_SWAP_PATH];
  const int length = snprintf(path, sizeof path, "%s/%s", folder, folder_name);
  const int fd = length > 0 && (size_t)length < sizeof path ? open_folder(path) : -1;
  if (fd < 0) return 0;
  flock(fd, LOCK_EX);
  const int cleared = clear(fd);
  rmdir(path); /* fails if other processes have files in it */
  close(fd);
  return cleared;
}

void tws_swap_remove(tws_swap_file *file) {
  char *slash = strrchr(file->path, '/');
  if (file->fd < 0) return;
  tws_unfinished_release_path(file->path);
  *slash = '\0';
  const int folder = open_folder(file->path);
  if (folder >= 0) unlinkat(folder, slash + 1, 0);
  if (folder >= 0) close(folder);
  close(file->fd);
  file->fd = -1;
  rmdir(file->path); /* fails if other processes have files in it */
}
