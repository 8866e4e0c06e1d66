/* Private to this folder: what a twinspeed_job is. */
#ifndef TWS_LIBRARY_JOB_HANDLE_H
#define TWS_LIBRARY_JOB_HANDLE_H

#include "job/job.h"
#include "library/twinspeed.h"

struct twinspeed_job {
  tws_job *job;
  int by_cluster, by_profile; /* 1: the options name a cluster, or a profile */
  char *notes;                /* text returned by twinspeed_job_notes(); NULL before its first call */
};

#endif
