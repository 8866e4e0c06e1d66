/* The same job under other runtimes: as this program's own engine would run it, and as other software would that reads
 * the same kind of configuration. */
#ifndef TWS_JOB_OWN_ENGINE_H
#define TWS_JOB_OWN_ENGINE_H

#include "job/fit.h"
#include "models/hardware/runtime.h"

typedef struct tws_own_engine {
  int known; /* 1: another runtime was chosen, and the job can be planned without it; 0: the rest is 0 */
  double step_s, device_bytes; /* longest path of a step; memory of one device */
} tws_own_engine;

/* job: loaded from the spec. program: as tws_job_choose_program(). The job is loaded and estimated a second time, with
 * this program's own engine. */
tws_own_engine tws_own_engine_find(const tws_job *job, const tws_job_spec *spec, const char *program);

enum { TWS_OTHER_RUNTIMES = 3 };
typedef struct tws_other_runtime {
  const tws_runtime *runtime;
  double step_s;
  tws_fit fit;
} tws_other_runtime;

/* Other runtimes that read the job's kind of configuration and can run the job; without a configuration those of
 * the best-known families. Each takes as long as the job's own estimate. Returns their number; 0 on a host. */
int tws_other_runtimes(const tws_job *job, const tws_job_spec *spec, const char *program,
                       tws_other_runtime list[TWS_OTHER_RUNTIMES]);

#endif
