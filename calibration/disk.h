/* Calibration of a disk: reads and writes the training engine's own swap files with several block sizes, queue depths
 * and numbers of threads, as DeepSpeed's ds_nvme_tune does with its own. */
#ifndef TWS_CALIBRATION_DISK_H
#define TWS_CALIBRATION_DISK_H

#include <cjson/cJSON.h>

#include "base/log.h"
#include "real/real.h"

typedef struct tws_disk_trial {
  tws_aio aio;
  double read, write; /* bytes/s: medians of the rounds */
} tws_disk_trial;

enum { TWS_DISK_TRIALS = 64, TWS_DISK_ROUNDS = 3 };
typedef struct tws_disk_calibration {
  tws_disk_trial trial[TWS_DISK_TRIALS];
  int count, best; /* best: the least time for a byte each way */
  int direct;      /* past the page cache */
  uint64_t bytes;  /* of each transfer */
} tws_disk_calibration;

/* Measures with files of `bytes` bytes in `folder`; quick: fewer settings, once each. TWS_ENVIRONMENT, TWS_IO: as
 * real/disk.h says. */
tws_code tws_calibrate_disk(const tws_real_api *real, const char *folder, uint64_t bytes, int quick,
                            tws_progress *progress, tws_disk_calibration *out, tws_error *err);

/* Writes what was measured into a profile's file, whose simulations and estimates then use it. */
tws_code tws_disk_into_profile(const tws_disk_trial *best, const char *path, tws_error *err);
/* Whether that file is a profile: to ask before minutes of measuring. */
tws_code tws_disk_profile_check(const char *path, tws_error *err);
/* The section "aio" of a configuration, and a file that has it alone. */
cJSON *tws_aio_json(const tws_aio *aio);
tws_code tws_aio_write(const tws_aio *aio, const char *path, tws_error *err);

#endif
