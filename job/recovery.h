/* Recovery of a job after ranks have failed: whether it continues, and with how many ranks. For launchers and the
 * emulator. */
#ifndef TWS_JOB_RECOVERY_H
#define TWS_JOB_RECOVERY_H

#include "checkpoint/folder.h"
#include "job/job.h"

/* Returns 1 if a job of several ranks that saves (folder not NULL) and ended with `code` continues, where it may do so
 * `left` more times. */
int tws_recovery_goes_on(tws_code code, int64_t left, int64_t ranks, const char *folder);
/* The checkpoint from which the job continues: the newest whose bytes all match their checksums. */
typedef struct tws_recovery_point {
  char tag[TWS_TAG_SIZE]; /* "": as the job was begun, because it has saved nothing yet */
  int has_base;           /* its frozen parameters are not in it: they come from the file that they came from first */
  tws_error damage;       /* of the newest of those that were passed over; no message: none was */
} tws_recovery_point;
/* Checkpoints of the job are those in `folder` that were written after `since`, which is tws_folder_stamp() of `latest`
 * when it began (others may be there from before), and `origin`, the tag there that it began from (NULL: none).
 * TWS_INVALID: there are some, and none is whole: work that was saved is not given up without being asked. */
tws_code tws_recovery_find(const char *folder, int64_t since, const char *origin, tws_recovery_point *point,
                           tws_error *err);
/* The job with as many ranks as it can have, but no more than `most`: fewer and fewer, until the batch can be divided
 * among them. *job NULL: what was found is not wanted as a job. TWS_NO: there is no such number; other errors than
 * TWS_INVALID are those of loading. */
tws_code tws_recovery_shrink(const tws_job_spec *spec, int64_t most, int64_t *ranks, tws_job **job, tws_error *err);

#endif
