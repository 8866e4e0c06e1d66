/* Computes the time to save a checkpoint of a job on its cluster, and the checkpoint interval for a mean time between
 * failures (Young, 1974; Daly, 2006). */
#ifndef TWS_JOB_SAVING_H
#define TWS_JOB_SAVING_H

#include "job/job.h"

typedef struct tws_saving {
  double bytes; /* bytes of a checkpoint, without small entries */
  /* seconds to write a checkpoint to the nodes' disks, and seconds that training waits while the state is copied from
   * devices */
  double write_s, hold_s;
} tws_saving;

typedef struct tws_saving_advice {
  tws_saving saving;
  double between_failures_s, young_s, daly_s;
  int64_t every; /* checkpoint interval in steps */
  double goodput;
} tws_saving_advice;
/* Advises a checkpoint interval. step_s: seconds of a training step; between_failures_s: mean seconds between failures;
 * restart_s: seconds from a failure until training continues. */
tws_code tws_job_saving_advise(const tws_job *job, double step_s, double between_failures_s, double restart_s,
                               tws_saving_advice *out, tws_error *err);

#endif
