/* Estimates of a job under other runtimes than its own: this program's own engine, and other software that reads the
 * same kind of configuration. */
#ifndef TWS_JOB_OWN_ENGINE_H
#define TWS_JOB_OWN_ENGINE_H

#include "job/fit.h"
#include "models/hardware/runtime.h"

typedef struct tws_own_engine {
  /* 1: the job has another runtime and can be planned with this program's own engine; 0: all other members are 0 */
  int known;
  double step_s, device_bytes; /* seconds of the longest path of a step; bytes that the job needs of a device */
} tws_own_engine;

/* Loads a job a second time with this program's own engine and returns its estimate. job: the job that was loaded from
 * `spec`; program: the name of a program, as for tws_job_choose_program(). */
tws_own_engine tws_own_engine_find(const tws_job *job, const tws_job_spec *spec, const char *program);

enum { TWS_OTHER_RUNTIMES = 3 };
typedef struct tws_other_runtime {
  const tws_runtime *runtime;
  double step_s;
  tws_fit fit;
} tws_other_runtime;

/* Writes estimates of the job under other runtimes that read its kind of configuration and can run it (without a
 * configuration file: runtimes of the best-known families), and returns their number; 0 on a host. Each estimate takes
 * as much time as that of the job itself. */
int tws_other_runtimes(const tws_job *job, const tws_job_spec *spec, const char *program,
                       tws_other_runtime list[TWS_OTHER_RUNTIMES]);

#endif
