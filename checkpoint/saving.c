#include "checkpoint/saving.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/json.h"
#include "base/number.h"
#include "checkpoint/index.h"

static const char saving[] = ".saving-", removing[] = ".removing-";
static const char other_disk[] = "make room there, keep fewer checkpoints (--keep), or save to another disk";

typedef struct place { /* an open folder that contains checkpoints */
  const char *path;
  int fd;
  tws_text *remarks;
} place;

static tws_code failed(tws_error *err, const char *what, const char *path) {
  const int reason = errno;
  const int full = reason == ENOSPC || reason == EDQUOT || reason == EFBIG;
  return tws_fail(err, TWS_IO, full ? other_disk : NULL, "%.400s: cannot %s: %s", path, what, strerror(reason));
}

static tws_code open_place(const char *path, tws_text *remarks, place *p, tws_error *err) {
  *p = (place){path, open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC), remarks};
  return p->fd >= 0 ? TWS_OK : failed(err, "open", path);
}

/* Adds a remark as one line; control characters in the name are escaped. */
static void remark(const place *p, const char *name, const char *why) {
  char line[TWS_FOLDER_SIZE];
  if (!p->remarks) return;
  snprintf(line, sizeof line, "%.400s/%.240s: %.1000s", p->path, name, why);
  for (char *c = line; *c; c++)
    if ((unsigned char)*c < 32 || *c == 127) *c = '?';
  tws_text_add(p->remarks, "%s\n", line);
}

/* Renames an entry of a folder unless the new name exists. Some file systems cannot check and rename in one
 * operation. */
static int rename_to_free(int from, const char *name, int to, const char *new_name) {
  struct stat info;
  if (renameat2(from, name, to, new_name, RENAME_NOREPLACE) == 0) return 0;
  if (errno != EINVAL && errno != ENOSYS) return -1;
  if (fstatat(to, new_name, &info, AT_SYMLINK_NOFOLLOW) != 0) return renameat(from, name, to, new_name);
  errno = EEXIST;
  return -1;
}

static int begins(const char *name, const char *with) {
  return strncmp(name, with, strlen(with)) == 0;
}

static mode_t mode_of(int folder, const char *name) {
  struct stat info;
  return fstatat(folder, name, &info, AT_SYMLINK_NOFOLLOW) == 0 ? info.st_mode : 0;
}

