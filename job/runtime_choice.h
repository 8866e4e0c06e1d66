/* Chooses the runtime of a job if no flag states it: by the format of the configuration, the machine, and the
 * command. */
#ifndef TWS_JOB_RUNTIME_CHOICE_H
#define TWS_JOB_RUNTIME_CHOICE_H

#include "job/spec.h"
#include "models/hardware/runtime.h"

enum { TWS_RUNTIME_WHY = 96 };

typedef struct tws_runtime_choice {
  const tws_runtime *runtime;
  int given;                 /* 1: the flag --runtime states it */
  char why[TWS_RUNTIME_WHY]; /* the reason of the choice: "as -c is a ds_config.json" */
} tws_runtime_choice;

/* Chooses the runtime. If spec->runtime is given, it is that runtime. Otherwise it is this program's own engine on a
 * host, with a profile that `calibrate` measured, and in every command that runs this engine (spec->planned is 0); else
 * the software that reads the configuration's format; without a configuration, this program's own engine. profile NULL:
 * a GPU's profile with published figures. Fails with TWS_INVALID if there is no such runtime. */
tws_code tws_runtime_choose(const tws_job_spec *spec, const tws_config *config, const tws_profile *profile,
                            tws_runtime_choice *out, tws_error *err);

#endif
