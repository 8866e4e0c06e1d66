/* twinspeed calibrate --from: converts measurements of other software to a profile. */
#ifndef TWS_CLI_CALIBRATE_FROM_H
#define TWS_CLI_CALIBRATE_FROM_H

#include "cli/cli.h"
#include "job/spec.h"

typedef struct tws_calibrate_from {
  tws_job_spec job; /* the job that was measured */
  tws_strings files;
  int64_t steps;
  const char *out;
  int force;
} tws_calibrate_from;

tws_code tws_run_calibrate_from(const tws_cli *cli, const tws_calibrate_from *o, tws_error *err);

#endif
