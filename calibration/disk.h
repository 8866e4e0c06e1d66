/* Calibration of a disk: reads and writes files like the training engine's swap files, with several block sizes, queue
 * depths and numbers of threads, as DeepSpeed's ds_nvme_tune does. */
#ifndef TWS_CALIBRATION_DISK_H
#define TWS_CALIBRATION_DISK_H

#include <cjson/cJSON.h>

#include "base/log.h"
#include "real/real.h"

typedef struct tws_disk_trial {
  tws_aio aio;
  double read, write; /* bytes/s, medians over the rounds */
} tws_disk_trial;

enum { TWS_DISK_TRIALS = 64, TWS_DISK_ROUNDS = 3 };
typedef struct tws_disk_calibration {
  tws_disk_trial trial[TWS_DISK_TRIALS];
  int count, best; /* best: index of the trial that takes the least time to read and write a byte */
  int direct;      /* 1: the transfers bypassed the page cache (O_DIRECT) */
  uint64_t bytes;  /* size of each transfer */
} tws_disk_calibration;

/* Measures reads and writes of files of `bytes` bytes in `folder`; quick: 1 for fewer settings and one round. Fails
 * with TWS_ENVIRONMENT or TWS_IO like the functions of real/disk.h. */
tws_code tws_calibrate_disk(const tws_real_api *real, const char *folder, uint64_t bytes, int quick,
                            tws_progress *progress, tws_disk_calibration *out, tws_error *err);

/* Writes the disk's measured rates into the file of a hardware profile; simulations and estimates with that profile
 * then use them. */
tws_code tws_disk_into_profile(const tws_disk_trial *best, const char *path, tws_error *err);
/* Returns TWS_OK if the file `path` is a profile. A caller can thus report a wrong path before it measures for
 * minutes. */
tws_code tws_disk_profile_check(const char *path, tws_error *err);
/* Build the section "aio" of a DeepSpeed configuration; write a file that contains only this section. */
cJSON *tws_aio_json(const tws_aio *aio);
tws_code tws_aio_write(const tws_aio *aio, const char *path, tws_error *err);

#endif
