/* The folder that checkpoints are saved into: DIR/<tag>/ with "global_step<N>" as tags, DIR/latest, DIR/.lock.
 *
 * A checkpoint is written to DIR/.saving-<tag> and gets its name when every byte is on the disk; `latest` is written
 * after that, and older ones go last, by way of another name (checkpoint/saving.h). So whatever is called
 * global_step<N> is whole, however a save ended, and what `latest` names is there. Names that begin with .saving- and
 * .removing- are leftovers. */
#ifndef TWS_CHECKPOINT_FOLDER_H
#define TWS_CHECKPOINT_FOLDER_H

#include <stddef.h>
#include <stdint.h>
#include "base/status.h"

#define TWS_FOLDER_LOCK ".lock" /* says which process of which host holds it */
enum { TWS_TAG_SIZE = 256, TWS_FOLDER_SIZE = 4096 };

/* "global_step10"; -1: not such a tag. */
void tws_tag_of_step(int64_t step, char *tag, size_t size);
int64_t tws_step_of_tag(const char *tag);

/* Makes the folder when it is not there and holds its lock until tws_folder_unlock() or the end of the process.
 * TWS_IO: it cannot be written to, or another job saves there. */
tws_code tws_folder_lock(const char *folder, int *lock, tws_error *err);
void tws_folder_unlock(int lock); /* -1 is allowed */
/* Returns 1 if the folder has any checkpoint. */
int tws_folder_has_checkpoints(const char *folder);
int tws_folder_same(const char *a, const char *b);
/* Bytes that can be written there; TWS_IO with what is missing where there are fewer. */
tws_code tws_folder_room(const char *folder, uint64_t bytes, tws_error *err);
tws_code tws_folder_refuse(const char *folder, uint64_t bytes, double there, tws_error *err); /* says it */

/* Where the tag is written to before it has its name. */
const char *tws_folder_temporary(const char *folder, const char *tag, char *path, size_t size);
/* Path of a checkpoint: of the tag, or with tag NULL of the one that `latest` names. A folder that is itself a
 * checkpoint is taken as it is when no tag is given. TWS_IO with what is there instead. */
tws_code tws_folder_find(const char *folder, const char *tag, char *path, size_t size, tws_error *err);
/* Steps that have a folder (or a link to one) with a checkpoint, newest first; step is the caller's (tws_free). */
typedef struct tws_steps {
  int64_t *step;
  size_t count, capacity;
} tws_steps;
tws_steps tws_folder_steps(const char *folder);
/* The newest step below `below` that has a folder, or -1. */
int64_t tws_folder_newest(const char *folder, int64_t below);
/* When a file in it was written, "latest" or "global_step5/index.json": nanoseconds; 0: it is not there. */
int64_t tws_folder_stamp(const char *folder, const char *file);
/* Returns 1 if the checkpoint at `path` no longer exists, because the job that saves there keeps only newer ones.
 * `newer` receives the tag that `latest` names, if it is another, or "". */
int tws_folder_vanished(const char *path, char *newer, size_t size);
/* Returns "global_step5 global_step10", the other tags in the directory of `path`, newest first; "" if there are
 * none. */
const char *tws_folder_others(const char *path, char *text, size_t size);

/* ---- files that last ---- */
/* A new file (TWS_IO where there is one of that name; neither it nor its folder is reached through a link), and its
 * end: on the disk when it returns. end: `code` is what came in between; it is handed on, and the file closed. */
tws_code tws_file_begin(const char *path, int *fd, tws_error *err);
tws_code tws_file_end(int fd, const char *path, tws_code code, tws_error *err);

#endif
