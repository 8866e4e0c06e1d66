/* What a job does when ranks of it have failed: whether it goes on, and with how many ranks. For those who start ranks
 * and for the emulator. */
#ifndef TWS_JOB_RECOVERY_H
#define TWS_JOB_RECOVERY_H

#include "job/job.h"

/* Whether a job of several ranks that ended with `code` goes on from its checkpoints in `folder` (NULL: none), where it
 * may do so `left` times more. */
int tws_recovery_goes_on(tws_code code, int64_t left, int64_t ranks, const char *folder);
/* The job with as many ranks as it can have, but no more than `most`: fewer and fewer, until the batch can be divided
 * among them. *job NULL: what was found is not wanted as a job. TWS_NO: there is no such number; other errors than
 * TWS_INVALID are those of loading. */
tws_code tws_recovery_shrink(const tws_job_spec *spec, int64_t most, int64_t *ranks, tws_job **job, tws_error *err);

#endif
