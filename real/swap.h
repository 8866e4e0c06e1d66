/* Swap files: one for each arena on a disk, made in full at the start and removed at the end.
 *
 * They lie in FOLDER/twinspeed-swap. Who made one holds a lock on it (flock) as long as the process lives, however it
 * ends, so that what is not locked belongs to nobody: the next that makes a file there removes it first. What another
 * run holds stays. */
#ifndef TWS_REAL_SWAP_H
#define TWS_REAL_SWAP_H

#include <stdint.h>
#include "base/status.h"

enum { TWS_SWAP_PATH = 1024 };

typedef struct tws_swap_file {
  char path[TWS_SWAP_PATH];
  int fd;
  int direct; /* opened past the page cache (O_DIRECT), where the file system can */
} tws_swap_file;

/* A file of `bytes` bytes, all of them there and zero; `name` tells files of one process apart. *cleared: files of
 * ended processes that were removed. TWS_ENVIRONMENT names the folder or file and says why not. */
tws_code tws_swap_create(const char *folder, const char *name, uint64_t bytes, tws_swap_file *out, int *cleared,
                         tws_error *err);
/* Removes files of ended processes; returns how many. */
int tws_swap_clear(const char *folder);
/* The file, and the folder if it was the last in it. */
void tws_swap_remove(tws_swap_file *file);

#endif
