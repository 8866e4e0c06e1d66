/* The time that saving a checkpoint of a job takes on its cluster, and the interval that its failures suggest. */
#ifndef TWS_JOB_SAVING_H
#define TWS_JOB_SAVING_H

#include "job/job.h"

typedef struct tws_saving {
  double bytes;           /* of a checkpoint, without what few elements take */
  double write_s, hold_s; /* the nodes' disks write it; training waits: for the copy out of devices */
} tws_saving;

typedef struct tws_saving_advice {
  tws_saving saving;
  double between_failures_s, young_s, daly_s;
  int64_t every; /* steps */
  double goodput;
} tws_saving_advice;
/* restart_s: from a failure until work continues. */
tws_code tws_job_saving_advise(const tws_job *job, double step_s, double between_failures_s, double restart_s,
                               tws_saving_advice *out, tws_error *err);

#endif
