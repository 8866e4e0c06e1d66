/* Output files. The program writes every file through these functions, which tests/test_house.c checks.
 *
 * A file appears complete or not at all: it is written to a new file with a random name in the same folder, flushed to
 * the disk (fsync) and renamed. If a symbolic link has the file's name, the rename replaces the link, and the link's
 * target is unchanged. Devices, pipes and sockets are written to directly, and so are the targets of system links
 * (below /dev and /proc: /dev/stdout, /dev/fd/63), unless such a target is a regular file. The caller decides whether
 * an existing file may be replaced (cli/outputs.h); tws_path_kind_of() reports what exists. Signals remove unfinished
 * files (base/unfinished.h). */
#ifndef TWS_BASE_OUTPUT_FILE_H
#define TWS_BASE_OUTPUT_FILE_H

#include <stddef.h>
#include "base/status.h"

typedef enum tws_path_kind {
  TWS_PATH_FREE,
  TWS_PATH_FILE,
  TWS_PATH_LINK,   /* a symbolic link to anything but a folder */
  TWS_PATH_FOLDER, /* a folder, or a symbolic link to one */
  TWS_PATH_STREAM, /* a device, a pipe, a socket */
  TWS_PATH_SYSTEM, /* a link below /dev or /proc to a regular file, which is neither written to nor replaced */
  TWS_PATH_UNKNOWN /* the kind could not be determined; errno has the reason */
} tws_path_kind;
tws_path_kind tws_path_kind_of(const char *path);

enum { TWS_NAME_SIZE = 256 };
typedef struct tws_new_file {
  int fd;           /* descriptor to write to */
  int is_stream;    /* 1: a device, pipe or socket, which has no offsets and is not renamed */
  const char *path; /* the caller's string, used in messages; must stay valid until the close */
  int folder, slot; /* descriptor of the open directory; slot in the registry of unfinished files, or -1 */
  char name[TWS_NAME_SIZE], temporary[TWS_NAME_SIZE];
} tws_new_file;

/* Opens a temporary file for writing; tws_new_file_close() renames it to `path`. */
tws_code tws_new_file_open(const char *path, tws_new_file *file, tws_error *err);
/* Returns the path of the unfinished file (written into `path`), so that it can be read again before the rename; "" for
 * a stream. */
const char *tws_new_file_temporary(const tws_new_file *file, char *path, size_t size);
/* Closes the file. If `code` is TWS_OK, the file is flushed to the disk and renamed, and the result of both is
 * returned. Otherwise the unfinished file is removed and `code` is returned. */
tws_code tws_new_file_close(tws_new_file *file, tws_code code, tws_error *err);

/* Writes `text` to `path` through an unfinished file that is renamed. Missing folders are not created. */
tws_code tws_write_file(const char *path, const char *text, size_t length, tws_error *err);
tws_code tws_write_file_in(int folder, const char *name, const char *path, const char *text, size_t length,
                           tws_error *err);
/* Writes all `count` bytes to an open file, with as many calls of write() as needed; fails with TWS_IO and names the
 * path. */
tws_code tws_write_all(int fd, const char *path, const void *bytes, size_t count, tws_error *err);
/* Fails with TWS_IO: `what` cannot be done with the path, for the reason in errno; the hint says what to do if the
 * disk is full. */
tws_code tws_output_failed(const char *path, const char *what, tws_error *err);

/* Opens a file that other processes may read while it grows (logs, the CSV of a training). When this function returns,
 * the file exists and is empty; it replaces any file of this name. */
tws_code tws_growing_file(const char *path, int *fd, tws_error *err);
/* Opens a regular file to change it in place; refuses links. If the file is missing, it is created if `create` is 1;
 * otherwise *fd is -1 and TWS_OK is returned. */
tws_code tws_changed_file(const char *path, int create, int *fd, tws_error *err);
/* Opens a regular file of an open directory (AT_FDCWD: the working directory) for appending. It is created if missing,
 * links are refused, and existing contents are preserved. `path` is used in messages. */
tws_code tws_appended_file(int folder, const char *name, const char *path, int *fd, tws_error *err);
/* Creates a new file in an open directory; fails with TWS_IO if the name exists. `path` is used in messages. */
tws_code tws_exclusive_file(int folder, const char *name, const char *path, int *fd, tws_error *err);
/* Opens a folder and creates it and its parents if they are missing. "." is the working directory. */
tws_code tws_make_folder(const char *path, int *fd, tws_error *err);
/* Returns 0 if files can be created in the folder, or -1 with errno. */
int tws_probe_folder(const char *folder);
/* Writes the parent directory of a path ("." if the path has no '/') into `parent`, truncated to `size` bytes. */
void tws_parent_of(const char *path, char *parent, size_t size);
/* Removes a file that the program created; of a symbolic link, the link itself is removed and not its target. */
void tws_remove_file(const char *path);

/* ---- temporary files and folders: in TMPDIR, or /tmp ---- */
/* Create an empty temporary file, or a temporary folder that only this user can access, and write its path into `path`.
 * A signal that ends the program removes it. */
tws_code tws_temporary_file(char *path, size_t size, const char *name, tws_error *err);
tws_code tws_temporary_folder(char *path, size_t size, const char *name, tws_error *err);
void tws_temporary_remove(const char *path); /* removes a file, or a folder with its contents; "": does nothing */
/* Returns the folder for scratch files: TMPDIR, or /tmp. */
const char *tws_temporary_place(void);

#endif
