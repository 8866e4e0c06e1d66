/* The runtime of a job where no flag says it: it follows from the configuration's format, the machine and the verb. */
#ifndef TWS_JOB_RUNTIME_CHOICE_H
#define TWS_JOB_RUNTIME_CHOICE_H

#include "job/spec.h"
#include "models/hardware/runtime.h"

enum { TWS_RUNTIME_WHY = 96 };

typedef struct tws_runtime_choice {
  const tws_runtime *runtime;
  int given;                 /* by the flag */
  char why[TWS_RUNTIME_WHY]; /* "as -c is a ds_config.json" */
} tws_runtime_choice;

/* spec->runtime decides. Without it a host, a profile that `calibrate` measured and every verb that runs this program's
 * own engine (spec->planned is 0) mean that engine; a configuration means the software that reads it; nothing means
 * this program's own engine. profile NULL: one of GPUs by data sheet. TWS_INVALID: there is no such runtime. */
tws_code tws_runtime_choose(const tws_job_spec *spec, const tws_config *config, const tws_profile *profile,
                            tws_runtime_choice *out, tws_error *err);

#endif
