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

static const char prefix[] = "global_step", saving[] = ".saving-", removing[] = ".removing-";

static tws_code system_error(tws_error *err, const char *hint, const char *what, const char *path) {
  const int reason = errno;
  return tws_fail(err, TWS_IO,
                  reason == ENOSPC || reason == EDQUOT || reason == EFBIG
                      ? "make room there, keep fewer checkpoints (--keep), or save to another disk"
                      : hint,
                  "%.400s: cannot %s: %s", path, what, strerror(reason));
}

tws_code tws_file_failed(const char *path, const char *what, tws_error *err) {
  return system_error(err, NULL, what, path);
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

tws_code tws_write_all(int fd, const char *path, const void *bytes, size_t count, tws_error *err) {
  for (size_t done = 0; done < count;) {
    const ssize_t n = write(fd, (const char *)bytes + done, count - done);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return system_error(err, NULL, "write", path);
    done += (size_t)n;
  }
  return TWS_OK;
}

tws_code tws_sync_folder(const char *folder, tws_error *err) {
  const int fd = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) return system_error(err, NULL, "open", folder);
  const int failed = fsync(fd) != 0 && errno != EINVAL; /* some file systems have nothing to write there */
  tws_code code = failed ? system_error(err, NULL, "write to the disk", folder) : TWS_OK;
  close(fd);
  return code;
}

tws_code tws_file_begin(const char *path, int *fd, tws_error *err) {
  *fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
  return *fd >= 0 ? TWS_OK : system_error(err, NULL, "create the file", path);
}

tws_code tws_file_end(int fd, const char *path, tws_code code, tws_error *err) {
  if (code == TWS_OK && fsync(fd) != 0) code = system_error(err, NULL, "write to the disk", path);
  if (close(fd) != 0 && code == TWS_OK) code = system_error(err, NULL, "write", path);
  return code;
}

tws_code tws_write_durable(const char *path, const char *text, size_t length, tws_error *err) {
  const int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
  if (fd < 0) return system_error(err, NULL, "create the file", path);
  return tws_file_end(fd, path, tws_write_all(fd, path, text, length, err), err);
}

