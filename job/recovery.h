/* Recovery of a job after ranks have failed: launchers and the emulator use these functions to decide whether the job
 * continues, from which checkpoint, and with how many ranks. */
#ifndef TWS_JOB_RECOVERY_H
#define TWS_JOB_RECOVERY_H

#include "checkpoint/folder.h"
#include "job/job.h"

/* Returns 1 if a job that ended with `code` is to continue: it has several ranks, saves checkpoints (folder is not
 * NULL), and may continue `left` more times. */
int tws_recovery_continues(tws_code code, int64_t left, int64_t ranks, const char *folder);
/* The checkpoint from which the job continues: the newest whose bytes all match their checksums. */
typedef struct tws_recovery_point {
  /* tag of the checkpoint; "": the job continues from its own start, because it has saved no checkpoint yet */
  char tag[TWS_TAG_SIZE];
  int has_base;     /* 1: frozen parameters are not in the checkpoint; they are read from the base model's file */
  tws_error damage; /* the damage of the newest damaged checkpoint; an empty message: no checkpoint is damaged */
} tws_recovery_point;
/* Finds the newest intact checkpoint of the job. Its checkpoints are those in `folder` that were written after `since`,
 * the tws_folder_stamp() of `latest` when the job began (the folder may have older ones), and `origin`, the tag from
 * which it began (NULL: none). Fails with TWS_INVALID if the job has checkpoints and all of them are damaged, since
 * saved work is discarded only if the user requests it. */
tws_code tws_recovery_find(const char *folder, int64_t since, const char *origin, tws_recovery_point *point,
                           tws_error *err);
/* Finds the largest number of ranks up to `most` among which the batch can be divided, and loads the job with it; job
 * NULL: the caller needs only the number. Fails with TWS_NO if there is no such number, and with the errors of
 * tws_job_load() except TWS_INVALID. */
tws_code tws_recovery_reshard(const tws_job_spec *spec, int64_t most, int64_t *ranks, tws_job **job, tws_error *err);

#endif
