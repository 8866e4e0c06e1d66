/* An arena on a disk: a swap file (real/swap.h) that is read and written in blocks, many of them in flight at once.
 *
 * Transfers run one after another in the order in which they were started, overlapped with all other work of the
 * process: they are a queue, as the disk is a stream of the plan. Worker threads of the disk
 * (`aio.intra_op_parallelism`) share each transfer; each keeps `queue_depth` blocks of `block_size` bytes in flight by
 * Linux's asynchronous I/O, bypassing the page cache. Where the program was built without libaio or the system does not
 * offer it, a thread has one block in flight.
 *
 * Whole blocks of TWS_DISK_ALIGNMENT bytes at aligned addresses are transferred directly; others are copied through
 * a buffer, and a transfer that begins or ends inside such a block reads it before it is written. */
#ifndef TWS_REAL_DISK_H
#define TWS_REAL_DISK_H

#include <stdint.h>
#include "base/status.h"
#include "config/ds_config.h"
#include "plan/plan.h"

typedef struct tws_disk tws_disk;

typedef struct tws_disk_setup {
  const char *folder; /* folder for swap files; NULL: the system's folder of temporary files */
  tws_aio aio;        /* block_size 0: all members have the configuration's default values */
} tws_disk_setup;

typedef struct tws_disk_count { /* bytes of the requests to the system, including the reads that precede writes of
                                 * partial blocks */
  uint64_t read, written;
} tws_disk_count;

/* Creates a swap file of `bytes` zeroed bytes. name: see tws_swap_create(). */
tws_code tws_disk_create(const tws_disk_setup *setup, const char *name, uint64_t bytes, tws_disk **out, tws_error *err);
void tws_disk_destroy(tws_disk *disk); /* waits for started transfers; NULL is allowed */

/* A transfer between `memory` and bytes [offset, offset + bytes) of the file: from the memory if `writes`. The
 * memory must not be accessed until tws_disk_wait() has returned. what: name of the data for errors; must outlive
 * the transfer. times: NULL, or two doubles for its start and end, tws_clock_s(). *ticket grows with every call. */
typedef struct tws_disk_transfer {
  int writes;
  uint64_t offset, bytes;
  void *memory;
  const char *what;
  double *times;
} tws_disk_transfer;
tws_code tws_disk_start(tws_disk *disk, const tws_disk_transfer *transfer, uint64_t *ticket, tws_error *err);
/* Waits until this transfer and all transfers that were started before it have ended. Fails with TWS_IO if one of them
 * has failed, naming the data and the file; later transfers are then not begun, and no later call succeeds. */
tws_code tws_disk_wait(tws_disk *disk, uint64_t ticket, tws_error *err);
uint64_t tws_disk_started(const tws_disk *disk); /* returns the ticket of the last transfer that was started; 0: none
                                                  * was */
tws_disk_count tws_disk_transferred(tws_disk *disk); /* returns the numbers of bytes of the transfers that have ended */
/* Measures the speed in bytes/s of one transfer of a whole file of `bytes` bytes, in each direction, for `calibrate
 * --disk`. */
tws_code tws_disk_measure(const char *folder, const tws_aio *aio, uint64_t bytes, double *read, double *write,
                          int *direct, tws_error *err);
const char *tws_disk_path(const tws_disk *disk);
int tws_disk_is_direct(const tws_disk *disk);

#endif
