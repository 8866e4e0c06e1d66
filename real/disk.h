/* An arena on a disk: a swap file (real/swap.h) that is read and written in blocks, many of them under way at once.
 *
 * Transfers run one after another in the order in which they were started, beside whatever else the process does: they
 * are a queue, as the plan's channel of the disk is. Threads of the disk's own (`aio.intra_op_parallelism`) share each
 * transfer; each keeps `queue_depth` blocks of `block_size` bytes under way by Linux' asynchronous I/O, past the page
 * cache. Where the program was built without libaio or the system does not offer it, a thread has one block under way.
 *
 * Whole TWS_DISK_ALIGNMENT blocks at addresses that are multiples of it are moved as they are; what is not goes through
 * a buffer, and what begins or ends inside such a block is read before it is written. */
#ifndef TWS_REAL_DISK_H
#define TWS_REAL_DISK_H

#include <stdint.h>
#include "base/status.h"
#include "config/ds_config.h"
#include "plan/plan.h"

typedef struct tws_disk tws_disk;

typedef struct tws_disk_setup {
  const char *folder; /* for swap files; NULL: the folder of temporary files */
  tws_aio aio;        /* block_size 0: the defaults of the configuration */
} tws_disk_setup;

typedef struct tws_disk_count { /* bytes that the system was asked for and moved, those before a partial block included
                                 */
  uint64_t read, written;
} tws_disk_count;

/* A file of `bytes` bytes, zero. name: see tws_swap_create(). */
tws_code tws_disk_create(const tws_disk_setup *setup, const char *name, uint64_t bytes, tws_disk **out, tws_error *err);
void tws_disk_destroy(tws_disk *disk); /* waits for what was started; NULL is allowed */

/* A transfer between `memory` and bytes [offset, offset + bytes) of the file: from the memory if `writes`. The memory
 * is the disk's until tws_disk_wait() has returned. what: the name of what is moved, for errors; outlives the transfer.
 * times: NULL, or where its start and end go, tws_clock_s(). *ticket grows with every call. */
typedef struct tws_disk_transfer {
  int writes;
  uint64_t offset, bytes;
  void *memory;
  const char *what;
  double *times;
} tws_disk_transfer;
tws_code tws_disk_start(tws_disk *disk, const tws_disk_transfer *transfer, uint64_t *ticket, tws_error *err);
/* Until this transfer and all before it are done. TWS_IO: one of them failed, with the file's and its own name; those
 * behind it are not begun, and no later call succeeds. */
tws_code tws_disk_wait(tws_disk *disk, uint64_t ticket, tws_error *err);
uint64_t tws_disk_started(const tws_disk *disk); /* the last ticket, 0 before the first */
tws_disk_count tws_disk_moved(tws_disk *disk);   /* by what has ended */
/* Bytes/s of one transfer of a whole file of so many bytes, each way: what `calibrate --disk` measures. */
tws_code tws_disk_measure(const char *folder, const tws_aio *aio, uint64_t bytes, double *read, double *write,
                          int *direct, tws_error *err);
const char *tws_disk_path(const tws_disk *disk);
int tws_disk_is_direct(const tws_disk *disk);

#endif
