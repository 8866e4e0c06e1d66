/* Output files: the product writes files through these functions alone (tests/test_house.c).
 *
 * A file appears complete or not at all: it is written to a new file with a random name in the same folder, flushed to
 * the disk (fsync) and renamed. The rename replaces the name itself: where the name is a symbolic link, the link is
 * replaced and its target is left alone.
 * Devices, pipes and sockets are written to directly, and so are the targets of system links (below /dev and /proc:
 * /dev/stdout, /dev/fd/63), unless such a target is a regular file. The caller decides whether an existing file may
 * be replaced (cli/outputs.h); tws_path_kind_of() reports what exists. Signals remove unfinished files
 * (base/unfinished.h). */
#ifndef TWS_BASE_OUTPUT_FILE_H
#define TWS_BASE_OUTPUT_FILE_H

#include <stddef.h>
#include "base/status.h"

typedef enum tws_path_kind {
  TWS_PATH_FREE,
  TWS_PATH_FILE,
  TWS_PATH_LINK,   /* symbolic, to anything but a folder */
  TWS_PATH_FOLDER, /* or a link to one */
  TWS_PATH_STREAM, /* a device, a pipe, a socket */
  TWS_PATH_SYSTEM, /* a link of the system to a regular file: neither written to nor replaced */
  TWS_PATH_UNKNOWN /* errno says why */
} tws_path_kind;
tws_path_kind tws_path_kind_of(const char *path);

enum { TWS_NAME_SIZE = 256 };
typedef struct tws_new_file {
  int fd;           /* to write to */
  int is_stream;    /* a device or a pipe: it has no offsets, and is not renamed */
  const char *path; /* the caller's, for messages, valid until the close */
  int folder, slot; /* open directory; slot in the registry of unfinished files */
  char name[TWS_NAME_SIZE], temporary[TWS_NAME_SIZE];
} tws_new_file;

/* Open a file that will be `path`, or `name` in the open directory `folder`, with `path` for messages. */
tws_code tws_new_file_open(const char *path, tws_new_file *file, tws_error *err);
tws_code tws_new_file_open_in(int folder, const char *name, const char *path, tws_new_file *file, tws_error *err);
/* Path of the unfinished file, to read it again before the rename; "" for a stream. */
const char *tws_new_file_temporary(const tws_new_file *file, char *path, size_t size);
/* With `code` TWS_OK the file is on the disk and renamed when this returns TWS_OK. Otherwise the unfinished file is
 * removed and `code` is returned. */
tws_code tws_new_file_close(tws_new_file *file, tws_code code, tws_error *err);

/* Write `text` to `path` in this way. No directories are created. */
tws_code tws_write_file(const char *path, const char *text, size_t length, tws_error *err);
tws_code tws_write_file_in(int folder, const char *name, const char *path, const char *text, size_t length,
                           tws_error *err);
/* Writes all bytes to an open file, in as many calls as it takes. TWS_IO names the path. */
tws_code tws_write_all(int fd, const char *path, const void *bytes, size_t count, tws_error *err);
/* Fails with TWS_IO: `what` cannot be done with the path, for the reason in errno; the hint says what to do if the
 * disk is full. */
tws_code tws_output_failed(const char *path, const char *what, tws_error *err);

/* Opens a file that others may read while it grows (logs, the CSV of a training): it appears at once, empty, and
 * replaces any file of this name. */
tws_code tws_growing_file(const char *path, int *fd, tws_error *err);
/* Opens a regular file to change it in place; links are refused. A missing file is created if `create` is 1; if it
 * is 0, *fd is -1 and the result TWS_OK. */
tws_code tws_changed_file(const char *path, int create, int *fd, tws_error *err);
/* Opens a regular file in an open directory (AT_FDCWD: the working directory) for appending: it is created if
 * missing, links are refused, and its contents stay. `path` is for messages. */
tws_code tws_appended_file(int folder, const char *name, const char *path, int *fd, tws_error *err);
/* Creates a new file in an open directory; TWS_IO if the name exists. `path` is for messages. */
tws_code tws_exclusive_file(int folder, const char *name, const char *path, int *fd, tws_error *err);
/* Opens a folder, which is created with its parents if missing. ".": the working directory. */
tws_code tws_make_folder(const char *path, int *fd, tws_error *err);
/* Returns 0 if files can be created in the folder, or -1 with errno. */
int tws_probe_folder(const char *folder);
/* The parent directory of a path ("." for a name alone), truncated to `size`. */
void tws_parent_of(const char *path, char *parent, size_t size);
/* Removes a file that the program created; a link is removed itself. */
void tws_remove_file(const char *path);

/* ---- scratch: in TMPDIR, or /tmp ---- */
/* An empty file, and a folder that only this user can access; signals remove them. */
tws_code tws_temporary_file(char *path, size_t size, const char *name, tws_error *err);
tws_code tws_temporary_folder(char *path, size_t size, const char *name, tws_error *err);
void tws_temporary_remove(const char *path); /* a file, or a folder with its contents; "": nothing */
/* The folder for scratch files: TMPDIR or /tmp. */
const char *tws_temporary_place(void);

#endif
