#include "checkpoint/folder.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "base/json.h"
#include "base/memory.h"
#include "base/number.h"
#include "base/units.h"
#include "checkpoint/deepspeed.h"
#include "checkpoint/index.h"

static const char prefix[] = "global_step", saving[] = ".saving-";

static tws_code system_error(tws_error *err, const char *hint, const char *what, const char *path) {
  const int reason = errno;
  return tws_fail(err, TWS_IO,
                  reason == ENOSPC || reason == EDQUOT || reason == EFBIG
                      ? "make room there, keep fewer checkpoints (--keep), or save to another disk"
                      : hint,
                  "%.400s: cannot %s: %s", path, what, strerror(reason));
}

static void join(char *path, const char *folder, const char *before, const char *name) {
  snprintf(path, TWS_FOLDER_SIZE, "%.3500s/%s%.300s", folder, before, name);
}

void tws_tag_of_step(int64_t step, char *tag, size_t size) {
  snprintf(tag, size, "%s%" PRId64, prefix, step);
}

int64_t tws_step_of_tag(const char *tag) {
  const size_t length = sizeof prefix - 1;
  if (strncmp(tag, prefix, length) != 0) return -1;
  const char *digits = tag + length;
  const size_t count = strlen(digits);
  if (count < 1 || count > 18 || strspn(digits, "0123456789") != count || (digits[0] == '0' && count > 1)) return -1;
  int64_t step = -1;
  tws_text_integer(digits, NULL, 0, INT64_MAX, &step);
  return step;
}

/* ---- files ---- */