static int open_inside(int folder, const char *name) {
  return openat(folder, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
}

/* ---- what is in a checkpoint's folder ---- */

/* Reads the index in an open checkpoint folder; returns NULL if there is none or it is invalid. */
static tws_saved_index *read_index(int folder, const char *name) {
  char *text = NULL;
  size_t length = 0;
  tws_saved_index *index = NULL;
  if (tws_read_regular_in(folder, TWS_CHECKPOINT_INDEX, name, 0, &text, &length, NULL) != TWS_OK) return NULL;
  if (tws_saved_parse(text, length, name, &index, NULL) != TWS_OK) index = NULL;
  tws_free(text);
  return index;
}

static int lists(const tws_saved_index *index, const char *name) {
  if (strcmp(name, TWS_CHECKPOINT_INDEX) == 0) return index != NULL;
  for (uint32_t i = 0; index && i < index->file_count; i++)
    if (strcmp(index->files[i].name, name) == 0) return 1;
  return 0;
}

/* Returns 1 if the name is one that a save gives to files in its temporary folder. If the save is interrupted, no index
 * lists them. */
static int is_unfinished(const char *name) {
  const char *end;
  int rank;
  if (begins(name, "rank-") && tws_text_int(name + 5, &end, 0, INT32_MAX, &rank) && strcmp(end, ".safetensors") == 0)
    return 1;
  return strcmp(name, TWS_CHECKPOINT_INDEX) == 0 || begins(name, ".new-");
}

typedef int (*name_visitor)(void *user, int folder, const char *name);

/* Calls `visit` for every name in the folder, and returns the number of calls that did not return 0. */
static int for_names(int folder, name_visitor visit, void *user) {
  const int again = openat(folder, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  DIR *list = again >= 0 ? fdopendir(again) : NULL;
  int count = 0;
  if (!list) {
    if (again >= 0) close(again);
    return 0;
  }
  for (const struct dirent *entry; (entry = readdir(list));)
    if (strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0)
      count += visit(user, folder, entry->d_name) != 0;
  closedir(list);
  return count;
}

typedef struct others { /* collects the names of files that the index does not list */
  const tws_saved_index *index;
  char names[160];
  int to; /* open folder to which these files are moved; -1: they are not moved */
} others;

static int note_other(void *user, int folder, const char *name) {
  others *o = user;
  const size_t used = strlen(o->names);
  if (lists(o->index, name)) return 0;
  if (o->to >= 0 && rename_to_free(folder, name, o->to, name) == 0) return 0;
  snprintf(o->names + used, sizeof o->names - used, "%s%.80s", used ? ", " : "", name);
  return 1;
}

/* ---- removing ---- */

static int remove_unfinished(void *user, int folder, const char *name) {
  (void)user;
  return is_unfinished(name) && unlinkat(folder, name, 0) != 0;
}

/* Removes the files that the index lists and then the index itself, because the index is needed to repeat an
 * interrupted removal. Returns how many could not be removed. */
static int remove_listed(int folder, const tws_saved_index *index) {
  int left = 0;
  for (uint32_t i = 0; i < index->file_count; i++)
    left += unlinkat(folder, index->files[i].name, 0) != 0 && errno != ENOENT;
  return left + (unlinkat(folder, TWS_CHECKPOINT_INDEX, 0) != 0);
}

/* Removes a folder of an unfinished save or removal, or a link with such a name. */
static int remove_leftover(void *user, int folder, const char *name) {
  const place *p = user;
  const int is_saving = begins(name, saving), is_removing = begins(name, removing);
  const size_t length = strlen(name);
  if ((begins(name, ".new-") && length > 7 && strcmp(name + length - 7, "-latest") == 0) ||
      strcmp(name, ".latest.new") == 0) /* temporary names of `latest` in this version and an earlier one */
    return unlinkat(folder, name, 0) != 0;
  if (!is_saving && !is_removing) return 0;
  if (S_ISLNK(mode_of(folder, name)) && unlinkat(folder, name, 0) == 0) return 0;
  const int inside = open_inside(folder, name);
  if (inside >= 0) {
    tws_saved_index *index = read_index(inside, name);
    if (index) (void)remove_listed(inside, index);
    tws_saved_close(index);
    (void)for_names(inside, remove_unfinished, NULL);
    close(inside);
  }
  if (unlinkat(folder, name, AT_REMOVEDIR) == 0 || errno == ENOENT) return 0;
  const char *tag = name + strlen(removing);
  if (is_removing && tws_step_of_tag(tag) >= 0 && rename_to_free(folder, name, folder, tag) == 0) {
    remark(p, tag, "the checkpoint was removed, and what its index does not list stays there");
    return 0;
  }
  remark(p, name,
         "left from a save that was cut off, and it stays: not everything in it is a save's, or can be removed");
  return 1;
}

static void remove_leftovers(const place *p) {
  (void)for_names(p->fd, remove_leftover, (void *)(uintptr_t)p);
}

/* Renames the folder of a removed checkpoint to its previous name, because it is not empty: it contains files of the
 * user. */
static void put_back(const place *p, const char *away, const char *tag, int inside, int left) {
  others found = {.to = -1};
  char why[400];
  (void)for_names(inside, note_other, &found);
  (void)rename_to_free(p->fd, away, p->fd, tag);
  snprintf(why, sizeof why,
           left ? "this old checkpoint cannot be removed as a whole; there is still: %s"
                : "the old checkpoint was removed, and what its index does not list stays: %s",
           found.names);
  remark(p, tag, why);
}

/* Removes a checkpoint. Its folder is renamed first, so that a folder with the name of a checkpoint never lacks
 * files. */
static void remove_checkpoint(const place *p, const char *tag, const tws_saved_index *index) {
  char away[TWS_TAG_SIZE + 16];
  snprintf(away, sizeof away, "%s%.240s", removing, tag);
  if (rename_to_free(p->fd, tag, p->fd, away) != 0) {
    remark(p, tag, "this old checkpoint stays: it cannot be renamed");
    return;
  }
  const int inside = open_inside(p->fd, away);
  const int left = inside >= 0 ? remove_listed(inside, index) : 1;
  if (unlinkat(p->fd, away, AT_REMOVEDIR) != 0) put_back(p, away, tag, inside, left);
  if (inside >= 0) close(inside);
}

static void retire(const place *p, const char *tag) {
  const mode_t mode = mode_of(p->fd, tag);
  if (S_ISLNK(mode)) {
    remark(p, tag,
           unlinkat(p->fd, tag, 0) == 0 ? "a symbolic link in place of an old checkpoint: the link is removed, "
                                          "and what it leads to stays"
                                        : "a symbolic link in place of an old checkpoint, and it cannot be "
                                          "removed");
    return;
  }
  const int inside = S_ISDIR(mode) ? open_inside(p->fd, tag) : -1;
  tws_saved_index *index = inside >= 0 ? read_index(inside, tag) : NULL;
  if (index)
    remove_checkpoint(p, tag, index);
  else if (mode)
    remark(p, tag, "it stays: no index that can be read lists what would be removed");
  tws_saved_close(index);
  if (inside >= 0) close(inside);
}

/* Returns 1 if the tag's folder has an index, whatever its content, or if the tag's name is a symbolic link. */
static int is_checkpoint(const place *p, const char *tag) {
  char path[TWS_TAG_SIZE + 16];
  struct stat info;
  snprintf(path, sizeof path, "%.240s/%s", tag, TWS_CHECKPOINT_INDEX);
  return fstatat(p->fd, path, &info, 0) == 0 || S_ISLNK(mode_of(p->fd, tag));
}

static void keep_newest(const place *p, int64_t step, int64_t keep) {
  tws_steps found = tws_folder_steps(p->path);
  int64_t kept = 0;
  for (size_t i = 0; i < found.count; i++) {
    char tag[TWS_TAG_SIZE];
    tws_tag_of_step(found.step[i], tag, sizeof tag);
    if (found.step[i] > step || !is_checkpoint(p, tag) || kept++ < keep) continue;
    retire(p, tag);
  }
  tws_free(found.step);
}

/* ---- saving ---- */

static void name_temporary(const char *tag, char *name, size_t size) {
  snprintf(name, size, "%s%.240s", saving, tag);
}

/* Renames an entry that could not be removed and has the name that the temporary folder needs. Returns 1 on success. */
static int step_aside(const place *p, const char *name) {
  char aside[TWS_TAG_SIZE + 32];
  for (int i = 1; i < 1000; i++) {
    snprintf(aside, sizeof aside, ".leftover-%d-%.230s", i, name + strlen(saving));
    if (rename_to_free(p->fd, name, p->fd, aside) == 0) {
      remark(p, aside, "it was in the way of a save, with what no save writes, and has this name now");
      return 1;
    }
    if (errno != EEXIST) break;
  }
  return 0;
}

tws_code tws_folder_begin(const char *folder, const char *tag, tws_text *remarks, tws_error *err) {
  place p;
  char name[TWS_TAG_SIZE + 16];
  TWS_TRY(open_place(folder, remarks, &p, err));
  name_temporary(tag, name, sizeof name);
  remove_leftovers(&p);
  int made = mkdirat(p.fd, name, 0777) == 0;
  if (!made && errno == EEXIST && step_aside(&p, name)) made = mkdirat(p.fd, name, 0777) == 0;
  const tws_code code = made ? TWS_OK : failed(err, "make a folder for the checkpoint", folder);
  close(p.fd);
  return code;
}

/* Renames the folder `from` to `tag`. If a folder `tag` exists, the two exchange names, atomically where the file
 * system supports it, and `old` receives the existing folder's new name; otherwise `old` becomes "". */
static tws_code give_name(const place *p, const char *from, const char *tag, char *old, size_t size, tws_error *err) {
  *old = '\0';
  if (mode_of(p->fd, tag) == 0) {
    if (renameat(p->fd, from, p->fd, tag) == 0) return TWS_OK;
  } else if (renameat2(p->fd, from, p->fd, tag, RENAME_EXCHANGE) == 0) {
    snprintf(old, size, "%s", from);
    return TWS_OK;
  } else {
    snprintf(old, size, "%s%.240s", removing, tag);
    if (renameat(p->fd, tag, p->fd, old) == 0 && renameat(p->fd, from, p->fd, tag) == 0) return TWS_OK;
  }
  return failed(err, "rename the checkpoint", p->path);
}

/* Moves the user's own files from a checkpoint that was replaced to the checkpoint that replaces it. */
static void keep_others(const place *p, const char *old, const char *tag) {
  const int from = open_inside(p->fd, old), to = open_inside(p->fd, tag);
  tws_saved_index *index = from >= 0 ? read_index(from, old) : NULL;
  others found = {.index = index, .to = to};
  if (index && to >= 0 && for_names(from, note_other, &found) > 0)
    remark(p, old, "it has files that are not the checkpoint's and cannot be moved to the new one");
  tws_saved_close(index);
  if (from >= 0) close(from);
  if (to >= 0) close(to);
}

static tws_code sync_folder(int fd, const char *path, tws_error *err) {
  return fsync(fd) == 0 || errno == EINVAL /* some file systems do not support fsync() of folders */
             ? TWS_OK
             : failed(err, "write to the disk", path);
}

static tws_code write_latest(const place *p, const char *tag, tws_error *err) {
  char path[TWS_FOLDER_SIZE];
  snprintf(path, sizeof path, "%.3500s/latest", p->path);
  TWS_TRY(tws_write_file_in(p->fd, "latest", path, tag, strlen(tag), err));
  return sync_folder(p->fd, p->path, err);
}

static tws_code publish(const place *p, const char *tag, char *old, size_t size, tws_error *err) {
  char name[TWS_TAG_SIZE + 16];
  name_temporary(tag, name, sizeof name);
  const int inside = open_inside(p->fd, name);
  tws_code code = inside >= 0 ? sync_folder(inside, p->path, err) : failed(err, "open the new checkpoint", p->path);
  if (inside >= 0) close(inside);
  if (code == TWS_OK) code = give_name(p, name, tag, old, size, err);
  if (code == TWS_OK) code = sync_folder(p->fd, p->path, err);
  return code == TWS_OK ? write_latest(p, tag, err) : code;
}

tws_code tws_folder_publish(const char *folder, const char *tag, int64_t keep, tws_text *remarks, tws_error *err) {
  place p;
  char old[TWS_TAG_SIZE + 16] = "";
  TWS_TRY(open_place(folder, remarks, &p, err));
  const tws_code code = publish(&p, tag, old, sizeof old, err);
  if (code == TWS_OK) { /* the checkpoint is saved: failures below are remarks, not errors */
    if (*old) keep_others(&p, old, tag);
    remove_leftovers(&p);
    if (keep > 0) keep_newest(&p, tws_step_of_tag(tag), keep);
  }
  close(p.fd);
  return code;
}

/* ---- before the first step ---- */

static void look_at(const place *p, const char *tag) {
  if (S_ISLNK(mode_of(p->fd, tag))) {
    remark(p, tag, "a symbolic link: --keep will remove the link, and not what it leads to");
    return;
  }
  const int inside = open_inside(p->fd, tag);
  tws_saved_index *index = inside >= 0 ? read_index(inside, tag) : NULL;
  others found = {.index = index, .to = -1};
  char why[400];
  if (!index) {
    remark(p, tag, "--keep will not remove it: no index that can be read lists its files");
  } else if (for_names(inside, note_other, &found) > 0) {
    snprintf(why, sizeof why, "--keep will remove the checkpoint, and leave what its index does not list: %s",
             found.names);
    remark(p, tag, why);
  }
  tws_saved_close(index);
  if (inside >= 0) close(inside);
}

tws_code tws_folder_look(const char *folder, int64_t keep, tws_text *remarks, tws_error *err) {
  static const char hint[] = "name a folder that can be written to";
  place p;
  TWS_TRY(open_place(folder, remarks, &p, err));
  remove_leftovers(&p);
  tws_code code = TWS_OK;
  if (S_ISDIR(mode_of(p.fd, "latest")))
    code = tws_fail(err, TWS_IO, "remove it, or name another folder",
                    "%.400s/latest: it is a folder, and a file is to be written", folder);
  else if (tws_probe_folder(folder) != 0)
    code = tws_fail(err, TWS_IO, hint, "%.400s: no checkpoint can be saved there: %s", folder, strerror(errno));
  tws_steps found = tws_folder_steps(folder);
  for (size_t i = 0; i < found.count && keep > 0 && code == TWS_OK; i++) {
    char tag[TWS_TAG_SIZE];
    tws_tag_of_step(found.step[i], tag, sizeof tag);
    if (is_checkpoint(&p, tag)) look_at(&p, tag);
  }
  tws_free(found.step);
  close(p.fd);
  return code;
}
