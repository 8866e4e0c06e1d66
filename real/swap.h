/* Swap files: one for each arena on a disk, allocated in full at the start and removed at the end.
 *
 * They are in FOLDER/twinspeed-swap. The process that creates a file holds a lock on it (flock) until the process
 * ends, for whatever reason. A file without a lock is therefore left over: the next process that creates a file
 * there removes it first. Files of other running jobs stay. */
#ifndef TWS_REAL_SWAP_H
#define TWS_REAL_SWAP_H

#include <stdint.h>
#include "base/status.h"

enum { TWS_SWAP_PATH = 1024 };

typedef struct tws_swap_file {
  char path[TWS_SWAP_PATH];
  int fd;
  int direct; /* opened with O_DIRECT, where the file system supports it */
} tws_swap_file;

/* Creates a file of `bytes` bytes, allocated and zeroed; `name` distinguishes files of one process. *cleared: number
 * of left-over files that were removed. TWS_ENVIRONMENT names the folder or file and the reason. */
tws_code tws_swap_create(const char *folder, const char *name, uint64_t bytes, tws_swap_file *out, int *cleared,
                         tws_error *err);
/* Removes files of ended processes; returns their number. */
int tws_swap_clear(const char *folder);
/* Removes the file, and the folder if it is empty then. */
void tws_swap_remove(tws_swap_file *file);

#endif
