/* What a runtime style changes: the same job as this program's own engine would run it. */
#ifndef TWS_JOB_OWN_ENGINE_H
#define TWS_JOB_OWN_ENGINE_H

#include "job/job.h"

typedef struct tws_own_engine {
  int known;                   /* a style was asked for, and the job can be planned without it; else the rest is 0 */
  double step_s, device_bytes; /* longest path of a step; what it needs of one device */
} tws_own_engine;

/* program: as tws_job_choose_program(). The job is loaded and estimated a second time, without the style. */
tws_own_engine tws_own_engine_find(const tws_job_spec *spec, const char *program);

#endif
