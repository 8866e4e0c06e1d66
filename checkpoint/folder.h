/* The folder that checkpoints are saved into: DIR/<tag>/ with tags "global_step<N>", DIR/latest (the newest tag),
 * DIR/.lock.
 *
 * A job writes a checkpoint to DIR/.saving-<tag> and renames this folder to DIR/<tag> when every byte is on the disk.
 * It then writes `latest`, and removes older checkpoints last, after renaming them (checkpoint/saving.h). So every
 * folder named global_step<N> is complete, however a save ended, and the folder that `latest` names exists. Names that
 * begin with .saving- and .removing- are leftovers. */
#ifndef TWS_CHECKPOINT_FOLDER_H
#define TWS_CHECKPOINT_FOLDER_H

#include <stddef.h>
#include <stdint.h>
#include "base/status.h"

/* the file that is locked; its text names the process and the host that hold the lock */
#define TWS_FOLDER_LOCK ".lock"
enum { TWS_TAG_SIZE = 256, TWS_FOLDER_SIZE = 4096 };

/* Convert a step to its tag, such as "global_step10", and a tag to its step; the latter returns -1 for any other
 * text. */
void tws_tag_of_step(int64_t step, char *tag, size_t size);
int64_t tws_step_of_tag(const char *tag);

/* Creates the folder if it does not exist, and holds its lock until tws_folder_unlock() or the end of the process.
 * Fails with TWS_IO if the folder cannot be written to, or if another job saves into it. */
tws_code tws_folder_lock(const char *folder, int *lock, tws_error *err);
void tws_folder_unlock(int lock); /* -1 is allowed */
/* Returns 1 if the folder has at least one checkpoint, else 0. */
int tws_folder_has_checkpoints(const char *folder);
int tws_folder_same(const char *a, const char *b);
/* Fails with TWS_IO for lack of disk space; the message names the needed bytes, `bytes`, and the free bytes,
 * `there`. */
tws_code tws_folder_room(const char *folder, uint64_t bytes, tws_error *err);
/* Fails with that error; `there`: free bytes on the disk */
tws_code tws_folder_refuse(const char *folder, uint64_t bytes, double there, tws_error *err);

/* Returns the path of the temporary folder that a checkpoint with this tag is written to before it is renamed. */
const char *tws_folder_temporary(const char *folder, const char *tag, char *path, size_t size);
/* Finds the path of the checkpoint with this tag or, if tag is NULL, of the checkpoint that `latest` names. If tag is
 * NULL and the folder is itself a checkpoint, its own path is returned. Fails with TWS_IO if there is no such
 * checkpoint; the message lists those that exist. */
tws_code tws_folder_find(const char *folder, const char *tag, char *path, size_t size, tws_error *err);
/* The steps that have a folder (or a link to one) with a checkpoint, newest first; `step` is freed by tws_free(). */
typedef struct tws_steps {
  int64_t *step;
  size_t count, capacity;
} tws_steps;
tws_steps tws_folder_steps(const char *folder);
/* Returns the newest step lower than `below` that has a checkpoint folder, or -1. */
int64_t tws_folder_newest(const char *folder, int64_t below);
/* Returns the time at which a file of the folder ("latest" or "global_step5/index.json") was written, in nanoseconds; 0
 * if there is no such file. */
int64_t tws_folder_stamp(const char *folder, const char *file);
/* Returns 1 if the checkpoint at `path` no longer exists, because the job that saves there keeps only newer ones.
 * `newer` receives the tag that `latest` names, if it is another, or "". */
int tws_folder_is_removed(const char *path, char *newer, size_t size);
/* Writes the other tags in the directory of `path` into `text` ("global_step5 global_step10"), newest first, and
 * returns `text`; "" if there are none. */
const char *tws_folder_other_tags(const char *path, char *text, size_t size);

/* ---- files that last ---- */
/* tws_file_begin() creates a new file; it fails with TWS_IO if a file of that name exists, or if the path leads through
 * a link. tws_file_end() closes the file, after flushing its data to the disk. `code` is the result of the writes
 * between the two calls; if it is an error, tws_file_end() returns it. */
tws_code tws_file_begin(const char *path, int *fd, tws_error *err);
tws_code tws_file_end(int fd, const char *path, tws_code code, tws_error *err);

#endif
