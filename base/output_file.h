/* The one way in which the program writes files.
 *
 * A file appears whole or not at all: it is written to a new file with a random name in the same folder, flushed to the
 * disk and renamed. The name that it gets is replaced itself: a symbolic link there is replaced, and what it names is
 * left alone.
 * Devices, pipes and sockets are written to as they are, and so is what the links of the system (below /dev and /proc:
 * /dev/stdout, /dev/fd/63) lead to, unless that is a regular file. Whether something that is there may be replaced is
 * the caller's question (cli/outputs.h); tws_path_kind_of() tells. Unfinished files are removed by signals
 * (base/unfinished.h). No other file of the product opens files for writing (tests/test_house.c). */
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
  int is_stream;    /* a device or a pipe: it has no places, and is not renamed */
  const char *path; /* the caller's, for messages, until the end */
  int folder, slot; /* the open directory; in the registry of unfinished files */
  char name[TWS_NAME_SIZE], temporary[TWS_NAME_SIZE];
} tws_new_file;

/* Begins a file that will be `path`, or `name` in the open directory `folder`, with `path` for messages. */
tws_code tws_new_file_open(const char *path, tws_new_file *file, tws_error *err);
tws_code tws_new_file_open_in(int folder, const char *name, const char *path, tws_new_file *file, tws_error *err);
/* Path of the unfinished file, to read it again before it is renamed; "" for a stream. */
const char *tws_new_file_temporary(const tws_new_file *file, char *path, size_t size);
/* With TWS_OK: on the disk and renamed when it returns TWS_OK. Otherwise the unfinished file is removed and the code
 * handed on. */
tws_code tws_new_file_close(tws_new_file *file, tws_code code, tws_error *err);

/* Writes `text` to `path` in this way. Creates no directories. */
tws_code tws_write_file(const char *path, const char *text, size_t length, tws_error *err);
tws_code tws_write_file_in(int folder, const char *name, const char *path, const char *text, size_t length,
                           tws_error *err);
/* All bytes to an open file, however many calls it takes. TWS_IO names the path. */
tws_code tws_write_all(int fd, const char *path, const void *bytes, size_t count, tws_error *err);
/* TWS_IO: what cannot be done with the path, for the reason that errno has, with what to do where the disk is full. */
tws_code tws_output_failed(const char *path, const char *what, tws_error *err);

/* A file that others may read while it grows (logs, the CSV of a training): it is there and empty at once, in place of
 * what had the name. */
tws_code tws_growing_file(const char *path, int *fd, tws_error *err);
/* A regular file that is changed in place; links are refused. create: it is made where there is none. *fd is -1, and
 * the result TWS_OK, where there is none and `create` is 0. */
tws_code tws_changed_file(const char *path, int create, int *fd, tws_error *err);
/* A regular file in an open directory (AT_FDCWD: where the process is) that grows at its end: it is made where there is
 * none, links are refused, and what it has stays. `path` is for messages. */
tws_code tws_appended_file(int folder, const char *name, const char *path, int *fd, tws_error *err);
/* A new file in an open directory; TWS_IO where the name is taken. `path` is for messages. */
tws_code tws_exclusive_file(int folder, const char *name, const char *path, int *fd, tws_error *err);
/* Opens a folder; it is made where it is not there, and so are those above it. ".": where the process is. */
tws_code tws_make_folder(const char *path, int *fd, tws_error *err);
/* Can files be made in the folder? 0, or -1 with errno. */
int tws_probe_folder(const char *folder);
/* The directory that holds a path ("." for a name alone); cut where it does not fit. */
void tws_parent_of(const char *path, char *parent, size_t size);
/* Removes a file of the program's own; a link is removed itself. */
void tws_remove_file(const char *path);

/* ---- scratch: in TMPDIR, or /tmp ---- */
/* An empty file, and a folder that only this user can enter; signals remove them. */
tws_code tws_temporary_file(char *path, size_t size, const char *name, tws_error *err);
tws_code tws_temporary_folder(char *path, size_t size, const char *name, tws_error *err);
void tws_temporary_remove(const char *path); /* a file, or a folder with all that is in it; "": nothing */
/* The folder itself: TMPDIR or /tmp. */
const char *tws_temporary_place(void);

#endif