/* A folder of files, or one that is not there. */
static tws_code remove_folder(const char *folder, tws_error *err) {
  char path[TWS_FOLDER_SIZE];
  struct dirent *entry;
  DIR *directory = opendir(folder);
  if (!directory) return errno == ENOENT ? TWS_OK : system_error(err, NULL, "remove", folder);
  while ((entry = readdir(directory))) {
    if (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0) continue;
    join(path, folder, "", entry->d_name);
    unlink(path);
  }
  closedir(directory);
  if (rmdir(folder) == 0 || errno == ENOENT) return TWS_OK;
  return system_error(err, "what is in it that a checkpoint does not have?", "remove", folder);
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

tws_code tws_folder_lock(const char *folder, int *lock, tws_error *err) {
  static const char hint[] = "name a folder that can be written to, or one that can be made";
  char path[TWS_FOLDER_SIZE], host[40] = "", who[64];
  *lock = -1;
  if (mkdir(folder, 0777) != 0 && errno != EEXIST) return system_error(err, hint, "make the folder", folder);
  join(path, folder, "", TWS_FOLDER_LOCK);
  const int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
  if (fd < 0) return system_error(err, hint, "create the file", path);
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
  if (code == TWS_OK) (void)fsync(fd); /* other nodes look for it */
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

typedef struct tags {
  int64_t *step;
  size_t count, capacity;
} tags;

static int compare_steps(const void *a, const void *b) {
  const int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
  return (x < y) - (x > y);
}

/* Newest first; none where the folder cannot be read. */
static tags list_tags(const char *folder) {
  tags found = {0};
  struct dirent *entry;
  DIR *directory = opendir(folder);
  while (directory && (entry = readdir(directory))) {
    const int64_t step = tws_step_of_tag(entry->d_name);
    if (step < 0 || tws_reserve(&found.step, &found.capacity, found.count + 1, sizeof *found.step)) continue;
    found.step[found.count++] = step;
  }
  if (directory) closedir(directory);
  if (found.count > 1) qsort(found.step, found.count, sizeof *found.step, compare_steps);
  return found;
}

int tws_folder_has_checkpoints(const char *folder) {
  tags found = list_tags(folder);
  tws_free(found.step);
  return found.count > 0;
}

int64_t tws_folder_newest(const char *folder, int64_t below) {
  tags found = list_tags(folder);
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
  if (statvfs(folder, &disk) != 0) return TWS_OK; /* nothing is known: writing will tell */
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
  tags found = list_tags(folder);
  size_t length = 0;
  text[0] = '\0';
  for (size_t i = 0; i < found.count && length + 32 < size; i++) {
    char tag[TWS_TAG_SIZE];
    tws_tag_of_step(found.step[i], tag, sizeof tag);
    if (strcmp(tag, but) != 0) length += (size_t)snprintf(text + length, size - length, "%s%s", length ? " " : "", tag);
  }
  tws_free(found.step);
}

const char *tws_folder_others(const char *path, char *text, size_t size) {
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
  if (tws_read_file(path, 4096, &text, &length, NULL) != TWS_OK)
    return tws_fail(err, TWS_IO, hint, "%s: there is no file \"latest\" that would name a checkpoint", folder);
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

/* ---- saving ---- */

static tws_code remove_leftovers(const char *folder, tws_error *err) {
  char path[TWS_FOLDER_SIZE];
  struct dirent *entry;
  DIR *directory = opendir(folder);
  if (!directory) return system_error(err, NULL, "open", folder);
  tws_code code = TWS_OK;
  while (code == TWS_OK && (entry = readdir(directory))) {
    if (strncmp(entry->d_name, saving, sizeof saving - 1) != 0 &&
        strncmp(entry->d_name, removing, sizeof removing - 1) != 0)
      continue;
    join(path, folder, "", entry->d_name);
    code = remove_folder(path, err);
  }
  closedir(directory);
  return code;
}

const char *tws_folder_temporary(const char *folder, const char *tag, char *path, size_t size) {
  snprintf(path, size, "%.3500s/%s%.255s", folder, saving, tag);
  return path;
}

tws_code tws_folder_begin(const char *folder, const char *tag, tws_error *err) {
  char path[TWS_FOLDER_SIZE];
  TWS_TRY(remove_leftovers(folder, err));
  tws_folder_temporary(folder, tag, path, sizeof path);
  return mkdir(path, 0777) == 0 ? TWS_OK : system_error(err, NULL, "make the folder", path);
}

static tws_code retire(const char *folder, const char *tag, tws_error *err) {
  char path[TWS_FOLDER_SIZE], away[TWS_FOLDER_SIZE];
  join(path, folder, "", tag);
  join(away, folder, removing, tag);
  TWS_TRY(remove_folder(away, err));
  if (rename(path, away) != 0) return errno == ENOENT ? TWS_OK : system_error(err, NULL, "remove", path);
  return remove_folder(away, err);
}

static tws_code write_latest(const char *folder, const char *tag, tws_error *err) {
  char path[TWS_FOLDER_SIZE], temporary[TWS_FOLDER_SIZE];
  join(path, folder, "", "latest");
  join(temporary, folder, "", ".latest.new");
  TWS_TRY(tws_write_durable(temporary, tag, strlen(tag), err));
  if (rename(temporary, path) != 0) return system_error(err, NULL, "write", path);
  return tws_sync_folder(folder, err);
}

/* What had the name changes places with what gets it, in one step where the file system can. */
static tws_code give_name(const char *folder, const char *tag, tws_error *err) {
  char from[TWS_FOLDER_SIZE], to[TWS_FOLDER_SIZE];
  tws_folder_temporary(folder, tag, from, sizeof from);
  join(to, folder, "", tag);
  if (access(to, F_OK) != 0) return rename(from, to) == 0 ? TWS_OK : system_error(err, NULL, "rename it", from);
  if (renameat2(AT_FDCWD, from, AT_FDCWD, to, RENAME_EXCHANGE) == 0) return TWS_OK;
  TWS_TRY(retire(folder, tag, err));
  return rename(from, to) == 0 ? TWS_OK : system_error(err, NULL, "rename it", from);
}

static tws_code keep_newest(const char *folder, int64_t step, int64_t keep, tws_error *err) {
  tags found = list_tags(folder);
  tws_code code = TWS_OK;
  int64_t kept = 0;
  for (size_t i = 0; i < found.count && code == TWS_OK; i++) {
    char tag[TWS_TAG_SIZE];
    if (found.step[i] > step || kept++ < keep) continue;
    tws_tag_of_step(found.step[i], tag, sizeof tag);
    code = retire(folder, tag, err);
  }
  tws_free(found.step);
  return code;
}

tws_code tws_folder_publish(const char *folder, const char *tag, int64_t keep, tws_error *err) {
  char path[TWS_FOLDER_SIZE];
  tws_folder_temporary(folder, tag, path, sizeof path);
  TWS_TRY(tws_sync_folder(path, err));
  TWS_TRY(give_name(folder, tag, err));
  TWS_TRY(tws_sync_folder(folder, err));
  TWS_TRY(write_latest(folder, tag, err));
  TWS_TRY(remove_leftovers(folder, err)); /* where names were exchanged */
  return keep > 0 ? keep_newest(folder, tws_step_of_tag(tag), keep, err) : TWS_OK;
}
