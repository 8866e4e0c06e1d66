#include "base/unfinished.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <unistd.h>

enum { SLOTS = 64, NAME_SIZE = 1024, MOST_DEPTH = 8 };
enum { FREE, TAKEN, READY };

/* One registered file or folder. A signal handler reads a slot only if its state is READY, which is set after all other
 * members. A forked child process has a copy of the list, but does not remove the files of its parent. */
typedef struct slot {
  atomic_int state;
  pid_t owner;
  int folder, is_folder;
  char name[NAME_SIZE];
} slot;
struct tws_unfinished {
  slot slots[SLOTS];
};
static tws_unfinished own;
static slot *slots = own.slots;

tws_unfinished *tws_unfinished_list(void) {
  return &own;
}

void tws_unfinished_use(tws_unfinished *list) {
  slots = list->slots;
}

static int add(int folder, const char *name, int is_folder) {
  if (strlen(name) >= NAME_SIZE) return -1;
  for (int i = 0; i < SLOTS; i++) {
    int expected = FREE;
    slot *s = &slots[i];
    if (!atomic_compare_exchange_strong(&s->state, &expected, TAKEN)) continue;
    s->owner = getpid();
    s->folder = folder;
    s->is_folder = is_folder;
    memcpy(s->name, name, strlen(name) + 1);
    atomic_store(&s->state, READY);
    return i;
  }
  return -1;
}

int tws_unfinished_add(int folder, const char *name) {
  return add(folder, name, 0);
}

int tws_unfinished_add_path(const char *path) {
  return add(AT_FDCWD, path, 0);
}

int tws_unfinished_add_folder(const char *path) {
  return add(AT_FDCWD, path, 1);
}

void tws_unfinished_release(int i) {
  if (i >= 0) atomic_store(&slots[i].state, FREE);
}

void tws_unfinished_release_path(const char *path) {
  for (int i = 0; i < SLOTS; i++) {
    slot *s = &slots[i];
    if (atomic_load(&s->state) == READY && s->folder == AT_FDCWD && strcmp(s->name, path) == 0)
      tws_unfinished_release(i);
  }
}

void tws_unfinished_remove(void) {
  const pid_t self = getpid();
  for (int i = 0; i < SLOTS; i++) {
    const slot *s = &slots[i];
    if (atomic_load(&s->state) != READY || s->owner != self) continue;
    if (s->is_folder)
      (void)tws_remove_tree(s->folder, s->name);
    else
      (void)unlinkat(s->folder, s->name, 0);
  }
}

/* ---- removal of folders with their contents, without readdir(): it allocates memory, which a signal handler must not
 * ---- */

static int remove_tree(int folder, const char *name, int depth);

/* Removes the entries that one getdents() call returned and adds their number to *removed. Returns 0, or -1 if an entry
 * could not be removed. */
static int remove_found(int directory, const char *bytes, long count, int depth, int *removed) {
  int failed = 0;
  for (long at = 0; at < count;) {
    const struct dirent64 *entry = (const struct dirent64 *)(const void *)(bytes + at);
    at += entry->d_reclen;
    if (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0) continue;
    const int gone = unlinkat(directory, entry->d_name, 0) == 0 ||
                     ((errno == EISDIR || errno == EPERM) && remove_tree(directory, entry->d_name, depth + 1) == 0);
    *removed += gone;
    failed |= !gone;
  }
  return failed ? -1 : 0;
}

static int remove_tree(int folder, const char *name, int depth) {
  _Alignas(struct dirent64) char bytes[2048];
  if (depth > MOST_DEPTH) return -1;
  const int directory = openat(folder, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
  if (directory < 0) return -1;
  for (int removed = 1; removed > 0;) { /* list again, because removals change the positions of other entries */
    removed = 0;
    if (lseek(directory, 0, SEEK_SET) < 0) break;
    for (;;) {
      const long count = syscall(SYS_getdents64, directory, bytes, sizeof bytes);
      if (count <= 0) break;
      (void)remove_found(directory, bytes, count, depth, &removed);
    }
  }
  close(directory);
  return unlinkat(folder, name, AT_REMOVEDIR);
}

int tws_remove_tree(int folder, const char *name) {
  return remove_tree(folder, name, 0);
}
