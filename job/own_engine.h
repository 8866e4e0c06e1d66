/* Predicts the same job without its runtime style, as this program's own engine would run it, to show what the style
 * changes. */
#ifndef TWS_JOB_OWN_ENGINE_H
#define TWS_JOB_OWN_ENGINE_H

#include "job/job.h"

typedef struct tws_own_engine {
  int known;                   /* 1: a style was requested, and the job can be planned without it; 0: the rest is 0 */
  double step_s, device_bytes; /* longest path of a step; memory of one device */
} tws_own_engine;

/* program: as tws_job_choose_program(). The job is loaded and estimated a second time, without the style. */
tws_own_engine tws_own_engine_find(const tws_job_spec *spec, const char *program);

#endif