tws_code tws_file_begin(const char *path, int *fd, tws_error *err) {
  char parent[TWS_FOLDER_SIZE];
  const char *slash = strrchr(path, '/');
  tws_parent_of(path, parent, sizeof parent);
  const int folder = open(parent, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
  if (folder < 0) return system_error(err, NULL, "create the file", path);
  const tws_code code = tws_exclusive_file(folder, slash ? slash + 1 : path, path, fd, err);
  close(folder);
  return code;
}

tws_code tws_file_end(int fd, const char *path, tws_code code, tws_error *err) {
  if (code == TWS_OK && fsync(fd) != 0) code = system_error(err, NULL, "write to the disk", path);
  if (close(fd) != 0 && code == TWS_OK) code = system_error(err, NULL, "write", path);
  return code;
}

/* ---- the lock ---- */

static tws_code in_use(const char *folder, int lock, tws_error *err) {
  char who[64] = "";
  const ssize_t got = pread(lock, who, sizeof who - 1, 0);
  who[got > 0 ? got : 0] = '\0';
  who[strcspn(who, "\n")] = '\0';
  return tws_fail(err, TWS_IO, "give each job a folder of its own", "%s: another job saves there%s%s", folder,
                  *who ? ": " : "", who);
}

/* Removes a symbolic link, or an additional hard link, that has the name of the lock file; its target stays. The folder
 * is locked meanwhile, so that two jobs do not remove each other's lock. */
static void remove_link(int folder, const char *name) {
  struct stat info;
  (void)flock(folder, LOCK_EX);
  if (fstatat(folder, name, &info, AT_SYMLINK_NOFOLLOW) == 0 &&
      (S_ISLNK(info.st_mode) || (S_ISREG(info.st_mode) && info.st_nlink > 1)))
    unlinkat(folder, name, 0);
  (void)flock(folder, LOCK_UN);
}

static tws_code open_lock(const char *path, const char *hint, int *lock, tws_error *err) {
  char parent[TWS_FOLDER_SIZE];
  struct stat info = {0};
  tws_parent_of(path, parent, sizeof parent);
  const int folder = open(parent, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (folder < 0) return system_error(err, hint, "open the folder", parent);
  remove_link(folder, TWS_FOLDER_LOCK);
  *lock = openat(folder, TWS_FOLDER_LOCK, O_RDWR | O_CREAT | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC, 0666);
  close(folder);
  if (*lock < 0) return system_error(err, hint, "create the file", path);
  if (fstat(*lock, &info) == 0 && S_ISREG(info.st_mode) && info.st_nlink == 1) return TWS_OK;
  close(*lock);
  *lock = -1;
  return tws_fail(err, TWS_IO, "remove it", "%.400s: not a regular file, and the lock is one", path);
}

tws_code tws_folder_lock(const char *folder, int *lock, tws_error *err) {
  static const char hint[] = "name a folder that can be written to, or one that can be made";
  char path[TWS_FOLDER_SIZE], host[40] = "", who[64];
  int fd = -1;
  *lock = -1;
  if (mkdir(folder, 0777) != 0 && errno != EEXIST) return system_error(err, hint, "make the folder", folder);
  join(path, folder, "", TWS_FOLDER_LOCK);
  TWS_TRY(open_lock(path, hint, &fd, err));
  if (flock(fd, LOCK_EX | LOCK_NB) != 0) {
    const int taken = errno == EWOULDBLOCK;
    tws_code code = taken ? in_use(folder, fd, err) : system_error(err, hint, "lock", path);
    close(fd);
    return code;
  }
  gethostname(host, sizeof host - 1);
  snprintf(who, sizeof who, "process %ld on %s\n", (long)getpid(), host);
  tws_code code = ftruncate(fd, 0) == 0 ? TWS_OK : system_error(err, hint, "write", path);
  if (code == TWS_OK) code = tws_write_all(fd, path, who, strlen(who), err);
  if (code == TWS_OK) (void)fsync(fd); /* other nodes wait for the file to appear */
  if (code == TWS_OK)
    *lock = fd;
  else
    close(fd);
  return code;
}

void tws_folder_unlock(int lock) {
  if (lock >= 0) close(lock);
}

/* ---- what is there ---- */

static int compare_steps(const void *a, const void *b) {
  const int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
  return (x < y) - (x > y);
}

/* Returns 1 if the folder of a tag has an index or is a checkpoint of DeepSpeed; files left over from a removed
 * checkpoint do not count. */
static int has_checkpoint(const char *folder, const char *tag) {
  char path[TWS_FOLDER_SIZE], index[TWS_FOLDER_SIZE];
  join(path, folder, "", tag);
  join(index, path, "", TWS_CHECKPOINT_INDEX);
  return access(index, F_OK) == 0 || tws_deepspeed_is(path);
}

tws_steps tws_folder_steps(const char *folder) {
  tws_steps found = {0};
  struct dirent *entry;
  DIR *directory = opendir(folder);
  while (directory && (entry = readdir(directory))) {
    const int64_t step = tws_step_of_tag(entry->d_name);
    if (step < 0 || !has_checkpoint(folder, entry->d_name)) continue;
    if (tws_reserve(&found.step, &found.capacity, found.count + 1, sizeof *found.step)) continue;
    found.step[found.count++] = step;
  }
  if (directory) closedir(directory);
  if (found.count > 1) qsort(found.step, found.count, sizeof *found.step, compare_steps);
  return found;
}

int tws_folder_has_checkpoints(const char *folder) {
  tws_steps found = tws_folder_steps(folder);
  tws_free(found.step);
  return found.count > 0;
}

int64_t tws_folder_newest(const char *folder, int64_t below) {
  tws_steps found = tws_folder_steps(folder);
  int64_t newest = -1;
  for (size_t i = found.count; i-- > 0;)
    if (found.step[i] < below) newest = found.step[i];
  tws_free(found.step);
  return newest;
}

int64_t tws_folder_stamp(const char *folder, const char *file) {
  char path[TWS_FOLDER_SIZE];
  struct stat info;
  join(path, folder, "", file);
  return stat(path, &info) == 0 ? (int64_t)info.st_mtim.tv_sec * 1000000000 + info.st_mtim.tv_nsec : 0;
}

int tws_folder_same(const char *a, const char *b) {
  struct stat x, y;
  return stat(a, &x) == 0 && stat(b, &y) == 0 && x.st_dev == y.st_dev && x.st_ino == y.st_ino;
}

tws_code tws_folder_room(const char *folder, uint64_t bytes, tws_error *err) {
  struct statvfs disk;
  if (statvfs(folder, &disk) != 0) return TWS_OK; /* free space unknown; if the disk is full, a write fails later */
  const double there = (double)disk.f_bavail * (double)disk.f_frsize;
  return there >= (double)bytes ? TWS_OK : tws_folder_refuse(folder, bytes, there, err);
}

tws_code tws_folder_refuse(const char *folder, uint64_t bytes, double there, tws_error *err) {
  char need[32], have[32];
  return tws_fail(err, TWS_IO, "make room there, keep fewer checkpoints (--keep), or save to another disk",
                  "%s: a checkpoint takes %s, and the disk has %s left", folder,
                  tws_format_bytes((double)bytes, need, sizeof need), tws_format_bytes(there, have, sizeof have));
}

static void add_tags(const char *folder, const char *but, char *text, size_t size) {
  tws_steps found = tws_folder_steps(folder);
  size_t length = 0;
  text[0] = '\0';
  for (size_t i = 0; i < found.count && length + 32 < size; i++) {
    char tag[TWS_TAG_SIZE];
    tws_tag_of_step(found.step[i], tag, sizeof tag);
    if (strcmp(tag, but) != 0) length += (size_t)snprintf(text + length, size - length, "%s%s", length ? " " : "", tag);
  }
  tws_free(found.step);
}

const char *tws_folder_other_tags(const char *path, char *text, size_t size) {
  char folder[TWS_FOLDER_SIZE];
  snprintf(folder, sizeof folder, "%s", path);
  char *slash = strrchr(folder, '/');
  text[0] = '\0';
  if (!slash) return text;
  *slash = '\0';
  add_tags(folder, slash + 1, text, size);
  return text;
}

static tws_code read_latest(const char *folder, char *tag, size_t size, tws_error *err) {
  char path[TWS_FOLDER_SIZE], there[160], hint[256], *text = NULL;
  size_t length = 0;
  join(path, folder, "", "latest");
  add_tags(folder, "", there, sizeof there);
  if (*there)
    snprintf(hint, sizeof hint, "name one with --tag: %s", there);
  else
    snprintf(hint, sizeof hint, "checkpoints are saved with --save DIR");
  const int there_is = access(path, F_OK) == 0;
  if (!there_is && errno != ENOENT)
    return system_error(err, errno == ENOTDIR ? "name the folder that --save was given" : NULL, "open", folder);
  if (there_is) {
    const tws_code code = tws_read_regular(path, 4096, &text, &length, err);
    if (code != TWS_OK) {
      if (err && *there) snprintf(err->hint, sizeof err->hint, "%s", hint);
      return code;
    }
  }
  if (!text) return tws_fail(err, TWS_IO, hint, "%s: there is no file \"latest\" that would name a checkpoint", folder);
  while (length > 0 && (text[length - 1] == '\n' || text[length - 1] == ' ')) text[--length] = '\0';
  snprintf(tag, size, "%s", text);
  const int fits = length > 0 && length < size && strlen(text) == length;
  tws_free(text);
  return fits && !strchr(tag, '/') && tag[0] != '.' ? TWS_OK
                                                    : tws_fail(err, TWS_INVALID, hint, "%s: does not name a tag", path);
}

tws_code tws_folder_find(const char *folder, const char *tag, char *path, size_t size, tws_error *err) {
  char latest[TWS_TAG_SIZE], index[TWS_FOLDER_SIZE], there[160], hint[256];
  join(index, folder, "", "index.json");
  if (!tag && access(index, F_OK) == 0) {
    snprintf(path, size, "%s", folder);
    for (size_t length = strlen(path); length > 1 && path[length - 1] == '/';) path[--length] = '\0';
    return TWS_OK;
  }
  if (access(folder, F_OK) != 0) return system_error(err, "name the folder that --save was given", "open", folder);
  if (!tag) TWS_TRY(read_latest(folder, latest, sizeof latest, err));
  if (!tag) tag = latest;
  if (!*tag || strchr(tag, '/') || tag[0] == '.')
    return tws_fail(err, TWS_USAGE, "for example --tag global_step100", "\"%.100s\" is not a tag", tag);
  snprintf(path, size, "%.3500s/%.255s", folder, tag);
  if (access(path, F_OK) == 0) return TWS_OK;
  add_tags(folder, "", there, sizeof there);
  snprintf(hint, sizeof hint, *there ? "there are: %s" : "checkpoints are saved with --save DIR", there);
  return tws_fail(err, TWS_IO, hint, "%s: there is no checkpoint \"%.100s\"", folder, tag);
}

int tws_folder_is_removed(const char *path, char *newer, size_t size) {
  char folder[TWS_FOLDER_SIZE];
  const char *slash = strrchr(path, '/');
  *newer = '\0';
  if (!slash || tws_step_of_tag(slash + 1) < 0) return 0;
  tws_parent_of(path, folder, sizeof folder);
  if (read_latest(folder, newer, size, NULL) != TWS_OK || strcmp(newer, slash + 1) == 0) *newer = '\0';
  return access(path, F_OK) != 0 && errno == ENOENT;
}

/* ---- saving: the rest is in checkpoint/saving.c ---- */

const char *tws_folder_temporary(const char *folder, const char *tag, char *path, size_t size) {
  snprintf(path, size, "%.3500s/%s%.255s", folder, saving, tag);
  return path;
}
